/* Building a guard tree from its description; its form is stated at _Flattener in
 * capture/guards.py. */
#include <string.h>

#include "guards_parts.h"

/* A list of the spec (borrowed) and room for as many records; NULL with an exception set. */
static void *make_room(PyObject *spec, const char *field, size_t record, PyObject **list,
                       int *count) {
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

static int fill_node(GuardTree *tree, int position, PyObject *spec, PyObject **checks) {
    Node *node = &tree->nodes[position];
    const char *name;
    PyObject *key;
    if (!PyArg_ParseTuple(spec, "siOO!", &name, &node->parent, &key, &PyList_Type, checks))
        return -1;
    const AccessKind *kind = ingot_find_access(name);
    if (kind == NULL || node->parent >= position) {
        PyErr_Format(PyExc_ValueError, "node %d of the guard spec has no access '%s' or no parent",
                     position, name);
        return -1;
    }
    node->access = kind->access;
    node->reach = kind->reach;
    node->first_child = node->next_sibling = -1;
    node->key.object = Py_NewRef(key);
    if (PyLong_CheckExact(key)) {
        int overflow;
        node->key.index = (Py_ssize_t)PyLong_AsLongLongAndOverflow(key, &overflow);
    }
    if (node->access == NULL && node->key.index >= tree->slot_count)
        tree->slot_count = (int)node->key.index + 1;
    if (node->parent < 0 && (node->reach == SLOT || node->reach == CONSTANT))
        return 0;
    if (check_position(tree, node->parent) < 0)
        return -1;
    node->next_sibling = tree->nodes[node->parent].first_child;
    tree->nodes[node->parent].first_child = position;
    return 0;
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
            if (ingot_fill_check(&tree->checks[tree->check_count++], PyList_GET_ITEM(checks, k)) <
                0)
                return -1;
    }
    return 0;
}

/* Appends a tuple of node numbers to a relation. */
static int add_nodes(const GuardTree *tree, Relation *relation, PyObject *numbers) {
    Py_ssize_t more = PyTuple_GET_SIZE(numbers);
    int *nodes =
        PyMem_Realloc(relation->nodes, ((size_t)(relation->count + more) + 1) * sizeof *nodes);
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
    static const char *const names[] = {[SAME] = "same",
                                        [DISTINCT] = "distinct",
                                        [SAME_STORAGE] = "same_storage",
                                        [DISJOINT] = "tensor_disjoint"};
    const char *name;
    PyObject *data, *first, *second;
    if (!PyArg_ParseTuple(spec, "sO!", &name, &PyTuple_Type, &data))
        return -1;
    size_t kind = 0;
    while (kind < Py_ARRAY_LENGTH(names) && strcmp(names[kind], name) != 0)
        kind++;
    relation->kind = (RelationKind)kind;
    if (kind == DISJOINT) {
        if (!PyArg_ParseTuple(data, "O!O!", &PyTuple_Type, &first, &PyTuple_Type, &second) ||
            add_nodes(tree, relation, first) < 0)
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
    quantity->what = strcmp(what, "size") == 0     ? SIZE
                     : strcmp(what, "stride") == 0 ? STRIDE
                                                   : VALUE;
    return check_position(tree, quantity->node);
}

static int fill_shape(Shape *shape, PyObject *spec, int symbols) {
    static const char *const names[] = {
        [EQUAL] = "==",      [NOT_EQUAL] = "!=", [LESS] = "<",
        [LESS_EQUAL] = "<=", [GREATER] = ">",    [GREATER_EQUAL] = ">="};
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
    if ((tree->relations =
             make_room(spec, "relations", sizeof(Relation), &list, &tree->relation_count)) == NULL)
        return -1;
    for (int i = 0; i < tree->relation_count; i++)
        if (fill_relation(tree, &tree->relations[i], PyList_GET_ITEM(list, i)) < 0)
            return -1;
    if ((tree->quantities =
             make_room(spec, "quantities", sizeof(Quantity), &list, &tree->quantity_count)) == NULL)
        return -1;
    for (int i = 0; i < tree->quantity_count; i++)
        if (fill_quantity(tree, &tree->quantities[i], PyList_GET_ITEM(list, i)) < 0)
            return -1;
    if ((tree->shapes = make_room(spec, "shapes", sizeof(Shape), &list, &tree->shape_count)) ==
        NULL)
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

int ingot_fill_tree(GuardTree *tree, PyObject *spec) {
    return fill_nodes(tree, spec) < 0 ? -1 : fill_rest(tree, spec);
}
