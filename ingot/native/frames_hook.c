/* The frame hook: runs another callable in place of a frame that is about to start (PEP 523).

   CPython has one evaluation function per interpreter. Ours is in place while any thread is active
   (`hook_enter`), hands on what does not concern it to the function that was there before, and asks
   about each code object once: the decision is kept in the code object's extra slot and dies with
   it.

   One entry, the tensor entry, is called for frames that have tensors near at hand, and only where
   somebody captures. Where its calls run no graph, the code object comes to rest: its frames run as
   they are for a while. See docs/internals/capture.md. */
#include "frames_parts.h"

#if INGOT_KNOWS_FRAMES

#include "stance.h"
#include "work.h"

#ifndef _WIN32
#include <pthread.h>
#endif

/* -- decisions, one per code object ------------------------------------------------------------ */

typedef struct Decision {
    struct Decision *previous,
        *next; /* the ring of all; one that is by itself in its ring is not decided any more */
    PyObject *entry; /* NULL: the frames run as they are; Ellipsis: so does all that they call */
    unsigned looks;  /* calls of the tensor entry, */
    unsigned idle;   /* what they have cost since the last one that ran a graph, */
    unsigned rest;   /* and how many frames run as they are before the next one */
} Decision;

static Decision decisions = {.previous = &decisions, .next = &decisions};
static Py_ssize_t extra_index;

static void link_after(Decision *decision, Decision *before) {
    decision->previous = before;
    decision->next = before->next;
    before->next->previous = decision;
    before->next = decision;
}

static void forget(Decision *decision) {
    PyObject *entry = decision->entry;
    decision->previous->next = decision->next;
    decision->next->previous = decision->previous;
    *decision = (Decision){.previous = decision, .next = decision};
    Py_XDECREF(entry); /* may run any code */
}

/* When the code object dies. */
static void free_decision(void *decision) {
    if (decision != NULL)
        forget(decision);
    PyMem_Free(decision);
}

/* NULL where nothing is decided. */
static Decision *decision_of(PyCodeObject *code) {
    void *found = NULL;
    if (get_extra((PyObject *)code, extra_index, &found) < 0)
        PyErr_Clear();
    Decision *decision = found;
    return decision == NULL || decision->next == decision ? NULL : decision;
}

static Decision *new_decision(PyCodeObject *code) {
    void *found = NULL;
    if (get_extra((PyObject *)code, extra_index, &found) < 0)
        return NULL;
    if (found != NULL)
        return found;
    Decision *decision = PyMem_Malloc(sizeof *decision);
    if (decision == NULL)
        return PyErr_NoMemory(), NULL;
    *decision = (Decision){.previous = decision, .next = decision};
    if (set_extra((PyObject *)code, extra_index, decision) == 0)
        return decision;
    PyMem_Free(decision);
    return NULL;
}

static int decide(PyCodeObject *code, PyObject *entry) {
    Decision *decision = new_decision(code);
    if (decision == NULL)
        return -1;
    Py_XINCREF(entry);
    if (decision->next == decision)
        link_after(decision, &decisions);
    decision->looks = decision->idle = decision->rest = 0;
    Py_XSETREF(decision->entry, entry);
    return 0;
}

#define PATIENCE 5    /* idle calls before the first rest */
#define COMPILATION 4 /* is as bad as so many idle calls */
#define LONGEST 1024  /* frames */
#define FOR_EVER UINT_MAX

/* Counts a call of the tensor entry, which ran a graph or else cost as much as `idle` calls. */
static void count_look(Decision *decision, bool has_graph, unsigned idle) {
    decision->looks++;
    decision->idle = has_graph ? 0 : decision->idle + idle;
    if (decision->idle < PATIENCE)
        return;
    unsigned doublings = decision->idle - PATIENCE;
    decision->rest = doublings < 10 ? 1u << doublings : LONGEST;
}

/* -- taking leave of a frame that does not run ------------------------------------------------- */

#if PYTHON_3_12

/* From 3.12 on only the evaluation loop can pop a frame. So the frame is given this code, which
   returns what is on its stack, and the loop runs that one instruction. Its frames are as small as
   any, but for those of functions without local variables that need no stack either: they may be a
   place smaller, and above the newest frame one is always free. */
static PyCodeObject *way_out;
static int way_out_return; /* the unit of its RETURN_VALUE */

static int find_way_out(void) {
    PyObject *outer = Py_CompileString("lambda: result", "<way out>", Py_eval_input);
    PyObject *constants = outer == NULL ? NULL : ((PyCodeObject *)outer)->co_consts;
    PyObject *bytes = NULL;
    for (Py_ssize_t i = 0; constants != NULL && i < PyTuple_GET_SIZE(constants); i++)
        if (PyCode_Check(PyTuple_GET_ITEM(constants, i)))
            way_out = (PyCodeObject *)Py_NewRef(PyTuple_GET_ITEM(constants, i));
    if (way_out != NULL)
        bytes = PyCode_GetCode(way_out);
    for (Py_ssize_t i = 0; bytes != NULL && i < PyBytes_GET_SIZE(bytes); i += 2)
        if ((unsigned char)PyBytes_AS_STRING(bytes)[i] == RETURN_VALUE)
            way_out_return = (int)(i / 2);
    Py_XDECREF(bytes);
    Py_XDECREF(outer);
    bool known = way_out != NULL && way_out_return > 0 && way_out->co_nlocalsplus == 0 &&
                 way_out->co_stacksize == 1;
    if (!PyErr_Occurred() && !known)
        PyErr_SetString(PyExc_SystemError,
                        "this Python compiles `lambda: result` in an unknown way");
    return PyErr_Occurred() ? -1 : 0;
}

/* Steals the result; NULL where an exception is set. */
static PyObject *retire(PyThreadState *thread, Frame *frame, PyObject *result) {
    PyCodeObject *code = code_of(frame);
    for (int i = 0; i < code->co_nlocalsplus; i++)
        clear_place(&frame->localsplus[i]);
    set_code(frame, way_out);
    thread->datastack_top = (PyObject **)frame + way_out->co_framesize;
    Py_DECREF(code);
    frame->localsplus[0] = place_of(result);
    set_places_taken(frame, result != NULL);
    set_position(frame, result == NULL
                            ? -1
                            : way_out_return); /* before its start: a frame no traceback shows */
    PyThreadState_EnterTracing(thread);        /* nobody was told that the call began */
    result = _PyEval_EvalFrameDefault(thread, frame, result == NULL);
    PyThreadState_LeaveTracing(thread);
    return result;
}

#else

static int find_way_out(void) { return 0; }

/* The caller pops the frame. */
static PyObject *retire(PyThreadState *Py_UNUSED(thread), Frame *Py_UNUSED(frame),
                        PyObject *result) {
    return result;
}

#endif

/* -- the evaluation function ------------------------------------------------------------------- */

typedef struct {
    int active;          /* calls of hook_enter less those of hook_leave */
    int paused;          /* the same of hook_pause; and running handlers */
    PyCodeObject *plain; /* the next frame of this code runs as it is */
    Frame *handed_on;    /* to the function below ours */
    int depth;           /* of frames that were handed on, each of which takes C stack */
    PyObject *capturer;  /* for whom the tensor entry captures, or NULL: for nobody */
} Here;

static _Thread_local Here here; /* finding it takes a call: the hook does so once */

_Thread_local IngotWork ingot_work;

static int active_threads;
static PyObject *handler;      /* or NULL */
static PyObject *tensor_entry; /* or NULL */
static PyObject *mark;         /* in a function's `__dict__`: it may have to stay in eager */
static bool installed; /* ours is in place, or below another's that was put in place later */
static _PyFrameEvalFunction below; /* what was there before ours */

#define FEW 16 /* arguments that fit on the C stack */

/* Two functions may each think that the other was there first: then a frame comes back. */
static inline PyObject *hand_on(Here *mine, PyThreadState *thread, Frame *frame, int throwflag) {
    Frame *outer = mine->handed_on;
    PyObject *result;
    mine->depth++;
    if (below == _PyEval_EvalFrameDefault || outer == frame) {
        result = _PyEval_EvalFrameDefault(thread, frame, throwflag);
    } else {
        mine->handed_on = frame;
        result = below(thread, frame, throwflag);
        mine->handed_on = outer;
    }
    mine->depth--;
    return result;
}

static bool can_be_replaced(const PyCodeObject *code) {
    return (code->co_flags & (CO_OPTIMIZED | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) ==
           CO_OPTIMIZED;
}

static Py_ssize_t count_parameters(const PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
           ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* entry(first, function, *parameters), where the frame has them: a new reference, or NULL with an
 * exception set. `first` may be NULL: then it is left out. */
static PyObject *call_entry(PyObject *entry, PyObject *first, const Frame *frame) {
    Py_ssize_t count = count_parameters(code_of(frame));
    PyObject *few[FEW + 3], **arguments = few; /* the first is for the callee */
    if (count > FEW && (arguments = PyMem_New(PyObject *, (size_t)(count + 3))) == NULL)
        return PyErr_NoMemory();
    arguments[1] = first;
    arguments[2] = (PyObject *)function_of(frame);
    for (Py_ssize_t i = 0; i < count; i++)
        arguments[i + 3] = object_in(frame->localsplus[i]);
    PyObject *result = NULL;
    if (Py_EnterRecursiveCall(" in a compiled function") == 0) {
        size_t given = (size_t)count + 1 + (first != NULL);
        result = PyObject_Vectorcall(entry, arguments + (first != NULL ? 1 : 2),
                                     given | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_LeaveRecursiveCall();
    }
    if (arguments != few)
        PyMem_Free(arguments);
    return result;
}

static int check_entry(PyObject *entry) {
    if (PyCallable_Check(entry) || entry == Py_Ellipsis)
        return 0;
    PyErr_Format(PyExc_TypeError,
                 "what runs in place of frames is a callable, None, Ellipsis or NULL, not %R",
                 entry);
    return -1;
}

/* Has the handler decide. 0, or -1 with an exception. */
static int ask(PyFunctionObject *function, PyCodeObject *code) {
    PyObject *asked = Py_NewRef(handler);
    here.paused++;
    PyObject *answer = PyObject_CallOneArg(asked, (PyObject *)function);
    here.paused--;
    Py_DECREF(asked);
    int status = answer == NULL ? -1 : 0;
    if (answer == Py_None)
        status = decide(code, NULL);
    else if (answer != NULL && !IS_NULL(answer))
        status = check_entry(answer) < 0 ? -1 : decide(code, answer);
    Py_XDECREF(answer);
    return status;
}

static bool is_marked(const PyFunctionObject *function) {
    PyObject *dict = function->func_dict;
    if (dict == NULL || PyDict_GET_SIZE(dict) == 0)
        return false;
    bool marked = PyDict_GetItemWithError(dict, mark) != NULL;
    PyErr_Clear();
    return marked;
}

static bool has_tensors_near(PyFunctionObject *function, const Frame *frame) {
    return ingot_tensors_are_near(function, frame->localsplus, count_parameters(code_of(frame)));
}

static PyObject *frame_hook(PyThreadState *thread, Frame *frame, int throwflag);

/* Whether a frame is torch.compile's to compile: it would look at ours as well if we took this one.
 */
static bool is_torchs(void) {
    bool alone = below == _PyEval_EvalFrameDefault &&
                 _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == frame_hook;
    return !alone && ingot_torch_compiles();
}

static void remove_hook(void) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == frame_hook)
        _PyInterpreterState_SetEvalFrameFunc(interpreter, below);
    if (current == frame_hook || current == below || current == _PyEval_EvalFrameDefault)
        installed = false; /* else another's is in place, with ours below it */
}

static void install_hook(void) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == frame_hook ||
        (installed && current != below && current != _PyEval_EvalFrameDefault))
        return;
    below = current;
    installed = true;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, frame_hook);
}

/* What a capturer has for frames of this code (borrowed), or NULL. */
static PyObject *known_entry(PyObject *capturer, const Frame *frame) {
    PyObject *key = PyLong_FromVoidPtr(code_of(frame));
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(capturer, key);
    Py_XDECREF(key);
    PyErr_Clear();
    return known;
}

/* A call of the tensor entry, where that is due. A new reference, NULL with an exception set, or
 * `_native.NULL`: the frame runs as it is. */
static PyObject *call_tensor_entry(Decision *decision, PyFunctionObject *function, Frame *frame) {
    bool near = false, marked = is_marked(function);
    if (decision->rest > 0)
        decision->rest -= decision->rest != FOR_EVER;
    else
        near = has_tensors_near(function, frame);
    if (!(near || marked) || is_torchs())
        return Py_NewRef(ingot_null);
    PyObject *capturer = here.capturer, *known = marked ? NULL : known_entry(capturer, frame);
    PyObject *entry = Py_NewRef(known != NULL ? known : decision->entry);
    PyObject *first = known != NULL ? NULL : near ? capturer : Py_None;
    IngotWork before = ingot_work;
    here.capturer = NULL; /* the compiler, and what it made, run as they are */
    PyObject *result = call_entry(entry, first, frame);
    here.capturer = capturer;
    Py_DECREF(entry);
    if (ingot_work.graphs != before.graphs || ingot_work.idle != before.idle)
        count_look(decision, ingot_work.graphs != before.graphs, ingot_work.idle - before.idle);
    return result;
}

/* What is due for a frame of code that is not known to run as it is. As above. */
static PyObject *call_due_entry(PyCodeObject *code, PyFunctionObject *function, Frame *frame) {
    Decision *decision = decision_of(code);
    if (decision == NULL && handler != NULL && !is_torchs()) {
        if (ask(function, code) < 0)
            return NULL;
        decision = decision_of(code);
    }
    if (decision == NULL || decision->entry == NULL || decision->entry == Py_Ellipsis)
        return Py_NewRef(ingot_null);
    if (decision->entry == tensor_entry) {
        if (here.capturer == NULL || ingot_runs_eager())
            return Py_NewRef(ingot_null);
        return call_tensor_entry(decision, function, frame);
    }
    if (is_torchs())
        return Py_NewRef(ingot_null);
    PyObject *entry = Py_NewRef(decision->entry);
    PyObject *result = call_entry(entry, NULL, frame);
    Py_DECREF(entry);
    return result;
}

#define DEEPEST 200 /* CPython 3.12 lets C functions call each other 1,500 levels deep */

/* Without a hook CPython runs Python's calls of Python without C stack, as deep as Python allows.
 */
static PyObject *run_without_hook(PyThreadState *thread, Frame *frame, int throwflag) {
    remove_hook();
    PyObject *result = hand_on(&here, thread, frame, throwflag);
    if (active_threads > 0)
        install_hook();
    return result;
}

/* Whether a frame and all that it calls run as they are, at the cost they have without a hook. */
static inline bool is_left_with_callees(const Here *mine, const Decision *decision) {
    return decision != NULL && decision->entry == Py_Ellipsis && mine->plain == NULL;
}

/* What a frame gives that the decision does not leave as it is at once. */
static PyObject *look_at(Here *mine, PyThreadState *thread, Frame *frame) {
    PyCodeObject *code = code_of(frame);
    PyFunctionObject *function = function_of(frame);
    if (function == NULL || position(frame) != 0 || frame->f_locals != NULL || is_finalizing())
        return hand_on(mine, thread, frame, false);
    if (mine->plain == code) {
        mine->plain = NULL;
        return hand_on(mine, thread, frame, false);
    }
    PyObject *result = call_due_entry(code, function, frame);
    if (result == NULL || !IS_NULL(result))
        return retire(thread, frame, result);
    Py_DECREF(result);
    if (is_left_with_callees(mine, decision_of(code))) /* it was asked about just now */
        return run_without_hook(thread, frame, false);
    return hand_on(mine, thread, frame, false);
}

/* Whether a decision says without more ado that a frame runs as it is. */
static inline bool is_left_alone(const Here *mine, Decision *decision, const Frame *frame) {
    if (decision == NULL || mine->plain != NULL)
        return false;
    if (decision->entry == NULL)
        return true;
    PyFunctionObject *function = function_of(frame);
    if (decision->entry != tensor_entry || function == NULL || function->func_dict != NULL)
        return false;
    if (mine->capturer == NULL)
        return true;
    if (decision->rest == 0)
        return !has_tensors_near(function, frame);
    decision->rest -= decision->rest != FOR_EVER;
    return true;
}

static PyObject *frame_hook(PyThreadState *thread, Frame *frame, int throwflag) {
    Here *mine = &here;
    if (mine->depth >= DEEPEST)
        return run_without_hook(thread, frame, throwflag);
    if (active_threads ==
        0) /* the one that was put in place above ours is gone, or the threads are, in a fork */
        remove_hook();
    PyCodeObject *code = code_of(frame);
    if (mine->active == 0 || mine->paused > 0 || throwflag || code == NULL ||
        !can_be_replaced(code))
        return hand_on(mine, thread, frame, throwflag);
    Decision *decision = decision_of(code);
    if (is_left_with_callees(mine, decision))
        return run_without_hook(thread, frame, throwflag);
    if (is_left_alone(mine, decision, frame))
        return hand_on(mine, thread, frame, throwflag);
    return look_at(mine, thread, frame);
}

/* -- the functions of the module --------------------------------------------------------------- */

static PyObject *hook_enter(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (here.active++ == 0)
        active_threads++;
    install_hook(); /* also in an active thread: another may have taken ours away with its own */
    Py_RETURN_NONE;
}

static PyObject *hook_leave(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (here.active == 0)
        return PyErr_SetString(PyExc_RuntimeError, "hook_leave without hook_enter in this thread"),
               NULL;
    if (--here.active == 0 && --active_threads == 0)
        remove_hook();
    Py_RETURN_NONE;
}

static PyObject *hook_pause(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    here.paused++;
    Py_RETURN_NONE;
}

static PyObject *hook_unpause(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (here.paused == 0)
        return PyErr_SetString(PyExc_RuntimeError,
                               "hook_unpause without hook_pause in this thread"),
               NULL;
    here.paused--;
    Py_RETURN_NONE;
}

/* In C, where no signal handler runs between the two. The graphs of what is called are not those of
 * the caller. */
static PyObject *call_hooked(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count < 2 || count > 3 || !PyTuple_Check(args[1]) ||
        !(count == 2 || args[2] == Py_None || PyDict_Check(args[2])))
        return PyErr_SetString(PyExc_TypeError,
                               "call_hooked takes a callable, a tuple and a capturer, a dict"),
               NULL;
    PyObject *capturer = here.capturer;
    IngotWork before = ingot_work;
    here.capturer =
        count == 2 || args[2] == Py_None ? NULL : args[2]; /* lives as long as the call */
    Py_DECREF(hook_enter(module, NULL));
    PyObject *result = PyObject_Call(args[0], args[1], NULL), *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_XDECREF(hook_leave(module, NULL));
    ingot_work = before;
    here.capturer = capturer;
    if (type != NULL)
        PyErr_Restore(type, value, traceback);
    return result;
}

static PyObject *count_compilation(PyObject *Py_UNUSED(module), PyObject *has_graph) {
    if (has_graph == Py_True)
        ingot_work.graphs++;
    else
        ingot_work.idle += COMPILATION;
    Py_RETURN_NONE;
}

static PyObject *hook_active(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(here.active > 0 && here.paused == 0);
}

static PyObject *call_plain(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    PyObject *callable = count > 0 ? args[0] : NULL;
    PyObject *function =
        callable != NULL && PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
    if (function == NULL || !PyFunction_Check(function))
        return PyErr_SetString(PyExc_TypeError,
                               "call_plain calls a function or a bound method of one"),
               NULL;
    PyCodeObject *outer = here.plain;
    here.plain = (PyCodeObject *)((PyFunctionObject *)function)->func_code;
    PyObject *result = PyObject_Vectorcall(callable, args + 1, (size_t)(count - 1), names);
    here.plain = outer;
    return result;
}

static PyObject *set_frame_handler(PyObject *Py_UNUSED(module), PyObject *wanted) {
    if (wanted != Py_None && !PyCallable_Check(wanted))
        return PyErr_Format(PyExc_TypeError, "the frame handler is a callable or None, not %R",
                            wanted);
    PyObject *before = handler;
    handler = wanted == Py_None ? NULL : Py_NewRef(wanted);
    return before == NULL ? Py_NewRef(Py_None) : before;
}

static PyObject *set_tensor_entry(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *entry, *classes, *name;
    if (!PyArg_ParseTuple(args, "OO!U:set_tensor_entry", &entry, &PyTuple_Type, &classes, &name) ||
        check_entry(entry) < 0 || ingot_set_tensor_classes(classes) < 0)
        return NULL;
    Py_XSETREF(tensor_entry, Py_NewRef(entry));
    Py_XSETREF(mark, Py_NewRef(name));
    Py_RETURN_NONE;
}

static PyObject *set_code_entry(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *code, *entry;
    int rests = false;
    if (!PyArg_ParseTuple(args, "O!O|p:set_code_entry", &PyCode_Type, &code, &entry, &rests))
        return NULL;
    bool absent = IS_NULL(entry) || entry == Py_None;
    if (!absent && check_entry(entry) < 0)
        return NULL;
    if (!absent && !can_be_replaced((PyCodeObject *)code))
        return PyErr_Format(PyExc_ValueError, "frames of %R always run as they are", code);
    if (!IS_NULL(entry)) {
        if (decide((PyCodeObject *)code, absent ? NULL : entry) < 0)
            return NULL;
        decision_of((PyCodeObject *)code)->rest = rests ? FOR_EVER : 0;
    } else {
        Decision *decision = decision_of((PyCodeObject *)code);
        if (decision != NULL)
            forget(decision);
    }
    Py_RETURN_NONE;
}

static PyObject *code_entry(PyObject *Py_UNUSED(module), PyObject *code) {
    if (!PyCode_Check(code))
        return PyErr_Format(PyExc_TypeError, "a code object, not %R", code);
    Decision *decision = decision_of((PyCodeObject *)code);
    return Py_NewRef(decision == NULL          ? ingot_null
                     : decision->entry == NULL ? Py_None
                                               : decision->entry);
}

static PyObject *code_looks(PyObject *Py_UNUSED(module), PyObject *code) {
    if (!PyCode_Check(code))
        return PyErr_Format(PyExc_TypeError, "a code object, not %R", code);
    Decision *decision = decision_of((PyCodeObject *)code);
    if (decision == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("III", decision->looks, decision->idle, decision->rest);
}

static PyObject *clear_code_entries(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    while (decisions.next != &decisions)
        forget(decisions.next);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"hook_enter", hook_enter, METH_NOARGS,
     "Makes this thread active: its frames are looked at until as many calls of hook_leave."},
    {"hook_leave", hook_leave, METH_NOARGS, "Ends what hook_enter began."},
    {"call_hooked", (PyCFunction)(void (*)(void))call_hooked, METH_FASTCALL,
     "call_hooked(callable, args, capturer=None): what the callable gives, called between "
     "hook_enter and hook_leave;\nmeanwhile the tensor entry is given the capturer. None: it is "
     "not called. It is a dict, in which the identity of a code object may have what is called "
     "instead, as entry(function,\n*parameters)."},
    {"count_compilation", count_compilation, METH_O,
     "count_compilation(has_graph): counts a call of a compiled function that no entry served."},
    {"hook_pause", hook_pause, METH_NOARGS,
     "Frames of this thread run as they are until as many calls of hook_unpause."},
    {"hook_unpause", hook_unpause, METH_NOARGS, "Ends what hook_pause began."},
    {"hook_active", hook_active, METH_NOARGS,
     "hook_active() -> bool: are this thread's frames looked at?"},
    {"call_plain", (PyCFunction)(void (*)(void))call_plain, METH_FASTCALL | METH_KEYWORDS,
     "call_plain(function, *args, **kwargs): calls a Python function whose own frame runs as it "
     "is."},
    {"set_frame_handler", set_frame_handler, METH_O,
     "set_frame_handler(callable or None) -> the one before\n\n"
     "handler(function) is called when a frame starts of whose code nothing is decided, with the "
     "hook paused. It "
     "returns an\nentry, None (frames of this code run as they are), Ellipsis (and so does all "
     "that "
     "they call) or NULL (this one does; ask again). What it "
     "raises, "
     "the frame raises."},
    {"set_tensor_entry", set_tensor_entry, METH_VARARGS,
     "set_tensor_entry(entry, classes, mark)\n\n"
     "Where this entry is decided on, entry(capturer, function, *parameters) is called for frames "
     "that have instances\nof the classes near at hand, in threads with a capturer. With None in "
     "place of it, it is called for any function\nwhose `__dict__` has the mark. Where its calls "
     "run no graph, the frames of this code run as they are for a while."},
    {"set_code_entry", set_code_entry, METH_VARARGS,
     "set_code_entry(code, entry, rests=False)\n\n"
     "entry(function, *parameters) is called in place of each frame of this code that starts in an "
     "active thread,\nbut for those that are nested hundreds deep: "
     "every\nparameter by position, *args as a tuple, **kwargs as a dict. What it returns or "
     "raises, the call returns "
     "or "
     "raises;\nNULL: the frame runs as it is. None for an entry: they all run as they are; "
     "Ellipsis: so does "
     "all that they call; NULL: nothing is decided. rests: the tensor entry is called for marked "
     "functions alone.\n"
     "The code owns the entry, and no collector sees that: an entry that owns the code is never "
     "freed."},
    {"code_entry", code_entry, METH_O,
     "code_entry(code) -> the entry, None or NULL, as given to set_code_entry."},
    {"code_looks", code_looks, METH_O,
     "code_looks(code) -> (looks, idle, rest), or None where nothing is decided: how often the "
     "tensor entry was called,\nhow many of its calls, the last ones, ran no graph, and how many "
     "frames run as they are before the next one."},
    {"clear_code_entries", clear_code_entries, METH_NOARGS,
     "Forgets what was decided about every code object."},
    {0},
};

/* Only the thread that forked is there in the child. */
static void after_fork_in_child(void) { active_threads = here.active > 0; }

int ingot_frames_hook_register(PyObject *module) {
    below = _PyEval_EvalFrameDefault;
    extra_index = request_extra_index(free_decision);
    if (extra_index < 0)
        return PyErr_SetString(PyExc_RuntimeError, "no more extra slots on code objects"), -1;
#ifndef _WIN32
    if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0)
        return PyErr_SetString(PyExc_RuntimeError, "pthread_atfork failed"), -1;
#endif
    return find_way_out() < 0 ? -1 : PyModule_AddFunctions(module, methods);
}

#endif
