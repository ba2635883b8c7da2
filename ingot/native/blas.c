#include "blas.h"

#include "tensor.h"

#include <dlfcn.h>

/* cublasOperation_t, cudaDataType_t, cublasComputeType_t, cublasGemmAlgo_t */
enum {
    AS_IT_IS = 0,
    TRANSPOSED = 1,
    R_32F = 0,
    R_16F = 2,
    R_16BF = 14,
    COMPUTE_32F = 68,
    DEFAULT_TENSOR_OP = 99
};

static void *(*current_handle)(void); /* of this thread, with torch's current stream */
static int (*product)(void *handle, int left_op, int right_op, int m, int n, int k,
                      const float *alpha, const void *left, int left_row, const void *right,
                      int right_row, const float *beta, void *out, int out_row);
static int (*products)(void *handle, int left_op, int right_op, int m, int n, int k,
                       const float *alpha, const void *left, int left_row, long long left_step,
                       const void *right, int right_row, long long right_step, const float *beta,
                       void *out, int out_row, long long out_step, int batch);
static int (*half_product)(void *handle, int left_op, int right_op, int m, int n, int k,
                           const void *alpha, const void *left, int left_type, int left_row,
                           const void *right, int right_type, int right_row, const void *beta,
                           void *out, int out_type, int out_row, int compute, int algorithm);
static int (*half_products)(void *handle, int left_op, int right_op, int m, int n, int k,
                            const void *alpha, const void *left, int left_type, int left_row,
                            long long left_step, const void *right, int right_type, int right_row,
                            long long right_step, const void *beta, void *out, int out_type,
                            int out_row, long long out_step, int batch, int compute, int algorithm);

static int find_library(void) {
    static const char *const files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
    static const struct {
        void *place;
        const char *name;
    } symbols[] = {{&product, "cublasSgemm_v2"},
                   {&products, "cublasSgemmStridedBatched"},
                   {&half_product, "cublasGemmEx"},
                   {&half_products, "cublasGemmStridedBatchedEx"}};
    static int found = -1;
    if (found >= 0)
        return found;
    void *library = NULL;
    for (int i = 0; library == NULL && i < (int)(sizeof files / sizeof *files); i++)
        library = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);
    found = library != NULL;
    for (int i = 0; found && i < (int)(sizeof symbols / sizeof *symbols); i++)
        found = (*(void **)symbols[i].place = dlsym(library, symbols[i].name)) != NULL;
    *(void **)&current_handle = ingot_torch_symbol("_ZN2at4cuda24getCurrentCUDABlasHandleEv");
    return found = found && current_handle;
}

/* How the library, which has columns where rows are here, takes matrices: the distance of their
   rows or columns, and whether it is that of columns. 0 where it cannot. */
static int leading(const IngotMatrices *matrices, int *distance, int *operation) {
    int64_t rows = matrices->rows, columns = matrices->columns;
    int64_t by_row = rows == 1 ? columns : matrices->row_stride,
            by_column = columns == 1 ? rows : matrices->column_stride;
    int row_major = (columns == 1 || matrices->column_stride == 1) && by_row >= columns;
    int column_major = (rows == 1 || matrices->row_stride == 1) && by_column >= rows;
    int64_t chosen = row_major ? by_row : by_column;
    *operation = row_major ? AS_IT_IS : TRANSPOSED;
    *distance = (int)chosen;
    return (row_major || column_major) && chosen <= INT32_MAX && rows <= INT32_MAX &&
           columns <= INT32_MAX;
}

int ingot_blas_product(IngotBlasType type, int64_t batch, const IngotMatrices *left,
                       const IngotMatrices *right, const IngotMatrices *out) {
    static const float one = 1, zero = 0;
    int left_row, left_op, right_row, right_op, out_row, out_op;
    if (batch < 1 || batch > INT32_MAX || out->rows < 1 || out->columns < 1 || left->columns < 1 ||
        !find_library() || !leading(left, &left_row, &left_op) ||
        !leading(right, &right_row, &right_op) || !leading(out, &out_row, &out_op) ||
        out_op != AS_IT_IS)
        return 0;
    void *handle = current_handle();
    int m = (int)out->columns, n = (int)out->rows, k = (int)left->columns, status;
    /* The transposed result is the product of the transposed operands in the other order. */
    if (type == INGOT_BLAS_FLOAT32)
        status = batch == 1
                     ? product(handle, right_op, left_op, m, n, k, &one, right->data, right_row,
                               left->data, left_row, &zero, (void *)out->data, out_row)
                     : products(handle, right_op, left_op, m, n, k, &one, right->data, right_row,
                                right->batch_stride, left->data, left_row, left->batch_stride,
                                &zero, (void *)out->data, out_row, out->batch_stride, (int)batch);
    else {
        int kind = type == INGOT_BLAS_FLOAT16 ? R_16F : R_16BF;
        status = batch == 1
                     ? half_product(handle, right_op, left_op, m, n, k, &one, right->data, kind,
                                    right_row, left->data, kind, left_row, &zero, (void *)out->data,
                                    kind, out_row, COMPUTE_32F, DEFAULT_TENSOR_OP)
                     : half_products(handle, right_op, left_op, m, n, k, &one, right->data, kind,
                                     right_row, right->batch_stride, left->data, kind, left_row,
                                     left->batch_stride, &zero, (void *)out->data, kind, out_row,
                                     out->batch_stride, (int)batch, COMPUTE_32F, DEFAULT_TENSOR_OP);
    }
    return status == 0;
}
