/* Floats as tensors, for graphs that have a number as an input. */
#ifndef INGOT_NUMBERS_H
#define INGOT_NUMBERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds what makes them to the module. 0, or -1 with an exception set. */
int ingot_numbers_register(PyObject *module);

#endif
