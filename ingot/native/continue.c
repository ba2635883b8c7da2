#include "continue.h"

#include <stddef.h>
#include <structmember.h>

static PyObject *continue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"target", "state", NULL};
    PyObject *target, *state;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:Continue", names, &target, &PyTuple_Type,
                                     &state))
        return NULL;
    IngotContinue *made = (IngotContinue *)type->tp_alloc(type, 0);
    if (made != NULL) {
        made->target = Py_NewRef(target);
        made->state = Py_NewRef(state);
    }
    return (PyObject *)made;
}

static int continue_traverse(IngotContinue *self, visitproc visit, void *arg) {
    Py_VISIT(self->target);
    Py_VISIT(self->state);
    return 0;
}

static int continue_clear(IngotContinue *self) {
    Py_CLEAR(self->target);
    Py_CLEAR(self->state);
    return 0;
}

static void continue_dealloc(IngotContinue *self) {
    PyObject_GC_UnTrack(self);
    continue_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef members[] = {
    {"target", T_OBJECT, offsetof(IngotContinue, target), READONLY, "the callable that goes on"},
    {"state", T_OBJECT, offsetof(IngotContinue, state), READONLY, "its arguments, a tuple"},
    {0},
};

PyTypeObject IngotContinue_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Continue",
    .tp_doc = "Continue(target, state): given by a residual, the dispatcher that ran it calls "
              "target(*state) in its stead, "
              "so that a chain of graph breaks, however long, takes no stack.",
    .tp_basicsize = sizeof(IngotContinue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = continue_new,
    .tp_dealloc = (destructor)continue_dealloc,
    .tp_traverse = (traverseproc)continue_traverse,
    .tp_clear = (inquiry)continue_clear,
    .tp_members = members,
};

int ingot_continue_register(PyObject *module) {
    if (PyType_Ready(&IngotContinue_Type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Continue", (PyObject *)&IngotContinue_Type);
}
