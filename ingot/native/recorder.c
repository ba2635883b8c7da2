/* The type `Recorder`: what is known of a program's calls, and of the ways back. */
#include "recorder.h"
#include "program.h"
#include "recorder_parts.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

IngotTraining ingot_training;

int ingot_make_names(const IngotName *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if ((*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
}

int ingot_objects_init(Objects *objects, Py_ssize_t count) {
    objects->count = count;
    objects->items =
        count <= ON_STACK ? objects->on_stack : PyMem_Malloc((size_t)count * sizeof(PyObject *));
    if (objects->items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(objects->items, 0, (size_t)count * sizeof(PyObject *));
    return 0;
}

void ingot_objects_clear(Objects *objects) {
    for (Py_ssize_t i = 0; i < objects->count; i++)
        Py_XDECREF(objects->items[i]);
    if (objects->items != objects->on_stack)
        PyMem_Free(objects->items);
}

int ingot_objects_from(Objects *objects, PyObject *stolen) {
    bool is_list = stolen && PyList_Check(stolen);
    if (stolen != NULL && !is_list && !PyTuple_Check(stolen)) {
        PyErr_Format(PyExc_TypeError,
                     "a compiled graph returns a tuple or list of its outputs, not %s",
                     Py_TYPE(stolen)->tp_name);
        Py_CLEAR(stolen);
    }
    if (stolen == NULL)
        return -1;
    PyObject **items =
        is_list ? ((PyListObject *)stolen)->ob_item : ((PyTupleObject *)stolen)->ob_item;
    int status = ingot_objects_init(objects, Py_SIZE(stolen));
    for (Py_ssize_t i = 0; status == 0 && i < objects->count; i++)
        objects->items[i] = Py_NewRef(items[i]);
    Py_DECREF(stolen);
    return status;
}

int ingot_too_few(const char *what) {
    PyErr_Format(PyExc_RuntimeError, "there are fewer %s than there should be", what);
    return -1;
}

/* -- the type ---------------------------------------------------------------------------------- */

static int recorder_traverse(PyObject *self, visitproc visit, void *arg) {
    Recorder *recorder = (Recorder *)self;
    Py_VISIT(recorder->forward);
    Py_VISIT(recorder->leaf);
    Py_VISIT(recorder->state_before);
    for (Way *way = recorder->ways; way; way = way->next) {
        Py_VISIT(way->run);
        Py_VISIT(way->program);
    }
    return 0;
}

static int recorder_clear(PyObject *self) {
    Recorder *recorder = (Recorder *)self;
    recorder->usual = recorder->usual_backward = false;
    Py_CLEAR(recorder->forward);
    Py_CLEAR(recorder->leaf);
    Py_CLEAR(recorder->state_before);
    Py_CLEAR(recorder->known_sizes);
    while (recorder->ways) {
        Way *way = recorder->ways;
        recorder->ways = way->next;
        Py_XDECREF(way->run);
        Py_XDECREF(way->program);
        Py_XDECREF(way->used_tangents);
        Py_XDECREF(way->remaining_saved);
        PyMem_Free(way);
    }
    return 0;
}

static void recorder_dealloc(PyObject *self) {
    Recorder *recorder = (Recorder *)self;
    PyObject_GC_UnTrack(self);
    recorder_clear(self);
    PyMem_Free(recorder->saved);
    PyMem_Free(recorder->untracked);
    PyMem_Free(recorder->differentiable);
    PyMem_Free(recorder->refused);
    PyMem_Free(recorder->gradient_inputs);
    PyMem_Free(recorder->unread);
    PyMem_Free(recorder->places);
    PyMem_Free(recorder->tangents);
    Py_TYPE(self)->tp_free(self);
}

/* Reads a tuple of ints in 0 .. limit - 1 into new memory. */
static int read_positions(PyObject *tuple, long limit, int *count, int **positions) {
    Py_ssize_t length = PyTuple_GET_SIZE(tuple);
    int *read = PyMem_Calloc((size_t)length + 1, sizeof *read);
    if (read == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PyMem_Free(*positions);
    *positions = read;
    for (*count = 0; *count < length; ++*count) {
        long value = PyLong_AsLong(PyTuple_GET_ITEM(tuple, *count));
        if (value < 0 || value >= limit) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "no such input or result");
            return -1;
        }
        read[*count] = (int)value;
    }
    return 0;
}

static int read_places(Recorder *recorder, PyObject *tuple) {
    static const char *const kinds[PLACE_KINDS] = {"size", "stride", "value"};
    static const char results[] = "result ";
    Py_ssize_t length = PyTuple_GET_SIZE(tuple);
    PyMem_Free(recorder->places);
    if ((recorder->places = PyMem_Calloc((size_t)length + 1, sizeof(SizePlace))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        SizePlace *place = &recorder->places[i];
        const char *kind;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "isi", &place->position, &kind,
                              &place->dim))
            return -1;
        place->of_result = strncmp(kind, results, strlen(results)) == 0;
        kind += place->of_result ? strlen(results) : 0;
        place->kind = SIZE;
        while (place->kind < PLACE_KINDS && strcmp(kind, kinds[place->kind]) != 0)
            place->kind++;
        if (place->kind == PLACE_KINDS || place->position < 0 || place->dim < 0 ||
            (!place->of_result && place->position >= recorder->inputs)) {
            PyErr_Format(PyExc_ValueError, "a size is read nowhere: %R",
                         PyTuple_GET_ITEM(tuple, i));
            return -1;
        }
    }
    recorder->size_count = (int)length;
    return 0;
}

/* Reads a NativeSlots of ingot.loops.training_contract, a tuple. */
static int read_slots(Recorder *recorder, PyObject *slots) {
    PyObject *saved, *untracked, *unread, *places, *differentiable, *refused, *gradient_inputs;
    if (!PyArg_ParseTuple(slots, "iiiO!O!O!O!O!O!O!", &recorder->inputs, &recorder->tensors,
                          &recorder->outputs, &PyTuple_Type, &saved, &PyTuple_Type, &untracked,
                          &PyTuple_Type, &unread, &PyTuple_Type, &places, &PyTuple_Type,
                          &differentiable, &PyTuple_Type, &refused, &PyTuple_Type,
                          &gradient_inputs))
        return -1;
    if (recorder->tensors > recorder->inputs) {
        PyErr_SetString(PyExc_ValueError, "more tensors than inputs");
        return -1;
    }
    int outputs = recorder->outputs, tensors = recorder->tensors;
    if (read_positions(saved, INT_MAX, &recorder->saved_count, &recorder->saved) < 0 ||
        read_positions(untracked, outputs, &recorder->untracked_count, &recorder->untracked) < 0 ||
        read_positions(unread, tensors, &recorder->unread_count, &recorder->unread) < 0 ||
        read_positions(gradient_inputs, tensors, &recorder->gradient_count,
                       &recorder->gradient_inputs) < 0 ||
        read_positions(refused, outputs, &recorder->refused_count, &recorder->refused) < 0 ||
        read_positions(differentiable, outputs, &recorder->tangent_count,
                       &recorder->differentiable) < 0)
        return -1;
    return read_places(recorder, places);
}

static PyObject *describe(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"forward", "leaf",           "state_before",    "slots",
                            "usual",   "usual_backward", "looks_for_hooks", NULL};
    Recorder *recorder = (Recorder *)self;
    PyObject *forward, *leaf, *state_before, *slots;
    int usual, usual_backward, looks_for_hooks;
    if (recorder->forward != NULL)
        return PyErr_Format(PyExc_ValueError, "a recorder is described once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOO!ppp:describe", names, &forward, &leaf,
                                     &state_before, &PyTuple_Type, &slots, &usual, &usual_backward,
                                     &looks_for_hooks) ||
        read_slots(recorder, slots) < 0)
        return NULL;
    PyMem_Free(recorder->tangents);
    if ((recorder->tangents = PyMem_Calloc((size_t)recorder->tangent_count + 1, sizeof(Tangent))) ==
        NULL)
        return PyErr_NoMemory();
    recorder->usual_backward = usual_backward && recorder->tangent_count <= 64;
    recorder->looks_for_hooks = looks_for_hooks;
    recorder->forward = Py_NewRef(forward);
    recorder->leaf = Py_NewRef(leaf);
    recorder->state_before = Py_NewRef(state_before);
    recorder->usual = usual && ingot_training.apply != NULL;
    recorder->look_at = 1;
    Py_RETURN_NONE;
}

enum { MOST_WAYS = 32 };

/* add_way(present, asked, run, used_tangents, gradient_inputs, remaining_saved) */
static PyObject *add_way(PyObject *self, PyObject *args) {
    Recorder *recorder = (Recorder *)self;
    unsigned long long present, asked;
    PyObject *run, *used_tangents, *gradient_inputs, *remaining_saved;
    if (!PyArg_ParseTuple(args, "KKOOO!O:add_way", &present, &asked, &run, &used_tangents,
                          &PyTuple_Type, &gradient_inputs, &remaining_saved))
        return NULL;
    for (Way *way = recorder->ways; way; way = way->next)
        if (way->present == present && way->asked == asked)
            Py_RETURN_NONE;
    if (recorder->way_count == MOST_WAYS || !recorder->usual_backward)
        Py_RETURN_NONE;
    int count = 0, *positions = NULL;
    Way *way = NULL;
    if (read_positions(gradient_inputs, recorder->inputs, &count, &positions) == 0) {
        way = PyMem_Calloc(1, sizeof *way + (size_t)count * sizeof(int));
        if (way == NULL)
            PyErr_NoMemory();
    }
    if (way != NULL) {
        memcpy(way->gradient_inputs, positions, (size_t)count * sizeof(int));
        way->count = count;
        way->present = present;
        way->asked = asked;
        way->run = Py_NewRef(run);
        way->program = Py_XNewRef(ingot_program_of_consume(run));
        way->used_tangents = Py_NewRef(used_tangents);
        way->remaining_saved = Py_NewRef(remaining_saved);
        Way **place = &recorder->ways; /* those for fewer inputs come first */
        while (*place && __builtin_popcountll((*place)->asked) < __builtin_popcountll(asked))
            place = &(*place)->next;
        way->next = *place;
        *place = way;
        recorder->way_count++;
    }
    PyMem_Free(positions);
    return way ? Py_NewRef(Py_None) : NULL;
}

/* -- the Python side --------------------------------------------------------------------------- */

static PyMethodDef recorder_methods[] = {
    {"describe", (PyCFunction)(void (*)(void))describe, METH_VARARGS | METH_KEYWORDS,
     "describe(*, forward, leaf, state_before, slots, usual, usual_backward, looks_for_hooks): "
     "says once what the\n"
     "calls are; see TrainingProgram. `slots` is a NativeSlots."},
    {"add_way", add_way, METH_VARARGS,
     "add_way(present, asked, run, used_tangents, gradient_inputs, remaining_saved): from now on, "
     "where just these\n"
     "tangents come in (bits), and gradients are asked for of these inputs that have one (bits, "
     "all ones: of all),\n"
     "`run` is what computes those of `gradient_inputs`, the tangents `used_tangents` (None: none) "
     "cannot come in\n"
     "again, and `remaining_saved` is what remains of what is saved."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef recorder_members[] = {
    {"linked", T_BOOL, offsetof(Recorder, linked), 0,
     "Whether gradients leave a backward early, for which calls and backwards are left to Python."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject IngotRecorder_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Recorder",
    .tp_doc = "Recorder(): recorder(*inputs) runs a forward's program, and gives its outputs their "
              "history. A call\n"
              "that is not as usual is left to the `record` of a subclass.",
    .tp_basicsize = sizeof(Recorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = recorder_dealloc,
    .tp_traverse = recorder_traverse,
    .tp_clear = recorder_clear,
    .tp_call = ingot_recorder_call,
    .tp_methods = recorder_methods,
    .tp_members = recorder_members,
};

static PyObject *join_autograd(PyObject *Py_UNUSED(module), PyObject *args) {
    IngotTraining given;
    if (!PyArg_ParseTuple(args, "OOOO!OO:join_autograd", &given.apply, &given.forward,
                          &given.backward, &PyType_Type, &given.call_type, &given.unchanged,
                          &given.find_places))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)given.call_type, &PyTuple_Type))
        return PyErr_Format(PyExc_TypeError, "%R is no tuple", given.call_type);
    Py_INCREF(given.apply);
    Py_INCREF(given.forward);
    Py_INCREF(given.backward);
    Py_INCREF(given.call_type);
    Py_INCREF(given.unchanged);
    Py_INCREF(given.find_places);
    ingot_training = given; /* those of before, if any, are left to live: calls may be in them */
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"join_autograd", join_autograd, METH_VARARGS,
     "join_autograd(apply, forward, backward, RecordedCall, unchanged, find_places): what "
     "ingot.runtime.training_node does itself."},
    {"node_forward", (PyCFunction)(void (*)(void))ingot_recorder_forward, METH_FASTCALL,
     "node_forward(node, recorder, state, leaf, *inputs): the `forward` of the Function that makes "
     "the nodes."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef backward_function = {
    "node_backward", (PyCFunction)(void (*)(void))ingot_recorder_backward, METH_FASTCALL,
    "node_backward(node, *tangents): the `apply` of the nodes."};

int ingot_recorder_register(PyObject *module) {
    if (ingot_recorder_forward_init() < 0 || ingot_recorder_backward_init() < 0)
        return -1;
    PyObject *function = PyCFunction_New(&backward_function, NULL);
    PyObject *method = function ? PyInstanceMethod_New(function)
                                : NULL; /* binds to the node, unlike a function of C */
    Py_XDECREF(function);
    int status = method ? PyModule_AddObjectRef(module, "node_backward", method) : -1;
    Py_XDECREF(method);
    if (status < 0 || PyModule_AddFunctions(module, functions) < 0)
        return -1;
    return PyModule_AddType(module, &IngotRecorder_Type);
}
