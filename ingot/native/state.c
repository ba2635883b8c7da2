#include "state.h"

#include "tensor.h"

#define CPU 0 /* c10::DeviceType */
#define CUDA 1

/* at::Float32Backend, at::Float32Op, at::Float32Precision */
enum { BACKEND_CUDA = 1, BACKEND_MKLDNN = 2, OP_MATMUL = 3, TF32 = 2, BF16 = 3 };

static struct {
    bool (*grad_mode)(void);
    bool (*inference_mode)(void);
    bool (*autocast_cache)(void);
    int8_t (*autocast_dtype)(int8_t device);
    uint16_t (*default_dtype)(void);
    int64_t (*function_modes)(void);
    int32_t (*function_state)(void);
    int64_t (*dispatch_modes)(void);
    const void *(*context)(void);
    bool (*deterministic)(const void *context);
    int32_t (*precision)(const void *context, int32_t backend, int32_t op);
} torch;

static const struct {
    void *function;
    const char *symbol;
} symbols[] = {
    {&torch.grad_mode, "_ZN3c108GradMode10is_enabledEv"},
    {&torch.inference_mode, "_ZN3c1013InferenceMode10is_enabledEv"},
    {&torch.autocast_cache, "_ZN2at8autocast25is_autocast_cache_enabledEv"},
    {&torch.autocast_dtype, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"},
    {&torch.default_dtype, "_ZN3c1017get_default_dtypeEv"},
    {&torch.function_modes, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"},
    {&torch.function_state, "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"},
    {&torch.dispatch_modes, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"},
    {&torch.context, "_ZN2at13globalContextEv"},
    {&torch.deterministic, "_ZNK2at7Context23deterministicAlgorithmsEv"},
    {&torch.precision, "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"},
};

/* c10::impl::raw_local_dispatch_key_set is thread-local: looking it up gives the calling thread's
 * own. */
static _Thread_local const uint64_t *local_keys;

static const uint64_t *find_local_keys(void) {
    if (local_keys == NULL)
        local_keys = ingot_torch_symbol("_ZN3c104impl26raw_local_dispatch_key_setE");
    return local_keys;
}

bool ingot_global_state_is_readable(void) {
    static int known = -1;
    if (known < 0) {
        known = find_local_keys() != NULL;
        for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
            void *found = ingot_torch_symbol(symbols[i].symbol);
            *(void **)symbols[i].function = found;
            known = known && found != NULL;
        }
    }
    return known;
}

/* That of products of float32; 0 if they are exact, whatever says so. */
static int32_t lowered_precision(const void *context, int32_t backend) {
    int32_t found = torch.precision(context, backend, OP_MATMUL);
    return found == TF32 || found == BF16 ? found : 0;
}

bool ingot_read_global_state(IngotGlobalState *state) {
    const uint64_t *keys = find_local_keys();
    const void *context = torch.context();
    uint64_t modes = (uint64_t)torch.function_modes();
    *state = (IngotGlobalState){
        .included = keys[0],
        .excluded = keys[1],
        .modes =
            (uint64_t)torch.grad_mode() | (uint64_t)torch.inference_mode() << 1 |
            (uint64_t)torch.autocast_cache() << 2 | (uint64_t)torch.deterministic(context) << 3 |
            (uint64_t)(torch.function_state() & 0xf) << 4 | (uint64_t)torch.default_dtype() << 8 |
            modes << 24 | (uint64_t)torch.dispatch_modes() << 40,
        .cpu_autocast_dtype = torch.autocast_dtype(CPU),
        .cuda_autocast_dtype = torch.autocast_dtype(CUDA),
        .matmul_precision = lowered_precision(context, BACKEND_CUDA) |
                            lowered_precision(context, BACKEND_MKLDNN) << 8,
    };
    return modes == 0;
}
