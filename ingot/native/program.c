/* The type `Program`: frames, and the run through the steps. */
#include "heap.h"
#include "program.h"
#include "grad_mode.h"
#include "lending.h"
#include "program_parts.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

/* While a kernel takes longer than this, other threads may have the GIL. */
static const double RELEASE_GIL_NANOSECONDS = 50e3;

/* Bytes. What calls make that take so much at once lies in the heap (heap.h); for others malloc has
 * enough at hand. */
static const int64_t HELD_FROM = 8 << 20;

enum { ALIGNMENT = 64, INPUT_ALIGNMENT = 16 };

/* -- frames
 * --------------------------------------------------------------------------------------------------------
 */

static void clear_array(PyObject **array, int count) {
    for (int i = 0; i < count; i++)
        Py_CLEAR(array[i]);
}

static void forget_views(const Program *program, Frame *frame) {
    frame->prepared = 0;
    clear_array(frame->views, program->view_count);
    clear_array(frame->shapes, 2 * program->view_count);
}

static void free_frame(const Program *program, Frame *frame) {
    forget_views(program, frame);
    clear_array(frame->tensors, program->buffer_count);
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
    frame->given = carve(&memory, &used, (size_t)program->most_tensors, sizeof(PyObject *));
    return used;
}

static Frame *take_frame(Program *program) {
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
static void give_back_frame(Program *program, Frame *frame) {
    clear_array(frame->tensors, program->buffer_count);
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

/* -- sizes and places
 * ---------------------------------------------------------------------------------------------- */

static bool holds(const Program *program, const Frame *frame) {
    return program->peak_bytes < 0 || frame->values[program->peak_bytes] >= HELD_FROM;
}

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
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
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
        if ((frame->arena = ingot_allocate(&layout, holds(program, frame), &base)) == NULL)
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

/* -- steps
 * ---------------------------------------------------------------------------------------------------------
 */

/* What a user records as a CUDA graph may be replayed when its program and what the program made
   are long gone: the program then stays, with its constants and tables. And memory of the
   recording's pool is no tensor's that is made later: a replay would write there. Whose memory it
   is torch does not tell, so that nothing is lent from then on. */
static _Thread_local int
    records_for_itself; /* this thread's recording holds all of that, see cuda_graphs.py */
static bool users_record;

static int note_recording(Program *program, const Frame *frame) {
    int recording = records_for_itself ? 0 : ingot_cuda_is_recording(frame->stream);
    if (recording > 0) {
        users_record = true;
        if (!program->stays)
            Py_INCREF(program);
        program->stays = 1;
    }
    return recording;
}

/* A tensor in the memory of what a step lends it; NULL where that is not to be had. A recording
   would write where its pool has no memory. */
static PyObject *lent(Program *program, Frame *frame, const AllocateStep *step,
                      const IngotLayout *layout) {
    PyObject *lender = step->lender < 0 || !frame->consumes ? NULL : frame->tensors[step->lender],
             *tensor;
    if (lender == NULL || ingot_layout_bytes(layout) < ingot_lent_from)
        return NULL;
    if (program->device.type == INGOT_CUDA &&
        (users_record || ingot_cuda_is_recording(frame->stream) != 0))
        return NULL;
    tensor = ingot_lent(lender, layout);
    if (tensor != NULL)
        frame->data[step->buffer] = frame->data[step->lender];
    return tensor;
}

static int allocate(Program *program, Frame *frame, const Step *step) {
    const Buffer *buffer = &program->buffers[step->allocate.buffer];
    int64_t room[2 * INGOT_MAX_RANK];
    if (ingot_in_arena(program, frame, step->allocate.buffer))
        return 0;
    IngotLayout layout = ingot_program_layout(program, frame, &buffer->geometry, room);
    PyObject *tensor = lent(program, frame, &step->allocate, &layout);
    if (tensor == NULL && !PyErr_Occurred())
        tensor =
            ingot_allocate(&layout, holds(program, frame), &frame->data[step->allocate.buffer]);
    Py_XSETREF(frame->tensors[step->allocate.buffer], tensor);
    return tensor ? 0 : -1;
}

/* Room for every thread's scratch block; `stride` is the distance between them. */
static int reserve_scratch(Frame *frame, int threads, size_t stride) {
    size_t bytes = (size_t)threads * stride;
    if (bytes <= frame->scratch_bytes)
        return 0;
    PyMem_RawFree(frame->scratch_block);
    frame->scratch_bytes = 0;
    if ((frame->scratch_block = PyMem_RawMalloc(bytes + ALIGNMENT)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    frame->scratch =
        (char *)(((uintptr_t)frame->scratch_block + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1));
    frame->scratch_bytes = bytes;
    return 0;
}

static int run_kernel(Program *Py_UNUSED(program), Frame *frame, const Step *step) {
    const KernelStep *kernel = &step->kernel;
    int64_t extent = frame->values[kernel->extent];
    if (extent <= 0)
        return 0;
    double work = kernel->varying_work < 0 ? kernel->work
                                           : 1e-3 * (double)frame->values[kernel->varying_work];
    double nanoseconds = (double)extent * work;
    if (kernel->parts > 0)
        extent = 0;
    for (int i = 0; i < kernel->parts; i++) {
        frame->extents[i] = frame->values[kernel->extents[i]];
        extent += (frame->extents[i] + kernel->unit - 1) / kernel->unit * kernel->unit;
    }
    int threads = ingot_threads_wanted(extent, kernel->unit, nanoseconds);
    size_t scratch = kernel->scratch < 0 ? 0 : (size_t)frame->values[kernel->scratch];
    scratch = (scratch + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (reserve_scratch(frame, threads, scratch) < 0)
        return -1;
    for (int i = 0; i < kernel->count; i++)
        frame->pointers[i] = (char *)frame->data[kernel->buffers[i]] +
                             (kernel->offsets ? frame->values[kernel->offsets[i]] : 0);
    int width = kernel->parts ? kernel->count / kernel->parts : kernel->count;
    IngotLaunch launch = {
        .kernel = kernel->function,
        .buffers = frame->pointers,
        .sizes = frame->values,
        .parts = kernel->parts,
        .width = width,
        .extents = frame->extents,
        .extent = extent,
        .unit = kernel->unit,
        .scratch = frame->scratch,
        .scratch_stride = scratch,
        .nanoseconds = nanoseconds,
    };
    int long_running = nanoseconds > RELEASE_GIL_NANOSECONDS * threads;
    PyThreadState *state = long_running ? PyEval_SaveThread() : NULL;
    int32_t status = ingot_launch(&launch, threads);
    if (state)
        PyEval_RestoreThread(state);
    if (status == 0)
        return 0;
    if (status <= PyTuple_GET_SIZE(kernel->errors)) {
        PyObject *fault = PyTuple_GET_ITEM(kernel->errors, status - 1);
        PyErr_SetObject(PyTuple_GET_ITEM(fault, 0), PyTuple_GET_ITEM(fault, 1));
    } else
        PyErr_Format(PyExc_SystemError, "a kernel returned the unknown status %d", (int)status);
    return -1;
}

static int call(Program *program, Frame *frame, const Step *step) {
    return ingot_program_call(program, frame, &step->call);
}

static int release(Program *Py_UNUSED(program), Frame *frame, const Step *step) {
    for (int i = 0; i < step->release.count; i++)
        Py_CLEAR(frame->tensors[step->release.buffers[i]]);
    return 0;
}

/* Where the i-th argument of a launch begins. */
static void *begin_of(const Frame *frame, int buffer, const int *offsets, int i) {
    return (char *)frame->data[buffer] + (offsets ? frame->values[offsets[i]] : 0);
}

/* Compiles and loads a form that has not been launched before. Others may run meanwhile, and load
 * it as well. */
static int load_form(const Program *program, LoadedKernel *loaded) {
    PyObject *found = PyObject_CallNoArgs(loaded->loader), *capsule;
    LoadedKernel made = *loaded;
    int status =
        found && PyTuple_Check(found) &&
                PyArg_ParseTuple(found, "Oiii", &capsule, &made.threads, &made.shared, &made.hidden)
            ? ingot_program_read_kernel(program, capsule, &made)
            : -1;
    if (status < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "what loads a kernel returned no tuple");
    if (status == 0)
        *loaded = made;
    Py_XDECREF(found); /* what loads it keeps it */
    return status;
}

static int holds_here(const Frame *frame, const LaunchForm *form) {
    int holds = 1;
    for (int i = 0; i < form->condition_count; i++)
        holds &= frame->values[form->conditions[i].value] <= form->conditions[i].most;
    return holds;
}

/* The first form whose conditions hold, loaded. Each of these is right, so that where one cannot be
   compiled or loaded the next takes its place, now and later; NULL, with the first one's error,
   where none can. */
static LaunchForm *choose_form(const Program *program, const Frame *frame,
                               const LaunchStep *launch) {
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    LaunchForm *chosen = NULL, *end = launch->forms + launch->form_count;
    for (LaunchForm *form = launch->forms; form < end && chosen == NULL; form++) {
        if (form->failed || !holds_here(frame, form))
            continue;
        if (form->loaded.kernel || frame->values[form->grid] <= 0 ||
            load_form(program, &form->loaded) == 0) {
            chosen = form;
            continue;
        }
        if (!PyErr_ExceptionMatches(PyExc_Exception)) /* somebody interrupts it */
            break;
        form->failed = form < end - 1 && ingot_cuda_is_recording(frame->stream) == 0;
        if (type == NULL)
            PyErr_Fetch(&type, &value, &traceback);
        PyErr_Clear();
    }
    if (chosen == NULL && !PyErr_Occurred())
        PyErr_Restore(type, value, traceback);
    else {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    return chosen;
}

static int launch(Program *program, Frame *frame, const Step *step) {
    static void *nothing;
    const LaunchStep *launch = &step->launch;
    const LaunchForm *form = choose_form(program, frame, launch);
    if (form == NULL)
        return -1;
    int64_t grid = frame->values[form->grid];
    if (grid <= 0)
        return 0;
    const LoadedKernel *loaded = &form->loaded;
    void **next = frame->pointers;
    for (int i = 0; i < launch->count; i++) {
        int number = launch->buffers[i], on_host = program->buffers[number].geometry.on_host;
        frame->begins[i] = begin_of(frame, number, launch->offsets, i);
        *next++ = on_host ? frame->data[number] : &frame->begins[i];
    }
    for (int i = 0; i < launch->size_count; i++)
        *next++ = &frame->values[launch->sizes[i]];
    for (int i = 0; i < loaded->hidden; i++)
        *next++ = &nothing;
    return ingot_cuda_launch(loaded->kernel, grid, loaded->threads, loaded->shared, frame->stream,
                             frame->pointers);
}

/* Fills the table of a launch, and returns how many blocks there are. */
static int64_t fill_table(const Program *program, const Frame *frame, const PartsStep *parts,
                          int64_t *table) {
    int width = parts->count / parts->parts;
    int64_t blocks = 0;
    for (int i = 0; i < parts->places; i++)
        table[i] = INT64_MAX;
    for (int i = 0; i < parts->parts; i++) {
        int64_t *row = table + parts->places + (int64_t)i * (width + 2),
                extent = frame->values[parts->extents[i]];
        row[0] = table[i] = blocks;
        row[1] = extent;
        for (int k = 0; k < width; k++) {
            int number = parts->buffers[i * width + k];
            const Geometry *geometry = &program->buffers[number].geometry;
            row[k + 2] = (int64_t)(intptr_t)begin_of(frame, number, parts->offsets, i * width + k);
            if (geometry->on_host)
                memcpy(&row[k + 2], frame->data[number], (size_t)geometry->itemsize);
        }
        blocks += (extent + parts->points - 1) / parts->points;
    }
    return blocks;
}

/* The table lives in memory of the stream's, which torch may hand out again once the launch is
   queued. A replay copies it again, so that what is recorded lives as long as the program. */
static int launch_parts(Program *program, Frame *frame, const Step *step) {
    static void *nothing;
    const PartsStep *parts = &step->parts;
    int64_t length = parts->places + (int64_t)parts->parts * (parts->count / parts->parts + 2),
            stride = 1;
    int64_t bytes = length * (int64_t)sizeof(int64_t);
    int recorded = ingot_cuda_is_recording(frame->stream);
    if (recorded < 0)
        return -1;
    int64_t *table =
        recorded ? ingot_program_memory(program, 1, (size_t)bytes) : PyMem_Malloc((size_t)bytes);
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int64_t blocks = fill_table(program, frame, parts, table);
    IngotLayout layout = {program->bytes.dtype, program->bytes.dtype_number, 1, 1, &bytes, &stride,
                          &program->device};
    void *address;
    PyObject *memory = blocks ? ingot_allocate(&layout, false, &address) : NULL;
    int status = blocks && memory == NULL ? -1 : 0;
    if (memory != NULL)
        status = ingot_cuda_copy(address, table, (size_t)bytes, frame->stream);
    if (memory != NULL && status == 0) {
        const LoadedKernel *loaded = &parts->loaded;
        frame->pointers[0] = &address;
        for (int i = 0; i < loaded->hidden; i++)
            frame->pointers[1 + i] = &nothing;
        status = ingot_cuda_launch(loaded->kernel, blocks, loaded->threads, loaded->shared,
                                   frame->stream, frame->pointers);
    }
    Py_XDECREF(memory);
    if (!recorded)
        PyMem_Free(table);
    return status;
}

/* Whether torch's settings let a product be taken by the library. -1: error. */
static int conditions_hold(const ProductStep *product) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(product->conditions); i++) {
        PyObject *condition = PyTuple_GET_ITEM(product->conditions, i);
        PyObject *found = PyObject_CallNoArgs(PyTuple_GET_ITEM(condition, 0));
        int same =
            found ? PyObject_RichCompareBool(found, PyTuple_GET_ITEM(condition, 1), Py_EQ) : -1;
        Py_XDECREF(found);
        if (same < 1)
            return same;
    }
    return 1;
}

/* The matrices that a view shows, and how many there are. */
static IngotMatrices matrices_of(const Program *program, const Frame *frame, int number,
                                 int64_t *batch) {
    const View *view = &program->views[number];
    const Geometry *geometry = &view->geometry;
    const int row = geometry->rank - 2, column = geometry->rank - 1;
    const int64_t *values = frame->values;
    const char *data =
        (const char *)frame->data[view->buffer] + values[view->offset] * geometry->itemsize;
    *batch = row ? values[geometry->sizes[0]] : 1;
    return (IngotMatrices){data,
                           values[geometry->sizes[row]],
                           values[geometry->sizes[column]],
                           values[geometry->strides[row]],
                           values[geometry->strides[column]],
                           row ? values[geometry->strides[0]] : 0};
}

static int multiply(Program *program, Frame *frame, const Step *step) {
    const ProductStep *product = &step->product;
    int64_t batch;
    IngotMatrices left = matrices_of(program, frame, product->left, &batch),
                  right = matrices_of(program, frame, product->right, &batch),
                  out = matrices_of(program, frame, product->out, &batch);
    int here = program->device.type == INGOT_CUDA && !frame->elsewhere;
    int queued = here ? conditions_hold(product) : 0;
    if (queued == 1)
        queued = ingot_blas_product(product->type, batch, &left, &right, &out);
    return queued ? Py_MIN(0, queued) : ingot_program_call(program, frame, &product->otherwise);
}

static int (*const RUN[STEP_KINDS])(Program *, Frame *, const Step *) = {
    allocate, run_kernel, call, release, launch, launch_parts, multiply};

static PyObject *make_output(Program *program, Frame *frame, const Output *output) {
    switch (output->kind) {
    case OUT_BUFFER:
        return Py_XNewRef(frame->tensors[output->index]);
    case OUT_VIEW:
        return ingot_program_view(program, frame, output->index);
    case OUT_ALONE:
        return ingot_program_view_alone(program, frame, output->index);
    case OUT_COPY:
        return ingot_program_copied_view(program, frame, output->index);
    default:
        return PyLong_FromLongLong(frame->values[output->index]);
    }
}

_Thread_local bool ingot_left_traces;

static int fail(const Program *program, const Step *step) {
    ingot_left_traces = step - program->steps >= program->traces_from;
    return -1;
}

static int run_steps(Program *program, Frame *frame) {
    for (const Step *step = program->steps, *end = step + program->step_count; step < end; step++)
        if (RUN[step->kind](program, frame, step) < 0)
            return fail(program, step);
    ingot_left_traces = program->traces_from < program->step_count;
    return 0;
}

static int64_t now(void) {
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* As `run_steps`, and adds what each step took; profiling may end in the middle. */
static int run_steps_profiled(Program *program, Frame *frame) {
    int64_t start = now();
    for (int i = 0; i < program->step_count; i++) {
        if (RUN[program->steps[i].kind](program, frame, &program->steps[i]) < 0)
            return fail(program, &program->steps[i]);
        int64_t end = now();
        if (program->nanoseconds)
            program->nanoseconds[i] += end - start;
        start = end;
    }
    ingot_left_traces = program->traces_from < program->step_count;
    return 0;
}

/* `taken`: NULL, or the inputs, references that are let go once the frame holds its own. */
static int run_frame(Program *program, Frame *frame, PyObject *const *inputs, PyObject **taken) {
    if (bind_inputs(program, frame, inputs) < 0 || read_symbols(program, frame, inputs) < 0)
        return -1;
    frame->consumes = taken != NULL;
    if (taken)
        clear_array(taken, program->input_count);
    if (!frame->prepared && prepare(program, frame) < 0)
        return -1;
    if (program->frugal && prepare_arena(program, frame) < 0)
        return -1;
    if ((program->lays_out && lay_out_inputs(program, frame) < 0) ||
        align_inputs(program, frame) < 0)
        return -1;
    return (program->nanoseconds ? run_steps_profiled : run_steps)(program, frame);
}

static int make_outputs(Program *program, Frame *frame, PyObject **outputs) {
    for (int i = 0; i < program->output_count; i++)
        if ((outputs[i] = make_output(program, frame, &program->outputs[i])) == NULL)
            return -1;
    return 0;
}

static int run(PyObject *self, PyObject *const *inputs, Py_ssize_t n, PyObject **taken,
               PyObject **outputs) {
    Program *program = (Program *)self;
    if (n != program->input_count) {
        PyErr_Format(PyExc_TypeError, "a program of %d inputs was given %zd", program->input_count,
                     n);
        return -1;
    }
    Frame *frame = take_frame(program);
    if (frame == NULL)
        return -1;
    Py_INCREF(self); /* a library call may drop the last reference */
    memset(outputs, 0, (size_t)program->output_count * sizeof *outputs);
    ingot_left_traces = false;
    int grad_mode = program->calls_torch ? ingot_swap_grad_mode(0) : 0;
    int entered = program->device.type == INGOT_CUDA
                      ? ingot_cuda_begin(program->device.index, &frame->stream)
                      : 0;
    frame->elsewhere = entered == 1;
    int status =
        entered < 0 || (program->device.type == INGOT_CUDA && note_recording(program, frame) < 0)
            ? -1
            : 0;
    if (status == 0)
        status = run_frame(program, frame, inputs, taken);
    if (grad_mode)
        ingot_swap_grad_mode(1); /* autograd treats views, which results may be, by the mode that
                                    they were made in */
    if (status == 0)
        status = make_outputs(program, frame, outputs);
    if (entered == 1)
        ingot_cuda_end();
    if (status < 0) {
        clear_array(outputs, program->output_count);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "an output of a program was never made");
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* releasing tensors may run Python */
    give_back_frame(program, frame);
    PyErr_Restore(type, value, traceback);
    Py_DECREF(self);
    return status;
}

int ingot_program_run(PyObject *self, PyObject *const *inputs, Py_ssize_t n, PyObject **outputs) {
    return run(self, inputs, n, NULL, outputs);
}

int ingot_program_consume(PyObject *self, PyObject **inputs, Py_ssize_t n, PyObject **outputs) {
    return run(self, inputs, n, inputs, outputs);
}

/* -- the Python type
 * -----------------------------------------------------------------------------------------------
 */

static PyObject *program_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags,
                                    PyObject *keywords) {
    if (keywords && PyTuple_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "a program takes no keyword arguments");
    PyObject *outputs = PyTuple_New(ingot_program_output_count(self));
    if (outputs && ingot_program_run(self, arguments, PyVectorcall_NARGS(flags),
                                     ((PyTupleObject *)outputs)->ob_item) < 0)
        Py_CLEAR(outputs);
    return outputs;
}

/* consume(inputs): as a call, and takes the inputs from the list, so that each may die with its
 * last use. */
static PyObject *program_consume(PyObject *self, PyObject *given) {
    if (!PyList_CheckExact(given))
        return PyErr_Format(PyExc_TypeError, "a program consumes a list of its inputs, not %R",
                            (PyObject *)Py_TYPE(given));
    int n = (int)PyList_GET_SIZE(given);
    PyObject **inputs = PyMem_Malloc(((size_t)n + 1) * sizeof *inputs);
    if (inputs == NULL)
        return PyErr_NoMemory();
    for (int i = 0; i < n; i++)
        inputs[i] = Py_NewRef(PyList_GET_ITEM(given, i));
    PyObject *outputs = PyTuple_New(ingot_program_output_count(self));
    if (outputs &&
        (PyList_SetSlice(given, 0, n, NULL) < 0 ||
         ingot_program_consume(self, inputs, n, ((PyTupleObject *)outputs)->ob_item) < 0))
        Py_CLEAR(outputs);
    clear_array(inputs, n);
    PyMem_Free(inputs);
    return outputs;
}

static PyObject *program_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *description;
    if ((keywords && PyDict_GET_SIZE(keywords) > 0) ||
        !PyArg_ParseTuple(arguments, "O!", &PyTuple_Type, &description))
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_TypeError, "Program takes one description");
    Program *program = (Program *)type->tp_alloc(type, 0);
    if (program == NULL)
        return NULL;
    program->vectorcall = program_vectorcall;
    program->description = Py_NewRef(description);
    if (ingot_program_describe(program, description) < 0)
        Py_CLEAR(program);
    return (PyObject *)program;
}

/* What frames hold besides is either plain tensors or belongs to a call that is running. */
static int program_traverse(PyObject *self, visitproc visit, void *arg) {
    Program *program = (Program *)self;
    Py_VISIT(program->description);
    return 0;
}

static void free_idle_frames(Program *program) {
    while (program->idle) {
        Frame *frame = program->idle;
        program->idle = frame->next;
        free_frame(program, frame);
    }
}

static int program_clear(PyObject *self) {
    Program *program = (Program *)self;
    free_idle_frames(program);
    ingot_program_free_parts(program);
    PyMem_Free(program->nanoseconds);
    program->nanoseconds = NULL;
    program->step_count = program->output_count = program->symbol_count = 0;
    program->input_count = -1; /* nothing is left to run */
    Py_CLEAR(program->description);
    return 0;
}

static void program_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    if (((Program *)self)->weak_references)
        PyObject_ClearWeakRefs(self);
    program_clear(self);
    ingot_heap_trim(); /* of what it made */
    Py_TYPE(self)->tp_free(self);
}

/* profile(on): begins anew or ends. Returns the nanoseconds of each step since it began, () if it
 * was off. */
static PyObject *program_profile(PyObject *self, PyObject *on) {
    Program *program = (Program *)self;
    int64_t *before = program->nanoseconds, *fresh = NULL;
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0 ||
        (wanted && !(fresh = PyMem_Calloc((size_t)program->step_count + 1, sizeof *fresh))))
        return wanted < 0 ? NULL : PyErr_NoMemory();
    program->nanoseconds = fresh;
    PyObject *result = PyTuple_New(before ? program->step_count : 0);
    for (Py_ssize_t i = 0; result && i < PyTuple_GET_SIZE(result); i++) {
        PyObject *value = PyLong_FromLongLong(before[i]);
        if (value == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, value);
    }
    PyMem_Free(before);
    return result;
}

static PyMethodDef program_methods[] = {
    {"profile", program_profile, METH_O,
     "profile(on): begins or ends to measure steps; returns the nanoseconds of each since it "
     "began, () if it was off."},
    {"consume", program_consume, METH_O,
     "consume(inputs): as a call, and empties the list: inputs die with their last use."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"description", T_OBJECT, offsetof(Program, description), READONLY,
     "What the program was made from."},
    {"layout_mismatches", T_PYSSIZET, offsetof(Program, layout_mismatches), READONLY,
     "How many results of library calls had another layout than predicted, and were copied."},
    {"lays_out", T_ULONGLONG, offsetof(Program, lays_out), 0,
     "Not 0 where inputs may have other strides or another type than described, as what hooks on "
     "saved tensors return: "
     "they are copied, as are those with one of these dispatch keys, whose memory does not have "
     "their values."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject IngotProgram_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Program",
    .tp_doc = "Program(description): a compiled graph; program(*inputs) -> tuple of outputs. See "
              "ingot.runtime.description.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = program_new,
    .tp_dealloc = program_dealloc,
    .tp_traverse = program_traverse,
    .tp_clear = program_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Program, vectorcall),
    .tp_weaklistoffset = offsetof(Program, weak_references),
    .tp_members = members,
    .tp_methods = program_methods,
};

Py_ssize_t ingot_program_input_count(PyObject *program) {
    return ((Program *)program)->input_count;
}

Py_ssize_t ingot_program_output_count(PyObject *program) {
    return ((Program *)program)->output_count;
}

PyObject *ingot_program_of_consume(PyObject *callable) {
    bool is_consume =
        PyCFunction_Check(callable) && PyCFunction_GET_FUNCTION(callable) == program_consume;
    return is_consume ? PyCFunction_GET_SELF(callable) : NULL;
}

static PyObject *force_slow_allocation(PyObject *Py_UNUSED(module), PyObject *slow) {
    ingot_force_slow_allocation(PyObject_IsTrue(slow) == 1);
    Py_RETURN_NONE;
}

static PyObject *trim_heap(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    ingot_heap_trim();
    Py_RETURN_NONE;
}

static PyObject *heap_use(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    IngotHeapUse use = ingot_heap_use();
    return Py_BuildValue("(nn)", (Py_ssize_t)use.used, (Py_ssize_t)use.held);
}

static PyObject *lend_from(PyObject *Py_UNUSED(module), PyObject *bytes) {
    const int64_t before = ingot_lent_from, wanted = PyLong_AsLongLong(bytes);
    if (PyErr_Occurred())
        return NULL;
    ingot_lent_from = wanted;
    return PyLong_FromLongLong(before);
}

static PyObject *record_for_itself(PyObject *Py_UNUSED(module), PyObject *does) {
    records_for_itself = PyObject_IsTrue(does) == 1;
    Py_RETURN_NONE;
}

static PyObject *left_traces(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(ingot_left_traces);
}

static PyObject *forget_traces(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    ingot_left_traces = false;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"forget_traces", forget_traces, METH_NOARGS,
     "forget_traces(): `left_traces` is False until a program runs."},
    {"left_traces", left_traces, METH_NOARGS,
     "Whether the program that this thread ran last wrote an input, or did what others see, before "
     "it ended or "
     "failed."},
    {"record_for_itself", record_for_itself, METH_O,
     "record_for_itself(does): whether what this thread records from now on holds its program, and "
     "what that made."},
    {"_lend_from", lend_from, METH_O,
     "_lend_from(bytes): from how many bytes on memory is lent (for tests). Returns what it was "
     "before."},
    {"trim_heap", trim_heap, METH_NOARGS,
     "trim_heap(): give the system the memory of results that have died."},
    {"heap_use", heap_use, METH_NOARGS,
     "heap_use() -> (bytes of results that live, bytes held for results)."},
    {"_force_slow_allocation", force_slow_allocation, METH_O,
     "_force_slow_allocation(slow): allocate through Python (for tests)."},
    {NULL, NULL, 0, NULL},
};

int ingot_program_register(PyObject *module) {
    if (ingot_allocate_init() < 0 || ingot_lending_register(module) < 0 ||
        ingot_lending_init() < 0 || ingot_program_calls_init() < 0 || ingot_grad_mode_init() < 0 ||
        PyModule_AddFunctions(module, methods) < 0)
        return -1;
    return PyModule_AddType(module, &IngotProgram_Type);
}
