#include "expression.h"

enum { CONST, SYMBOL, ADD, SUB, MUL, FLOORDIV, MOD, MAX, MIN, OPERATIONS };

static const char *const NAMES[OPERATIONS] = {"const",    "symbol", "add", "sub", "mul",
                                              "floordiv", "mod",    "max", "min"};

enum { MAX_DEPTH = 64 };

typedef struct {
    int operation;
    int64_t operand; /* of CONST: the value; of SYMBOL: the position */
} Step;

struct IngotExpression {
    Py_ssize_t count;
    Step steps[];
};

static int parse_step(PyObject *item, Step *step) {
    PyObject *name =
        PyTuple_Check(item) && PyTuple_GET_SIZE(item) > 0 ? PyTuple_GET_ITEM(item, 0) : NULL;
    if (name == NULL || !PyUnicode_Check(name))
        goto malformed;
    for (step->operation = 0; step->operation < OPERATIONS; step->operation++)
        if (PyUnicode_CompareWithASCIIString(name, NAMES[step->operation]) == 0)
            break;
    int has_operand = step->operation == CONST || step->operation == SYMBOL;
    if (step->operation == OPERATIONS || PyTuple_GET_SIZE(item) != 1 + has_operand)
        goto malformed;
    step->operand = has_operand ? PyLong_AsLongLong(PyTuple_GET_ITEM(item, 1)) : 0;
    return has_operand && PyErr_Occurred() ? -1 : 0;
malformed:
    PyErr_Format(PyExc_ValueError, "not a postfix step: %R", item);
    return -1;
}

/* What a step does to the height of the stack, checked once so that evaluation need not. */
static int check(const IngotExpression *expression, Py_ssize_t symbols) {
    Py_ssize_t height = 0;
    for (Py_ssize_t i = 0; i < expression->count; i++) {
        const Step *step = &expression->steps[i];
        int pushes = step->operation == CONST || step->operation == SYMBOL;
        if (step->operation == SYMBOL && (step->operand < 0 || step->operand >= symbols))
            height = -1;
        if (height < 0 || (!pushes && height < 2))
            goto malformed;
        height += pushes ? 1 : -1;
        if (height > MAX_DEPTH)
            goto malformed;
    }
    if (height == 1)
        return 0;
malformed:
    PyErr_SetString(PyExc_ValueError, "malformed postfix expression");
    return -1;
}

IngotExpression *ingot_expression_compile(PyObject *steps, Py_ssize_t symbols) {
    PyObject *items = PySequence_Fast(steps, "an expression is a sequence of postfix steps");
    if (items == NULL)
        return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    IngotExpression *expression = PyMem_Malloc(sizeof *expression + (size_t)count * sizeof(Step));
    if (expression == NULL) {
        PyErr_NoMemory();
        goto fail;
    }
    expression->count = count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (parse_step(PySequence_Fast_GET_ITEM(items, i), &expression->steps[i]) < 0)
            goto fail;
    if (check(expression, symbols) < 0)
        goto fail;
    Py_DECREF(items);
    return expression;
fail:
    Py_DECREF(items);
    PyMem_Free(expression);
    return NULL;
}

void ingot_expression_free(IngotExpression *expression) { PyMem_Free(expression); }

/* Python's floor division; `b` is not zero, and not -1 where `a` is the smallest integer. */
static int64_t floordiv(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

int ingot_expression_evaluate(const IngotExpression *expression, const int64_t *table,
                              int64_t *result) {
    int64_t stack[MAX_DEPTH], *top = stack - 1;
    for (const Step *step = expression->steps, *end = step + expression->count; step < end;
         step++) {
        if (step->operation == CONST || step->operation == SYMBOL) {
            *++top = step->operation == CONST ? step->operand : table[step->operand];
            continue;
        }
        int64_t b = *top--, a = *top;
        int overflow = 0;
        switch (step->operation) {
        case ADD:
            overflow = __builtin_add_overflow(a, b, top);
            break;
        case SUB:
            overflow = __builtin_sub_overflow(a, b, top);
            break;
        case MUL:
            overflow = __builtin_mul_overflow(a, b, top);
            break;
        case MAX:
            *top = a > b ? a : b;
            break;
        case MIN:
            *top = a < b ? a : b;
            break;
        default: /* FLOORDIV, MOD */
            if (b == 0) {
                PyErr_SetString(PyExc_ZeroDivisionError, "a size is divided by zero");
                return -1;
            }
            overflow = a == INT64_MIN && b == -1;
            if (!overflow)
                *top = step->operation == FLOORDIV ? floordiv(a, b) : a - floordiv(a, b) * b;
        }
        if (overflow) {
            PyErr_SetString(PyExc_OverflowError, "a size does not fit in 64 bits");
            return -1;
        }
    }
    *result = *top;
    return 0;
}
