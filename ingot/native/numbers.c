/* A tensor of a number costs far more than reading one: those made lately are kept. The memory of
   one that nobody else holds is another number's, else a tensor is made through torch's C ABI. */
#include "numbers.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "allocate.h"
#include "lending.h"
#include "tensor.h"

enum { KEPT_BITS = 8, KEPT = 1 << KEPT_BITS };

/* By their bits: zeros of either sign are two numbers. Nobody else writes them. */
static struct {
    uint64_t bits;
    PyObject *tensor;
} kept[KEPT];

static PyObject *maker, *float64;
static uint64_t plain_keys; /* the dispatch keys of what the maker makes */

static bool is_plain(PyObject *tensor) {
    IngotTensorFacts facts;
    return !ingot_tensor_facts_are_slow() && ingot_is_plain_tensor(tensor) &&
           ingot_tensor_facts(tensor, &facts) == 0 && facts.dispatch_keys == plain_keys;
}

/* NULL where torch makes a tensor of another kind, as in inference mode. */
static PyObject *make(PyObject *number) {
    IngotLayout layout = {
        .dtype = float64, .number = ingot_dtype_number(float64), .itemsize = sizeof(double)};
    void *data;
    PyObject *tensor = ingot_allocate(&layout, false, &data);
    if (tensor != NULL && is_plain(tensor))
        *(double *)data = PyFloat_AS_DOUBLE(number);
    else
        Py_CLEAR(tensor);
    PyErr_Clear();
    return tensor;
}

static PyObject *tensor_of(PyObject *Py_UNUSED(module), PyObject *number) {
    if (!PyFloat_CheckExact(number))
        return PyErr_Format(PyExc_TypeError, "%s is not float", Py_TYPE(number)->tp_name);
    if (maker == NULL)
        return PyErr_Format(PyExc_RuntimeError, "nothing makes tensors of numbers");
    const double value = PyFloat_AS_DOUBLE(number);
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const size_t place = bits * 0x9E3779B97F4A7C15u >> (64 - KEPT_BITS);
    PyObject *tensor = kept[place].tensor;
    if (tensor != NULL && kept[place].bits == bits)
        return Py_NewRef(tensor);
    kept[place].tensor = NULL; /* what else runs until it is written is not given it */
    void *data;
    if (tensor != NULL && ingot_is_alone(tensor) && ingot_tensor_data(tensor, &data) == 0) {
        *(double *)data = value;
    } else {
        Py_XDECREF(tensor);
        tensor = make(number);
        if (tensor == NULL &&
            ((tensor = PyObject_CallOneArg(maker, number)) == NULL || !is_plain(tensor)))
            return tensor;
    }
    PyObject *before = kept[place].tensor;
    kept[place].bits = bits;
    kept[place].tensor = Py_NewRef(tensor);
    Py_XDECREF(before);
    return tensor;
}

static PyObject *make_numbers_by(PyObject *Py_UNUSED(module), PyObject *function) {
    IngotTensorFacts facts;
    PyObject *tensor = PyObject_CallFunction(function, "d", 1.0);
    if (tensor == NULL || ingot_tensor_facts(tensor, &facts) < 0) {
        Py_XDECREF(tensor);
        return NULL;
    }
    plain_keys = facts.dispatch_keys;
    Py_DECREF(tensor);
    Py_XSETREF(maker, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"tensor_of", tensor_of, METH_O,
     "A float as a tensor of rank 0, which may be that of another call. Raises TypeError for what "
     "is none."},
    {"make_numbers_by", make_numbers_by, METH_O,
     "make_numbers_by(function): what makes a tensor of a float where torch's C ABI does not."},
    {0},
};

int ingot_numbers_register(PyObject *module) {
    PyObject *torch = PyImport_ImportModule("torch");
    float64 = torch ? PyObject_GetAttrString(torch, "float64") : NULL;
    Py_XDECREF(torch);
    return float64 == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
