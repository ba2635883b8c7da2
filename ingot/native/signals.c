/* Handlers of signals that are written in Python may raise an exception at any bytecode, behind
 * which locks stay taken and torch's modes stay set. What must not be cut off runs by `run_whole`:
 * while it does, handlers of the main thread are replaced by a Deferral, which only notes that a
 * signal came. The work asks at its safe points (`safe_point`), and is given up there with
 * Interrupted, an exception of this file's own that no handler of an Exception catches. Once the
 * work has ended, the user's handlers are in place again, and those whose signals came are called:
 * where one raises, that is the outcome; where none does, work that was given up is done again. */
#include "signals.h"

#include "library_lock.h"
#include "stance.h"
#include "watchdog.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>

#ifndef _WIN32
#include <time.h>
#endif

#ifndef NSIG
#define NSIG 65
#endif

/* Seconds. A signal that came so long ago and met no safe point is handled in the midst of things:
 * what runs is stuck, in the user's code most likely. */
static const double STUCK = 3;
/* After so long an Interrupted that something has swallowed is raised again. */
static const double AGAIN = 0.2;
/* How long a signal waits at first once work was given up for a handler that did not raise; then
 * twice as long. */
static const double PATIENCE = 0.5;

static PyObject *get_handler, *set_handler, *default_handler; /* of the module `_signal` */
static PyObject *Interrupted;
static PyObject *compile_lock; /* a threading.RLock */

/* -- the state: of the main thread, guarded by the GIL ----------------------------------------- */

typedef struct {
    PyObject_HEAD PyObject *handlers[NSIG]; /* what it stands for, or NULL */
} Deferral;

static Deferral *current; /* which is in place, or NULL */
static Deferral *left;    /* the same, where a finalizer has left it there: signals came */
/* what a handler raised where it would be lost, to be raised by `settle` */
static PyObject *stashed;
/* how many calls run in the owner's thread that no handler may cut off */
static int kept_off;
static unsigned long owner;
static bool came[NSIG];
static volatile bool any_came;
static double first_came, patience, raised_at;

static double now(void) {
#ifdef _WIN32
    return GetTickCount64() / 1e3;
#else
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
#endif
}

static void forget_signals(void) {
    for (int n = 0; n < NSIG; n++)
        came[n] = false;
    any_came = false;
}

/* -- Deferral: stands in for the user's handlers ----------------------------------------------- */

static PyTypeObject Deferral_Type;

static PyObject *call_handler(PyObject *handler, int number, PyObject *frame) {
    PyObject *result = NULL, *boxed = PyLong_FromLong(number);
    if (boxed != NULL)
        result = PyObject_CallFunctionObjArgs(handler, boxed, frame, NULL);
    Py_XDECREF(boxed);
    return result;
}

/* Calls the handlers, as they are now, of the signals that came. 0, or -1 with what the first
 * raised; signals behind that one come again. */
static int handle_signals(void) {
    bool noted[NSIG];
    for (int n = 0; n < NSIG; n++)
        noted[n] = came[n];
    forget_signals();
    int status = 0;
    for (int n = 1; n < NSIG; n++) {
        if (!noted[n])
            continue;
        if (status < 0) {
            PyErr_SetInterruptEx(n);
            continue;
        }
        PyObject *handler = PyObject_CallFunction(get_handler, "i", n), *result = NULL;
        PyObject *frame = (PyObject *)PyEval_GetFrame();
        /* Where the deferral is still in place, what runs is stuck. */
        if (handler != NULL && Py_TYPE(handler) == &Deferral_Type)
            Py_SETREF(handler, Py_XNewRef(((Deferral *)handler)->handlers[n]));
        if (handler != NULL)
            result = PyCallable_Check(handler)
                         ? call_handler(handler, n, frame == NULL ? Py_None : frame)
                         : Py_NewRef(Py_None);
        Py_XDECREF(handler);
        Py_XDECREF(result);
        status = result == NULL ? -1 : 0;
    }
    return status;
}

/* Called as a handler. One that the user's code has got hold of stands for the original one, later
 * on too. */
static PyObject *deferral_call(Deferral *deferral, PyObject *args, PyObject *kwargs) {
    int number;
    PyObject *frame;
    static char *names[] = {"signalnum", "frame", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO", names, &number, &frame))
        return NULL;
    if (number < 1 || number >= NSIG || deferral->handlers[number] == NULL)
        Py_RETURN_NONE;
    if (deferral != current)
        return call_handler(deferral->handlers[number], number, frame);
    bool stuck = any_came && now() - first_came > patience + STUCK;
    came[number] = true;
    if (stuck)
        return handle_signals() < 0 ? NULL : Py_NewRef(Py_None);
    if (!any_came) {
        first_came = now();
        any_came = true;
        ingot_watchdog_send(number, patience + STUCK + 0.05);
    }
    Py_RETURN_NONE;
}

static int deferral_traverse(Deferral *deferral, visitproc visit, void *arg) {
    for (int n = 0; n < NSIG; n++)
        Py_VISIT(deferral->handlers[n]);
    return 0;
}

static int deferral_clear(Deferral *deferral) {
    for (int n = 0; n < NSIG; n++)
        Py_CLEAR(deferral->handlers[n]);
    return 0;
}

static void deferral_dealloc(Deferral *deferral) {
    PyObject_GC_UnTrack(deferral);
    deferral_clear(deferral);
    Py_TYPE(deferral)->tp_free((PyObject *)deferral);
}

static PyTypeObject Deferral_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ingot.native._native.Deferral",
    .tp_doc = "The handler of signals while something runs that must not be cut off.",
    .tp_basicsize = sizeof(Deferral),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)deferral_dealloc,
    .tp_traverse = (traverseproc)deferral_traverse,
    .tp_clear = (inquiry)deferral_clear,
    .tp_call = (ternaryfunc)deferral_call,
};

/* Sets Python's handler, and leaves the system's as it is, with its flags: `signal.signal` would
 * set these anew. */
static int put_handler(int number, PyObject *handler) {
#ifndef _WIN32
    struct sigaction action;
    bool known = sigaction(number, NULL, &action) == 0;
#endif
    PyObject *before = PyObject_CallFunction(set_handler, "iO", number, handler);
#ifndef _WIN32
    if (known && before != NULL)
        sigaction(number, &action, NULL);
#endif
    Py_XDECREF(before);
    return before == NULL ? -1 : 0;
}

/* Takes the deferral away. 0, or -1 with what a handler raised meanwhile: then, too, it is gone. */
static int remove_deferral(Deferral *deferral) {
    PyObject *type = NULL, *raised = NULL, *traceback = NULL;
    for (int n = 1; n < NSIG; n++) {
        PyObject *handler =
            deferral->handlers[n] == NULL ? NULL : PyObject_CallFunction(get_handler, "i", n);
        for (int tries = 0; handler == (PyObject *)deferral && tries < 100; tries++) {
            if (put_handler(n, deferral->handlers[n]) == 0)
                break;
            Py_XDECREF(type), Py_XDECREF(raised), Py_XDECREF(traceback);
            /* of a signal that came just now: the handler is set all the same */
            PyErr_Fetch(&type, &raised, &traceback);
        }
        Py_XDECREF(handler);
    }
    if (current == deferral)
        current = NULL;
    ingot_watchdog_end();
    if (type == NULL)
        return 0;
    PyErr_Restore(type, raised, traceback);
    return -1;
}

/* Whether the exception that is set says that signals are handled by another thread; it is cleared
 * then. */
static bool is_of_another_thread(void) {
    if (!PyErr_ExceptionMatches(PyExc_ValueError))
        return false;
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    PyObject *text = raised == NULL ? NULL : PyObject_Str(raised);
    const char *words = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    bool elsewhere = words != NULL && strstr(words, "main thread") != NULL;
    Py_XDECREF(text);
    PyErr_Restore(type, raised, traceback);
    if (elsewhere)
        PyErr_Clear();
    return elsewhere;
}

/* Puts one in place where this thread is the one that handles signals and there is none yet. 1 or 0
 * whether it did, or -1 with what a handler raised. */
static int put_deferral(double waits) {
    if (current != NULL)
        return 0;
    Deferral *deferral = (Deferral *)Deferral_Type.tp_alloc(&Deferral_Type, 0);
    if (deferral == NULL)
        return -1;
    bool placed = false;
    for (int n = 1; n < NSIG; n++) {
        PyObject *handler = PyObject_CallFunction(get_handler, "i", n);
        if (handler == NULL || !PyCallable_Check(handler)) {
            PyErr_Clear(); /* there is no such signal */
            Py_XDECREF(handler);
            continue;
        }
        deferral->handlers[n] = handler;
        if (put_handler(n, (PyObject *)deferral) == 0) {
            placed = true;
            continue;
        }
        Py_CLEAR(deferral->handlers[n]);
        bool elsewhere = !placed && is_of_another_thread();
        PyObject *type, *raised, *traceback;
        PyErr_Fetch(&type, &raised, &traceback);
        if (remove_deferral(deferral) < 0)
            PyErr_Clear();
        PyErr_Restore(type, raised, traceback);
        Py_DECREF(deferral);
        return elsewhere ? 0 : -1;
    }
    if (!placed) {
        Py_DECREF(deferral);
        return 0;
    }
    forget_signals();
    current = deferral; /* which is kept alive by its places, and by this */
    owner = PyThread_get_thread_ident();
    patience = waits;
    raised_at = 0;
    ingot_watchdog_begin(&any_came);
    return 1;
}

static bool is_owner(void) { return current != NULL && owner == PyThread_get_thread_ident(); }

/* Has the signals that came come again. */
static void hand_back_signals(void) {
    for (int n = 1; n < NSIG; n++)
        if (came[n])
            PyErr_SetInterruptEx(n);
    forget_signals();
}

static int take_left_deferral(void) {
    Deferral *deferral = left;
    left = NULL;
    int status = remove_deferral(deferral);
    Py_DECREF(deferral);
    return status;
}

/* Keeps what a handler raised where it would be lost. */
static void stash(void) {
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    PyErr_NormalizeException(&type, &raised, &traceback);
    if (stashed == NULL)
        stashed = Py_XNewRef(raised);
    Py_XDECREF(type), Py_XDECREF(raised), Py_XDECREF(traceback);
}

static int raise_stashed(void) {
    PyObject *raised = stashed;
    stashed = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    Py_DECREF(raised);
    return -1;
}

/* Called by the main thread between two bytecodes: handles the signals that came while something
 * was finalized, once nothing runs any more in which that would be in vain. */
static int settle(void *Py_UNUSED(nothing)) {
    /* What ends last adds this call again; added here, it would keep a traced function at its first
     * line. */
    if (kept_off > 0)
        return 0;
    int status = 0;
    if (left != NULL && left == current)
        status = take_left_deferral() < 0 ? -1 : handle_signals();
    if (status < 0 || stashed != NULL)
        hand_back_signals();
    if (status < 0) {
        Py_CLEAR(stashed);
        return -1;
    }
    return stashed == NULL ? 0 : raise_stashed();
}

/* As `settle`, but lets the signals that came come again, and raises nothing. */
static void settle_in_silence(void) {
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    if (left != NULL && take_left_deferral() < 0)
        stash(); /* of a signal that came just now */
    hand_back_signals();
    PyErr_Restore(type, raised, traceback);
}

/* Where nothing runs any more that keeps handlers off: has `settle` called, if there is anything to
 * settle. */
static void settle_soon(void) {
    if (kept_off > 0 || (left == NULL && stashed == NULL))
        return;
    if (Py_AddPendingCall(settle, NULL) < 0) /* too many are pending */
        settle_in_silence();
}

/* -- what runs whole --------------------------------------------------------------------------- */

/* One attempt. `*gave_up`: it was given up at a safe point. */
static PyObject *attempt(PyObject *function, PyObject *args, PyObject *kwargs, double waits,
                         bool *gave_up) {
    *gave_up = false;
    bool waits_here = (left != NULL || stashed != NULL) && owner == PyThread_get_thread_ident();
    if (waits_here && settle(NULL) < 0)
        return NULL;
    int placed = put_deferral(waits);
    if (placed < 0)
        return NULL;
    bool keeps_off = is_owner();
    kept_off += keeps_off;
    PyObject *result = PyObject_Call(function, args, kwargs);
    kept_off -= keeps_off;
    if (keeps_off)
        settle_soon();
    /* `run_handled` may have put another one in place, or none. */
    Deferral *deferral = placed ? current : NULL;
    if (deferral == NULL)
        return result;
    *gave_up = result == NULL && PyErr_ExceptionMatches(Interrupted);
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    if (remove_deferral(deferral) < 0) {
        Py_XDECREF(type), Py_XDECREF(raised), Py_XDECREF(traceback);
        Py_CLEAR(result);
        *gave_up = false;
    } else
        PyErr_Restore(type, raised, traceback);
    Py_DECREF(deferral);
    return result;
}

/* Calls the handlers of signals that came during an attempt. What one raises takes the place of the
 * outcome. */
static PyObject *handled(PyObject *result) {
    if (!any_came || current != NULL)
        return result;
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    if (handle_signals() == 0) {
        PyErr_Restore(type, raised, traceback);
        return result;
    }
    Py_XDECREF(type), Py_XDECREF(raised), Py_XDECREF(traceback);
    Py_XDECREF(result);
    return NULL;
}

static PyObject *run_attempts(PyObject *function, PyObject *args, PyObject *kwargs, bool alone) {
    for (double waits = 0;; waits = waits == 0 ? PATIENCE : 2 * waits) {
        PyObject *lock = alone ? Py_NewRef(compile_lock) : NULL;
        if (lock != NULL && ingot_lock_take(lock) < 0) {
            Py_DECREF(lock);
            return NULL;
        }
        bool gave_up, nested = is_owner();
        PyObject *result = attempt(function, args, kwargs, waits, &gave_up);
        if (lock != NULL)
            ingot_lock_let_go(lock);
        Py_XDECREF(lock);
        if (nested || PyThread_get_thread_ident() != owner)
            return result;
        result = handled(result);
        if (!gave_up || result != NULL || !PyErr_ExceptionMatches(Interrupted))
            return result;
        PyErr_Clear();
    }
}

static PyObject *run_whole(PyObject *Py_UNUSED(module), PyObject *given) {
    PyObject *function, *args, *kwargs;
    int alone;
    if (!PyArg_ParseTuple(given, "OO!O!p:run_whole", &function, &PyTuple_Type, &args, &PyDict_Type,
                          &kwargs, &alone))
        return NULL;
    PyObject *hook = ingot_frames_are_hooked() ? ingot_hide_from_torch() : NULL;
    PyObject *result = run_attempts(function, args, kwargs, alone);
    ingot_show_to_torch(hook);
    return result;
}

static PyObject *run_handled(PyObject *Py_UNUSED(module), PyObject *given) {
    PyObject *function, *args, *kwargs;
    if (!PyArg_ParseTuple(given, "OO!O!:run_handled", &function, &PyTuple_Type, &args, &PyDict_Type,
                          &kwargs))
        return NULL;
    if (!is_owner())
        return PyObject_Call(function, args, kwargs);
    double waits = patience;
    Deferral *deferral = current;
    bool was_left = deferral == left;
    left = was_left ? NULL : left;
    if (remove_deferral(deferral) < 0 || (any_came && handle_signals() < 0)) {
        Py_DECREF(deferral);
        return NULL;
    }
    Py_DECREF(deferral);
    int around = kept_off;
    kept_off = 0;
    PyObject *result = PyObject_Call(function, args, kwargs);
    kept_off = around;
    PyObject *type, *raised, *traceback;
    PyErr_Fetch(&type, &raised, &traceback);
    if (put_deferral(waits) < 0) {
        Py_XDECREF(type), Py_XDECREF(raised), Py_XDECREF(traceback);
        Py_CLEAR(result);
    } else
        PyErr_Restore(type, raised, traceback);
    left = was_left ? current : left;
    return result;
}

static PyObject *safe_point(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (!any_came || !is_owner())
        Py_RETURN_NONE;
    double time = now();
    bool raises =
        default_handler != NULL && came[SIGINT] && current->handlers[SIGINT] == default_handler;
    if ((!raises && time - first_came < patience) || time - raised_at < AGAIN)
        Py_RETURN_NONE;
    raised_at = time;
    PyErr_SetString(Interrupted, "a signal came while something was compiled");
    return NULL;
}

/* In the child of a fork, where the thread that compiled may not exist. */
static PyObject *renew_after_fork(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    ingot_watchdog_renew();
    if (current != NULL && !is_owner()) {
        Deferral *deferral = current;
        forget_signals();
        left = NULL;
        kept_off = 0;
        int status = remove_deferral(deferral);
        Py_DECREF(deferral);
        if (status < 0)
            return NULL;
    }
    PyObject *owned = PyObject_CallMethod(compile_lock, "_is_owned", NULL);
    if (owned == NULL)
        return NULL;
    PyObject *done = owned == Py_True ? Py_NewRef(Py_None)
                                      : PyObject_CallMethod(compile_lock, "_at_fork_reinit", NULL);
    Py_DECREF(owned);
    return done;
}

/* -- forgetting: the callback of weak references ----------------------------------------------- */

/* In one written in Python, what a signal's handler raises would be lost. */

static PyObject *forget_reference(PyObject *table, PyObject *reference) {
    PyObject *key = PyObject_GetAttrString(reference, "key");
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(table, key);
    int status = PyErr_Occurred() ? -1 : known == reference ? PyDict_DelItem(table, key) : 0;
    Py_XDECREF(key);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef forget_function = {"forget", forget_reference, METH_O,
                                      "forget(reference): takes it from its table."};

static PyObject *forgetting(PyObject *Py_UNUSED(module), PyObject *table) {
    if (!PyDict_Check(table))
        return PyErr_Format(PyExc_TypeError, "forgetting: a dict, not %R", table);
    return PyCFunction_New(&forget_function, table);
}

/* -- finalizing: a `__del__`, in which what a signal's handler raises is lost as well ---------- */

/* Calls the function; signals that come meanwhile are handled behind it, and behind what is
 * finalized next to it. */
static PyObject *finalize(PyObject *function, PyObject *object) {
    int placed = put_deferral(0);
    if (placed < 0)
        stash();
    bool keeps_off = is_owner();
    kept_off += keeps_off;
    PyObject *result = PyObject_CallOneArg(function, object);
    kept_off -= keeps_off;
    if (placed > 0)
        left = current;
    if (placed > 0 && !any_came)
        settle_in_silence();
    if (keeps_off || placed < 0)
        settle_soon();
    return result;
}

static PyMethodDef finalize_function = {"__del__", finalize, METH_O,
                                        "Finalizes an object; signals are handled later."};

static PyObject *finalizing(PyObject *Py_UNUSED(module), PyObject *function) {
    PyObject *made = PyCFunction_New(&finalize_function, function);
    PyObject *method = made == NULL ? NULL : PyInstanceMethod_New(made);
    Py_XDECREF(made);
    return method;
}

/* -- the module -------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"run_whole", run_whole, METH_VARARGS,
     "run_whole(function, args, kwargs, alone): calls it, with no handler of a signal running "
     "meanwhile; those of "
     "signals\n"
     "that came run behind it. alone: it holds the lock of compilation."},
    {"run_handled", run_handled, METH_VARARGS,
     "run_handled(function, args, kwargs): calls it from within `run_whole`, with signals handled "
     "as outside."},
    {"safe_point", safe_point, METH_NOARGS,
     "Raises Interrupted where a signal waits to be handled."},
    {"forgetting", forgetting, METH_O,
     "forgetting(table): a callback of weak references that have a `key`, which takes them from "
     "the table."},
    {"finalizing", finalizing, METH_O,
     "finalizing(function): a `__del__` that calls it; the handlers of signals that come meanwhile "
     "run behind it."},
    {"renew_after_fork", renew_after_fork, METH_NOARGS, "Is called in the child of a fork."},
    {0},
};

int ingot_signals_register(PyObject *module) {
    PyObject *signals = PyImport_ImportModule("_signal"),
             *threads = PyImport_ImportModule("threading");
    int status = -1;
    if (signals == NULL || threads == NULL || PyType_Ready(&Deferral_Type) < 0)
        goto done;
    get_handler = PyObject_GetAttrString(signals, "getsignal");
    set_handler = PyObject_GetAttrString(signals, "signal");
    default_handler = PyObject_GetAttrString(signals, "default_int_handler");
    compile_lock = PyObject_CallMethod(threads, "RLock", NULL);
    Interrupted = PyErr_NewExceptionWithDoc(
        "ingot.native._native.Interrupted",
        "A compilation is given up, as a signal waits to be handled.", PyExc_BaseException, NULL);
    if (get_handler != NULL && set_handler != NULL && default_handler != NULL &&
        compile_lock != NULL && Interrupted != NULL &&
        PyModule_AddObjectRef(module, "Interrupted", Interrupted) == 0 &&
        PyModule_AddObjectRef(module, "Deferral", (PyObject *)&Deferral_Type) == 0 &&
        ingot_library_lock_register(module) == 0 &&
        PyModule_AddObjectRef(module, "compile_lock", compile_lock) == 0)
        status = PyModule_AddFunctions(module, functions);
done:
    Py_XDECREF(signals);
    Py_XDECREF(threads);
    return status;
}
