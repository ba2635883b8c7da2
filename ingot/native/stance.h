#ifndef INGOT_STANCE_H
#define INGOT_STANCE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* How many reasons there are, in all threads together, for compiled functions to run in eager. Almost always 0: one
 * load at each call. */
extern int ingot_eager_reasons;

/* Whether one of them concerns this thread. */
bool ingot_eager_here(void);

static inline bool ingot_runs_eager(void) { return ingot_eager_reasons != 0 && ingot_eager_here(); }

/* Calls `callable` hidden from torch.compile, whose frame hook would otherwise capture it where it is on. `args[-1]` may
 * be written to. */
PyObject *ingot_call_hidden(PyObject *callable, PyObject *const *args, size_t count);

int ingot_stance_register(PyObject *module);

#endif
