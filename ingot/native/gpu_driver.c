#include "gpu_driver.h"

#include <dlfcn.h>
#include <stddef.h>

#include "tensor.h"

IngotGpuDriver ingot_gpu_driver;

enum { CUDA_DRIVER, HIP_DRIVER, DRIVERS, MOST_LIBRARIES = 4, MOST_DEVICES = 64, MOST_NESTED = 16 };

static const struct {
    const char *name;
    const char *libraries[MOST_LIBRARIES]; /* the first that is there */
} drivers[DRIVERS] = {
    {"CUDA", {"libcuda.so.1"}},
    {"HIP", {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"}},
};

/* A call's place in the table, and its name in each driver; NULL where that does without. */
#define CALL(place, cuda, hip)                                                                     \
    {                                                                                              \
        offsetof(IngotGpuDriver, place), { cuda, hip }                                             \
    }
static const struct {
    size_t place;
    const char *names[DRIVERS];
} calls[] = {
    CALL(init, "cuInit", "hipInit"),
    CALL(module_load, "cuModuleLoadData", "hipModuleLoadData"),
    CALL(module_unload, "cuModuleUnload", "hipModuleUnload"),
    CALL(module_function, "cuModuleGetFunction", "hipModuleGetFunction"),
    CALL(function_set, "cuFuncSetAttribute", NULL), /* a block of AMD's has all without asking */
    CALL(launch, "cuLaunchKernel", "hipModuleLaunchKernel"),
    CALL(copy, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"),
    CALL(is_recording, "cuStreamIsCapturing", "hipStreamIsCapturing"),
    CALL(exchange_mode, "cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode"),
    CALL(error_text, "cuGetErrorString", "hipDrvGetErrorString"),
    CALL(device_get, "cuDeviceGet", NULL),
    CALL(context_retain, "cuDevicePrimaryCtxRetain", NULL),
    CALL(context_get, "cuCtxGetCurrent", NULL),
    CALL(context_push, "cuCtxPushCurrent_v2", NULL),
    CALL(context_pop, "cuCtxPopCurrent_v2", NULL),
    CALL(current_device, NULL, "hipGetDevice"),
    CALL(set_device, NULL, "hipSetDevice"),
};
#undef CALL

static int found = DRIVERS;          /* which driver; DRIVERS: none yet */
static void *contexts[MOST_DEVICES]; /* of each device the one that torch uses too */
static _Thread_local int before[MOST_NESTED], nested; /* the numbers of devices to go back to */

int ingot_gpu_failed(int status, const char *what) {
    const char *text = NULL, *name = found < DRIVERS ? drivers[found].name : "GPU";
    if (ingot_gpu_driver.error_text)
        ingot_gpu_driver.error_text(status, &text);
    PyErr_Format(PyExc_RuntimeError, "%s error: %s (%d), from %s", name, text ? text : "unknown",
                 status, what);
    return -1;
}

/* Which GPUs torch was built for. -1 with an exception set. */
static int kind_of_torch(void) {
    PyObject *torch = PyImport_ImportModule("torch"),
             *version = torch ? PyObject_GetAttrString(torch, "version") : NULL,
             *hip = version ? PyObject_GetAttrString(version, "hip") : NULL;
    int kind = hip == NULL ? -1 : hip == Py_None ? CUDA_DRIVER : HIP_DRIVER;
    Py_XDECREF(hip);
    Py_XDECREF(version);
    Py_XDECREF(torch);
    return kind;
}

static void *library_of(int kind) {
    void *library = NULL;
    for (int i = 0; library == NULL && i < MOST_LIBRARIES && drivers[kind].libraries[i]; i++)
        library = dlopen(drivers[kind].libraries[i], RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL)
        PyErr_Format(PyExc_RuntimeError, "there is no %s driver: %s cannot be loaded",
                     drivers[kind].name, drivers[kind].libraries[0]);
    return library;
}

int ingot_gpu_find_driver(void) {
    if (found < DRIVERS)
        return 0;
    const int kind = kind_of_torch();
    void *library = kind < 0 ? NULL : library_of(kind);
    if (library == NULL)
        return -1;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(calls); i++) {
        const char *name = calls[i].names[kind];
        void *call = name ? dlsym(library, name) : NULL;
        if (name != NULL && call == NULL) {
            PyErr_Format(PyExc_RuntimeError, "the %s driver has no %s", drivers[kind].name, name);
            return -1;
        }
        *(void **)((char *)&ingot_gpu_driver + calls[i].place) = call;
    }
    found = kind;
    int status = ingot_gpu_driver.init(0);
    return status ? ingot_gpu_failed(status, calls[0].names[kind]) : 0;
}

int ingot_gpu_prepare(int device) {
    int handle, status;
    if (device < 0 || device >= MOST_DEVICES) {
        PyErr_Format(PyExc_ValueError, "device %d", device);
        return -1;
    }
    if (ingot_gpu_find_driver() < 0)
        return -1;
    if (ingot_gpu_driver.context_retain == NULL || contexts[device])
        return 0;
    if ((status = ingot_gpu_driver.device_get(&handle, device)) ||
        (status = ingot_gpu_driver.context_retain(&contexts[device], handle)))
        return ingot_gpu_failed(status, "cuDevicePrimaryCtxRetain");
    return 0;
}

static int enter_by_number(int device) {
    int current, status = ingot_gpu_driver.current_device(&current);
    if (status == 0 && current == device)
        return 0;
    if (status == 0 && nested == MOST_NESTED) {
        PyErr_SetString(PyExc_RuntimeError, "too many devices are entered in one another");
        return -1;
    }
    if (status == 0)
        status = ingot_gpu_driver.set_device(device);
    if (status)
        return ingot_gpu_failed(status, "hipSetDevice");
    before[nested++] = current;
    return 1;
}

int ingot_gpu_enter(int device) {
    void *current = NULL;
    if (ingot_gpu_driver.context_get == NULL)
        return enter_by_number(device);
    int status = ingot_gpu_driver.context_get(&current);
    if (status == 0 && current != NULL && current == contexts[device])
        return 0;
    if (status == 0)
        status = ingot_gpu_driver.context_push(contexts[device]);
    return status ? ingot_gpu_failed(status, "cuCtxPushCurrent") : 1;
}

void ingot_gpu_leave(void) {
    void *context;
    if (ingot_gpu_driver.context_pop)
        ingot_gpu_driver.context_pop(&context);
    else if (nested > 0)
        ingot_gpu_driver.set_device(before[--nested]);
}
