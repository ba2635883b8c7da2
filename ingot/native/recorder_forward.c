/* A call that records gradients. */
#include "program.h"
#include "recorder_parts.h"

static PyObject *name___of_ingots_hooks__, *name_record, *name_look, *name__version,
    *name_is_inference, *name__is_view, *name_detach, *name_materialize_grads, *name_program,
    *name_to_save, *name_call, *name_sizes, *name_non_differentiable;
static PyObject *tensor_class; /* torch.Tensor */

/* A call of `apply`: an error before the forward has ended is the graph's, one behind it comes of
   the user's hooks on what is saved. */
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

PyObject *ingot_recorder_call(PyObject *self, PyObject *inputs, PyObject *keywords) {
    Recorder *recorder = (Recorder *)self;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "a program takes no keyword arguments");
    if (recorder->usual && ++recorder->calls >= recorder->look_at) {
        recorder->look_at = 2 * recorder->calls;
        PyObject *look = PyObject_GetAttr(self, name_look);
        PyObject *looked = look ? PyObject_Call(look, inputs, NULL) : NULL;
        Py_XDECREF(look);
        if (looked == NULL)
            return NULL;
        Py_DECREF(looked);
    }
    if (!recorder->usual || recorder->linked) {
        PyObject *record = PyObject_GetAttr(self, name_record);
        PyObject *result = record ? PyObject_Call(record, inputs, NULL) : NULL;
        Py_XDECREF(record);
        return result;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(inputs);
    bool changes = recorder->state_before != Py_None;
    PyObject *state = changes ? PyObject_CallOneArg(recorder->state_before, inputs)
                              : Py_NewRef(ingot_training.unchanged);
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
    PyObject *outputs = PyObject_Call(ingot_training.apply, arguments, NULL);
    attempt = this.outer;
    Py_DECREF(arguments);
    if (outputs == NULL && this.forward_ended && PyErr_ExceptionMatches(PyExc_Exception))
        mark_of_hooks();
    return outputs;
}

/* Runs the forward's program. */
static int run_forward(Recorder *recorder, PyObject *const *inputs, Py_ssize_t count,
                       Objects *results) {
    if (Py_TYPE(recorder->forward) != &IngotProgram_Type)
        return ingot_objects_from(
            results, PyObject_Vectorcall(recorder->forward, inputs, (size_t)count, NULL));
    if (ingot_objects_init(results, ingot_program_output_count(recorder->forward)) < 0)
        return -1;
    int status = ingot_program_run(recorder->forward, inputs, count, results->items);
    if (status < 0)
        ingot_objects_clear(results);
    return status;
}

static int read_size(const SizePlace *place, PyObject *given, int64_t *value) {
    IngotTensorFacts facts;
    if (place->kind == VALUE) {
        *value = PyLong_AsLongLong(given);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (!ingot_is_plain_tensor(given)) {
        PyObject *all = place->kind == SIZE ? PyObject_GetAttrString(given, "shape")
                                            : PyObject_CallMethod(given, "stride", NULL);
        PyObject *one = all ? PySequence_GetItem(all, place->dim) : NULL;
        *value = one ? PyLong_AsLongLong(one) : -1;
        Py_XDECREF(all);
        Py_XDECREF(one);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (ingot_tensor_facts(given, &facts) < 0)
        return -1;
    if (place->dim >= facts.rank)
        return ingot_too_few("dimensions");
    *value = (place->kind == SIZE ? facts.sizes : facts.strides)[place->dim];
    return 0;
}

/* The values of the size symbols in a call; the very tuple of the last call where they are the
 * same. */
static PyObject *read_sizes(Recorder *recorder, PyObject *const *inputs, const Objects *results) {
    PyObject *known = Py_XNewRef(recorder->known_sizes), *sizes = NULL;
    bool same = known != NULL;
    int64_t on_stack[16], *values = on_stack;
    if (recorder->size_count > 16 &&
        (values = PyMem_Malloc((size_t)recorder->size_count * sizeof *values)) == NULL) {
        Py_XDECREF(known);
        return PyErr_NoMemory();
    }
    int read = 0;
    for (; read < recorder->size_count; read++) {
        const SizePlace *place = &recorder->places[read];
        if (place->of_result && place->position >= results->count) {
            ingot_too_few("results");
            break;
        }
        PyObject *given =
            place->of_result ? results->items[place->position] : inputs[place->position];
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
            return PyErr_Occurred() ? -1 : ingot_too_few("inputs");
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

/* A RecordedCall: the inputs as they were before, how often they had been written, and the state.
 */
static PyObject *call_of(const Recorder *recorder, PyObject *const *inputs, PyObject *state) {
    PyObject *given = PyTuple_New(recorder->inputs), *versions = NULL, *call = NULL;
    for (int i = 0; given && i < recorder->inputs; i++)
        PyTuple_SET_ITEM(given, i, Py_NewRef(inputs[i]));
    if (given &&
        (state == ingot_training.unchanged || replace(given, PyTuple_GET_ITEM(state, 0)) == 0))
        versions = versions_of(recorder, given);
    if (versions)
        call = ((PyTypeObject *)ingot_training.call_type)
                   ->tp_alloc((PyTypeObject *)ingot_training.call_type, 3);
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

static PyObject *picked(const int *positions, int count, PyObject *const *inputs,
                        Py_ssize_t input_count, const Objects *results) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        Py_ssize_t position = positions[i] - input_count;
        if (position >= results->count) {
            ingot_too_few("results");
            Py_CLEAR(tuple);
        } else
            PyTuple_SET_ITEM(
                tuple, i,
                Py_NewRef(position < 0 ? inputs[positions[i]] : results->items[position]));
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

PyObject *ingot_recorder_forward(PyObject *Py_UNUSED(module), PyObject *const *args,
                                 Py_ssize_t count) {
    Attempt *here = attempt;
    Recorder *recorder =
        count > 3 && PyObject_TypeCheck(args[1], &IngotRecorder_Type) ? (Recorder *)args[1] : NULL;
    if (recorder == NULL || !recorder->usual || args[3] != recorder->leaf)
        return PyObject_Vectorcall(ingot_training.forward, args, (size_t)count, NULL);
    if (count - 4 != recorder->inputs)
        return PyErr_Format(PyExc_TypeError, "a program of %d inputs was given %zd",
                            recorder->inputs, count - 4);
    PyObject *node = args[0], *const *inputs = args + 4, *outputs = NULL;
    Objects results;
    if (run_forward(recorder, inputs, count - 4, &results) < 0)
        return NULL;
    if (results.count < recorder->outputs)
        ingot_too_few("results");
    else if (PyObject_SetAttr(node, name_materialize_grads, Py_False) == 0 &&
             PyObject_SetAttr(node, name_program, (PyObject *)recorder) == 0 &&
             set_stolen(node, name_to_save,
                        picked(recorder->saved, recorder->saved_count, inputs, recorder->inputs,
                               &results)) == 0 &&
             set_stolen(node, name_call, call_of(recorder, inputs, args[2])) == 0 &&
             set_stolen(node, name_sizes, read_sizes(recorder, inputs, &results)) == 0 &&
             (recorder->untracked_count == 0 ||
              set_stolen(node, name_non_differentiable, without_history(recorder, &results)) == 0))
        outputs = outputs_of(recorder, &results);
    ingot_objects_clear(&results);
    if (outputs != NULL && here != NULL)
        here->forward_ended = true;
    return outputs;
}

int ingot_recorder_forward_init(void) {
    const IngotName names[] = {{&name___of_ingots_hooks__, "__of_ingots_hooks__"},
                               {&name_record, "record"},
                               {&name_look, "look"},
                               {&name__version, "_version"},
                               {&name_is_inference, "is_inference"},
                               {&name__is_view, "_is_view"},
                               {&name_detach, "detach"},
                               {&name_materialize_grads, "materialize_grads"},
                               {&name_program, "program"},
                               {&name_to_save, "to_save"},
                               {&name_call, "call"},
                               {&name_sizes, "sizes"},
                               {&name_non_differentiable, "non_differentiable"}};
    PyObject *torch = PyImport_ImportModule("torch");
    tensor_class = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    Py_XDECREF(torch);
    return tensor_class ? ingot_make_names(names, Py_ARRAY_LENGTH(names)) : -1;
}
