#include "frames_parts.h"

#include "frames.h"

static PyObject *null_repr(PyObject *Py_UNUSED(self)) { return PyUnicode_FromString("NULL"); }

/* Copied as itself and pickled by its name. */
static PyObject *null_reduce(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    return PyUnicode_FromString("NULL");
}

static PyMethodDef null_methods[] = {
    {"__reduce__", null_reduce, METH_NOARGS, "Pickled by its name."},
    {0},
};

static PyTypeObject Null_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Null",
    .tp_doc = "The type of NULL, which stands for what is absent where None is a value.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = null_repr,
    .tp_methods = null_methods,
};

PyObject *ingot_null;
PyTypeObject *ingot_last_instruction;

/* Adds LastInstruction. */
static int register_last_instruction(PyObject *module) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Where the exception that is being handled was raised: an instruction's unit."},
        {0, NULL},
    };
    static PyType_Spec spec = {.name = "ingot.native._native.LastInstruction",
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    PyObject *bases = PyTuple_Pack(1, (PyObject *)&PyLong_Type);
    if (bases != NULL)
        ingot_last_instruction = (PyTypeObject *)PyType_FromSpecWithBases(&spec, bases);
    Py_XDECREF(bases);
    if (ingot_last_instruction == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "LastInstruction", (PyObject *)ingot_last_instruction);
}

int ingot_frames_register(PyObject *module) {
    if (PyType_Ready(&Null_Type) < 0 || (ingot_null = PyObject_New(PyObject, &Null_Type)) == NULL ||
        PyModule_AddObjectRef(module, "NULL", ingot_null) < 0)
        return -1;
    PyObject *known = INGOT_KNOWS_FRAMES ? Py_True : Py_False;
    if (register_last_instruction(module) < 0 ||
        PyModule_AddObjectRef(module, "KNOWS_FRAMES", known) < 0)
        return -1;
#if INGOT_KNOWS_FRAMES
    if (ingot_frames_resume_register(module) < 0 || ingot_frames_tensors_register(module) < 0)
        return -1;
    return ingot_frames_hook_register(module);
#else
    return ingot_frames_unknown_register(module);
#endif
}
