/* Dictionaries that tell when they are about to change: Python 3.12 and later. */
#ifndef INGOT_WATCH_H
#define INGOT_WATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#if PY_VERSION_HEX >= 0x030C0000 && !defined(Py_GIL_DISABLED)
#define INGOT_HAS_WATCHES 1
#else
#define INGOT_HAS_WATCHES 0
#endif

/* One interest in one dict. It lies at the same address for as long as it is watched. */
typedef struct IngotWatch {
    PyObject *dict; /* borrowed */
    int *changes;   /* counts the watches of its owner that have changed */
    int node, word; /* its owner's */
    bool changed;
    bool watched;                       /* false again when the dict is freed */
    struct IngotWatch *next, *previous; /* of the same dict */
} IngotWatch;

/* Whether dicts can be watched: there is a place left among the interpreter's few watchers. Tests
 * can forbid it. */
bool ingot_can_watch(void);
void ingot_forbid_watching(bool forbidden);

/* Begins to watch a dict that is alive, and says that it has not changed. False, with no exception
   set, where memory is short; what is watched already stays so. */
bool ingot_watch(IngotWatch *watch);

/* Ends it; nothing happens where it is not watched. */
void ingot_unwatch(IngotWatch *watch);

#endif
