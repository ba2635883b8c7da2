#ifndef INGOT_STANCE_H
#define INGOT_STANCE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* How many reasons there are, in all threads together, for compiled functions to run in eager.
 * Almost always 0: one load at each call. */
extern int ingot_eager_reasons;

/* Whether one of them concerns this thread. */
bool ingot_eager_here(void);

static inline bool ingot_runs_eager(void) { return ingot_eager_reasons != 0 && ingot_eager_here(); }

/* Whether some frame hook is on in the interpreter: torch.compile's, it may be. */
static inline bool ingot_frames_are_hooked(void) {
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) !=
           _PyEval_EvalFrameDefault;
}

/* Whether this thread is in a function that torch.compile compiles, with all that it calls. No
 * exception is set. */
bool ingot_torch_compiles(void);

/* Turns torch.compile's frame hook off for this thread, so that it captures nothing of Ingot's;
 * gives what it was, or NULL, for `ingot_show_to_torch`. Neither changes the exception that is set.
 */
PyObject *ingot_hide_from_torch(void);
void ingot_show_to_torch(PyObject *hook);

int ingot_stance_register(PyObject *module);

#endif
