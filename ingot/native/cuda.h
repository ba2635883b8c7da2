/* Kernels of a device that torch calls "cuda": NVIDIA's, or AMD's in a torch that is built for
   them. Which driver loads and launches them is the affair of gpu_driver.h. */
#ifndef INGOT_CUDA_H
#define INGOT_CUDA_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* A loaded kernel: what a capsule of `load_cuda` holds. */
typedef struct {
    void *module, *function;
    int device;
} IngotCudaKernel;

/* The kernel in a capsule; NULL with an exception set if it is another object. */
const IngotCudaKernel *ingot_cuda_kernel(PyObject *capsule);

/* Makes the device that of this thread and finds torch's current stream on it. Each call that
   returned 1 is to be ended; 0 needs nothing, -1 has set an exception. */
int ingot_cuda_begin(int device, void **stream);
void ingot_cuda_end(void);

/* Whether what is queued on the stream is recorded, to be replayed later. -1 with an exception set.
 */
int ingot_cuda_is_recording(void *stream);

/* Copies to the device what may be overwritten once this returns, unless the copy is recorded: a
   replay reads it again. 0, or -1 with an exception set. */
int ingot_cuda_copy(void *target, const void *source, size_t bytes, void *stream);

/* Launches a kernel in `grid` blocks. 0, or -1 with an exception set. */
int ingot_cuda_launch(const IngotCudaKernel *kernel, int64_t grid, int threads, int shared,
                      void *stream, void **parameters);

int ingot_cuda_register(PyObject *module);

#endif
