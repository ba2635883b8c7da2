/* Learning a shortcut from a walk that succeeded. */
#include "guards_shortcut.h"

#if INGOT_HAS_WORDS

typedef struct {
    GuardTree *tree;
    Shortcut *made;
    PyObject **values; /* of the walk */
    bool watching;
    int *known; /* per node, twice: which word, if it was not taken back, is its version tag, and
                   which its type */
} Learner;

/* -- recording --------------------------------------------------------------------------------- */

static bool add_word(Shortcut *made, int owner, const void *address, uint64_t expected) {
    if (made->word_count == made->word_room) {
        int room = made->word_room == 0 ? 64 : 2 * made->word_room;
        Word *words = PyMem_Realloc(made->words, (size_t)room * sizeof *words);
        made->words = words == NULL ? made->words : words;
        int *owners =
            words == NULL ? NULL : PyMem_Realloc(made->owners, (size_t)room * sizeof *owners);
        if (owners == NULL)
            return false;
        made->owners = owners;
        made->word_room = room;
    }
    made->words[made->word_count] = (Word){address, expected};
    made->owners[made->word_count++] = owner;
    return true;
}

/* A word of the node that holds a pointer. */
static bool add_pointer(Learner *learner, int node, const void *place, const void *pointer) {
    return add_word(learner->made, node, place, (uint64_t)(uintptr_t)pointer);
}

/* A word about a node's object that several facts may ask for, added once. It comes after those
   that show the object alive, for a node's words are added before its children's. */
static bool add_once(Learner *learner, int *known, int node, const void *address) {
    Shortcut *made = learner->made;
    if (*known < made->word_count && made->words[*known].address == address)
        return true;
    *known = made->word_count;
    return add_word(made, node, address, ingot_load_word(address));
}

static bool add_type(Learner *learner, int node, PyObject *value) {
    return add_once(learner, &learner->known[2 * node + 1], node, &value->ob_type);
}

/* The version tag of a dict or class; false if it has none. */
static bool add_version(Learner *learner, int node, const void *address) {
    return ingot_load_word(address) != 0 &&
           add_once(learner, &learner->known[2 * node], node, address);
}

/* What tells of changes to a dict. */
static bool add_dict(Learner *learner, int node, PyObject *dict) {
    Shortcut *made = learner->made;
    if (!learner->watching)
        return add_version(learner, node, ingot_dict_version(dict));
    int *known = &learner->known[2 * node];
    if (*known >= made->watch_count || made->watches[*known].node != node) {
        *known = made->watch_count;
        made->watches[made->watch_count++] =
            (IngotWatch){.dict = dict, .node = node, .word = made->word_count};
    }
    return true;
}

/* -- paths ------------------------------------------------------------------------------------- */

/* Keys whose lookup is the same each time, without code of the user's. */
static bool is_plain_key(PyObject *key) {
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBool_Check(key) ||
           PyBytes_CheckExact(key) || PyFloat_CheckExact(key) || key == Py_None;
}

static bool is_constant(PyObject *value) {
    if (!PyTuple_CheckExact(value))
        return is_plain_key(value);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (!is_constant(PyTuple_GET_ITEM(value, i)))
            return false;
    return true;
}

/* Holds a tuple of constants, whose items are then proven by its address. */
static bool hold(Shortcut *made, PyObject *tuple) {
    for (int i = 0; i < made->held_count; i++)
        if (made->held[i] == tuple)
            return true;
    if (!PyTuple_CheckExact(tuple) || !is_constant(tuple))
        return false;
    made->held[made->held_count++] = Py_NewRef(tuple);
    return true;
}

static bool cover_item(Learner *learner, int node, PyObject *owner, Standing parent) {
    int above = learner->tree->nodes[node].parent;
    if (parent != COVERED)
        return false;
    if (PyDict_Check(owner))
        return is_plain_key(learner->tree->nodes[node].key.object) &&
               add_dict(learner, above, owner);
    return hold(learner->made, owner);
}

static bool cover_instance_dict(Learner *learner, int node, PyObject *owner) {
    PyObject *dict = learner->values[node], **place = ingot_dict_place(owner);
    return place != NULL && *place == dict && ingot_dict_is_versioned(dict) &&
           add_type(learner, learner->tree->nodes[node].parent, owner) &&
           add_pointer(learner, node, place, dict);
}

static bool cover_function_field(Learner *learner, int node, PyObject *owner, Standing parent) {
    PyObject **place = ingot_function_field(owner, learner->tree->nodes[node].key.object);
    return parent == COVERED && place != NULL && add_pointer(learner, node, place, *place) &&
           add_type(learner, node, learner->values[node]);
}

static bool cover_cell(Learner *learner, int node, PyObject *owner, Standing parent) {
    if (parent != COVERED || !PyFunction_Check(owner))
        return false;
    PyFunctionObject *function = (PyFunctionObject *)owner;
    PyObject **cells = ((PyTupleObject *)function->func_closure)->ob_item;
    PyObject **cell = &cells[learner->tree->nodes[node].key.index];
    return add_pointer(learner, node, &function->func_closure, function->func_closure) &&
           add_pointer(learner, node, cell, *cell) &&
           add_pointer(learner, node, &((PyCellObject *)*cell)->ob_ref, learner->values[node]) &&
           add_type(learner, node, learner->values[node]);
}

/* Adds the words that lead from a node's parent to it; false if there are none. */
static bool cover_path(Learner *learner, int node) {
    const Node *described = &learner->tree->nodes[node];
    if (described->reach == CONSTANT)
        return true;
    if (described->parent < 0)
        return false;
    PyObject *owner = learner->values[described->parent];
    Standing parent = learner->made->standings[described->parent];
    switch (described->reach) {
    case ITEM:
        return cover_item(learner, node, owner, parent);
    case INSTANCE_DICT:
        return cover_instance_dict(learner, node, owner);
    case ATTRIBUTE:
        return cover_function_field(learner, node, owner, parent);
    case CELL:
        return cover_cell(learner, node, owner, parent);
    case TYPE:
        return parent == COVERED && add_type(learner, described->parent, owner);
    case CLASS_ATTRIBUTE:
        return parent == COVERED && PyType_Check(owner) &&
               learner->tree->nodes[described->parent].reach == CONSTANT &&
               add_version(learner, described->parent, ingot_type_version((PyTypeObject *)owner));
    default:
        return false;
    }
}

/* -- facts ------------------------------------------------------------------------------------- */

static bool is_mutable(PyObject *value) {
    return PyList_Check(value) || PyDict_Check(value) ||
           (PyAnySet_Check(value) && !PyFrozenSet_Check(value));
}

static bool cannot_change_class(PyObject *value) {
    return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_IMMUTABLETYPE) && !PyModule_Check(value);
}

static bool add_recheck(Learner *learner, int node, Check *check) {
    learner->made->rechecks[learner->made->recheck_count++] = (Recheck){node, check};
    return true;
}

/* Whether a covered node at the same address is the same object, or else its owner's version tag
 * differs. */
static bool is_the_same(const Learner *learner, int node) {
    const Node *described = &learner->tree->nodes[node];
    return described->reach == CONSTANT || described->reach == CLASS_ATTRIBUTE ||
           described->reach == ITEM;
}

/* Adds what proves a fact about a covered node; false if nothing does. */
static bool cover_check(Learner *learner, int node, Check *check) {
    PyObject *value = learner->values[node];
    bool same = is_the_same(learner, node);
    switch (check->proof) {
    case BY_ADDRESS:
        return true;
    case BY_VALUE:
        if (!is_mutable(value) && (same || value == check->data))
            return true;
        return add_recheck(learner, node, check);
    case BY_TYPE:
        return (same && cannot_change_class(value)) || add_type(learner, node, value);
    case BY_LENGTH:
        if (!PyDict_Check(value))
            return false;
        return learner->watching ? add_dict(learner, node, value)
                                 : add_word(learner->made, node, ingot_dict_length(value), 0);
    case BY_KEYS:
        if (PyODict_Check(value))
            return false;
        return PyDict_Check(value) && add_dict(learner, node, value);
    case BY_VERSION:
        return PyDict_Check(value) && add_dict(learner, node, value);
    case BY_CLASS:
        return PyType_Check(value) && learner->tree->nodes[node].reach == CONSTANT &&
               add_version(learner, node, ingot_type_version((PyTypeObject *)value));
    case BY_LOOKING:
        return add_recheck(learner, node, check);
    case NO_PROOF:
        break;
    }
    return false;
}

static bool cover_checks(Learner *learner, int node) {
    const Node *described = &learner->tree->nodes[node];
    for (int i = 0; i < described->check_count; i++)
        if (!cover_check(learner, node, &learner->tree->checks[described->first_check + i]))
            return false;
    return true;
}

/* -- standings --------------------------------------------------------------------------------- */

static bool only_reads(const GuardTree *tree, const Node *node) {
    for (int i = 0; i < node->check_count; i++) {
        Proof proof = tree->checks[node->first_check + i].proof;
        if (proof == NO_PROOF || proof == BY_VERSION ||
            proof == BY_CLASS) /* may compare keys of the user's */
            return false;
    }
    return true;
}

/* Whether a node can be read early; *field receives where in a function. */
static bool reads_early(const Learner *learner, const Node *node, size_t *field) {
    PyObject *owner = node->parent < 0 ? NULL : learner->values[node->parent];
    PyObject **place;
    switch (node->reach) {
    case SLOT:
    case TYPE:
        return true;
    case CELL:
        return PyFunction_Check(owner);
    case ITEM:
        return (PyTuple_Check(owner) || PyList_Check(owner)) && PyLong_CheckExact(node->key.object);
    case ATTRIBUTE:
        if ((place = ingot_function_field(owner, node->key.object)) == NULL)
            return false;
        *field = (size_t)((char *)place - (char *)owner);
        return true;
    default:
        return false;
    }
}

/* Words lead on from an early node: its value must be the one that was learnt. */
static void make_portal(Shortcut *made, int node) {
    for (int i = 0; i < made->early_count; i++)
        made->early[i].portal |= made->early[i].node == node;
}

static Standing decide(Learner *learner, int node) {
    GuardTree *tree = learner->tree;
    Shortcut *made = learner->made;
    const Node *described = &tree->nodes[node];
    Standing parent = described->parent < 0 ? COVERED : made->standings[described->parent];
    if (parent == LATE)
        return LATE;
    bool steady = tree->surprises[node] < INGOT_SURPRISES &&
                  (described->parent < 0 || tree->surprises[described->parent] < INGOT_SURPRISES);
    int words = made->word_count, watches = made->watch_count, rechecks = made->recheck_count;
    if (steady && cover_path(learner, node) && cover_checks(learner, node)) {
        if (parent == EARLY)
            make_portal(made, described->parent);
        return COVERED;
    }
    made->word_count = words;
    made->watch_count = watches;
    made->recheck_count = rechecks;
    size_t field = 0;
    if (!only_reads(tree, described) || !reads_early(learner, described, &field))
        return LATE;
    made->early[made->early_count++] = (Early){node, made->word_count, false, field};
    return EARLY;
}

/* Puts the early nodes that depend on the slots alone first: they differ most often, and that is
 * then seen at once. */
static bool sort_early(GuardTree *tree, Shortcut *made) {
    Early *sorted = PyMem_Calloc((size_t)tree->node_count + 1, sizeof *sorted);
    bool *from_slots = PyMem_Calloc((size_t)tree->node_count + 1, sizeof *from_slots);
    int count = 0;
    for (int pass = 0; sorted != NULL && from_slots != NULL && pass < 2; pass++)
        for (int i = 0; i < made->early_count; i++) {
            Early early = made->early[i];
            const Node *node = &tree->nodes[early.node];
            if (pass == 0)
                from_slots[early.node] =
                    node->reach == SLOT || (node->parent >= 0 && from_slots[node->parent]);
            if (from_slots[early.node] != (pass == 0))
                continue;
            early.word = pass == 0 ? 0 : early.word;
            sorted[count++] = early;
        }
    bool done = sorted != NULL && from_slots != NULL;
    PyMem_Free(done ? made->early : sorted);
    made->early = done ? sorted : made->early;
    PyMem_Free(from_slots);
    return done;
}

/* Lists the late nodes, and those whose values are still needed when these are read. */
static void list_late(GuardTree *tree, Shortcut *made) {
    bool *needed = PyMem_Calloc((size_t)tree->node_count + 1, sizeof *needed);
    made->late_count = needed == NULL ? -1 : 0;
    if (needed == NULL)
        return;
    for (int i = 0; i < tree->node_count; i++)
        if (made->standings[i] == LATE) {
            made->late[made->late_count++] = i;
            if (tree->nodes[i].parent >= 0)
                needed[tree->nodes[i].parent] = true;
        }
    for (int i = 0; i < tree->input_count; i++)
        needed[tree->inputs[i]] = true;
    for (int i = 0; i < tree->quantity_count; i++)
        needed[tree->quantities[i].node] = true;
    for (int i = 0; i < tree->relation_count; i++)
        for (int k = 0; k < tree->relations[i].count; k++)
            needed[tree->relations[i].nodes[k]] = true;
    for (int i = 0; i < tree->node_count; i++)
        if (needed[i] && made->standings[i] != LATE)
            made->kept[made->kept_count++] = i;
    PyMem_Free(needed);
}

/* Lists the relations that are to be checked at each call: all but those of identity between
   covered nodes, whose addresses stay. */
static void list_relations(GuardTree *tree, Shortcut *made) {
    for (int i = 0; i < tree->relation_count; i++) {
        const Relation *relation = &tree->relations[i];
        bool covered = relation->kind == SAME || relation->kind == DISTINCT;
        for (int k = 0; k < relation->count; k++)
            covered = covered && made->standings[relation->nodes[k]] == COVERED;
        if (!covered)
            made->relations[made->relation_count++] = i;
    }
}

/* -- the whole --------------------------------------------------------------------------------- */

static Shortcut *make_room(const GuardTree *tree) {
    size_t nodes = (size_t)tree->node_count + 1;
    Shortcut *made = PyMem_Calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    made->users = 1;
    made->watches = PyMem_Calloc(nodes, sizeof *made->watches);
    made->early = PyMem_Calloc(nodes, sizeof *made->early);
    made->rechecks = PyMem_Calloc((size_t)tree->check_count + 1, sizeof *made->rechecks);
    made->late = PyMem_Calloc(nodes, sizeof *made->late);
    made->kept = PyMem_Calloc(nodes, sizeof *made->kept);
    made->relations = PyMem_Calloc((size_t)tree->relation_count + 1, sizeof *made->relations);
    made->held = PyMem_Calloc(nodes, sizeof *made->held);
    made->pointers = PyMem_Calloc(nodes, sizeof *made->pointers);
    made->standings = PyMem_Calloc(nodes, 1);
    made->natures = PyMem_Calloc(nodes, 1);
    made->leaves = PyMem_Calloc(nodes, sizeof *made->leaves);
    if (made->watches && made->early && made->rechecks && made->late && made->kept &&
        made->relations && made->held && made->pointers && made->standings && made->natures &&
        made->leaves)
        return made;
    ingot_release_shortcut(made);
    return NULL;
}

static bool watch_all(Shortcut *made) {
    for (int i = 0; i < made->watch_count; i++)
        if (!ingot_watch(&made->watches[i]))
            return false;
    return true;
}

/* Decides the standing of every node, parents first. False where memory is short. */
static bool decide_all(Learner *learner) {
    GuardTree *tree = learner->tree;
    Shortcut *made = learner->made;
    made->knows_string_keys = ingot_string_keys_are_known();
    for (int i = 0; i < tree->node_count; i++) {
        made->pointers[i] = learner->values[i];
        made->natures[i] = (unsigned char)ingot_nature_of(learner->values[i]);
        made->standings[i] = (unsigned char)decide(learner, i);
        made->leaves[i] = true;
        if (made->standings[i] == COVERED && tree->nodes[i].parent >= 0)
            made->leaves[tree->nodes[i].parent] = false;
    }
    for (int i = 0; i < made->word_count; i++)
        made->leaves[made->owners[i]] = false;
    for (int i = 0; i < made->watch_count; i++) {
        made->leaves[made->watches[i].node] = false;
        made->watches[i].changes = &made->changes;
    }
    list_relations(tree, made);
    list_late(tree, made);
    return made->late_count >= 0 && sort_early(tree, made) && watch_all(made);
}

static size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

static void *move(char **place, void *array, size_t bytes) {
    void *moved = *place;
    if (bytes > 0)
        memcpy(moved, array, bytes);
    PyMem_Free(array);
    *place += padded(bytes);
    return moved;
}

/* Puts what each call reads in one piece: entries that are called in turn then get less in each
   other's way in the processor's caches. False where memory is short. */
static bool pack(const GuardTree *tree, Shortcut *made) {
    size_t words = (size_t)made->word_count * sizeof *made->words;
    size_t early = (size_t)(made->early_count + 1) *
                   sizeof *made->early; /* a pass looks at the one after the last */
    size_t rechecks = (size_t)made->recheck_count * sizeof *made->rechecks;
    size_t relations = (size_t)made->relation_count * sizeof *made->relations;
    size_t pointers = (size_t)tree->node_count * sizeof *made->pointers;
    char *place = PyMem_Malloc(padded(words) + padded(early) + padded(rechecks) +
                               padded(relations) + padded(pointers));
    made->piece = place;
    if (place == NULL)
        return false;
    made->words = move(&place, made->words, words);
    made->early = move(&place, made->early, early);
    made->rechecks = move(&place, made->rechecks, rechecks);
    made->relations = move(&place, made->relations, relations);
    made->pointers = move(&place, made->pointers, pointers);
    return true;
}

static Shortcut *learn(GuardTree *tree, PyObject **values) {
    if (tree->surprises == NULL &&
        (tree->surprises = PyMem_Calloc((size_t)tree->node_count + 1, 1)) == NULL)
        return NULL;
    int *known = PyMem_Calloc((size_t)tree->node_count + 1, 2 * sizeof *known);
    Learner learner = {tree, make_room(tree), values, ingot_can_watch(), known};
    if (learner.made != NULL &&
        (learner.known == NULL || !decide_all(&learner) || !pack(tree, learner.made))) {
        ingot_release_shortcut(learner.made);
        learner.made = NULL;
    }
    PyMem_Free(learner.known);
    return learner.made;
}

/* Whether a walk after the words were noted finds the same, and they still say so: then they stand
   for what it found, whatever other code ran while they were noted. */
static bool is_confirmed(GuardTree *tree, Shortcut *made, PyObject *const *slots) {
    PyObject **values = PyMem_Malloc(((size_t)tree->node_count + 1) * sizeof *values);
    if (values == NULL)
        return false;
    int held = ingot_walk_nodes(tree, slots, values);
    Progress progress = {0};
    bool same = held == tree->node_count;
    for (int i = 0; same && i < tree->node_count; i++)
        same = made->standings[i] == LATE || made->pointers[i] == values[i];
    same = same && ingot_verify_shortcut(tree, made, slots, &progress) == HOLDS;
    while (held > 0)
        Py_DECREF(values[--held]);
    PyMem_Free(values);
    return same;
}

void ingot_learn_shortcut(GuardTree *tree, PyObject *const *slots, PyObject **values) {
    Shortcut *made = learn(tree, values);
    if (made != NULL && is_confirmed(tree, made, slots)) {
        Shortcut *before = tree->shortcut;
        tree->shortcut = made;
        made = before;
    }
    ingot_release_shortcut(made);
    PyErr_Clear();
}

#endif
