/* Runs a shared library that ingot.export made, for tests: no Python and no torch is in this
 * process.
 *
 * run_library LIBRARY INPUTS OUTPUTS THREADS [WEIGHTS]
 *
 * INPUTS has calls: the number of inputs and of outputs (int32), then the tensors; OUTPUTS gets the
 * status of each (int32), and its tensors or, after the length (int32), the reason. WEIGHTS has
 * names (each after its length) and tensors. A tensor is its dtype (4 bytes of DLPack), its rank
 * (int32), sizes and strides (int64), and the bytes from its first to its last element, after their
 * number (int64). */
#include "ingot_artifact.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16

typedef struct {
    ingot_model *(*model_new)(void);
    void (*model_delete)(ingot_model *);
    const char *(*error)(const ingot_model *);
    const char *(*why_not)(void);
    int32_t (*set_weight)(ingot_model *, const char *, const DLTensor *);
    void (*set_threads)(ingot_model *, ingot_parallel_for, void *, int32_t);
    int32_t (*run)(ingot_model *, int32_t, const DLTensor *const *, int32_t, DLManagedTensor **,
                   int32_t);
} Library;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(2);
}

static void *find(void *handle, const char *name) {
    void *function = dlsym(handle, name);
    if (function == NULL)
        fail(name, "not in the library");
    return function;
}

static int get(FILE *file, void *to, size_t bytes) { return fread(to, 1, bytes, file) == bytes; }

static void must_get(FILE *file, void *to, size_t bytes) {
    if (!get(file, to, bytes))
        fail("input", "ends too early");
}

static DLTensor *read_tensor(FILE *file) {
    DLTensor *tensor = calloc(1, sizeof(DLTensor));
    int64_t bytes;
    tensor->device.device_type = kDLCPU;
    must_get(file, &tensor->dtype, 4);
    must_get(file, &tensor->ndim, 4);
    tensor->shape = calloc(2 * (size_t)tensor->ndim + 1, 8);
    tensor->strides = tensor->shape + tensor->ndim;
    must_get(file, tensor->shape, 16 * (size_t)tensor->ndim);
    must_get(file, &bytes, 8);
    /* a byte offset is part of DLPack: half of the tensors have one */
    tensor->byte_offset = tensor->ndim % 2 ? 64 : 0;
    tensor->data = malloc((size_t)bytes + 64);
    must_get(file, (char *)tensor->data + tensor->byte_offset, (size_t)bytes);
    return tensor;
}

static void free_tensor(DLTensor *tensor) {
    free(tensor->data);
    free(tensor->shape);
    free(tensor);
}

static void write_tensor(FILE *file, const DLTensor *tensor) {
    int64_t last = 0, some = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        last += (tensor->shape[d] - 1) * tensor->strides[d];
        some &= tensor->shape[d] > 0;
    }
    int64_t bytes = some ? (last + 1) * (tensor->dtype.bits / 8) : 0;
    fwrite(&tensor->dtype, 4, 1, file);
    fwrite(&tensor->ndim, 4, 1, file);
    fwrite(tensor->shape, 8, (size_t)tensor->ndim, file);
    fwrite(tensor->strides, 8, (size_t)tensor->ndim, file);
    fwrite(&bytes, 8, 1, file);
    fwrite((char *)tensor->data + tensor->byte_offset, 1, (size_t)bytes, file);
}

/* -- threads ------------------------------------------------------------------------------------
 */

static int32_t workers = 1;

typedef struct {
    ingot_body body;
    void *task;
    int64_t count;
    int32_t number;
} Share;

static void *run_share(void *data) {
    Share *share = data;
    int64_t begin = share->count * share->number / workers,
            end = share->count * (share->number + 1) / workers, half = (begin + end) / 2;
    share->body(share->task, begin, half, share->number); /* a worker may have several pieces */
    share->body(share->task, half, end, share->number);
    return NULL;
}

static void parallel_for(void *context, ingot_body body, void *task, int64_t count) {
    pthread_t threads[MOST];
    Share shares[MOST];
    ++*(int *)context;
    for (int32_t k = 0; k < workers; k++) {
        shares[k] = (Share){body, task, count, k};
        pthread_create(&threads[k], NULL, run_share, &shares[k]);
    }
    for (int32_t k = 0; k < workers; k++)
        pthread_join(threads[k], NULL);
}

/* -- calls --------------------------------------------------------------------------------------
 */

static DLTensor *weights[MOST]; /* which the model uses */
static int weight_count;

static void set_weights(const Library *library, ingot_model *model, const char *path) {
    FILE *file = fopen(path, "rb");
    int32_t length;
    if (file == NULL)
        fail(path, "cannot be read");
    while (get(file, &length, 4)) {
        char name[256] = {0};
        must_get(file, name, (size_t)length);
        weights[weight_count++] = read_tensor(file);
        if (library->set_weight(model, name, weights[weight_count - 1]) != INGOT_OK)
            fail(name, library->error(model));
    }
    fclose(file);
}

static void run_call(const Library *library, ingot_model *model, FILE *in, FILE *out,
                     int32_t input_count) {
    int32_t output_count;
    DLTensor *inputs[MOST];
    DLManagedTensor *outputs[MOST] = {0};
    must_get(in, &output_count, 4);
    for (int32_t k = 0; k < input_count; k++)
        inputs[k] = read_tensor(in);
    if (input_count > 1 && getenv("SAME_MEMORY") != NULL) {
        free(inputs[1]->data);
        inputs[1]->data = inputs[0]->data;
    }
    int32_t status = library->run(model, -1, (const DLTensor *const *)inputs, input_count, outputs,
                                  output_count);
    fwrite(&status, 4, 1, out);
    if (status != INGOT_OK) {
        const char *reason = library->error(model);
        int32_t length = (int32_t)strlen(reason);
        fwrite(&length, 4, 1, out);
        fwrite(reason, 1, (size_t)length, out);
    } else
        for (int32_t k = 0; k < output_count; k++) {
            write_tensor(out, &outputs[k]->dl_tensor);
            outputs[k]->deleter(outputs[k]);
        }
    for (int32_t k = 0; k < input_count; k++)
        if (status == INGOT_OK)
            write_tensor(out, inputs[k]); /* which the call may have written */
    for (int32_t k = input_count - 1; k >= 0; k--) {
        if (k > 0 && inputs[k]->data == inputs[0]->data)
            inputs[k]->data = NULL;
        free_tensor(inputs[k]);
    }
}

int main(int argc, char **argv) {
    if (argc < 5)
        fail("run_library", "LIBRARY INPUTS OUTPUTS THREADS [WEIGHTS]");
    void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        fail(argv[1], dlerror());
    int32_t (*abi)(void) = find(handle, "ingot_abi");
    if (abi() != INGOT_ARTIFACT_ABI)
        fail(argv[1], "another ABI");
    Library library = {
        find(handle, "ingot_model_new"),        find(handle, "ingot_model_delete"),
        find(handle, "ingot_model_error"),      find(handle, "ingot_why_not"),
        find(handle, "ingot_model_set_weight"), find(handle, "ingot_model_set_threads"),
        find(handle, "ingot_model_run"),
    };
    const char *(*description)(void) = find(handle, "ingot_description");
    puts(description());
    if (library.why_not() != NULL)
        fail(argv[1], library.why_not());
    ingot_model *model = library.model_new();
    int parallel_launches = 0;
    workers = atoi(argv[4]);
    library.set_threads(model, parallel_for, &parallel_launches, workers);
    if (argc > 5)
        set_weights(&library, model, argv[5]);
    FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
    if (in == NULL || out == NULL)
        fail("files", "cannot be opened");
    int32_t input_count;
    while (get(in, &input_count, 4))
        run_call(&library, model, in, out, input_count);
    fclose(in);
    fclose(out);
    library.model_delete(model);
    while (weight_count > 0)
        free_tensor(weights[--weight_count]);
    printf("%d parallel launches\n", parallel_launches);
    return 0;
}
