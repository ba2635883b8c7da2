/* Memory for results and for what programs keep for their gradients: a heap of our own, which is
   not given back to the system when a result dies. A fresh page costs a fault and its zeroing,
   which is a tenth of a training step. */
#ifndef INGOT_HEAP_H
#define INGOT_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Below, malloc has warm memory at hand. Bytes. */
enum { INGOT_HEAP_FROM = 32 << 10 };

/* `bytes` of uninitialized memory, aligned to 64; NULL, without an exception, where there is none
   to be had. Any thread may call these, with the GIL or without. */
void *ingot_heap_take(size_t bytes);
void ingot_heap_give_back(void *memory); /* which may be NULL */

/* Gives the system what nobody uses. */
void ingot_heap_trim(void);

typedef struct {
    size_t used, held; /* bytes in use, and those that the system has not got back: all in use, and
                          what waits */
} IngotHeapUse;
IngotHeapUse ingot_heap_use(void);

/* Is told of each change of what is held. */
void ingot_heap_report_to(void (*report)(void *begin, int64_t change, size_t held));

#endif
