/* Whether tensors or modules are near at hand for a call: among its arguments, in the closure, or
   in a container or an instance there. Runs no code of the user's, and makes no `__dict__`. */
#include "frames_parts.h"

#if INGOT_KNOWS_FRAMES

#define FEW 16 /* of what a container holds */

static PyObject *classes; /* a tuple of classes written in Python, or NULL: as if it were empty */
static PyTypeObject *partial;
static PyObject *partial_args, *partial_keywords; /* its descriptors */

int ingot_set_tensor_classes(PyObject *wanted) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(wanted); i++) {
        PyObject *cls = PyTuple_GET_ITEM(wanted, i);
        if (!PyType_Check(cls) || !PyType_HasFeature((PyTypeObject *)cls, Py_TPFLAGS_HEAPTYPE))
            return PyErr_Format(PyExc_TypeError, "a class written in Python, not %R", cls), -1;
    }
    Py_XSETREF(classes, Py_NewRef(wanted));
    return 0;
}

/* isinstance() would ask for `__class__`, which may be code of the user's. */
static bool is_tensor(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || classes == NULL || type->tp_mro == NULL)
        return false; /* bases of a class that is written in C are so, too */
    PyObject *const *wanted = ((PyTupleObject *)classes)->ob_item;
    PyObject *const *bases = ((PyTupleObject *)type->tp_mro)->ob_item;
    Py_ssize_t count = PyTuple_GET_SIZE(classes), base_count = PyTuple_GET_SIZE(type->tp_mro);
    for (Py_ssize_t i = 0; i < base_count; i++)
        for (Py_ssize_t j = 0; j < count; j++)
            if (bases[i] == wanted[j])
                return true;
    return false;
}

static bool any_item(PyObject *const *items, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count && i < FEW; i++)
        if (is_tensor(items[i]))
            return true;
    return false;
}

static bool any_value(PyObject *dict, Py_ssize_t most) {
    Py_ssize_t place = 0;
    PyObject *value;
    for (Py_ssize_t i = 0; i < most && PyDict_Next(dict, &place, NULL, &value); i++)
        if (is_tensor(value))
            return true;
    return false;
}

static bool any_inline_value(PyDictValues *values) {
    int count = count_inline(values);
    for (int i = 0; i < count && i < FEW; i++) {
        PyObject *value = inline_value(values, i);
        if (value != NULL && is_tensor(value))
            return true;
    }
    return false;
}

static bool any_partial_argument(PyObject *object) {
    PyObject *args = Py_TYPE(partial_args)->tp_descr_get(partial_args, object, NULL);
    PyObject *keywords = Py_TYPE(partial_keywords)->tp_descr_get(partial_keywords, object, NULL);
    bool any = false;
    if (args != NULL && keywords != NULL && PyTuple_Check(args)) {
        Py_ssize_t count = PyTuple_GET_SIZE(args);
        any = any_item(((PyTupleObject *)args)->ob_item, count) ||
              (PyDict_Check(keywords) && any_value(keywords, FEW - count));
    }
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    PyErr_Clear();
    return any;
}

static bool any_attribute(PyObject *instance) {
    PyDictValues *values = inline_values(instance);
    if (values != NULL)
        return any_inline_value(values);
    PyTypeObject *type = Py_TYPE(instance);
    if (type->tp_dictoffset == 0 || PyType_Check(instance)) /* that of a class is no dict */
        return false;
    if (PyType_IsSubtype(type, partial))
        return any_partial_argument(instance);
    PyObject *dict = made_dict(instance);
    return dict != NULL && PyDict_Check(dict) && any_value(dict, FEW);
}

static bool holds_tensors(PyObject *value) {
    if (is_tensor(value))
        return true;
    if (PyTuple_Check(value))
        return any_item(((PyTupleObject *)value)->ob_item, PyTuple_GET_SIZE(value));
    if (PyList_Check(value))
        return any_item(((PyListObject *)value)->ob_item, PyList_GET_SIZE(value));
    if (PyDict_Check(value))
        return any_value(value, FEW);
    return any_attribute(value);
}

bool ingot_tensors_are_near(PyFunctionObject *function, const Place *arguments, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *argument = object_in(arguments[i]);
        if (argument != NULL && !ingot_is_plain(argument) && holds_tensors(argument))
            return true;
    }
    PyObject *closure = function->func_closure;
    for (Py_ssize_t i = 0; closure != NULL && i < PyTuple_GET_SIZE(closure); i++) {
        PyObject *held = PyCell_GET(PyTuple_GET_ITEM(closure, i));
        if (held != NULL && holds_tensors(held))
            return true;
    }
    return false;
}

static PyObject *tensors_are_near(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *function, *arguments;
    if (!PyArg_ParseTuple(args, "O!O!:tensors_are_near", &PyFunction_Type, &function, &PyTuple_Type,
                          &arguments))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    Place *places = PyMem_New(Place, (size_t)count + 1);
    if (places == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        places[i] = lent_place(PyTuple_GET_ITEM(arguments, i));
    bool near = ingot_tensors_are_near((PyFunctionObject *)function, places, count);
    PyMem_Free(places);
    return PyBool_FromLong(near);
}

static PyMethodDef methods[] = {
    {"tensors_are_near", tensors_are_near, METH_VARARGS,
     "tensors_are_near(function, arguments) -> bool: whether the arguments, the closure, or the "
     "first few of what a\ncontainer or an instance there holds have tensors among them: instances "
     "of the classes given to set_tensor_entry."},
    {0},
};

int ingot_frames_tensors_register(PyObject *module) {
    PyObject *functools = PyImport_ImportModule("functools");
    if (functools == NULL)
        return -1;
    partial = (PyTypeObject *)PyObject_GetAttrString(functools, "partial");
    Py_DECREF(functools);
    if (partial == NULL ||
        (partial_args = PyObject_GetAttrString((PyObject *)partial, "args")) == NULL ||
        (partial_keywords = PyObject_GetAttrString((PyObject *)partial, "keywords")) == NULL)
        return -1;
    return PyModule_AddFunctions(module, methods);
}

#endif
