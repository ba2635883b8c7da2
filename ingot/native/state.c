#include "state.h"

#include "tensor.h"

#define CPU 0 /* c10::DeviceType */
#define CUDA 1

/* at::Float32Backend, at::Float32Op, at::Float32Precision */
enum { BACKEND_CUDA = 1, BACKEND_MKLDNN = 2, OP_MATMUL = 3, TF32 = 2, BF16 = 3 };

/* std::array<at::SDPBackend, ATTENTION_BACKENDS>, which torch writes to memory; with some to spare,
 * should it know more of them. */
enum { ATTENTION_BACKENDS = 5 };
typedef struct {
    int32_t backends[4 * ATTENTION_BACKENDS];
} AttentionOrder;

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
    bool (*flash_attention)(const void *context);
    bool (*efficient_attention)(const void *context);
    bool (*math_attention)(const void *context);
    bool (*cudnn_attention)(const void *context);
    bool (*other_attention)(const void *context);
    bool (*half_attention)(const void *context);
    AttentionOrder (*attention_order)(const void *context);
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
    {&torch.flash_attention, "_ZNK2at7Context19userEnabledFlashSDPEv"},
    {&torch.efficient_attention, "_ZNK2at7Context26userEnabledMemEfficientSDPEv"},
    {&torch.math_attention, "_ZNK2at7Context18userEnabledMathSDPEv"},
    {&torch.cudnn_attention, "_ZNK2at7Context19userEnabledCuDNNSDPEv"},
    {&torch.other_attention, "_ZNK2at7Context26userEnabledOverrideableSDPEv"},
    {&torch.half_attention, "_ZNK2at7Context29allowFP16BF16ReductionMathSDPEv"},
    {&torch.attention_order, "_ZN2at7Context16sDPPriorityOrderEv"},
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

static uint64_t attention_modes(const void *context) {
    uint64_t modes = (uint64_t)torch.flash_attention(context) |
                     (uint64_t)torch.efficient_attention(context) << 1 |
                     (uint64_t)torch.math_attention(context) << 2 |
                     (uint64_t)torch.cudnn_attention(context) << 3 |
                     (uint64_t)torch.other_attention(context) << 4 |
                     (uint64_t)torch.half_attention(context) << 5;
    AttentionOrder order = torch.attention_order(context);
    for (int i = 0; i < ATTENTION_BACKENDS; i++)
        modes |= (uint64_t)(order.backends[i] & 0xff) << 8 * (i + 1);
    return modes;
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
        .attention = attention_modes(context),
    };
    return modes == 0;
}
