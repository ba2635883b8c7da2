/* Fresh tensors for a program's results, made as torch makes them, faster than through Python. */
#ifndef INGOT_ALLOCATE_H
#define INGOT_ALLOCATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Where memory is asked for: a torch.device, borrowed, and its type and index. */
typedef struct {
    PyObject *object;
    int8_t type, index;
} IngotDevice;

typedef struct {
    PyObject *dtype; /* a torch.dtype, borrowed */
    int number;      /* its ingot_dtype_number */
    int64_t itemsize;
    int64_t rank;
    const int64_t *sizes, *strides;
    const IngotDevice *device; /* NULL: the CPU */
} IngotLayout;

int ingot_allocate_init(void);

/* The bytes that a tensor of this layout spans. */
int64_t ingot_layout_bytes(const IngotLayout *layout);

/* A new tensor with uninitialized elements, resizable storage and no gradient; *data is its first
   element. Once it dies its memory is `held` for others, if it is enough of it on the CPU. NULL
   with an exception set when there is no memory. */
PyObject *ingot_allocate(const IngotLayout *layout, bool held, void **data);

/* A new reference to a tensor of this layout, of the same dtype, in the storage of `tensor` from
   the element `offset` on: neither a view to autograd nor with the version of the other. NULL where
   that is not to be had; without an exception where torch's C ABI does not do it. */
PyObject *ingot_window(PyObject *tensor, const IngotLayout *layout, int64_t offset);

/* Tests take the way through Python on purpose. */
void ingot_force_slow_allocation(bool slow);

#endif
