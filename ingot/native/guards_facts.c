/* The vocabulary of guards: how a value is got at, and what can be said of it. */
#include <string.h>

#include "constants.h"
#include "guards_parts.h"

/* -- accesses: how a value is got from the one above it ---------------------------------------- */

static PyObject *access_constant(PyObject *Py_UNUSED(owner), const Key *key) {
    return Py_NewRef(key->object);
}

static PyObject *access_item(PyObject *owner, const Key *key) {
    if (PyDict_Check(owner))
        return Py_XNewRef(PyDict_GetItemWithError(owner, key->object));
    if (!PyList_Check(owner) && !PyTuple_Check(owner))
        return NULL;
    Py_ssize_t size = Py_SIZE(owner), index = key->index < 0 ? key->index + size : key->index;
    if (index < 0 || index >= size || !PyLong_CheckExact(key->object))
        return NULL;
    return Py_NewRef(PyList_Check(owner) ? PyList_GET_ITEM(owner, index)
                                         : PyTuple_GET_ITEM(owner, index));
}

static PyObject *access_instance_dict(PyObject *owner, const Key *Py_UNUSED(key)) {
    return PyType_Check(owner) ? NULL : PyObject_GenericGetDict(owner, NULL);
}

static PyObject *access_attribute(PyObject *owner, const Key *key) {
    return PyObject_GenericGetAttr(owner, key->object);
}

static PyObject *access_cell(PyObject *owner, const Key *key) {
    PyObject *cells = PyFunction_Check(owner) ? PyFunction_GET_CLOSURE(owner) : NULL;
    if (cells == NULL || key->index < 0 || key->index >= PyTuple_GET_SIZE(cells))
        return NULL;
    return PyCell_Get(PyTuple_GET_ITEM(cells, key->index));
}

static PyObject *access_type(PyObject *owner, const Key *Py_UNUSED(key)) {
    return Py_NewRef((PyObject *)Py_TYPE(owner));
}

static PyObject *access_class_attribute(PyObject *owner, const Key *key) {
    return PyType_Check(owner) ? Py_XNewRef(_PyType_Lookup((PyTypeObject *)owner, key->object))
                               : NULL;
}

/* A function of Ingot's own, without effects; the type of what it is given is checked already. */
static PyObject *access_apply(PyObject *owner, const Key *key) {
    return PyObject_CallOneArg(key->object, owner);
}

/* The same of a function that takes a guard's data as well: the key is (function, data). */
static PyObject *access_read(PyObject *owner, const Key *key) {
    PyObject *function = PyTuple_GET_ITEM(key->object, 0);
    return PyObject_CallFunctionObjArgs(function, owner, PyTuple_GET_ITEM(key->object, 1), NULL);
}

/* The keys in order; an OrderedDict keeps its own. */
static PyObject *access_dict_keys(PyObject *owner, const Key *Py_UNUSED(key)) {
    if (!PyDict_Check(owner))
        return NULL;
    PyTypeObject *type = PyODict_Check(owner) ? &PyODict_Type : &PyDict_Type;
    PyObject *iterator = type->tp_iter(owner);
    PyObject *keys = iterator == NULL ? NULL : PySequence_Tuple(iterator);
    Py_XDECREF(iterator);
    return keys;
}

static const AccessKind accesses[] = {
    {"slot", NULL, SLOT},
    {"constant", access_constant, CONSTANT},
    {"item", access_item, ITEM},
    {"instance_dict", access_instance_dict, INSTANCE_DICT},
    {"attribute", access_attribute, ATTRIBUTE},
    {"cell", access_cell, CELL},
    {"type", access_type, TYPE},
    {"class_attribute", access_class_attribute, CLASS_ATTRIBUTE},
    {"dict_keys", access_dict_keys, ANEW},
    {"apply", access_apply, ANEW},
    {"read", access_read, ANEW},
};

const AccessKind *ingot_find_access(const char *name) {
    for (size_t i = 0; i < Py_ARRAY_LENGTH(accesses); i++)
        if (strcmp(accesses[i].name, name) == 0)
            return &accesses[i];
    return NULL;
}

/* -- checks: facts about one value ------------------------------------------------------------- */

static bool check_type(PyObject *value, Check *check) {
    return (PyObject *)Py_TYPE(value) == check->data;
}

static bool check_identity(PyObject *value, Check *check) { return value == check->data; }

static bool check_equals(PyObject *value, Check *check) {
    return ingot_same_constant(value, check->data);
}

/* The length of a built-in container by its own count; -1 for others. */
static Py_ssize_t builtin_length(PyObject *value) {
    if (PyTuple_Check(value) || PyList_Check(value) || PyBytes_Check(value))
        return Py_SIZE(value);
    if (PyDict_Check(value))
        return PyDict_GET_SIZE(value);
    if (PyAnySet_Check(value))
        return PySet_GET_SIZE(value);
    if (PyUnicode_Check(value))
        return PyUnicode_GET_LENGTH(value);
    return PyRange_Check(value) ? PyObject_Size(value) : -1;
}

static bool check_length(PyObject *value, Check *check) {
    return builtin_length(value) == check->number;
}

static bool check_dict_empty(PyObject *value, Check *Py_UNUSED(check)) {
    return PyDict_Check(value) && PyDict_GET_SIZE(value) == 0;
}

static bool check_dict_keys(PyObject *value, Check *check) {
    Py_ssize_t count = PyTuple_GET_SIZE(check->data), found = 0, at = 0;
    PyObject *key, *ignored;
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != count)
        return false;
    if (PyODict_Check(value)) {
        PyObject *keys = access_dict_keys(value, NULL);
        bool same = keys != NULL && PyTuple_GET_SIZE(keys) == count;
        for (; same && found < count; found++)
            same = ingot_same_constant(PyTuple_GET_ITEM(keys, found),
                                       PyTuple_GET_ITEM(check->data, found));
        Py_XDECREF(keys);
        return same;
    }
    while (PyDict_Next(value, &at, &key, &ignored))
        if (!ingot_same_constant(key, PyTuple_GET_ITEM(check->data, found++)))
            return false;
    return true;
}

static bool check_absent_key(PyObject *value, Check *check) {
    return PyDict_Check(value) && PyDict_Contains(value, check->data) == 0;
}

static bool check_is_none(PyObject *value, Check *check) {
    return (value == Py_None) == (check->number != 0);
}

static bool check_truth(PyObject *value, Check *check) {
    static PyTypeObject *const types[] = {
        &PyBool_Type, &PyLong_Type,  &PyFloat_Type,    &PyUnicode_Type, &PyTuple_Type,
        &PyList_Type, &PyDict_Type,  &PyComplex_Type,  &PyBytes_Type,   &PySet_Type,
        NULL,         &PyRange_Type, &PyFrozenSet_Type};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++)
        if (Py_TYPE(value) == (types[i] == NULL ? Py_TYPE(Py_None) : types[i]))
            return PyObject_IsTrue(value) == (check->number != 0);
    return false;
}

/* All the facts about one class: data is a list of (name, expected), or (name,) for a name that no
   class has. While the version tag of the class is what it was when the facts were last seen to
   hold, no lookup can give another answer. */
static bool check_class_attribute(PyObject *value, Check *check) {
    if (!PyType_Check(value))
        return false;
    PyTypeObject *type = (PyTypeObject *)value;
    if (type->tp_version_tag != 0 && type->tp_version_tag == (unsigned int)check->number)
        return true;
    unsigned int version = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(check->data); i++) {
        PyObject *fact = PyList_GET_ITEM(check->data, i);
        PyObject *expected = PyTuple_GET_SIZE(fact) == 2 ? PyTuple_GET_ITEM(fact, 1) : NULL;
        if (_PyType_Lookup(type, PyTuple_GET_ITEM(fact, 0)) != expected)
            return false;
        version = i == 0 ? type->tp_version_tag
                         : version; /* the lookup has assigned one, unless none is left */
    }
    check->number = version == type->tp_version_tag ? version : 0;
    return true;
}

static bool check_tensor(PyObject *value, Check *check) {
    return Py_TYPE(value) == check->expected->type &&
           ingot_tensor_matches(value, &check->expected->facts);
}

static bool check_tensor_offset(PyObject *value, Check *check) {
    IngotTensorFacts facts;
    return ingot_is_plain_tensor(value) && ingot_tensor_facts(value, &facts) == 0 &&
           facts.storage_offset == check->number;
}

/* Rare: of tensors whose memory is addressed from its beginning. */
static bool check_tensor_memory(PyObject *value, Check *check) {
    if (!ingot_is_plain_tensor(value))
        return false;
    PyObject *storage = PyObject_CallMethod(value, "untyped_storage", NULL);
    PyObject *bytes = storage == NULL ? NULL : PyObject_CallMethod(storage, "nbytes", NULL);
    long long count = bytes == NULL ? -1 : PyLong_AsLongLong(bytes);
    Py_XDECREF(storage);
    Py_XDECREF(bytes);
    return count == check->number;
}

static bool check_tensor_aligned(PyObject *value, Check *check) {
    void *data;
    return ingot_is_plain_tensor(value) && ingot_tensor_data(value, &data) == 0 &&
           (uintptr_t)data % (uintptr_t)check->number == 0;
}

static const struct {
    const char *name;
    bool (*holds)(PyObject *value, Check *check);
    bool has_number;
    Proof proof;
} check_kinds[] = {
    {"type", check_type, false, BY_TYPE},
    {"identity", check_identity, false, BY_ADDRESS},
    {"equals", check_equals, false, BY_VALUE},
    {"length", check_length, true, BY_VALUE},
    {"dict_keys", check_dict_keys, false, BY_KEYS},
    {"absent_key", check_absent_key, false, BY_VERSION},
    {"dict_empty", check_dict_empty, false, BY_LENGTH},
    {"is_none", check_is_none, true, BY_ADDRESS},
    {"truth", check_truth, true, BY_VALUE},
    {"class_attribute", check_class_attribute, false, BY_CLASS},
    {"tensor", check_tensor, false, BY_LOOKING},
    {"tensor_offset", check_tensor_offset, true, BY_LOOKING},
    {"tensor_memory", check_tensor_memory, true, BY_LOOKING},
    {"tensor_aligned", check_tensor_aligned, true, BY_LOOKING},
};

/* -- reading a check from the spec ------------------------------------------------------------- */

static int fill_dims(PyObject *dims, int64_t *into, int64_t *rank) {
    if (!PyTuple_Check(dims) || PyTuple_GET_SIZE(dims) > INGOT_MAX_RANK) {
        PyErr_SetString(PyExc_TypeError, "the sizes and strides of a tensor guard are tuples");
        return -1;
    }
    *rank = PyTuple_GET_SIZE(dims);
    for (int64_t i = 0; i < *rank; i++) {
        PyObject *dim = PyTuple_GET_ITEM(dims, i);
        into[i] = dim == Py_None ? INGOT_NOT_GUARDED : (int64_t)PyLong_AsLongLong(dim);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Fills an expectation from a TensorFacts of capture/facts.py. */
static int fill_expectation(TensorExpectation *into, PyObject *expected) {
    IngotTensorFacts *facts = &into->facts;
    PyObject *type, *dtype, *device, *sizes, *strides;
    int requires_grad, is_leaf;
    unsigned long long keys;
    if (!PyArg_ParseTuple(expected, "OOOOOppK", &type, &dtype, &device, &sizes, &strides,
                          &requires_grad, &is_leaf, &keys))
        return -1;
    int number = ingot_dtype_number(dtype);
    if (number < 0 || ingot_device_numbers(device, &facts->device_type, &facts->device_index) < 0)
        return -1;
    into->type = (PyTypeObject *)type;
    facts->dtype = (int16_t)number;
    facts->dispatch_keys = keys;
    facts->requires_grad = requires_grad != 0;
    facts->is_leaf = is_leaf != 0;
    int64_t stride_count;
    if (fill_dims(sizes, facts->room, &facts->rank) < 0 ||
        fill_dims(strides, facts->room + facts->rank, &stride_count) < 0)
        return -1;
    facts->sizes = facts->room;
    facts->strides = facts->room + facts->rank;
    if (stride_count != facts->rank) {
        PyErr_SetString(PyExc_TypeError, "only strided tensors can be guarded");
        return -1;
    }
    return 0;
}

int ingot_fill_check(Check *check, PyObject *spec) {
    const char *name;
    PyObject *data;
    if (!PyArg_ParseTuple(spec, "sO", &name, &data))
        return -1;
    check->data = Py_NewRef(data);
    for (size_t i = 0; i < Py_ARRAY_LENGTH(check_kinds); i++)
        if (strcmp(check_kinds[i].name, name) == 0) {
            check->holds = check_kinds[i].holds;
            check->proof = check_kinds[i].proof;
            if (check_kinds[i].has_number)
                check->number = (int64_t)PyLong_AsLongLong(data);
        }
    if (check->holds == NULL)
        PyErr_Format(PyExc_ValueError, "no guard of kind '%s'", name);
    if (check->holds == check_tensor) {
        check->expected = PyMem_Calloc(1, sizeof *check->expected);
        return check->expected == NULL ? (PyErr_NoMemory(), -1)
                                       : fill_expectation(check->expected, data);
    }
    return PyErr_Occurred() ? -1 : 0;
}
