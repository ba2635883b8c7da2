#include "iterators.h"

/* As in Objects/enumobject.c. */
typedef struct {
    PyObject_HEAD Py_ssize_t index; /* of the next element, -1 at the end */
    PyObject *seq;                  /* NULL where it has said that there are no more */
} Reversed;

/* reversed() and __setstate__ both ask the sequence for its length, which may be a method of the
 * user's. */
static PyObject *reversed_at(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *sequence;
    Py_ssize_t index;
    int ended;
    if (!PyArg_ParseTuple(arguments, "Onp", &sequence, &index, &ended))
        return NULL;
    Reversed *made = (Reversed *)PyReversed_Type.tp_alloc(&PyReversed_Type, 0);
    if (made == NULL)
        return NULL;
    made->index = ended || index < 0 ? -1 : index;
    made->seq = ended ? NULL : Py_NewRef(sequence);
    return (PyObject *)made;
}

static PyMethodDef methods[] = {
    {"reversed_at", reversed_at, METH_VARARGS,
     "reversed_at(sequence, index, ended): a reversed object over the sequence that gives the "
     "element at the index "
     "next; where it has ended, no more."},
    {NULL, NULL, 0, NULL},
};

int ingot_iterators_register(PyObject *module) {
    if (PyReversed_Type.tp_basicsize != sizeof(Reversed)) {
        PyErr_SetString(PyExc_ImportError, "reversed objects of this Python are not known");
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
