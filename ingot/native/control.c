/* The types `Conditional` and `Loop`, which call one of two programs, or two in turn.

   A program calls them as it does functions of a library. No Python runs in between. */
#include "control.h"
#include "program.h"
#include "tensor.h"

#include <stddef.h>
#include <structmember.h>

/* Of a Conditional the programs for a predicate that holds, and for one that does not; of a Loop
 * its condition and its body. */
typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *first, *second;
} Pair;

/* What a tensor of one bool holds. -1: error. */
static int truth_of(PyObject *predicate) {
    IngotTensorFacts facts;
    void *data;
    if (!ingot_is_plain_tensor(predicate) || ingot_tensor_facts(predicate, &facts) < 0)
        return PyErr_Occurred() ? -1 : PyObject_IsTrue(predicate);
    if (facts.device_type != 0)
        return PyObject_IsTrue(predicate);
    return ingot_tensor_data(predicate, &data) < 0 ? -1 : *(const char *)data != 0;
}

static int refuse_keywords(PyObject *keywords) {
    if (keywords == NULL || PyTuple_GET_SIZE(keywords) == 0)
        return 0;
    PyErr_SetString(PyExc_TypeError, "programs take no keyword arguments");
    return -1;
}

/* conditional(predicate, *inputs): the outputs of the program that the predicate chooses. */
static PyObject *choose(PyObject *self, PyObject *const *arguments, size_t flags,
                        PyObject *keywords) {
    const Pair *pair = (Pair *)self;
    Py_ssize_t n = PyVectorcall_NARGS(flags);
    if (n < 1 || refuse_keywords(keywords) < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no predicate is given");
    int truth = truth_of(arguments[0]);
    if (truth < 0)
        return NULL;
    PyObject *program = truth ? pair->first : pair->second;
    PyObject *outputs = PyTuple_New(ingot_program_output_count(program));
    if (outputs &&
        ingot_program_run(program, arguments + 1, n - 1, ((PyTupleObject *)outputs)->ob_item) < 0)
        Py_CLEAR(outputs);
    return outputs;
}

/* Whether the condition holds for a state and the other operands. -1: error. */
static int goes_on(PyObject *condition, PyObject *const *inputs, Py_ssize_t n) {
    PyObject *predicate;
    if (PyErr_CheckSignals() < 0 || ingot_program_run(condition, inputs, n, &predicate) < 0)
        return -1;
    int truth = truth_of(predicate);
    Py_DECREF(predicate);
    return truth;
}

/* loop(*state, *operands): the state once the condition does not hold for it any more. A step lets
 * go of the state before, whose memory the next may take. */
static PyObject *repeat(PyObject *self, PyObject *const *arguments, size_t flags,
                        PyObject *keywords) {
    const Pair *pair = (Pair *)self;
    Py_ssize_t n = PyVectorcall_NARGS(flags), carried = ingot_program_output_count(pair->second);
    if (n < carried || refuse_keywords(keywords) < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a loop lacks its state");
    PyObject *state = PyTuple_New(carried),
             **inputs = PyMem_Malloc((size_t)(n + 1) * sizeof *inputs);
    int truth = state && inputs ? 1 : -1;
    if (inputs == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; truth == 1 && i < carried; i++)
        PyTuple_SET_ITEM(state, i, Py_NewRef(arguments[i]));
    while (truth == 1) {
        for (Py_ssize_t i = 0; i < n; i++)
            inputs[i] = i < carried ? PyTuple_GET_ITEM(state, i) : arguments[i];
        truth = goes_on(pair->first, inputs, n);
        if (truth != 1)
            break;
        for (Py_ssize_t i = 0; i < n; i++)
            if (i < carried)
                PyTuple_SET_ITEM(state, i, NULL);
            else
                Py_INCREF(inputs[i]);
        if (ingot_program_consume(pair->second, inputs, n, ((PyTupleObject *)state)->ob_item) < 0)
            truth = -1;
        for (Py_ssize_t i = 0; i < n; i++)
            Py_XDECREF(inputs[i]);
    }
    PyMem_Free(inputs);
    if (truth < 0)
        Py_CLEAR(state);
    return state;
}

/* -- the Python types -------------------------------------------------------------------------- */

static PyObject *pair_new(PyTypeObject *type, vectorcallfunc call, PyObject *arguments,
                          PyObject *keywords) {
    PyObject *first, *second;
    if ((keywords && PyDict_GET_SIZE(keywords) > 0) ||
        !PyArg_ParseTuple(arguments, "O!O!", &IngotProgram_Type, &first, &IngotProgram_Type,
                          &second))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "two programs are needed");
    Pair *pair = (Pair *)type->tp_alloc(type, 0);
    if (pair == NULL)
        return NULL;
    pair->vectorcall = call;
    pair->first = Py_NewRef(first);
    pair->second = Py_NewRef(second);
    return (PyObject *)pair;
}

static PyObject *conditional_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    Pair *pair = (Pair *)pair_new(type, choose, arguments, keywords);
    if (pair &&
        ingot_program_output_count(pair->first) != ingot_program_output_count(pair->second)) {
        Py_CLEAR(pair);
        PyErr_SetString(PyExc_ValueError, "two branches give as many outputs");
    }
    return (PyObject *)pair;
}

static PyObject *loop_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    Pair *pair = (Pair *)pair_new(type, repeat, arguments, keywords);
    if (pair && ingot_program_output_count(pair->first) != 1) {
        Py_CLEAR(pair);
        PyErr_SetString(PyExc_ValueError, "a condition gives one output");
    }
    return (PyObject *)pair;
}

static int pair_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Pair *)self)->first);
    Py_VISIT(((Pair *)self)->second);
    return 0;
}

static int pair_clear(PyObject *self) {
    Py_CLEAR(((Pair *)self)->first);
    Py_CLEAR(((Pair *)self)->second);
    return 0;
}

static void pair_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    pair_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *pair_str(PyObject *self) {
    return PyUnicode_FromString(((Pair *)self)->vectorcall == choose ? "cond" : "while_loop");
}

static PyMemberDef members[] = {
    {"first", T_OBJECT, offsetof(Pair, first), READONLY, "The branch taken, or the condition."},
    {"second", T_OBJECT, offsetof(Pair, second), READONLY, "The other branch, or the body."},
    {NULL, 0, 0, 0, NULL},
};

#define PAIR_TYPE(NAME, NEW, DOC)                                                                  \
    {                                                                                              \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native." NAME,                     \
        .tp_doc = DOC,                                                                             \
        .tp_basicsize = sizeof(Pair),                                                              \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,          \
        .tp_new = NEW,                                                                             \
        .tp_dealloc = pair_dealloc,                                                                \
        .tp_traverse = pair_traverse,                                                              \
        .tp_clear = pair_clear,                                                                    \
        .tp_call = PyVectorcall_Call,                                                              \
        .tp_vectorcall_offset = offsetof(Pair, vectorcall),                                        \
        .tp_members = members,                                                                     \
        .tp_str = pair_str,                                                                        \
    }

static PyTypeObject Conditional_Type =
    PAIR_TYPE("Conditional", conditional_new,
              "Conditional(true, false): programs; conditional(predicate, *inputs) -> the outputs "
              "of the one that a tensor of one bool chooses.");
static PyTypeObject Loop_Type =
    PAIR_TYPE("Loop", loop_new,
              "Loop(condition, body): programs of the same inputs, a state and other operands; "
              "loop(*inputs) -> the state that the condition does not hold for.");

int ingot_control_register(PyObject *module) {
    if (PyModule_AddType(module, &Conditional_Type) < 0)
        return -1;
    return PyModule_AddType(module, &Loop_Type);
}
