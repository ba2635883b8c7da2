#include "binding.h"

#include <string.h>

static PyObject **names_of(const IngotSignature *signature) {
    return ((PyTupleObject *)signature->names)->ob_item;
}

int ingot_signature_init(IngotSignature *signature, PyObject *function, bool passes_function) {
    if (!PyFunction_Check(function)) {
        PyErr_Format(PyExc_TypeError, "expected a Python function or a bound method of one, got %R",
                     function);
        return -1;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    PyObject *names = PyObject_GetAttrString((PyObject *)code, "co_varnames");
    if (names == NULL)
        return -1;
    ingot_signature_clear(signature);
    *signature = (IngotSignature){
        .function = Py_NewRef(function),
        .code = Py_NewRef((PyObject *)code),
        .names = names,
        .positional_only = code->co_posonlyargcount,
        .positional = code->co_argcount,
        .keyword_only = code->co_kwonlyargcount,
        .has_args = (code->co_flags & CO_VARARGS) != 0,
        .has_kwargs = (code->co_flags & CO_VARKEYWORDS) != 0,
        .passes_function = passes_function,
    };
    signature->slots = signature->positional + signature->keyword_only + signature->has_args +
                       signature->has_kwargs + signature->passes_function;
    return 0;
}

void ingot_signature_clear(IngotSignature *signature) {
    Py_CLEAR(signature->function);
    Py_CLEAR(signature->code);
    Py_CLEAR(signature->names);
}

int ingot_signature_refresh(IngotSignature *signature) {
    if (PyFunction_GET_CODE(signature->function) == signature->code)
        return 0;
    PyObject *function = Py_NewRef(signature->function);
    int status = ingot_signature_init(signature, function, signature->passes_function);
    Py_DECREF(function);
    return status;
}

/* The parameter that may be given by this name; -1 if there is none. */
static Py_ssize_t find_parameter(const IngotSignature *signature, PyObject *name) {
    PyObject **names = names_of(signature);
    Py_ssize_t end = signature->positional + signature->keyword_only;
    for (Py_ssize_t i = signature->positional_only; i < end; i++)
        if (names[i] == name)
            return i;
    for (Py_ssize_t i = signature->positional_only; i < end; i++) /* a name that is not interned */
        if (PyUnicode_Compare(names[i], name) == 0)
            return i;
    return -1;
}

static int bind_positional(const IngotSignature *signature, PyObject *first, PyObject *const *args,
                           Py_ssize_t count, PyObject **slots) {
    Py_ssize_t shift = first != NULL, given = count + shift,
               taken = given < signature->positional ? given : signature->positional;
    Py_ssize_t rest = given - taken;
    if (rest > 0 && !signature->has_args)
        return 0;
    if (shift && taken > 0)
        slots[0] = Py_NewRef(first);
    for (Py_ssize_t i = shift; i < taken; i++)
        slots[i] = Py_NewRef(args[i - shift]);
    if (!signature->has_args)
        return 1;
    PyObject *extra = PyTuple_New(rest);
    if (extra == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < rest; i++) {
        Py_ssize_t position = taken + i - shift;
        PyTuple_SET_ITEM(extra, i, Py_NewRef(position < 0 ? first : args[position]));
    }
    slots[signature->positional + signature->keyword_only] = extra;
    return 1;
}

static int bind_keywords(const IngotSignature *signature, PyObject *const *values, PyObject *names,
                         PyObject **slots) {
    PyObject *extra = NULL;
    if (signature->has_kwargs) {
        if ((extra = PyDict_New()) == NULL)
            return -1;
        slots[signature->positional + signature->keyword_only + signature->has_args] = extra;
    }
    Py_ssize_t count = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        Py_ssize_t parameter = find_parameter(signature, name);
        if (parameter < 0) {
            if (extra == NULL)
                return 0;
            if (PyDict_SetItem(extra, name, values[i]) < 0)
                return -1;
        } else if (slots[parameter] != NULL) {
            return 0;
        } else {
            slots[parameter] = Py_NewRef(values[i]);
        }
    }
    return 1;
}

static int bind_defaults(const IngotSignature *signature, PyObject **slots) {
    PyObject *defaults = PyFunction_GET_DEFAULTS(signature->function);
    Py_ssize_t first = signature->positional - (defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults));
    for (Py_ssize_t i = 0; i < signature->positional; i++)
        if (slots[i] == NULL) {
            if (i < first)
                return 0;
            slots[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, i - first));
        }
    PyObject *by_name = PyFunction_GET_KW_DEFAULTS(signature->function);
    for (Py_ssize_t i = signature->positional; i < signature->positional + signature->keyword_only;
         i++)
        if (slots[i] == NULL) {
            PyObject *value =
                by_name == NULL ? NULL : PyDict_GetItemWithError(by_name, names_of(signature)[i]);
            if (value == NULL)
                return PyErr_Occurred() ? -1 : 0;
            slots[i] = Py_NewRef(value);
        }
    return 1;
}

int ingot_bind(const IngotSignature *signature, PyObject *first, PyObject *const *args,
               Py_ssize_t positional, PyObject *names, PyObject **slots) {
    memset(slots, 0, (size_t)signature->slots * sizeof *slots);
    int status = bind_positional(signature, first, args, positional, slots);
    if (status == 1 && (names != NULL || signature->has_kwargs))
        status = bind_keywords(signature, args + positional, names, slots);
    if (status == 1)
        status = bind_defaults(signature, slots);
    if (signature->passes_function)
        slots[signature->slots - 1] = Py_NewRef(signature->function);
    if (status != 1)
        for (Py_ssize_t i = 0; i < signature->slots; i++)
            Py_CLEAR(slots[i]);
    return status;
}
