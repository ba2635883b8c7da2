#include "below_autograd.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    PyObject_HEAD PyObject *function, *guard; /* the class of torch's guard */
    vectorcallfunc vectorcall;
} BelowAutograd;

/* Calls a guard's `__exit__`; whether that went well. An exception that is set stays. */
static bool leave(PyObject *guard) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *left = PyObject_CallMethod(guard, "__exit__", "OOO", Py_None, Py_None, Py_None);
    bool went_well = left != NULL;
    Py_XDECREF(left);
    if (type != NULL)
        PyErr_Restore(type, value, trace);
    return went_well;
}

static PyObject *call_below(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    BelowAutograd *below = (BelowAutograd *)self;
    PyObject *guard = PyObject_CallNoArgs(below->guard);
    PyObject *entered = guard == NULL ? NULL : PyObject_CallMethod(guard, "__enter__", NULL);
    PyObject *result = NULL;
    if (entered != NULL) {
        result = PyObject_Vectorcall(below->function, args, flags, names);
        if (!leave(guard))
            Py_CLEAR(result);
    }
    Py_XDECREF(entered);
    Py_XDECREF(guard);
    return result;
}

static PyObject *below_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function, *guard;
    static char *names[] = {"function", "guard", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &function, &guard))
        return NULL;
    BelowAutograd *below = (BelowAutograd *)type->tp_alloc(type, 0);
    if (below != NULL) {
        below->function = Py_NewRef(function);
        below->guard = Py_NewRef(guard);
        below->vectorcall = call_below;
    }
    return (PyObject *)below;
}

static int below_traverse(BelowAutograd *below, visitproc visit, void *arg) {
    Py_VISIT(below->function);
    Py_VISIT(below->guard);
    return 0;
}

static int below_clear(BelowAutograd *below) {
    Py_CLEAR(below->function);
    Py_CLEAR(below->guard);
    return 0;
}

static void below_dealloc(BelowAutograd *below) {
    PyObject_GC_UnTrack(below);
    below_clear(below);
    Py_TYPE(below)->tp_free((PyObject *)below);
}

static PyTypeObject BelowAutograd_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.BelowAutograd",
    .tp_doc = "BelowAutograd(function, guard): calls a function within a guard of torch's, so that "
              "an op whose autograd is in Python runs without it.",
    .tp_basicsize = sizeof(BelowAutograd),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(BelowAutograd, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = below_new,
    .tp_dealloc = (destructor)below_dealloc,
    .tp_traverse = (traverseproc)below_traverse,
    .tp_clear = (inquiry)below_clear,
};

int ingot_below_autograd_register(PyObject *module) {
    if (PyType_Ready(&BelowAutograd_Type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "BelowAutograd", (PyObject *)&BelowAutograd_Type);
}
