/* The type `Program`, and a call of one: a frame, the steps, the outputs. */
#include "heap.h"
#include "program.h"
#include "donation.h"
#include "grad_mode.h"
#include "lending.h"
#include "pages.h"
#include "program_parts.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

PyObject *ingot_program_output(Program *program, Frame *frame, const Output *output) {
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

static int make_outputs(Program *program, Frame *frame, PyObject **outputs) {
    for (int i = 0; i < program->output_count; i++)
        if ((outputs[i] = ingot_program_output(program, frame, &program->outputs[i])) == NULL)
            return -1;
    return 0;
}

bool ingot_program_enter(Program *program, Frame *frame, int *status) {
    int entered = 0;
    if (program->device.type == INGOT_CUDA) {
        entered = ingot_cuda_begin(program->device.index, &frame->stream);
        if (entered < 0 || ingot_program_note_recording(program, frame) < 0)
            *status = -1;
    }
    frame->elsewhere = entered == 1;
    return entered == 1;
}

static int run(PyObject *self, PyObject *const *inputs, Py_ssize_t n, PyObject **taken,
               PyObject **outputs) {
    Program *program = (Program *)self;
    if (n != program->input_count) {
        PyErr_Format(PyExc_TypeError, "a program of %d inputs was given %zd", program->input_count,
                     n);
        return -1;
    }
    Frame *frame = ingot_program_take_frame(program);
    if (frame == NULL)
        return -1;
    Py_INCREF(self); /* a library call may drop the last reference */
    memset(outputs, 0, (size_t)program->output_count * sizeof *outputs);
    ingot_left_traces = false;
    int grad_mode = program->calls_torch ? ingot_swap_grad_mode(0) : 0;
    int status = 0;
    const bool entered = ingot_program_enter(program, frame, &status);
    if (status == 0)
        ingot_program_name_memory(program, frame);
    if (status == 0)
        status = ingot_program_bind(program, frame, inputs, taken);
    if (status == 0)
        status = ingot_program_run_steps(program, frame, 0, program->step_count);
    /* before the outputs: autograd treats views by the mode that they were made in */
    if (grad_mode)
        ingot_swap_grad_mode(1);
    if (status == 0)
        status = make_outputs(program, frame, outputs);
    ingot_program_end_names(frame);
    if (entered)
        ingot_cuda_end();
    if (status < 0) {
        ingot_clear_references(outputs, program->output_count);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "an output of a program was never made");
    }
    /* Releasing tensors may run Python. */
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (program->donated_count)
        ingot_program_settle_donations(program, frame, status < 0);
    ingot_program_give_back_frame(program, frame);
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

/* -- the Python type --------------------------------------------------------------------------- */

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

/* The items of a list, which is empty then, as an array to be freed with its references; NULL with
 * an exception set. */
static PyObject **taken_from(PyObject *given, int *count) {
    if (!PyList_CheckExact(given)) {
        PyErr_Format(PyExc_TypeError, "a program consumes a list of its inputs, not %R",
                     (PyObject *)Py_TYPE(given));
        return NULL;
    }
    int n = *count = (int)PyList_GET_SIZE(given);
    PyObject **inputs = PyMem_Malloc(((size_t)n + 1) * sizeof *inputs);
    if (inputs == NULL)
        return (PyObject **)PyErr_NoMemory();
    for (int i = 0; i < n; i++)
        inputs[i] = Py_NewRef(PyList_GET_ITEM(given, i));
    if (PyList_SetSlice(given, 0, n, NULL) == 0)
        return inputs;
    ingot_clear_references(inputs, n);
    PyMem_Free(inputs);
    return NULL;
}

/* consume(inputs): as a call, and takes the inputs from the list, so that each may die with its
 * last use. */
static PyObject *program_consume(PyObject *self, PyObject *given) {
    int n;
    PyObject **inputs = taken_from(given, &n);
    PyObject *outputs = inputs ? PyTuple_New(ingot_program_output_count(self)) : NULL;
    if (outputs && ingot_program_consume(self, inputs, n, ((PyTupleObject *)outputs)->ob_item) < 0)
        Py_CLEAR(outputs);
    if (inputs != NULL)
        ingot_clear_references(inputs, n);
    PyMem_Free(inputs);
    return outputs;
}

static PyObject *program_begin(PyObject *self, PyObject *given) {
    int n;
    PyObject **inputs = taken_from(given, &n);
    PyObject *begun = inputs ? ingot_program_begin((Program *)self, inputs, n) : NULL;
    if (inputs != NULL)
        ingot_clear_references(inputs, n);
    PyMem_Free(inputs);
    return begun;
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
    Py_VISIT(program->kept_arguments);
    return 0;
}

static int program_clear(PyObject *self) {
    Program *program = (Program *)self;
    ingot_program_free_idle_frames(program);
    ingot_program_free_parts(program);
    PyMem_Free(program->nanoseconds);
    program->nanoseconds = NULL;
    program->step_count = program->output_count = program->symbol_count = 0;
    program->input_count = -1; /* nothing is left to run */
    program->names = NULL;
    Py_CLEAR(program->description);
    Py_CLEAR(program->kept_arguments);
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
    {"begin", program_begin, METH_O,
     "begin(inputs) -> Run: as `consume`, of which no step has run yet."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"description", T_OBJECT, offsetof(Program, description), READONLY,
     "What the program was made from."},
    {"layout_mismatches", T_PYSSIZET, offsetof(Program, layout_mismatches), READONLY,
     "How many results of library calls had another layout than predicted, and were copied."},
    {"kept_arguments", T_OBJECT, offsetof(Program, kept_arguments), READONLY,
     "None, or how often donated arguments stayed as they were, by (name, why)."},
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

static PyObject *slow_huge_page_from(PyObject *Py_UNUSED(module), PyObject *nanoseconds) {
    const int64_t wanted = PyLong_AsLongLong(nanoseconds);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromLongLong(ingot_set_slow_huge_page(wanted));
}

static PyObject *record_for_itself(PyObject *Py_UNUSED(module), PyObject *does) {
    ingot_records_for_itself = PyObject_IsTrue(does) == 1;
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
    {"_slow_huge_page_from", slow_huge_page_from, METH_O,
     "_slow_huge_page_from(nanoseconds): how long a huge page takes of which the next ones are not "
     "asked for (for tests). Returns what it was before."},
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
        ingot_lending_init() < 0 || ingot_donation_register(module) < 0 ||
        ingot_program_calls_init() < 0 || ingot_grad_mode_init() < 0 ||
        PyModule_AddFunctions(module, methods) < 0)
        return -1;
    if (PyModule_AddType(module, &IngotProgram_Type) < 0)
        return -1;
    return PyModule_AddType(module, &IngotRun_Type);
}
