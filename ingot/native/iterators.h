/* Iterators of CPython's that stand in the middle of a sequence. */
#ifndef INGOT_ITERATORS_H
#define INGOT_ITERATORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ingot_iterators_register(PyObject *module);

#endif
