/* The compiled callable: binds arguments, finds the entry whose facts hold, runs its target. */
#ifndef INGOT_DISPATCH_H
#define INGOT_DISPATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds Dispatcher and Entry to the module. 0, or -1 with an exception set. */
int ingot_dispatch_register(PyObject *module);

#endif
