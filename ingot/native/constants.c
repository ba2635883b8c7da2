#include "constants.h"

#include <string.h>

static PyTypeObject *device_type, *size_type;

int ingot_constants_init(void) {
    PyObject *torch = PyImport_ImportModule("torch");
    if (torch == NULL)
        return -1;
    device_type = (PyTypeObject *)PyObject_GetAttrString(torch, "device");
    size_type = (PyTypeObject *)PyObject_GetAttrString(torch, "Size");
    Py_DECREF(torch);
    return device_type == NULL || size_type == NULL ? -1 : 0;
}

static bool compare(PyObject *a, PyObject *b) {
    int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0)
        PyErr_Clear();
    return equal == 1;
}

bool ingot_same_constant(PyObject *a, PyObject *b) {
    if (a == b)
        return true;
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b))
        return false;
    if (type == &PyFloat_Type)
        return memcmp(&((PyFloatObject *)a)->ob_fval, &((PyFloatObject *)b)->ob_fval,
                      sizeof(double)) == 0;
    if (type == &PyComplex_Type)
        return memcmp(&((PyComplexObject *)a)->cval, &((PyComplexObject *)b)->cval,
                      sizeof(Py_complex)) == 0;
    if (type == &PyTuple_Type || type == size_type) {
        bool same = PyTuple_GET_SIZE(a) == PyTuple_GET_SIZE(b);
        for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(a); i++)
            same = ingot_same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
        return same;
    }
    bool by_value = type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type ||
                    type == device_type;
    return by_value && compare(a, b);
}
