/* In place of frames_hook.c and its kin for a CPython whose frames are not known: none is looked
   at, and none can be made. Nothing is captured there, so that nobody asks for one. */
#include "frames_parts.h"

#if !INGOT_KNOWS_FRAMES

#include "work.h"

_Thread_local IngotWork ingot_work;

static PyObject *do_nothing(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args),
                            PyObject *Py_UNUSED(kwargs)) {
    Py_RETURN_NONE;
}

static PyObject *say_no(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args),
                        PyObject *Py_UNUSED(kwargs)) {
    Py_RETURN_FALSE;
}

static PyObject *refuse(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args),
                        PyObject *Py_UNUSED(kwargs)) {
    return PyErr_SetString(PyExc_RuntimeError, "the frames of this Python are not known"), NULL;
}

#define METHOD(name, function)                                                                     \
    {name, (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS,                    \
     "See frames_hook.c and frames_resume.c."}

static PyMethodDef methods[] = {
    METHOD("hook_enter", do_nothing),
    METHOD("hook_leave", do_nothing),
    METHOD("hook_pause", do_nothing),
    METHOD("hook_unpause", do_nothing),
    METHOD("count_compilation", do_nothing),
    METHOD("set_frame_handler", do_nothing),
    METHOD("set_tensor_entry", do_nothing),
    METHOD("set_code_entry", do_nothing),
    METHOD("clear_code_entries", do_nothing),
    METHOD("generator_state", do_nothing),
    METHOD("hook_active", say_no),
    METHOD("tensors_are_near", say_no),
    METHOD("call_hooked", refuse),
    METHOD("call_plain", refuse),
    METHOD("code_entry", refuse),
    METHOD("code_looks", refuse),
    METHOD("resume", refuse),
    METHOD("suspended_generator", refuse),
    METHOD("restore_generator", refuse),
    METHOD("finish_generator", refuse),
    {0},
};

int ingot_frames_unknown_register(PyObject *module) {
    return PyModule_AddFunctions(module, methods);
}

#endif
