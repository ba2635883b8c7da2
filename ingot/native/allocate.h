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

/* Memory of earlier results of one place in a program, to be used again once nobody else holds the storage. Fresh
   memory costs a page fault for every page touched: for large results that is most of a kernel's time. Zero-initialize
   before the first use. */
typedef struct {
    struct IngotSpare {
        PyObject *tensor; /* holds the storage; NULL in an empty spare */
        uintptr_t storage;
        void *data;
        int64_t bytes;
    } spares[2]; /* two, for `y = f(x)` in a loop holds the last result while the next is made */
} IngotPool;

int ingot_allocate_init(void);

/* The bytes that a tensor of this layout spans. */
int64_t ingot_layout_bytes(const IngotLayout *layout);

/* A new tensor with uninitialized elements, resizable storage and no gradient; *data is its first element. `pool` may
   be NULL; on other devices than the CPU it must be, for they have an allocator that keeps memory warm. NULL with an
   exception set when there is no memory. */
PyObject *ingot_allocate(const IngotLayout *layout, IngotPool *pool, void **data);

/* A new reference to a tensor of this layout, of the same dtype, in the storage of `tensor` from the element `offset`
   on: neither a view to autograd nor with the version of the other. NULL where that is not to be had; without an
   exception where torch's C ABI does not do it. */
PyObject *ingot_window(PyObject *tensor, const IngotLayout *layout, int64_t offset);

void ingot_pool_clear(IngotPool *pool);

/* Tests take the way through Python on purpose. */
void ingot_force_slow_allocation(bool slow);

#endif
