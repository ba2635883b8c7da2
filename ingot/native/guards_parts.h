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

/* A new reference, or NULL with or without an exception set. Never runs the user's code but the
 * __eq__ of dictionary keys. */
typedef PyObject *(*Access)(PyObject *owner, const Key *key);

/* How a shortcut may get at a value (see guards_learn.c). ANEW, which is 0, is right for every
   access: it is then made anew at each call. */
typedef enum {
    ANEW,
    SLOT,
    CONSTANT,
    ITEM,
    INSTANCE_DICT,
    ATTRIBUTE,
    CELL,
    TYPE,
    CLASS_ATTRIBUTE
} Reach;

typedef struct {
    const char *name;
    Access access;
    Reach reach;
} AccessKind;

/* What proves that a fact still holds of an object at the same address, without looking (see
 * guards_learn.c). */
typedef enum {
    NO_PROOF,   /* nothing, and the check may run code of the user's, or allocate: right for every
                   check */
    BY_LOOKING, /* nothing, but the check only reads: it is made at each call */
    BY_ADDRESS, /* the address */
    BY_VALUE,   /* that the object is the same one, if it is immutable */
    BY_TYPE,    /* its type pointer */
    BY_LENGTH,  /* the length of a dict */
    BY_KEYS, /* the version tag of a dict; not of an OrderedDict, which has an order of its own */
    BY_VERSION, /* the version tag of a dict */
    BY_CLASS    /* the version tag of a class */
} Proof;

typedef struct {
    PyTypeObject *type;     /* borrowed from the check's data */
    IngotTensorFacts facts; /* sizes and strides in `room`, INGOT_NOT_GUARDED where symbolic */
} TensorExpectation;

typedef struct Check {
    bool (*holds)(PyObject *value, struct Check *check);
    PyObject *data;              /* owned */
    int64_t number;              /* data as an integer, for the checks that compare one */
    TensorExpectation *expected; /* owned, for check_tensor */
    Proof proof;
} Check;

typedef struct {
    Access access; /* NULL: an argument slot, numbered by the key */
    Key key;
    Reach reach;
    int parent, first_child, next_sibling; /* nodes, or -1 */
    int first_check, check_count;          /* a range of the tree's checks */
} Node;

typedef enum { SAME, DISTINCT, SAME_STORAGE, DISJOINT } RelationKind;

typedef struct {
    RelationKind kind;
    int count,
        written; /* how many nodes; for DISJOINT, how many of them, at the front, are written */
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
    PyObject_HEAD int node_count, check_count, relation_count, quantity_count, shape_count,
        input_count, slot_count;
    Node *nodes;
    Check *checks;
    Relation *relations;
    Quantity *quantities;
    Shape *shapes;
    int *inputs;
    PyObject *expected_state, *state_reader; /* NULL if the state around the call does not matter */
    IngotGlobalState state; /* as it was when the reader last found what is expected */
    bool state_known;
    struct Shortcut *shortcut; /* owned; NULL as long as nothing is learnt */
    unsigned char *surprises;  /* per node: how often its path changed soon after it was learnt */
    unsigned long long walks, shortcuts; /* calls that were decided by each */
} GuardTree;

/* The access of a name; NULL if there is none. */
const AccessKind *ingot_find_access(const char *name);

/* Fills a zeroed check from its (kind, data). 0, or -1 with an exception set; in both cases the
 * tree frees what it holds. */
int ingot_fill_check(Check *check, PyObject *spec);

/* Fills a zeroed tree from the spec that GuardSet.native_spec makes. 0, or -1 with an exception
 * set. */
int ingot_fill_tree(GuardTree *tree, PyObject *spec);

/* guards.c: the walk. Loads every node's value, parents first, checking each; the number of values
   held at the end, all of them or those before one that failed. An exception may be set if it is
   not all of them. */
int ingot_walk_nodes(GuardTree *tree, PyObject *const *slots, PyObject **values);

/* These relations among the values (`which` of the tree's; NULL: the first `count`), and all those
   among sizes; true if they hold. An exception may be set if not. */
bool ingot_check_relations(const GuardTree *tree, const int *which, int count, PyObject **values);

#endif
