/* LibraryLock: in place of llvmlite's lock, which a signal can make it lose. */
#include "library_lock.h"

int ingot_lock_take(PyObject *lock) {
    PyObject *taken = PyObject_CallMethod(lock, "acquire", NULL);
    Py_XDECREF(taken);
    return taken == NULL ? -1 : 0;
}

void ingot_lock_let_go(PyObject *lock) {
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    PyObject *done = PyObject_CallMethod(lock, "release", NULL);
    if (done == NULL)
        PyErr_Clear(); /* it was made anew by a fork */
    Py_XDECREF(done);
    PyErr_Restore(type, raised, traceback);
}

typedef struct {
    PyObject_HEAD PyObject *lock; /* a threading.RLock */
    /* a list of pairs: called behind each acquisition, and before each release */
    PyObject *callbacks;
} LibraryLock;

/* Calls one of each pair; 0, or -1 with what the first raised, behind which none is called. */
static int call_back(LibraryLock *lock, Py_ssize_t which) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lock->callbacks); i++) {
        PyObject *pair = Py_NewRef(PyList_GET_ITEM(lock->callbacks, i));
        PyObject *callback = PySequence_GetItem(pair, which), *result = NULL;
        if (callback != NULL)
            result = PyObject_CallNoArgs(callback);
        Py_XDECREF(callback);
        Py_DECREF(pair);
        if (result == NULL)
            return -1;
        Py_DECREF(result);
    }
    return 0;
}

static PyObject *library_lock_exit(LibraryLock *lock, PyObject *Py_UNUSED(raised)) {
    int status = call_back(lock, 1);
    ingot_lock_let_go(lock->lock);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

/* From 3.14 on CPython runs the handlers of signals once `__enter__` has returned, before the block
   has begun that would leave. So those that wait run here. -1 with an exception set: the lock is
   not taken. */
static int handle_signals(LibraryLock *lock) {
#if PY_VERSION_HEX >= 0x030E0000
    if (PyErr_CheckSignals() == 0)
        return 0;
    PyObject *raised = PyErr_GetRaisedException();
    Py_XDECREF(library_lock_exit(lock, NULL));
    PyErr_SetRaisedException(raised); /* in place of what a callback raises */
    return -1;
#else
    (void)lock;
    return 0;
#endif
}

static PyObject *library_lock_enter(LibraryLock *lock, PyObject *Py_UNUSED(ignored)) {
    if (ingot_lock_take(lock->lock) < 0)
        return NULL;
    if (call_back(lock, 0) == 0)
        return handle_signals(lock) < 0 ? NULL : Py_NewRef(Py_None);
    ingot_lock_let_go(lock->lock);
    return NULL;
}

static PyObject *library_lock_register(LibraryLock *lock, PyObject *args) {
    PyObject *acquired, *released, *pair;
    if (!PyArg_ParseTuple(args, "OO:register", &acquired, &released) ||
        (pair = PyTuple_Pack(2, acquired, released)) == NULL)
        return NULL;
    int status = PyList_Append(lock->callbacks, pair);
    Py_DECREF(pair);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *library_lock_unregister(LibraryLock *lock, PyObject *args) {
    PyObject *acquired, *released;
    if (!PyArg_ParseTuple(args, "OO:unregister", &acquired, &released))
        return NULL;
    return PyObject_CallMethod(lock->callbacks, "remove", "((OO))", acquired, released);
}

static PyObject *library_lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *made, *callbacks;
    static char *names[] = {"lock", "callbacks", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:LibraryLock", names, &made, &PyList_Type,
                                     &callbacks))
        return NULL;
    LibraryLock *lock = (LibraryLock *)type->tp_alloc(type, 0);
    if (lock == NULL)
        return NULL;
    lock->lock = Py_NewRef(made);
    lock->callbacks = Py_NewRef(callbacks);
    return (PyObject *)lock;
}

static int library_lock_traverse(LibraryLock *lock, visitproc visit, void *arg) {
    Py_VISIT(lock->lock);
    Py_VISIT(lock->callbacks);
    return 0;
}

static void library_lock_dealloc(LibraryLock *lock) {
    PyObject_GC_UnTrack(lock);
    Py_XDECREF(lock->lock);
    Py_XDECREF(lock->callbacks);
    Py_TYPE(lock)->tp_free((PyObject *)lock);
}

static PyMethodDef library_lock_methods[] = {
    {"__enter__", (PyCFunction)library_lock_enter, METH_NOARGS, "Takes the lock, then calls back."},
    {"__exit__", (PyCFunction)library_lock_exit, METH_VARARGS,
     "Calls back, then lets go of the lock."},
    {"register", (PyCFunction)library_lock_register, METH_VARARGS,
     "register(acquired, released): adds callbacks."},
    {"unregister", (PyCFunction)library_lock_unregister, METH_VARARGS, "Takes them away again."},
    {0},
};

static PyTypeObject LibraryLock_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.LibraryLock",
    .tp_doc = "LibraryLock(lock, callbacks): a lock as llvmlite's, but taken and left in one step "
              "each, between which no handler of a signal runs; where a callback raises, it is not "
              "taken.",
    .tp_basicsize = sizeof(LibraryLock),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = library_lock_new,
    .tp_dealloc = (destructor)library_lock_dealloc,
    .tp_traverse = (traverseproc)library_lock_traverse,
    .tp_methods = library_lock_methods,
};

int ingot_library_lock_register(PyObject *module) {
    if (PyType_Ready(&LibraryLock_Type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "LibraryLock", (PyObject *)&LibraryLock_Type);
}
