/* The usual path of a call that records gradients, and of its backward: what
   `ingot.runtime.training` does, without Python frames. Whatever is unusual is left to that. */
#ifndef INGOT_RECORDER_H
#define INGOT_RECORDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ingot_recorder_register(PyObject *module);

#endif
