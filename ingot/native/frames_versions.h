/* CPython's frames from C, for 3.11 to 3.14: all that differs between the versions, and nothing
   else, is here.

   A *unit* is the index of a 16-bit code unit: the byte offsets of `dis` are twice that. The
   position of a frame is kept before 3.13 as `prev_instr`, the unit before the next one to run;
   since 3.13 as `instr_ptr`, the next one to run. */
#ifndef INGOT_FRAMES_VERSIONS_H
#define INGOT_FRAMES_VERSIONS_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#endif
#include <Python.h>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_genobject.h>
#include <internal/pycore_interpframe.h>
#include <internal/pycore_stackref.h>
#endif
#include <internal/pycore_object.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#include <opcode.h>
#include <stdbool.h>

#ifdef Py_GIL_DISABLED
#error "frames are changed under the GIL: the free-threaded build is not supported"
#endif

#define PYTHON_3_12 (PY_VERSION_HEX >= 0x030c0000)
#define PYTHON_3_13 (PY_VERSION_HEX >= 0x030d0000)
#define PYTHON_3_14 (PY_VERSION_HEX >= 0x030e0000)

typedef _PyInterpreterFrame Frame;

#if PYTHON_3_12
#define request_extra_index PyUnstable_Eval_RequestCodeExtraIndex
#define get_extra PyUnstable_Code_GetExtra
#define set_extra PyUnstable_Code_SetExtra
#else
#define request_extra_index _PyEval_RequestCodeExtraIndex
#define get_extra _PyCode_GetExtra
#define set_extra _PyCode_SetExtra
#endif

#if PYTHON_3_13
#define is_finalizing Py_IsFinalizing
#else
#define is_finalizing _Py_IsFinalizing
#endif

/* -- a place of a frame ------------------------------------------------------------------------ */

/* What holds a local variable or an operand. Since 3.14 the low bits of the pointer say whether the
 * place owns the object, and a place may have a number in it: where an exception was raised. */
#if PYTHON_3_14

typedef _PyStackRef Place;

/* Borrowed; NULL where the place is empty. It must have no number. */
static inline PyObject *object_in(Place place) { return PyStackRef_AsPyObjectBorrow(place); }

/* For as long as somebody else owns the object, which may be NULL. */
static inline Place lent_place(PyObject *object) {
    return object == NULL ? PyStackRef_NULL : PyStackRef_FromPyObjectBorrow(object);
}

/* Steals the object, which may be NULL. */
static inline Place place_of(PyObject *object) {
    return object == NULL ? PyStackRef_NULL : PyStackRef_FromPyObjectSteal(object);
}

static inline bool has_number(Place place) { return PyStackRef_IsTaggedInt(place); }
static inline long number_in(Place place) { return (long)PyStackRef_UntagInt(place); }
static inline Place place_of_number(long number) { return PyStackRef_TagInt(number); }

static inline void clear_place(Place *place) {
    Place before = *place;
    *place = PyStackRef_NULL;
    if (!has_number(before))
        PyStackRef_XCLOSE(before);
}

#else

typedef PyObject *Place;

static inline PyObject *object_in(Place place) { return place; }
static inline Place lent_place(PyObject *object) { return object; }
static inline Place place_of(PyObject *object) { return object; }
static inline void clear_place(Place *place) { Py_CLEAR(*place); }

#endif

/* How many places have something in them: the local variables, and those of the operand stack that
 * are taken. */
static inline int places_taken(const Frame *frame) {
#if PYTHON_3_14
    return (int)(frame->stackpointer - frame->localsplus);
#else
    return frame->stacktop;
#endif
}

static inline void set_places_taken(Frame *frame, int count) {
#if PYTHON_3_14
    frame->stackpointer = frame->localsplus + count;
#else
    frame->stacktop = count;
#endif
}

/* -- what a frame is of ------------------------------------------------------------------------ */

/* Borrowed; NULL for a frame that runs no code object. */
static inline PyCodeObject *code_of(const Frame *frame) {
#if PYTHON_3_14
    PyObject *executable = object_in(frame->f_executable);
    return executable != NULL && PyCode_Check(executable) ? (PyCodeObject *)executable : NULL;
#elif PYTHON_3_13
    return PyCode_Check(frame->f_executable) ? (PyCodeObject *)frame->f_executable : NULL;
#else
    return frame->f_code;
#endif
}

#if PYTHON_3_12
/* The caller owns the code that was there. */
static inline void set_code(Frame *frame, PyCodeObject *code) {
#if PYTHON_3_14
    frame->f_executable = place_of(Py_NewRef(code));
#elif PYTHON_3_13
    frame->f_executable = Py_NewRef(code);
#else
    frame->f_code = (PyCodeObject *)Py_NewRef(code);
#endif
}
#endif

/* Borrowed; NULL where there is none. */
static inline PyFunctionObject *function_of(const Frame *frame) {
#if PYTHON_3_14
    PyObject *function = object_in(frame->f_funcobj);
#elif PYTHON_3_12
    PyObject *function = frame->f_funcobj;
#else
    PyObject *function = (PyObject *)frame->f_func;
#endif
    return function != NULL && PyFunction_Check(function) ? (PyFunctionObject *)function : NULL;
}

/* Does the evaluation loop keep something from this instruction for the next one, other than on the
 * stack? */
static inline bool belongs_to_the_next(int opcode) {
    switch (opcode) {
#ifdef PRECALL
    case PRECALL: /* comes between the next one and CALL; running it twice is running it once */
#endif
#ifdef KW_NAMES
    case KW_NAMES:
#endif
    case EXTENDED_ARG:
        return true;
    default:
        return false;
    }
}

static inline bool returns(int opcode) {
#ifdef RETURN_CONST
    return opcode == RETURN_VALUE || opcode == RETURN_CONST;
#else
    return opcode == RETURN_VALUE;
#endif
}

/* -- where it stands --------------------------------------------------------------------------- */

/* The next unit to run. */
static inline int position(const Frame *frame) {
#if PYTHON_3_13
    return (int)(frame->instr_ptr - _PyCode_CODE(code_of(frame)));
#else
    return (int)(frame->prev_instr + 1 - _PyCode_CODE(frame->f_code));
#endif
}

static inline void set_position(Frame *frame, int unit) {
#if PYTHON_3_13
    frame->instr_ptr = _PyCode_CODE(code_of(frame)) + unit;
#else
    frame->prev_instr = _PyCode_CODE(frame->f_code) + unit - 1;
#endif
}

static inline Frame *frame_of_generator(PyGenObject *generator) {
#if PYTHON_3_14
    return &generator->gi_iframe;
#else
    return (Frame *)generator->gi_iframe;
#endif
}

static inline bool is_suspended(const PyGenObject *generator) {
#if PYTHON_3_13
    return FRAME_STATE_SUSPENDED(generator->gi_frame_state);
#else
    return generator->gi_frame_state == FRAME_SUSPENDED;
#endif
}

/* Suspends a generator behind the YIELD_VALUE at `unit`. `argument` is that instruction's. */
static inline void set_suspended(PyGenObject *generator, int unit, int argument) {
    set_position(frame_of_generator(generator), unit + 1);
#if PYTHON_3_13
    generator->gi_frame_state = (int8_t)(argument ? FRAME_SUSPENDED_YIELD_FROM : FRAME_SUSPENDED);
#else
    (void)argument;
    generator->gi_frame_state = FRAME_SUSPENDED;
#endif
}

/* -- the thread's stack of frames -------------------------------------------------------------- */

static inline Frame **current_frame(PyThreadState *thread) {
#if PYTHON_3_13
    return &thread->current_frame;
#else
    return &thread->cframe->current_frame;
#endif
}

/* Does the code at its start tell tracers that a call begins? Then its returns tell them as well.
 * (From 3.12 on tracing is compiled into the code when it is next entered; before, the evaluation
 * loop asks the thread.) */
static inline bool reports_calls(const PyCodeObject *code) {
#if PYTHON_3_13
    int opcode = _PyCode_CODE(code)[code->_co_firsttraceable].op.code;
    return opcode != RESUME && opcode != RESUME_CHECK;
#elif PYTHON_3_12
    return _PyCode_CODE(code)[code->_co_firsttraceable].op.code != RESUME;
#else
    (void)code;
    return true;
#endif
}

/* -- what an instance holds -------------------------------------------------------------------- */

/* The values of an instance whose `__dict__` nobody has asked for; NULL for any other. */
static inline PyDictValues *inline_values(PyObject *instance) {
#if PYTHON_3_13
    if (!PyType_HasFeature(Py_TYPE(instance), Py_TPFLAGS_INLINE_VALUES) ||
        _PyObject_GetManagedDict(instance) != NULL)
        return NULL;
    PyDictValues *values = _PyObject_InlineValues(instance);
    return values->valid ? values : NULL;
#else
    if (!PyType_HasFeature(Py_TYPE(instance), Py_TPFLAGS_MANAGED_DICT))
        return NULL;
#if PYTHON_3_12
    PyDictOrValues place = *_PyObject_DictOrValuesPointer(instance);
    return _PyDictOrValues_IsValues(place) ? _PyDictOrValues_GetValues(place) : NULL;
#else
    return *_PyObject_ValuesPointer(instance);
#endif
#endif
}

/* How many attributes were ever set in there. */
static inline int count_inline(PyDictValues *values) {
#if PYTHON_3_13
    return values->size;
#else
    return ((const uint8_t *)values)[-2];
#endif
}

/* The value that was set as number `i`, borrowed; NULL where it was deleted. */
static inline PyObject *inline_value(PyDictValues *values, int i) {
#if PYTHON_3_13
    return values->values[get_insertion_order_array(values)[i]];
#else
    return values->values[((const uint8_t *)values)[-3 - i]];
#endif
}

/* The `__dict__` of an instance without inline values, borrowed; NULL where there is none yet. */
static inline PyObject *made_dict(PyObject *instance) {
    if (PyType_HasFeature(Py_TYPE(instance), Py_TPFLAGS_MANAGED_DICT)) {
#if PYTHON_3_13
        return (PyObject *)_PyObject_GetManagedDict(instance);
#elif PYTHON_3_12
        return _PyDictOrValues_GetDict(*_PyObject_DictOrValuesPointer(instance));
#else
        return *_PyObject_ManagedDictPointer(instance);
#endif
    }
    PyObject **place = _PyObject_GetDictPtr(instance);
    return place == NULL ? NULL : *place;
}

/* -- exceptions -------------------------------------------------------------------------------- */

/* An exception as it is, with its own traceback and context. Steals nothing. */
static inline void raise_as_it_is(PyObject *exception) {
#if PYTHON_3_12
    PyErr_SetRaisedException(Py_NewRef(exception));
#else
    PyErr_Restore(Py_NewRef(Py_TYPE(exception)), Py_NewRef(exception),
                  PyException_GetTraceback(exception));
#endif
}

#endif
