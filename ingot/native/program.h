/* Programs: compiled graphs, run as a flat list of steps. */
#ifndef INGOT_PROGRAM_H
#define INGOT_PROGRAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

extern PyTypeObject IngotProgram_Type;

int ingot_program_register(PyObject *module);

Py_ssize_t ingot_program_input_count(PyObject *program);
Py_ssize_t ingot_program_output_count(PyObject *program);

/* Runs the program on `n` borrowed inputs, which must be as its guards promise; they are held until
   it ends. On success (0) `outputs` receives output_count new references: tensors, and ints for
   sizes. On failure (-1) an exception is set and no reference is left in `outputs`. Needs the GIL,
   and lets other threads have it during long kernels. */
int ingot_program_run(PyObject *program, PyObject *const *inputs, Py_ssize_t n, PyObject **outputs);

/* Whether the program that this thread ran last wrote an input, or did what others see, before it
 * ended or failed. */
extern _Thread_local bool ingot_left_traces;

/* The same on inputs that it takes, so that each may die with its last use: NULL is in their places
   then, where it got that far. */
int ingot_program_consume(PyObject *program, PyObject **inputs, Py_ssize_t n, PyObject **outputs);

/* The program (borrowed) whose `consume` this is; NULL, with no exception set, where it is not
 * one's. */
PyObject *ingot_program_of_consume(PyObject *callable);

#endif
