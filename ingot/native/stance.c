/* When compiled functions run in eager although they could run compiled: the stance of the process,
 * and the disabled functions that a thread is in. */
#include "stance.h"

int ingot_eager_reasons;        /* guarded by the GIL, as all below */
static bool stance_is_eager;    /* of the process */
static _Thread_local int depth; /* of disabled functions that this thread is in */

bool ingot_eager_here(void) { return stance_is_eager || depth > 0; }

static PyObject *set_eager(PyObject *Py_UNUSED(module), PyObject *wanted) {
    int eager = PyObject_IsTrue(wanted);
    if (eager < 0)
        return NULL;
    ingot_eager_reasons += eager - stance_is_eager;
    stance_is_eager = eager;
    Py_RETURN_NONE;
}

static PyObject *call_eager(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    if (count == 0) {
        PyErr_SetString(PyExc_TypeError, "call_eager: no function is given");
        return NULL;
    }
    depth++, ingot_eager_reasons++;
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, names);
    depth--, ingot_eager_reasons--;
    return result;
}

static PyObject *runs_eager(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(ingot_runs_eager());
}

/* A function of torch.compile's, of its frame hook; NULL where there is none, with an exception or
 * without one. */
static PyObject *torch_function(const char *name) {
    PyObject *modules = PyImport_GetModuleDict();
    if (PyDict_GetItemString(modules, "torch._dynamo") == NULL)
        return NULL;
    PyObject *found = Py_XNewRef(PyDict_GetItemString(modules, "torch._C"));
    const char *const path[] = {"_dynamo", "eval_frame", name};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(path) && found != NULL; i++)
        Py_SETREF(found, PyObject_GetAttrString(found, path[i]));
    return found;
}

/* Sets this thread's hook of torch.compile's; gives the one before, or NULL without an exception
 * where there is none to set. */
static PyObject *set_torch_hook(PyObject *hook) {
    PyObject *found = torch_function("set_eval_frame"), *before = NULL;
    if (found != NULL)
        before = PyObject_CallOneArg(found, hook);
    Py_XDECREF(found);
    if (before == NULL)
        PyErr_Clear();
    return before;
}

bool ingot_torch_compiles(void) {
    static PyObject *get_hook;
    if (get_hook == NULL && (get_hook = torch_function("get_eval_frame_callback")) == NULL)
        return PyErr_Clear(), false;
    PyObject *hook = PyObject_CallNoArgs(get_hook);
    bool on = hook != NULL && hook != Py_None;
    Py_XDECREF(hook);
    PyErr_Clear();
    return on;
}

PyObject *ingot_hide_from_torch(void) { return set_torch_hook(Py_None); }

void ingot_show_to_torch(PyObject *hook) {
    if (hook == NULL)
        return;
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    Py_XDECREF(set_torch_hook(hook));
    Py_DECREF(hook);
    PyErr_Restore(type, raised, traceback);
}

static PyMethodDef functions[] = {
    {"set_eager", set_eager, METH_O,
     "set_eager(eager): whether compiled functions run in eager, in every thread."},
    {"call_eager", (PyCFunction)(void (*)(void))call_eager, METH_FASTCALL | METH_KEYWORDS,
     "call_eager(fn, /, *args, **kwargs): calls it, and what this thread calls meanwhile runs in "
     "eager."},
    {"runs_eager", runs_eager, METH_NOARGS,
     "Whether compiled functions run in eager in this thread, now."},
    {0},
};

int ingot_stance_register(PyObject *module) { return PyModule_AddFunctions(module, functions); }
