#include "dispatch.h"

#include <stddef.h>
#include <stdbool.h>
#include <string.h>
#include <structmember.h>

#include "binding.h"
#include "continue.h"
#include "guards.h"
#include "program.h"
#include "recall.h"
#include "stance.h"
#include "work.h"

/* -- Entry: one compiled form of a function and the facts under which it is right -------------- */

typedef enum { TENSOR, TUPLE, GENERAL } Result;

static const char *const result_names[] = {
    [TENSOR] = "tensor", [TUPLE] = "tuple", [GENERAL] = "general"};

typedef struct {
    PyObject_HEAD PyObject *guards; /* GuardTree */
    PyObject *target;   /* Program, a callable(*inputs) -> tuple or list, or None: run the original
                           function */
    PyObject *residual; /* callable(outputs, slots), or NULL where `result` says all */
    PyObject *record;   /* whatever the compiler keeps for the report */
    PyObject *generators; /* tuple of those whose states are put back before a replay, or NULL */
    Result result;
    Py_ssize_t output_count; /* of the graph; -1 where it is not known */
    bool handles;   /* the program may handle what it raises, so that the replay may well return */
    bool replays;   /* a graph that raises has done nothing yet: the original function can raise in
                       its stead */
    bool general;   /* serves many looks: has symbols */
    bool has_graph; /* the target computes something */
    unsigned long long hits;
    uint64_t look;       /* of the last call that was counted, */
    Py_ssize_t in_a_row; /* and how many such there were */
} Entry;

static int entry_traverse(Entry *entry, visitproc visit, void *arg) {
    Py_VISIT(entry->guards);
    Py_VISIT(entry->target);
    Py_VISIT(entry->residual);
    Py_VISIT(entry->record);
    Py_VISIT(entry->generators);
    return 0;
}

static void entry_dealloc(Entry *entry) {
    PyObject_GC_UnTrack(entry);
    Py_XDECREF(entry->guards);
    Py_XDECREF(entry->target);
    Py_XDECREF(entry->residual);
    Py_XDECREF(entry->record);
    Py_XDECREF(entry->generators);
    Py_TYPE(entry)->tp_free((PyObject *)entry);
}

static PyMemberDef entry_members[] = {
    {"guards", T_OBJECT, offsetof(Entry, guards), READONLY, "the GuardTree"},
    {"target", T_OBJECT, offsetof(Entry, target), READONLY,
     "a Program, a callable, or None for the original function"},
    {"residual", T_OBJECT, offsetof(Entry, residual), READONLY,
     "callable(outputs, slots) -> result, or None"},
    {"record", T_OBJECT, offsetof(Entry, record), 0, "what the compiler keeps for the report"},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, "how many calls it has served"},
    {0},
};

static PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Entry",
    .tp_doc = "One compiled form of a function and the facts under which it is right. Made by "
              "Dispatcher.add_entry.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_members = entry_members,
};

/* -- running an entry -------------------------------------------------------------------------- */

static PyObject *tuple_from(PyObject *const *items, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    return tuple;
}

static void release(PyObject **items, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        Py_XDECREF(items[i]);
}

/* The result of the call from the graph's outputs (borrowed). */
static PyObject *finish(Entry *entry, PyObject *const *outputs, Py_ssize_t count,
                        PyObject *const *slots, Py_ssize_t slot_count) {
    if (entry->result == TUPLE)
        return tuple_from(outputs, count);
    if (entry->result == TENSOR) {
        if (count == 1)
            return Py_NewRef(outputs[0]);
        PyErr_Format(PyExc_TypeError, "a compiled graph of one output returned %zd", count);
        return NULL;
    }
    PyObject *arguments[] = {NULL, tuple_from(outputs, count), tuple_from(slots, slot_count)};
    PyObject *result = NULL;
    if (arguments[1] != NULL && arguments[2] != NULL)
        result = PyObject_Vectorcall(entry->residual, arguments + 1,
                                     2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    release(arguments, 3);
    return result;
}

#define ON_STACK 64

/* `failed`: it was the graph that raised. */
static PyObject *run_program(Entry *entry, PyObject *const *inputs, Py_ssize_t count,
                             PyObject *const *slots, Py_ssize_t slot_count, bool *failed) {
    Py_ssize_t output_count = ingot_program_output_count(entry->target);
    PyObject *on_stack[ON_STACK], **outputs = on_stack, *result = NULL;
    if (output_count > ON_STACK &&
        (outputs = PyMem_Malloc((size_t)output_count * sizeof *outputs)) == NULL)
        return PyErr_NoMemory();
    *failed = ingot_program_run(entry->target, inputs, count, outputs) < 0;
    if (!*failed) {
        result = finish(entry, outputs, output_count, slots, slot_count);
        release(outputs, output_count);
    }
    if (outputs != on_stack)
        PyMem_Free(outputs);
    return result;
}

/* `outputs` if there are as many as the graph has, else NULL with an exception set. */
static PyObject *counted(Entry *entry, PyObject *outputs) {
    if (outputs == NULL || entry->output_count < 0 ||
        PyTuple_GET_SIZE(outputs) == entry->output_count)
        return outputs;
    PyErr_Format(PyExc_TypeError, "a compiled graph of %zd outputs returned %zd: %R",
                 entry->output_count, PyTuple_GET_SIZE(outputs), entry->target);
    return NULL;
}

/* `inputs[-1]` may be written to by the callee, as the vectorcall protocol allows. */
static PyObject *run_callable(Entry *entry, PyObject *const *inputs, Py_ssize_t count,
                              PyObject *const *slots, Py_ssize_t slot_count, bool *failed) {
    PyObject *outputs = PyObject_Vectorcall(entry->target, inputs,
                                            (size_t)count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    *failed = outputs == NULL;
    if (*failed)
        return NULL;
    PyObject *result = NULL;
    if (PyTuple_Check(outputs)) {
        if (counted(entry, outputs) == NULL)
            ;
        else if (PyTuple_CheckExact(outputs) && entry->result == TUPLE)
            return outputs;
        else
            result = finish(entry, ((PyTupleObject *)outputs)->ob_item, PyTuple_GET_SIZE(outputs),
                            slots, slot_count);
    } else if (PyList_CheckExact(outputs)) {
        PyObject *fixed =
            PyList_AsTuple(outputs); /* the residual may run code that changes the list */
        if (counted(entry, fixed) != NULL)
            result = finish(entry, ((PyTupleObject *)fixed)->ob_item, PyTuple_GET_SIZE(fixed),
                            slots, slot_count);
        Py_XDECREF(fixed);
    } else
        PyErr_Format(PyExc_TypeError,
                     "a compiled graph returns a tuple or list of its outputs, not %s",
                     Py_TYPE(outputs)->tp_name);
    Py_DECREF(outputs);
    return result;
}

/* -- Dispatcher -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *fn;      /* the original callable */
    PyObject *self;    /* what it is bound to, or NULL */
    PyObject *on_miss; /* callable(slots, args, kwargs) -> result */
    PyObject *on_hot;  /* callable(slots, args, kwargs), or NULL: nobody wants to know */
    Py_ssize_t
        hot; /* after how many calls that look alike, in a row, a general entry is reported */
    PyObject *entries;   /* tuple of Entry, the newest first but for general ones; replaced, never
                            changed */
    IngotRecall *recall; /* NULL as long as there is one entry */
    PyObject *dict, *weakrefs;
    IngotSignature signature;
} Dispatcher;

typedef enum { MISSED, HIT } Outcome;

/* The states of some generators, as a tuple. */
static PyObject *states_of(PyObject *generators) {
    Py_ssize_t count = PyTuple_GET_SIZE(generators);
    PyObject *states = PyTuple_New(count);
    for (Py_ssize_t i = 0; states != NULL && i < count; i++) {
        PyObject *state = PyObject_CallMethod(PyTuple_GET_ITEM(generators, i), "get_state", NULL);
        if (state == NULL)
            Py_CLEAR(states);
        else
            PyTuple_SET_ITEM(states, i, state);
    }
    return states;
}

static int put_back(PyObject *generators, PyObject *states) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(states); i++) {
        PyObject *done = PyObject_CallMethod(PyTuple_GET_ITEM(generators, i), "set_state", "O",
                                             PyTuple_GET_ITEM(states, i));
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    return 0;
}

/* Runs the original function after its graph has raised: it raises the same at its own line, or
 * handles it, or there is a fault. `states`: of the entry's generators before the graph ran, or
 * NULL. */
static PyObject *replay(Dispatcher *dispatcher, Entry *entry, PyObject *states,
                        PyObject *const *args, size_t flagged_count, PyObject *names) {
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    PyErr_NormalizeException(&type, &raised, &traceback);
    PyObject *result = states != NULL && put_back(entry->generators, states) < 0
                           ? NULL
                           : PyObject_Vectorcall(dispatcher->fn, args, flagged_count, names);
    if (result != NULL && !entry->handles &&
        PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                         "a compiled graph raised %R, which %R does not: the call ran in eager",
                         raised, dispatcher->fn) < 0)
        Py_CLEAR(result);
    Py_XDECREF(type);
    Py_XDECREF(raised);
    Py_XDECREF(traceback);
    return result;
}

/* Whether the error that is set came of the graph: not of the user's hooks on what it keeps
 * (`ingot.errors.of_hooks`).
 */
static bool is_the_graphs(void) {
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return false;
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    bool marked = raised != NULL && PyObject_HasAttrString(raised, "__of_ingots_hooks__");
    PyErr_Restore(type, raised, traceback);
    return !marked;
}

/* Checks an entry's facts and, if they hold, runs it; `args` are those of the call, for an entry
 * that runs the original function. */
static Outcome try_entry(Dispatcher *dispatcher, Entry *entry, IngotSurroundings *around,
                         PyObject *const *slots, Py_ssize_t slot_count, PyObject *const *args,
                         size_t flagged_count, PyObject *names, PyObject **result) {
    Py_ssize_t count = ingot_guard_tree_input_count(entry->guards);
    PyObject *on_stack[ON_STACK + 1],
        **room = on_stack; /* one place before the inputs, for the vectorcall protocol */
    if (ingot_guard_tree_slot_count(entry->guards) > slot_count)
        return MISSED;
    if (count > ON_STACK && (room = PyMem_Malloc(((size_t)count + 1) * sizeof *room)) == NULL) {
        *result = PyErr_NoMemory();
        return HIT;
    }
    PyObject **inputs = room + 1;
    Outcome outcome = ingot_guard_tree_check(entry->guards, slots, inputs, around) ? HIT : MISSED;
    if (outcome == HIT) {
        bool failed = false;
        PyObject *states = NULL;
        ingot_left_traces = false;
        entry->hits++;
        ingot_count_work(entry->has_graph);
        if (entry->generators != NULL && (states = states_of(entry->generators)) == NULL)
            *result = NULL;
        else if (entry->target == Py_None)
            *result = PyObject_Vectorcall(dispatcher->fn, args, flagged_count, names);
        else if (Py_TYPE(entry->target) == &IngotProgram_Type)
            *result = run_program(entry, inputs, count, slots, slot_count, &failed);
        else
            *result = run_callable(entry, inputs, count, slots, slot_count, &failed);
        release(inputs, count);
        if (failed && entry->replays && !ingot_left_traces && is_the_graphs())
            *result = replay(dispatcher, entry, states, args, flagged_count, names);
        Py_XDECREF(states);
    }
    if (room != on_stack)
        PyMem_Free(room);
    return outcome;
}

/* Calls `handler`, on_miss or on_hot, with what a call was given. */
static PyObject *hand_over(PyObject *handler, PyObject *const *slots, Py_ssize_t slot_count,
                           PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_INCREF(handler);
    PyObject *arguments[] = {NULL, tuple_from(slots, slot_count), tuple_from(args, count),
                             PyDict_New()};
    bool ready = arguments[1] != NULL && arguments[2] != NULL && arguments[3] != NULL;
    Py_ssize_t keywords = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; ready && i < keywords; i++)
        ready = PyDict_SetItem(arguments[3], PyTuple_GET_ITEM(names, i), args[count + i]) == 0;
    PyObject *result = NULL;
    if (ready)
        result =
            PyObject_Vectorcall(handler, arguments + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    release(arguments, 4);
    Py_DECREF(handler);
    return result;
}

/* Counts a call that a general entry has served, and reports it where enough of the kind have come
 * in a row. */
static void count_alike(Dispatcher *dispatcher, Entry *entry, uint64_t look, PyObject *const *slots,
                        Py_ssize_t slot_count, PyObject *const *args, Py_ssize_t count,
                        PyObject *names) {
    entry->in_a_row = entry->look == look ? entry->in_a_row + 1 : 1;
    entry->look = look;
    if (entry->in_a_row != dispatcher->hot)
        return;
    PyObject *told = hand_over(dispatcher->on_hot, slots, slot_count, args, count, names);
    if (told == NULL)
        PyErr_WriteUnraisable((PyObject *)dispatcher);
    Py_XDECREF(told);
}

/* Tries the entry that served the last call that looked like this one, then all others in their
 * order. */
static Outcome try_entries(Dispatcher *dispatcher, PyObject *entries, PyObject *const *slots,
                           Py_ssize_t slot_count, PyObject *const *args, size_t flagged_count,
                           PyObject *names, PyObject **result) {
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    IngotSurroundings around = {0};
    uint64_t look = count > 1 || dispatcher->on_hot ? ingot_look_of(slots, slot_count) : 0;
    PyObject *recalled = ingot_recall(dispatcher->recall, look), *served = NULL;
    if (recalled != NULL && try_entry(dispatcher, (Entry *)recalled, &around, slots, slot_count,
                                      args, flagged_count, names, result) == HIT)
        served = recalled;
    for (Py_ssize_t i = 0; served == NULL && i < count; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (entry == recalled || try_entry(dispatcher, (Entry *)entry, &around, slots, slot_count,
                                           args, flagged_count, names, result) == MISSED)
            continue;
        if (count > 1 && dispatcher->entries == entries) /* it is still one of the dispatcher's */
            ingot_remember(&dispatcher->recall, look, entry);
        served = entry;
    }
    if (served != NULL && dispatcher->on_hot && ((Entry *)served)->general && *result != NULL)
        count_alike(dispatcher, (Entry *)served, look, slots, slot_count, args,
                    PyVectorcall_NARGS(flagged_count), names);
    return served != NULL ? HIT : MISSED;
}

static PyObject *dispatch(Dispatcher *dispatcher, PyObject *const *slots, Py_ssize_t slot_count,
                          PyObject *const *args, size_t flagged_count, PyObject *names) {
    PyObject *entries = Py_NewRef(dispatcher->entries),
             *result = NULL; /* keeps the running entry alive */
    if (try_entries(dispatcher, entries, slots, slot_count, args, flagged_count, names, &result) ==
        MISSED)
        result = hand_over(dispatcher->on_miss, slots, slot_count, args,
                           PyVectorcall_NARGS(flagged_count), names);
    Py_DECREF(entries);
    return result;
}

static PyObject *call_region(PyObject *object, PyObject *const *args, size_t flagged_count,
                             PyObject *names) {
    Dispatcher *dispatcher = (Dispatcher *)object;
    if (dispatcher->entries == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the compiled function has been torn down");
        return NULL;
    }
    if (ingot_runs_eager())
        return PyObject_Vectorcall(dispatcher->fn, args, flagged_count, names);
    if (ingot_signature_refresh(&dispatcher->signature) < 0)
        return NULL;
    Py_ssize_t slot_count = dispatcher->signature.slots;
    PyObject *on_stack[ON_STACK], **slots = on_stack, *result = NULL;
    if (slot_count > ON_STACK && (slots = PyMem_Malloc((size_t)slot_count * sizeof *slots)) == NULL)
        return PyErr_NoMemory();
    int bound = ingot_bind(&dispatcher->signature, dispatcher->self, args,
                           PyVectorcall_NARGS(flagged_count), names, slots);
    Py_INCREF(dispatcher); /* what it runs may drop the last reference to it */
    if (bound == 1) {
        result = dispatch(dispatcher, slots, slot_count, args, flagged_count, names);
        release(slots, slot_count);
    } else if (bound == 0) { /* Python raises its own TypeError */
        result = PyObject_Vectorcall(dispatcher->fn, args, flagged_count, names);
    }
    Py_DECREF(dispatcher);
    if (slots != on_stack)
        PyMem_Free(slots);
    return result;
}

/* Runs a region, and those behind its graph breaks one after the other. */
static PyObject *call_regions(PyObject *object, PyObject *const *args, size_t flagged_count,
                              PyObject *names) {
    PyObject *result = call_region(object, args, flagged_count, names);
    while (result != NULL && Py_TYPE(result) == &IngotContinue_Type) {
        IngotContinue *next = (IngotContinue *)result;
        if (Py_TYPE(next->target) == Py_TYPE(object))
            result = call_region(next->target, ((PyTupleObject *)next->state)->ob_item,
                                 (size_t)PyTuple_GET_SIZE(next->state), NULL);
        else
            result = PyObject_Call(next->target, next->state, NULL);
        Py_DECREF(next);
    }
    return result;
}

static PyObject *dispatcher_vectorcall(PyObject *object, PyObject *const *args,
                                       size_t flagged_count, PyObject *names) {
    if (!ingot_frames_are_hooked())
        return call_regions(object, args, flagged_count, names);
    PyObject *hook = ingot_hide_from_torch();
    PyObject *result = call_regions(object, args, flagged_count, names);
    ingot_show_to_torch(hook);
    return result;
}

/* -- making and describing --------------------------------------------------------------------- */

static int adopt_names(PyObject *dispatcher, PyObject *fn) {
    PyObject *functools = PyImport_ImportModule("functools");
    PyObject *updated =
        functools == NULL ? NULL
                          : PyObject_CallMethod(functools, "update_wrapper", "OO", dispatcher, fn);
    Py_XDECREF(functools);
    Py_XDECREF(updated);
    return updated == NULL ? -1 : 0;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fn", "on_miss", "passes_function", NULL};
    PyObject *fn, *on_miss;
    int passes_function = false;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p:Dispatcher", names, &fn, &on_miss,
                                     &passes_function))
        return NULL;
    Dispatcher *dispatcher = (Dispatcher *)type->tp_alloc(type, 0);
    if (dispatcher == NULL)
        return NULL;
    bool is_method = PyMethod_Check(fn);
    dispatcher->vectorcall = dispatcher_vectorcall;
    dispatcher->fn = Py_NewRef(fn);
    dispatcher->on_miss = Py_NewRef(on_miss);
    dispatcher->self = is_method ? Py_NewRef(PyMethod_GET_SELF(fn)) : NULL;
    dispatcher->entries = PyTuple_New(0);
    if (dispatcher->entries == NULL ||
        ingot_signature_init(&dispatcher->signature, is_method ? PyMethod_GET_FUNCTION(fn) : fn,
                             passes_function) < 0 ||
        adopt_names((PyObject *)dispatcher, fn) < 0)
        Py_CLEAR(dispatcher);
    return (PyObject *)dispatcher;
}

static int dispatcher_traverse(Dispatcher *dispatcher, visitproc visit, void *arg) {
    Py_VISIT(dispatcher->fn);
    Py_VISIT(dispatcher->self);
    Py_VISIT(dispatcher->on_miss);
    Py_VISIT(dispatcher->on_hot);
    Py_VISIT(dispatcher->entries);
    Py_VISIT(dispatcher->dict);
    Py_VISIT(dispatcher->signature.function);
    Py_VISIT(dispatcher->signature.code);
    return 0;
}

/* Entries, handler and attributes are what cycles go through; `fn` stays, so that a call from a
 * finalizer fails cleanly. */
static int dispatcher_clear(Dispatcher *dispatcher) {
    ingot_forget(&dispatcher->recall);
    Py_CLEAR(dispatcher->entries);
    Py_CLEAR(dispatcher->on_miss);
    Py_CLEAR(dispatcher->on_hot);
    Py_CLEAR(dispatcher->dict);
    return 0;
}

static void dispatcher_dealloc(Dispatcher *dispatcher) {
    PyObject_GC_UnTrack(dispatcher);
    if (dispatcher->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)dispatcher);
    dispatcher_clear(dispatcher);
    ingot_signature_clear(&dispatcher->signature);
    Py_CLEAR(dispatcher->self);
    Py_CLEAR(dispatcher->fn);
    Py_TYPE(dispatcher)->tp_free((PyObject *)dispatcher);
}

static PyObject *dispatcher_get(PyObject *dispatcher, PyObject *owner, PyObject *Py_UNUSED(type)) {
    return owner == NULL || owner == Py_None ? Py_NewRef(dispatcher)
                                             : PyMethod_New(dispatcher, owner);
}

static PyObject *dispatcher_repr(Dispatcher *dispatcher) {
    return PyUnicode_FromFormat("<compiled %R>", dispatcher->fn);
}

static bool is_target(PyObject *target) {
    return target == Py_None || Py_TYPE(target) == &IngotProgram_Type || PyCallable_Check(target);
}

/* Reads a Residual's `kind`, `output_count` and, where it is general, its `build` function (a new
 * reference). 0, or -1 with an exception set. */
static int read_residual(PyObject *residual, Result *result, Py_ssize_t *output_count,
                         PyObject **build) {
    *result = TUPLE;
    *output_count = -1;
    *build = NULL;
    if (residual == Py_None)
        return 0;
    PyObject *kind = PyObject_GetAttrString(residual, "kind");
    if (kind == NULL)
        return -1;
    size_t found = 0;
    while (found < Py_ARRAY_LENGTH(result_names) &&
           !(PyUnicode_Check(kind) &&
             PyUnicode_CompareWithASCIIString(kind, result_names[found]) == 0))
        found++;
    *result = (Result)found;
    if (found == Py_ARRAY_LENGTH(result_names))
        PyErr_Format(PyExc_ValueError, "no residual of kind %R", kind);
    else if (found == GENERAL)
        *build = PyObject_GetAttrString(residual, "build");
    Py_DECREF(kind);
    PyObject *count = PyErr_Occurred() ? NULL : PyObject_GetAttrString(residual, "output_count");
    if (count != NULL)
        *output_count = PyLong_AsSsize_t(count);
    Py_XDECREF(count);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *add_entry(Dispatcher *dispatcher, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"guards",  "target",  "residual",   "record",    "replays",
                            "handles", "general", "generators", "has_graph", NULL};
    PyObject *guards, *target, *residual = Py_None, *record = Py_None, *generators = NULL;
    int replays = false, handles = false, general = false, has_graph = true;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|OOpppO!p:add_entry", names,
                                     &IngotGuardTree_Type, &guards, &target, &residual, &record,
                                     &replays, &handles, &general, &PyTuple_Type, &generators,
                                     &has_graph))
        return NULL;
    if (!is_target(target)) {
        PyErr_Format(PyExc_TypeError,
                     "the target of an entry is a Program, a callable or None, not %R", target);
        return NULL;
    }
    if (dispatcher->entries == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the compiled function has been torn down");
        return NULL;
    }
    Entry *entry = (Entry *)Entry_Type.tp_alloc(&Entry_Type, 0);
    if (entry == NULL)
        return NULL;
    entry->guards = Py_NewRef(guards);
    entry->target = Py_NewRef(target);
    entry->record = Py_NewRef(record);
    entry->replays = replays;
    entry->handles = handles;
    entry->general = general;
    entry->has_graph = has_graph && target != Py_None;
    entry->generators =
        generators == NULL || PyTuple_GET_SIZE(generators) == 0 ? NULL : Py_NewRef(generators);
    if (read_residual(residual, &entry->result, &entry->output_count, &entry->residual) < 0) {
        Py_DECREF(entry);
        return NULL;
    }
    PyObject *alone = PyTuple_Pack(1, entry), *others = dispatcher->entries;
    PyObject *longer = alone == NULL
                           ? NULL
                           : PySequence_Concat(general ? others : alone, general ? alone : others);
    Py_XDECREF(alone);
    if (longer == NULL)
        Py_CLEAR(entry);
    else
        Py_SETREF(dispatcher->entries, longer);
    if (!general)
        ingot_forget(&dispatcher->recall); /* which may name general entries for calls that this one
                                              serves better */
    return (PyObject *)entry;
}

static PyObject *report_hot(Dispatcher *dispatcher, PyObject *args) {
    PyObject *handler;
    Py_ssize_t calls;
    if (!PyArg_ParseTuple(args, "nO:report_hot", &calls, &handler))
        return NULL;
    dispatcher->hot = calls;
    Py_XSETREF(dispatcher->on_hot, handler == Py_None ? NULL : Py_NewRef(handler));
    Py_RETURN_NONE;
}

static PyObject *list_entries(Dispatcher *dispatcher, PyObject *Py_UNUSED(ignored)) {
    return dispatcher->entries == NULL ? PyTuple_New(0) : Py_NewRef(dispatcher->entries);
}

static PyObject *clear_entries(Dispatcher *dispatcher, PyObject *Py_UNUSED(ignored)) {
    PyObject *empty = PyTuple_New(0);
    if (empty == NULL)
        return NULL;
    ingot_forget(&dispatcher->recall);
    Py_XSETREF(dispatcher->entries, empty);
    Py_RETURN_NONE;
}

/* Like a function: copied as itself, pickled by its qualified name. */
static PyObject *copy_as_itself(PyObject *dispatcher, PyObject *Py_UNUSED(memo)) {
    return Py_NewRef(dispatcher);
}

static PyObject *reduce(PyObject *dispatcher, PyObject *Py_UNUSED(ignored)) {
    return PyObject_GetAttrString(dispatcher, "__qualname__");
}

static PyMethodDef dispatcher_methods[] = {
    {"add_entry", (PyCFunction)(void (*)(void))add_entry, METH_VARARGS | METH_KEYWORDS,
     "add_entry(guards, target, residual=None, record=None, replays=False, handles=False,\n"
     "          general=False, generators=(), has_graph=True) -> Entry\n\n"
     "replays: where the graph raises, the original function is called, to raise at its own line.\n"
     "handles: it may handle what it raises; otherwise there is a warning where it does not "
     "raise.\n"
     "generators: have the state then that they had before the graph ran.\n"
     "has_graph: the target computes something.\n"
     "Puts an entry first, or, where it is general, last, since special ones are faster. target: "
     "a\n"
     "Program, a callable(*inputs) -> tuple or list of outputs, or None for the original "
     "function.\n"
     "residual: says by its `kind` what the result is: 'tensor' (the one output), 'tuple' (all of\n"
     "them; so is None) or 'general': what its `build(outputs, slots)` returns; and by its\n"
     "`output_count` how many outputs there are."},
    {"entries", (PyCFunction)list_entries, METH_NOARGS,
     "The entries as a tuple, in the order in which they are asked."},
    {"report_hot", (PyCFunction)report_hot, METH_VARARGS,
     "report_hot(calls, handler): after so many calls that look alike, in a row, which one general "
     "entry has served,\n"
     "handler(slots, args, kwargs) is called, behind the last of them. What it raises is reported, "
     "and goes no "
     "further.\n"
     "None as handler: no more."},
    {"clear", (PyCFunction)clear_entries, METH_NOARGS,
     "Forgets every entry; running calls finish with theirs."},
    {"__copy__", copy_as_itself, METH_NOARGS, "Copied as itself, like a function."},
    {"__deepcopy__", copy_as_itself, METH_O, "Copied as itself, like a function."},
    {"__reduce__", reduce, METH_NOARGS, "Pickled by its qualified name, like a function."},
    {0},
};

static PyMemberDef dispatcher_members[] = {
    {"fn", T_OBJECT, offsetof(Dispatcher, fn), READONLY, "the original callable"},
    {"on_miss", T_OBJECT, offsetof(Dispatcher, on_miss), READONLY,
     "callable(slots, args, kwargs) -> result"},
    {0},
};

static PyGetSetDef dispatcher_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

static PyTypeObject Dispatcher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Dispatcher",
    .tp_doc =
        "Dispatcher(fn, on_miss, passes_function=False): a compiled function. A call runs the "
        "first entry whose facts hold, else\n"
        "on_miss(slots, args, kwargs), which is to compile, add an entry, and return the "
        "result. `fn` is a "
        "Python function or a\n"
        "bound method of one; the last slot holds the function if it is passed. It stands in a "
        "class as a function does.",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = dispatcher_new,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_clear = (inquiry)dispatcher_clear,
    .tp_repr = (reprfunc)dispatcher_repr,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Dispatcher, vectorcall),
    .tp_descr_get = dispatcher_get,
    .tp_dictoffset = offsetof(Dispatcher, dict),
    .tp_weaklistoffset = offsetof(Dispatcher, weakrefs),
    .tp_methods = dispatcher_methods,
    .tp_members = dispatcher_members,
    .tp_getset = dispatcher_getset,
};

int ingot_dispatch_register(PyObject *module) {
    if (PyType_Ready(&Entry_Type) < 0 || PyType_Ready(&Dispatcher_Type) < 0 ||
        PyModule_AddObjectRef(module, "Entry", (PyObject *)&Entry_Type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Dispatcher", (PyObject *)&Dispatcher_Type);
}
