/* Who holds a tensor and its memory is what torch counts; whose the memory is, its deleter tells: that of what numpy or
   another library owns is another. */
#include "lending.h"

#include <string.h>

#include "heap.h"
#include "tensor.h"

int64_t ingot_lent_from = 64 << 10;

static PyObject *storage_owners, *name_use_count;
static Py_ssize_t data_in_storage; /* bytes; the deleter comes next */

enum { STORAGE_BYTES = 64, DEVICE_TYPES = 2 };

static void *deleters[DEVICE_TYPES]; /* of torch's allocators */

static bool counts_one(PyObject *stolen) {
    long count = stolen ? PyLong_AsLong(stolen) : -1;
    Py_XDECREF(stolen);
    PyErr_Clear();
    return count == 1;
}

/* Whether a reference is the only one to a tensor, and that to its memory. */
static bool is_alone(PyObject *tensor, uintptr_t storage) {
    return Py_REFCNT(tensor) == 1 && counts_one(PyObject_CallMethodNoArgs(tensor, name_use_count)) &&
           counts_one(PyObject_CallFunction(storage_owners, "K", (unsigned long long)storage));
}

static void *deleter_of(uintptr_t storage) { return *(void **)(storage + (uintptr_t)data_in_storage + sizeof(void *)); }

/* What frees torch's memory of a device; NULL where that is not known. */
static void *deleter_on(const IngotDevice *device) {
    const int type = device ? device->type : 0;
    if (type < 0 || type >= DEVICE_TYPES)
        return NULL;
    if (deleters[type] == NULL && type == INGOT_CUDA) {
        PyObject *torch = PyImport_ImportModule("torch"),
                 *bytes = torch ? PyObject_GetAttrString(torch, "uint8") : NULL;
        const int64_t one = 1;
        IngotLayout layout = {bytes, bytes ? ingot_dtype_number(bytes) : -1, 1, 1, &one, &one, device};
        void *data;
        uintptr_t storage;
        PyObject *tensor = layout.number >= 0 ? ingot_allocate(&layout, false, &data) : NULL;
        if (tensor != NULL && ingot_tensor_storage(tensor, &storage) == 0)
            deleters[type] = deleter_of(storage);
        Py_XDECREF(tensor);
        Py_XDECREF(bytes);
        Py_XDECREF(torch);
        PyErr_Clear();
    }
    return deleters[type];
}

PyObject *ingot_lent(PyObject *tensor, const IngotLayout *layout) {
    IngotTensorFacts facts;
    uintptr_t storage, begin, end;
    if (data_in_storage == 0 || ingot_tensor_facts_are_slow() || !ingot_is_plain_tensor(tensor) ||
        ingot_tensor_facts(tensor, &facts) < 0 || facts.storage_offset != 0 || facts.dtype != layout->number ||
        ingot_tensor_extent(tensor, &begin, &end) < 0 || (int64_t)(end - begin) != ingot_layout_bytes(layout) ||
        ingot_tensor_storage(tensor, &storage) < 0)
        return NULL;
    void *deleter = deleter_of(storage);
    if (deleter == NULL || (deleter != deleter_on(layout->device) && deleter != (void *)ingot_heap_give_back) ||
        !is_alone(tensor, storage))
        return NULL;
    return ingot_window(tensor, layout, 0);
}

/* -- set-up -------------------------------------------------------------------------------------------------------- */

/* A tensor alone, one that shares its memory, and one that is held twice. */
static const char probes_source[] = "import torch\n"
                                    "with torch.inference_mode(False), torch.device('cpu'):\n"
                                    "    probe, shared = torch.empty(3), torch.empty(3)\n"
                                    "    other = shared.detach()\n";

static Py_ssize_t find_data(uintptr_t storage, const void *data) {
    for (Py_ssize_t at = sizeof(void *); at <= STORAGE_BYTES - 2 * (Py_ssize_t)sizeof(void *); at += sizeof(void *))
        if (memcmp((const char *)storage + at, &data, sizeof data) == 0)
            return at;
    return 0;
}

static void probe(PyObject *names) {
    PyObject *tensor = Py_XNewRef(PyDict_GetItemString(names, "probe"));
    PyObject *shared = Py_XNewRef(PyDict_GetItemString(names, "shared"));
    uintptr_t storage, of_shared;
    void *data, *context;
    if (tensor && shared && PyDict_DelItemString(names, "probe") == 0 && PyDict_DelItemString(names, "shared") == 0 &&
        ingot_tensor_storage(tensor, &storage) == 0 && ingot_tensor_storage(shared, &of_shared) == 0 &&
        ingot_tensor_data(tensor, &data) == 0) {
        Py_ssize_t found = find_data(storage, data);
        bool counted = is_alone(tensor, storage) && !is_alone(shared, of_shared);
        Py_INCREF(tensor);
        counted = counted && !is_alone(tensor, storage);
        Py_DECREF(tensor);
        if (found && counted) { /* what torch's allocator takes back is the memory itself */
            memcpy(&context, (const char *)storage + found + 2 * sizeof(void *), sizeof context);
            if (context == data) {
                data_in_storage = found;
                deleters[0] = deleter_of(storage);
            }
        }
    }
    Py_XDECREF(tensor);
    Py_XDECREF(shared);
    PyErr_Clear();
}

int ingot_lending_init(void) {
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *core = torch ? PyObject_GetAttrString(torch, "_C") : NULL;
    storage_owners = core ? PyObject_GetAttrString(core, "_storage_Use_Count") : NULL;
    Py_XDECREF(core);
    Py_XDECREF(torch);
    PyErr_Clear();
    name_use_count = PyUnicode_InternFromString("_use_count");
    PyObject *names = PyDict_New(), *ran = NULL;
    if (name_use_count == NULL || names == NULL) {
        Py_XDECREF(names);
        return -1;
    }
    if (storage_owners != NULL && !ingot_tensor_facts_are_slow() &&
        PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) == 0)
        ran = PyRun_String(probes_source, Py_file_input, names, names);
    if (ran != NULL)
        probe(names);
    PyErr_Clear();
    Py_XDECREF(ran);
    Py_DECREF(names);
    return 0;
}
