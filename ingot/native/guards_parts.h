/* What the files of the guard tree share. */
#ifndef INGOT_GUARDS_PARTS_H
#define INGOT_GUARDS_PARTS_H

#include "expression.h"
#include "guards.h"
#include "state.h"
#include "tensor.h"

typedef struct {
    PyObject *object; /* owned; what `access` looks for, NULL where it needs nothing */
    Py_ssize_t index; /* the same as a position, where it is an int */
} Key;

/* A new reference, or NULL with or without an exception set. Never runs the user's code but the __eq__ of dictionary
 * keys. */
typedef PyObject *(*Access)(PyObject *owner, const Key *key);

typedef struct {
    PyTypeObject *type;     /* borrowed from the check's data */
    IngotTensorFacts facts; /* sizes and strides in `room`, NOT_GUARDED where symbolic */
} TensorExpectation;

typedef struct Check {
    bool (*holds)(PyObject *value, struct Check *check);
    PyObject *data;              /* owned */
    int64_t number;              /* data as an integer, for the checks that compare one */
    TensorExpectation *expected; /* owned, for check_tensor */
} Check;

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
    PyObject_HEAD int node_count, check_count, relation_count, quantity_count, shape_count, input_count, slot_count;
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

/* The access of a name; false if there is none. A NULL access is an argument slot. */
bool ingot_find_access(const char *name, Access *access);

/* Fills a zeroed check from its (kind, data). 0, or -1 with an exception set; in both cases the tree frees what it
 * holds. */
int ingot_fill_check(Check *check, PyObject *spec);

/* Fills a zeroed tree from the spec that GuardSet.native_spec makes. 0, or -1 with an exception set. */
int ingot_fill_tree(GuardTree *tree, PyObject *spec);

#endif
