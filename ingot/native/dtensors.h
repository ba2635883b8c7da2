/* What guards ask about DTensors, in each call and of each parameter: without calling Python. */
#ifndef INGOT_DTENSORS_H
#define INGOT_DTENSORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds the types and functions to the module. 0, or -1 with an exception set. */
int ingot_dtensors_register(PyObject *module);

#endif
