#include "allocate.h"

#include "heap.h"
#include "pages.h"
#include "tensor.h"
#include "torch_allocator.h"

#include <string.h>

static const int64_t HUGE_PAGES_FROM = 4 << 20; /* bytes */

static PyObject *empty_strided, *cpu, *keywords; /* of torch */

/* torch's C ABI, and the function that gives a C++ tensor its Python object. */
static int32_t (*native_empty)(int64_t rank, const int64_t *sizes, const int64_t *strides,
                               int32_t dtype, int32_t device_type, int32_t device_index,
                               void **handle);
static int32_t (*native_delete)(void *handle);
static int32_t (*native_data)(void *handle, void **data);
static PyObject *(*native_wrap)(void *handle);
static int32_t (*native_window)(void *handle, int64_t rank, const int64_t *sizes,
                                const int64_t *strides, int64_t offset, void **made);

static bool verified, heap_verified, window_verified, forced_slow;
static uint64_t plain_keys; /* the dispatch keys of a tensor on the CPU */

int64_t ingot_layout_bytes(const IngotLayout *layout) {
    int64_t last = 0;
    for (int64_t i = 0; i < layout->rank; i++) {
        if (layout->sizes[i] == 0)
            return 0;
        last += (layout->sizes[i] - 1) * layout->strides[i];
    }
    return (last + 1) * layout->itemsize;
}

/* -- one fresh tensor -------------------------------------------------------------------------- */

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
    PyObject *sizes = tuple_of(layout->sizes, layout->rank),
             *strides = tuple_of(layout->strides, layout->rank);
    PyObject *arguments[] = {sizes, strides, layout->dtype,
                             layout->device && layout->device->type ? layout->device->object : cpu};
    PyObject *tensor =
        sizes && strides ? PyObject_Vectorcall(empty_strided, arguments, 2, keywords) : NULL;
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    if (tensor != NULL && ingot_tensor_data(tensor, data) < 0)
        Py_CLEAR(tensor);
    return tensor;
}

/* The tensor behind a handle of torch's C ABI, which is let go. */
static PyObject *python_tensor(void *handle, void **data) {
    PyObject *tensor = native_data(handle, data) == 0 ? native_wrap(handle) : NULL;
    native_delete(handle);
    if (tensor == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "torch could not make a tensor");
    return tensor;
}

static PyObject *allocate_fresh(const IngotLayout *layout, void **data) {
    void *handle;
    int type = layout->device ? layout->device->type : 0,
        index = layout->device ? layout->device->index : -1;
    if (!verified || forced_slow ||
        native_empty(layout->rank, layout->sizes, layout->strides, layout->number, type, index,
                     &handle) != 0)
        return allocate_slowly(layout, data); /* which also raises what torch raises */
    return python_tensor(handle, data);
}

PyObject *ingot_window(PyObject *tensor, const IngotLayout *layout, int64_t offset) {
    void *handle = window_verified && !forced_slow ? ingot_tensor_handle(tensor) : NULL, *made;
    if (handle == NULL ||
        native_window(handle, layout->rank, layout->sizes, layout->strides, offset, &made) != 0)
        return NULL;
    PyObject *window = native_wrap(made);
    native_delete(made);
    return window;
}

/* NULL, without an exception, where the heap has no memory. */
static PyObject *allocate_in_heap(const IngotLayout *layout, int64_t bytes, void **data) {
    void *handle = ingot_torch_allocate((size_t)bytes, layout->sizes, layout->strides, layout->rank,
                                        layout->number, plain_keys);
    return handle ? python_tensor(handle, data) : NULL;
}

PyObject *ingot_allocate(const IngotLayout *layout, bool held, void **data) {
    const bool on_cpu = layout->device == NULL || layout->device->type == 0;
    const int64_t bytes = on_cpu ? ingot_layout_bytes(layout) : 0;
    PyObject *tensor = NULL;
    if (held && bytes >= INGOT_HEAP_FROM && heap_verified && !forced_slow)
        tensor = allocate_in_heap(layout, bytes, data);
    if (tensor != NULL || PyErr_Occurred())
        return tensor;
    tensor = allocate_fresh(layout, data);
    if (tensor != NULL && bytes >= HUGE_PAGES_FROM)
        ingot_ask_for_huge_pages(*data, (size_t)bytes);
    return tensor;
}

/* -- set-up ------------------------------------------------------------------------------------ */

void ingot_force_slow_allocation(bool slow) { forced_slow = slow; }

/* Whether a tensor is as one of torch.empty_strided: same type, facts and number of owners. */
static bool same_tensor(PyObject *tensor, PyObject *expected, const void *data) {
    IngotTensorFacts facts, wanted;
    if (tensor == NULL || Py_TYPE(tensor) != Py_TYPE(expected) || Py_REFCNT(tensor) != 1 ||
        ingot_tensor_facts(tensor, &facts) < 0 || ingot_tensor_facts(expected, &wanted) < 0)
        return false;
    PyObject *uses = PyObject_CallMethod(tensor, "_use_count", NULL),
             *wanted_uses = PyObject_CallMethod(expected, "_use_count", NULL);
    const bool same =
        uses && wanted_uses && PyObject_RichCompareBool(uses, wanted_uses, Py_EQ) == 1 &&
        facts.dtype == wanted.dtype && facts.dispatch_keys == wanted.dispatch_keys &&
        facts.rank == 2 && memcmp(facts.sizes, wanted.sizes, 2 * sizeof(int64_t)) == 0 &&
        memcmp(facts.strides, wanted.strides, 2 * sizeof(int64_t)) == 0 && !facts.requires_grad &&
        facts.device_type == wanted.device_type && facts.device_index == wanted.device_index &&
        data != NULL;
    Py_XDECREF(uses);
    Py_XDECREF(wanted_uses);
    return same;
}

/* Whether torch's C ABI, and our allocator, make the same tensors as torch.empty_strided. */
static void verify(PyObject *float32) {
    const int64_t sizes[] = {3, 5}, strides[] = {7, 1};
    IngotLayout layout = {
        .dtype = float32, .number = ingot_dtype_number(float32), .itemsize = 4, .rank = 2};
    layout.sizes = sizes;
    layout.strides = strides;
    void *data = NULL;
    IngotTensorFacts facts;
    PyObject *expected = allocate_slowly(&layout, &data), *tensor = NULL;
    if (expected != NULL && ingot_tensor_facts(expected, &facts) == 0) {
        plain_keys = facts.dispatch_keys;
        verified = true;
        tensor = allocate_fresh(&layout, &data);
        verified = same_tensor(tensor, expected, data);
        Py_CLEAR(tensor);
        if (verified && ingot_torch_allocator_init() &&
            (tensor = allocate_in_heap(&layout, 128, &data)) != NULL)
            heap_verified = same_tensor(tensor, expected, data);
    }
    Py_XDECREF(tensor);
    Py_XDECREF(expected);
    PyErr_Clear();
}

/* Whether a window of a window begins where it should, is no view to autograd, and is otherwise
 * like its base. */
static bool same_window(PyObject *float32) {
    const int64_t sizes[] = {5, 5}, strides[] = {7, 1}, turned_sizes[] = {4, 2},
                  turned_strides[] = {1, 7};
    IngotLayout layout = {
        .dtype = float32, .number = ingot_dtype_number(float32), .itemsize = 4, .rank = 2};
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
        ingot_tensor_storage(tensor, &storage) == 0 &&
        ingot_tensor_storage(window, &window_storage) == 0 &&
        ingot_tensor_data(window, &window_data) == 0) {
        PyObject *is_view = PyObject_CallMethod(window, "_is_view", NULL);
        same = is_view == Py_False && storage == window_storage &&
               (char *)window_data == (char *)data + 20 && window_facts.storage_offset == 5 &&
               window_facts.dtype == facts.dtype &&
               window_facts.dispatch_keys == facts.dispatch_keys && window_facts.rank == 2 &&
               memcmp(window_facts.sizes, turned_sizes, sizeof turned_sizes) == 0 &&
               memcmp(window_facts.strides, turned_strides, sizeof turned_strides) == 0 &&
               !window_facts.requires_grad;
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
    return native_empty && native_delete && native_data && native_wrap &&
           !ingot_tensor_facts_are_slow();
}

int ingot_allocate_init(void) {
    PyObject *torch = PyImport_ImportModule("torch"),
             *float32 = torch ? PyObject_GetAttrString(torch, "float32") : NULL;
    if (float32) {
        empty_strided = PyObject_GetAttrString(torch, "empty_strided");
        cpu = PyObject_CallMethod(torch, "device", "s", "cpu");
        keywords = Py_BuildValue("(ss)", "dtype", "device");
    }
    bool ready = empty_strided && cpu && keywords;
    if (ready && find_native_allocation())
        verify(float32);
    if (ready)
        window_verified = verified && native_window && same_window(float32);
    Py_XDECREF(float32);
    Py_XDECREF(torch);
    return ready ? 0 : -1;
}
