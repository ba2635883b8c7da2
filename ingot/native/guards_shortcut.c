/* Deciding a call by what the last walk found. */
#include "guards_shortcut.h"

#include <limits.h>

#if INGOT_HAS_WORDS

/* -- one pass ---------------------------------------------------------------------------------- */

/* The value of an early node, borrowed. NULL where it is gone; *changed is set where the path is of
 * another nature. */
static PyObject *read_early(const Node *node, const Early *early, PyObject *owner,
                            PyObject *const *slots, bool *changed) {
    Py_ssize_t index = node->key.index;
    PyObject *found;
    switch (node->reach) {
    case SLOT:
        return slots[index];
    case TYPE:
        return (PyObject *)Py_TYPE(owner);
    case ITEM:
        if ((*changed = !PyTuple_Check(owner) && !PyList_Check(owner)))
            return NULL;
        index = index < 0 ? index + Py_SIZE(owner) : index;
        if (index < 0 || index >= Py_SIZE(owner))
            return NULL;
        return PyTuple_Check(owner) ? PyTuple_GET_ITEM(owner, index)
                                    : PyList_GET_ITEM(owner, index);
    case ATTRIBUTE:
        if ((*changed = !PyFunction_Check(owner)))
            return NULL;
        found = *(PyObject **)((char *)owner + early->field);
        return found == NULL ? Py_None : found;
    case CELL:
        if ((*changed = !PyFunction_Check(owner)))
            return NULL;
        found = PyFunction_GET_CLOSURE(owner);
        if (found == NULL || index < 0 || index >= PyTuple_GET_SIZE(found))
            return NULL;
        return PyCell_GET(PyTuple_GET_ITEM(found, index));
    default:
        *changed = true;
        return NULL;
    }
}

static Verdict verify_early(GuardTree *tree, Shortcut *shortcut, const Early *early,
                            PyObject *const *slots) {
    const Node *node = &tree->nodes[early->node];
    bool changed = false;
    PyObject *owner = node->parent < 0 ? NULL : shortcut->pointers[node->parent];
    PyObject *value = read_early(node, early, owner, slots, &changed);
    if (value == NULL)
        return changed ? CHANGED : FAILS;
    Check *check = tree->checks + node->first_check, *end = check + node->check_count;
    for (; check < end; check++) {
        if (check->proof == BY_KEYS && PyODict_Check(value)) /* its keys in order are a new tuple */
            return CHANGED;
        if (!check->holds(value, check))
            return FAILS;
    }
    if (early->portal && value != shortcut->pointers[early->node])
        return CHANGED;
    shortcut->pointers[early->node] = value;
    return HOLDS;
}

/* The next watched dict that has changed, if the words before it end no later than at `end`. */
static IngotWatch *next_changed(Shortcut *shortcut, Progress *progress, int end) {
    if (shortcut->changes == 0)
        return NULL;
    while (progress->watch < shortcut->watch_count && !shortcut->watches[progress->watch].changed)
        progress->watch++;
    IngotWatch *watch = &shortcut->watches[progress->watch];
    return progress->watch < shortcut->watch_count && watch->word <= end ? watch : NULL;
}

Verdict ingot_verify_shortcut(GuardTree *tree, Shortcut *shortcut, PyObject *const *slots,
                              Progress *progress) {
    const Word *words = shortcut->words;
    while (progress->early <= shortcut->early_count) {
        const Early *early = &shortcut->early[progress->early];
        bool last = progress->early == shortcut->early_count;
        int word = progress->word, end = last ? shortcut->word_count : early->word;
        progress->changed = next_changed(shortcut, progress, end);
        end = progress->changed == NULL ? end : progress->changed->word;
        while (word < end && ingot_load_word(words[word].address) == words[word].expected)
            word++;
        progress->word = word;
        progress->differs = word < end ? &shortcut->words[word] : NULL;
        if (word < end || progress->changed != NULL) {
            progress->node = word < end ? shortcut->owners[word] : progress->changed->node;
            return CHANGED;
        }
        progress->node = early->node;
        Verdict verdict = last ? HOLDS : verify_early(tree, shortcut, early, slots);
        if (verdict != HOLDS)
            return verdict;
        progress->early++;
    }
    for (int i = 0; i < shortcut->recheck_count; i++) {
        Recheck *recheck = &shortcut->rechecks[i];
        if (!recheck->check->holds(shortcut->pointers[recheck->node], recheck->check))
            return FAILS;
    }
    return HOLDS;
}

/* -- a dict or a class that changed, though perhaps in nothing that matters -------------------- */

static bool checks_hold(GuardTree *tree, int node, PyObject *value) {
    Check *check = tree->checks + tree->nodes[node].first_check,
          *end = check + tree->nodes[node].check_count;
    while (check < end && check->holds(value, check))
        check++;
    return check == end;
}

static bool has_string_keys(const Shortcut *shortcut, PyObject *value) {
    return shortcut->knows_string_keys && PyDict_Check(value) && ingot_has_string_keys(value);
}

/* Whether looking a node's facts up runs no code of the user's: it compares no keys but strings,
   and allocates nothing. */
static bool looks_up_strings(const GuardTree *tree, const Shortcut *shortcut, int node,
                             PyObject *value) {
    const Node *described = &tree->nodes[node];
    for (int i = 0; i < described->check_count; i++) {
        Proof proof = tree->checks[described->first_check + i].proof;
        if (proof == NO_PROOF || proof == BY_CLASS || (proof == BY_KEYS && PyODict_Check(value)))
            return false;
        if (proof == BY_VERSION && !has_string_keys(shortcut, value))
            return false;
    }
    return true;
}

/* Reads a child of a changed dict or class anew. Its own facts are checked; those below it have
   words, or are CHANGED. */
static Verdict renew_child(GuardTree *tree, Shortcut *shortcut, int child, PyObject *owner,
                           bool *quiet) {
    const Node *node = &tree->nodes[child];
    if (shortcut->standings[child] != COVERED)
        return HOLDS; /* it is read anew anyway */
    PyObject *value = node->access(owner, &node->key);
    if (value == NULL)
        return FAILS;
    *quiet = *quiet && looks_up_strings(tree, shortcut, child, value);
    Verdict verdict = checks_hold(tree, child, value) ? HOLDS : FAILS;
    if (verdict == HOLDS && shortcut->leaves[child]) {
        shortcut->repointed = shortcut->repointed || shortcut->pointers[child] != value;
        shortcut->pointers[child] = value; /* the owner holds it */
    } else if (verdict == HOLDS && (value != shortcut->pointers[child] ||
                                    ingot_nature_of(value) != shortcut->natures[child]))
        verdict = CHANGED;
    Py_DECREF(value);
    return verdict;
}

/* Checks the facts that a dict or class stands for of which the version tag differs, or which said
   that it changes. CHANGED where more than they allow for has changed: *node is then told more
   precisely. *quiet: whether no code of the user's ran, so that what was verified before still is.
 */
static Verdict look_again(GuardTree *tree, Shortcut *shortcut, int *node, bool *quiet) {
    PyObject *owner = shortcut->pointers[*node];
    *quiet = has_string_keys(shortcut, owner) && looks_up_strings(tree, shortcut, *node, owner);
    Verdict verdict = checks_hold(tree, *node, owner) ? HOLDS : FAILS;
    int child = tree->nodes[*node].first_child, parent = *node;
    for (; verdict == HOLDS && child >= 0; child = tree->nodes[child].next_sibling) {
        verdict = renew_child(tree, shortcut, child, owner, quiet);
        *node = verdict == CHANGED ? child : parent;
    }
    return verdict;
}

/* Takes a version tag that differs for the expected one, if the facts still hold; CHANGED for other
 * words. */
static Verdict renew_word(GuardTree *tree, Shortcut *shortcut, Word *word, int *node, bool *quiet) {
    PyObject *owner = shortcut->pointers[*node];
    if (shortcut->standings[*node] != COVERED ||
        (word->address != ingot_dict_version(owner) &&
         word->address != ingot_type_version((PyTypeObject *)owner)))
        return CHANGED;
    Py_INCREF(owner); /* alive, as the words before this one have shown */
    if (ingot_load_word(word->address) == 0)
        checks_hold(tree, *node,
                    owner); /* the first lookup gives a class its tag, if there is one left */
    uint64_t version =
        ingot_load_word(word->address); /* before the lookups: what changes meanwhile is seen */
    Verdict verdict = version == 0 ? CHANGED : look_again(tree, shortcut, node, quiet);
    if (verdict == HOLDS)
        word->expected = version;
    Py_DECREF(owner);
    return verdict;
}

/* Watches on, if the facts about a dict that has changed still hold. */
static Verdict renew_watch(GuardTree *tree, Shortcut *shortcut, IngotWatch *watch, int *node,
                           bool *quiet) {
    PyObject *dict = shortcut->pointers[*node];
    if (dict != watch->dict || !PyDict_Check(dict) ||
        !ingot_watch(watch)) /* before the lookups, likewise */
        return CHANGED;
    Py_INCREF(dict);
    Verdict verdict = look_again(tree, shortcut, node, quiet);
    if (verdict != HOLDS && !watch->changed) {
        watch->changed = true;
        shortcut->changes++;
    }
    Py_DECREF(dict);
    return verdict;
}

static Verdict renew(GuardTree *tree, Shortcut *shortcut, Progress *progress, bool *quiet) {
    if (progress->differs != NULL)
        return renew_word(tree, shortcut, progress->differs, &progress->node, quiet);
    if (progress->changed != NULL)
        return renew_watch(tree, shortcut, progress->changed, &progress->node, quiet);
    return CHANGED;
}

/* What changes soon after it was learnt, again and again, is not covered any more. */
static void note_surprise(GuardTree *tree, const Shortcut *shortcut, int node) {
    unsigned char *count = &tree->surprises[node];
    *count = shortcut->hits >= 16 ? 1 : (unsigned char)(*count + (*count < UCHAR_MAX));
}

#define MOST_PASSES 8

static Verdict verify_and_renew(GuardTree *tree, Shortcut *shortcut, PyObject *const *slots) {
    Progress progress = {0};
    for (int pass = 0; pass < MOST_PASSES; pass++) {
        bool quiet = true;
        progress = (Progress){0};
        while (quiet) {
            Verdict verdict = ingot_verify_shortcut(tree, shortcut, slots, &progress);
            if (verdict != CHANGED)
                return verdict;
            verdict = renew(tree, shortcut, &progress, &quiet);
            if (verdict == CHANGED)
                note_surprise(tree, shortcut, progress.node);
            if (verdict != HOLDS)
                return verdict;
        }
    }
    note_surprise(tree, shortcut, progress.node);
    return CHANGED;
}

/* -- the rest of a call ------------------------------------------------------------------------ */

/* Reads and checks the late nodes; how many of them are held in `values`. */
static int walk_late(GuardTree *tree, const Shortcut *shortcut, PyObject *const *slots,
                     PyObject **values) {
    for (int i = 0; i < shortcut->late_count; i++) {
        int at = shortcut->late[i];
        const Node *node = &tree->nodes[at];
        values[at] = node->access == NULL
                         ? Py_XNewRef(slots[node->key.index])
                         : node->access(node->parent < 0 ? NULL : values[node->parent], &node->key);
        if (values[at] == NULL)
            return i;
        if (!checks_hold(tree, at, values[at])) {
            Py_DECREF(values[at]);
            return i;
        }
    }
    return shortcut->late_count;
}

static bool check_relations(GuardTree *tree, const Shortcut *shortcut, PyObject **values) {
    if (shortcut->repointed)
        return ingot_check_relations(tree, NULL, tree->relation_count, values);
    return ingot_check_relations(tree, shortcut->relations, shortcut->relation_count, values);
}

static void collect(const GuardTree *tree, PyObject **values, PyObject **inputs) {
    for (int i = 0; i < tree->input_count; i++)
        inputs[i] = Py_NewRef(values[tree->inputs[i]]);
}

/* The late nodes may run code of the user's: from here on, everything needed is held. */
static Verdict finish_late(GuardTree *tree, const Shortcut *shortcut, PyObject *const *slots,
                           PyObject **inputs) {
    PyObject **values = PyMem_Malloc((size_t)tree->node_count * sizeof *values);
    if (values == NULL)
        return CHANGED;
    for (int i = 0; i < shortcut->kept_count; i++)
        values[shortcut->kept[i]] = Py_NewRef(shortcut->pointers[shortcut->kept[i]]);
    int held = walk_late(tree, shortcut, slots, values);
    bool holds = held == shortcut->late_count && check_relations(tree, shortcut, values);
    if (holds)
        collect(tree, values, inputs);
    while (held > 0)
        Py_DECREF(values[shortcut->late[--held]]);
    for (int i = 0; i < shortcut->kept_count; i++)
        Py_DECREF(values[shortcut->kept[i]]);
    PyMem_Free(values);
    return holds ? HOLDS : FAILS;
}

Verdict ingot_take_shortcut(GuardTree *tree, PyObject *const *slots, PyObject **inputs) {
    Shortcut *shortcut = tree->shortcut;
    shortcut->users++; /* code of the user's may put another in its place */
    Verdict verdict = verify_and_renew(tree, shortcut, slots);
    if (verdict == HOLDS) {
        shortcut->hits++;
        if (shortcut->late_count > 0)
            verdict = finish_late(tree, shortcut, slots, inputs);
        else if (check_relations(tree, shortcut, shortcut->pointers))
            collect(tree, shortcut->pointers, inputs);
        else
            verdict = FAILS;
    }
    if (verdict != HOLDS && PyErr_Occurred())
        PyErr_Clear();
    ingot_release_shortcut(shortcut);
    return verdict;
}

void ingot_release_shortcut(Shortcut *shortcut) {
    if (shortcut == NULL || --shortcut->users > 0)
        return;
    for (int i = 0; i < shortcut->held_count; i++)
        Py_DECREF(shortcut->held[i]);
    for (int i = 0; i < shortcut->watch_count; i++)
        ingot_unwatch(&shortcut->watches[i]);
    if (shortcut->piece == NULL) { /* it was not learnt to the end */
        PyMem_Free(shortcut->words);
        PyMem_Free(shortcut->early);
        PyMem_Free(shortcut->rechecks);
        PyMem_Free(shortcut->relations);
        PyMem_Free(shortcut->pointers);
    }
    PyMem_Free(shortcut->piece);
    PyMem_Free(shortcut->watches);
    PyMem_Free(shortcut->owners);
    PyMem_Free(shortcut->late);
    PyMem_Free(shortcut->kept);
    PyMem_Free(shortcut->held);
    PyMem_Free(shortcut->standings);
    PyMem_Free(shortcut->natures);
    PyMem_Free(shortcut->leaves);
    PyMem_Free(shortcut);
}

#endif
