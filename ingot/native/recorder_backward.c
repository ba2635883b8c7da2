/* The backward of a call that was recorded. */
#include <string.h>

#include "grad_mode.h"
#include "program.h"
#include "recorder_parts.h"
#include "stance.h"

static PyObject *name__sequence_nr, *name_expected_tangents, *name_used_tangents,
    *name_remaining_saved, *name_consumed_elsewhere, *name_call, *name_maybe_clear_saved_tensors,
    *name_saved_tensors, *name_program, *name_sizes, *name_next_functions;
static PyObject *keeps_graph; /* whether the backward that runs keeps what is saved */
static PyObject
    *all_gradients;          /* whether it is after the gradients of all leaves, and not of some */
static PyObject *will_visit; /* whether it visits a node */

/* Where a node keeps the vectors of its hooks and the number of tensors that retain their
   gradients, in words; where its Python object keeps its address, in bytes. */
static struct {
    bool known;
    Py_ssize_t tensor, before, behind, retained, sequence, python_node;
} hooks;

static int read_hook_places(void) {
    PyObject *found = ingot_training.find_places ? PyObject_CallNoArgs(ingot_training.find_places)
                                                 : Py_NewRef(Py_None);
    if (found == NULL)
        return -1;
    int status = 0;
    if (found != Py_None) {
        status = PyArg_ParseTuple(found, "nnnnnn", &hooks.tensor, &hooks.before, &hooks.behind,
                                  &hooks.retained, &hooks.sequence, &hooks.python_node)
                     ? 0
                     : -1;
        hooks.known = status == 0;
    }
    Py_DECREF(found);
    if (status == 0)
        Py_CLEAR(ingot_training.find_places);
    return status;
}

/* Whether it is certain that a node has no hooks. -1: error. */
static int has_no_hooks(PyObject *node) {
    if (ingot_training.find_places != NULL && read_hook_places() < 0)
        return -1;
    if (!hooks.known)
        return 0;
    PyObject *number = PyObject_CallMethodNoArgs(node, name__sequence_nr);
    uint64_t sequence = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred())
        return -1;
    const uint64_t *words = *(const uint64_t *const *)((const char *)node + hooks.python_node);
    return words[hooks.sequence] == sequence && words[hooks.retained] == 0 &&
           words[hooks.tensor] == words[hooks.tensor + 1] &&
           words[hooks.before] == words[hooks.before + 1] &&
           words[hooks.behind] == words[hooks.behind + 1];
}

/* Reads (strides, dispatch keys). */
static int read_tangent(Tangent *tangent, PyObject *expected) {
    PyObject *strides;
    unsigned long long keys;
    if (!PyArg_ParseTuple(expected, "O!K", &PyTuple_Type, &strides, &keys))
        return -1;
    if (PyTuple_GET_SIZE(strides) > INGOT_MAX_RANK)
        return ingot_too_few("dimensions of room");
    tangent->keys = keys;
    tangent->rank = (int)PyTuple_GET_SIZE(strides);
    for (int d = 0; d < tangent->rank; d++)
        tangent->strides[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, d));
    return PyErr_Occurred() ? -1 : 0;
}

/* Makes `tangents` right for these sizes. */
static int expect(Recorder *recorder, PyObject *sizes) {
    PyObject *known = recorder->known_sizes;
    int same = known == sizes ? 1 : known ? PyObject_RichCompareBool(known, sizes, Py_EQ) : 0;
    if (same)
        return same < 0 ? -1 : 0;
    PyObject *expected =
        PyObject_CallMethodOneArg((PyObject *)recorder, name_expected_tangents, sizes);
    int status = expected ? 0 : -1;
    Py_CLEAR(recorder->known_sizes);
    if (expected &&
        (!PyTuple_Check(expected) || PyTuple_GET_SIZE(expected) != recorder->tangent_count))
        status = ingot_too_few("tangents");
    for (int i = 0; status == 0 && i < recorder->tangent_count; i++)
        status = read_tangent(&recorder->tangents[i], PyTuple_GET_ITEM(expected, i));
    Py_XDECREF(expected);
    if (status == 0)
        recorder->known_sizes = Py_NewRef(sizes);
    return status;
}

/* Whether a gradient is a plain tensor, and whether it lies as the backward expects it. */
static bool is_plain(PyObject *given, const Tangent *expected, bool *laid_out) {
    IngotTensorFacts facts;
    if (!ingot_is_plain_tensor(given) || ingot_tensor_facts(given, &facts) < 0)
        return false;
    if (facts.dispatch_keys != expected->keys || facts.rank != expected->rank)
        return false;
    *laid_out = memcmp(facts.strides, expected->strides, (size_t)facts.rank * sizeof(int64_t)) == 0;
    return true;
}

/* Whether an attribute of a node is this object. -1: error. */
static int has(PyObject *node, PyObject *name, PyObject *value) {
    PyObject *found = PyObject_GetAttr(node, name);
    int same = found ? found == value : -1;
    Py_XDECREF(found);
    return same;
}

/* What a question without arguments is answered. -1: error. */
static int answer(PyObject *question) {
    PyObject *found = PyObject_CallNoArgs(question);
    int truth = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return truth;
}

/* Whether the backward that runs visits a node, or is after the gradient that would come in there.
 * -1: error. */
static int is_visited(PyObject *following) {
    if (following == Py_None)
        return 0;
    PyObject *found = PyObject_CallOneArg(will_visit, following);
    if (found == NULL &&
        PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* a leaf whose gradient is asked for */
        PyErr_Clear();
        return 1;
    }
    int truth = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return truth;
}

/* Whether a way has the gradients that the backward that runs asks for, if not those `of_all`: none
   of the others that there are is asked for. -1: error. */
static int suffices(const Recorder *recorder, const Way *way, PyObject *node, bool of_all) {
    if (of_all || way->asked == ALL_ASKED)
        return of_all && way->asked == ALL_ASKED;
    PyObject *following = PyObject_GetAttr(node, name_next_functions);
    int asked = following ? 0 : -1;
    for (int i = 0; asked == 0 && i < recorder->gradient_count; i++)
        if (!(way->asked & (uint64_t)1 << i)) {
            bool there = recorder->gradient_inputs[i] < PyTuple_GET_SIZE(following);
            PyObject *edge =
                there ? PyTuple_GET_ITEM(following, recorder->gradient_inputs[i]) : NULL;
            asked = edge ? is_visited(PyTuple_GET_ITEM(edge, 0)) : ingot_too_few("edges");
        }
    Py_XDECREF(following);
    return asked < 0 ? -1 : !asked;
}

/* The way for the tangents that come in, and for what is asked; NULL where there is none, or an
   exception is set. `elsewise`: those (bits) that lie in another way than is expected. */
static const Way *way_for(Recorder *recorder, PyObject *node, PyObject *const *tangents,
                          uint64_t *elsewise) {
    uint64_t present = 0;
    for (int i = 0; i < recorder->refused_count; i++)
        if (tangents[recorder->refused[i]] != Py_None)
            return NULL;
    for (int i = 0; i < recorder->tangent_count; i++) {
        PyObject *given = tangents[recorder->differentiable[i]];
        bool laid_out;
        if (given == Py_None)
            continue;
        if (!is_plain(given, &recorder->tangents[i], &laid_out))
            return NULL;
        present |= (uint64_t)1 << i;
        *elsewise |= (uint64_t)!laid_out << i;
    }
    int of_all = recorder->ways ? answer(all_gradients) : 1;
    for (const Way *way = recorder->ways; way && of_all >= 0; way = way->next) {
        int found = way->present == present ? suffices(recorder, way, node, of_all) : 0;
        if (found != 0)
            return found < 0 ? NULL : way;
    }
    return NULL;
}

/* The way of a backward that is as usual: the first through this node, of plain gradients, which
   need no history. NULL where it is not, or an exception is set. */
static const Way *usual_way(Recorder *recorder, PyObject *node, PyObject *sizes,
                            PyObject *const *tangents, Py_ssize_t count, uint64_t *elsewise) {
    if (!recorder->usual_backward || recorder->linked || count != recorder->outputs ||
        ingot_grad_is_enabled() || has(node, name_used_tangents, Py_None) != 1 ||
        has(node, name_remaining_saved, Py_None) != 1 ||
        has(node, name_consumed_elsewhere, Py_None) != 1)
        return NULL;
    if (recorder->looks_for_hooks && has_no_hooks(node) != 1)
        return NULL;
    return expect(recorder, sizes) < 0 ? NULL : way_for(recorder, node, tangents, elsewise);
}

/* Lets go of what is saved, unless the graph is kept. */
static int let_go(PyObject *node, const Way *way) {
    int kept = answer(keeps_graph);
    if (kept < 0 ||
        (!kept && (PyObject_SetAttr(node, name_used_tangents, way->used_tangents) < 0 ||
                   (way->remaining_saved == Py_None
                        ? PyObject_SetAttr(node, name_call, Py_None)
                        : PyObject_SetAttr(node, name_remaining_saved, way->remaining_saved)) < 0)))
        return -1;
    PyObject *cleared = PyObject_CallMethodNoArgs(node, name_maybe_clear_saved_tensors);
    Py_XDECREF(cleared);
    return cleared ? 0 : -1;
}

/* What the backward's program is given. */
static int collect(Recorder *recorder, const Way *way, PyObject *node, PyObject *sizes,
                   PyObject *const *tangents, uint64_t elsewise, Objects *given) {
    PyObject *saved = PyObject_GetAttr(
        node, name_saved_tensors); /* raises where they were let go, or were written */
    if (saved == NULL)
        return -1;
    Py_ssize_t saved_count = PyTuple_GET_SIZE(saved), size_count = PyTuple_GET_SIZE(sizes), at = 0;
    int status = ingot_objects_init(given, saved_count + recorder->tangent_count + size_count);
    if (status < 0) {
        Py_DECREF(saved);
        return -1;
    }
    for (Py_ssize_t i = 0; i < saved_count; i++)
        given->items[at++] = Py_NewRef(PyTuple_GET_ITEM(saved, i));
    Py_DECREF(saved);
    for (int i = 0; i < recorder->tangent_count && status == 0; i++) {
        PyObject *tangent = tangents[recorder->differentiable[i]];
        if (!(way->present & (uint64_t)1 << i))
            continue;
        if (elsewise & (uint64_t)1 << i)
            given->items[at] = PyObject_CallMethod((PyObject *)recorder, "tangent_in_layout", "iOO",
                                                   i, sizes, tangent);
        else
            given->items[at] = Py_NewRef(tangent);
        status = given->items[at++] ? 0 : -1;
    }
    for (Py_ssize_t i = 0; i < size_count; i++)
        given->items[at++] = Py_NewRef(PyTuple_GET_ITEM(sizes, i));
    given->count = at;
    if (status < 0)
        ingot_objects_clear(given);
    return status;
}

/* Runs the backward's program, which takes what it is given. */
static int run_backward(const Way *way, Objects *given, Objects *results) {
    if (way->program != NULL) {
        if (ingot_objects_init(results, ingot_program_output_count(way->program)) < 0)
            return -1;
        int status =
            ingot_program_consume(way->program, given->items, given->count, results->items);
        if (status < 0)
            ingot_objects_clear(results);
        return status;
    }
    PyObject *list = PyList_New(given->count);
    for (Py_ssize_t i = 0; list && i < given->count; i++) {
        PyList_SET_ITEM(list, i, given->items[i]);
        given->items[i] = NULL;
    }
    PyObject *found = list ? PyObject_CallOneArg(way->run, list) : NULL;
    Py_XDECREF(list);
    return ingot_objects_from(results, found);
}

/* The gradients by the arguments of `apply`. */
static PyObject *by_argument(const Recorder *recorder, const Way *way, Objects *results) {
    PyObject *gradients = PyTuple_New(3 + recorder->inputs);
    for (int i = 0; gradients && i < 3 + recorder->inputs; i++)
        PyTuple_SET_ITEM(gradients, i, Py_NewRef(Py_None));
    for (int i = 0; gradients && i < way->count && i < results->count; i++) {
        PyObject **place = &((PyTupleObject *)gradients)->ob_item[3 + way->gradient_inputs[i]];
        Py_SETREF(*place, results->items[i]);
        results->items[i] = NULL;
    }
    return gradients;
}

static PyObject *backward_of(PyObject *const *args, Py_ssize_t count) {
    PyObject *node = args[0], *program = PyObject_GetAttr(node, name_program);
    PyObject *sizes = program ? PyObject_GetAttr(node, name_sizes) : NULL, *gradients = NULL;
    Recorder *recorder = (Recorder *)program;
    const Way *way = NULL;
    uint64_t elsewise = 0;
    Objects given, results;
    if (sizes != NULL && PyObject_TypeCheck(program, &IngotRecorder_Type))
        way = usual_way(recorder, node, sizes, args + 1, count - 1, &elsewise);
    if (sizes == NULL || PyErr_Occurred())
        ;
    else if (way == NULL)
        gradients = PyObject_Vectorcall(ingot_training.backward, args, (size_t)count, NULL);
    else if (collect(recorder, way, node, sizes, args + 1, elsewise, &given) == 0) {
        if (let_go(node, way) == 0 && run_backward(way, &given, &results) == 0) {
            gradients = by_argument(recorder, way, &results);
            ingot_objects_clear(&results);
        }
        ingot_objects_clear(&given);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(program);
    return gradients;
}

PyObject *ingot_recorder_backward(PyObject *Py_UNUSED(module), PyObject *const *args,
                                  Py_ssize_t count) {
    if (!ingot_frames_are_hooked())
        return backward_of(args, count);
    PyObject *hook = ingot_hide_from_torch();
    PyObject *gradients = backward_of(args, count);
    ingot_show_to_torch(hook);
    return gradients;
}

int ingot_recorder_backward_init(void) {
    const IngotName names[] = {{&name__sequence_nr, "_sequence_nr"},
                               {&name_expected_tangents, "expected_tangents"},
                               {&name_used_tangents, "used_tangents"},
                               {&name_remaining_saved, "remaining_saved"},
                               {&name_consumed_elsewhere, "consumed_elsewhere"},
                               {&name_call, "call"},
                               {&name_maybe_clear_saved_tensors, "maybe_clear_saved_tensors"},
                               {&name_saved_tensors, "saved_tensors"},
                               {&name_program, "program"},
                               {&name_sizes, "sizes"},
                               {&name_next_functions, "next_functions"}};
    keeps_graph = ingot_torch_private("get_current_graph_task_keep_graph");
    all_gradients = ingot_torch_private("is_checkpoint_valid");
    will_visit = ingot_torch_private("will_engine_execute_node");
    return keeps_graph && all_gradients && will_visit
               ? ingot_make_names(names, Py_ARRAY_LENGTH(names))
               : -1;
}
