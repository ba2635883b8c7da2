/* Memory of a tensor that dies, for one that is made. */
#ifndef INGOT_LENDING_H
#define INGOT_LENDING_H

#include "allocate.h"

/* Finds out how torch counts who holds a tensor and its memory; where that does not verify, nothing
   is lent. 0, or -1 with an exception set. */
int ingot_lending_init(void);

/* What recordings tell of the memory they keep; before `ingot_lending_init`. */
int ingot_lending_register(PyObject *module);

/* Bytes from which it pays to ask whether somebody else holds memory that might be lent. */
extern int64_t ingot_lent_from;

/* Whether a reference is the only one to a tensor of torch's own memory, and that to the memory. */
bool ingot_is_alone(PyObject *tensor);

/* Whether the memory of a storage is an allocation of torch's or of our heap's. */
bool ingot_is_torchs_memory(uintptr_t storage, const IngotDevice *device);

/* Whether a tensor, however many references Python has to it, is all that holds its memory. */
bool ingot_has_one_owner(PyObject *tensor, uintptr_t storage);

/* How many bytes into a storage its address of memory lies; 0 where that is not known. */
Py_ssize_t ingot_data_in_storage(void);

/* A tensor of this layout in the memory of `tensor`, of which the caller has a reference, if nobody
   has another, nor to the memory, but for a recording that lends it; if that is an allocation of
   torch's or of our heap's, and if it is of just this size. NULL without an exception where it is
   not. */
PyObject *ingot_lent(PyObject *tensor, const IngotLayout *layout);

#endif
