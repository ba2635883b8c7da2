#include "dtensors.h"

#include <stddef.h>
#include <string.h>

#include "tensor.h"

static PyObject *name_of_spec, *name_of_local;
static PyObject *names_of_parts[3]; /* what is asked of a spec */

/* -- what a tensor looks like ------------------------------------------------------------------ */

typedef struct {
    uint64_t dispatch_keys;
    int64_t rank, storage_offset, *dims; /* sizes, then strides; owned */
    int16_t dtype;
    int8_t device_type, device_index;
    bool requires_grad, is_leaf;
} Looks;

static bool note_looks(PyObject *tensor, Looks *looks) {
    IngotTensorFacts facts;
    if (ingot_tensor_facts(tensor, &facts) < 0)
        return false;
    size_t bytes = (size_t)facts.rank * sizeof *looks->dims;
    looks->dims = PyMem_Malloc(2 * bytes + 1);
    if (looks->dims == NULL)
        return false;
    memcpy(looks->dims, facts.sizes, bytes);
    memcpy(looks->dims + facts.rank, facts.strides, bytes);
    looks->rank = facts.rank;
    looks->storage_offset = facts.storage_offset;
    looks->dispatch_keys = facts.dispatch_keys;
    looks->device_type = facts.device_type;
    looks->device_index = facts.device_index;
    looks->dtype = facts.dtype;
    looks->requires_grad = facts.requires_grad;
    looks->is_leaf = facts.is_leaf;
    return true;
}

static bool looks_so(PyObject *tensor, const Looks *looks) {
    IngotTensorFacts facts;
    if (ingot_tensor_facts(tensor, &facts) < 0)
        return false;
    size_t bytes = (size_t)facts.rank * sizeof *looks->dims;
    return facts.rank == looks->rank && facts.dispatch_keys == looks->dispatch_keys &&
           facts.storage_offset == looks->storage_offset && facts.dtype == looks->dtype &&
           facts.device_type == looks->device_type && facts.device_index == looks->device_index &&
           facts.requires_grad == looks->requires_grad && facts.is_leaf == looks->is_leaf &&
           memcmp(facts.sizes, looks->dims, bytes) == 0 &&
           memcmp(facts.strides, looks->dims + facts.rank, bytes) == 0;
}

/* -- a function that remembers its last answer ------------------------------------------------- */

typedef struct {
    PyObject_HEAD PyObject *function;
    vectorcallfunc vectorcall;
    PyObject *answer, *spec, *parts[3]; /* NULL: nothing is remembered */
    Looks of_wrapper, of_local;
} OfTheLast;

static void forget(OfTheLast *last) {
    Py_CLEAR(last->answer);
    Py_CLEAR(last->spec);
    for (int i = 0; i < 3; i++)
        Py_CLEAR(last->parts[i]);
    PyMem_Free(last->of_wrapper.dims);
    PyMem_Free(last->of_local.dims);
    last->of_wrapper.dims = last->of_local.dims = NULL;
}

static bool has_parts(PyObject *spec, PyObject *const *parts) {
    for (int i = 0; i < 3; i++) {
        PyObject *part = PyObject_GetAttr(spec, names_of_parts[i]);
        Py_XDECREF(part); /* the spec holds it */
        if (part == NULL || part != parts[i])
            return false;
    }
    return true;
}

/* Whether it is as that of the last answer was. An exception may be set if not. */
static bool is_as_the_last(OfTheLast *last, PyObject *wrapper, PyObject *spec, PyObject *local) {
    return last->answer != NULL && spec == last->spec && ingot_is_plain_tensor(local) &&
           has_parts(spec, last->parts) && looks_so(wrapper, &last->of_wrapper) &&
           looks_so(local, &last->of_local);
}

/* Nothing is remembered where something is not as usual. */
static void remember(OfTheLast *last, PyObject *wrapper, PyObject *spec, PyObject *local,
                     PyObject *answer) {
    forget(last);
    bool done = ingot_is_plain_tensor(local) && ingot_tensor_facts_agree(wrapper) &&
                note_looks(wrapper, &last->of_wrapper) && note_looks(local, &last->of_local);
    for (int i = 0; done && i < 3; i++)
        done = (last->parts[i] = PyObject_GetAttr(spec, names_of_parts[i])) != NULL;
    if (!done) {
        PyErr_Clear();
        forget(last);
        return;
    }
    last->spec = Py_NewRef(spec);
    last->answer = Py_NewRef(answer);
}

static PyObject *ask(OfTheLast *last, PyObject *wrapper) {
    PyObject *spec = PyObject_GetAttr(wrapper, name_of_spec);
    PyObject *local = spec == NULL ? NULL : PyObject_GetAttr(wrapper, name_of_local);
    PyObject *answer = NULL;
    if (local != NULL && is_as_the_last(last, wrapper, spec, local))
        answer = Py_NewRef(last->answer);
    else if (local != NULL) {
        PyErr_Clear();
        answer = PyObject_CallOneArg(last->function, wrapper);
        if (answer != NULL)
            remember(last, wrapper, spec, local, answer);
    }
    Py_XDECREF(spec);
    Py_XDECREF(local);
    return answer;
}

static PyObject *last_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    if (PyVectorcall_NARGS(flags) != 1 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "a function of one DTensor");
    return ask((OfTheLast *)self, args[0]);
}

static PyObject *last_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function;
    static char *names[] = {"function", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &function))
        return NULL;
    OfTheLast *last = (OfTheLast *)type->tp_alloc(type, 0);
    if (last != NULL) {
        last->function = Py_NewRef(function);
        last->vectorcall = last_call;
    }
    return (PyObject *)last;
}

static int last_traverse(OfTheLast *last, visitproc visit, void *arg) {
    Py_VISIT(last->function);
    Py_VISIT(last->answer);
    Py_VISIT(last->spec);
    for (int i = 0; i < 3; i++)
        Py_VISIT(last->parts[i]);
    return 0;
}

static int last_clear(OfTheLast *last) {
    Py_CLEAR(last->function);
    forget(last);
    return 0;
}

static void last_dealloc(OfTheLast *last) {
    PyObject_GC_UnTrack(last);
    last_clear(last);
    Py_TYPE(last)->tp_free((PyObject *)last);
}

static PyObject *last_name(OfTheLast *last, void *Py_UNUSED(closure)) {
    return PyObject_GetAttrString(last->function, "__name__");
}

static PyObject *last_function(OfTheLast *last, void *Py_UNUSED(closure)) {
    return Py_NewRef(last->function);
}

static PyGetSetDef last_attributes[] = {
    {"__name__", (getter)last_name, NULL, "that of the function", NULL},
    {"function", (getter)last_function, NULL, "the function", NULL},
    {0},
};

static PyTypeObject OfTheLast_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.OfTheLast",
    .tp_doc = "OfTheLast(function): a function of how a DTensor is distributed and what it and its "
              "local tensor look like. It remembers what it gave for the last one, and gives that "
              "again for those alike: parameters and gradients are asked about in each step.",
    .tp_basicsize = sizeof(OfTheLast),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(OfTheLast, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = last_new,
    .tp_dealloc = (destructor)last_dealloc,
    .tp_traverse = (traverseproc)last_traverse,
    .tp_clear = (inquiry)last_clear,
    .tp_getset = last_attributes,
};

/* -- local tensors ----------------------------------------------------------------------------- */

static PyObject *arrived; /* gives one whose collective may still run */

static PyObject *local_of(PyObject *Py_UNUSED(module), PyObject *wrapper) {
    PyObject *local = PyObject_GetAttr(wrapper, name_of_local);
    if (local == NULL || ingot_is_plain_tensor(local) || arrived == NULL)
        return local;
    PyObject *awaited = PyObject_CallOneArg(arrived, local);
    Py_DECREF(local);
    return awaited;
}

static PyObject *await_locals_by(PyObject *Py_UNUSED(module), PyObject *function) {
    Py_XSETREF(arrived, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"local_of", local_of, METH_O,
     "local_of(wrapper) -> the local tensor of a real DTensor, which is waited for if its "
     "collective may still run."},
    {"await_locals_by", await_locals_by, METH_O,
     "await_locals_by(function): what waits for a local tensor that is no plain one."},
    {0},
};

int ingot_dtensors_register(PyObject *module) {
    static const char *const parts[] = {"mesh", "placements", "tensor_meta"};
    for (int i = 0; i < 3; i++)
        if ((names_of_parts[i] = PyUnicode_InternFromString(parts[i])) == NULL)
            return -1;
    name_of_spec = PyUnicode_InternFromString("_spec");
    name_of_local = PyUnicode_InternFromString("_local_tensor");
    if (name_of_spec == NULL || name_of_local == NULL || PyType_Ready(&OfTheLast_Type) < 0 ||
        PyModule_AddFunctions(module, functions) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "OfTheLast", (PyObject *)&OfTheLast_Type);
}
