#include "cuda.h"

#include "tensor.h"

#include <dlfcn.h>

enum {
    MOST_DEVICES = 64,
    DYNAMIC_SHARED_BYTES = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    RELAXED = 2               /* CU_STREAM_CAPTURE_MODE_RELAXED */
};
static const int ALWAYS_SHARED = 48 << 10; /* bytes that a block may have without asking */
static const char NAME[] = "ingot.cuda.kernel";

/* The part of the driver API that is used here. */
static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_get)(void **context);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*function_set)(void *function, int attribute, int value);
    int (*launch)(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                  unsigned threads_y, unsigned threads_z, unsigned shared, void *stream,
                  void **parameters, void **extra);
    int (*copy)(void *target, const void *source, size_t bytes, void *stream);
    int (*is_recording)(void *stream, int *status);
    int (*exchange_mode)(
        int *mode); /* of this thread, about what it may do while something is recorded */
    int (*error_text)(int error, const char **text);
} driver;

static int32_t (*current_stream)(int32_t device, void **stream); /* torch's C ABI */
static PyObject *raw_stream;         /* the same through Python, where that is missing */
static void *contexts[MOST_DEVICES]; /* of each device the one that torch uses too */

static int failed(int status, const char *what) {
    const char *text = NULL;
    if (driver.error_text)
        driver.error_text(status, &text);
    PyErr_Format(PyExc_RuntimeError, "CUDA error: %s (%d), from %s", text ? text : "unknown",
                 status, what);
    return -1;
}

static int find_driver(void) {
    static const struct {
        void *place;
        const char *name;
    } symbols[] = {{&driver.init, "cuInit"},
                   {&driver.device_get, "cuDeviceGet"},
                   {&driver.context_retain, "cuDevicePrimaryCtxRetain"},
                   {&driver.context_get, "cuCtxGetCurrent"},
                   {&driver.context_push, "cuCtxPushCurrent_v2"},
                   {&driver.context_pop, "cuCtxPopCurrent_v2"},
                   {&driver.module_load, "cuModuleLoadData"},
                   {&driver.module_unload, "cuModuleUnload"},
                   {&driver.module_function, "cuModuleGetFunction"},
                   {&driver.function_set, "cuFuncSetAttribute"},
                   {&driver.launch, "cuLaunchKernel"},
                   {&driver.copy, "cuMemcpyHtoDAsync_v2"},
                   {&driver.is_recording, "cuStreamIsCapturing"},
                   {&driver.exchange_mode, "cuThreadExchangeStreamCaptureMode"},
                   {&driver.error_text, "cuGetErrorString"}};
    if (driver.error_text != NULL)
        return 0;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "there is no CUDA driver: libcuda.so.1 cannot be loaded");
        return -1;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(symbols); i++)
        if ((*(void **)symbols[i].place = dlsym(library, symbols[i].name)) == NULL) {
            driver.error_text = NULL;
            PyErr_Format(PyExc_RuntimeError, "the CUDA driver has no %s", symbols[i].name);
            return -1;
        }
    int status = driver.init(0);
    return status ? failed(status, "cuInit") : 0;
}

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

/* Makes the device's context current. 1 if it was not, 0 if it was, -1 with an exception set. */
static int enter(int device) {
    void *current = NULL;
    int status = driver.context_get(&current);
    if (status == 0 && current != NULL && current == contexts[device])
        return 0;
    if (status == 0)
        status = driver.context_push(contexts[device]);
    return status ? failed(status, "cuCtxPushCurrent") : 1;
}

/* Finds what is called here, and the device's context. */
static int prepare(int device) {
    int handle, status;
    if (device < 0 || device >= MOST_DEVICES) {
        PyErr_Format(PyExc_ValueError, "device %d", device);
        return -1;
    }
    if (contexts[device])
        return 0;
    if (find_driver() < 0 || find_stream() < 0)
        return -1;
    if ((status = driver.device_get(&handle, device)) ||
        (status = driver.context_retain(&contexts[device], handle)))
        return failed(status, "cuDevicePrimaryCtxRetain");
    return 0;
}

int ingot_cuda_begin(int device, void **stream) {
    if (prepare(device) < 0) /* nothing was loaded for a program that only calls libraries */
        return -1;
    int entered = enter(device);
    if (entered >= 0 && stream_of(device, stream) < 0) {
        if (entered)
            ingot_cuda_end();
        return -1;
    }
    return entered;
}

void ingot_cuda_end(void) {
    void *context;
    driver.context_pop(&context);
}

int ingot_cuda_launch(const IngotCudaKernel *kernel, int64_t grid, int threads, int shared,
                      void *stream, void **parameters) {
    if (grid > INT32_MAX) {
        PyErr_Format(PyExc_RuntimeError, "%lld blocks are more than a launch may have",
                     (long long)grid);
        return -1;
    }
    int status = driver.launch(kernel->function, (unsigned)grid, 1, 1, (unsigned)threads, 1, 1,
                               (unsigned)shared, stream, parameters, NULL);
    return status ? failed(status, "cuLaunchKernel") : 0;
}

int ingot_cuda_is_recording(void *stream) {
    int recording = 0, status = driver.is_recording(stream, &recording);
    return status ? failed(status, "cuStreamIsCapturing") : recording != 0;
}

int ingot_cuda_copy(void *target, const void *source, size_t bytes, void *stream) {
    int status = driver.copy(target, source, bytes, stream);
    return status ? failed(status, "cuMemcpyHtoDAsync") : 0;
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
    return driver.exchange_mode(&mode) ? RELAXED : mode;
}

static void restore(int mode) {
    if (mode != RELAXED)
        driver.exchange_mode(&mode);
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
    int entered = enter(kernel->device);
    if (entered >= 0) {
        int mode = relax();
        driver.module_unload(kernel->module);
        restore(mode);
    }
    if (entered == 1)
        ingot_cuda_end();
    PyMem_Free(kernel);
    PyErr_Restore(type, value, traceback);
}

static int load_into(IngotCudaKernel *kernel, const char *image, const char *name, int shared) {
    int status = driver.module_load(&kernel->module, image);
    if (status)
        return failed(status, "cuModuleLoadData");
    if ((status = driver.module_function(&kernel->function, kernel->module, name)) == 0 &&
        shared > ALWAYS_SHARED)
        status = driver.function_set(kernel->function, DYNAMIC_SHARED_BYTES, shared);
    if (status == 0)
        return 0;
    driver.module_unload(kernel->module);
    return failed(status, "cuModuleGetFunction");
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
    int entered = enter(device);
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
