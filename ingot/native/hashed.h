/* Dicts whose keys are not asked for their hashes, which are known. */
#ifndef INGOT_HASHED_H
#define INGOT_HASHED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds what fills them to the module. 0, or -1 with an exception set. */
int ingot_hashed_register(PyObject *module);

#endif
