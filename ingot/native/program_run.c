/* The type `Run`: a call of a program that stops where the caller says, and goes on later. */
#include "grad_mode.h"
#include "program.h"
#include "program_parts.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD Program *program;
    Frame *frame; /* NULL while a part runs, and once it has ended */
    int next;     /* the first step that has not run */
} Run;

/* Gives a frame back; releasing tensors may run Python. */
static void end(Program *program, Frame *frame) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    ingot_program_give_back_frame(program, frame);
    PyErr_Restore(type, value, traceback);
}

PyObject *ingot_program_begin(Program *program, PyObject **inputs, Py_ssize_t n) {
    if (n != program->input_count)
        return PyErr_Format(PyExc_TypeError, "a program of %d inputs was given %zd",
                            program->input_count, n);
    Run *run = PyObject_New(Run, &IngotRun_Type);
    if (run == NULL)
        return NULL;
    run->program = (Program *)Py_NewRef((PyObject *)program);
    run->next = 0;
    if ((run->frame = ingot_program_take_frame(program)) == NULL) {
        Py_DECREF(run);
        return NULL;
    }
    int grad_mode = program->calls_torch ? ingot_swap_grad_mode(0) : 0, status = 0;
    const bool entered = ingot_program_enter(program, run->frame, &status);
    if (status == 0)
        status = ingot_program_bind(program, run->frame, inputs, inputs);
    if (grad_mode)
        ingot_swap_grad_mode(1);
    if (entered)
        ingot_cuda_end();
    if (status < 0)
        Py_CLEAR(run);
    return (PyObject *)run;
}

/* The buffer that an output shows, or -1. */
static int shown(const Program *program, const Output *output) {
    return output->kind == OUT_BUFFER ? output->index
           : output->kind == OUT_INT  ? -1
                                      : program->views[output->index].buffer;
}

/* The outputs at these positions. */
static PyObject *outputs_of(Program *program, Frame *frame, PyObject *positions) {
    PyObject *outputs = PyTuple_New(PyTuple_GET_SIZE(positions));
    for (Py_ssize_t i = 0; outputs != NULL && i < PyTuple_GET_SIZE(positions); i++) {
        long position = PyLong_AsLong(PyTuple_GET_ITEM(positions, i));
        PyObject *output = NULL;
        if (position >= 0 && position < program->output_count)
            output = ingot_program_output(program, frame, &program->outputs[position]);
        else if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "a program has no output %ld", position);
        if (output == NULL)
            Py_CLEAR(outputs);
        else
            PyTuple_SET_ITEM(outputs, i, output);
    }
    if (outputs == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "an output of a program was never made");
    return outputs;
}

/* Lets go of what was handed out, so that its new owner is the only one. */
static void let_go(const Program *program, Frame *frame, PyObject *positions) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); i++) {
        long position = PyLong_AsLong(PyTuple_GET_ITEM(positions, i));
        int buffer = shown(program, &program->outputs[position]);
        if (buffer >= 0 && program->buffers[buffer].place != CONSTANT)
            Py_CLEAR(frame->tensors[buffer]);
    }
}

/* advance(step, positions): runs the steps before `step`, and hands out these outputs, which no
 * later step may touch. */
static PyObject *run_advance(PyObject *self, PyObject *args) {
    Run *run = (Run *)self;
    PyObject *positions;
    int to;
    if (!PyArg_ParseTuple(args, "iO!:advance", &to, &PyTuple_Type, &positions))
        return NULL;
    Program *program = run->program;
    if (run->frame == NULL || to < run->next || to > program->step_count)
        return PyErr_Format(PyExc_ValueError, "a run cannot go on to step %d", to);
    Frame *frame = run->frame;
    run->frame = NULL; /* nobody else goes on meanwhile */
    Py_INCREF(self);
    int grad_mode = program->calls_torch ? ingot_swap_grad_mode(0) : 0, status = 0;
    const bool entered = ingot_program_enter(program, frame, &status);
    if (status == 0)
        status = ingot_program_run_steps(program, frame, run->next, to);
    /* before the outputs: autograd treats views by the mode that they were made in */
    if (grad_mode)
        ingot_swap_grad_mode(1);
    PyObject *outputs = status == 0 ? outputs_of(program, frame, positions) : NULL;
    if (entered)
        ingot_cuda_end();
    run->next = to;
    if (outputs != NULL && to < program->step_count) {
        let_go(program, frame, positions);
        run->frame = frame;
    } else
        end(program, frame);
    Py_DECREF(self);
    return outputs;
}

static void run_dealloc(PyObject *self) {
    Run *run = (Run *)self;
    if (run->frame != NULL)
        end(run->program, run->frame);
    Py_DECREF(run->program);
    PyObject_Free(self);
}

static PyMethodDef run_methods[] = {
    {"advance", run_advance, METH_VARARGS,
     "advance(step, positions): runs the steps before `step`, and returns the outputs at these "
     "positions, which no later step may touch."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef run_members[] = {
    {"next", T_INT, offsetof(Run, next), READONLY, "The first step that has not run."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject IngotRun_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Run",
    .tp_doc = "A call of a program that goes on in parts: see Program.begin.",
    .tp_basicsize = sizeof(Run),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = run_dealloc,
    .tp_methods = run_methods,
    .tp_members = run_members,
};
