/* Events of torch's profilers, and NVTX ranges, for the steps of a program.

   An event is an at::RecordFunction, as each operator of torch's is one. It finds out by itself
   whether its thread is looked at. Without one of the functions below a profiler sees a program as
   nothing but the call of it. at::hasCallbacks would tell of execution traces and emit_itt as well,
   and takes twenty nanoseconds where the flag takes two. */
#include "profiler.h"

#include "tensor.h"

#include <string.h>

enum { SCOPE_FUNCTION = 0 }; /* at::RecordScope: what operators are */

/* std::variant<std::string_view, reference to a schema>, as libstdc++ lays it out. */
typedef struct {
    size_t length;
    const char *text;
    unsigned char which; /* 0: the text */
} EventName;

static struct {
    bool (*is_profiling)(void); /* whether a profiler runs, in whatever thread: a flag of torch's */
    void (*construct)(void *self, unsigned char scope);
    void (*before)(void *self, EventName name, int64_t sequence_number);
    void (*destroy)(void *self);
} torch;

static PyObject *range_push, *range_pop; /* NULL: no NVTX ranges are asked for */

bool ingot_is_profiled(void) { return (torch.is_profiling && torch.is_profiling()) || range_push; }

static void set_ranges(PyObject *push, PyObject *pop) {
    Py_XSETREF(range_push, Py_XNewRef(push));
    Py_XSETREF(range_pop, Py_XNewRef(pop));
}

/* Ranges are an aid: what fails there fails nothing else, and is not tried again. */
static void call_for_range(PyObject *function, PyObject *name) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_INCREF(function);
    PyObject *done = name ? PyObject_CallOneArg(function, name) : PyObject_CallNoArgs(function);
    if (done == NULL) {
        set_ranges(NULL, NULL);
        PyErr_WriteUnraisable(function);
    }
    Py_XDECREF(done);
    Py_DECREF(function);
    PyErr_Restore(type, value, traceback);
}

void ingot_event_begin(IngotEvent *event, PyObject *name) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL)
        PyErr_Clear(); /* a surrogate in the name of a file */
    event->is_marked = range_push != NULL;
    if (event->is_marked)
        call_for_range(range_push, name);
    event->is_recorded = text && torch.is_profiling;
    if (event->is_recorded) {
        torch.construct(event->recorded, SCOPE_FUNCTION);
        torch.before(event->recorded, (EventName){(size_t)length, text, 0}, -1);
    }
}

void ingot_event_end(IngotEvent *event) {
    if (event->is_recorded)
        torch.destroy(event->recorded);
    if (event->is_marked && range_pop)
        call_for_range(range_pop, NULL);
}

/* -- the names of memory ------------------------------------------------------------------------
 */

/* Of torch, whose history of GPU memory has a text beside each event; NULL: it has not. */
static PyObject *is_memory_recorded, *memory_name, *set_memory_name;

static void name_memory(PyObject *is_recorded, PyObject *get, PyObject *set) {
    Py_XSETREF(is_memory_recorded, Py_XNewRef(is_recorded));
    Py_XSETREF(memory_name, Py_XNewRef(get));
    Py_XSETREF(set_memory_name, Py_XNewRef(set));
}

/* Names are an aid as well. A new reference; NULL, without an exception, where the call fails. */
static PyObject *called_for_name(PyObject *function, PyObject *name) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = name ? PyObject_CallOneArg(function, name) : PyObject_CallNoArgs(function);
    if (result == NULL) {
        PyErr_WriteUnraisable(function);
        name_memory(NULL, NULL, NULL);
    }
    PyErr_Restore(type, value, traceback);
    return result;
}

bool ingot_memory_is_recorded(void) {
    PyObject *answer =
        is_memory_recorded ? called_for_name(is_memory_recorded, NULL) : Py_NewRef(Py_False);
    Py_XDECREF(answer);
    return answer == Py_True;
}

PyObject *ingot_memory_name_before(void) {
    return memory_name ? called_for_name(memory_name, NULL) : NULL;
}

void ingot_memory_name(PyObject *name) {
    if (set_memory_name)
        Py_XDECREF(called_for_name(set_memory_name, name));
}

static PyObject *name_memory_by(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *is_recorded = NULL, *get = NULL, *set = NULL;
    if (!PyArg_ParseTuple(args, "|OOO", &is_recorded, &get, &set))
        return NULL;
    name_memory(set ? is_recorded : NULL, set ? get : NULL, set);
    Py_RETURN_NONE;
}

static PyObject *mark_steps(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *push = NULL, *pop = NULL;
    if (!PyArg_ParseTuple(args, "|OO", &push, &pop))
        return NULL;
    set_ranges(pop ? push : NULL, pop);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"name_memory_by", name_memory_by, METH_VARARGS,
     "name_memory_by(is_recorded, get, set): while is_recorded() is True, set(name) is called "
     "before "
     "a program on a GPU asks for memory, and the name that get() gave is set behind it; without "
     "arguments, nothing is."},
    {"mark_steps", mark_steps, METH_VARARGS,
     "mark_steps(push, pop): from now on, push(name) and pop() are called around each step of "
     "programs; without arguments, nothing is."},
    {NULL, NULL, 0, NULL},
};

static bool find_torch(void) {
    const struct {
        const char *symbol;
        void *function;
    } wanted[] = {
        {"_ZN2at14RecordFunctionC1ENS_11RecordScopeE", &torch.construct},
        {"_ZN2at14RecordFunction6beforeESt7variantIJSt17basic_string_viewIcSt11char_traitsIcEESt17"
         "reference_wrapperIKN3c1014FunctionSchemaEEEEl",
         &torch.before},
        {"_ZN2at14RecordFunctionD1Ev", &torch.destroy},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(wanted); i++)
        if ((*(void **)wanted[i].function = ingot_torch_symbol(wanted[i].symbol)) == NULL)
            return false;
    return true;
}

int ingot_profiler_register(PyObject *module) {
    if (find_torch())
        *(void **)&torch.is_profiling =
            ingot_torch_symbol("_ZN5torch8autograd8profiler29isProfilerEnabledInMainThreadEv");
    return PyModule_AddFunctions(module, methods);
}
