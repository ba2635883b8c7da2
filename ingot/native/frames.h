/* Real frames of Python functions: begun in the middle, made into suspended generators, or replaced
 * as they start. */
#ifndef INGOT_FRAMES_H
#define INGOT_FRAMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds NULL, KNOWS_FRAMES, resume, suspended_generator, generator_state and the functions of the
 * frame hook to the module. 0, or -1 with an exception set. */
int ingot_frames_register(PyObject *module);

#endif
