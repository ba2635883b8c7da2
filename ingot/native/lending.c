/* Who holds a tensor and its memory is what torch counts; whose the memory is, its deleter tells:
   that of what numpy or another library owns is another. */
#include "lending.h"

#include <string.h>

#include "heap.h"
#include "tensor.h"

int64_t ingot_lent_from = 64 << 10;

static PyObject *storage_owners, *name_use_count, *name_untyped_storage;
static Py_ssize_t idle_references; /* to the object that Python has of a storage, where only torch
                                      and whoever asks for it hold it; 0: not known */
static PyObject *keepers; /* of memory that recordings write again: how many owners it has when
                             nobody borrows it, and the object that Python has of the storage */
static Py_ssize_t data_in_storage; /* bytes; the deleter comes next */

enum { STORAGE_BYTES = 64, DEVICE_TYPES = 2 };

static void *deleters[DEVICE_TYPES]; /* of torch's allocators */

static long read_count(PyObject *stolen) {
    long count = stolen ? PyLong_AsLong(stolen) : -1;
    Py_XDECREF(stolen);
    PyErr_Clear();
    return count;
}

/* Of the owners of memory, those that a recording is; 0 where somebody has asked for the storage
   and holds it. */
static long kept_by(PyObject *storage) {
    PyObject *kept =
        storage && PyDict_GET_SIZE(keepers) ? PyDict_GetItemWithError(keepers, storage) : NULL;
    PyErr_Clear();
    if (kept == NULL ||
        Py_REFCNT(PyTuple_GET_ITEM(kept, 1)) != PyLong_AsSsize_t(PyTuple_GET_ITEM(kept, 2)))
        return 0;
    return PyLong_AsLong(PyTuple_GET_ITEM(kept, 0));
}

static long owners_of(PyObject *storage) {
    return storage ? read_count(PyObject_CallOneArg(storage_owners, storage)) : -1;
}

/* Whether one of the owners of a tensor's memory is the object that Python has of its storage,
   which nobody holds: where it was asked for once, torch keeps it as long as the memory. */
static bool has_idle_object(PyObject *tensor, PyObject *storage, long owners) {
    PyObject *object = PyObject_CallMethodNoArgs(tensor, name_untyped_storage);
    bool idle = object != NULL && idle_references > 0 && Py_REFCNT(object) == idle_references &&
                owners_of(storage) == owners;
    PyErr_Clear();
    Py_XDECREF(object);
    return idle;
}

/* Whether a tensor is all that holds its memory, but for a recording, if that counts as none. */
static bool has_one_owner(PyObject *tensor, uintptr_t storage, bool but_recordings) {
    if (read_count(PyObject_CallMethodNoArgs(tensor, name_use_count)) != 1)
        return false;
    PyObject *number = PyLong_FromSize_t(storage);
    const long owners = owners_of(number), alone = 1 + (but_recordings ? kept_by(number) : 0);
    const bool found =
        owners > 0 &&
        (owners == alone || (owners == alone + 1 && has_idle_object(tensor, number, owners)));
    Py_XDECREF(number);
    return found;
}

bool ingot_has_one_owner(PyObject *tensor, uintptr_t storage) {
    return data_in_storage != 0 && has_one_owner(tensor, storage, false);
}

Py_ssize_t ingot_data_in_storage(void) { return data_in_storage; }

/* Whether a reference is the only one to a tensor, and that to its memory, but for a recording. */
static bool is_alone(PyObject *tensor, uintptr_t storage) {
    return Py_REFCNT(tensor) == 1 && has_one_owner(tensor, storage, true);
}

bool ingot_is_alone(PyObject *tensor) {
    uintptr_t storage;
    return data_in_storage != 0 && Py_REFCNT(tensor) == 1 &&
           ingot_tensor_storage(tensor, &storage) == 0 && is_alone(tensor, storage);
}

static void *deleter_of(uintptr_t storage) {
    return *(void **)(storage + (uintptr_t)data_in_storage + sizeof(void *));
}

/* What frees torch's memory of a device; NULL where that is not known. */
static void *deleter_on(const IngotDevice *device) {
    const int type = device ? device->type : 0;
    if (type < 0 || type >= DEVICE_TYPES)
        return NULL;
    if (deleters[type] == NULL && type == INGOT_CUDA) {
        PyObject *torch = PyImport_ImportModule("torch"),
                 *bytes = torch ? PyObject_GetAttrString(torch, "uint8") : NULL;
        const int64_t one = 1;
        IngotLayout layout = {bytes, bytes ? ingot_dtype_number(bytes) : -1, 1, 1, &one, &one,
                              device};
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

bool ingot_is_torchs_memory(uintptr_t storage, const IngotDevice *device) {
    void *deleter = data_in_storage ? deleter_of(storage) : NULL;
    return deleter != NULL &&
           (deleter == deleter_on(device) || deleter == (void *)ingot_heap_give_back);
}

PyObject *ingot_lent(PyObject *tensor, const IngotLayout *layout) {
    IngotTensorFacts facts;
    uintptr_t storage, begin, end;
    if (data_in_storage == 0 || ingot_tensor_facts_are_slow() || !ingot_is_plain_tensor(tensor) ||
        ingot_tensor_facts(tensor, &facts) < 0 || facts.storage_offset != 0 ||
        facts.dtype != layout->number || ingot_tensor_extent(tensor, &begin, &end) < 0 ||
        (int64_t)(end - begin) != ingot_layout_bytes(layout) ||
        ingot_tensor_storage(tensor, &storage) < 0 ||
        !ingot_is_torchs_memory(storage, layout->device) || !is_alone(tensor, storage))
        return NULL;
    return ingot_window(tensor, layout, 0);
}

/* -- what recordings keep ---------------------------------------------------------------------- */

static PyObject *keep(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    if (count != 3 || !PyLong_Check(arguments[0]) || !PyLong_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "keep_lending takes two numbers and an object");
        return NULL;
    }
    /* a reference of the caller's goes, and the tuple's comes */
    PyObject *kept =
        Py_BuildValue("OOn", arguments[1], arguments[2], (Py_ssize_t)Py_REFCNT(arguments[2]));
    const int failed = kept == NULL || PyDict_SetItem(keepers, arguments[0], kept) < 0;
    Py_XDECREF(kept);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *let_go(PyObject *Py_UNUSED(module), PyObject *storage) {
    if (PyDict_DelItem(keepers, storage) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_KeyError))
            return NULL;
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"keep_lending", (PyCFunction)(void (*)(void))keep, METH_FASTCALL,
     "keep_lending(storage, owners, object): memory of so many owners, which is written "
     "anew only while it has no more, may be lent by the one tensor that shows it besides, unless "
     "the object of the storage has more references than now. To be taken back before its owners "
     "die."},
    {"stop_lending", let_go, METH_O, "stop_lending(storage): takes that back."},
    {NULL, NULL, 0, NULL},
};

/* -- set-up ------------------------------------------------------------------------------------ */

/* A tensor alone, one that shares its memory, and one that is held twice. */
static const char probes_source[] = "import torch\n"
                                    "with torch.inference_mode(False), torch.device('cpu'):\n"
                                    "    probe, shared = torch.empty(3), torch.empty(3)\n"
                                    "    other = shared.detach()\n";

static Py_ssize_t find_data(uintptr_t storage, const void *data) {
    for (Py_ssize_t at = sizeof(void *); at <= STORAGE_BYTES - 2 * (Py_ssize_t)sizeof(void *);
         at += sizeof(void *))
        if (memcmp((const char *)storage + at, &data, sizeof data) == 0)
            return at;
    return 0;
}

/* Where the object of a storage counts among its owners, and goes on to do so. */
static void probe_objects(PyObject *tensor, uintptr_t storage) {
    PyObject *number = PyLong_FromSize_t(storage);
    const long before = owners_of(number);
    for (int i = 0; i < 2; i++) {
        PyObject *object = PyObject_CallMethodNoArgs(tensor, name_untyped_storage);
        if (object != NULL && i == 1 && owners_of(number) == before + 1)
            idle_references = Py_REFCNT(object);
        Py_XDECREF(object);
    }
    if (owners_of(number) != before + 1)
        idle_references = 0;
    PyErr_Clear();
    Py_XDECREF(number);
}

static void probe(PyObject *names) {
    PyObject *tensor = Py_XNewRef(PyDict_GetItemString(names, "probe"));
    PyObject *shared = Py_XNewRef(PyDict_GetItemString(names, "shared"));
    uintptr_t storage, of_shared;
    void *data, *context;
    if (tensor && shared && PyDict_DelItemString(names, "probe") == 0 &&
        PyDict_DelItemString(names, "shared") == 0 && ingot_tensor_storage(tensor, &storage) == 0 &&
        ingot_tensor_storage(shared, &of_shared) == 0 && ingot_tensor_data(tensor, &data) == 0) {
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
                probe_objects(tensor, storage);
            }
        }
    }
    Py_XDECREF(tensor);
    Py_XDECREF(shared);
    PyErr_Clear();
}

int ingot_lending_register(PyObject *module) {
    if (keepers == NULL && (keepers = PyDict_New()) == NULL)
        return -1;
    return PyModule_AddFunctions(module, methods);
}

int ingot_lending_init(void) {
    storage_owners = ingot_torch_private("storage_use_count");
    PyErr_Clear();
    name_use_count = PyUnicode_InternFromString("_use_count");
    name_untyped_storage = PyUnicode_InternFromString("untyped_storage");
    PyObject *names = PyDict_New(), *ran = NULL;
    if (name_use_count == NULL || name_untyped_storage == NULL || names == NULL) {
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
