/* Equality of plain constants that never runs the user's code: same type, same value, floats by
 * their bits. */
#ifndef INGOT_CONSTANTS_H
#define INGOT_CONSTANTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Imports torch for the types it knows. 0, or -1 with an exception set. */
int ingot_constants_init(void);

/* Agrees with same_constant in capture/facts.py. */
bool ingot_same_constant(PyObject *a, PyObject *b);

#endif
