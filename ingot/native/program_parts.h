/* What a program is made of; shared by the files that describe, call and run it. The format of the
   description is documented in ingot/runtime/description.py. All `int` fields named after sizes,
   strides, offsets or extents are positions in Frame.values. */
#ifndef INGOT_PROGRAM_PARTS_H
#define INGOT_PROGRAM_PARTS_H

#include "allocate.h"
#include "blas.h"
#include "cuda.h"
#include "expression.h"
#include "profiler.h"
#include "tensor.h"
#include "threads.h"

#include <stdbool.h>

enum { INGOT_MEMORY_ALIGNMENT = 64 }; /* of arenas and scratch memory */

/* SMALL: in the arena as long as all of these together are small, else memory of its own. */
typedef enum { INPUT, CONSTANT, ARENA, OUTPUT, LIBRARY, OWN, SMALL, PLACES } Place;

typedef struct {
    int rank, *sizes, *strides;
    PyObject *dtype;
    int dtype_number;
    int64_t itemsize;
    int on_host; /* in the CPU's memory, whatever the program's device */
} Geometry;

typedef struct {
    Place place;
    Geometry geometry;
    int position;   /* INPUT: among the inputs; CONSTANT: among the constants; ARENA, SMALL: its
                       offset in bytes */
    int needs_data; /* a kernel or a product reads or writes it ... */
    int in_kernel;  /* ... a kernel */
    int aligned;    /* INPUT only: kernels rely on its alignment */
} Buffer;

/* A window on a buffer, made with as_strided; in an arena or a constant it is made once per frame.
 */
typedef struct {
    int buffer, offset, reinterpreted; /* the last: the dtype is not the buffer's */
    int late;                          /* it depends on values that calls bind: never kept */
    Geometry geometry;
} View;

/* What a library call is given in one place. */
typedef struct Item {
    enum { ITEM_OBJECT, ITEM_INT, ITEM_BUFFER, ITEM_VIEW, ITEM_LIST, ITEM_TUPLE, ITEM_KINDS } kind;
    PyObject *object;
    int index, count;
    struct Item *items;
} Item;

/* A buffer, and an input that dies with the next step and may lend it its memory, or -1. */
typedef struct {
    int buffer, lender;
} AllocateStep;

typedef struct {
    IngotKernel function;
    int count, *buffers, extent, scratch; /* scratch: bytes per thread, or -1 */
    int *offsets; /* the bytes of each buffer before what the kernel is given, or NULL: none */
    int parts, *extents; /* see IngotLaunch; the buffers of one part follow those of another */
    double work;         /* nanoseconds of one point */
    int varying_work;    /* the position of its picoseconds instead, or -1 */
    int64_t unit;
    PyObject *errors;
} KernelStep;

/* An input whose memory the caller gives up: how errors call the argument. */
typedef struct {
    int buffer;
    PyObject *name;
} Donated;

/* What a call gives a value, which is known to lie in lower .. upper: the size of a result's
 * dimension, or, with dim -1, the result. */
typedef struct {
    int value, result, dim; /* value: among the values, a symbol */
    int64_t lower, upper;
} Binding;

/* A relation of values that must hold. */
typedef struct {
    enum { CHECK_EQUAL, CHECK_UNEQUAL, CHECK_LESS, CHECK_LESS_EQUAL, CHECK_KINDS } kind;
    int left, right;
    PyObject *message;
} Check;

typedef struct {
    PyObject *function, *keywords; /* keywords: tuple of names for the last items, or NULL */
    int count, tensors;            /* items, and tensors anywhere in them */
    Item *items;
    int target_count,
        *targets; /* buffers that the results become; -1 for a result that nobody uses */
    int written_count, *written; /* items that are written through out=: buffers or views */
    int stage; /* of the values that follow from the bindings; 0: there are none */
    int binding_count, check_count;
    Binding *bindings;
    Check *checks;
} CallStep;

/* A product of matrices, or of batches of them, on a CUDA device. The operands are views. */
typedef struct {
    IngotBlasType type;
    int left, right, out;
    PyObject *conditions; /* ((function, what it returns where the product may be taken), ...) */
    CallStep otherwise;   /* what torch computes where the library cannot */
} ProductStep;

typedef struct {
    const IngotCudaKernel
        *kernel; /* NULL: `loader`, which keeps it and returns all of this, has not been called */
    int threads, shared, hidden;
    PyObject *loader;
} LoadedKernel;

/* A value that must not be greater than a number. */
typedef struct {
    int value;
    int64_t most;
} Condition;

typedef struct {
    int grid; /* blocks, among the values */
    int condition_count;
    Condition *conditions;
    LoadedKernel loaded;
    int failed; /* it cannot be compiled, or not be loaded */
} LaunchForm;

/* The parameters of a CUDA kernel: buffers, sizes as 64-bit integers (or the low halves of them),
 * and pointers that are null. Of its forms the first is launched whose conditions hold, or the next
 * of these if that fails to be loaded. */
typedef struct {
    int count, *buffers, size_count, *sizes;
    int *offsets; /* the bytes of each buffer before what the kernel is given, or NULL: none */
    int form_count;
    LaunchForm *forms;
} LaunchStep;

/* The launch of a CUDA kernel over several sets of buffers: it is given a table of them, with
   `places` for the first block of each, of `points` points. */
typedef struct {
    int count, *buffers, *offsets, parts, *extents, places, points;
    LoadedKernel loaded;
} PartsStep;

typedef struct {
    int count, *buffers;
} BufferList;

typedef struct {
    enum {
        STEP_ALLOCATE,
        STEP_KERNEL,
        STEP_CALL,
        STEP_RELEASE,
        STEP_LAUNCH,
        STEP_PARTS,
        STEP_PRODUCT,
        STEP_KINDS
    } kind;
    union {
        AllocateStep allocate;
        KernelStep kernel;
        CallStep call;
        BufferList release;
        LaunchStep launch;
        PartsStep parts;
        ProductStep product;
    };
} Step;

typedef struct {
    enum { OUT_BUFFER, OUT_VIEW, OUT_ALONE, OUT_COPY, OUT_INT, OUT_KINDS } kind;
    int index;
} Output;

typedef struct {
    int input, what, dim; /* `what` is a SYMBOL_...: a value is an int among the inputs, what is
                             bound comes of calls */
} SymbolSource;

enum { SYMBOL_SIZE, SYMBOL_STRIDE, SYMBOL_VALUE, SYMBOL_BOUND };

/* What one running call needs. A call takes a frame from its program's free list, so that threads
   never share one; what depends on the sizes alone stays in it from call to call. */
typedef struct Frame {
    struct Frame *next;
    int prepared; /* values, arena and the pointers into it are right for `values[0 .. symbols)` */
    int64_t *values;    /* symbols, then expressions */
    void **data;        /* per buffer */
    PyObject **tensors; /* per buffer: what this call holds */
    PyObject **views;   /* per view: made for arena and constants, kept from call to call */
    PyObject **shapes;  /* per view: the tuples of sizes and strides, two each, kept too */
    PyObject *arena;    /* uint8 tensor, or NULL */
    int64_t arena_bytes;
    int joined;      /* the small buffers are in the arena */
    void **pointers; /* room for the widest kernel's arguments, for where they begin ... */
    void **begins;
    int64_t *extents;  /* ... and for the extents of the most parts */
    void *stream;      /* of a CUDA program: torch's current one ... */
    int elsewhere;     /* ... which is on another device than the thread's own */
    int consumes;      /* the caller has let go of the inputs */
    PyObject **donors; /* per donated input: the caller's tensor, whose memory was taken, or NULL */
    bool *overwritten; /* ... and whether it is another buffer's by now */
    PyObject **arguments; /* room for the widest call's arguments, one free in front */
    PyObject **given;     /* room for the tensors in them, borrowed */
    int given_count;
    char *scratch, *scratch_block;
    size_t scratch_bytes;
    PyObject *memory_name; /* torch's before this call, which gives names to what it allocates; else
                              NULL */
} Frame;

typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *weak_references;
    PyObject *description; /* owns every object that the parts below borrow */
    struct Block *blocks;  /* owns their memory */
    int symbol_count, expression_count, input_count, constant_count, buffer_count, view_count,
        step_count, output_count;
    int widest_kernel, most_parts, widest_call, most_tensors, calls_torch;
    SymbolSource *symbols;
    IngotExpression **expressions;
    int *stages; /* per expression: 0, or that of the call whose bindings it waits for */
    PyObject **constants;
    Buffer *buffers;
    View *views;
    Step *steps;
    Output *outputs;
    int arena_bytes;     /* position in values */
    int traces_from;     /* the first step that writes an input or has an effect; step_count if none
                            does */
    int joined_bytes;    /* the same with the small buffers */
    int64_t most_joined; /* the most bytes of an arena with these */
    int peak_bytes;      /* position in values of what a call takes at once; -1: much */
    Geometry bytes;      /* dtype of the arena */
    int frugal;          /* the arena lives as long as a call */
    unsigned long long lays_out; /* inputs unlike what is described, or with one of these keys, are
                                    copied; 0: not */
    int stays;                   /* it is never freed */
    IngotDevice device;
    uint64_t plain_keys; /* the dispatch keys of a plain tensor there; 0: not known yet */
    Frame *idle;
    Py_ssize_t layout_mismatches;
    int donated_count;
    Donated *donated;
    PyObject *kept_arguments; /* a dict: how often donated arguments stayed as they were, by (name,
                                 why) */
    PyObject *names;      /* a tuple: per step, what profilers call it, None where they do not see
                             it; NULL: no step is seen */
    int64_t *nanoseconds; /* per step, over the calls since profiling began; NULL while it is off */
} Program;

/* program_describe.c: fills a zeroed program from its description. 0, or -1 with an exception set.
 */
int ingot_program_describe(Program *program, PyObject *description);
void ingot_program_free_parts(Program *program);
/* Whether a buffer is a part of the frame's arena. */
static inline int ingot_in_arena(const Program *program, const Frame *frame, int buffer) {
    Place place = program->buffers[buffer].place;
    return place == ARENA || (place == SMALL && frame->joined);
}

/* Whether a call takes so much at once that it lies in the heap (heap.h); for less malloc has
 * enough at hand. */
static inline bool ingot_program_is_large(const Program *program, const Frame *frame) {
    static const int64_t HELD_FROM = 8 << 20;
    return program->peak_bytes < 0 || frame->values[program->peak_bytes] >= HELD_FROM;
}

static inline void ingot_clear_references(PyObject **array, int count) {
    for (int i = 0; i < count; i++)
        Py_CLEAR(array[i]);
}

/* Zeroed memory that lives as long as the program; NULL with MemoryError set. */
void *ingot_program_memory(Program *program, size_t count, size_t size);

/* Takes the kernel in a capsule, whose threads and memory have been read. 0, or -1 with an
 * exception set. */
int ingot_program_read_kernel(const Program *program, PyObject *capsule, LoadedKernel *loaded);

/* program_frame.c: an idle frame of the program's or a new one; NULL with an exception set. */
Frame *ingot_program_take_frame(Program *program);
/* Ends a call: everything it held is released, and the frame waits for the next. */
void ingot_program_give_back_frame(Program *program, Frame *frame);
void ingot_program_free_idle_frames(Program *program);
/* Makes a frame ready for its inputs. `taken`: NULL, or the inputs, references that are let go once
 * the frame holds its own. 0, or -1 with an exception set. */
int ingot_program_bind(Program *program, Frame *frame, PyObject *const *inputs, PyObject **taken);
/* Whether the memory of an input is the program's, to be written over once it has been read. */
bool ingot_program_may_overwrite(const Program *program, const Frame *frame, int buffer);
/* Notes that a donated input's memory is that of another buffer. */
void ingot_program_note_overwritten(const Program *program, Frame *frame, int buffer);
/* Ends the donations of a call: what was taken has no values for the caller any more, or goes back
 * to him where the call has `failed` before it was needed. */
void ingot_program_settle_donations(const Program *program, Frame *frame, bool failed);
/* Evaluates the expressions of a stage. */
int ingot_program_evaluate(const Program *program, Frame *frame, int stage);

/* program_steps.c: where torch records memory, has what the program allocates carry names, until
 * the second function is called. */
void ingot_program_name_memory(const Program *program, Frame *frame);
void ingot_program_end_names(Frame *frame);
/* Runs the steps from .. to - 1; 0, or -1 with an exception set. */
int ingot_program_run_steps(Program *program, Frame *frame, int from, int to);
/* Whether the frame's stream is being recorded: 1, 0, or -1 with an exception set. Lets the program
 * stay then, unless the recording holds it. */
int ingot_program_note_recording(Program *program, const Frame *frame);
/* Whether the user records CUDA graphs, or has: their replays write memory that torch hands out. */
bool ingot_program_is_near_recording(const Frame *frame);
/* This thread's recording holds its program, and what that made: see cuda_graphs.py. */
extern _Thread_local bool ingot_records_for_itself;

/* program.c: readies the device for steps of a frame. Whether it has to be left again; a status
   below 0 comes with an exception set. */
bool ingot_program_enter(Program *program, Frame *frame, int *status);
/* A new reference to an output; NULL, without an exception where it was never made. */
PyObject *ingot_program_output(Program *program, Frame *frame, const Output *output);
/* program_run.c: a call that goes on in parts. Takes the references of `inputs`. */
PyObject *ingot_program_begin(Program *program, PyObject **inputs, Py_ssize_t n);
extern PyTypeObject IngotRun_Type;

/* program_call.c: library calls and the tensors they are given. */
int ingot_program_calls_init(void);
int ingot_program_call(Program *program, Frame *frame, const CallStep *step);
/* A new reference to the view, which is one to autograd. */
PyObject *ingot_program_view(Program *program, Frame *frame, int view);
/* The same as a tensor that is none. */
PyObject *ingot_program_view_alone(Program *program, Frame *frame, int view);
PyObject *ingot_program_copied_view(Program *program, Frame *frame, int view);
/* Sizes and strides of a geometry under the frame's values, in `room` (2 * INGOT_MAX_RANK). */
IngotLayout ingot_program_layout(const Program *program, const Frame *frame,
                                 const Geometry *geometry, int64_t *room);

#endif
