#include "recorder.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <structmember.h>

#include "grad_mode.h"
#include "program.h"
#include "tensor.h"

/* -- names, and objects of torch and of ingot.runtime.training ----------------------------------------------------- */

static PyObject *name_program, *name_call, *name_sizes, *name_left, *name_done, *name_passed, *name_saved_tensors,
    *name_to_save, *name_non_differentiable, *name_materialize_grads, *name_maybe_clear_saved_tensors, *name__version,
    *name__is_view, *name_detach, *name_record, *name_expected, *name___of_ingots_hooks__, *name__sequence_nr,
    *name_is_inference;

static PyObject *apply;        /* of torch.autograd.Function: makes a node of the results of a forward */
static PyObject *slow_forward; /* as `forward` and `backward` below, for what is unusual */
static PyObject *slow_backward;
static PyObject *call_type;    /* Call, a NamedTuple (inputs, versions, state) */
static PyObject *unchanged;    /* the state of a call that changes nothing */
static PyObject *keeps_graph;  /* whether the backward that runs keeps what is saved */
static PyObject *find_places;  /* where nodes keep their hooks, see ingot.runtime.node_hooks; NULL once it is known */
static PyObject *tensor_class; /* torch.Tensor */
static bool joined;

/* -- the type ------------------------------------------------------------------------------------------------------ */

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

/* What computes the gradients where just the tangents `present` (bits) come in. */
typedef struct Way {
    struct Way *next;
    uint64_t present;
    PyObject *run;     /* callable(list of what is saved, the tangents, the sizes), which empties the list, or ... */
    PyObject *program; /* ... the Program whose `consume` it is, or NULL */
    PyObject *passed;  /* through which outputs nobody may go back then */
    int count;
    int wanted[]; /* the inputs that the gradients are of */
} Way;

typedef struct {
    PyObject_HEAD PyObject *forward; /* a Program, or a callable(*inputs) -> tuple or list */
    PyObject *leaf;                  /* None, or what requires a gradient where no input does */
    PyObject *before;                /* None, or callable(inputs) -> State: what the call will change */
    int inputs, outputs, tensors;
    int saved_count, untracked_count, unread_count, size_count, tangent_count, spent_count, way_count;
    int *saved, *untracked, *differentiable, *spent; /* among the inputs and all results; among the outputs */
    int *unread;                                     /* inputs that no gradient depends on */
    SizePlace *places;
    Tangent *tangents;
    Way *ways;
    PyObject *known_sizes; /* the tuple that `tangents` are right for, or NULL */
    bool usual;            /* the call needs nothing that C does not do, ... */
    bool usual_backward;   /* ... nor does the backward */
    bool looks_for_hooks;  /* hooks on outputs are refused in some cases */
} Recorder;

static PyTypeObject Recorder_Type;

static int recorder_traverse(PyObject *self, visitproc visit, void *arg) {
    Recorder *recorder = (Recorder *)self;
    Py_VISIT(recorder->forward);
    Py_VISIT(recorder->leaf);
    Py_VISIT(recorder->before);
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
    Py_CLEAR(recorder->before);
    Py_CLEAR(recorder->known_sizes);
    while (recorder->ways) {
        Way *way = recorder->ways;
        recorder->ways = way->next;
        Py_XDECREF(way->run);
        Py_XDECREF(way->program);
        Py_XDECREF(way->passed);
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
    PyMem_Free(recorder->spent);
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
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "isi", &place->position, &kind, &place->dim))
            return -1;
        place->of_result = strncmp(kind, results, strlen(results)) == 0;
        kind += place->of_result ? strlen(results) : 0;
        place->kind = SIZE;
        while (place->kind < PLACE_KINDS && strcmp(kind, kinds[place->kind]) != 0)
            place->kind++;
        if (place->kind == PLACE_KINDS || place->position < 0 || place->dim < 0 ||
            (!place->of_result && place->position >= recorder->inputs)) {
            PyErr_Format(PyExc_ValueError, "a size is read nowhere: %R", PyTuple_GET_ITEM(tuple, i));
            return -1;
        }
    }
    recorder->size_count = (int)length;
    return 0;
}

static PyObject *describe(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"forward", "leaf",           "before",          "inputs", "tensors",        "outputs",
                            "saved",   "untracked",      "unread",          "places", "differentiable", "spent",
                            "usual",   "usual_backward", "looks_for_hooks", NULL};
    Recorder *recorder = (Recorder *)self;
    PyObject *forward, *leaf, *before, *saved, *untracked, *unread, *places, *differentiable, *spent;
    int usual, usual_backward, looks_for_hooks;
    if (recorder->forward != NULL)
        return PyErr_Format(PyExc_ValueError, "a recorder is described once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOiiiO!O!O!O!O!O!ppp:describe", names, &forward, &leaf, &before,
                                     &recorder->inputs, &recorder->tensors, &recorder->outputs, &PyTuple_Type, &saved,
                                     &PyTuple_Type, &untracked, &PyTuple_Type, &unread, &PyTuple_Type, &places,
                                     &PyTuple_Type, &differentiable, &PyTuple_Type, &spent, &usual, &usual_backward,
                                     &looks_for_hooks))
        return NULL;
    recorder->usual_backward = usual_backward;
    recorder->looks_for_hooks = looks_for_hooks;
    if (recorder->tensors > recorder->inputs ||
        read_positions(saved, INT_MAX, &recorder->saved_count, &recorder->saved) < 0 ||
        read_positions(untracked, recorder->outputs, &recorder->untracked_count, &recorder->untracked) < 0 ||
        read_positions(unread, recorder->tensors, &recorder->unread_count, &recorder->unread) < 0 ||
        read_positions(spent, recorder->outputs, &recorder->spent_count, &recorder->spent) < 0 ||
        read_positions(differentiable, recorder->outputs, &recorder->tangent_count, &recorder->differentiable) < 0 ||
        read_places(recorder, places) < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "more tensors than inputs");
    PyMem_Free(recorder->tangents);
    if ((recorder->tangents = PyMem_Calloc((size_t)recorder->tangent_count + 1, sizeof(Tangent))) == NULL)
        return PyErr_NoMemory();
    recorder->usual_backward &= recorder->tangent_count <= 64;
    recorder->forward = Py_NewRef(forward);
    recorder->leaf = Py_NewRef(leaf);
    recorder->before = Py_NewRef(before);
    recorder->usual = usual && joined;
    Py_RETURN_NONE;
}

enum { MOST_WAYS = 32 };

/* add_way(present, run, passed, wanted) */
static PyObject *add_way(PyObject *self, PyObject *args) {
    Recorder *recorder = (Recorder *)self;
    unsigned long long present;
    PyObject *run, *passed, *wanted;
    if (!PyArg_ParseTuple(args, "KOO!O!:add_way", &present, &run, &PyLong_Type, &passed, &PyTuple_Type, &wanted))
        return NULL;
    for (Way *way = recorder->ways; way; way = way->next)
        if (way->present == present)
            Py_RETURN_NONE;
    if (recorder->way_count == MOST_WAYS || !recorder->usual_backward)
        Py_RETURN_NONE;
    int count = 0, *positions = NULL;
    Way *way = NULL;
    if (read_positions(wanted, recorder->inputs, &count, &positions) == 0) {
        way = PyMem_Calloc(1, sizeof *way + (size_t)count * sizeof(int));
        if (way == NULL)
            PyErr_NoMemory();
    }
    if (way != NULL) {
        memcpy(way->wanted, positions, (size_t)count * sizeof(int));
        way->count = count;
        way->present = present;
        way->run = Py_NewRef(run);
        way->program = Py_XNewRef(ingot_program_of_consume(run));
        way->passed = Py_NewRef(passed);
        way->next = recorder->ways;
        recorder->ways = way;
        recorder->way_count++;
    }
    PyMem_Free(positions);
    return way ? Py_NewRef(Py_None) : NULL;
}

/* -- small parts --------------------------------------------------------------------------------------------------- */

#define ON_STACK 64

/* An array that is on the stack where that has room. */
typedef struct {
    PyObject *on_stack[ON_STACK], **items;
    Py_ssize_t count;
} Objects;

static int objects_init(Objects *objects, Py_ssize_t count) {
    objects->count = count;
    objects->items = count <= ON_STACK ? objects->on_stack : PyMem_Malloc((size_t)count * sizeof(PyObject *));
    if (objects->items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(objects->items, 0, (size_t)count * sizeof(PyObject *));
    return 0;
}

static void objects_clear(Objects *objects) {
    for (Py_ssize_t i = 0; i < objects->count; i++)
        Py_XDECREF(objects->items[i]);
    if (objects->items != objects->on_stack)
        PyMem_Free(objects->items);
}

/* Takes the items of a tuple or list, which is stolen. */
static int objects_from(Objects *objects, PyObject *stolen) {
    bool is_list = stolen && PyList_Check(stolen);
    if (stolen != NULL && !is_list && !PyTuple_Check(stolen)) {
        PyErr_Format(PyExc_TypeError, "a compiled graph returns a tuple or list of its outputs, not %s",
                     Py_TYPE(stolen)->tp_name);
        Py_CLEAR(stolen);
    }
    if (stolen == NULL)
        return -1;
    PyObject **items = is_list ? ((PyListObject *)stolen)->ob_item : ((PyTupleObject *)stolen)->ob_item;
    int status = objects_init(objects, Py_SIZE(stolen));
    for (Py_ssize_t i = 0; status == 0 && i < objects->count; i++)
        objects->items[i] = Py_NewRef(items[i]);
    Py_DECREF(stolen);
    return status;
}

static int too_few(const char *what) {
    PyErr_Format(PyExc_RuntimeError, "there are fewer %s than there should be", what);
    return -1;
}

/* -- the call ------------------------------------------------------------------------------------------------------ */

/* A call of `apply`: an error before the forward has ended is the graph's, one behind it comes of the user's hooks on
   what is saved. */
typedef struct Attempt {
    struct Attempt *outer;
    bool forward_ended;
} Attempt;

static _Thread_local Attempt *attempt;

static void mark_of_hooks(void) {
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    PyErr_NormalizeException(&type, &raised, &traceback);
    if (raised != NULL && PyObject_SetAttr(raised, name___of_ingots_hooks__, Py_True) < 0)
        PyErr_Clear();
    PyErr_Restore(type, raised, traceback);
}

/* recorder(*inputs): the outputs, which carry their history. */
static PyObject *recorder_call(PyObject *self, PyObject *inputs, PyObject *keywords) {
    Recorder *recorder = (Recorder *)self;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "a program takes no keyword arguments");
    if (!recorder->usual) {
        PyObject *record = PyObject_GetAttr(self, name_record);
        PyObject *result = record ? PyObject_Call(record, inputs, NULL) : NULL;
        Py_XDECREF(record);
        return result;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(inputs);
    bool changes = recorder->before != Py_None;
    PyObject *state = changes ? PyObject_CallOneArg(recorder->before, inputs) : Py_NewRef(unchanged);
    PyObject *arguments = state ? PyTuple_New(3 + count) : NULL;
    if (arguments == NULL) {
        Py_XDECREF(state);
        return NULL;
    }
    PyTuple_SET_ITEM(arguments, 0, Py_NewRef(self));
    PyTuple_SET_ITEM(arguments, 1, state);
    PyTuple_SET_ITEM(arguments, 2, Py_NewRef(recorder->leaf));
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(arguments, 3 + i, Py_NewRef(PyTuple_GET_ITEM(inputs, i)));
    Attempt this = {attempt, false};
    attempt = &this;
    PyObject *outputs = PyObject_Call(apply, arguments, NULL);
    attempt = this.outer;
    Py_DECREF(arguments);
    if (outputs == NULL && this.forward_ended && PyErr_ExceptionMatches(PyExc_Exception))
        mark_of_hooks();
    return outputs;
}

/* Runs the forward's program. */
static int run_forward(Recorder *recorder, PyObject *const *inputs, Py_ssize_t count, Objects *results) {
    if (Py_TYPE(recorder->forward) != &IngotProgram_Type)
        return objects_from(results, PyObject_Vectorcall(recorder->forward, inputs, (size_t)count, NULL));
    if (objects_init(results, ingot_program_output_count(recorder->forward)) < 0)
        return -1;
    int status = ingot_program_run(recorder->forward, inputs, count, results->items);
    if (status < 0)
        objects_clear(results);
    return status;
}

static int read_size(const SizePlace *place, PyObject *given, int64_t *value) {
    IngotTensorFacts facts;
    if (place->kind == VALUE) {
        *value = PyLong_AsLongLong(given);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (!ingot_is_plain_tensor(given)) {
        PyObject *all =
            place->kind == SIZE ? PyObject_GetAttrString(given, "shape") : PyObject_CallMethod(given, "stride", NULL);
        PyObject *one = all ? PySequence_GetItem(all, place->dim) : NULL;
        *value = one ? PyLong_AsLongLong(one) : -1;
        Py_XDECREF(all);
        Py_XDECREF(one);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (ingot_tensor_facts(given, &facts) < 0)
        return -1;
    if (place->dim >= facts.rank)
        return too_few("dimensions");
    *value = (place->kind == SIZE ? facts.sizes : facts.strides)[place->dim];
    return 0;
}

/* The values of the size symbols in a call; the very tuple of the last call where they are the same. */
static PyObject *read_sizes(Recorder *recorder, PyObject *const *inputs, const Objects *results) {
    PyObject *known = Py_XNewRef(recorder->known_sizes), *sizes = NULL;
    bool same = known != NULL;
    int64_t on_stack[16], *values = on_stack;
    if (recorder->size_count > 16 && (values = PyMem_Malloc((size_t)recorder->size_count * sizeof *values)) == NULL) {
        Py_XDECREF(known);
        return PyErr_NoMemory();
    }
    int read = 0;
    for (; read < recorder->size_count; read++) {
        const SizePlace *place = &recorder->places[read];
        if (place->of_result && place->position >= results->count) {
            too_few("results");
            break;
        }
        PyObject *given = place->of_result ? results->items[place->position] : inputs[place->position];
        if (read_size(place, given, &values[read]) < 0)
            break;
        same = same && PyLong_AsLongLong(PyTuple_GET_ITEM(known, read)) == values[read];
    }
    if (read == recorder->size_count && same)
        sizes = Py_NewRef(known);
    else if (read == recorder->size_count && (sizes = PyTuple_New(read)) != NULL)
        for (int i = 0; sizes != NULL && i < read; i++) {
            PyObject *value = PyLong_FromLongLong(values[i]);
            if (value == NULL)
                Py_CLEAR(sizes);
            else
                PyTuple_SET_ITEM(sizes, i, value);
        }
    if (values != on_stack)
        PyMem_Free(values);
    Py_XDECREF(known);
    return sizes;
}

/* Puts the tensors of a dict by position in their places. */
static int replace(PyObject *tuple, PyObject *others) {
    PyObject *position, *other;
    for (Py_ssize_t at = 0; PyDict_Next(others, &at, &position, &other);) {
        Py_ssize_t k = PyLong_AsSsize_t(position);
        if (k < 0 || k >= PyTuple_GET_SIZE(tuple))
            return PyErr_Occurred() ? -1 : too_few("inputs");
        Py_SETREF(((PyTupleObject *)tuple)->ob_item[k], Py_NewRef(other));
    }
    return 0;
}

/* How often a tensor was written; None for one of inference mode, which does not count that. */
static PyObject *version_of(PyObject *tensor) {
    PyObject *version = PyObject_GetAttr(tensor, name__version), *type, *raised, *traceback;
    if (version != NULL)
        return version;
    PyErr_Fetch(&type, &raised, &traceback);
    PyObject *answer = PyObject_CallMethodNoArgs(tensor, name_is_inference);
    if (answer == Py_True) {
        Py_XDECREF(type);
        Py_XDECREF(raised);
        Py_XDECREF(traceback);
        version = Py_NewRef(Py_None);
    } else
        PyErr_Restore(type, raised, traceback);
    Py_XDECREF(answer);
    return version;
}

/* The versions of all; 0 for those that do not matter. */
static PyObject *versions_of(const Recorder *recorder, PyObject *given) {
    PyObject *versions = PyList_New(recorder->tensors);
    for (int i = 0, skipped = 0; versions && i < recorder->tensors; i++) {
        bool skip = skipped < recorder->unread_count && recorder->unread[skipped] == i;
        PyObject *version = skip ? PyLong_FromLong(0) : version_of(PyTuple_GET_ITEM(given, i));
        skipped += skip;
        if (version == NULL)
            Py_CLEAR(versions);
        else
            PyList_SET_ITEM(versions, i, version);
    }
    return versions;
}

/* A Call: the inputs as they were before, how often they had been written, and the state. */
static PyObject *call_of(const Recorder *recorder, PyObject *const *inputs, PyObject *state) {
    PyObject *given = PyTuple_New(recorder->inputs), *versions = NULL, *call = NULL;
    for (int i = 0; given && i < recorder->inputs; i++)
        PyTuple_SET_ITEM(given, i, Py_NewRef(inputs[i]));
    if (given && (state == unchanged || replace(given, PyTuple_GET_ITEM(state, 0)) == 0))
        versions = versions_of(recorder, given);
    if (versions)
        call = ((PyTypeObject *)call_type)->tp_alloc((PyTypeObject *)call_type, 3);
    if (call == NULL) {
        Py_XDECREF(given);
        Py_XDECREF(versions);
        return NULL;
    }
    PyTuple_SET_ITEM(call, 0, given);
    PyTuple_SET_ITEM(call, 1, versions);
    PyTuple_SET_ITEM(call, 2, Py_NewRef(state));
    return call;
}

/* Sets an attribute of a node to a stolen value. */
static int set_stolen(PyObject *node, PyObject *name, PyObject *value) {
    int status = value ? PyObject_SetAttr(node, name, value) : -1;
    Py_XDECREF(value);
    return status;
}

static PyObject *picked(const int *positions, int count, PyObject *const *inputs, Py_ssize_t input_count,
                        const Objects *results) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        Py_ssize_t position = positions[i] - input_count;
        if (position >= results->count) {
            too_few("results");
            Py_CLEAR(tuple);
        } else
            PyTuple_SET_ITEM(tuple, i, Py_NewRef(position < 0 ? inputs[positions[i]] : results->items[position]));
    }
    return tuple;
}

/* Whether a result is a tensor, of a subclass maybe, as another backend gives them. -1: error. */
static int is_tensor(PyObject *result) {
    if (PyLong_Check(result) || result == Py_None)
        return 0;
    return ingot_is_plain_tensor(result) ? 1 : PyObject_IsInstance(result, tensor_class);
}

/* The results that have no history; what is no tensor has none anyway. */
static PyObject *without_history(const Recorder *recorder, const Objects *results) {
    PyObject *found = PyList_New(0), *tuple;
    for (int i = 0; found && i < recorder->untracked_count; i++) {
        PyObject *result = results->items[recorder->untracked[i]];
        int answer = is_tensor(result);
        if (answer < 0 || (answer && PyList_Append(found, result) < 0))
            Py_CLEAR(found);
    }
    tuple = found ? PyList_AsTuple(found) : NULL;
    Py_XDECREF(found);
    return tuple;
}

/* A result that autograd lets be written: it refuses views that a Function makes. */
static PyObject *no_view(PyObject *result) {
    int tensor = is_tensor(result);
    if (tensor <= 0)
        return tensor < 0 ? NULL : Py_NewRef(result);
    PyObject *answer = PyObject_CallMethodNoArgs(result, name__is_view);
    PyObject *alone = answer == NULL      ? NULL
                      : answer == Py_True ? PyObject_CallMethodNoArgs(result, name_detach)
                                          : Py_NewRef(result);
    Py_XDECREF(answer);
    return alone;
}

static PyObject *outputs_of(const Recorder *recorder, const Objects *results) {
    PyObject *outputs = PyTuple_New(recorder->outputs);
    for (int i = 0; outputs && i < recorder->outputs; i++) {
        PyObject *output = no_view(results->items[i]);
        if (output == NULL)
            Py_CLEAR(outputs);
        else
            PyTuple_SET_ITEM(outputs, i, output);
    }
    return outputs;
}

/* forward(node, recorder, state, leaf, *inputs), which `apply` calls. */
static PyObject *forward(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Attempt *here = attempt;
    Recorder *recorder = count > 3 && PyObject_TypeCheck(args[1], &Recorder_Type) ? (Recorder *)args[1] : NULL;
    if (recorder == NULL || !recorder->usual)
        return PyObject_Vectorcall(slow_forward, args, (size_t)count, NULL);
    if (count - 4 != recorder->inputs)
        return PyErr_Format(PyExc_TypeError, "a program of %d inputs was given %zd", recorder->inputs, count - 4);
    PyObject *node = args[0], *const *inputs = args + 4, *outputs = NULL;
    Objects results;
    if (run_forward(recorder, inputs, count - 4, &results) < 0)
        return NULL;
    if (results.count < recorder->outputs)
        too_few("results");
    else if (PyObject_SetAttr(node, name_materialize_grads, Py_False) == 0 &&
             PyObject_SetAttr(node, name_program, (PyObject *)recorder) == 0 &&
             set_stolen(node, name_to_save,
                        picked(recorder->saved, recorder->saved_count, inputs, recorder->inputs, &results)) == 0 &&
             set_stolen(node, name_call, call_of(recorder, inputs, args[2])) == 0 &&
             set_stolen(node, name_sizes, read_sizes(recorder, inputs, &results)) == 0 &&
             (recorder->untracked_count == 0 ||
              set_stolen(node, name_non_differentiable, without_history(recorder, &results)) == 0))
        outputs = outputs_of(recorder, &results);
    objects_clear(&results);
    if (outputs != NULL && here != NULL)
        here->forward_ended = true;
    return outputs;
}

/* -- the backward -------------------------------------------------------------------------------------------------- */

/* Where a node keeps the vectors of its hooks and the number of tensors that retain their gradients, in words; where
   its Python object keeps its address, in bytes. */
static struct {
    bool known;
    Py_ssize_t tensor, before, behind, retained, sequence, python_node;
} hooks;

static int read_hook_places(void) {
    PyObject *found = find_places ? PyObject_CallNoArgs(find_places) : Py_NewRef(Py_None);
    if (found == NULL)
        return -1;
    int status = 0;
    if (found != Py_None) {
        status = PyArg_ParseTuple(found, "nnnnnn", &hooks.tensor, &hooks.before, &hooks.behind, &hooks.retained,
                                  &hooks.sequence, &hooks.python_node)
                     ? 0
                     : -1;
        hooks.known = status == 0;
    }
    Py_DECREF(found);
    if (status == 0)
        Py_CLEAR(find_places);
    return status;
}

/* Whether it is certain that a node has no hooks. -1: error. */
static int has_no_hooks(PyObject *node) {
    if (find_places != NULL && read_hook_places() < 0)
        return -1;
    if (!hooks.known)
        return 0;
    PyObject *number = PyObject_CallMethodNoArgs(node, name__sequence_nr);
    uint64_t sequence = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred())
        return -1;
    const uint64_t *words = *(const uint64_t *const *)((const char *)node + hooks.python_node);
    return words[hooks.sequence] == sequence && words[hooks.retained] == 0 &&
           words[hooks.tensor] == words[hooks.tensor + 1] && words[hooks.before] == words[hooks.before + 1] &&
           words[hooks.behind] == words[hooks.behind + 1];
}

/* Reads (strides, dispatch keys). */
static int read_tangent(Tangent *tangent, PyObject *expected) {
    PyObject *strides;
    unsigned long long keys;
    if (!PyArg_ParseTuple(expected, "O!K", &PyTuple_Type, &strides, &keys))
        return -1;
    if (PyTuple_GET_SIZE(strides) > INGOT_MAX_RANK)
        return too_few("dimensions of room");
    tangent->keys = keys;
    tangent->rank = (int)PyTuple_GET_SIZE(strides);
    for (int d = 0; d < tangent->rank; d++)
        tangent->strides[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, d));
    return PyErr_Occurred() ? -1 : 0;
}

/* Makes `tangents` right for these sizes. */
static int expect(Recorder *recorder, PyObject *sizes) {
    PyObject *known = recorder->known_sizes;
    int same = known == sizes ? 1 : known ? PyObject_RichCompareBool(known, sizes, Py_EQ) : 0;
    if (same)
        return same < 0 ? -1 : 0;
    PyObject *expected = PyObject_CallMethodOneArg((PyObject *)recorder, name_expected, sizes);
    int status = expected ? 0 : -1;
    Py_CLEAR(recorder->known_sizes);
    if (expected && (!PyTuple_Check(expected) || PyTuple_GET_SIZE(expected) != recorder->tangent_count))
        status = too_few("tangents");
    for (int i = 0; status == 0 && i < recorder->tangent_count; i++)
        status = read_tangent(&recorder->tangents[i], PyTuple_GET_ITEM(expected, i));
    Py_XDECREF(expected);
    if (status == 0)
        recorder->known_sizes = Py_NewRef(sizes);
    return status;
}

/* Whether a gradient is a plain tensor, and whether it lies as the backward expects it. */
static bool is_plain(PyObject *given, const Tangent *expected, bool *laid_out) {
    IngotTensorFacts facts;
    if (!ingot_is_plain_tensor(given) || ingot_tensor_facts(given, &facts) < 0)
        return false;
    if (facts.dispatch_keys != expected->keys || facts.rank != expected->rank)
        return false;
    *laid_out = memcmp(facts.strides, expected->strides, (size_t)facts.rank * sizeof(int64_t)) == 0;
    return true;
}

/* The way for the tangents that come in; NULL where there is none, or an exception is set. `elsewise`: those (bits)
   that lie in another way than is expected. */
static const Way *way_for(Recorder *recorder, PyObject *const *tangents, uint64_t *elsewise) {
    uint64_t present = 0;
    for (int i = 0; i < recorder->spent_count; i++)
        if (tangents[recorder->spent[i]] != Py_None)
            return NULL;
    for (int i = 0; i < recorder->tangent_count; i++) {
        PyObject *given = tangents[recorder->differentiable[i]];
        bool laid_out;
        if (given == Py_None)
            continue;
        if (!is_plain(given, &recorder->tangents[i], &laid_out))
            return NULL;
        present |= (uint64_t)1 << i;
        *elsewise |= (uint64_t)!laid_out << i;
    }
    const Way *way = recorder->ways;
    while (way && way->present != present)
        way = way->next;
    return way;
}

/* Whether an attribute of a node is this object. -1: error. */
static int has(PyObject *node, PyObject *name, PyObject *value) {
    PyObject *found = PyObject_GetAttr(node, name);
    int same = found ? found == value : -1;
    Py_XDECREF(found);
    return same;
}

/* The way of a backward that is as usual: the first through this node, of plain gradients, which need no history. NULL
   where it is not, or an exception is set. */
static const Way *usual_way(Recorder *recorder, PyObject *node, PyObject *sizes, PyObject *const *tangents,
                            Py_ssize_t count, uint64_t *elsewise) {
    static PyObject *zero;
    if (zero == NULL && (zero = PyLong_FromLong(0)) == NULL)
        return NULL;
    if (!recorder->usual_backward || count != recorder->outputs || ingot_grad_is_enabled() ||
        has(node, name_passed, zero) != 1 || has(node, name_left, Py_None) != 1 || has(node, name_done, Py_None) != 1)
        return NULL;
    if (recorder->looks_for_hooks && has_no_hooks(node) != 1)
        return NULL;
    return expect(recorder, sizes) < 0 ? NULL : way_for(recorder, tangents, elsewise);
}

/* Lets go of what is saved, unless the graph is kept. */
static int let_go(PyObject *node, const Way *way) {
    PyObject *keeps = PyObject_CallNoArgs(keeps_graph);
    int kept = keeps ? PyObject_IsTrue(keeps) : -1;
    Py_XDECREF(keeps);
    if (kept < 0 || (!kept && (PyObject_SetAttr(node, name_passed, way->passed) < 0 ||
                               PyObject_SetAttr(node, name_call, Py_None) < 0)))
        return -1;
    PyObject *cleared = PyObject_CallMethodNoArgs(node, name_maybe_clear_saved_tensors);
    Py_XDECREF(cleared);
    return cleared ? 0 : -1;
}

/* What the backward's program is given. */
static int collect(Recorder *recorder, const Way *way, PyObject *node, PyObject *sizes, PyObject *const *tangents,
                   uint64_t elsewise, Objects *given) {
    PyObject *saved = PyObject_GetAttr(node, name_saved_tensors); /* raises where they were let go, or were written */
    if (saved == NULL)
        return -1;
    Py_ssize_t saved_count = PyTuple_GET_SIZE(saved), size_count = PyTuple_GET_SIZE(sizes), at = 0;
    int status = objects_init(given, saved_count + recorder->tangent_count + size_count);
    if (status < 0) {
        Py_DECREF(saved);
        return -1;
    }
    for (Py_ssize_t i = 0; i < saved_count; i++)
        given->items[at++] = Py_NewRef(PyTuple_GET_ITEM(saved, i));
    Py_DECREF(saved);
    for (int i = 0; i < recorder->tangent_count && status == 0; i++) {
        PyObject *tangent = tangents[recorder->differentiable[i]];
        if (!(way->present & (uint64_t)1 << i))
            continue;
        if (elsewise & (uint64_t)1 << i)
            given->items[at] = PyObject_CallMethod((PyObject *)recorder, "laid_out", "iOO", i, sizes, tangent);
        else
            given->items[at] = Py_NewRef(tangent);
        status = given->items[at++] ? 0 : -1;
    }
    for (Py_ssize_t i = 0; i < size_count; i++)
        given->items[at++] = Py_NewRef(PyTuple_GET_ITEM(sizes, i));
    given->count = at;
    if (status < 0)
        objects_clear(given);
    return status;
}

/* Runs the backward's program, which takes what it is given. */
static int run_backward(const Way *way, Objects *given, Objects *results) {
    if (way->program != NULL) {
        if (objects_init(results, ingot_program_output_count(way->program)) < 0)
            return -1;
        int status = ingot_program_consume(way->program, given->items, given->count, results->items);
        if (status < 0)
            objects_clear(results);
        return status;
    }
    PyObject *list = PyList_New(given->count);
    for (Py_ssize_t i = 0; list && i < given->count; i++) {
        PyList_SET_ITEM(list, i, given->items[i]);
        given->items[i] = NULL;
    }
    PyObject *found = list ? PyObject_CallOneArg(way->run, list) : NULL;
    Py_XDECREF(list);
    return objects_from(results, found);
}

/* The gradients by the arguments of `apply`. */
static PyObject *by_argument(const Recorder *recorder, const Way *way, Objects *results) {
    PyObject *gradients = PyTuple_New(3 + recorder->inputs);
    for (int i = 0; gradients && i < 3 + recorder->inputs; i++)
        PyTuple_SET_ITEM(gradients, i, Py_NewRef(Py_None));
    for (int i = 0; gradients && i < way->count && i < results->count; i++) {
        PyObject **place = &((PyTupleObject *)gradients)->ob_item[3 + way->wanted[i]];
        Py_SETREF(*place, results->items[i]);
        results->items[i] = NULL;
    }
    return gradients;
}

/* backward(node, *tangents), which autograd's engine calls. */
static PyObject *backward(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    PyObject *node = args[0], *program = PyObject_GetAttr(node, name_program);
    PyObject *sizes = program ? PyObject_GetAttr(node, name_sizes) : NULL, *gradients = NULL;
    Recorder *recorder = (Recorder *)program;
    const Way *way = NULL;
    uint64_t elsewise = 0;
    Objects given, results;
    if (sizes != NULL && PyObject_TypeCheck(program, &Recorder_Type))
        way = usual_way(recorder, node, sizes, args + 1, count - 1, &elsewise);
    if (sizes == NULL || PyErr_Occurred())
        ;
    else if (way == NULL)
        gradients = PyObject_Vectorcall(slow_backward, args, (size_t)count, NULL);
    else if (collect(recorder, way, node, sizes, args + 1, elsewise, &given) == 0) {
        if (let_go(node, way) == 0 && run_backward(way, &given, &results) == 0) {
            gradients = by_argument(recorder, way, &results);
            objects_clear(&results);
        }
        objects_clear(&given);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(program);
    return gradients;
}

/* -- the Python side ----------------------------------------------------------------------------------------------- */

static PyMethodDef recorder_methods[] = {
    {"describe", (PyCFunction)(void (*)(void))describe, METH_VARARGS | METH_KEYWORDS,
     "describe(*, forward, leaf, before, inputs, tensors, outputs, saved, untracked, unread, places, differentiable,\n"
     "spent, usual, usual_backward, looks_for_hooks): says once what the calls are; see TrainingProgram."},
    {"add_way", add_way, METH_VARARGS,
     "add_way(present, run, passed, wanted): from now on, where just these tangents come in (bits), `run` is what\n"
     "computes the gradients of the inputs `wanted`, and nobody may go back through the outputs `passed` again."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject Recorder_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Recorder",
    .tp_doc = "Recorder(): recorder(*inputs) runs a forward's program, and gives its outputs their history. A call\n"
              "that is not as usual is left to the `record` of a subclass.",
    .tp_basicsize = sizeof(Recorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = recorder_dealloc,
    .tp_traverse = recorder_traverse,
    .tp_clear = recorder_clear,
    .tp_call = recorder_call,
    .tp_methods = recorder_methods,
};

static PyObject *join_autograd(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *objects[6],
        **const places[6] = {&apply, &slow_forward, &slow_backward, &call_type, &unchanged, &find_places};
    if (!PyArg_ParseTuple(args, "OOOO!OO:join_autograd", &objects[0], &objects[1], &objects[2], &PyType_Type,
                          &objects[3], &objects[4], &objects[5]))
        return NULL;
    for (int i = 0; i < 6; i++)
        Py_XSETREF(*places[i], Py_NewRef(objects[i]));
    joined = PyType_IsSubtype((PyTypeObject *)call_type, &PyTuple_Type);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"join_autograd", join_autograd, METH_VARARGS,
     "join_autograd(apply, forward, backward, Call, unchanged, find_places): what ingot.runtime.training does itself."},
    {"node_forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL,
     "node_forward(node, recorder, state, leaf, *inputs): the `forward` of the Function that makes the nodes."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef backward_function = {"node_backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL,
                                        "node_backward(node, *tangents): the `apply` of the nodes."};

int ingot_recorder_register(PyObject *module) {
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_program, "program"},
                 {&name_call, "call"},
                 {&name_sizes, "sizes"},
                 {&name_left, "left"},
                 {&name_done, "done"},
                 {&name_passed, "passed"},
                 {&name_saved_tensors, "saved_tensors"},
                 {&name_to_save, "to_save"},
                 {&name_non_differentiable, "non_differentiable"},
                 {&name_materialize_grads, "materialize_grads"},
                 {&name_maybe_clear_saved_tensors, "maybe_clear_saved_tensors"},
                 {&name__version, "_version"},
                 {&name__is_view, "_is_view"},
                 {&name_detach, "detach"},
                 {&name_record, "record"},
                 {&name_expected, "expected"},
                 {&name___of_ingots_hooks__, "__of_ingots_hooks__"},
                 {&name__sequence_nr, "_sequence_nr"},
                 {&name_is_inference, "is_inference"}};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++)
        if ((*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    PyObject *autograd = PyImport_ImportModule("torch._C._autograd");
    keeps_graph = autograd ? PyObject_GetAttrString(autograd, "_get_current_graph_task_keep_graph") : NULL;
    Py_XDECREF(autograd);
    PyObject *torch = PyImport_ImportModule("torch");
    tensor_class = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    Py_XDECREF(torch);
    PyObject *function = keeps_graph && tensor_class ? PyCFunction_New(&backward_function, NULL) : NULL;
    PyObject *method = function ? PyInstanceMethod_New(function) : NULL; /* binds to the node, unlike a function of C */
    Py_XDECREF(function);
    if (method == NULL || PyModule_AddFunctions(module, functions) < 0) {
        Py_XDECREF(method);
        return -1;
    }
    if (PyModule_AddObjectRef(module, "node_backward", method) < 0)
        return -1;
    Py_DECREF(method);
    return PyModule_AddType(module, &Recorder_Type);
}
