/* What a recorder is made of; shared by the files that describe it, record a call, and go back. */
#ifndef INGOT_RECORDER_PARTS_H
#define INGOT_RECORDER_PARTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "tensor.h"

typedef struct {
    enum { SIZE, STRIDE, VALUE, PLACE_KINDS } kind;
    bool of_result;
    int position, dim;
} SizePlace;

/* The layout of a gradient that comes in, for the sizes that were seen last. */
typedef struct {
    uint64_t keys; /* of a plain tensor on its device */
    int rank;
    int64_t strides[INGOT_MAX_RANK];
} Tangent;

#define ALL_ASKED UINT64_MAX /* the gradients of all inputs that have one are asked for */

/* What computes the gradients where just the tangents `present` come in (bit k: tangent k), and the
   gradients `asked` are asked for (bit k: that of gradient_inputs[k] of the recorder). */
typedef struct Way {
    struct Way *next;
    uint64_t present, asked;
    PyObject *run; /* callable(list of what is saved, the tangents, the sizes), which empties the
                      list, or ... */
    PyObject *program;         /* ... the Program whose `consume` it is, or NULL */
    PyObject *used_tangents;   /* those that cannot come in after that; None: there is none */
    PyObject *remaining_saved; /* what remains of the saved tensors for others; None: no others */
    int count;
    int gradient_inputs[]; /* the inputs that the gradients are of */
} Way;

typedef struct {
    PyObject_HEAD PyObject *forward; /* a Program, or a callable(*inputs) -> tuple or list */
    PyObject *leaf;                  /* None, or what requires a gradient where no input does */
    PyObject *state_before; /* None, or callable(inputs) -> StateBefore: what the call changes */
    int inputs, outputs, tensors;
    int saved_count, untracked_count, unread_count, size_count, tangent_count, refused_count,
        gradient_count, way_count;
    int *saved;                                /* among the inputs and all results */
    int *untracked, *differentiable, *refused; /* outputs: without a history, with a tangent, with a
                                                   history that autograd refuses to go through */
    int *unread;                               /* inputs that no gradient depends on */
    int *gradient_inputs;                      /* inputs that have a gradient */
    SizePlace *places;
    Tangent *tangents;
    Way *ways;
    PyObject *known_sizes;  /* the tuple that `tangents` are right for, or NULL */
    bool usual;             /* the call needs nothing that C does not do, ... */
    bool usual_backward;    /* ... nor does the backward */
    bool looks_for_hooks;   /* hooks on outputs are refused in some cases */
    char linked;            /* gradients leave a backward early: both calls are left to Python */
    int64_t calls, look_at; /* at which call Python looks for those who want that, the next time */
} Recorder;

extern PyTypeObject IngotRecorder_Type;

/* What ingot.runtime.training_node hands over: the objects are NULL until it has. */
typedef struct {
    PyObject *apply;   /* of torch.autograd.Function: makes a node of the results of a forward */
    PyObject *forward; /* as those in C, for what is unusual */
    PyObject *backward;
    PyObject *call_type;   /* RecordedCall, a NamedTuple (inputs, versions, state) */
    PyObject *unchanged;   /* the state of a call that changes nothing */
    PyObject *find_places; /* where nodes keep their hooks, see ingot.runtime.node_hooks; NULL once
                              it is known */
} IngotTraining;

extern IngotTraining ingot_training;

#define ON_STACK 64

/* An array that is on the stack where that has room. */
typedef struct {
    PyObject *on_stack[ON_STACK], **items;
    Py_ssize_t count;
} Objects;

int ingot_objects_init(Objects *objects, Py_ssize_t count);
void ingot_objects_clear(Objects *objects);
/* Takes the items of a tuple or list, which is stolen. */
int ingot_objects_from(Objects *objects, PyObject *stolen);

/* Raises an error, and gives -1. */
int ingot_too_few(const char *what);

typedef struct {
    PyObject **name;
    const char *text;
} IngotName;

/* Makes the names of attributes. 0, or -1 with an exception set. */
int ingot_make_names(const IngotName *names, size_t count);

/* recorder_forward.c. */
int ingot_recorder_forward_init(void);
/* recorder(*inputs): the outputs, which carry their history. */
PyObject *ingot_recorder_call(PyObject *recorder, PyObject *inputs, PyObject *keywords);
/* forward(node, recorder, state, leaf, *inputs), which `apply` calls. */
PyObject *ingot_recorder_forward(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* recorder_backward.c. */
int ingot_recorder_backward_init(void);
/* backward(node, *tangents), which autograd's engine calls. */
PyObject *ingot_recorder_backward(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
