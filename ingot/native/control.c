/* The types `Conditional`, `Loop` and `Scan`, which call one of two programs, two in turn, and one
   for each slice of tensors.

   A program calls them as it does functions of a library. No Python runs in between. */
#include "allocate.h"
#include "control.h"
#include "program.h"
#include "tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
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

/* -- scans ------------------------------------------------------------------------------------- */

/* The first `carried` outputs of the body are the next state, the others become slices of stacked
 * results, of the `dtypes`. */
typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *body, *dtypes;
    int carried, mapped, reversed;
} Scan;

/* A result that is stacked; `data` is NULL where that is not in the CPU's memory. */
typedef struct {
    PyObject *tensor;
    char *data;
    int64_t slice_bytes;
} Stack;

/* A new reference to the k-th slice of a tensor along its first dimension. */
static PyObject *slice_of(PyObject *tensor, int64_t k) {
    IngotTensorFacts facts;
    if (ingot_tensor_facts(tensor, &facts) < 0)
        return NULL;
    if (facts.rank < 1 || k >= facts.sizes[0])
        return PyErr_Format(PyExc_RuntimeError, "a scan over tensors of different lengths");
    const IngotLayout layout = {
        .rank = facts.rank - 1, .sizes = facts.sizes + 1, .strides = facts.strides + 1};
    PyObject *slice = NULL;
    if (facts.device_type == 0)
        slice = ingot_window(tensor, &layout, k * facts.strides[0]);
    if (slice == NULL && !PyErr_Occurred())
        slice = PyObject_CallMethod(tensor, "select", "iL", 0, (long long)k);
    return slice;
}

static bool is_dense(const IngotTensorFacts *facts) {
    int64_t stride = 1;
    bool dense = true;
    for (int64_t d = facts->rank - 1; d >= 0; d--) {
        dense = dense && (facts->sizes[d] == 1 || facts->strides[d] == stride);
        stride *= facts->sizes[d];
    }
    return dense;
}

/* Makes the tensor that slices are stacked in which are not in the CPU's memory: torch does. */
static int begin_stack_elsewhere(Stack *stack, PyObject *slice, const IngotTensorFacts *facts,
                                 PyObject *dtype, int64_t steps) {
    PyObject *sizes = PyTuple_New(facts->rank + 1);
    for (int64_t d = 0; sizes && d <= facts->rank; d++) {
        PyObject *size = PyLong_FromLongLong(d == 0 ? steps : facts->sizes[d - 1]);
        if (size == NULL)
            Py_CLEAR(sizes);
        else
            PyTuple_SET_ITEM(sizes, d, size);
    }
    PyObject *method = sizes ? PyObject_GetAttrString(slice, "new_empty") : NULL;
    PyObject *arguments = method ? PyTuple_Pack(1, sizes) : NULL;
    PyObject *keywords = arguments ? Py_BuildValue("{sO}", "dtype", dtype) : NULL;
    stack->tensor = keywords ? PyObject_Call(method, arguments, keywords) : NULL;
    Py_XDECREF(sizes);
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return stack->tensor ? 0 : -1;
}

static int put_slice_elsewhere(const Stack *stack, PyObject *slice, int64_t k) {
    PyObject *place = PyObject_CallMethod(stack->tensor, "select", "iL", 0, (long long)k);
    PyObject *copied = place ? PyObject_CallMethod(place, "copy_", "O", slice) : NULL;
    int status = copied ? 0 : -1;
    Py_XDECREF(place);
    Py_XDECREF(copied);
    return status;
}

/* Makes the tensor that results like `slice` are stacked in. */
static int begin_stack(Stack *stack, PyObject *slice, PyObject *dtype, int64_t steps) {
    IngotTensorFacts facts;
    int64_t sizes[INGOT_MAX_RANK + 1], strides[INGOT_MAX_RANK + 1], count = 1;
    PyObject *itemsize = PyObject_GetAttrString(dtype, "itemsize");
    int64_t bytes = itemsize ? PyLong_AsLongLong(itemsize) : -1;
    Py_XDECREF(itemsize);
    if (bytes < 0 || ingot_tensor_facts(slice, &facts) < 0)
        return -1;
    if (facts.device_type != 0)
        return begin_stack_elsewhere(stack, slice, &facts, dtype, steps);
    sizes[0] = steps;
    for (int64_t d = facts.rank; d > 0; d--) {
        sizes[d] = facts.sizes[d - 1];
        strides[d] = count;
        count *= sizes[d] > 0 ? sizes[d] : 1;
    }
    strides[0] = count;
    const IngotLayout layout = {
        dtype, ingot_dtype_number(dtype), bytes, facts.rank + 1, sizes, strides, NULL};
    stack->slice_bytes = bytes;
    for (int64_t d = 1; d <= facts.rank; d++)
        stack->slice_bytes *= sizes[d];
    stack->tensor = ingot_allocate(&layout, false, (void **)&stack->data);
    return stack->tensor ? 0 : -1;
}

static int put_slice(const Stack *stack, PyObject *slice, int64_t k) {
    IngotTensorFacts facts;
    void *data;
    if (stack->data == NULL)
        return put_slice_elsewhere(stack, slice, k);
    if (ingot_tensor_facts(slice, &facts) < 0 || ingot_tensor_data(slice, &data) < 0)
        return -1;
    if (!is_dense(&facts)) {
        PyErr_SetString(PyExc_RuntimeError, "a step of a scan gave a result with gaps");
        return -1;
    }
    if (stack->slice_bytes > 0)
        memcpy(stack->data + k * stack->slice_bytes, data, (size_t)stack->slice_bytes);
    return 0;
}

/* One step on the k-th slices. `inputs` holds the state before and after it. */
static int step(const Scan *scan, PyObject *const *arguments, Py_ssize_t n, PyObject **inputs,
                PyObject **outputs, int64_t k) {
    int status = PyErr_CheckSignals();
    for (Py_ssize_t i = scan->carried; i < n; i++) {
        bool is_slice = i < scan->carried + scan->mapped;
        inputs[i] =
            status < 0 ? NULL : (is_slice ? slice_of(arguments[i], k) : Py_NewRef(arguments[i]));
        status = inputs[i] ? status : -1;
    }
    if (status == 0)
        status = ingot_program_consume(scan->body, inputs, n, outputs);
    for (Py_ssize_t i = 0; i < n; i++)
        Py_CLEAR(inputs[i]);
    for (int i = 0; status == 0 && i < scan->carried; i++) {
        inputs[i] = outputs[i];
        outputs[i] = NULL;
    }
    return status;
}

/* All steps: the state is left in `inputs`, the stacked results in `stacks`. */
static int run_scan(const Scan *scan, PyObject *const *arguments, Py_ssize_t n, PyObject **inputs,
                    PyObject **outputs, Stack *stacks, int64_t steps) {
    const int stacked = (int)PyTuple_GET_SIZE(scan->dtypes);
    int status = 0;
    for (int i = 0; i < scan->carried; i++)
        inputs[i] = Py_NewRef(arguments[i]);
    for (int64_t t = 0; status == 0 && t < steps; t++) {
        const int64_t k = scan->reversed ? steps - 1 - t : t;
        status = step(scan, arguments, n, inputs, outputs, k);
        for (int i = 0; i < stacked; i++) {
            PyObject *slice = outputs[scan->carried + i];
            if (status == 0 && t == 0)
                status = begin_stack(&stacks[i], slice, PyTuple_GET_ITEM(scan->dtypes, i), steps);
            if (status == 0)
                status = put_slice(&stacks[i], slice, k);
            Py_CLEAR(outputs[scan->carried + i]);
        }
    }
    return status;
}

/* scan(*state, *mapped, *operands): the last state, and the results of all steps, stacked. */
static PyObject *scan_all(PyObject *self, PyObject *const *arguments, size_t flags,
                          PyObject *keywords) {
    const Scan *scan = (Scan *)self;
    const int stacked = (int)PyTuple_GET_SIZE(scan->dtypes), count = scan->carried + stacked;
    Py_ssize_t n = PyVectorcall_NARGS(flags);
    IngotTensorFacts facts;
    if (refuse_keywords(keywords) < 0)
        return NULL;
    if (n < scan->carried + scan->mapped)
        return PyErr_Format(PyExc_TypeError, "a scan lacks its state, or what it goes over");
    if (ingot_tensor_facts(arguments[scan->carried], &facts) < 0)
        return NULL;
    if (facts.rank < 1 || facts.sizes[0] < 1)
        return PyErr_Format(PyExc_RuntimeError, "a scan over nothing");
    PyObject *results = PyTuple_New(count);
    PyObject **inputs = PyMem_Calloc((size_t)(n + count) + 1, sizeof *inputs);
    Stack *stacks = PyMem_Calloc((size_t)stacked + 1, sizeof *stacks);
    int status = results && inputs && stacks ? 0 : -1;
    if (status < 0 && !PyErr_Occurred())
        PyErr_NoMemory();
    if (status == 0)
        status = run_scan(scan, arguments, n, inputs, inputs + n, stacks, facts.sizes[0]);
    for (int i = 0; status == 0 && i < count; i++) {
        PyObject **from = i < scan->carried ? &inputs[i] : &stacks[i - scan->carried].tensor;
        PyTuple_SET_ITEM(results, i, *from);
        *from = NULL;
    }
    for (Py_ssize_t i = 0; inputs && i < n + count; i++)
        Py_XDECREF(inputs[i]);
    for (int i = 0; stacks && i < stacked; i++)
        Py_XDECREF(stacks[i].tensor);
    PyMem_Free(inputs);
    PyMem_Free(stacks);
    if (status < 0)
        Py_CLEAR(results);
    return results;
}

static PyObject *scan_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *body, *dtypes;
    int carried, mapped, reversed;
    if ((keywords && PyDict_GET_SIZE(keywords) > 0) ||
        !PyArg_ParseTuple(arguments, "O!iipO!", &IngotProgram_Type, &body, &carried, &mapped,
                          &reversed, &PyTuple_Type, &dtypes))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a program is needed");
    if (carried < 0 || mapped < 1 ||
        ingot_program_output_count(body) != carried + PyTuple_GET_SIZE(dtypes))
        return PyErr_Format(PyExc_ValueError, "a body gives the state, and what is stacked");
    Scan *scan = (Scan *)type->tp_alloc(type, 0);
    if (scan == NULL)
        return NULL;
    scan->vectorcall = scan_all;
    scan->body = Py_NewRef(body);
    scan->dtypes = Py_NewRef(dtypes);
    scan->carried = carried;
    scan->mapped = mapped;
    scan->reversed = reversed;
    return (PyObject *)scan;
}

static int scan_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Scan *)self)->body);
    Py_VISIT(((Scan *)self)->dtypes);
    return 0;
}

static int scan_clear(PyObject *self) {
    Py_CLEAR(((Scan *)self)->body);
    Py_CLEAR(((Scan *)self)->dtypes);
    return 0;
}

static void scan_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    scan_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *scan_str(PyObject *Py_UNUSED(self)) { return PyUnicode_FromString("scan"); }

static PyMemberDef scan_members[] = {
    {"body", T_OBJECT, offsetof(Scan, body), READONLY, "What is run for each slice."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject Scan_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Scan",
    .tp_doc = "Scan(body, carried, mapped, reversed, dtypes): a program that takes a state of so "
              "many tensors, so many slices and other operands, and gives the next state and "
              "tensors of the dtypes; scan(*inputs) -> the last state, and these stacked.",
    .tp_basicsize = sizeof(Scan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = scan_new,
    .tp_dealloc = scan_dealloc,
    .tp_traverse = scan_traverse,
    .tp_clear = scan_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Scan, vectorcall),
    .tp_members = scan_members,
    .tp_str = scan_str,
};

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
    if (PyModule_AddType(module, &Conditional_Type) < 0 || PyModule_AddType(module, &Loop_Type) < 0)
        return -1;
    return PyModule_AddType(module, &Scan_Type);
}
