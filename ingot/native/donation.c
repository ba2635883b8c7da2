/* The memory of a tensor goes to another one as two pointers to storages change places, so that
   torch counts owners as ever. What is left behind is a storage without memory, which torch's own
   marks forbid to read: for code that does not ask the tensor's class. */
#include "donation.h"

#include <stdbool.h>
#include <string.h>

#include "lending.h"
#include "tensor.h"

static PyObject *declare;       /* of ingot.donated: (tensor, what) */
static PyObject *forbid_writes; /* torch's function that sets two marks of a tensor's storage */

/* Where a storage has its size in bytes, and the mark that forbids to read; found at the first
   donation. */
static struct {
    bool sought, found;
    Py_ssize_t bytes, unreadable;
} places;

enum { DATA_BYTES = 32, MARKS_BYTES = 16 };

/* -- what torch's storages look like ----------------------------------------------------------- */

static PyObject *bytes_of(PyObject *torch, int64_t count) {
    PyObject *uint8 = PyObject_GetAttrString(torch, "uint8"), *tensor = NULL;
    const int64_t stride = 1;
    void *data;
    if (uint8 != NULL) {
        IngotLayout layout = {uint8, ingot_dtype_number(uint8), 1, 1, &count, &stride, NULL};
        tensor = ingot_allocate(&layout, false, &data);
    }
    Py_XDECREF(uint8);
    return tensor;
}

static bool has_size(PyObject *torch, int64_t count) {
    uintptr_t storage;
    PyObject *tensor = bytes_of(torch, count);
    bool same = tensor != NULL && ingot_tensor_storage(tensor, &storage) == 0 &&
                memcmp((char *)storage + places.bytes, &count, sizeof count) == 0;
    Py_XDECREF(tensor);
    return same;
}

static bool raises(PyObject *tensor, const char *method) {
    PyObject *result = PyObject_CallMethod(tensor, method, NULL);
    bool raised = result == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError);
    PyErr_Clear();
    Py_XDECREF(result);
    return raised;
}

/* torch sets the mark that there are marks, and the one that forbids to write; that which forbids
   to read comes next. A read of memory that is there shows it. */
static bool find_marks(PyObject *torch) {
    uint8_t before[MARKS_BYTES];
    uintptr_t storage;
    PyObject *tensor = bytes_of(torch, 64), *done = NULL;
    bool found = false;
    if (tensor != NULL && ingot_tensor_storage(tensor, &storage) == 0) {
        uint8_t *marks = (uint8_t *)storage + places.bytes + sizeof(int64_t);
        memcpy(before, marks, sizeof before);
        done = PyObject_CallOneArg(forbid_writes, tensor);
        int first = 0, changed = 0;
        for (int i = 0; done != NULL && i < MARKS_BYTES; i++)
            if (marks[i] != before[i] && marks[i] == 1 && changed++ == 0)
                first = i;
        if (changed == 2 && first + 2 < MARKS_BYTES && marks[first + 1] == 1 &&
            marks[first + 2] == 0) {
            marks[first + 2] = 1;
            places.unreadable = places.bytes + (Py_ssize_t)sizeof(int64_t) + first + 2;
            found = raises(tensor, "sum") && raises(tensor, "clone") && raises(tensor, "data_ptr");
        }
    }
    PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(tensor);
    return found;
}

static bool are_found(void) {
    if (!places.sought) {
        PyObject *torch = PyImport_ImportModule("torch");
        places.sought = true;
        places.bytes = ingot_data_in_storage() + DATA_BYTES;
        places.found = torch != NULL && declare != NULL && ingot_data_in_storage() != 0 &&
                       forbid_writes != NULL && has_size(torch, 1) && has_size(torch, 1021) &&
                       find_marks(torch);
        PyErr_Clear();
        Py_XDECREF(torch);
    }
    return places.found && !ingot_tensor_facts_are_slow();
}

/* -- taking ------------------------------------------------------------------------------------ */

/* A tensor of no elements, in a storage that nobody may read or write. */
static PyObject *forbidden(const IngotLayout *like) {
    const int64_t none = 0, one = 1;
    IngotLayout layout = *like;
    uintptr_t storage;
    void *data;
    layout.rank = 1, layout.sizes = &none, layout.strides = &one;
    PyObject *tensor = ingot_allocate(&layout, false, &data);
    PyObject *done = tensor ? PyObject_CallOneArg(forbid_writes, tensor) : NULL;
    if (done == NULL || ingot_tensor_storage(tensor, &storage) < 0)
        Py_CLEAR(tensor);
    else
        ((uint8_t *)storage)[places.unreadable] = 1;
    Py_XDECREF(done);
    return tensor;
}

/* Why a tensor keeps its memory; NULL where nothing speaks against taking it. */
static const char *why_not(PyObject *tensor, const IngotTensorFacts *facts,
                           const IngotDevice *device) {
    uintptr_t storage, begin, end;
    int64_t bytes;
    if (!are_found())
        return "this torch does not show how to take memory from a tensor";
    if (ingot_is_parameter(tensor))
        return "it is a parameter";
    if (facts->requires_grad && facts->is_leaf)
        return "it is a leaf that requires a gradient";
    if (ingot_tensor_storage(tensor, &storage) < 0 || ingot_tensor_extent(tensor, &begin, &end) < 0)
        return "its memory is not to be found";
    memcpy(&bytes, (char *)storage + places.bytes, sizeof bytes);
    if (begin == end)
        return "it has no elements";
    if (facts->storage_offset != 0 || (int64_t)(end - begin) != bytes)
        return "it is a part of a larger storage";
    if (!ingot_is_torchs_memory(storage, device))
        return "its memory is not torch's own: an array's, another library's, pinned or shared";
    if (!ingot_has_one_owner(tensor, storage))
        return "something else holds it or its memory: a view, an array, what autograd saved";
    return NULL;
}

PyObject *ingot_donation_take(PyObject *tensor, PyObject *dtype, const IngotDevice *device,
                              const char **why) {
    IngotTensorFacts facts;
    *why = NULL;
    if (ingot_tensor_facts(tensor, &facts) < 0 || (*why = why_not(tensor, &facts, device)) != NULL)
        return NULL;
    const IngotLayout layout = {dtype,       facts.dtype,   0,     facts.rank,
                                facts.sizes, facts.strides, device};
    PyObject *other = forbidden(&layout), *taken = NULL;
    if (other == NULL)
        return NULL;
    ingot_tensor_swap_storages(tensor, other);
    taken = ingot_window(other, &layout, 0);
    if (taken == NULL) {
        ingot_tensor_swap_storages(tensor, other);
        *why = "torch's C ABI makes no tensor of its memory";
    }
    Py_DECREF(other);
    return taken;
}

void ingot_donation_return(PyObject *tensor, PyObject *taken) {
    ingot_tensor_swap_storages(tensor, taken);
}

int ingot_donation_declare(PyObject *tensor, PyObject *what) {
    PyObject *arguments[] = {tensor, what};
    PyObject *done = PyObject_Vectorcall(declare, arguments, 2, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* -- set-up ------------------------------------------------------------------------------------ */

static PyObject *declare_by(PyObject *Py_UNUSED(module), PyObject *function) {
    Py_XSETREF(declare, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"declare_donated_by", declare_by, METH_O,
     "declare_donated_by(function): function(tensor, what) has a tensor that has no memory any "
     "more "
     "say so wherever it is used. Without it no memory is taken."},
    {NULL, NULL, 0, NULL},
};

int ingot_donation_register(PyObject *module) {
    forbid_writes = ingot_torch_private("throw_on_mutable_data_ptr");
    if (forbid_writes == NULL)
        return -1;
    return PyModule_AddFunctions(module, methods);
}
