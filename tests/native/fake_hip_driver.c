/* A HIP driver that launches nothing: it writes down each call, with what is told of it, for tests
 * without an AMD GPU. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

char fake_calls[1 << 14];
int fake_device = 1, fake_recording, fake_failing;
uint64_t fake_parameters[8];

static int noted(const char *format, ...) {
    size_t used = strlen(fake_calls);
    va_list values;
    va_start(values, format);
    vsnprintf(fake_calls + used, sizeof fake_calls - used, format, values);
    va_end(values);
    return 0;
}

int hipInit(unsigned flags) { return noted("hipInit(%u)\n", flags); }
int hipGetDevice(int *device) { return *device = fake_device, 0; }
int hipSetDevice(int device) { return fake_device = device, noted("hipSetDevice(%d)\n", device); }
int hipModuleLoadData(void **module, const void *image) {
    *module = (void *)image;
    return fake_failing ? 301 : noted("hipModuleLoadData(%.5s)\n", (const char *)image);
}
int hipModuleUnload(void *module) { return noted("hipModuleUnload(%d)\n", module != NULL); }
int hipModuleGetFunction(void **function, void *module, const char *name) {
    return *function = module, noted("hipModuleGetFunction(%s)\n", name);
}
int hipStreamIsCapturing(void *stream, int *status) {
    return *status = fake_recording, stream == NULL;
}
int hipThreadExchangeStreamCaptureMode(int *mode) { return *mode = 0, noted("relaxed\n"); }
int hipDrvGetErrorString(int error, const char **text) {
    return *text = "no such module", error * 0;
}
int hipMemcpyHtoDAsync(void *target, void *source, size_t bytes, void *stream) {
    return noted("hipMemcpyHtoDAsync(%zu)\n", bytes) +
           (target == NULL || source == NULL || stream == NULL);
}
int hipModuleLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                          unsigned threads_y, unsigned threads_z, unsigned shared, void *stream,
                          void **parameters, void **extra) {
    for (int i = 0; i < 4; i++)
        memcpy(&fake_parameters[i], parameters[i], sizeof(uint64_t));
    return noted("hipModuleLaunchKernel(%u %u %u, %u %u %u, %u, stream %d, %d)\n", x, y, z,
                 threads_x, threads_y, threads_z, shared, (int)(intptr_t)stream,
                 function == NULL || extra != NULL);
}
