/* Calls of ops whose autograd torch has in Python, without it. */
#ifndef INGOT_BELOW_AUTOGRAD_H
#define INGOT_BELOW_AUTOGRAD_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds the type to the module. 0, or -1 with an exception set. */
int ingot_below_autograd_register(PyObject *module);

#endif
