/* Where CPython's objects keep what tells that they have changed: words of memory that can be
   compared without a lookup. All that depends on the version of Python is here. */
#ifndef INGOT_WORDS_H
#define INGOT_WORDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Dictionaries of Python 3.14 have no version tag any more, and without the GIL no two words agree
 * with each other. */
#if SIZEOF_VOID_P == 8 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define INGOT_HAS_WORDS 1
#else
#define INGOT_HAS_WORDS 0
#endif

static inline uint64_t ingot_load_word(const void *address) {
    uint64_t word;
    memcpy(&word, address, sizeof word);
    return word;
}

#if INGOT_HAS_WORDS

/* The version tag of a dict: a number that no other state of any dict has ever had, nor will have.
   A dict that is changed, and a dict that is made in the memory of another, has a new one. */
static inline const void *ingot_dict_version(PyObject *dict) {
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored                                                                     \
    "-Wdeprecated-declarations" /* private to CPython since 3.12, but kept until 3.14 */
#endif
    return &((PyDictObject *)dict)->ma_version_tag;
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
}

static inline const void *ingot_dict_length(PyObject *dict) {
    return &((PyDictObject *)dict)->ma_used;
}

/* Whether all keys of a dict are exactly strings, so that looking one up runs no code of the
   user's: the byte dk_kind of its table, which `ingot_string_keys_are_known` has found there. */
static inline bool ingot_has_string_keys(PyObject *dict) {
    return ((const uint8_t *)((PyDictObject *)dict)->ma_keys)[10] != 0;
}

static inline bool ingot_string_keys_are_known(void) {
    PyObject *strings = Py_BuildValue("{s:i}", "a", 1), *others = Py_BuildValue("{i:i}", 1, 1);
    bool known = strings != NULL && others != NULL && ingot_has_string_keys(strings) &&
                 !ingot_has_string_keys(others);
    Py_XDECREF(strings);
    Py_XDECREF(others);
    return known;
}

/* Whether every change to this dict, the `__dict__` of an instance, gives it a new version tag.
   Since 3.13 an instance and its dict share the values, and attributes are set behind the dict's
   back, until the dict has a table of its own. To take the last item out and put it back gives it
   one, and changes nothing else. */
static inline bool ingot_dict_is_versioned(PyObject *dict) {
#if PY_VERSION_HEX >= 0x030D0000
    if (((PyDictObject *)dict)->ma_values != NULL && PyDict_CheckExact(dict)) {
        PyObject *item = PyObject_CallMethod(dict, "popitem", NULL);
        if (item == NULL ||
            PyDict_SetItem(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) < 0)
            PyErr_Clear();
        Py_XDECREF(item);
    }
    return ((PyDictObject *)dict)->ma_values == NULL;
#else
    (void)dict;
    return true;
#endif
}

/* The version tag of a class, 0 where it has none: a number that stands for what attributes are
   found in it. It shares a word with padding, which nobody writes. */
static inline const void *ingot_type_version(PyTypeObject *type) {
    _Static_assert(offsetof(PyTypeObject, tp_version_tag) % 8 == 0,
                   "the version tag of a class begins a word");
    _Static_assert(offsetof(PyTypeObject, tp_finalize) ==
                       offsetof(PyTypeObject, tp_version_tag) + 8,
                   "the version tag of a class has a word of its own");
    return &type->tp_version_tag;
}

/* Where an instance keeps its `__dict__`, made if need be; NULL where that place may move, or there
 * is none. */
static inline PyObject **ingot_dict_place(PyObject *instance) {
    if (PyType_Check(instance) || Py_TYPE(instance)->tp_itemsize != 0)
        return NULL;
    return _PyObject_GetDictPtr(instance);
}

/* Where a function keeps the field of this name; NULL for any other attribute. An empty place
 * stands for None. */
static inline PyObject **ingot_function_field(PyObject *function, PyObject *name) {
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {{"__code__", offsetof(PyFunctionObject, func_code)},
                  {"__defaults__", offsetof(PyFunctionObject, func_defaults)},
                  {"__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults)},
                  {"__closure__", offsetof(PyFunctionObject, func_closure)},
                  {"__globals__", offsetof(PyFunctionObject, func_globals)}};
    if (!PyFunction_Check(function) || !PyUnicode_CheckExact(name))
        return NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(fields); i++)
        if (PyUnicode_CompareWithASCIIString(name, fields[i].name) == 0)
            return (PyObject **)((char *)function + fields[i].offset);
    return NULL;
}

#endif
#endif
