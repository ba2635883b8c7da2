/* Library calls: building their arguments, and taking their results. */
#include "program_parts.h"

/* torch.as_strided, and names of Tensor's methods. */
static PyObject *as_strided, *name_view, *name_clone, *name_copy_, *name_detach;

int ingot_program_calls_init(void) {
    PyObject *torch = PyImport_ImportModule("torch");
    as_strided = torch ? PyObject_GetAttrString(torch, "as_strided") : NULL;
    Py_XDECREF(torch);
    name_view = PyUnicode_InternFromString("view");
    name_clone = PyUnicode_InternFromString("clone");
    name_copy_ = PyUnicode_InternFromString("copy_");
    name_detach = PyUnicode_InternFromString("detach");
    return as_strided && name_view && name_clone && name_copy_ && name_detach ? 0 : -1;
}

IngotLayout ingot_program_layout(const Program *program, const Frame *frame,
                                 const Geometry *geometry, int64_t *room) {
    int64_t *sizes = room, *strides = room + geometry->rank;
    for (int i = 0; i < geometry->rank; i++) {
        sizes[i] = frame->values[geometry->sizes[i]];
        strides[i] = frame->values[geometry->strides[i]];
    }
    const IngotDevice *device = geometry->on_host ? NULL : &program->device;
    return (IngotLayout){
        geometry->dtype, geometry->dtype_number, geometry->itemsize, geometry->rank, sizes, strides,
        device};
}

/* -- views ------------------------------------------------------------------------------------- */

static PyObject *tuple_of_values(const Frame *frame, int count, const int *positions) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(frame->values[positions[i]]);
        if (value == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

/* The view's tuples of sizes and strides, made once per frame and sizes. */
static PyObject **view_shape(Program *program, Frame *frame, int number) {
    PyObject **shape = frame->shapes + 2 * number;
    const Geometry *geometry = &program->views[number].geometry;
    if (shape[0] == NULL)
        shape[0] = tuple_of_values(frame, geometry->rank, geometry->sizes);
    if (shape[0] != NULL && shape[1] == NULL)
        shape[1] = tuple_of_values(frame, geometry->rank, geometry->strides);
    return shape[0] && shape[1] ? shape : NULL;
}

/* A new reference to a tensor of another dtype in the storage of `base`, whatever the strides of
   that: as_strided, which addresses the whole storage, is all that is done with it. */
static PyObject *reinterpreted(PyObject *base, PyObject *dtype) {
    PyObject *nothing = Py_BuildValue("(i)", 0), *step = Py_BuildValue("(i)", 1),
             *start = PyLong_FromLong(0), *flat = NULL, *result;
    if (nothing && step && start) {
        PyObject *arguments[] = {base, nothing, step, start};
        flat = PyObject_Vectorcall(as_strided, arguments, 4, NULL);
    }
    result = flat ? PyObject_CallMethodOneArg(flat, name_view, dtype) : NULL;
    Py_XDECREF(nothing);
    Py_XDECREF(step);
    Py_XDECREF(start);
    Py_XDECREF(flat);
    return result;
}

/* A new reference to the tensor that a view strides over, of the view's dtype, and where in its
 * storage the view begins. */
static PyObject *view_base(Program *program, Frame *frame, const View *view, int64_t *offset) {
    const Buffer *buffer = &program->buffers[view->buffer];
    const int in_arena = ingot_in_arena(program, frame, view->buffer);
    PyObject *base = in_arena ? frame->arena : frame->tensors[view->buffer];
    IngotTensorFacts facts;
    if (base == NULL) {
        PyErr_Format(PyExc_SystemError, "a view of buffer %d, which holds nothing", view->buffer);
        return NULL;
    }
    *offset = frame->values[view->offset];
    if (in_arena) {
        *offset += frame->values[buffer->position] / view->geometry.itemsize;
        return PyObject_CallMethodOneArg(base, name_view, view->geometry.dtype);
    }
    if (ingot_tensor_facts(base, &facts) < 0)
        return NULL;
    if (!view->reinterpreted) {
        *offset += facts.storage_offset;
        return Py_NewRef(base);
    }
    *offset += facts.storage_offset * buffer->geometry.itemsize / view->geometry.itemsize;
    return reinterpreted(base, view->geometry.dtype);
}

PyObject *ingot_program_view(Program *program, Frame *frame, int number) {
    if (frame->views[number])
        return Py_NewRef(frame->views[number]);
    const View *view = &program->views[number];
    int64_t offset;
    if (view->late) {
        Py_CLEAR(frame->shapes[2 * number]);
        Py_CLEAR(frame->shapes[2 * number + 1]);
    }
    PyObject **shape = view_shape(program, frame, number), *result = NULL;
    PyObject *base = shape ? view_base(program, frame, view, &offset) : NULL;
    PyObject *start = base ? PyLong_FromLongLong(offset) : NULL;
    if (start != NULL) {
        PyObject *arguments[] = {base, shape[0], shape[1], start};
        result = PyObject_Vectorcall(as_strided, arguments, 4, NULL);
    }
    Py_XDECREF(start);
    Py_XDECREF(base);
    Place place = program->buffers[view->buffer].place;
    int stays = place == CONSTANT || (place == ARENA && !program->frugal);
    if (result != NULL && !view->late && stays)
        frame->views[number] = Py_NewRef(result);
    return result;
}

/* Whether a buffer's tensor has nothing about it that torch.as_strided would see to: a conjugate is
 * not plain. */
static bool is_plain(Program *program, const Buffer *buffer, PyObject *tensor) {
    IngotTensorFacts facts;
    if (buffer->place != INPUT)
        return true;
    if (buffer->geometry.on_host || ingot_tensor_facts(tensor, &facts) < 0)
        return false;
    if (program->plain_keys == 0) {
        const int64_t none = 0, one = 1;
        const IngotLayout layout = {
            program->bytes.dtype, program->bytes.dtype_number, 1, 1, &none, &one, &program->device};
        void *data;
        IngotTensorFacts plain;
        PyObject *made = ingot_allocate(&layout, false, &data);
        if (made != NULL && ingot_tensor_facts(made, &plain) == 0)
            program->plain_keys = plain.dispatch_keys;
        Py_XDECREF(made);
    }
    return facts.dispatch_keys == program->plain_keys;
}

/* A view as a new tensor that shares the memory and nothing else; NULL without an exception where
   it must be made with torch.as_strided. */
static PyObject *window(Program *program, Frame *frame, int number) {
    const View *view = &program->views[number];
    const Buffer *buffer = &program->buffers[view->buffer];
    PyObject *base = frame->tensors[view->buffer];
    int64_t room[2 * INGOT_MAX_RANK];
    if (buffer->place == ARENA || buffer->place == CONSTANT || view->reinterpreted ||
        base == NULL || !is_plain(program, buffer, base))
        return NULL;
    IngotLayout layout = ingot_program_layout(program, frame, &view->geometry, room);
    return ingot_window(base, &layout, frame->values[view->offset]);
}

PyObject *ingot_program_view_alone(Program *program, Frame *frame, int number) {
    PyObject *alone = window(program, frame, number);
    if (alone != NULL || PyErr_Occurred())
        return alone;
    PyObject *view = ingot_program_view(program, frame, number);
    alone = view ? PyObject_CallMethodNoArgs(view, name_detach) : NULL;
    Py_XDECREF(view);
    return alone;
}

PyObject *ingot_program_copied_view(Program *program, Frame *frame, int number) {
    PyObject *view = ingot_program_view(program, frame, number);
    PyObject *copy = view ? PyObject_CallMethodNoArgs(view, name_clone) : NULL;
    Py_XDECREF(view);
    return copy;
}

/* -- arguments --------------------------------------------------------------------------------- */

static PyObject *build(Program *program, Frame *frame, const Item *item);

static PyObject *build_sequence(Program *program, Frame *frame, const Item *item) {
    int is_list = item->kind == ITEM_LIST;
    PyObject *sequence = is_list ? PyList_New(item->count) : PyTuple_New(item->count);
    for (int i = 0; sequence != NULL && i < item->count; i++) {
        PyObject *part = build(program, frame, &item->items[i]);
        if (part == NULL)
            Py_CLEAR(sequence);
        else if (is_list)
            PyList_SET_ITEM(sequence, i, part);
        else
            PyTuple_SET_ITEM(sequence, i, part);
    }
    return sequence;
}

/* A new reference to what the call is given in one place. */
static PyObject *build(Program *program, Frame *frame, const Item *item) {
    PyObject *tensor;
    switch (item->kind) {
    case ITEM_OBJECT:
        return Py_NewRef(item->object);
    case ITEM_INT:
        return PyLong_FromLongLong(frame->values[item->index]);
    case ITEM_VIEW:
        tensor = window(program, frame, item->index);
        if (tensor == NULL && !PyErr_Occurred())
            tensor = ingot_program_view(program, frame, item->index);
        break;
    case ITEM_BUFFER:
        tensor = Py_XNewRef(frame->tensors[item->index]);
        if (tensor == NULL)
            PyErr_Format(PyExc_SystemError, "an argument is buffer %d, which holds nothing",
                         item->index);
        break;
    default:
        return build_sequence(program, frame, item);
    }
    if (tensor != NULL)
        frame->given[frame->given_count++] = tensor;
    return tensor;
}

/* -- results ----------------------------------------------------------------------------------- */

/* Whether a result lies in the memory of an argument: it must not become a buffer that is written
 * later. -1: error. */
static int shares_memory_of_argument(const Frame *frame, PyObject *result) {
    uintptr_t storage, other;
    if (ingot_tensor_storage(result, &storage) < 0)
        return -1;
    for (int i = 0; i < frame->given_count; i++) {
        if (ingot_tensor_storage(frame->given[i], &other) < 0)
            return -1;
        if (storage == other)
            return 1;
    }
    return 0;
}

static int wrong_result(const CallStep *step, const char *what) {
    PyErr_Format(PyExc_RuntimeError,
                 "%R returned a result whose %s differs from what its meta kernel predicted",
                 step->function, what);
    return -1;
}

/* Whether the result has the predicted dtype and strides, so that it can be the buffer itself.
   Strides that reach nothing do not count. -1, with an exception set, if its sizes are not as
   predicted. */
static int as_predicted(const CallStep *step, const IngotTensorFacts *facts,
                        const IngotLayout *layout, int needs_data) {
    int same = facts->dtype == layout->number, empty = 0;
    /* By a GPU's library, which knows it: the seeds of attention. */
    int left_on_cpu = facts->device_type == 0 && !needs_data;
    if (facts->device_type != (layout->device ? layout->device->type : 0) && !left_on_cpu)
        return wrong_result(step, "device");
    if (facts->rank != layout->rank)
        return wrong_result(step, "rank");
    for (int64_t i = 0; i < layout->rank; i++) {
        if (facts->sizes[i] != layout->sizes[i])
            return wrong_result(step, "sizes");
        empty |= layout->sizes[i] == 0;
    }
    for (int64_t i = 0; i < layout->rank && !empty; i++)
        same &= layout->sizes[i] == 1 || facts->strides[i] == layout->strides[i];
    return same;
}

/* Makes a result the tensor of a buffer: as it is, or copied to the predicted layout. Steals the
 * result. */
static int take_result(Program *program, Frame *frame, const CallStep *step, int number,
                       PyObject *result) {
    Buffer *buffer = &program->buffers[number];
    int64_t room[2 * INGOT_MAX_RANK];
    IngotLayout layout = ingot_program_layout(program, frame, &buffer->geometry, room);
    IngotTensorFacts facts;
    int fits = -1, shared = 0;
    if (!ingot_is_plain_tensor(result))
        PyErr_Format(PyExc_TypeError, "%R returned %R where a tensor was predicted", step->function,
                     (PyObject *)Py_TYPE(result));
    else if (ingot_tensor_facts(result, &facts) == 0 &&
             (fits = as_predicted(step, &facts, &layout, buffer->needs_data)) >= 0)
        shared = shares_memory_of_argument(frame, result);
    if (fits == 0 || shared == 1) {
        PyObject *copy = ingot_allocate(&layout, false, &frame->data[number]);
        PyObject *same = copy ? PyObject_CallMethodOneArg(copy, name_copy_, result) : NULL;
        Py_XDECREF(same);
        if (same == NULL)
            Py_CLEAR(copy);
        Py_SETREF(result, copy);
        program->layout_mismatches += fits == 0;
    }
    if (fits < 0 || shared < 0 || result == NULL ||
        (buffer->needs_data && ingot_tensor_data(result, &frame->data[number]) < 0)) {
        Py_XDECREF(result);
        return -1;
    }
    Py_XSETREF(frame->tensors[number], result);
    return 0;
}

static int read_bound(const Binding *binding, PyObject *result, int64_t *value) {
    IngotTensorFacts facts;
    if (binding->dim < 0) {
        *value = PyLong_AsLongLong(result);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (ingot_tensor_facts(result, &facts) < 0)
        return -1;
    if (binding->dim >= facts.rank) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a result has fewer dimensions than its meta kernel predicted");
        return -1;
    }
    *value = facts.sizes[binding->dim];
    return 0;
}

/* Gives values to the symbols that a call binds, and to what follows from them, and checks what is
 * relied on. */
static int bind_results(Program *program, Frame *frame, const CallStep *step, PyObject *returned) {
    int several = PyTuple_Check(returned) || PyList_Check(returned);
    for (int i = 0; i < step->binding_count; i++) {
        const Binding *binding = &step->bindings[i];
        int64_t *value = &frame->values[binding->value];
        PyObject *result =
            several ? PySequence_GetItem(returned, binding->result) : Py_NewRef(returned);
        int status = result ? read_bound(binding, result, value) : -1;
        Py_XDECREF(result);
        if (status < 0)
            return -1;
        if (*value < binding->lower || *value > binding->upper) {
            PyErr_Format(PyExc_RuntimeError, "a number that the data decide is out of bounds: %lld",
                         (long long)*value);
            return -1;
        }
    }
    if (ingot_program_evaluate(program, frame, step->stage) < 0)
        return -1;
    for (int i = 0; i < step->check_count; i++) {
        const Check *check = &step->checks[i];
        int64_t left = frame->values[check->left], right = frame->values[check->right];
        int holds[CHECK_KINDS] = {left == right, left != right, left < right, left <= right};
        if (!holds[check->kind]) {
            PyErr_SetObject(PyExc_RuntimeError, check->message);
            return -1;
        }
    }
    return 0;
}

static int take_results(Program *program, Frame *frame, const CallStep *step, PyObject *returned) {
    if (step->target_count == 1 && !PyTuple_Check(returned) && !PyList_Check(returned))
        return step->targets[0] < 0
                   ? 0
                   : take_result(program, frame, step, step->targets[0], Py_NewRef(returned));
    if (step->target_count == 0)
        return 0;
    PyObject *results =
        PySequence_Fast(returned, "a library call returned something else than tensors");
    if (results == NULL)
        return -1;
    int status =
        PySequence_Fast_GET_SIZE(results) == step->target_count ? 0 : wrong_result(step, "length");
    for (int i = 0; status == 0 && i < step->target_count; i++)
        if (step->targets[i] >= 0)
            status = take_result(program, frame, step, step->targets[i],
                                 Py_NewRef(PySequence_Fast_GET_ITEM(results, i)));
    Py_DECREF(results);
    return status;
}

/* An out= call that resizes what it is given would leave the plan's pointers dangling. */
static int check_written(Program *program, Frame *frame, const CallStep *step) {
    for (int i = 0; i < step->written_count; i++) {
        int number = step->written[i], in_arena = ingot_in_arena(program, frame, number);
        char *expected = frame->data[number], *actual;
        if (ingot_tensor_data(in_arena ? frame->arena : frame->tensors[number], (void **)&actual) <
            0)
            return -1;
        if (in_arena)
            actual += frame->values[program->buffers[number].position];
        if (actual != expected) {
            frame->prepared = 0;
            PyErr_Format(PyExc_RuntimeError,
                         "%R resized its out= argument: its meta kernel predicted other sizes",
                         step->function);
            return -1;
        }
    }
    return 0;
}

int ingot_program_call(Program *program, Frame *frame, const CallStep *step) {
    PyObject **arguments = frame->arguments + 1, *returned = NULL;
    int built = 0;
    frame->given_count = 0;
    while (built < step->count && (arguments[built] = build(program, frame, &step->items[built])))
        built++;
    if (built == step->count) {
        Py_ssize_t named = step->keywords ? PyTuple_GET_SIZE(step->keywords) : 0;
        size_t positional = (size_t)(step->count - named) | PY_VECTORCALL_ARGUMENTS_OFFSET;
        returned = PyObject_Vectorcall(step->function, arguments, positional, step->keywords);
    }
    int status = returned && step->stage ? bind_results(program, frame, step, returned) : 0;
    status = returned && status == 0 ? take_results(program, frame, step, returned) : -1;
    if (status == 0)
        status = check_written(program, frame, step);
    while (built > 0)
        Py_DECREF(arguments[--built]);
    Py_XDECREF(returned);
    return status;
}
