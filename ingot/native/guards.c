#include "guards.h"

#include <string.h>

#include "constants.h"
#include "expression.h"
#include "state.h"
#include "tensor.h"

/* -- accesses: how a value is got from the one above it ------------------------------------------------------------------------ */

typedef struct {
    PyObject *object;  /* owned; what `access` looks for, NULL where it needs nothing */
    Py_ssize_t index;  /* the same as a position, where it is an int */
} Key;

/* A new reference, or NULL with or without an exception set. Never runs the user's code but the __eq__ of dictionary keys. */
typedef PyObject *(*Access)(PyObject *owner, const Key *key);

static PyObject *access_constant(PyObject *Py_UNUSED(owner), const Key *key) { return Py_NewRef(key->object); }

static PyObject *access_item(PyObject *owner, const Key *key) {
    if (PyDict_Check(owner))
        return Py_XNewRef(PyDict_GetItemWithError(owner, key->object));
    if (!PyList_Check(owner) && !PyTuple_Check(owner))
        return NULL;
    Py_ssize_t size = Py_SIZE(owner), index = key->index < 0 ? key->index + size : key->index;
    if (index < 0 || index >= size || !PyLong_CheckExact(key->object))
        return NULL;
    return Py_NewRef(PyList_Check(owner) ? PyList_GET_ITEM(owner, index) : PyTuple_GET_ITEM(owner, index));
}

static PyObject *access_instance_dict(PyObject *owner, const Key *Py_UNUSED(key)) {
    return PyType_Check(owner) ? NULL : PyObject_GenericGetDict(owner, NULL);
}

static PyObject *access_attribute(PyObject *owner, const Key *key) { return PyObject_GenericGetAttr(owner, key->object); }

static PyObject *access_cell(PyObject *owner, const Key *key) {
    PyObject *cells = PyFunction_Check(owner) ? PyFunction_GET_CLOSURE(owner) : NULL;
    if (cells == NULL || key->index < 0 || key->index >= PyTuple_GET_SIZE(cells))
        return NULL;
    return PyCell_Get(PyTuple_GET_ITEM(cells, key->index));
}

static PyObject *access_type(PyObject *owner, const Key *Py_UNUSED(key)) { return Py_NewRef((PyObject *)Py_TYPE(owner)); }

static PyObject *access_class_attribute(PyObject *owner, const Key *key) {
    return PyType_Check(owner) ? Py_XNewRef(_PyType_Lookup((PyTypeObject *)owner, key->object)) : NULL;
}

/* The keys in order; an OrderedDict keeps its own. */
static PyObject *access_dict_keys(PyObject *owner, const Key *Py_UNUSED(key)) {
    if (!PyDict_Check(owner))
        return NULL;
    PyTypeObject *type = PyODict_Check(owner) ? &PyODict_Type : &PyDict_Type;
    PyObject *iterator = type->tp_iter(owner);
    PyObject *keys = iterator == NULL ? NULL : PySequence_Tuple(iterator);
    Py_XDECREF(iterator);
    return keys;
}

static const struct {
    const char *name;
    Access access;
} accesses[] = {
    {"slot", NULL},
    {"constant", access_constant},
    {"item", access_item},
    {"instance_dict", access_instance_dict},
    {"attribute", access_attribute},
    {"cell", access_cell},
    {"type", access_type},
    {"class_attribute", access_class_attribute},
    {"dict_keys", access_dict_keys},
};

/* -- checks: facts about one value ---------------------------------------------------------------------------------------------- */

#define NOT_GUARDED INT64_MIN

typedef struct {
    PyTypeObject *type; /* borrowed from the check's data */
    IngotTensorFacts facts; /* sizes and strides in `room`, NOT_GUARDED where symbolic */
} TensorExpectation;

typedef struct Check {
    bool (*holds)(PyObject *value, struct Check *check);
    PyObject *data;                /* owned */
    int64_t number;                /* data as an integer, for the checks that compare one */
    TensorExpectation *expected;   /* owned, for check_tensor */
} Check;

static bool check_type(PyObject *value, Check *check) { return (PyObject *)Py_TYPE(value) == check->data; }

static bool check_identity(PyObject *value, Check *check) { return value == check->data; }

static bool check_equals(PyObject *value, Check *check) { return ingot_same_constant(value, check->data); }

/* The length of a built-in container by its own count; -1 for others. */
static Py_ssize_t builtin_length(PyObject *value) {
    if (PyTuple_Check(value) || PyList_Check(value) || PyBytes_Check(value))
        return Py_SIZE(value);
    if (PyDict_Check(value))
        return PyDict_GET_SIZE(value);
    if (PyAnySet_Check(value))
        return PySet_GET_SIZE(value);
    if (PyUnicode_Check(value))
        return PyUnicode_GET_LENGTH(value);
    return PyRange_Check(value) ? PyObject_Size(value) : -1;
}

static bool check_length(PyObject *value, Check *check) { return builtin_length(value) == check->number; }

static bool check_dict_empty(PyObject *value, Check *Py_UNUSED(check)) { return PyDict_Check(value) && PyDict_GET_SIZE(value) == 0; }

static bool check_dict_keys(PyObject *value, Check *check) {
    Py_ssize_t count = PyTuple_GET_SIZE(check->data), found = 0, at = 0;
    PyObject *key, *ignored;
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != count)
        return false;
    if (PyODict_Check(value)) {
        PyObject *keys = access_dict_keys(value, NULL);
        bool same = keys != NULL && PyTuple_GET_SIZE(keys) == count;
        for (; same && found < count; found++)
            same = ingot_same_constant(PyTuple_GET_ITEM(keys, found), PyTuple_GET_ITEM(check->data, found));
        Py_XDECREF(keys);
        return same;
    }
    while (PyDict_Next(value, &at, &key, &ignored))
        if (!ingot_same_constant(key, PyTuple_GET_ITEM(check->data, found++)))
            return false;
    return true;
}

static bool check_absent_key(PyObject *value, Check *check) {
    return PyDict_Check(value) && PyDict_Contains(value, check->data) == 0;
}

static bool check_is_none(PyObject *value, Check *check) { return (value == Py_None) == (check->number != 0); }

static bool check_truth(PyObject *value, Check *check) {
    static PyTypeObject *const types[] = {&PyBool_Type, &PyLong_Type, &PyFloat_Type,   &PyUnicode_Type,   &PyTuple_Type,
                                          &PyList_Type, &PyDict_Type, &PyComplex_Type, &PyBytes_Type,     &PySet_Type,
                                          NULL,         &PyRange_Type, &PyFrozenSet_Type};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++)
        if (Py_TYPE(value) == (types[i] == NULL ? Py_TYPE(Py_None) : types[i]))
            return PyObject_IsTrue(value) == (check->number != 0);
    return false;
}

/* All the facts about one class: data is a list of (name, expected), or (name,) for a name that no class has. While the version tag
   of the class is what it was when the facts were last seen to hold, no lookup can give another answer. */
static bool check_class_attribute(PyObject *value, Check *check) {
    if (!PyType_Check(value))
        return false;
    PyTypeObject *type = (PyTypeObject *)value;
    if (type->tp_version_tag != 0 && type->tp_version_tag == (unsigned int)check->number)
        return true;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(check->data); i++) {
        PyObject *fact = PyList_GET_ITEM(check->data, i);
        PyObject *expected = PyTuple_GET_SIZE(fact) == 2 ? PyTuple_GET_ITEM(fact, 1) : NULL;
        if (_PyType_Lookup(type, PyTuple_GET_ITEM(fact, 0)) != expected)
            return false;
    }
    check->number = type->tp_version_tag; /* the lookups have assigned one, unless none is left */
    return true;
}

static bool check_tensor(PyObject *value, Check *check) {
    const TensorExpectation *expected = check->expected;
    const IngotTensorFacts *wanted = &expected->facts;
    IngotTensorFacts facts;
    if (Py_TYPE(value) != expected->type || ingot_tensor_facts(value, &facts) < 0)
        return false;
    if (facts.dispatch_keys != wanted->dispatch_keys || facts.rank != wanted->rank || facts.dtype != wanted->dtype ||
        facts.device_type != wanted->device_type || facts.device_index != wanted->device_index ||
        facts.requires_grad != wanted->requires_grad || facts.is_leaf != wanted->is_leaf)
        return false;
    for (int64_t i = 0; i < facts.rank; i++) {
        if (wanted->sizes[i] != NOT_GUARDED && wanted->sizes[i] != facts.sizes[i])
            return false;
        if (wanted->strides[i] != NOT_GUARDED && wanted->strides[i] != facts.strides[i])
            return false;
    }
    return true;
}

static bool check_tensor_offset(PyObject *value, Check *check) {
    IngotTensorFacts facts;
    return ingot_is_plain_tensor(value) && ingot_tensor_facts(value, &facts) == 0 && facts.storage_offset == check->number;
}

static bool check_tensor_aligned(PyObject *value, Check *check) {
    void *data;
    return ingot_is_plain_tensor(value) && ingot_tensor_data(value, &data) == 0 && (uintptr_t)data % (uintptr_t)check->number == 0;
}

static const struct {
    const char *name;
    bool (*holds)(PyObject *value, Check *check);
    bool has_number;
} check_kinds[] = {
    {"type", check_type, false},
    {"identity", check_identity, false},
    {"equals", check_equals, false},
    {"length", check_length, true},
    {"dict_keys", check_dict_keys, false},
    {"absent_key", check_absent_key, false},
    {"dict_empty", check_dict_empty, false},
    {"is_none", check_is_none, true},
    {"truth", check_truth, true},
    {"class_attribute", check_class_attribute, false},
    {"tensor", check_tensor, false},
    {"tensor_offset", check_tensor_offset, true},
    {"tensor_aligned", check_tensor_aligned, true},
};

/* -- the tree --------------------------------------------------------------------------------------------------------------------- */

typedef struct {
    Access access; /* NULL: an argument slot, numbered by the key */
    Key key;
    int parent;
    int first_check, check_count; /* a range of the tree's checks */
} Node;

typedef enum { SAME, DISTINCT, SAME_STORAGE, DISJOINT } RelationKind;

typedef struct {
    RelationKind kind;
    int count, written; /* how many nodes; for DISJOINT, how many of them, at the front, are written */
    int *nodes;
    int64_t distance;
} Relation;

typedef struct {
    int node;
    enum { SIZE, STRIDE, VALUE } what; /* of a tensor, of a tensor, or of an int */
    int dim;
} Quantity;

typedef enum { EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL } Comparison;

typedef struct {
    IngotExpression *left, *right;
    Comparison comparison;
} Shape;

typedef struct {
    PyObject_HEAD
    int node_count, check_count, relation_count, quantity_count, shape_count, input_count, slot_count;
    Node *nodes;
    Check *checks;
    Relation *relations;
    Quantity *quantities;
    Shape *shapes;
    int *inputs;
    PyObject *expected_state, *state_reader; /* NULL if the state around the call does not matter */
    IngotGlobalState state;                  /* as it was when the reader last found what is expected */
    bool state_known;
} GuardTree;

/* -- the walk --------------------------------------------------------------------------------------------------------------------- */

static bool check_state_slowly(GuardTree *tree) {
    PyObject *now = PyObject_CallNoArgs(tree->state_reader);
    int same = now == NULL ? -1 : PyObject_RichCompareBool(now, tree->expected_state, Py_EQ);
    Py_XDECREF(now);
    return same == 1;
}

/* The Python reader decides once; then the state must stay what it was at that time. */
static bool check_state(GuardTree *tree) {
    if (tree->expected_state == NULL)
        return true;
    IngotGlobalState now;
    if (!ingot_global_state_is_readable() || !ingot_read_global_state(&now))
        return check_state_slowly(tree);
    if (tree->state_known)
        return memcmp(&now, &tree->state, sizeof now) == 0;
    if (!check_state_slowly(tree))
        return false;
    tree->state = now;
    return tree->state_known = true;
}

/* Loads every node's value, parents first, checking each; the number of values held at the end, all of them or one that failed. */
static int walk_nodes(GuardTree *tree, PyObject *const *slots, PyObject **values) {
    int count = tree->node_count;
    for (int i = 0; i < count; i++) {
        const Node *node = &tree->nodes[i];
        values[i] = node->access == NULL ? Py_XNewRef(slots[node->key.index])
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
        if (!ingot_is_plain_tensor(tensor) || ingot_tensor_storage(tensor, &storages[i]) < 0 || ingot_tensor_data(tensor, &data[i]) < 0)
            return false;
    }
    return storages[0] == storages[1] && (char *)data[1] - (char *)data[0] == relation->distance;
}

static bool check_disjoint(const Relation *relation, PyObject **values) {
    uintptr_t (*extents)[2] = PyMem_Malloc((size_t)relation->count * sizeof *extents);
    bool disjoint = extents != NULL;
    for (int i = 0; disjoint && i < relation->count; i++) {
        PyObject *tensor = values[relation->nodes[i]];
        disjoint = ingot_is_plain_tensor(tensor) && ingot_tensor_extent(tensor, &extents[i][0], &extents[i][1]) == 0;
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
        *number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : (overflow = 1);
        return overflow == 0;
    }
    IngotTensorFacts facts;
    if (!ingot_is_plain_tensor(value) || ingot_tensor_facts(value, &facts) < 0 || quantity->dim >= facts.rank)
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
                ingot_expression_evaluate(shape->right, numbers, &right) == 0 && compare(left, shape->comparison, right);
    }
    PyMem_Free(numbers);
    return holds;
}

#define VALUES_ON_STACK 512

bool ingot_guard_tree_check(PyObject *object, PyObject *const *slots, PyObject **inputs) {
    GuardTree *tree = (GuardTree *)object;
    PyObject *on_stack[VALUES_ON_STACK];
    PyObject **values = on_stack;
    int held = 0;
    bool holds = check_state(tree);
    if (holds && tree->node_count > VALUES_ON_STACK) {
        values = PyMem_Malloc((size_t)tree->node_count * sizeof *values);
        holds = values != NULL;
    }
    if (holds) {
        held = walk_nodes(tree, slots, values);
        holds = held == tree->node_count;
    }
    for (int i = 0; holds && i < tree->relation_count; i++)
        holds = check_relation(&tree->relations[i], values);
    holds = holds && check_shapes(tree, values);
    for (int i = 0; holds && i < tree->input_count; i++)
        inputs[i] = Py_NewRef(values[tree->inputs[i]]);
    if (!holds && PyErr_Occurred())
        PyErr_Clear();
    while (held > 0)
        Py_DECREF(values[--held]);
    if (values != on_stack)
        PyMem_Free(values);
    return holds;
}

Py_ssize_t ingot_guard_tree_slot_count(PyObject *tree) { return ((GuardTree *)tree)->slot_count; }

Py_ssize_t ingot_guard_tree_input_count(PyObject *tree) { return ((GuardTree *)tree)->input_count; }

/* -- building from the spec: see _Flattener in capture/guards.py ---------------------------------------------------------------- */

/* A list of the spec (borrowed) and room for as many records; NULL with an exception set. */
static void *make_room(PyObject *spec, const char *field, size_t record, PyObject **list, int *count) {
    *list = PyDict_GetItemString(spec, field);
    if (*list == NULL || !PyList_Check(*list)) {
        PyErr_Format(PyExc_TypeError, "the guard spec has no list '%s'", field);
        return NULL;
    }
    void *records = PyMem_Calloc((size_t)PyList_GET_SIZE(*list) + 1, record);
    if (records == NULL)
        PyErr_NoMemory();
    else
        *count = (int)PyList_GET_SIZE(*list);
    return records;
}

static int check_position(const GuardTree *tree, int node) {
    if (node >= 0 && node < tree->node_count)
        return 0;
    PyErr_SetString(PyExc_IndexError, "the guard spec names a node that it does not have");
    return -1;
}

static int fill_dims(PyObject *dims, int64_t *into, int64_t *rank) {
    if (!PyTuple_Check(dims) || PyTuple_GET_SIZE(dims) > INGOT_MAX_RANK) {
        PyErr_SetString(PyExc_TypeError, "the sizes and strides of a tensor guard are tuples");
        return -1;
    }
    *rank = PyTuple_GET_SIZE(dims);
    for (int64_t i = 0; i < *rank; i++) {
        PyObject *dim = PyTuple_GET_ITEM(dims, i);
        into[i] = dim == Py_None ? NOT_GUARDED : (int64_t)PyLong_AsLongLong(dim);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Fills an expectation from a TensorFacts of capture/facts.py. */
static int fill_expectation(TensorExpectation *into, PyObject *expected) {
    IngotTensorFacts *facts = &into->facts;
    PyObject *type, *dtype, *device, *sizes, *strides;
    int requires_grad, is_leaf;
    unsigned long long keys;
    if (!PyArg_ParseTuple(expected, "OOOOOppK", &type, &dtype, &device, &sizes, &strides, &requires_grad, &is_leaf, &keys))
        return -1;
    int number = ingot_dtype_number(dtype);
    if (number < 0 || ingot_device_numbers(device, &facts->device_type, &facts->device_index) < 0)
        return -1;
    into->type = (PyTypeObject *)type;
    facts->dtype = (int16_t)number;
    facts->dispatch_keys = keys;
    facts->requires_grad = requires_grad != 0;
    facts->is_leaf = is_leaf != 0;
    int64_t stride_count;
    if (fill_dims(sizes, facts->room, &facts->rank) < 0 || fill_dims(strides, facts->room + facts->rank, &stride_count) < 0)
        return -1;
    facts->sizes = facts->room;
    facts->strides = facts->room + facts->rank;
    if (stride_count != facts->rank) {
        PyErr_SetString(PyExc_TypeError, "only strided tensors can be guarded");
        return -1;
    }
    return 0;
}

static int fill_check(Check *check, PyObject *spec) {
    const char *name;
    PyObject *data;
    if (!PyArg_ParseTuple(spec, "sO", &name, &data))
        return -1;
    check->data = Py_NewRef(data);
    for (size_t i = 0; i < Py_ARRAY_LENGTH(check_kinds); i++)
        if (strcmp(check_kinds[i].name, name) == 0) {
            check->holds = check_kinds[i].holds;
            if (check_kinds[i].has_number)
                check->number = (int64_t)PyLong_AsLongLong(data);
        }
    if (check->holds == NULL)
        PyErr_Format(PyExc_ValueError, "no guard of kind '%s'", name);
    if (check->holds == check_tensor) {
        check->expected = PyMem_Calloc(1, sizeof *check->expected);
        return check->expected == NULL ? (PyErr_NoMemory(), -1) : fill_expectation(check->expected, data);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int fill_node(GuardTree *tree, int position, PyObject *spec, PyObject **checks) {
    Node *node = &tree->nodes[position];
    const char *name;
    PyObject *key;
    if (!PyArg_ParseTuple(spec, "siOO!", &name, &node->parent, &key, &PyList_Type, checks))
        return -1;
    size_t kind = 0;
    while (kind < Py_ARRAY_LENGTH(accesses) && strcmp(accesses[kind].name, name) != 0)
        kind++;
    if (kind == Py_ARRAY_LENGTH(accesses) || node->parent >= position) {
        PyErr_Format(PyExc_ValueError, "node %d of the guard spec has no access '%s' or no parent", position, name);
        return -1;
    }
    node->access = accesses[kind].access;
    node->key.object = Py_NewRef(key);
    if (PyLong_CheckExact(key)) {
        int overflow;
        node->key.index = (Py_ssize_t)PyLong_AsLongLongAndOverflow(key, &overflow);
    }
    bool rooted = node->access == NULL || node->access == access_constant;
    if (node->access == NULL && node->key.index >= tree->slot_count)
        tree->slot_count = (int)node->key.index + 1;
    return rooted || check_position(tree, node->parent) == 0 ? 0 : -1;
}

static int fill_nodes(GuardTree *tree, PyObject *spec) {
    PyObject *list, *checks;
    tree->nodes = make_room(spec, "nodes", sizeof(Node), &list, &tree->node_count);
    if (tree->nodes == NULL)
        return -1;
    Py_ssize_t total = 0;
    for (int i = 0; i < tree->node_count; i++) {
        if (fill_node(tree, i, PyList_GET_ITEM(list, i), &checks) < 0)
            return -1;
        tree->nodes[i].first_check = (int)total;
        tree->nodes[i].check_count = (int)PyList_GET_SIZE(checks);
        total += PyList_GET_SIZE(checks);
    }
    tree->checks = PyMem_Calloc((size_t)total + 1, sizeof(Check));
    if (tree->checks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < tree->node_count; i++) {
        checks = PyTuple_GET_ITEM(PyList_GET_ITEM(list, i), 3);
        for (Py_ssize_t k = 0; k < PyList_GET_SIZE(checks); k++)
            if (fill_check(&tree->checks[tree->check_count++], PyList_GET_ITEM(checks, k)) < 0)
                return -1;
    }
    return 0;
}

/* Appends a tuple of node numbers to a relation. */
static int add_nodes(const GuardTree *tree, Relation *relation, PyObject *numbers) {
    Py_ssize_t more = PyTuple_GET_SIZE(numbers);
    int *nodes = PyMem_Realloc(relation->nodes, ((size_t)(relation->count + more) + 1) * sizeof *nodes);
    if (nodes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    relation->nodes = nodes;
    for (Py_ssize_t i = 0; i < more; i++) {
        int node = (int)PyLong_AsLong(PyTuple_GET_ITEM(numbers, i));
        if (PyErr_Occurred() || check_position(tree, node) < 0)
            return -1;
        nodes[relation->count++] = node;
    }
    return 0;
}

static int fill_relation(GuardTree *tree, Relation *relation, PyObject *spec) {
    static const char *const names[] = {[SAME] = "same", [DISTINCT] = "distinct", [SAME_STORAGE] = "same_storage", [DISJOINT] = "tensor_disjoint"};
    const char *name;
    PyObject *data, *first, *second;
    if (!PyArg_ParseTuple(spec, "sO!", &name, &PyTuple_Type, &data))
        return -1;
    size_t kind = 0;
    while (kind < Py_ARRAY_LENGTH(names) && strcmp(names[kind], name) != 0)
        kind++;
    relation->kind = (RelationKind)kind;
    if (kind == DISJOINT) {
        if (!PyArg_ParseTuple(data, "O!O!", &PyTuple_Type, &first, &PyTuple_Type, &second) || add_nodes(tree, relation, first) < 0)
            return -1;
        relation->written = relation->count;
        return add_nodes(tree, relation, second);
    }
    if (kind == SAME_STORAGE) {
        if (PyTuple_GET_SIZE(data) != 3)
            kind = Py_ARRAY_LENGTH(names);
        else
            relation->distance = (int64_t)PyLong_AsLongLong(PyTuple_GET_ITEM(data, 2));
    }
    if (kind == Py_ARRAY_LENGTH(names) || PyTuple_GET_SIZE(data) < 2) {
        PyErr_Format(PyExc_ValueError, "no relation '%s' of this form", name);
        return -1;
    }
    PyObject *pair = PyTuple_GetSlice(data, 0, 2);
    int status = pair == NULL ? -1 : add_nodes(tree, relation, pair);
    Py_XDECREF(pair);
    return PyErr_Occurred() ? -1 : status;
}

static int fill_quantity(GuardTree *tree, Quantity *quantity, PyObject *spec) {
    const char *what;
    if (!PyArg_ParseTuple(spec, "isi", &quantity->node, &what, &quantity->dim))
        return -1;
    quantity->what = strcmp(what, "size") == 0 ? SIZE : strcmp(what, "stride") == 0 ? STRIDE : VALUE;
    return check_position(tree, quantity->node);
}

static int fill_shape(Shape *shape, PyObject *spec, int symbols) {
    static const char *const names[] = {[EQUAL] = "==",     [NOT_EQUAL] = "!=", [LESS] = "<",
                                        [LESS_EQUAL] = "<=", [GREATER] = ">",   [GREATER_EQUAL] = ">="};
    PyObject *left, *right;
    const char *name;
    if (!PyArg_ParseTuple(spec, "OsO", &left, &name, &right))
        return -1;
    size_t comparison = 0;
    while (comparison < Py_ARRAY_LENGTH(names) && strcmp(names[comparison], name) != 0)
        comparison++;
    if (comparison == Py_ARRAY_LENGTH(names)) {
        PyErr_Format(PyExc_ValueError, "no relation '%s' between sizes", name);
        return -1;
    }
    shape->comparison = (Comparison)comparison;
    shape->left = ingot_expression_compile(left, symbols);
    shape->right = shape->left == NULL ? NULL : ingot_expression_compile(right, symbols);
    return shape->right == NULL ? -1 : 0;
}

static int fill_rest(GuardTree *tree, PyObject *spec) {
    PyObject *list;
    if ((tree->relations = make_room(spec, "relations", sizeof(Relation), &list, &tree->relation_count)) == NULL)
        return -1;
    for (int i = 0; i < tree->relation_count; i++)
        if (fill_relation(tree, &tree->relations[i], PyList_GET_ITEM(list, i)) < 0)
            return -1;
    if ((tree->quantities = make_room(spec, "quantities", sizeof(Quantity), &list, &tree->quantity_count)) == NULL)
        return -1;
    for (int i = 0; i < tree->quantity_count; i++)
        if (fill_quantity(tree, &tree->quantities[i], PyList_GET_ITEM(list, i)) < 0)
            return -1;
    if ((tree->shapes = make_room(spec, "shapes", sizeof(Shape), &list, &tree->shape_count)) == NULL)
        return -1;
    for (int i = 0; i < tree->shape_count; i++)
        if (fill_shape(&tree->shapes[i], PyList_GET_ITEM(list, i), tree->quantity_count) < 0)
            return -1;
    if ((tree->inputs = make_room(spec, "inputs", sizeof(int), &list, &tree->input_count)) == NULL)
        return -1;
    for (int i = 0; i < tree->input_count; i++) {
        tree->inputs[i] = (int)PyLong_AsLong(PyList_GET_ITEM(list, i));
        if (PyErr_Occurred() || check_position(tree, tree->inputs[i]) < 0)
            return -1;
    }
    PyObject *state = PyDict_GetItemString(spec, "global_state");
    if (state != NULL && state != Py_None) {
        if (!PyArg_ParseTuple(state, "OO", &tree->expected_state, &tree->state_reader)) {
            tree->expected_state = tree->state_reader = NULL;
            return -1;
        }
        Py_INCREF(tree->expected_state);
        Py_INCREF(tree->state_reader);
    }
    return 0;
}

/* -- the Python type ------------------------------------------------------------------------------------------------------------- */

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"spec", NULL};
    PyObject *spec;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyDict_Type, &spec))
        return NULL;
    GuardTree *tree = (GuardTree *)type->tp_alloc(type, 0);
    if (tree != NULL && (fill_nodes(tree, spec) < 0 || fill_rest(tree, spec) < 0))
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
}

/* Only when nothing can reach the tree any more: a running call holds its entry, and so its tree. */
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
    if (!ingot_guard_tree_check(self, ((PyTupleObject *)slots)->ob_item, inputs))
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
    {"collect", tree_collect, METH_O, "collect(slots) -> the inputs as a tuple if every fact holds for these slots, else None."},
    {0},
};

PyTypeObject IngotGuardTree_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ingot.native._native.GuardTree",
    .tp_doc = "GuardTree(spec): the facts of one entry; the spec is made by GuardSet.native_spec.",
    .tp_basicsize = sizeof(GuardTree),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = tree_new,
    .tp_dealloc = (destructor)tree_dealloc,
    .tp_traverse = (traverseproc)tree_traverse,
    .tp_methods = tree_methods,
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

static PyMethodDef functions[] = {
    {"_force_slow_tensor_facts", force_slow, METH_O, "Reads tensors through Python attributes from now on; for tests. Build trees after it."},
    {"tensor_facts_are_slow", facts_are_slow, METH_NOARGS, "Whether tensors are read through Python attributes."},
    {"global_state_is_readable", state_is_readable, METH_NOARGS, "Whether the state around a call is read natively."},
    {0},
};

int ingot_guards_register(PyObject *module) {
    if (ingot_constants_init() < 0 || PyType_Ready(&IngotGuardTree_Type) < 0 || PyModule_AddFunctions(module, functions) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "GuardTree", (PyObject *)&IngotGuardTree_Type);
}
