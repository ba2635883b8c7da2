/* A CUDA driver that launches nothing: it keeps the parameters of the last launch, for tests without a GPU. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST = 64 };
uint64_t fake_parameters[MOST];
unsigned fake_grid, fake_count = 1, fake_recording, fake_mode, fake_loads;
unsigned char fake_copied[4096];

int cuInit(unsigned flags) { return (int)(flags & 0); }
int cuDeviceGet(int *device, int ordinal) { return (*device = ordinal) * 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (*context = &fake_grid, device * 0); }
int cuCtxGetCurrent(void **context) { return (*context = &fake_grid, 0); }
int cuCtxPushCurrent_v2(void *context) { return context == NULL; }
int cuCtxPopCurrent_v2(void **context) { return (*context = &fake_grid, 0); }
int cuThreadExchangeStreamCaptureMode(int *mode) {
    unsigned before = fake_mode;
    fake_mode = (unsigned)*mode;
    return (*mode = (int)before, 0);
}
/* While something is recorded, of which this thread says in no mode but the relaxed one that it is no part. */
static int refused(void) { return fake_recording && fake_mode != 2 ? 900 : 0; }
int cuModuleLoadData(void **module, const void *image) { return (*module = (void *)image, fake_loads++, refused()); }
int cuModuleUnload(void *module) { return module == NULL ? 1 : refused(); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    return (*function = module, name == NULL);
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return function == NULL && attribute == value; }
int cuStreamIsCapturing(void *stream, int *status) { return (*status = (int)fake_recording, stream != NULL); }
int cuGetErrorString(int error, const char **text) { return (*text = "an error", error * 0); }

int cuMemcpyHtoDAsync_v2(void *target, const void *source, size_t bytes, void *stream) {
    memcpy(fake_copied, source, bytes < sizeof fake_copied ? bytes : sizeof fake_copied);
    return target == NULL || stream != NULL;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra) {
    (void)function, (void)y, (void)z, (void)threads_x, (void)threads_y, (void)threads_z, (void)shared, (void)stream;
    (void)extra;
    fake_grid = x;
    for (unsigned i = 0; i < fake_count; i++)
        memcpy(&fake_parameters[i], parameters[i], sizeof(uint64_t));
    return 0;
}
