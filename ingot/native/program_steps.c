/* The steps of a program, run one after the other. */
#include "program_parts.h"

#include "grad_mode.h"
#include "lending.h"
#include "program.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

/* While a kernel takes longer than this, other threads may have the GIL. */
static const double RELEASE_GIL_NANOSECONDS = 50e3;

/* -- steps ------------------------------------------------------------------------------------- */

/* What a user records as a CUDA graph may be replayed when its program and what the program made
   are long gone: the program then stays, with its constants and tables. And memory of the
   recording's pool is no tensor's that is made later: a replay would write there. Whose memory it
   is torch does not tell, so that nothing is lent from then on. */
static bool users_record;
_Thread_local bool ingot_records_for_itself; /* see program_parts.h */

int ingot_program_note_recording(Program *program, const Frame *frame) {
    int recording = ingot_records_for_itself ? 0 : ingot_cuda_is_recording(frame->stream);
    if (recording > 0) {
        users_record = true;
        if (!program->stays)
            Py_INCREF(program);
        program->stays = 1;
    }
    return recording;
}

bool ingot_program_is_near_recording(const Frame *frame) {
    return users_record || ingot_cuda_is_recording(frame->stream) != 0;
}

/* A tensor in the memory of what a step lends it; NULL where that is not to be had. A recording
   would write where its pool has no memory. */
static PyObject *lent(Program *program, Frame *frame, const AllocateStep *step,
                      const IngotLayout *layout) {
    if (step->lender < 0 || !ingot_program_may_overwrite(program, frame, step->lender))
        return NULL;
    const bool is_donated = !frame->consumes; /* all that is asked here was asked before */
    if (!is_donated && ingot_layout_bytes(layout) < ingot_lent_from)
        return NULL;
    if (!is_donated && program->device.type == INGOT_CUDA && ingot_program_is_near_recording(frame))
        return NULL;
    PyObject *lender = frame->tensors[step->lender];
    PyObject *tensor = lender ? ingot_lent(lender, layout) : NULL;
    if (tensor != NULL) {
        frame->data[step->buffer] = frame->data[step->lender];
        ingot_program_note_overwritten(program, frame, step->lender);
    }
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
        tensor = ingot_allocate(&layout, ingot_program_is_large(program, frame),
                                &frame->data[step->allocate.buffer]);
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
    if ((frame->scratch_block = PyMem_RawMalloc(bytes + INGOT_MEMORY_ALIGNMENT)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    frame->scratch = (char *)(((uintptr_t)frame->scratch_block + INGOT_MEMORY_ALIGNMENT - 1) &
                              ~(uintptr_t)(INGOT_MEMORY_ALIGNMENT - 1));
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
    scratch =
        (scratch + INGOT_MEMORY_ALIGNMENT - 1) / INGOT_MEMORY_ALIGNMENT * INGOT_MEMORY_ALIGNMENT;
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

_Thread_local bool ingot_left_traces;

static int fail(const Program *program, const Step *step) {
    ingot_left_traces = step - program->steps >= program->traces_from;
    return -1;
}

static int run_steps(Program *program, Frame *frame, int from, int to) {
    for (const Step *step = program->steps + from, *end = program->steps + to; step < end; step++)
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
static int run_steps_profiled(Program *program, Frame *frame, int from, int to) {
    int64_t start = now();
    for (int i = from; i < to; i++) {
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

/* As `run_steps`, and each step with a name is an event of whoever looks. */
static int run_steps_seen(Program *program, Frame *frame, int from, int to) {
    PyObject *names = Py_NewRef(program->names);
    int status = 0;
    for (int i = from; i < to; i++) {
        const Step *step = &program->steps[i];
        IngotEvent event;
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (name != Py_None)
            ingot_event_begin(&event, name);
        status = RUN[step->kind](program, frame, step);
        if (name != Py_None)
            ingot_event_end(&event);
        if (status < 0) {
            status = fail(program, step);
            break;
        }
    }
    Py_DECREF(names);
    if (status == 0)
        ingot_left_traces = program->traces_from < program->step_count;
    return status;
}

/* What memory is called that a step asks for: the step that needs it comes behind. */
static PyObject *name_of_memory(const Program *program, int step) {
    while (step < program->step_count - 1 && program->steps[step].kind == STEP_ALLOCATE)
        step++;
    return step < program->step_count ? PyTuple_GET_ITEM(program->names, step) : Py_None;
}

void ingot_program_name_memory(const Program *program, Frame *frame) {
    if (program->names == NULL || program->device.type != INGOT_CUDA || !ingot_memory_is_recorded())
        return;
    frame->memory_name = ingot_memory_name_before();
    PyObject *first = name_of_memory(program, 0);
    if (frame->memory_name && first != Py_None) /* for the arena */
        ingot_memory_name(first);
}

void ingot_program_end_names(Frame *frame) {
    if (frame->memory_name)
        ingot_memory_name(frame->memory_name);
    Py_CLEAR(frame->memory_name);
}

/* As `run_steps`, and memory is called by the step that needs it. */
static int run_steps_named(Program *program, Frame *frame, int from, int to) {
    PyObject *names = Py_NewRef(program->names);
    int status = 0;
    for (int i = from; status == 0 && i < to; i++) {
        PyObject *name = name_of_memory(program, i);
        if (name != Py_None && program->steps[i].kind != STEP_RELEASE)
            ingot_memory_name(name);
        status = RUN[program->steps[i].kind](program, frame, &program->steps[i]);
        if (status < 0)
            fail(program, &program->steps[i]);
    }
    Py_DECREF(names);
    if (status == 0)
        ingot_left_traces = program->traces_from < program->step_count;
    return status;
}

int ingot_program_run_steps(Program *program, Frame *frame, int from, int to) {
    if (frame->memory_name)
        return run_steps_named(program, frame, from, to);
    if (program->nanoseconds)
        return run_steps_profiled(program, frame, from, to);
    if (program->names && ingot_is_profiled())
        return run_steps_seen(program, frame, from, to);
    return run_steps(program, frame, from, to);
}
