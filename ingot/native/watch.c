#include "watch.h"

#include <stdint.h>

static bool forbidden;

void ingot_forbid_watching(bool forbid) { forbidden = forbid; }

#if INGOT_HAS_WATCHES

/* All watches of one dict, in a hash table with chains. */
typedef struct Watched {
    PyObject *dict;
    IngotWatch *first;
    bool all_changed; /* there is nothing left to tell */
    struct Watched *next;
} Watched;

static Watched **buckets;
static size_t bucket_count, dict_count;
static int watcher = -1;

static size_t bucket_of(PyObject *dict, size_t count) {
    uint64_t mixed = (uint64_t)(uintptr_t)dict * 0x9E3779B97F4A7C15u;
    return (size_t)(mixed >> 32) & (count - 1);
}

static Watched **find(PyObject *dict) {
    Watched **place = &buckets[bucket_of(dict, bucket_count)];
    while (*place != NULL && (*place)->dict != dict)
        place = &(*place)->next;
    return place;
}

static bool grow(void) {
    size_t count = bucket_count == 0 ? 256 : 2 * bucket_count;
    Watched **larger = PyMem_Calloc(count, sizeof *larger);
    if (larger == NULL)
        return false;
    for (size_t i = 0; i < bucket_count; i++)
        for (Watched *watched = buckets[i], *next; watched != NULL; watched = next) {
            size_t to = bucket_of(watched->dict, count);
            next = watched->next;
            watched->next = larger[to];
            larger[to] = watched;
        }
    PyMem_Free(buckets);
    buckets = larger;
    bucket_count = count;
    return true;
}

static void forget(Watched **place) {
    Watched *watched = *place;
    *place = watched->next;
    dict_count--;
    PyMem_Free(watched);
}

/* Called before the dict changes, or is freed. */
static int on_event(PyDict_WatchEvent event, PyObject *dict, PyObject *Py_UNUSED(key),
                    PyObject *Py_UNUSED(value)) {
    Watched **place = find(dict), *watched = *place;
    if (watched == NULL || (watched->all_changed && event != PyDict_EVENT_DEALLOCATED))
        return 0;
    for (IngotWatch *watch = watched->first; watch != NULL; watch = watch->next) {
        *watch->changes += !watch->changed;
        watch->changed = true;
        watch->watched = event != PyDict_EVENT_DEALLOCATED;
    }
    watched->all_changed = true;
    if (event == PyDict_EVENT_DEALLOCATED)
        forget(place);
    return 0;
}

bool ingot_can_watch(void) {
    static bool asked;
    if (!asked && (watcher = PyDict_AddWatcher(on_event)) < 0)
        PyErr_Clear();
    asked = true;
    return watcher >= 0 && !forbidden;
}

static Watched *begin(PyObject *dict) {
    if (dict_count >= bucket_count && !grow())
        return NULL;
    Watched **place = find(dict);
    if (*place != NULL)
        return *place;
    Watched *watched = PyMem_Calloc(1, sizeof *watched);
    if (watched == NULL)
        return NULL;
    if (PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        PyMem_Free(watched);
        return NULL;
    }
    watched->dict = dict;
    *place = watched;
    dict_count++;
    return watched;
}

bool ingot_watch(IngotWatch *watch) {
    Watched *watched = begin(watch->dict);
    if (watched == NULL)
        return false;
    if (!watch->watched) {
        watch->previous = NULL;
        watch->next = watched->first;
        if (watched->first != NULL)
            watched->first->previous = watch;
        watched->first = watch;
        watch->watched = true;
    }
    watched->all_changed = false;
    *watch->changes -= watch->changed;
    watch->changed = false;
    return true;
}

void ingot_unwatch(IngotWatch *watch) {
    if (!watch->watched)
        return;
    watch->watched = false;
    Watched **place = find(watch->dict);
    if (watch->next != NULL)
        watch->next->previous = watch->previous;
    if (watch->previous != NULL)
        watch->previous->next = watch->next;
    else
        (*place)->first = watch->next;
    if ((*place)->first != NULL)
        return;
    forget(place);
    if (PyDict_Unwatch(watcher, watch->dict) < 0)
        PyErr_Clear();
}

#else

bool ingot_can_watch(void) { return forbidden && false; }
bool ingot_watch(IngotWatch *watch) { return watch == NULL; }
void ingot_unwatch(IngotWatch *Py_UNUSED(watch)) {}

#endif
