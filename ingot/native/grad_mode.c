#include "grad_mode.h"

#include "tensor.h"

static bool (*is_enabled)(void);
static void (*set_enabled)(bool enabled);
static PyObject *python_is_enabled,
    *python_set_enabled; /* where the C++ functions are out of reach */

int ingot_grad_mode_init(void) {
    *(void **)&is_enabled = ingot_torch_symbol("_ZN3c108GradMode10is_enabledEv");
    *(void **)&set_enabled = ingot_torch_symbol("_ZN3c108GradMode11set_enabledEb");
    PyObject *torch = PyImport_ImportModule("torch");
    python_is_enabled = torch ? PyObject_GetAttrString(torch, "is_grad_enabled") : NULL;
    python_set_enabled = ingot_torch_private("set_grad_enabled");
    Py_XDECREF(torch);
    return python_is_enabled && python_set_enabled ? 0 : -1;
}

bool ingot_grad_is_enabled(void) {
    if (is_enabled)
        return is_enabled();
    PyObject *found = PyObject_CallNoArgs(python_is_enabled);
    Py_XDECREF(found);
    return found == Py_True;
}

bool ingot_swap_grad_mode(bool enabled) {
    if (is_enabled && set_enabled) {
        bool before = is_enabled();
        if (before != enabled)
            set_enabled(enabled);
        return before;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    bool before = ingot_grad_is_enabled();
    PyObject *done = PyObject_CallOneArg(python_set_enabled, enabled ? Py_True : Py_False);
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
    return before;
}
