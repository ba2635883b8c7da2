/* Frames that begin in the middle of their code.

   No frame is built here. The function is called in the ordinary way, with any arguments, so that
   CPython pushes a frame for it; an evaluation function of ours (PEP 523), in place for no longer
   than that takes, receives the frame before its first instruction, exchanges local variables,
   operand stack and position, and lets CPython run it. */
#include "frames_parts.h"

#if INGOT_KNOWS_FRAMES

/* -- what a frame is to hold ------------------------------------------------------------------- */

typedef struct {
    IngotCode code;
    PyFunctionObject *function; /* borrowed */
    PyObject *handled;          /* borrowed; the exception being handled, or NULL */
    int unit;                   /* of the instruction */
    int locals, depth;
    PyObject *values[]; /* owned, NULL where absent: local variables, then the operand stack */
} State;

static void free_state(State *state) {
    for (int i = 0; i < state->locals + state->depth; i++)
        Py_XDECREF(state->values[i]);
    Py_XDECREF(state->code.bytes);
    PyMem_Free(state);
}

/* The unit at a byte offset, or -1 with an exception set where no instruction starts. */
static int unit_at(const IngotCode *code, Py_ssize_t offset) {
    if (offset < 0 || offset % 2 != 0 || offset / 2 >= code->size ||
        opcode_at(code, (int)(offset / 2)) == CACHE) {
        PyErr_Format(PyExc_ValueError, "no instruction starts at offset %zd of %R", offset,
                     code->object);
        return -1;
    }
    return (int)(offset / 2);
}

/* What belongs in a place for a cell: a cell, and where none is given that of the closure or an
 * empty one. */
static PyObject *cell_for(const State *state, int place, PyObject *given) {
    if (!IS_NULL(given)) {
        if (PyCell_Check(given))
            return Py_NewRef(given);
        PyErr_Format(PyExc_TypeError, "slot %d of %R is to hold a cell, not %R", place,
                     state->code.object, given);
        return NULL;
    }
    int number = place - (state->locals - state->code.object->co_nfreevars);
    PyObject *closure = state->function->func_closure;
    if (number >= 0 && closure != NULL && number < PyTuple_GET_SIZE(closure))
        return Py_NewRef(PyTuple_GET_ITEM(closure, number));
    return PyCell_New(NULL);
}

static int fill_values(State *state, PyObject *slots, PyObject *stack) {
    const char *kinds = PyBytes_AS_STRING(state->code.object->co_localspluskinds);
    for (int i = 0; i < state->locals; i++) {
        PyObject *given = PyTuple_GET_ITEM(slots, i);
        if (kinds[i] & (CO_FAST_CELL | CO_FAST_FREE)) {
            if ((state->values[i] = cell_for(state, i, given)) == NULL)
                return -1;
        } else if (!IS_NULL(given)) {
            state->values[i] = Py_NewRef(given);
        }
    }
    for (int i = 0; i < state->depth; i++)
        if (!IS_NULL(PyTuple_GET_ITEM(stack, i)))
            state->values[state->locals + i] = Py_NewRef(PyTuple_GET_ITEM(stack, i));
    return 0;
}

/* `spare` places of the operand stack are to stay free. NULL with an exception set where the parts
 * do not fit. */
static State *new_state(PyObject *function, Py_ssize_t offset, PyObject *slots, PyObject *stack,
                        PyObject *handled, int spare) {
    PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)function)->func_code;
    Py_ssize_t locals = PyTuple_GET_SIZE(slots), depth = PyTuple_GET_SIZE(stack);
    if (!(code->co_flags & CO_OPTIMIZED))
        return PyErr_Format(PyExc_ValueError, "%R is not the code of a function", code), NULL;
    if (locals != code->co_nlocalsplus || depth + spare > code->co_stacksize)
        return PyErr_Format(PyExc_ValueError,
                            "%R has %d slots and at most %d on its stack, not %zd and %zd", code,
                            code->co_nlocalsplus, code->co_stacksize - spare, locals, depth),
               NULL;
    if (handled != Py_None && !PyExceptionInstance_Check(handled))
        return PyErr_Format(PyExc_TypeError, "handled is an exception or None, not %R", handled),
               NULL;
    State *state = PyMem_Calloc(1, sizeof *state + (size_t)(locals + depth) * sizeof(PyObject *));
    if (state == NULL)
        return PyErr_NoMemory(), NULL;
    state->function = (PyFunctionObject *)function;
    state->handled = handled == Py_None ? NULL : handled;
    state->locals = (int)locals;
    state->depth = (int)depth;
    state->code.object = code;
    state->code.bytes = PyCode_GetCode(code);
    if (state->code.bytes != NULL) {
        state->code.units = (const unsigned char *)PyBytes_AS_STRING(state->code.bytes);
        state->code.size = (int)(PyBytes_GET_SIZE(state->code.bytes) / 2);
        state->unit = unit_at(&state->code, offset);
    }
    if (state->code.bytes == NULL || state->unit < 0 || fill_values(state, slots, stack) < 0) {
        free_state(state);
        return NULL;
    }
    return state;
}

/* Steals an operand. */
static Place operand_of(PyObject *value) {
#if PYTHON_3_14
    if (value != NULL && Py_IS_TYPE(value, ingot_last_instruction)) {
        long unit = PyLong_AsLong(value);
        Py_DECREF(value);
        return place_of_number(unit);
    }
#endif
    return place_of(value);
}

/* Moves the values into a frame that does not run. What the frame held, dummies or the cells made
 * for them, goes. */
static void move_values(State *state, Frame *frame) {
    for (int i = 0; i < state->locals; i++) {
        Place dummy = frame->localsplus[i];
        frame->localsplus[i] = place_of(state->values[i]);
        clear_place(&dummy);
    }
    for (int i = state->locals; i < state->locals + state->depth; i++)
        frame->localsplus[i] = operand_of(state->values[i]);
    set_places_taken(frame, state->locals + state->depth);
    state->locals = state->depth = 0; /* nothing is left to free */
}

/* -- the frame that CPython pushes ------------------------------------------------------------- */

typedef struct {
    State *state;                   /* NULL: the frame runs as it is, which makes a generator */
    PyObject *exception;            /* borrowed, or NULL */
    _PyFrameEvalFunction evaluated; /* in place of ours otherwise */
    int collected;                  /* was the collector on */
    bool pending;
} Request;

static _Thread_local Request *request;

/* The evaluation function is the interpreter's, so nothing but the frame asked for may run while
   ours is in place: no thread switch happens before a frame runs, and a collection, which could run
   finalizers, is put off. */
static void put_in_place(Request *wanted, _PyFrameEvalFunction ours) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    wanted->evaluated = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    wanted->collected = PyGC_Disable();
    wanted->pending = true;
    request = wanted;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, ours);
}

static void put_back(Request *wanted) {
    if (!wanted->pending)
        return;
    wanted->pending = false;
    request = NULL;
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), wanted->evaluated);
    if (wanted->collected)
        PyGC_Enable();
}

static int tell(PyThreadState *thread, Py_tracefunc function, PyObject *self,
                PyFrameObject *frame) {
    if (function == NULL)
        return 0;
    PyThreadState_EnterTracing(thread);
    int status = function(self, frame, PyTrace_CALL, Py_None);
    PyThreadState_LeaveTracing(thread);
    return status;
}

/* Trace and profile functions will see the frame return, so they must see it called. */
static int report_call(PyThreadState *thread, Frame *frame) {
    if ((thread->c_tracefunc == NULL && thread->c_profilefunc == NULL) || thread->tracing ||
        !reports_calls(code_of(frame)))
        return 0;
    frame->previous = *current_frame(thread);
    *current_frame(thread) = frame;
    PyFrameObject *object = PyThreadState_GetFrame(thread);
    int status = -1;
    if (object != NULL) {
        status = tell(thread, thread->c_tracefunc, thread->c_traceobj, object);
        if (status == 0)
            status = tell(thread, thread->c_profilefunc, thread->c_profileobj, object);
        Py_DECREF(object);
    }
    *current_frame(thread) = frame->previous;
    frame->previous = NULL;
    return status;
}

/* Where to begin for the instruction at `unit` to run whole: at its prefixes. */
static int first_unit(const IngotCode *code, int unit) {
    for (;;) {
        int before = unit - 1;
        while (before > 0 && opcode_at(code, before) == CACHE)
            before--;
        if (before < 0 || !belongs_to_the_next(opcode_at(code, before)))
            return unit;
        unit = before;
    }
}

static PyObject *run_in_the_middle(PyThreadState *thread, Frame *frame, Request *wanted) {
    const IngotCode *code = &wanted->state->code;
    int unit = wanted->state->unit, first = first_unit(code, unit);
    move_values(wanted->state, frame);
    set_position(frame, first);
    if (wanted->exception != NULL)
        raise_as_it_is(wanted->exception); /* CPython reports that call itself */
    else if (first == code->object->_co_firsttraceable || report_call(thread, frame) == 0)
        return _PyEval_EvalFrameDefault(thread, frame, 0);
    set_position(frame, ingot_raising_position(code, unit));
    return _PyEval_EvalFrameDefault(thread, frame, 1);
}

static PyObject *evaluate(PyThreadState *thread, Frame *frame, int throwflag) {
    Request *wanted = request;
    put_back(wanted);
    return wanted->state == NULL ? _PyEval_EvalFrameDefault(thread, frame, throwflag)
                                 : run_in_the_middle(thread, frame, wanted);
}

/* Calls the function with None for every parameter; what runs is as the request says. */
static PyObject *call_with_dummies(PyFunctionObject *function, Request *wanted) {
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    int positional = code->co_argcount, keywords = code->co_kwonlyargcount;
    PyObject *names = PyTuple_GetSlice(code->co_localsplusnames, positional, positional + keywords),
             *result = NULL;
    PyObject **dummies = PyMem_New(PyObject *, (size_t)(positional + keywords + 1));
    for (int i = 0; dummies != NULL && i < positional + keywords; i++)
        dummies[i] = Py_None;
    if (dummies == NULL)
        PyErr_NoMemory();
    if (dummies != NULL && names != NULL) {
        put_in_place(wanted, evaluate);
        result = PyObject_Vectorcall((PyObject *)function, dummies, (size_t)positional,
                                     keywords ? names : NULL);
        if (wanted->pending) { /* no frame was pushed: out of memory, or not called as functions are
                                */
            put_back(wanted);
            Py_CLEAR(result);
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_RuntimeError, "%R runs no frame when called", function);
        }
    }
    PyMem_Free(dummies);
    Py_XDECREF(names);
    return result;
}

/* -- resume ------------------------------------------------------------------------------------ */

static bool is_any_generator(const PyCodeObject *code) {
    return (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
}

/* What the thread is handling is put back afterwards: a frame that begins in a handler takes leave
 * of it by making its caller's exception, which is on its stack, the one handled. */
static PyObject *run_request(Request *wanted, PyObject *handled) {
    PyThreadState *thread = PyThreadState_Get();
    PyObject *before = Py_XNewRef(thread->exc_info->exc_value);
    if (handled != NULL)
        Py_XSETREF(thread->exc_info->exc_value, Py_NewRef(handled));
    PyObject *result = call_with_dummies(wanted->state->function, wanted);
    Py_XSETREF(thread->exc_info->exc_value, before);
    return result;
}

static PyObject *resume(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", "offset", "slots", "stack", "exception", "handled", NULL};
    PyObject *function, *slots, *stack, *exception = Py_None, *handled = NULL;
    Py_ssize_t offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nO!O!|OO:resume", names, &PyFunction_Type,
                                     &function, &offset, &PyTuple_Type, &slots, &PyTuple_Type,
                                     &stack, &exception, &handled))
        return NULL;
    if (exception != Py_None && !PyExceptionInstance_Check(exception))
        return PyErr_Format(PyExc_TypeError, "exception is an exception or None, not %R",
                            exception);
    State *state =
        new_state(function, offset, slots, stack, handled == NULL ? Py_None : handled, 0);
    if (state == NULL)
        return NULL;
    PyObject *result = NULL;
    if (is_any_generator(state->code.object) ||
        state->unit < state->code.object->_co_firsttraceable) {
        PyErr_Format(PyExc_ValueError, "%R cannot be resumed at offset %zd", state->code.object,
                     offset);
    } else {
        Request wanted = {.state = state, .exception = exception == Py_None ? NULL : exception};
        result = run_request(&wanted, handled);
    }
    free_state(state);
    return result;
}

/* -- generators -------------------------------------------------------------------------------- */

static bool can_be_suspended(const State *state) {
    int opcode = opcode_at(&state->code, state->unit);
    return is_any_generator(state->code.object) &&
           (opcode == YIELD_VALUE || (opcode == RETURN_GENERATOR && state->depth == 0));
}

static void suspend(PyGenObject *generator, State *state) {
    move_values(state, frame_of_generator(generator));
    if (opcode_at(&state->code, state->unit) == YIELD_VALUE)
        set_suspended(generator, state->unit, argument_at(&state->code, state->unit));
    Py_XSETREF(generator->gi_exc_state.exc_value, Py_XNewRef(state->handled));
}

static PyObject *suspended_generator(PyObject *Py_UNUSED(module), PyObject *args,
                                     PyObject *kwargs) {
    static char *names[] = {"function", "offset", "slots", "stack", "handled", NULL};
    PyObject *function, *slots, *stack, *handled = Py_None;
    Py_ssize_t offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nO!O!|O:suspended_generator", names,
                                     &PyFunction_Type, &function, &offset, &PyTuple_Type, &slots,
                                     &PyTuple_Type, &stack, &handled))
        return NULL;
    State *state =
        new_state(function, offset, slots, stack, handled, 1); /* one place for the value sent */
    if (state == NULL)
        return NULL;
    PyGenObject *generator = NULL;
    if (!can_be_suspended(state)) {
        PyErr_Format(PyExc_ValueError, "%R is not suspended at offset %zd", state->code.object,
                     offset);
    } else {
        Request as_it_is = {.state = NULL};
        generator = (PyGenObject *)call_with_dummies(state->function, &as_it_is);
    }
    if (generator != NULL)
        suspend(generator, state);
    free_state(state);
    return (PyObject *)generator;
}

static bool has_begun_or_not(const PyGenObject *generator) {
    return is_suspended(generator) || generator->gi_frame_state == FRAME_CREATED;
}

static void drop_stack(Frame *frame) {
    int locals = code_of(frame)->co_nlocalsplus, top = places_taken(frame);
    set_places_taken(frame, locals);
    for (int i = locals; i < top; i++)
        clear_place(&frame->localsplus[i]);
}

static PyObject *restore_generator(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object, *slots, *stack, *handled = Py_None;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "OnO!O!|O:restore_generator", &object, &offset, &PyTuple_Type,
                          &slots, &PyTuple_Type, &stack, &handled))
        return NULL;
    PyGenObject *generator = (PyGenObject *)object;
    if (!PyGen_CheckExact(object) || !has_begun_or_not(generator))
        return PyErr_Format(PyExc_ValueError, "%R is no generator that can go on", object);
    PyFunctionObject *function = function_of(frame_of_generator(generator));
    State *state = new_state((PyObject *)function, offset, slots, stack, handled, 1);
    if (state == NULL)
        return NULL;
    PyObject *done = NULL;
    if (!can_be_suspended(state) || opcode_at(&state->code, state->unit) != YIELD_VALUE) {
        PyErr_Format(PyExc_ValueError, "%R is not suspended at offset %zd", state->code.object,
                     offset);
    } else {
        drop_stack(frame_of_generator(generator));
        suspend(generator, state);
        done = Py_NewRef(Py_None);
    }
    free_state(state);
    return done;
}

/* The unit of an instruction that returns; if the code never does, that of RETURN_GENERATOR, in no
 * try statement. */
static int last_unit(PyCodeObject *code, bool *never_returns) {
    PyObject *bytes = PyCode_GetCode(code);
    if (bytes == NULL)
        return -1;
    const unsigned char *units = (const unsigned char *)PyBytes_AS_STRING(bytes);
    int found = -1, begin = -1;
    for (int unit = 0; found < 0 && unit < (int)(PyBytes_GET_SIZE(bytes) / 2); unit++) {
        found = returns(units[2 * unit]) ? unit : -1;
        if (units[2 * unit] == RETURN_GENERATOR)
            begin = unit;
    }
    Py_DECREF(bytes);
    *never_returns = found < 0;
    return found < 0 ? begin : found;
}

/* Ends a generator that never returns by an exception where no statement of it can catch one. */
static void end_by_exception(PyObject *generator) {
    Py_XDECREF(PyObject_CallMethod(generator, "throw", "O", PyExc_GeneratorExit));
    if (PyErr_ExceptionMatches(PyExc_GeneratorExit))
        PyErr_Clear();
}

static PyObject *finish_generator(PyObject *Py_UNUSED(module), PyObject *object) {
    PyGenObject *generator = (PyGenObject *)object;
    if (!PyGen_CheckExact(object) || !has_begun_or_not(generator))
        return PyErr_Format(PyExc_ValueError, "%R is no generator that can go on", object);
    Frame *frame = frame_of_generator(generator);
    bool never_returns = false;
    int unit = last_unit(code_of(frame), &never_returns);
    if (unit < 0)
        return NULL;
    drop_stack(frame);
    if (never_returns) {
        set_suspended(generator, unit, 0);
        end_by_exception(object);
    } else {
        set_suspended(generator, unit - 1, 0);
        Py_XDECREF(PyIter_Next(object));
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* A new reference, or NULL with an exception set. */
static PyObject *object_for(Place place) {
#if PYTHON_3_14
    if (has_number(place))
        return PyObject_CallFunction((PyObject *)ingot_last_instruction, "l", number_in(place));
#endif
    PyObject *object = object_in(place);
    return Py_NewRef(object == NULL ? ingot_null : object);
}

static PyObject *tuple_of(const Place *places, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *object = object_for(places[i]);
        if (object == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, object);
    }
    return tuple;
}

/* (slots, stack) */
static PyObject *values_of(const Frame *frame, int depth) {
    int locals = code_of(frame)->co_nlocalsplus;
    PyObject *slots = tuple_of(frame->localsplus, locals);
    PyObject *stack = tuple_of(frame->localsplus + locals, depth);
    PyObject *both = slots == NULL || stack == NULL ? NULL : PyTuple_Pack(2, slots, stack);
    Py_XDECREF(slots);
    Py_XDECREF(stack);
    return both;
}

static PyObject *generator_state(PyObject *Py_UNUSED(module), PyObject *object) {
    if (!PyGen_CheckExact(object) && !PyCoro_CheckExact(object) && !PyAsyncGen_CheckExact(object))
        return PyErr_Format(PyExc_TypeError,
                            "a generator, coroutine or asynchronous generator, not %R", object);
    PyGenObject *generator = (PyGenObject *)object;
    if (!is_suspended(generator) && generator->gi_frame_state != FRAME_CREATED)
        Py_RETURN_NONE;
    Frame *frame = frame_of_generator(generator);
    PyFunctionObject *function = function_of(frame);
    PyObject *handled = generator->gi_exc_state.exc_value;
    PyObject *values = values_of(frame, places_taken(frame) - code_of(frame)->co_nlocalsplus);
    if (values == NULL)
        return NULL;
    PyObject *state =
        Py_BuildValue("OiOOO", function, 2 * (position(frame) - 1), PyTuple_GET_ITEM(values, 0),
                      PyTuple_GET_ITEM(values, 1), handled == NULL ? Py_None : handled);
    Py_DECREF(values);
    return state;
}

static PyObject *frame_values(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object;
    int depth;
    if (!PyArg_ParseTuple(args, "O!i:_frame_values", &PyFrame_Type, &object, &depth))
        return NULL;
    const Frame *frame = ((PyFrameObject *)object)->f_frame;
    if (depth < 0 || depth > code_of(frame)->co_stacksize)
        return PyErr_Format(PyExc_ValueError, "%R has no operand stack of %d", object, depth);
    return values_of(frame, depth);
}

static PyMethodDef methods[] = {
    {"resume", (PyCFunction)(void (*)(void))resume, METH_VARARGS | METH_KEYWORDS,
     "resume(function, offset, slots, stack, exception=None, handled=<as it is>)\n\n"
     "Runs the function's code in a frame of its own from the instruction at byte `offset` on; "
     "what it returns.\n"
     "slots: what each local variable, cell and free variable holds, a tuple in the order of "
     "co_varnames, co_cellvars "
     "(those\nthat are no argument) and co_freevars; cells as cells; NULL where unbound. (NULL for "
     "a cell: that of the "
     "closure, or an\nempty one.)  stack: the operand stack, bottom first, NULL where CPython has "
     "one.\n"
     "exception: is raised by that instruction instead of running it, with its traceback and "
     "context as they are.\n"
     "handled: the exception being handled there, or None. It is put back, whatever the frame "
     "does."},
    {"suspended_generator", (PyCFunction)(void (*)(void))suspended_generator,
     METH_VARARGS | METH_KEYWORDS,
     "suspended_generator(function, offset, slots, stack, handled=None)\n\n"
     "A generator (coroutine, asynchronous generator) of the function, suspended behind the "
     "YIELD_VALUE at byte "
     "`offset`.\nThe stack is without the value yielded. At RETURN_GENERATOR with an empty stack: "
     "one not begun."},
    {"restore_generator", restore_generator, METH_VARARGS,
     "restore_generator(generator, offset, slots, stack, handled=None)\n\n"
     "Moves a generator that is suspended, or has not begun, to where suspended_generator would "
     "make it."},
    {"finish_generator", finish_generator, METH_O,
     "finish_generator(generator)\n\n"
     "Ends a generator as if it had returned None where it stands: no handler or finally block of "
     "its own runs."},
    {"generator_state", generator_state, METH_O,
     "generator_state(generator) -> (function, offset, slots, stack, handled) or None\n\n"
     "What suspended_generator would make a generator like this of; None while it runs and when it "
     "is finished."},
    {"_frame_values", frame_values, METH_VARARGS,
     "_frame_values(frame, depth) -> (slots, stack)\n\n"
     "Of a frame whose trace function is running, with so much on its stack. For tests."},
    {0},
};

int ingot_frames_resume_register(PyObject *module) {
    return PyModule_AddFunctions(module, methods);
}

#endif
