#include "places.h"

#include "tensor.h"

static int check(PyObject *sequence, Py_ssize_t count) {
    if (PySequence_Fast_GET_SIZE(sequence) < count) {
        PyErr_SetString(PyExc_ValueError, "there are fewer tensors");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!ingot_is_plain_tensor(PySequence_Fast_GET_ITEM(sequence, i))) {
            PyErr_Format(PyExc_TypeError, "%R is no plain tensor",
                         (PyObject *)Py_TYPE(PySequence_Fast_GET_ITEM(sequence, i)));
            return -1;
        }
    return 0;
}

static int read_addresses(PyObject *sequence, void **addresses, Py_ssize_t count) {
    if (check(sequence, count) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (ingot_tensor_data(PySequence_Fast_GET_ITEM(sequence, i), &addresses[i]) < 0)
            return -1;
    return 0;
}

static int clear_skipped(PyObject *skipped, void **addresses, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(skipped); i++) {
        Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(skipped, i));
        if (position < 0 || position >= count) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_IndexError, "no such tensor");
            return -1;
        }
        addresses[position] = NULL;
    }
    return 0;
}

static PyObject *addresses(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *given, *skipped;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(arguments, "OnO!", &given, &count, &PyTuple_Type, &skipped))
        return NULL;
    PyObject *sequence = PySequence_Fast(given, "tensors are wanted"), *result = NULL;
    if (sequence && count >= 0)
        result = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(void *));
    void **places = result ? (void **)PyBytes_AS_STRING(result) : NULL;
    if (places &&
        (read_addresses(sequence, places, count) < 0 || clear_skipped(skipped, places, count) < 0))
        Py_CLEAR(result);
    Py_XDECREF(sequence);
    if (result == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a negative number of tensors");
    return result;
}

static PyObject *storages(PyObject *Py_UNUSED(module), PyObject *given) {
    PyObject *sequence = PySequence_Fast(given, "tensors are wanted"), *result = NULL;
    Py_ssize_t count = sequence ? PySequence_Fast_GET_SIZE(sequence) : 0;
    if (sequence && check(sequence, count) == 0)
        result = PyTuple_New(count);
    for (Py_ssize_t i = 0; result && i < count; i++) {
        uintptr_t storage;
        PyObject *number = NULL;
        if (ingot_tensor_storage(PySequence_Fast_GET_ITEM(sequence, i), &storage) == 0)
            number = PyLong_FromSize_t(storage);
        if (number == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, number);
    }
    Py_XDECREF(sequence);
    return result;
}

static PyMethodDef methods[] = {
    {"addresses", addresses, METH_VARARGS,
     "addresses(tensors, count, skipped): where the first `count` begin, one pointer after the "
     "other, 0 for those "
     "skipped."},
    {"storages", storages, METH_O,
     "storages(tensors): what identifies the storage of each, without making a Python object of "
     "it."},
    {NULL, NULL, 0, NULL},
};

int ingot_places_register(PyObject *module) { return PyModule_AddFunctions(module, methods); }
