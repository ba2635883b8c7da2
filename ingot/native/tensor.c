#include "tensor.h"

#include <dlfcn.h>
#include <string.h>

/* -- torch's objects, held for the life of the process ----------------------------------------- */

static PyTypeObject *tensor_type, *parameter_type;
static PyObject *dtype_numbers; /* dict: torch.dtype -> int */
static PyObject *dispatch_keys_of;
static bool layout_verified, forced_slow;

#define MAX_DTYPES 128
static uint8_t item_sizes[MAX_DTYPES]; /* by dtype number */

/* Offsets in bytes: of the TensorImpl pointer in the Python object, and of each field in the
 * TensorImpl. */
static struct {
    Py_ssize_t impl, storage, rank, sizes, offset, dtype, device, keys;
} layout;

#define INLINE_RANK 5 /* c10::impl::SizesAndStrides keeps up to five dimensions inline */
#define STRIDES_AFTER (INLINE_RANK * 8)
#define IMPL_BYTES 192 /* how much of a TensorImpl is searched: its size since torch 1.x */

static bool (*impl_requires_grad)(const void *impl);
static bool (*handle_is_leaf)(const void *handle);
static int32_t (*handle_data)(void *handle, void **data);

static const char *missing[64];
static int missing_count;

static void note_missing(const char *name) {
    for (int i = 0; i < missing_count; i++)
        if (strcmp(missing[i], name) == 0)
            return;
    if (missing_count < (int)Py_ARRAY_LENGTH(missing))
        missing[missing_count++] = name; /* a literal */
}

PyObject *ingot_missing_symbols(void) {
    PyObject *found = PyList_New(0);
    for (int i = 0; found != NULL && i < missing_count; i++) {
        PyObject *name = PyUnicode_FromString(missing[i]);
        if (name == NULL || PyList_Append(found, name) < 0)
            Py_CLEAR(found);
        Py_XDECREF(name);
    }
    return found;
}

PyObject *ingot_torch_private(const char *name) {
    PyObject *names = PyImport_ImportModule("ingot.torch_private");
    PyObject *found = names ? PyObject_GetAttrString(names, name) : NULL;
    Py_XDECREF(names);
    return found;
}

void *ingot_torch_symbol(const char *name) {
    static void *libraries[5];
    static const char *const files[] = {"libc10.so", "libtorch_cpu.so", "libtorch_python.so",
                                        "libc10_cuda.so", "libtorch_cuda.so"};
    void *symbol = NULL;
    for (int i = 0; symbol == NULL && i < (int)Py_ARRAY_LENGTH(files); i++) {
        if (libraries[i] == NULL)
            libraries[i] = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);
        if (libraries[i] != NULL)
            symbol = dlsym(libraries[i], name);
    }
    if (symbol == NULL)
        note_missing(name);
    return symbol;
}

bool ingot_tensor_facts_are_slow(void) { return forced_slow || !layout_verified; }

void ingot_force_slow_tensor_facts(bool slow) { forced_slow = slow; }

bool ingot_is_plain_tensor(PyObject *object) {
    return Py_TYPE(object) == tensor_type || Py_TYPE(object) == parameter_type;
}

bool ingot_is_parameter(PyObject *object) { return Py_TYPE(object) == parameter_type; }

/* -- the fast path ----------------------------------------------------------------------------- */

static inline char *impl_of(PyObject *tensor) { return *(char **)((char *)tensor + layout.impl); }

void *ingot_tensor_handle(PyObject *tensor) {
    return ingot_tensor_facts_are_slow() ? NULL : (char *)tensor + layout.impl;
}

static inline void read_facts(PyObject *tensor, IngotTensorFacts *facts) {
    const char *impl = impl_of(tensor);
    facts->rank = *(const int64_t *)(impl + layout.rank);
    if (facts->rank <= INLINE_RANK) {
        facts->sizes = (const int64_t *)(impl + layout.sizes);
        facts->strides = (const int64_t *)(impl + layout.sizes + STRIDES_AFTER);
    } else {
        facts->sizes = *(const int64_t *const *)(impl + layout.sizes);
        facts->strides = facts->sizes + facts->rank;
    }
    facts->storage_offset = *(const int64_t *)(impl + layout.offset);
    facts->dispatch_keys = *(const uint64_t *)(impl + layout.keys);
    facts->dtype = (int16_t)*(const uint16_t *)(impl + layout.dtype);
    facts->device_type = (int8_t)impl[layout.device];
    facts->device_index = (int8_t)impl[layout.device + 1];
    facts->requires_grad = impl_requires_grad(impl);
    facts->is_leaf = !facts->requires_grad || handle_is_leaf((char *)tensor + layout.impl);
}

/* -- the slow path ----------------------------------------------------------------------------- */

static int64_t integer_attribute(PyObject *object, const char *name) {
    PyObject *value = PyObject_GetAttrString(object, name);
    int64_t number = value == NULL ? -1 : (int64_t)PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return number;
}

static int64_t called_integer(PyObject *object, const char *method) {
    PyObject *value = PyObject_CallMethod(object, method, NULL);
    int64_t number = value == NULL ? -1 : (int64_t)PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return number;
}

/* Copies a tuple of ints, which is stolen; its length, or -1 with an exception set. */
static Py_ssize_t copy_integers(PyObject *stolen, int64_t *into) {
    Py_ssize_t count = stolen == NULL ? -1 : PyTuple_GET_SIZE(stolen);
    if (count > INGOT_MAX_RANK) {
        PyErr_SetString(PyExc_ValueError, "too many dimensions");
        count = -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        into[i] = (int64_t)PyLong_AsLongLong(PyTuple_GET_ITEM(stolen, i));
    Py_XDECREF(stolen);
    return PyErr_Occurred() ? -1 : count;
}

static int read_slow_enumerations(PyObject *tensor, IngotTensorFacts *facts) {
    PyObject *dtype = PyObject_GetAttrString(tensor, "dtype");
    PyObject *device = PyObject_GetAttrString(tensor, "device");
    PyObject *keys = PyObject_CallOneArg(dispatch_keys_of, tensor);
    PyObject *raw = keys == NULL ? NULL : PyObject_CallMethod(keys, "raw_repr", NULL);
    int number = dtype == NULL ? -1 : ingot_dtype_number(dtype);
    int status = number < 0 || device == NULL || raw == NULL ? -1 : 0;
    if (status == 0) {
        facts->dtype = (int16_t)number;
        facts->dispatch_keys = PyLong_AsUnsignedLongLong(raw);
        status = ingot_device_numbers(device, &facts->device_type, &facts->device_index);
    }
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    Py_XDECREF(keys);
    Py_XDECREF(raw);
    return PyErr_Occurred() ? -1 : status;
}

static int read_facts_slowly(PyObject *tensor, IngotTensorFacts *facts) {
    PyObject *layout_name = PyObject_GetAttrString(tensor, "layout");
    PyObject *text = layout_name == NULL ? NULL : PyObject_Str(layout_name);
    bool strided = text != NULL && PyUnicode_CompareWithASCIIString(text, "torch.strided") == 0;
    Py_XDECREF(layout_name);
    Py_XDECREF(text);
    if (text == NULL)
        return -1;
    memset(facts->room, 0, sizeof facts->room);
    facts->sizes = facts->room;
    facts->storage_offset = 0;
    if ((facts->rank = copy_integers(PyObject_GetAttrString(tensor, "shape"), facts->room)) < 0)
        return -1;
    facts->strides = facts->room + facts->rank;
    if (strided) {
        if (copy_integers(PyObject_CallMethod(tensor, "stride", NULL), facts->room + facts->rank) <
            0)
            return -1;
        facts->storage_offset = called_integer(tensor, "storage_offset");
    }
    facts->requires_grad = integer_attribute(tensor, "requires_grad") == 1;
    facts->is_leaf = integer_attribute(tensor, "is_leaf") == 1;
    return PyErr_Occurred() ? -1 : read_slow_enumerations(tensor, facts);
}

/* -- what others ask --------------------------------------------------------------------------- */

int ingot_tensor_facts(PyObject *tensor, IngotTensorFacts *facts) {
    if (ingot_tensor_facts_are_slow())
        return read_facts_slowly(tensor, facts);
    read_facts(tensor, facts);
    return 0;
}

static bool same_facts(const IngotTensorFacts *facts, const IngotTensorFacts *wanted) {
    if (facts->dispatch_keys != wanted->dispatch_keys || facts->rank != wanted->rank ||
        facts->dtype != wanted->dtype || facts->device_type != wanted->device_type ||
        facts->device_index != wanted->device_index ||
        facts->requires_grad != wanted->requires_grad || facts->is_leaf != wanted->is_leaf)
        return false;
    for (int64_t i = 0; i < facts->rank; i++)
        if ((wanted->sizes[i] != INGOT_NOT_GUARDED && wanted->sizes[i] != facts->sizes[i]) ||
            (wanted->strides[i] != INGOT_NOT_GUARDED && wanted->strides[i] != facts->strides[i]))
            return false;
    return true;
}

bool ingot_tensor_matches(PyObject *tensor, const IngotTensorFacts *wanted) {
    IngotTensorFacts facts;
    if (!ingot_tensor_facts_are_slow())
        read_facts(tensor, &facts);
    else if (read_facts_slowly(tensor, &facts) < 0)
        return false;
    return same_facts(&facts, wanted);
}

int ingot_tensor_data(PyObject *tensor, void **data) {
    if (!ingot_tensor_facts_are_slow() && handle_data((char *)tensor + layout.impl, data) == 0)
        return 0;
    PyObject *address = PyObject_CallMethod(tensor, "data_ptr", NULL);
    if (address == NULL)
        return -1;
    *data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

int ingot_tensor_extent(PyObject *tensor, uintptr_t *begin, uintptr_t *end) {
    IngotTensorFacts facts;
    void *data;
    if (ingot_tensor_facts(tensor, &facts) < 0)
        return -1;
    int64_t last = 0;
    for (int64_t i = 0; i < facts.rank; i++) {
        if (facts.sizes[i] == 0) {
            *begin = *end = 0;
            return 0;
        }
        last += (facts.sizes[i] - 1) * facts.strides[i];
    }
    if (ingot_tensor_data(tensor, &data) < 0)
        return -1;
    *begin = (uintptr_t)data;
    *end = *begin + (uintptr_t)((last + 1) * item_sizes[facts.dtype & (MAX_DTYPES - 1)]);
    return 0;
}

int ingot_tensor_storage(PyObject *tensor, uintptr_t *storage) {
    if (!ingot_tensor_facts_are_slow()) {
        *storage = *(uintptr_t *)(impl_of(tensor) + layout.storage);
        return 0;
    }
    PyObject *untyped = PyObject_CallMethod(tensor, "untyped_storage", NULL);
    if (untyped == NULL)
        return -1;
    *storage = (uintptr_t)integer_attribute(untyped, "_cdata");
    Py_DECREF(untyped);
    return PyErr_Occurred() ? -1 : 0;
}

void ingot_tensor_swap_storages(PyObject *one, PyObject *other) {
    uintptr_t *its = (uintptr_t *)(impl_of(one) + layout.storage),
              *others = (uintptr_t *)(impl_of(other) + layout.storage), storage = *its;
    *its = *others;
    *others = storage;
}

int ingot_dtype_number(PyObject *dtype) {
    PyObject *number = PyDict_GetItemWithError(dtype_numbers, dtype);
    if (number == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%R is not a dtype that Ingot knows", dtype);
        return -1;
    }
    return (int)PyLong_AsLong(number);
}

int ingot_device_numbers(PyObject *device, int8_t *type, int8_t *index) {
    static const struct {
        const char *name;
        int8_t number; /* c10::DeviceType */
    } devices[] = {{"cpu", 0}, {"cuda", 1}, {"xpu", 12}, {"mps", 13}, {"meta", 14}};
    PyObject *name = PyObject_GetAttrString(device, "type");
    PyObject *position = PyObject_GetAttrString(device, "index");
    int status = -1;
    for (size_t i = 0; name != NULL && position != NULL && i < Py_ARRAY_LENGTH(devices); i++)
        if (PyUnicode_CompareWithASCIIString(name, devices[i].name) == 0) {
            *type = devices[i].number;
            *index = position == Py_None ? -1 : (int8_t)PyLong_AsLong(position);
            status = 0;
        }
    if (status < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%R is not a device that Ingot knows", device);
    Py_XDECREF(name);
    Py_XDECREF(position);
    return PyErr_Occurred() ? -1 : status;
}

/* -- probing ----------------------------------------------------------------------------------- */

/* Tensors with tell-tale facts, and others to verify on. The first is what the geometry is found
 * by. */
static const char probes_source[] =
    "import torch\n"
    "with torch.inference_mode(False), torch.enable_grad(), torch.device('cpu'):\n"
    "    distinct = torch.empty(60000, dtype=torch.float64).as_strided((3, 5, 7), (1009, 2003, "
    "41), 12345)\n"
    "    meta = torch.empty((2, 3), device='meta', dtype=torch.bool)\n"
    "    grad = torch.ones(2, 3, requires_grad=True)\n"
    "    others = [torch.empty(()), torch.empty(0), torch.empty(2, 0, 3), torch.ones(4, 5).t(), "
    "torch.ones(6)[2:],\n"
    "              torch.empty(1, 2, 3, 1, 2, 3), torch.empty(1, 2, 1, 2, 1, 2, 1).permute(6, 5, "
    "4, 3, 2, 1, 0)[:, "
    "1:],\n"
    "              torch.nn.Parameter(torch.ones(3)), grad, grad * 2, grad.detach(), (grad * "
    "2)[0],\n"
    "              torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, "
    "dtype=torch.complex64).conj().imag,\n"
    "              torch.ones(2, 2).expand(3, 2, 2)]\n"
    "    with torch.inference_mode():\n"
    "        others.append(torch.ones(3))\n"
    "    raw, dtypes = torch.empty(0, dtype=torch.uint8), {}\n" /* a view of it warns of no unusual
                                                                   dtype */
    "    for dtype in {value for value in vars(torch).values() if isinstance(value, "
    "torch.dtype)}:\n"
    "        try:\n"
    "            dtypes[dtype] = raw.view(dtype)\n"
    "        except (RuntimeError, TypeError, NotImplementedError):\n"
    "            pass\n";

static Py_ssize_t find_bytes(const char *memory, Py_ssize_t limit, Py_ssize_t step,
                             const void *wanted, size_t length) {
    for (Py_ssize_t at = 0; at + (Py_ssize_t)length <= limit; at += step)
        if (memcmp(memory + at, wanted, length) == 0)
            return at;
    return -1;
}

/* Finds where every field lies. False where one is not to be found. */
static bool find_layout(PyObject *distinct, PyObject *meta) {
    uintptr_t impl = (uintptr_t)integer_attribute(distinct, "_cdata");
    PyObject *untyped = PyObject_CallMethod(distinct, "untyped_storage", NULL);
    uintptr_t storage = untyped == NULL ? 0 : (uintptr_t)integer_attribute(untyped, "_cdata");
    Py_XDECREF(untyped);
    IngotTensorFacts facts, meta_facts;
    if (PyErr_Occurred() || read_facts_slowly(distinct, &facts) < 0 ||
        read_facts_slowly(meta, &meta_facts) < 0)
        return false;
    layout.impl = find_bytes((char *)distinct, Py_TYPE(distinct)->tp_basicsize, 8, &impl, 8);
    if (layout.impl < 0)
        return false;
    const char *memory = (const char *)impl, *meta_memory = impl_of(meta);
    const int64_t geometry[] = {3, 3, 5, 7}; /* the rank, then the sizes */
    const uint8_t cpu[] = {0, 0xff, 1},
                  on_meta[] = {14, 0xff, 1}; /* optional<Device>: type, index, has a value */
    layout.storage = find_bytes(memory, IMPL_BYTES, 8, &storage, 8);
    layout.rank = find_bytes(memory, IMPL_BYTES, 8, geometry, sizeof geometry);
    layout.sizes = layout.rank + 8;
    layout.offset = find_bytes(memory, IMPL_BYTES, 8, &facts.storage_offset, 8);
    layout.keys = find_bytes(memory, IMPL_BYTES, 8, &facts.dispatch_keys, 8);
    if (layout.storage < 0 || layout.rank < 0 || layout.offset < 0 || layout.keys < 0)
        return false;
    const uint16_t dtype = 7, meta_dtype = 11; /* c10::ScalarType: Double, Bool */
    layout.dtype = layout.device = -1;
    for (Py_ssize_t at = layout.offset + 8; at < layout.keys; at++) {
        if (at % 2 == 0 && memcmp(memory + at, &dtype, 2) == 0 &&
            memcmp(meta_memory + at, &meta_dtype, 2) == 0)
            layout.dtype = at;
        if (memcmp(memory + at, cpu, 3) == 0 && memcmp(meta_memory + at, on_meta, 3) == 0)
            layout.device = at;
    }
    return layout.dtype >= 0 && layout.device >= 0;
}

/* Whether both paths agree on a tensor. */
static bool verify_facts(PyObject *tensor) {
    IngotTensorFacts fast, slow;
    uintptr_t impl = (uintptr_t)integer_attribute(tensor, "_cdata");
    if (PyErr_Occurred() || (uintptr_t)impl_of(tensor) != impl ||
        read_facts_slowly(tensor, &slow) < 0)
        return false;
    read_facts(tensor, &fast);
    return fast.rank == slow.rank && memcmp(fast.sizes, slow.sizes, 8 * (size_t)slow.rank) == 0 &&
           memcmp(fast.strides, slow.strides, 8 * (size_t)slow.rank) == 0 &&
           fast.storage_offset == slow.storage_offset && fast.dispatch_keys == slow.dispatch_keys &&
           fast.dtype == slow.dtype && fast.device_type == slow.device_type &&
           fast.device_index == slow.device_index && fast.requires_grad == slow.requires_grad &&
           fast.is_leaf == slow.is_leaf;
}

bool ingot_tensor_facts_agree(PyObject *tensor) {
    bool agree = ingot_tensor_facts_are_slow() || verify_facts(tensor);
    PyErr_Clear();
    return agree;
}

/* Fills dtype_numbers and item_sizes: with torch's own numbers where they can be read, else in
 * order of the table. */
static int number_dtypes(PyObject *samples, bool found) {
    PyObject *dtype, *sample;
    Py_ssize_t at = 0;
    int next = 0;
    while (PyDict_Next(samples, &at, &dtype, &sample)) {
        int number = found ? *(uint16_t *)(impl_of(sample) + layout.dtype) : next++;
        int64_t bytes = integer_attribute(dtype, "itemsize");
        PyObject *value = PyLong_FromLong(number);
        int status = value == NULL || PyErr_Occurred() || number >= MAX_DTYPES
                         ? -1
                         : PyDict_SetItem(dtype_numbers, dtype, value);
        Py_XDECREF(value);
        if (status < 0)
            return -1;
        item_sizes[number] = (uint8_t)bytes;
    }
    return 0;
}

static int probe(PyObject *names) {
    PyObject *distinct = PyDict_GetItemString(names, "distinct"),
             *meta = PyDict_GetItemString(names, "meta");
    PyObject *others = PyDict_GetItemString(names, "others"),
             *samples = PyDict_GetItemString(names, "dtypes");
    impl_requires_grad =
        (bool (*)(const void *))ingot_torch_symbol("_ZNK3c1010TensorImpl13requires_gradEv");
    handle_is_leaf = (bool (*)(const void *))ingot_torch_symbol("_ZNK2at10TensorBase7is_leafEv");
    handle_data = (int32_t (*)(void *, void **))ingot_torch_symbol("aoti_torch_get_data_ptr");
    bool symbols = impl_requires_grad != NULL && handle_is_leaf != NULL && handle_data != NULL;
    if (number_dtypes(samples, false) <
        0) /* find_layout reads the samples' facts slowly, which numbers their dtypes */
        return -1;
    layout_verified = symbols && find_layout(distinct, meta);
    PyErr_Clear();
    if (layout_verified && number_dtypes(samples, true) < 0)
        return -1;
    layout_verified = layout_verified && verify_facts(distinct) && verify_facts(meta);
    for (Py_ssize_t i = 0; layout_verified && i < PyList_GET_SIZE(others); i++)
        layout_verified = verify_facts(PyList_GET_ITEM(others, i));
    PyErr_Clear();
    return 0;
}

int ingot_tensor_init(void) {
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *nn = torch == NULL ? NULL : PyImport_ImportModule("torch.nn");
    PyObject *names = nn == NULL ? NULL : PyDict_New();
    int status = -1;
    if (names != NULL) {
        tensor_type = (PyTypeObject *)PyObject_GetAttrString(torch, "Tensor");
        parameter_type = (PyTypeObject *)PyObject_GetAttrString(nn, "Parameter");
        dispatch_keys_of = ingot_torch_private("dispatch_keys");
        dtype_numbers = PyDict_New();
        PyObject *ran = NULL;
        if (tensor_type && parameter_type && dispatch_keys_of && dtype_numbers &&
            PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) == 0)
            ran = PyRun_String(probes_source, Py_file_input, names, names);
        if (ran != NULL)
            status = probe(names);
        Py_XDECREF(ran);
    }
    Py_XDECREF(names);
    Py_XDECREF(nn);
    Py_XDECREF(torch);
    return status;
}
