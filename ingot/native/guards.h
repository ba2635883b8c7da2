/* The guard tree: the facts of one entry, checked in a single walk that also collects the graph's
 * inputs. */
#ifndef INGOT_GUARDS_H
#define INGOT_GUARDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "state.h"

extern PyTypeObject IngotGuardTree_Type;

/* Adds GuardTree to the module. 0, or -1 with an exception set. */
int ingot_guards_register(PyObject *module);

Py_ssize_t ingot_guard_tree_slot_count(PyObject *tree);
Py_ssize_t ingot_guard_tree_input_count(PyObject *tree);

/* The state around a call, read once for all the trees that are tried. Zero-initialize before the
 * first. */
typedef struct {
    bool read, readable;
    IngotGlobalState state;
} IngotSurroundings;

/* Whether every fact holds for these argument slots (at least slot_count of them). If so, `inputs`
   receives input_count new references. An error while reading a fact counts as a failure: no
   exception is left set. */
bool ingot_guard_tree_check(PyObject *tree, PyObject *const *slots, PyObject **inputs,
                            IngotSurroundings *around);

#endif
