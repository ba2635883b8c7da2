#include "cuda.h"

#include "gpu_driver.h"
#include "tensor.h"

enum {
    DYNAMIC_SHARED_BYTES = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    RELAXED = 2               /* CU_STREAM_CAPTURE_MODE_RELAXED, and HIP's */
};
static const int ALWAYS_SHARED = 48
                                 << 10; /* bytes that a block of CUDA's may have without asking */
static const char NAME[] = "ingot.cuda.kernel";

static int32_t (*current_stream)(int32_t device, void **stream); /* torch's C ABI */
static PyObject *raw_stream; /* the same through Python, where that is missing */

static int find_stream(void) {
    if (current_stream || raw_stream)
        return 0;
    *(void **)&current_stream = ingot_torch_symbol("aoti_torch_get_current_cuda_stream");
    if (current_stream)
        return 0;
    raw_stream = ingot_torch_private("cuda_get_current_raw_stream");
    return raw_stream ? 0 : -1;
}

static int stream_of(int device, void **stream) {
    if (current_stream && current_stream(device, stream) == 0)
        return 0;
    PyObject *address = raw_stream ? PyObject_CallFunction(raw_stream, "i", device) : NULL;
    if (address == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "torch has no current CUDA stream");
        return -1;
    }
    *stream = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

/* Finds what is called here, and the device's context. */
static int prepare(int device) {
    return ingot_gpu_prepare(device) < 0 || find_stream() < 0 ? -1 : 0;
}

int ingot_cuda_begin(int device, void **stream) {
    if (prepare(device) < 0) /* nothing was loaded for a program that only calls libraries */
        return -1;
    int entered = ingot_gpu_enter(device);
    if (entered >= 0 && stream_of(device, stream) < 0) {
        if (entered)
            ingot_cuda_end();
        return -1;
    }
    return entered;
}

void ingot_cuda_end(void) { ingot_gpu_leave(); }

int ingot_cuda_launch(const IngotCudaKernel *kernel, int64_t grid, int threads, int shared,
                      void *stream, void **parameters) {
    if (grid > INT32_MAX) {
        PyErr_Format(PyExc_RuntimeError, "%lld blocks are more than a launch may have",
                     (long long)grid);
        return -1;
    }
    int status = ingot_gpu_driver.launch(kernel->function, (unsigned)grid, 1, 1, (unsigned)threads,
                                         1, 1, (unsigned)shared, stream, parameters, NULL);
    return status ? ingot_gpu_failed(status, "cuLaunchKernel") : 0;
}

int ingot_cuda_is_recording(void *stream) {
    int recording = 0, status = ingot_gpu_driver.is_recording(stream, &recording);
    return status ? ingot_gpu_failed(status, "cuStreamIsCapturing") : recording != 0;
}

int ingot_cuda_copy(void *target, const void *source, size_t bytes, void *stream) {
    int status = ingot_gpu_driver.copy(target, source, bytes, stream);
    return status ? ingot_gpu_failed(status, "cuMemcpyHtoDAsync") : 0;
}

/* -- loading ----------------------------------------------------------------------------------- */

const IngotCudaKernel *ingot_cuda_kernel(PyObject *capsule) {
    return PyCapsule_GetPointer(capsule, NAME);
}

/* Lets this thread do what is no part of a recording while it records; returns what brings back the
   mode before. Code is loaded and unloaded so: a user may meet sizes that need another kernel while
   he records. */
static int relax(void) {
    int mode = RELAXED;
    return ingot_gpu_driver.exchange_mode(&mode) ? RELAXED : mode;
}

static void restore(int mode) {
    if (mode != RELAXED)
        ingot_gpu_driver.exchange_mode(&mode);
}

static void unload(PyObject *capsule) {
    IngotCudaKernel *kernel = PyCapsule_GetPointer(capsule, NAME);
    if (kernel == NULL) {
        PyErr_Clear();
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    /* While the process ends, the driver may be gone: then there is nothing to unload. */
    int entered = ingot_gpu_enter(kernel->device);
    if (entered >= 0) {
        int mode = relax();
        ingot_gpu_driver.module_unload(kernel->module);
        restore(mode);
    }
    if (entered == 1)
        ingot_cuda_end();
    PyMem_Free(kernel);
    PyErr_Restore(type, value, traceback);
}

static int load_into(IngotCudaKernel *kernel, const char *image, const char *name, int shared) {
    int status = ingot_gpu_driver.module_load(&kernel->module, image);
    if (status)
        return ingot_gpu_failed(status, "cuModuleLoadData");
    if ((status = ingot_gpu_driver.module_function(&kernel->function, kernel->module, name)) == 0 &&
        shared > ALWAYS_SHARED && ingot_gpu_driver.function_set)
        status = ingot_gpu_driver.function_set(kernel->function, DYNAMIC_SHARED_BYTES, shared);
    if (status == 0)
        return 0;
    ingot_gpu_driver.module_unload(kernel->module);
    return ingot_gpu_failed(status, "cuModuleGetFunction");
}

static PyObject *load_cuda(PyObject *Py_UNUSED(module), PyObject *arguments) {
    const char *image, *name;
    Py_ssize_t length;
    int shared, device;
    if (!PyArg_ParseTuple(arguments, "y#sii", &image, &length, &name, &shared, &device) ||
        prepare(device) < 0)
        return NULL;
    IngotCudaKernel *kernel = PyMem_Calloc(1, sizeof *kernel);
    if (kernel == NULL)
        return PyErr_NoMemory();
    kernel->device = device;
    int entered = ingot_gpu_enter(device);
    int mode = relax(), loaded = entered < 0 ? -1 : load_into(kernel, image, name, shared);
    restore(mode);
    if (entered == 1)
        ingot_cuda_end();
    PyObject *capsule = loaded < 0 ? NULL : PyCapsule_New(kernel, NAME, unload);
    if (capsule == NULL)
        PyMem_Free(kernel);
    return capsule;
}

static PyMethodDef methods[] = {
    {"load_cuda", load_cuda, METH_VARARGS,
     "load_cuda(image, function, shared, device): a kernel of a binary, loaded on a device; "
     "`shared` is its dynamic "
     "shared memory."},
    {NULL, NULL, 0, NULL},
};

int ingot_cuda_register(PyObject *module) { return PyModule_AddFunctions(module, methods); }
