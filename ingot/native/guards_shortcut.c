/* Deciding a call by what the last walk found. */
#include "guards_shortcut.h"

#if INGOT_HAS_WORDS

/* -- one pass ------------------------------------------------------------------------------------------------------ */

/* The value of an early node, borrowed. NULL where it is gone; *changed is set where the path is of another nature. */
static PyObject *read_early(const Node *node, const Early *early, PyObject *owner, PyObject *const *slots,
                            bool *changed) {
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
        return PyTuple_Check(owner) ? PyTuple_GET_ITEM(owner, index) : PyList_GET_ITEM(owner, index);
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

static Verdict verify_early(GuardTree *tree, Shortcut *shortcut, const Early *early, PyObject *const *slots) {
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

Verdict ingot_verify_shortcut(GuardTree *tree, Shortcut *shortcut, PyObject *const *slots, int *node) {
    const Word *words = shortcut->words;
    int word = 0;
    for (int i = 0; i <= shortcut->early_count; i++) {
        const Early *early = &shortcut->early[i];
        int end = i < shortcut->early_count ? early->word : shortcut->word_count;
        for (; word < end; word++)
            if (ingot_load_word(words[word].address) != words[word].expected) {
                *node = shortcut->owners[word];
                return CHANGED;
            }
        if (i < shortcut->early_count) {
            *node = early->node;
            Verdict verdict = verify_early(tree, shortcut, early, slots);
            if (verdict != HOLDS)
                return verdict;
        }
    }
    for (int i = 0; i < shortcut->recheck_count; i++) {
        Recheck *recheck = &shortcut->rechecks[i];
        if (!recheck->check->holds(shortcut->pointers[recheck->node], recheck->check))
            return FAILS;
    }
    return HOLDS;
}

/* -- a dict or a class that changed, though perhaps in nothing that matters ---------------------------------------- */

static bool checks_hold(GuardTree *tree, int node, PyObject *value) {
    Check *check = tree->checks + tree->nodes[node].first_check, *end = check + tree->nodes[node].check_count;
    while (check < end && check->holds(value, check))
        check++;
    return check == end;
}

/* Reads a child of a changed dict or class anew. Facts of its own are checked; those below it have words, or are CHANGED. */
static Verdict renew_child(GuardTree *tree, Shortcut *shortcut, int child, PyObject *owner) {
    const Node *node = &tree->nodes[child];
    if (shortcut->standings[child] != COVERED)
        return HOLDS; /* it is read anew anyway */
    PyObject *value = node->access(owner, &node->key);
    if (value == NULL)
        return FAILS;
    Verdict verdict = checks_hold(tree, child, value) ? HOLDS : FAILS;
    if (verdict == HOLDS && shortcut->leaves[child])
        shortcut->pointers[child] = value; /* the owner holds it */
    else if (verdict == HOLDS && (value != shortcut->pointers[child] || ingot_nature_of(value) != shortcut->natures[child]))
        verdict = CHANGED;
    Py_DECREF(value);
    return verdict;
}

/* The word of a node that differs from what was learnt. */
static Word *differing_word(Shortcut *shortcut, int node) {
    Word *word = shortcut->words, *end = word + shortcut->word_count;
    for (; word < end; word++)
        if (shortcut->owners[word - shortcut->words] == node && ingot_load_word(word->address) != word->expected)
            return word;
    return NULL;
}

/* Checks the facts that the version tag of a node's dict or class stands for, and takes the new tag. CHANGED where it is
   not a version tag that differs, or where more than that has changed: *node is then told more precisely. */
static Verdict renew(GuardTree *tree, Shortcut *shortcut, int *node) {
    Word *word = shortcut->standings[*node] == COVERED ? differing_word(shortcut, *node) : NULL;
    PyObject *owner = shortcut->pointers[*node];
    if (word == NULL || (word->address != ingot_dict_version(owner) &&
                         word->address != ingot_type_version((PyTypeObject *)owner)))
        return CHANGED;
    Py_INCREF(owner); /* alive, as the words before this one have shown */
    uint64_t version = ingot_load_word(word->address); /* before the lookups: what changes meanwhile is seen */
    Verdict verdict = checks_hold(tree, *node, owner) ? HOLDS : FAILS;
    if (verdict == HOLDS && version == 0) /* a class gets its tag in the first lookup, if any is left */
        version = ingot_load_word(word->address);
    int child = tree->nodes[*node].first_child, parent = *node;
    for (; verdict == HOLDS && child >= 0; child = tree->nodes[child].next_sibling) {
        verdict = renew_child(tree, shortcut, child, owner);
        *node = verdict == CHANGED ? child : parent;
    }
    if (verdict == HOLDS && version == 0)
        verdict = CHANGED;
    if (verdict == HOLDS)
        word->expected = version;
    Py_DECREF(owner);
    return verdict;
}

#define MOST_RENEWALS 8

static Verdict verify_and_renew(GuardTree *tree, Shortcut *shortcut, PyObject *const *slots) {
    for (int i = 0; i < MOST_RENEWALS; i++) {
        int node = 0;
        Verdict verdict = ingot_verify_shortcut(tree, shortcut, slots, &node);
        if (verdict != CHANGED)
            return verdict;
        verdict = renew(tree, shortcut, &node);
        if (verdict == CHANGED && tree->surprises != NULL && tree->surprises[node] < UCHAR_MAX)
            tree->surprises[node] = shortcut->hits < 16 ? tree->surprises[node] + 1 : 1;
        if (verdict != HOLDS)
            return verdict;
    }
    return CHANGED;
}

/* -- the rest of a call -------------------------------------------------------------------------------------------- */

/* Reads and checks the late nodes; how many of them are held in `values`. */
static int walk_late(GuardTree *tree, const Shortcut *shortcut, PyObject *const *slots, PyObject **values) {
    for (int i = 0; i < shortcut->late_count; i++) {
        int at = shortcut->late[i];
        const Node *node = &tree->nodes[at];
        values[at] = node->access == NULL ? Py_XNewRef(slots[node->key.index])
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

static void collect(const GuardTree *tree, PyObject **values, PyObject **inputs) {
    for (int i = 0; i < tree->input_count; i++)
        inputs[i] = Py_NewRef(values[tree->inputs[i]]);
}

/* The late nodes may run code of the user's: from here on, everything needed is held. */
static Verdict finish_late(GuardTree *tree, const Shortcut *shortcut, PyObject *const *slots, PyObject **inputs) {
    PyObject **values = PyMem_Malloc((size_t)tree->node_count * sizeof *values);
    if (values == NULL)
        return CHANGED;
    for (int i = 0; i < shortcut->kept_count; i++)
        values[shortcut->kept[i]] = Py_NewRef(shortcut->pointers[shortcut->kept[i]]);
    int held = walk_late(tree, shortcut, slots, values);
    bool holds = held == shortcut->late_count && ingot_check_relations(tree, values);
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
        else if (ingot_check_relations(tree, shortcut->pointers))
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
    PyMem_Free(shortcut->words);
    PyMem_Free(shortcut->owners);
    PyMem_Free(shortcut->early);
    PyMem_Free(shortcut->rechecks);
    PyMem_Free(shortcut->late);
    PyMem_Free(shortcut->kept);
    PyMem_Free(shortcut->held);
    PyMem_Free(shortcut->pointers);
    PyMem_Free(shortcut->standings);
    PyMem_Free(shortcut->natures);
    PyMem_Free(shortcut->leaves);
    PyMem_Free(shortcut);
}

#endif
