/* Where tensors lie: what `ingot/runtime/cuda_graphs.py` asks of many at once. */
#ifndef INGOT_PLACES_H
#define INGOT_PLACES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ingot_places_register(PyObject *module);

#endif
