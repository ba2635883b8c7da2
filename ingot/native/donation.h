/* Arguments that a caller gives up: a program takes their memory, and the tensors that had it have
   none from then on. */
#ifndef INGOT_DONATION_H
#define INGOT_DONATION_H

#include "allocate.h"

/* A new tensor that alone has the memory of `tensor`, which has none then; `dtype` and `device` are
   its own. NULL where it stays as it is: with an exception, or with the reason in `why`. */
PyObject *ingot_donation_take(PyObject *tensor, PyObject *dtype, const IngotDevice *device,
                              const char **why);

/* Undoes that; nothing has been written there. */
void ingot_donation_return(PyObject *tensor, PyObject *taken);

/* Has every use of a tensor whose memory was taken raise an error. `what` says which argument it
   was. 0, or -1 with an exception set. */
int ingot_donation_declare(PyObject *tensor, PyObject *what);

/* 0, or -1 with an exception set. */
int ingot_donation_register(PyObject *module);

#endif
