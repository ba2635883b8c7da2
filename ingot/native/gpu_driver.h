/* What is asked of a GPU's driver: one table of calls, which CUDA's and HIP's libraries fill. The
   library is found at run time, and nothing is linked against it. */
#ifndef INGOT_GPU_DRIVER_H
#define INGOT_GPU_DRIVER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct {
    int (*init)(unsigned flags);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*function_set)(void *function, int attribute, int value); /* NULL: nothing is to be set */
    int (*launch)(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                  unsigned threads_y, unsigned threads_z, unsigned shared, void *stream,
                  void **parameters, void **extra);
    int (*copy)(void *target, const void *source, size_t bytes, void *stream);
    int (*is_recording)(void *stream, int *status);
    int (*exchange_mode)(
        int *mode); /* of this thread, about what it may do while something is recorded */
    int (*error_text)(int error, const char **text);
    /* A device is made a thread's by its context, ... */
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_get)(void **context);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    /* ... or by its number. */
    int (*current_device)(int *device);
    int (*set_device)(int device);
} IngotGpuDriver;

extern IngotGpuDriver ingot_gpu_driver;

/* Finds the driver of the GPUs that torch was built for. 0, or -1 with an exception set. */
int ingot_gpu_find_driver(void);

/* Makes a device's context, where it has one, once for all. 0, or -1 with an exception set. */
int ingot_gpu_prepare(int device);

/* Makes a device that of this thread: 1 if it was not, 0 if it was, -1 with an exception set. Each
   call that returned 1 is to be ended, the last one first. */
int ingot_gpu_enter(int device);
void ingot_gpu_leave(void);

/* Sets an exception of what a call, of CUDA's name, returned; -1. */
int ingot_gpu_failed(int status, const char *what);

#endif
