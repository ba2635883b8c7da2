/* What a captured program has asked a key for is not asked a second time, when its dict is built
   for the code behind a graph: the user's `__hash__` may count, or log. */
#include "hashed.h"

/* Of CPython, exported for its own modules; 3.13 does not declare it any more. */
extern int _PyDict_SetItem_KnownHash(PyObject *dict, PyObject *key, PyObject *item, Py_hash_t hash);

static PyObject *store_hashed(PyObject *Py_UNUSED(module), PyObject *const *args,
                              Py_ssize_t count) {
    if (count != 4 || !PyDict_Check(args[0]))
        return PyErr_Format(PyExc_TypeError,
                            "store_hashed takes a dict, a hash, a key and an item");
    Py_hash_t hash = PyLong_AsSsize_t(args[1]);
    if ((hash == -1 && PyErr_Occurred()) ||
        _PyDict_SetItem_KnownHash(args[0], args[2], args[3], hash) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"store_hashed", (PyCFunction)(void (*)(void))store_hashed, METH_FASTCALL,
     "store_hashed(dict, hash, key, item): dict[key] = item, where the hash of the key is known."},
    {NULL, NULL, 0, NULL},
};

int ingot_hashed_register(PyObject *module) { return PyModule_AddFunctions(module, functions); }
