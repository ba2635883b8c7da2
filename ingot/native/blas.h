/* Matrix products on a CUDA device by the cuBLAS that torch has loaded, with torch's own handle,
   which says the stream, the workspace and the precision: what torch calls in the end, without the
   dispatch that takes the host longer than the product takes the device. */
#ifndef INGOT_BLAS_H
#define INGOT_BLAS_H

#include <stdint.h>

/* Matrices one after the other, strided in elements. */
typedef struct {
    const void *data;
    int64_t rows, columns, row_stride, column_stride, batch_stride;
} IngotMatrices;

typedef enum {
    INGOT_BLAS_FLOAT32,
    INGOT_BLAS_FLOAT16,
    INGOT_BLAS_BFLOAT16,
    INGOT_BLAS_TYPES
} IngotBlasType;

/* out = left @ right, for each of `batch`. 1 if it was queued, 0 if torch is to do it: without
   cuBLAS, of nothing, of another layout than the library takes, or where it refuses. Needs the
   device to be current, and the GIL. */
int ingot_blas_product(IngotBlasType type, int64_t batch, const IngotMatrices *left,
                       const IngotMatrices *right, const IngotMatrices *out);

#endif
