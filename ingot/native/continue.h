/* What a region that ends in a graph break gives: who goes on, and with what. */
#ifndef INGOT_CONTINUE_H
#define INGOT_CONTINUE_H

#include <Python.h>

typedef struct {
    PyObject_HEAD PyObject *target; /* the continuation: a callable */
    PyObject *state;                /* a tuple, its arguments */
} IngotContinue;

extern PyTypeObject IngotContinue_Type;

int ingot_continue_register(PyObject *module);

#endif
