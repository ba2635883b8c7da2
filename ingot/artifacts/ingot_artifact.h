/* A program that ingot.export compiled into a shared library: load it with dlopen, or link it.
 *
 * Tensors go in and come out as DLPack's structures. The library needs no Python, no torch and no
 * Ingot. Functions and structures of this header stay as they are for as long as
 * INGOT_ARTIFACT_ABI does; a later one may add functions.
 *
 * One model is used by one thread at a time. Models of one library are independent, and share the
 * memory of weights that no call writes.
 */
#ifndef INGOT_ARTIFACT_H
#define INGOT_ARTIFACT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif

/* What is used of DLPack, where its own header is not there. */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
typedef enum { kDLCPU = 1 } DLDeviceType;
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;
typedef enum {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLComplex = 5,
    kDLBool = 6
} DLDataTypeCode;
typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row-major without gaps */
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define INGOT_ARTIFACT_ABI 1

/* What a call gives. After anything but INGOT_OK, ingot_model_error has the reason, and no output
 * was made. */
enum {
    INGOT_OK = 0,
    INGOT_WRONG_ARGUMENTS = 1, /* a fact of an argument differs: nothing has been run */
    INGOT_NO_MEMORY = 2,
    INGOT_NO_WEIGHTS = 3, /* ingot_model_set_weight was not called for each of them */
    INGOT_WRONG_DATA = 4  /* what a tensor holds is not allowed, such as an index out of range */
};

typedef struct ingot_model ingot_model;

/* INGOT_ARTIFACT_ABI of the library. */
int32_t ingot_abi(void);

/* JSON: the entries with the names, dtypes and sizes of their inputs and the number of their
 * outputs, and the names of the weights. */
const char *ingot_description(void);

/* Why this processor cannot run the library; NULL if it can. */
const char *ingot_why_not(void);

/* A new model, with state of its own; NULL without memory, or where ingot_why_not says so. */
ingot_model *ingot_model_new(void);
void ingot_model_delete(ingot_model *model);

/* The reason for what the last call gave. It lives as long as the library. */
const char *ingot_model_error(const ingot_model *model);

/* Uses a tensor for the weight of this name; its dtype, sizes and strides must be as exported. The
 * memory stays the caller's, and must live as long as the model. State that calls write is
 * copied. */
int32_t ingot_model_set_weight(ingot_model *model, const char *name, const DLTensor *tensor);

/* Runs body(task, begin, end, worker) for ranges that cover 0 to count, each once. Calls at the
 * same time have different workers, from 0 to workers - 1. It returns when all have. */
typedef void (*ingot_body)(void *task, int64_t begin, int64_t end, int32_t worker);
typedef void (*ingot_parallel_for)(void *context, ingot_body body, void *task, int64_t count);

/* Has kernels that are long enough run on the caller's threads. NULL: on none but the one that
 * calls, as at first. */
void ingot_model_set_threads(ingot_model *model, ingot_parallel_for parallel_for, void *context,
                             int32_t workers);

/* Runs an entry, by its number, or the first whose facts hold, for -1.
 *
 * `inputs` are the tensors of the arguments in the order of ingot_description; an int that varies
 * is an int64 tensor of rank 0. `outputs` gets the tensors and ints of the result in their order,
 * each in memory of its own; the caller calls the deleter of each. */
int32_t ingot_model_run(ingot_model *model, int32_t entry, const DLTensor *const *inputs,
                        int32_t input_count, DLManagedTensor **outputs, int32_t output_count);

#ifdef __cplusplus
}
#endif

#endif
