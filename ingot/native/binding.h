/* Binding the arguments of a call to the slots of a Python function, without running any Python. */
#ifndef INGOT_BINDING_H
#define INGOT_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* The signature of a Python function, read from its code object. */
typedef struct {
    PyObject *function, *code, *names; /* owned; names are co_varnames */
    Py_ssize_t positional_only, positional,
        keyword_only; /* `positional` counts the positional-only ones as well */
    Py_ssize_t slots; /* all parameters, *args and **kwargs included, and the function if it is
                         passed */
    int has_args, has_kwargs;
    bool passes_function; /* in the last slot */
} IngotSignature;

/* Reads the signature of a function, which it holds. 0, or -1 with an exception set. */
int ingot_signature_init(IngotSignature *signature, PyObject *function, bool passes_function);
void ingot_signature_clear(IngotSignature *signature);

/* Reads it again if the function's __code__ was replaced. 0, or -1 with an exception set. */
int ingot_signature_refresh(IngotSignature *signature);

/* Fills `slots` (signature->slots of them) with new references: parameters in the order of
   co_varnames, then *args, **kwargs, and the function if it is passed. `first` (may be NULL) goes
   before the positional arguments. 1 if they fit, 0 if Python itself would raise TypeError (no
   exception is set), -1 with an exception set. In the last two cases the slots hold nothing. */
int ingot_bind(const IngotSignature *signature, PyObject *first, PyObject *const *args,
               Py_ssize_t positional, PyObject *names, PyObject **slots);

#endif
