#include "guards.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "constants.h"
#include "guards_shortcut.h"
#include "watch.h"

/* -- the walk ---------------------------------------------------------------------------------- */

static bool check_state_slowly(GuardTree *tree) {
    PyObject *now = PyObject_CallNoArgs(tree->state_reader);
    int same = now == NULL ? -1 : PyObject_RichCompareBool(now, tree->expected_state, Py_EQ);
    Py_XDECREF(now);
    return same == 1;
}

/* The Python reader decides once; then the state must stay what it was at that time. */
static bool check_state(GuardTree *tree, IngotSurroundings *around) {
    if (tree->expected_state == NULL)
        return true;
    if (!around->read)
        around->readable =
            ingot_global_state_is_readable() && ingot_read_global_state(&around->state);
    around->read = true;
    if (!around->readable)
        return check_state_slowly(tree);
    if (tree->state_known)
        return memcmp(&around->state, &tree->state, sizeof tree->state) == 0;
    if (!check_state_slowly(tree))
        return false;
    tree->state = around->state;
    return tree->state_known = true;
}

int ingot_walk_nodes(GuardTree *tree, PyObject *const *slots, PyObject **values) {
    int count = tree->node_count;
    for (int i = 0; i < count; i++) {
        const Node *node = &tree->nodes[i];
        values[i] = node->access == NULL
                        ? Py_XNewRef(slots[node->key.index])
                        : node->access(node->parent < 0 ? NULL : values[node->parent], &node->key);
        if (values[i] == NULL)
            return i;
        Check *check = tree->checks + node->first_check, *end = check + node->check_count;
        for (; check < end; check++)
            if (!check->holds(values[i], check)) {
                Py_DECREF(values[i]);
                return i;
            }
    }
    return count;
}

static bool check_same_storage(const Relation *relation, PyObject **values) {
    uintptr_t storages[2];
    void *data[2];
    for (int i = 0; i < 2; i++) {
        PyObject *tensor = values[relation->nodes[i]];
        if (!ingot_is_plain_tensor(tensor) || ingot_tensor_storage(tensor, &storages[i]) < 0 ||
            ingot_tensor_data(tensor, &data[i]) < 0)
            return false;
    }
    return storages[0] == storages[1] && (char *)data[1] - (char *)data[0] == relation->distance;
}

static bool check_disjoint(const Relation *relation, PyObject **values) {
    uintptr_t (*extents)[2] = PyMem_Malloc((size_t)relation->count * sizeof *extents);
    bool disjoint = extents != NULL;
    for (int i = 0; disjoint && i < relation->count; i++) {
        PyObject *tensor = values[relation->nodes[i]];
        disjoint = ingot_is_plain_tensor(tensor) &&
                   ingot_tensor_extent(tensor, &extents[i][0], &extents[i][1]) == 0;
    }
    for (int i = 0; disjoint && i < relation->written; i++)
        for (int j = i + 1; disjoint && j < relation->count; j++)
            disjoint = extents[i][0] >= extents[j][1] || extents[j][0] >= extents[i][1];
    PyMem_Free(extents);
    return disjoint;
}

static bool check_relation(const Relation *relation, PyObject **values) {
    switch (relation->kind) {
    case SAME:
        return values[relation->nodes[0]] == values[relation->nodes[1]];
    case DISTINCT:
        return values[relation->nodes[0]] != values[relation->nodes[1]];
    case SAME_STORAGE:
        return check_same_storage(relation, values);
    case DISJOINT:
        return check_disjoint(relation, values);
    }
    return false;
}

static bool read_quantity(const Quantity *quantity, PyObject **values, int64_t *number) {
    PyObject *value = values[quantity->node];
    if (quantity->what == VALUE) {
        int overflow = 0;
        *number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow)
                                           : (overflow = 1);
        return overflow == 0;
    }
    IngotTensorFacts facts;
    if (!ingot_is_plain_tensor(value) || ingot_tensor_facts(value, &facts) < 0 ||
        quantity->dim >= facts.rank)
        return false;
    *number = (quantity->what == SIZE ? facts.sizes : facts.strides)[quantity->dim];
    return true;
}

static bool compare(int64_t left, Comparison comparison, int64_t right) {
    switch (comparison) {
    case EQUAL:
        return left == right;
    case NOT_EQUAL:
        return left != right;
    case LESS:
        return left < right;
    case LESS_EQUAL:
        return left <= right;
    case GREATER:
        return left > right;
    case GREATER_EQUAL:
        return left >= right;
    }
    return false;
}

static bool check_shapes(const GuardTree *tree, PyObject **values) {
    if (tree->shape_count == 0)
        return true;
    int64_t *numbers = PyMem_Malloc(((size_t)tree->quantity_count + 1) * sizeof *numbers);
    bool holds = numbers != NULL;
    for (int i = 0; holds && i < tree->quantity_count; i++)
        holds = read_quantity(&tree->quantities[i], values, &numbers[i]);
    for (int i = 0; holds && i < tree->shape_count; i++) {
        const Shape *shape = &tree->shapes[i];
        int64_t left, right;
        holds = ingot_expression_evaluate(shape->left, numbers, &left) == 0 &&
                ingot_expression_evaluate(shape->right, numbers, &right) == 0 &&
                compare(left, shape->comparison, right);
    }
    PyMem_Free(numbers);
    return holds;
}

bool ingot_check_relations(const GuardTree *tree, const int *which, int count, PyObject **values) {
    for (int i = 0; i < count; i++)
        if (!check_relation(&tree->relations[which == NULL ? i : which[i]], values))
            return false;
    return check_shapes(tree, values);
}

#define VALUES_ON_STACK 512

static bool walk(GuardTree *tree, PyObject *const *slots, PyObject **inputs) {
    PyObject *on_stack[VALUES_ON_STACK], **values = on_stack;
    if (tree->node_count > VALUES_ON_STACK &&
        (values = PyMem_Malloc((size_t)tree->node_count * sizeof *values)) == NULL)
        return false;
    int held = ingot_walk_nodes(tree, slots, values);
    bool holds =
        held == tree->node_count && ingot_check_relations(tree, NULL, tree->relation_count, values);
    for (int i = 0; holds && i < tree->input_count; i++)
        inputs[i] = Py_NewRef(values[tree->inputs[i]]);
    if (!holds && PyErr_Occurred())
        PyErr_Clear();
#if INGOT_HAS_WORDS
    if (holds && !ingot_tensor_facts_are_slow())
        ingot_learn_shortcut(tree, slots, values);
#endif
    while (held > 0)
        Py_DECREF(values[--held]);
    if (values != on_stack)
        PyMem_Free(values);
    tree->walks++;
    return holds;
}

#if INGOT_HAS_WORDS

static bool verify_shortcuts; /* for tests: takes the walk as well */

/* Whether a value is made anew at each access, or found below one that is. */
static bool is_made_anew(const GuardTree *tree, int node) {
    while (node >= 0 && tree->nodes[node].reach != ANEW)
        node = tree->nodes[node].parent;
    return node >= 0;
}

/* The walk must agree with a shortcut in the verdict and in the inputs. */
static void confirm(GuardTree *tree, PyObject *const *slots, Verdict verdict, PyObject **inputs) {
    PyObject **others = PyMem_Calloc((size_t)tree->input_count + 1, sizeof *others);
    bool same = others != NULL && walk(tree, slots, others) == (verdict == HOLDS);
    for (int i = 0; others != NULL && i < tree->input_count; i++) {
        same = same &&
               (verdict != HOLDS || inputs[i] == others[i] || is_made_anew(tree, tree->inputs[i]));
        Py_XDECREF(others[i]);
    }
    PyMem_Free(others);
    if (!same)
        Py_FatalError("a shortcut of a guard tree does not agree with the walk");
}

/* CHANGED where there is no shortcut to decide by. */
static Verdict try_shortcut(GuardTree *tree, PyObject *const *slots, PyObject **inputs) {
    if (tree->shortcut == NULL || ingot_tensor_facts_are_slow())
        return CHANGED;
    Verdict verdict = ingot_take_shortcut(tree, slots, inputs);
    if (verdict == CHANGED)
        return verdict;
    tree->shortcuts++;
    if (verify_shortcuts)
        confirm(tree, slots, verdict, inputs);
    return verdict;
}

#endif

bool ingot_guard_tree_check(PyObject *object, PyObject *const *slots, PyObject **inputs,
                            IngotSurroundings *around) {
    GuardTree *tree = (GuardTree *)object;
    if (!check_state(tree, around)) {
        PyErr_Clear();
        return false;
    }
#if INGOT_HAS_WORDS
    Verdict verdict = try_shortcut(tree, slots, inputs);
    if (verdict != CHANGED)
        return verdict == HOLDS;
#endif
    return walk(tree, slots, inputs);
}

Py_ssize_t ingot_guard_tree_slot_count(PyObject *tree) { return ((GuardTree *)tree)->slot_count; }

Py_ssize_t ingot_guard_tree_input_count(PyObject *tree) { return ((GuardTree *)tree)->input_count; }

/* -- the Python type --------------------------------------------------------------------------- */

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"spec", NULL};
    PyObject *spec;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyDict_Type, &spec))
        return NULL;
    GuardTree *tree = (GuardTree *)type->tp_alloc(type, 0);
    if (tree != NULL && ingot_fill_tree(tree, spec) < 0)
        Py_CLEAR(tree);
    return (PyObject *)tree;
}

static int tree_traverse(GuardTree *tree, visitproc visit, void *arg) {
    for (int i = 0; tree->nodes != NULL && i < tree->node_count; i++)
        Py_VISIT(tree->nodes[i].key.object);
    for (int i = 0; i < tree->check_count; i++)
        Py_VISIT(tree->checks[i].data);
    Py_VISIT(tree->expected_state);
    Py_VISIT(tree->state_reader);
    return 0;
}

static void free_arrays(GuardTree *tree) {
    for (int i = 0; tree->relations != NULL && i < tree->relation_count; i++)
        PyMem_Free(tree->relations[i].nodes);
    for (int i = 0; tree->shapes != NULL && i < tree->shape_count; i++) {
        ingot_expression_free(tree->shapes[i].left);
        ingot_expression_free(tree->shapes[i].right);
    }
    for (int i = 0; i < tree->check_count; i++)
        PyMem_Free(tree->checks[i].expected);
    PyMem_Free(tree->nodes);
    PyMem_Free(tree->checks);
    PyMem_Free(tree->relations);
    PyMem_Free(tree->quantities);
    PyMem_Free(tree->shapes);
    PyMem_Free(tree->inputs);
    PyMem_Free(tree->surprises);
#if INGOT_HAS_WORDS
    ingot_release_shortcut(tree->shortcut);
#endif
}

/* Only when nothing can reach the tree any more: a running call holds its entry, and so its tree.
 */
static void tree_dealloc(GuardTree *tree) {
    PyObject_GC_UnTrack(tree);
    for (int i = 0; tree->nodes != NULL && i < tree->node_count; i++)
        Py_XDECREF(tree->nodes[i].key.object);
    for (int i = 0; i < tree->check_count; i++)
        Py_XDECREF(tree->checks[i].data);
    Py_XDECREF(tree->expected_state);
    Py_XDECREF(tree->state_reader);
    free_arrays(tree);
    Py_TYPE(tree)->tp_free((PyObject *)tree);
}

static PyObject *tree_collect(PyObject *self, PyObject *slots) {
    GuardTree *tree = (GuardTree *)self;
    if (!PyTuple_Check(slots) || PyTuple_GET_SIZE(slots) < tree->slot_count) {
        PyErr_Format(PyExc_TypeError, "expected a tuple of at least %d slots", tree->slot_count);
        return NULL;
    }
    PyObject **inputs = PyMem_Calloc((size_t)tree->input_count + 1, sizeof *inputs);
    if (inputs == NULL)
        return PyErr_NoMemory();
    PyObject *collected = NULL;
    IngotSurroundings around = {0};
    if (!ingot_guard_tree_check(self, ((PyTupleObject *)slots)->ob_item, inputs, &around))
        collected = Py_NewRef(Py_None);
    else if ((collected = PyTuple_New(tree->input_count)) != NULL)
        for (int i = 0; i < tree->input_count; i++)
            PyTuple_SET_ITEM(collected, i, Py_NewRef(inputs[i]));
    for (int i = 0; i < tree->input_count; i++)
        Py_XDECREF(inputs[i]);
    PyMem_Free(inputs);
    return collected;
}

static PyMethodDef tree_methods[] = {
    {"collect", tree_collect, METH_O,
     "collect(slots) -> the inputs as a tuple if every fact holds for these slots, else None."},
    {0},
};

static PyMemberDef tree_members[] = {
    {"walks", T_ULONGLONG, offsetof(GuardTree, walks), READONLY,
     "how many checks took the whole walk"},
    {"shortcuts", T_ULONGLONG, offsetof(GuardTree, shortcuts), READONLY,
     "how many were decided without it"},
    {0},
};

PyTypeObject IngotGuardTree_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.GuardTree",
    .tp_doc = "GuardTree(spec): the facts of one entry; the spec is made by GuardSet.native_spec.",
    .tp_basicsize = sizeof(GuardTree),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = tree_new,
    .tp_dealloc = (destructor)tree_dealloc,
    .tp_traverse = (traverseproc)tree_traverse,
    .tp_methods = tree_methods,
    .tp_members = tree_members,
};

static PyObject *force_slow(PyObject *Py_UNUSED(module), PyObject *slow) {
    int truth = PyObject_IsTrue(slow);
    if (truth < 0)
        return NULL;
    ingot_force_slow_tensor_facts(truth != 0);
    Py_RETURN_NONE;
}

static PyObject *facts_are_slow(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(ingot_tensor_facts_are_slow());
}

static PyObject *state_is_readable(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(ingot_global_state_is_readable());
}

static PyObject *set_verify_shortcuts(PyObject *Py_UNUSED(module), PyObject *verify) {
    int truth = PyObject_IsTrue(verify);
    if (truth < 0)
        return NULL;
#if INGOT_HAS_WORDS
    PyObject *before = PyBool_FromLong(verify_shortcuts);
    verify_shortcuts = truth != 0;
    return before;
#else
    Py_RETURN_FALSE;
#endif
}

static PyObject *forbid_watching(PyObject *Py_UNUSED(module), PyObject *forbid) {
    int truth = PyObject_IsTrue(forbid);
    if (truth < 0)
        return NULL;
    ingot_forbid_watching(truth != 0);
    return PyBool_FromLong(ingot_can_watch());
}

static PyObject *missing_symbols(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return ingot_missing_symbols();
}

static PyMethodDef functions[] = {
    {"missing_symbols", missing_symbols, METH_NOARGS,
     "The C++ symbols of torch that were looked up and are not there. Each has a slower way "
     "without."},
    {"_forbid_watching", forbid_watching, METH_O,
     "Whether dicts may be watched from now on, where Python can; for tests. Returns whether they "
     "are."},
    {"_verify_shortcuts", set_verify_shortcuts, METH_O,
     "Whether the whole walk is taken after each shortcut, and must agree, else the process "
     "aborts; for tests. Returns "
     "whether it was."},
    {"_force_slow_tensor_facts", force_slow, METH_O,
     "Reads tensors through Python attributes from now on; for tests. Build trees after it."},
    {"tensor_facts_are_slow", facts_are_slow, METH_NOARGS,
     "Whether tensors are read through Python attributes."},
    {"global_state_is_readable", state_is_readable, METH_NOARGS,
     "Whether the state around a call is read natively."},
    {0},
};

int ingot_guards_register(PyObject *module) {
    if (ingot_constants_init() < 0 || PyType_Ready(&IngotGuardTree_Type) < 0 ||
        PyModule_AddFunctions(module, functions) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "GuardTree", (PyObject *)&IngotGuardTree_Type);
}
