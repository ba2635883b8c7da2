/* What the frames*.c files share. Include it first: CPython's internals must be asked for before
 * Python.h is read. */
#ifndef INGOT_FRAMES_PARTS_H
#define INGOT_FRAMES_PARTS_H

#include "frames_known.h"

#if INGOT_KNOWS_FRAMES
#include "frames_versions.h"
#else
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#endif

/* The object `_native.NULL`: an unbound local variable, a NULL on the operand stack, no decision.
 * Lives for ever. */
extern PyObject *ingot_null;

/* The class `_native.LastInstruction` of the number that CPython keeps on the operand stack while
 * an exception is handled: the unit of the instruction that raised it. A subclass of int. */
extern PyTypeObject *ingot_last_instruction;

#define IS_NULL(object) ((object) == ingot_null)

#if INGOT_KNOWS_FRAMES

/* Code as the compiler wrote it: neither specialized nor instrumented, caches zero. */
typedef struct {
    PyCodeObject *object;       /* borrowed */
    PyObject *bytes;            /* owned */
    const unsigned char *units; /* opcode and argument by turns */
    int size;                   /* in units */
} IngotCode;

static inline int opcode_at(const IngotCode *code, int unit) { return code->units[2 * unit]; }
static inline int argument_at(const IngotCode *code, int unit) { return code->units[2 * unit + 1]; }

/* Where a frame stands (see `set_position`) from which CPython raises, so that handlers and
   traceback are those of the instruction at `unit`. */
int ingot_raising_position(const IngotCode *code, int unit);

/* Adds resume, suspended_generator, generator_state. 0, or -1 with an exception set; so do the
 * others. */
int ingot_frames_resume_register(PyObject *module);

/* Adds the functions of the frame hook. */
int ingot_frames_hook_register(PyObject *module);

/* -- frames_tensors.c -- */

/* Whether it can neither be a tensor nor hold one: a number, a string, None. */
static inline bool ingot_is_plain(PyObject *object) {
    const unsigned long more = Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_LIST_SUBCLASS |
                               Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS;
    return (Py_TYPE(object)->tp_flags & more) == 0 && Py_TYPE(object)->tp_dictoffset == 0;
}

/* Whether there are instances of the tensor classes among the arguments (of which none need be
 * there), in the closure, or among the first few things that a container or an instance there
 * holds. No exception is set. */
bool ingot_tensors_are_near(PyFunctionObject *function, const Place *arguments, Py_ssize_t count);

/* Takes a tuple of classes. */
int ingot_set_tensor_classes(PyObject *wanted);

/* Adds tensors_are_near. */
int ingot_frames_tensors_register(PyObject *module);

#else

/* Adds all that the others would. */
int ingot_frames_unknown_register(PyObject *module);

#endif

#endif
