/* Branches and loops that data decide: callables that run programs. */
#ifndef INGOT_CONTROL_H
#define INGOT_CONTROL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ingot_control_register(PyObject *module);

#endif
