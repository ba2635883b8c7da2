/* Locks of the module threading, taken and left in C, where no handler of a signal runs between. */
#ifndef INGOT_LIBRARY_LOCK_H
#define INGOT_LIBRARY_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ingot_library_lock_register(PyObject *module);

/* Waits for a lock. 0, or -1 with what a signal's handler raised, which ends the wait. */
int ingot_lock_take(PyObject *lock);
/* Keeps the exception that is set. */
void ingot_lock_let_go(PyObject *lock);

#endif
