#include "recall.h"

#include "tensor.h"

/* -- looks ------------------------------------------------------------------------------------- */

static inline uint64_t mix(uint64_t look, uint64_t word) {
    look = (look ^ word) *
           UINT64_C(0x9E3779B97F4A7C15); /* Knuth's multiplier: 2^64 over the golden ratio */
    return look ^ look >> 29;
}

/* Strides are left out: calls that differ in them alone are rare, and told apart by the facts. */
static uint64_t mix_tensor(uint64_t look, PyObject *tensor) {
    if (ingot_tensor_facts_are_slow())
        return look;
    IngotTensorFacts facts;
    ingot_tensor_facts(tensor, &facts);
    look =
        mix(look, (uint64_t)facts.dtype << 24 ^ (uint64_t)(uint8_t)facts.device_type << 16 ^
                      (uint64_t)(uint8_t)facts.device_index << 8 ^ (uint64_t)facts.requires_grad);
    for (int64_t i = 0; i < facts.rank; i++)
        look = mix(look, (uint64_t)facts.sizes[i]);
    return mix(look, (uint64_t)facts.rank);
}

static uint64_t mix_plain(uint64_t look, PyObject *value) {
    look = mix(look, (uintptr_t)Py_TYPE(value));
    if (ingot_is_plain_tensor(value))
        return mix_tensor(look, value);
    if (PyLong_CheckExact(value) || PyUnicode_CheckExact(value))
        return mix(look, (uint64_t)PyObject_Hash(
                             value)); /* of these two it runs no code and raises nothing */
    return PyBool_Check(value) ? mix(look, value == Py_True) : look;
}

#define ELEMENTS 8 /* how many of a tuple or list are looked at */

static uint64_t mix_value(uint64_t look, PyObject *value) {
    look = mix_plain(look, value);
    if (!PyTuple_CheckExact(value) && !PyList_CheckExact(value))
        return look;
    PyObject *const *items = PySequence_Fast_ITEMS(value);
    Py_ssize_t count = Py_SIZE(value);
    for (Py_ssize_t i = 0; i < count && i < ELEMENTS; i++)
        look = mix_plain(look, items[i]);
    return mix(look, (uint64_t)count);
}

uint64_t ingot_look_of(PyObject *const *slots, Py_ssize_t count) {
    uint64_t look = 1;
    for (Py_ssize_t i = 0; i < count; i++)
        look = mix_value(look, slots[i]);
    return look == 0 ? 1 : look;
}

/* -- memory ------------------------------------------------------------------------------------ */

#define SETS 128
#define WAYS 4

/* Each look has its set of places; in a full set, the one that was filled longest ago is taken. */
struct IngotRecall {
    struct {
        uint64_t looks[WAYS];
        PyObject *entries[WAYS]; /* borrowed */
        unsigned next;
    } sets[SETS];
};

PyObject *ingot_recall(const IngotRecall *recall, uint64_t look) {
    if (recall == NULL)
        return NULL;
    size_t set = look % SETS;
    for (int way = 0; way < WAYS; way++)
        if (recall->sets[set].looks[way] == look)
            return recall->sets[set].entries[way];
    return NULL;
}

void ingot_remember(IngotRecall **recall, uint64_t look, PyObject *entry) {
    if (*recall == NULL && (*recall = PyMem_Calloc(1, sizeof **recall)) == NULL)
        return;
    size_t set = look % SETS;
    unsigned way = 0;
    while (way < WAYS && (*recall)->sets[set].looks[way] != look)
        way++;
    if (way == WAYS)
        way = (*recall)->sets[set].next++ % WAYS;
    (*recall)->sets[set].looks[way] = look;
    (*recall)->sets[set].entries[way] = entry;
}

void ingot_forget(IngotRecall **recall) {
    PyMem_Free(*recall);
    *recall = NULL;
}
