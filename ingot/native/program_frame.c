/* Frames: what one running call of a program holds, made ready for its inputs. */
#include "donation.h"
#include "program.h"
#include "program_parts.h"

#include <stdbool.h>
#include <stddef.h>

enum { INPUT_ALIGNMENT = 16 };

/* -- frames ------------------------------------------------------------------------------------ */

static void forget_views(const Program *program, Frame *frame) {
    frame->prepared = 0;
    ingot_clear_references(frame->views, program->view_count);
    ingot_clear_references(frame->shapes, 2 * program->view_count);
}

static void free_frame(const Program *program, Frame *frame) {
    forget_views(program, frame);
    ingot_clear_references(frame->tensors, program->buffer_count);
    Py_XDECREF(frame->arena);
    PyMem_RawFree(frame->scratch_block);
    PyMem_Free(frame);
}

/* The next `count` * `size` bytes of one allocation. The first pass, with no memory, adds up how
 * much it takes. */
static void *carve(char **memory, size_t *used, size_t count, size_t size) {
    void *result = *memory ? *memory + *used : NULL;
    *used += (count * size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    return result;
}

static size_t lay_out_frame(const Program *program, Frame *frame, char *memory) {
    size_t used = 0, buffers = (size_t)program->buffer_count, views = (size_t)program->view_count;
    carve(&memory, &used, 1, sizeof *frame);
    frame->values =
        carve(&memory, &used, (size_t)(program->symbol_count + program->expression_count),
              sizeof(int64_t));
    frame->data = carve(&memory, &used, buffers, sizeof(void *));
    frame->tensors = carve(&memory, &used, buffers, sizeof(PyObject *));
    frame->views = carve(&memory, &used, views, sizeof(PyObject *));
    frame->shapes = carve(&memory, &used, 2 * views, sizeof(PyObject *));
    frame->pointers = carve(&memory, &used, (size_t)program->widest_kernel, sizeof(void *));
    frame->begins = carve(&memory, &used, (size_t)program->widest_kernel, sizeof(void *));
    frame->extents = carve(&memory, &used, (size_t)program->most_parts, sizeof(int64_t));
    frame->arguments = carve(&memory, &used, (size_t)program->widest_call + 1, sizeof(PyObject *));
    frame->donors = carve(&memory, &used, (size_t)program->donated_count, sizeof(PyObject *));
    frame->overwritten = carve(&memory, &used, (size_t)program->donated_count, sizeof(bool));
    frame->given = carve(&memory, &used, (size_t)program->most_tensors, sizeof(PyObject *));
    return used;
}

Frame *ingot_program_take_frame(Program *program) {
    Frame *frame = program->idle, plan;
    if (frame != NULL) {
        program->idle = frame->next;
        return frame;
    }
    frame = PyMem_Calloc(1, lay_out_frame(program, &plan, NULL));
    if (frame == NULL)
        return (Frame *)PyErr_NoMemory();
    lay_out_frame(program, frame, (char *)frame);
    return frame;
}

/* Ends a call: everything it held is released, and the frame waits for the next. If somebody kept a
 * view of the arena, it is his. */
void ingot_program_give_back_frame(Program *program, Frame *frame) {
    ingot_clear_references(frame->tensors, program->buffer_count);
    if (program->frugal)
        Py_CLEAR(frame->arena);
    for (int i = 0; i < program->view_count; i++)
        if (frame->views[i] && Py_REFCNT(frame->views[i]) > 1 &&
            ingot_in_arena(program, frame, program->views[i].buffer)) {
            forget_views(program, frame);
            Py_CLEAR(frame->arena);
            break;
        }
    frame->next = program->idle;
    program->idle = frame;
}

void ingot_program_free_idle_frames(Program *program) {
    while (program->idle) {
        Frame *frame = program->idle;
        program->idle = frame->next;
        free_frame(program, frame);
    }
}

/* -- sizes and places -------------------------------------------------------------------------- */

static int read_symbol(const SymbolSource *symbol, PyObject *input, int64_t *value) {
    IngotTensorFacts facts;
    if (symbol->what == SYMBOL_VALUE) {
        *value = PyLong_AsLongLong(input);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (ingot_tensor_facts(input, &facts) < 0)
        return -1;
    if (symbol->dim < 0 || symbol->dim >= facts.rank) {
        PyErr_SetString(PyExc_ValueError,
                        "an input has fewer dimensions than its program was compiled for");
        return -1;
    }
    *value = (symbol->what == SYMBOL_STRIDE ? facts.strides : facts.sizes)[symbol->dim];
    return 0;
}

static int read_symbols(const Program *program, Frame *frame, PyObject *const *inputs) {
    for (int i = 0; i < program->symbol_count; i++) {
        int64_t value;
        if (program->symbols[i].what == SYMBOL_BOUND)
            continue;
        if (read_symbol(&program->symbols[i], inputs[program->symbols[i].input], &value) < 0)
            return -1;
        frame->prepared &= value == frame->values[i];
        frame->values[i] = value;
    }
    return 0;
}

/* An arena of the size that the frame's values ask for, unless it has one, and the pointers into
 * it. */
static int prepare_arena(Program *program, Frame *frame) {
    const int64_t joined = frame->values[program->joined_bytes];
    frame->joined = joined <= program->most_joined;
    int64_t bytes = frame->joined ? joined : frame->values[program->arena_bytes];
    bytes = (bytes + INGOT_MEMORY_ALIGNMENT - 1) / INGOT_MEMORY_ALIGNMENT * INGOT_MEMORY_ALIGNMENT;
    const int64_t stride = 1;
    void *base = NULL;
    int used = 0; /* also by buffers without elements, of which there may be views */
    for (int i = 0; i < program->buffer_count; i++)
        used |= ingot_in_arena(program, frame, i);
    if (used && (frame->arena == NULL || frame->arena_bytes < bytes)) {
        IngotLayout layout = {
            program->bytes.dtype, program->bytes.dtype_number, 1, 1, &bytes, &stride,
            &program->device};
        Py_CLEAR(frame->arena);
        if ((frame->arena =
                 ingot_allocate(&layout, ingot_program_is_large(program, frame), &base)) == NULL)
            return -1;
        frame->arena_bytes = bytes;
    }
    if (frame->arena && ingot_tensor_data(frame->arena, &base) < 0)
        return -1;
    for (int i = 0; i < program->buffer_count; i++)
        if (ingot_in_arena(program, frame, i))
            frame->data[i] = (char *)base + frame->values[program->buffers[i].position];
    return 0;
}

int ingot_program_evaluate(const Program *program, Frame *frame, int stage) {
    int64_t *results = frame->values + program->symbol_count;
    for (int i = 0; i < program->expression_count; i++)
        if (program->stages[i] == stage &&
            ingot_expression_evaluate(program->expressions[i], frame->values, &results[i]) < 0)
            return -1;
    return 0;
}

/* Makes all that depends on the inputs' sizes alone. */
static int prepare(Program *program, Frame *frame) {
    forget_views(program, frame);
    if (ingot_program_evaluate(program, frame, 0) < 0)
        return -1;
    if (!program->frugal && prepare_arena(program, frame) < 0)
        return -1;
    frame->prepared = 1;
    return 0;
}

/* A copy of an input in memory as torch's allocator aligns it, in place of the input itself. */
static int align_input(Program *program, Frame *frame, int number) {
    int64_t room[2 * INGOT_MAX_RANK];
    IngotLayout layout =
        ingot_program_layout(program, frame, &program->buffers[number].geometry, room);
    PyObject *copy = ingot_allocate(&layout, false, &frame->data[number]);
    PyObject *same = copy ? PyObject_CallMethod(copy, "copy_", "O", frame->tensors[number]) : NULL;
    Py_XDECREF(same);
    if (same == NULL)
        Py_CLEAR(copy);
    else
        Py_SETREF(frame->tensors[number], Py_NewRef(copy));
    Py_XDECREF(copy);
    return same ? 0 : -1;
}

/* Where kernels rely on aligned inputs, copies those that are not. The sizes are known by now. */
static int align_inputs(Program *program, Frame *frame) {
    for (int i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].aligned && program->buffers[i].in_kernel &&
            (uintptr_t)frame->data[i] % INPUT_ALIGNMENT && align_input(program, frame, i) < 0)
            return -1;
    return 0;
}

/* Whether an input has the sizes that are described, but other strides, another type or device, or
 * other values than its memory. -1 with an exception set for other sizes. */
static int lies_elsewise(Program *program, Frame *frame, int number) {
    int64_t room[2 * INGOT_MAX_RANK];
    IngotTensorFacts facts;
    const Buffer *buffer = &program->buffers[number];
    const IngotLayout layout = ingot_program_layout(program, frame, &buffer->geometry, room);
    if (frame->tensors[number] == NULL || ingot_tensor_facts(frame->tensors[number], &facts) < 0)
        return -1;
    int64_t differ = 0, empty = 0, same = facts.rank == layout.rank;
    for (int64_t i = 0; same && i < facts.rank; i++) {
        same = facts.sizes[i] == layout.sizes[i];
        empty |= facts.sizes[i] == 0;
        differ |= facts.sizes[i] > 1 && facts.strides[i] != layout.strides[i];
    }
    if (!same) {
        PyErr_SetString(
            PyExc_RuntimeError,
            "a hook on saved tensors gave back a tensor of other sizes than it was given");
        return -1;
    }
    const int elsewhere =
        buffer->needs_data && facts.device_type != (layout.device ? layout.device->type : 0);
    return facts.dtype != layout.number || elsewhere ||
           ((differ || facts.dispatch_keys & program->lays_out) && !empty);
}

/* Copies inputs that are not as described. */
static int lay_out_inputs(Program *program, Frame *frame) {
    for (int i = 0; i < program->buffer_count; i++) {
        int elsewise = program->buffers[i].place == INPUT ? lies_elsewise(program, frame, i) : 0;
        if (elsewise < 0 || (elsewise && align_input(program, frame, i) < 0))
            return -1;
    }
    return 0;
}

/* Holds the inputs and constants until they are released or the call ends, and finds their memory.
 */
static int bind_inputs(Program *program, Frame *frame, PyObject *const *inputs) {
    for (int i = 0; i < program->buffer_count; i++) {
        const Buffer *buffer = &program->buffers[i];
        if (buffer->place > CONSTANT)
            continue;
        PyObject *tensor = buffer->place == INPUT ? inputs[buffer->position]
                                                  : program->constants[buffer->position];
        if (!ingot_is_plain_tensor(tensor)) {
            PyErr_Format(PyExc_TypeError, "input %d of a program must be a tensor, not %R",
                         buffer->position, (PyObject *)Py_TYPE(tensor));
            return -1;
        }
        frame->tensors[i] = Py_NewRef(tensor);
        if (buffer->needs_data && ingot_tensor_data(tensor, &frame->data[i]) < 0)
            return -1;
    }
    return 0;
}

/* -- donations --------------------------------------------------------------------------------- */

/* Counts a donated argument that stays as it is. */
static int note_kept(Program *program, const Donated *donated, const char *why) {
    PyObject *key = Py_BuildValue("(Os)", donated->name, why), *count = NULL;
    if (program->kept_arguments == NULL)
        program->kept_arguments = PyDict_New();
    if (key != NULL && program->kept_arguments != NULL) {
        PyObject *before = PyDict_GetItemWithError(program->kept_arguments, key);
        count = PyLong_FromLong(before ? PyLong_AsLong(before) + 1 : 1);
    }
    int status = count ? PyDict_SetItem(program->kept_arguments, key, count) : -1;
    Py_XDECREF(key);
    Py_XDECREF(count);
    return status;
}

/* Takes the memory of the arguments that the caller gives up. */
static int take_donations(Program *program, Frame *frame) {
    for (int i = 0; i < program->donated_count; i++) {
        const Donated *donated = &program->donated[i];
        const Buffer *buffer = &program->buffers[donated->buffer];
        const IngotDevice *device = buffer->geometry.on_host ? NULL : &program->device;
        const char *why = NULL;
        PyObject *taken = NULL, *tensor = frame->tensors[donated->buffer];
        if (program->device.type == INGOT_CUDA && ingot_program_is_near_recording(frame))
            why = "the program records CUDA graphs, whose replays may write there";
        else
            taken = ingot_donation_take(tensor, buffer->geometry.dtype, device, &why);
        if (taken != NULL) {
            frame->donors[i] = tensor;
            frame->tensors[donated->buffer] = taken;
        } else if (why == NULL || note_kept(program, donated, why) < 0)
            return -1;
    }
    return 0;
}

bool ingot_program_may_overwrite(const Program *program, const Frame *frame, int buffer) {
    for (int i = 0; i < program->donated_count; i++)
        if (program->donated[i].buffer == buffer)
            return frame->donors[i] != NULL;
    return frame->consumes;
}

void ingot_program_note_overwritten(const Program *program, Frame *frame, int buffer) {
    for (int i = 0; i < program->donated_count; i++)
        if (program->donated[i].buffer == buffer)
            frame->overwritten[i] = true;
}

void ingot_program_settle_donations(const Program *program, Frame *frame, bool failed) {
    for (int i = 0; i < program->donated_count; i++) {
        PyObject *donor = frame->donors[i], *taken = frame->tensors[program->donated[i].buffer];
        const bool whole = taken != NULL && !frame->overwritten[i];
        frame->donors[i] = NULL;
        frame->overwritten[i] = false;
        if (donor == NULL)
            continue;
        if (failed && whole)
            ingot_donation_return(donor, taken);
        else {
            ingot_left_traces = ingot_left_traces || failed;
            if (ingot_donation_declare(donor, program->donated[i].name) < 0)
                PyErr_WriteUnraisable(donor);
        }
        Py_DECREF(donor);
    }
}

int ingot_program_bind(Program *program, Frame *frame, PyObject *const *inputs, PyObject **taken) {
    if (bind_inputs(program, frame, inputs) < 0 || read_symbols(program, frame, inputs) < 0)
        return -1;
    frame->consumes = taken != NULL;
    if (taken)
        ingot_clear_references(taken, program->input_count);
    if (program->donated_count && take_donations(program, frame) < 0)
        return -1;
    if (!frame->prepared && prepare(program, frame) < 0)
        return -1;
    if (program->frugal && prepare_arena(program, frame) < 0)
        return -1;
    if (program->lays_out && lay_out_inputs(program, frame) < 0)
        return -1;
    return align_inputs(program, frame);
}
