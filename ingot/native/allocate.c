#include "allocate.h"

#include "tensor.h"

#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

/* Below, the allocator has warm memory at hand; above, it is not worth holding on to. Bytes. */
static const int64_t POOLED_FROM = 4 << 20, POOLED_TO = 64 << 20;

static PyObject *empty_strided, *set_, *use_count, *cpu, *keywords; /* of torch */

/* torch's C ABI, and the function that gives a C++ tensor its Python object. */
static int32_t (*native_empty)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                               int32_t device_type, int32_t device_index, void **handle);
static int32_t (*native_delete)(void *handle);
static int32_t (*native_data)(void *handle, void **data);
static PyObject *(*native_wrap)(void *handle);
static int32_t (*native_window)(void *handle, int64_t rank, const int64_t *sizes, const int64_t *strides,
                                int64_t offset, void **made);

static bool verified, window_verified, forced_slow;

int64_t ingot_layout_bytes(const IngotLayout *layout) {
    int64_t last = 0;
    for (int64_t i = 0; i < layout->rank; i++) {
        if (layout->sizes[i] == 0)
            return 0;
        last += (layout->sizes[i] - 1) * layout->strides[i];
    }
    return (last + 1) * layout->itemsize;
}

/* -- one fresh tensor ---------------------------------------------------------------------------------------------- */

static PyObject *tuple_of(const int64_t *values, int64_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (int64_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (value == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

static PyObject *allocate_slowly(const IngotLayout *layout, void **data) {
    PyObject *sizes = tuple_of(layout->sizes, layout->rank), *strides = tuple_of(layout->strides, layout->rank);
    PyObject *arguments[] = {sizes, strides, layout->dtype,
                             layout->device && layout->device->type ? layout->device->object : cpu};
    PyObject *tensor = sizes && strides ? PyObject_Vectorcall(empty_strided, arguments, 2, keywords) : NULL;
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    if (tensor != NULL && ingot_tensor_data(tensor, data) < 0)
        Py_CLEAR(tensor);
    return tensor;
}

static PyObject *allocate_fresh(const IngotLayout *layout, void **data) {
    void *handle;
    int type = layout->device ? layout->device->type : 0, index = layout->device ? layout->device->index : -1;
    if (!verified || forced_slow ||
        native_empty(layout->rank, layout->sizes, layout->strides, layout->number, type, index, &handle) != 0)
        return allocate_slowly(layout, data); /* which also raises what torch raises */
    PyObject *tensor = native_data(handle, data) == 0 ? native_wrap(handle) : NULL;
    native_delete(handle);
    if (tensor == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "torch could not make a tensor");
    return tensor;
}

PyObject *ingot_window(PyObject *tensor, const IngotLayout *layout, int64_t offset) {
    void *handle = window_verified && !forced_slow ? ingot_tensor_handle(tensor) : NULL, *made;
    if (handle == NULL || native_window(handle, layout->rank, layout->sizes, layout->strides, offset, &made) != 0)
        return NULL;
    PyObject *window = native_wrap(made);
    native_delete(made);
    return window;
}

/* -- memory used again --------------------------------------------------------------------------------------------- */

/* A tensor of this layout on the storage of `owner`. Not a view: nothing but the storage is shared. */
static PyObject *on_storage_of(PyObject *owner, const IngotLayout *layout) {
    const int64_t none[] = {0}, one[] = {1};
    const IngotLayout nothing = {layout->dtype, layout->number, layout->itemsize, 1, none, one, NULL};
    void *ignored;
    PyObject *shell = allocate_fresh(&nothing, &ignored), *offset = PyLong_FromLong(0);
    PyObject *sizes = tuple_of(layout->sizes, layout->rank), *strides = tuple_of(layout->strides, layout->rank);
    PyObject *arguments[] = {shell, owner, offset, sizes, strides}, *same = NULL;
    if (shell && offset && sizes && strides)
        same = PyObject_Vectorcall(set_, arguments, 5, NULL);
    Py_XDECREF(same);
    Py_XDECREF(offset);
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    if (same == NULL)
        Py_CLEAR(shell);
    return shell;
}

/* How many tensors and storages hold the storage; -1 where torch does not say. */
static long holders(uintptr_t storage) {
    PyObject *address = PyLong_FromSize_t(storage), *count = address ? PyObject_CallOneArg(use_count, address) : NULL;
    long result = count ? PyLong_AsLong(count) : -1;
    Py_XDECREF(address);
    Py_XDECREF(count);
    PyErr_Clear();
    return result;
}

/* Only the pool holds the storage, and its memory is where it was: resizing, sharing with another process and torch's
   lazy copies all move it. */
static bool is_idle(const struct IngotSpare *spare) {
    void *data = NULL;
    if (holders(spare->storage) != 1)
        return false;
    if (ingot_tensor_data(spare->tensor, &data) < 0)
        PyErr_Clear();
    return data == spare->data;
}

/* Torch may let another thread run while it is called, which may use the same pool. So a spare is taken out before it
   is looked at, and every change of the pool is made in one piece. */
static void put(struct IngotSpare *place, struct IngotSpare spare) {
    PyObject *before = place->tensor;
    *place = spare;
    Py_XDECREF(before);
}

/* A tensor in the memory of the spare at `place`; NULL without an exception where that is not to be had. */
static PyObject *use_again(struct IngotSpare *place, const IngotLayout *layout, int64_t bytes, void **data) {
    struct IngotSpare spare = *place;
    if (spare.tensor == NULL || spare.bytes != bytes)
        return NULL;
    place->tensor = NULL;
    PyObject *tensor = is_idle(&spare) ? on_storage_of(spare.tensor, layout) : NULL;
    *data = spare.data;
    put(place, spare);
    return tensor;
}

/* Keeps the storage of a fresh result, in place of the older spare. */
static void keep(IngotPool *pool, PyObject *tensor, const IngotLayout *layout, void *data, int64_t bytes) {
    struct IngotSpare fresh = {.tensor = on_storage_of(tensor, layout), .data = data, .bytes = bytes};
    if (fresh.tensor == NULL || ingot_tensor_storage(tensor, &fresh.storage) < 0 || holders(fresh.storage) != 2) {
        PyErr_Clear();
        Py_XDECREF(fresh.tensor);
        return;
    }
    struct IngotSpare newer = pool->spares[0];
    pool->spares[0] = fresh;
    put(&pool->spares[1], newer);
}

/* Fewer, larger pages for memory that is new: each costs one fault. */
static void ask_for_huge_pages(void *data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 2 << 20;
    uintptr_t begin = ((uintptr_t)data + page - 1) & ~(page - 1),
              end = ((uintptr_t)data + (uintptr_t)bytes) & ~(page - 1);
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)data;
    (void)bytes;
#endif
}

static PyObject *allocate_pooled(const IngotLayout *layout, IngotPool *pool, int64_t bytes, void **data) {
    PyObject *tensor = NULL;
    for (int i = 0; i < 2 && tensor == NULL; i++) {
        tensor = use_again(&pool->spares[i], layout, bytes, data);
        if (tensor == NULL && PyErr_Occurred())
            return NULL;
    }
    if (tensor != NULL || (tensor = allocate_fresh(layout, data)) == NULL)
        return tensor;
    ask_for_huge_pages(*data, bytes);
    keep(pool, tensor, layout, *data, bytes);
    return tensor;
}

PyObject *ingot_allocate(const IngotLayout *layout, IngotPool *pool, void **data) {
    const int64_t bytes = ingot_layout_bytes(layout);
    const bool on_cpu = layout->device == NULL || layout->device->type == 0;
    if (pool && bytes >= POOLED_FROM && bytes <= POOLED_TO)
        return allocate_pooled(layout, pool, bytes, data);
    PyObject *tensor = allocate_fresh(layout, data);
    if (tensor != NULL && on_cpu && bytes >= POOLED_FROM)
        ask_for_huge_pages(*data, bytes);
    return tensor;
}

void ingot_pool_clear(IngotPool *pool) {
    for (int i = 0; i < 2; i++)
        Py_CLEAR(pool->spares[i].tensor);
}

/* -- set-up -------------------------------------------------------------------------------------------------------- */

void ingot_force_slow_allocation(bool slow) { forced_slow = slow; }

/* Whether torch's C ABI makes the same tensor as torch.empty_strided: same type, facts and number of owners. */
static bool same_both_ways(PyObject *float32) {
    const int64_t sizes[] = {3, 5}, strides[] = {7, 1};
    IngotLayout layout = {.dtype = float32, .number = ingot_dtype_number(float32), .itemsize = 4, .rank = 2};
    layout.sizes = sizes;
    layout.strides = strides;
    void *data, *expected_data;
    IngotTensorFacts facts, expected_facts;
    bool same = false;
    PyObject *expected = allocate_slowly(&layout, &expected_data);
    verified = true;
    PyObject *tensor = expected ? allocate_fresh(&layout, &data) : NULL;
    if (tensor && Py_TYPE(tensor) == Py_TYPE(expected) && Py_REFCNT(tensor) == 1 &&
        ingot_tensor_facts(tensor, &facts) == 0 && ingot_tensor_facts(expected, &expected_facts) == 0) {
        PyObject *uses = PyObject_CallMethod(tensor, "_use_count", NULL),
                 *wanted = PyObject_CallMethod(expected, "_use_count", NULL);
        same = uses && wanted && PyObject_RichCompareBool(uses, wanted, Py_EQ) == 1 &&
               facts.dtype == expected_facts.dtype && facts.dispatch_keys == expected_facts.dispatch_keys &&
               facts.rank == 2 && facts.sizes[1] == 5 && facts.strides[0] == 7 && !facts.requires_grad && data != NULL;
        Py_XDECREF(uses);
        Py_XDECREF(wanted);
    }
    Py_XDECREF(tensor);
    Py_XDECREF(expected);
    PyErr_Clear();
    return same;
}

/* Whether a window of a window begins where it should, is no view to autograd, and is otherwise like its base. */
static bool same_window(PyObject *float32) {
    const int64_t sizes[] = {5, 5}, strides[] = {7, 1}, turned_sizes[] = {4, 2}, turned_strides[] = {1, 7};
    IngotLayout layout = {.dtype = float32, .number = ingot_dtype_number(float32), .itemsize = 4, .rank = 2};
    layout.sizes = sizes;
    layout.strides = strides;
    void *data, *window_data;
    uintptr_t storage, window_storage;
    IngotTensorFacts facts, window_facts;
    bool same = false;
    PyObject *tensor = allocate_fresh(&layout, &data);
    window_verified = true;
    layout.sizes = turned_sizes;
    layout.strides = turned_strides;
    PyObject *outer = tensor ? ingot_window(tensor, &layout, 2) : NULL;
    PyObject *window = outer ? ingot_window(outer, &layout, 3) : NULL;
    if (window && Py_TYPE(window) == Py_TYPE(tensor) && Py_REFCNT(window) == 1 &&
        ingot_tensor_facts(tensor, &facts) == 0 && ingot_tensor_facts(window, &window_facts) == 0 &&
        ingot_tensor_storage(tensor, &storage) == 0 && ingot_tensor_storage(window, &window_storage) == 0 &&
        ingot_tensor_data(window, &window_data) == 0) {
        PyObject *is_view = PyObject_CallMethod(window, "_is_view", NULL);
        same = is_view == Py_False && storage == window_storage && (char *)window_data == (char *)data + 20 &&
               window_facts.storage_offset == 5 && window_facts.dtype == facts.dtype &&
               window_facts.dispatch_keys == facts.dispatch_keys && window_facts.rank == 2 &&
               memcmp(window_facts.sizes, turned_sizes, sizeof turned_sizes) == 0 &&
               memcmp(window_facts.strides, turned_strides, sizeof turned_strides) == 0 && !window_facts.requires_grad;
        Py_XDECREF(is_view);
    }
    Py_XDECREF(window);
    Py_XDECREF(outer);
    Py_XDECREF(tensor);
    PyErr_Clear();
    return same;
}

static bool find_native_allocation(void) {
    /* const&, && and by value: all three take the address of a tensor */
    static const char *const wrappers[] = {"_Z16THPVariable_WrapON2at10TensorBaseE",
                                           "_Z16THPVariable_WrapRKN2at10TensorBaseE",
                                           "_Z16THPVariable_WrapN2at10TensorBaseE"};
    *(void **)&native_empty = ingot_torch_symbol("aoti_torch_empty_strided");
    *(void **)&native_delete = ingot_torch_symbol("aoti_torch_delete_tensor_object");
    *(void **)&native_data = ingot_torch_symbol("aoti_torch_get_data_ptr");
    *(void **)&native_window = ingot_torch_symbol("aoti_torch__reinterpret_tensor");
    for (size_t i = 0; i < Py_ARRAY_LENGTH(wrappers) && native_wrap == NULL; i++)
        *(void **)&native_wrap = ingot_torch_symbol(wrappers[i]);
    return native_empty && native_delete && native_data && native_wrap && !ingot_tensor_facts_are_slow();
}

int ingot_allocate_init(void) {
    PyObject *torch = PyImport_ImportModule("torch"), *core = PyImport_ImportModule("torch._C"), *tensor_type = NULL,
             *float32 = NULL;
    if (torch && core && (tensor_type = PyObject_GetAttrString(torch, "Tensor")) &&
        (float32 = PyObject_GetAttrString(torch, "float32"))) {
        empty_strided = PyObject_GetAttrString(torch, "empty_strided");
        set_ = PyObject_GetAttrString(tensor_type, "set_");
        use_count = PyObject_GetAttrString(core, "_storage_Use_Count");
        cpu = PyObject_CallMethod(torch, "device", "s", "cpu");
        keywords = Py_BuildValue("(ss)", "dtype", "device");
    }
    bool ready = empty_strided && set_ && use_count && cpu && keywords;
    if (ready)
        verified = find_native_allocation() && same_both_ways(float32);
    if (ready)
        window_verified = verified && native_window && same_window(float32);
    Py_XDECREF(float32);
    Py_XDECREF(tensor_type);
    Py_XDECREF(core);
    Py_XDECREF(torch);
    return ready ? 0 : -1;
}
