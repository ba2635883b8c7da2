/* Compilation runs alone in the process, and no signal's handler runs in the middle of it. */
#ifndef INGOT_SIGNALS_H
#define INGOT_SIGNALS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ingot_signals_register(PyObject *module);

#endif
