/* The heap (heap.h) as an allocator of torch's, so that tensors which lie in it are like any other:
   their storage may be resized, shared and handed on. */
#ifndef INGOT_TORCH_ALLOCATOR_H
#define INGOT_TORCH_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Looks at this torch, once; false where it is not as expected. */
bool ingot_torch_allocator_init(void);

/* A tensor on the CPU of so many bytes, with the dispatch keys of another: a handle as those of
   torch's C ABI. NULL, without an exception, where the heap has no memory. */
void *ingot_torch_allocate(size_t bytes, const int64_t *sizes, const int64_t *strides, int64_t rank,
                           int dtype, uint64_t keys);

#endif
