/* From a program's description in Python objects to its parts in C. */
#include "program_parts.h"

#include <limits.h>
#include <stddef.h>

struct Block {
    struct Block *next;
    max_align_t memory[];
};

void *ingot_program_memory(Program *program, size_t count, size_t size) {
    struct Block *block = PyMem_Calloc(1, sizeof *block + count * size);
    if (block == NULL)
        return PyErr_NoMemory();
    block->next = program->blocks;
    program->blocks = block;
    return block->memory;
}

void ingot_program_free_parts(Program *program) {
    for (int i = 0; i < program->expression_count; i++)
        ingot_expression_free(program->expressions[i]);
    program->expression_count = program->buffer_count = 0;
    while (program->blocks) {
        struct Block *block = program->blocks;
        program->blocks = block->next;
        PyMem_Free(block);
    }
}

/* -- small readers ----------------------------------------------------------------------------- */

static int malformed(const char *what, PyObject *object) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a program's description is malformed: %s: %R", what,
                     object ? object : Py_None);
    return -1;
}

/* A position in 0 .. limit - 1. */
static int read_position(PyObject *object, int limit, const char *what, int *position) {
    long value = PyLong_AsLong(object);
    if (value < 0 || value >= limit)
        return malformed(what, object);
    *position = (int)value;
    return 0;
}

/* A tuple of positions in lowest .. limit - 1. */
static int read_positions(Program *program, PyObject *tuple, int lowest, int limit,
                          const char *what, int *count, int **positions) {
    if (!PyTuple_Check(tuple))
        return malformed(what, tuple);
    *count = (int)PyTuple_GET_SIZE(tuple);
    if ((*positions = ingot_program_memory(program, (size_t)*count, sizeof(int))) == NULL)
        return -1;
    for (int i = 0; i < *count; i++) {
        long value = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (value < lowest || value >= limit || PyErr_Occurred())
            return malformed(what, tuple);
        (*positions)[i] = (int)value;
    }
    return 0;
}

/* The place of a word in a list of words, or -1 with an exception set. */
static int read_word(PyObject *word, const char *const *words, int count, const char *what) {
    for (int i = 0; PyUnicode_Check(word) && i < count; i++)
        if (PyUnicode_CompareWithASCIIString(word, words[i]) == 0)
            return i;
    return malformed(what, word);
}

static int value_count(const Program *program) {
    return program->symbol_count + program->expression_count;
}

static int read_geometry(Program *program, PyObject *dtype, PyObject *sizes, PyObject *strides,
                         Geometry *geometry) {
    int rank;
    PyObject *itemsize = PyObject_GetAttrString(dtype, "itemsize");
    geometry->itemsize = itemsize ? PyLong_AsLong(itemsize) : -1;
    Py_XDECREF(itemsize);
    geometry->dtype = dtype;
    if (geometry->itemsize < 1 || (geometry->dtype_number = ingot_dtype_number(dtype)) < 0 ||
        read_positions(program, sizes, 0, value_count(program), "sizes", &geometry->rank,
                       &geometry->sizes) < 0 ||
        read_positions(program, strides, 0, value_count(program), "strides", &rank,
                       &geometry->strides) < 0)
        return -1;
    return rank == geometry->rank && rank <= INGOT_MAX_RANK ? 0 : malformed("rank", sizes);
}

/* -- the parts --------------------------------------------------------------------------------- */

typedef int (*Reader)(Program *program, PyObject *object, void *part);

/* Reads each element of a tuple with `reader` into an array of parts. `count` grows as parts are
 * complete. */
static int read_parts(Program *program, PyObject *tuple, Reader reader, size_t size, int *count,
                      void *array) {
    if (tuple == NULL || !PyTuple_Check(tuple))
        return malformed("expected a tuple", tuple);
    Py_ssize_t length = PyTuple_GET_SIZE(tuple);
    char *parts = ingot_program_memory(program, (size_t)length, size);
    if (parts == NULL)
        return -1;
    *(void **)array = parts;
    for (Py_ssize_t i = 0; i < length; i++) {
        if (reader(program, PyTuple_GET_ITEM(tuple, i), parts + (size_t)i * size) < 0)
            return -1;
        *count = (int)i + 1;
    }
    return 0;
}

static int read_symbol(Program *program, PyObject *object, void *part) {
    static const char *const kinds[] = {"size", "stride", "value", "bound"};
    SymbolSource *symbol = part;
    PyObject *input, *kind;
    if (!PyArg_ParseTuple(object, "OOi", &input, &kind, &symbol->dim) ||
        (symbol->what = read_word(kind, kinds, 4, "what a symbol reads")) < 0)
        return -1;
    return symbol->what == SYMBOL_BOUND
               ? 0
               : read_position(input, program->input_count, "input of a symbol", &symbol->input);
}

static int read_expression(Program *program, PyObject *object, void *part) {
    IngotExpression **expression = part;
    return (*expression = ingot_expression_compile(object, program->symbol_count)) ? 0 : -1;
}

/* The stages of the expressions; without a tuple, all are known when the program begins. */
static int read_stages(Program *program, PyObject *tuple) {
    int count = program->expression_count;
    if (tuple)
        return read_positions(program, tuple, 0, INT_MAX, "stages", &count, &program->stages) < 0
                   ? -1
               : count == program->expression_count ? 0
                                                    : malformed("stages", tuple);
    return (program->stages = ingot_program_memory(program, (size_t)count, sizeof(int))) ? 0 : -1;
}

static int read_constant(Program *Py_UNUSED(program), PyObject *object, void *part) {
    *(PyObject **)part = object;
    return ingot_is_plain_tensor(object) ? 0 : malformed("a constant is a tensor", object);
}

static int read_buffer(Program *program, PyObject *object, void *part) {
    static const char *const places[PLACES] = {"input",   "constant", "arena", "output",
                                               "library", "own",      "small"};
    Buffer *buffer = part;
    PyObject *place, *dtype, *sizes, *strides, *position;
    if (!PyArg_ParseTuple(object, "OOOOO|pp", &place, &dtype, &sizes, &strides, &position,
                          &buffer->aligned, &buffer->geometry.on_host) ||
        read_geometry(program, dtype, sizes, strides, &buffer->geometry) < 0)
        return -1;
    int kind = read_word(place, places, PLACES, "place");
    if (kind < 0)
        return -1;
    const int values = value_count(program);
    const int limits[PLACES] = {
        program->input_count, program->constant_count, values, 1, 1, 1, values};
    buffer->place = (Place)kind;
    return read_position(position, limits[kind], "position of a buffer", &buffer->position);
}

/* Whether a value is known only when a call has bound what it depends on. */
static int is_late(const Program *program, int value) {
    if (value < program->symbol_count)
        return program->symbols[value].what == SYMBOL_BOUND;
    return program->stages[value - program->symbol_count] > 0;
}

static int read_view(Program *program, PyObject *object, void *part) {
    View *view = part;
    PyObject *buffer, *dtype, *sizes, *strides, *offset;
    if (!PyArg_ParseTuple(object, "OOOOO", &buffer, &dtype, &sizes, &strides, &offset) ||
        read_position(buffer, program->buffer_count, "buffer of a view", &view->buffer) < 0 ||
        read_position(offset, value_count(program), "offset of a view", &view->offset) < 0)
        return -1;
    view->reinterpreted = dtype != program->buffers[view->buffer].geometry.dtype;
    if (read_geometry(program, dtype, sizes, strides, &view->geometry) < 0)
        return -1;
    view->late = is_late(program, view->offset);
    for (int i = 0; i < view->geometry.rank; i++)
        view->late |= is_late(program, view->geometry.sizes[i]) ||
                      is_late(program, view->geometry.strides[i]);
    return 0;
}

static int count_tensors(const Item *items, int count) {
    int total = 0;
    for (int i = 0; i < count; i++)
        total += items[i].kind == ITEM_BUFFER || items[i].kind == ITEM_VIEW
                     ? 1
                     : count_tensors(items[i].items, items[i].count);
    return total;
}

static int read_item(Program *program, PyObject *object, void *part) {
    static const char *const kinds[ITEM_KINDS] = {"object", "int",  "buffer",
                                                  "view",   "list", "tuple"};
    Item *item = part;
    PyObject *kind;
    if (!PyArg_ParseTuple(object, "OO", &kind, &item->object))
        return -1;
    int number = read_word(kind, kinds, ITEM_KINDS, "kind of an argument");
    if (number < 0)
        return -1;
    item->kind = number;
    const int limits[ITEM_KINDS] = {
        0, value_count(program), program->buffer_count, program->view_count, 0, 0};
    if (item->kind == ITEM_OBJECT)
        return 0;
    if (item->kind == ITEM_LIST || item->kind == ITEM_TUPLE)
        return read_parts(program, item->object, read_item, sizeof(Item), &item->count,
                          &item->items);
    return read_position(item->object, limits[item->kind], "argument", &item->index);
}

static int read_allocate(Program *program, PyObject *fields, Step *step) {
    PyObject *name, *buffer, *lender = NULL;
    AllocateStep *allocate = &step->allocate;
    allocate->lender = -1;
    if (!PyArg_ParseTuple(fields, "OO|O", &name, &buffer, &lender) ||
        read_position(buffer, program->buffer_count, "buffer to allocate", &allocate->buffer) < 0 ||
        (lender &&
         read_position(lender, program->buffer_count, "buffer that lends", &allocate->lender) < 0))
        return -1;
    if (lender && program->buffers[allocate->lender].place != INPUT)
        return malformed("only inputs lend their memory", lender);
    Place place = program->buffers[allocate->buffer].place;
    return place == OUTPUT || place == OWN || place == SMALL
               ? 0
               : malformed("only outputs are allocated", buffer);
}

static void reads_in_kernel(Program *program, int count, const int *buffers) {
    for (int i = 0; i < count; i++)
        program->buffers[buffers[i]].needs_data = program->buffers[buffers[i]].in_kernel = 1;
}

/* Where in each of `count` buffers a launch begins, among the values; NULL where there is no
 * offset. */
static int read_offsets(Program *program, PyObject *tuple, int count, int **offsets) {
    int begun;
    if (read_positions(program, tuple, 0, value_count(program), "offsets in buffers", &begun,
                       offsets) < 0)
        return -1;
    if (begun == 0)
        *offsets = NULL;
    return begun == 0 || begun == count ? 0
                                        : malformed("offsets in the buffers of a launch", tuple);
}

static int read_kernel(Program *program, PyObject *fields, Step *step) {
    KernelStep *kernel = &step->kernel;
    PyObject *name, *address, *buffers, *extent, *extents = NULL, *offsets = NULL;
    long long unit;
    kernel->varying_work = -1;
    if (!PyArg_ParseTuple(fields, "OOOOdLiO!|OiO", &name, &address, &buffers, &extent,
                          &kernel->work, &unit, &kernel->scratch, &PyTuple_Type, &kernel->errors,
                          &extents, &kernel->varying_work, &offsets) ||
        read_positions(program, buffers, 0, program->buffer_count, "buffers of a kernel",
                       &kernel->count, &kernel->buffers) < 0 ||
        read_position(extent, value_count(program), "extent", &kernel->extent) < 0)
        return -1;
    if (extents && read_positions(program, extents, 0, value_count(program), "extents of parts",
                                  &kernel->parts, &kernel->extents) < 0)
        return -1;
    if (offsets && read_offsets(program, offsets, kernel->count, &kernel->offsets) < 0)
        return -1;
    if (kernel->parts && kernel->count % kernel->parts)
        return malformed("parts of a kernel", fields);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kernel->errors); i++) {
        PyObject *fault = PyTuple_GET_ITEM(kernel->errors, i);
        if (!PyTuple_Check(fault) || PyTuple_GET_SIZE(fault) != 2 ||
            !PyExceptionClass_Check(PyTuple_GET_ITEM(fault, 0)))
            return malformed("error of a kernel", fault);
    }
    *(void **)&kernel->function = PyLong_AsVoidPtr(address);
    kernel->unit = unit;
    if (kernel->function == NULL || unit < 1 || kernel->scratch < -1 ||
        kernel->scratch >= value_count(program) || kernel->varying_work < -1 ||
        kernel->varying_work >= value_count(program))
        return malformed("kernel", fields);
    reads_in_kernel(program, kernel->count, kernel->buffers);
    program->widest_kernel = Py_MAX(program->widest_kernel, kernel->count);
    program->most_parts = Py_MAX(program->most_parts, kernel->parts);
    return 0;
}

enum { MOST_HIDDEN = 8 };

int ingot_program_read_kernel(const Program *program, PyObject *capsule, LoadedKernel *loaded) {
    const IngotCudaKernel *kernel = ingot_cuda_kernel(capsule);
    if (kernel == NULL)
        return malformed("kernel of a launch", capsule);
    if (program->device.type != INGOT_CUDA || kernel->device != program->device.index ||
        loaded->threads < 1 || loaded->shared < 0 || loaded->hidden < 0 ||
        loaded->hidden > MOST_HIDDEN)
        return malformed("launch", capsule);
    loaded->kernel = kernel;
    return 0;
}

static int read_condition(Program *program, PyObject *object, void *part) {
    Condition *condition = part;
    PyObject *value;
    long long most;
    if (!PyArg_ParseTuple(object, "OL", &value, &most))
        return -1;
    condition->most = most;
    return read_position(value, value_count(program), "condition of a launch", &condition->value);
}

static int read_form(Program *program, PyObject *object, void *part) {
    LaunchForm *form = part;
    LoadedKernel *loaded = &form->loaded;
    PyObject *grid, *conditions, *kernel;
    if (!PyTuple_Check(object) ||
        !PyArg_ParseTuple(object, "OOO|iii", &grid, &conditions, &kernel, &loaded->threads,
                          &loaded->shared, &loaded->hidden) ||
        read_position(grid, value_count(program), "grid", &form->grid) < 0 ||
        read_parts(program, conditions, read_condition, sizeof(Condition), &form->condition_count,
                   &form->conditions) < 0)
        return malformed("form of a launch", object);
    if (PyTuple_GET_SIZE(object) > 3)
        return ingot_program_read_kernel(program, kernel, loaded);
    loaded->loader = kernel;
    return PyCallable_Check(kernel) ? 0 : malformed("what loads a kernel", kernel);
}

static int read_launch(Program *program, PyObject *fields, Step *step) {
    LaunchStep *launch = &step->launch;
    PyObject *name, *buffers, *offsets, *sizes, *forms;
    if (!PyArg_ParseTuple(fields, "OOOOO", &name, &buffers, &offsets, &sizes, &forms) ||
        read_positions(program, buffers, 0, program->buffer_count, "buffers of a launch",
                       &launch->count, &launch->buffers) < 0 ||
        read_offsets(program, offsets, launch->count, &launch->offsets) < 0 ||
        read_positions(program, sizes, 0, value_count(program), "sizes of a launch",
                       &launch->size_count, &launch->sizes) < 0 ||
        read_parts(program, forms, read_form, sizeof(LaunchForm), &launch->form_count,
                   &launch->forms) < 0)
        return -1;
    if (launch->form_count == 0 || launch->forms[launch->form_count - 1].condition_count)
        return malformed("the last form of a launch has conditions", forms);
    program->widest_kernel =
        Py_MAX(program->widest_kernel, launch->count + launch->size_count + MOST_HIDDEN);
    reads_in_kernel(program, launch->count, launch->buffers);
    return 0;
}

static int read_launch_parts(Program *program, PyObject *fields, Step *step) {
    PartsStep *parts = &step->parts;
    LoadedKernel *loaded = &parts->loaded;
    PyObject *name, *buffers, *offsets, *extents, *kernel;
    if (!PyArg_ParseTuple(fields, "OOOOiiOiii", &name, &buffers, &offsets, &extents, &parts->places,
                          &parts->points, &kernel, &loaded->threads, &loaded->shared,
                          &loaded->hidden) ||
        read_positions(program, buffers, 0, program->buffer_count, "buffers of a launch",
                       &parts->count, &parts->buffers) < 0 ||
        read_offsets(program, offsets, parts->count, &parts->offsets) < 0 ||
        read_positions(program, extents, 0, value_count(program), "extents of parts", &parts->parts,
                       &parts->extents) < 0 ||
        ingot_program_read_kernel(program, kernel, loaded) < 0)
        return -1;
    program->widest_kernel = Py_MAX(program->widest_kernel, 1 + MOST_HIDDEN);
    if (parts->parts < 1 || parts->parts > parts->places || parts->points < 1 ||
        parts->count % parts->parts)
        return malformed("parts of a launch", fields);
    reads_in_kernel(program, parts->count, parts->buffers);
    return 0;
}

static int read_binding(Program *program, PyObject *object, void *part) {
    Binding *binding = part;
    PyObject *value;
    long long lower, upper;
    if (!PyArg_ParseTuple(object, "OiiLL", &value, &binding->result, &binding->dim, &lower, &upper))
        return -1;
    binding->lower = lower;
    binding->upper = upper;
    return read_position(value, program->symbol_count, "symbol that is bound", &binding->value);
}

static int read_check(Program *program, PyObject *object, void *part) {
    static const char *const kinds[CHECK_KINDS] = {"==", "!=", "<", "<="};
    Check *check = part;
    PyObject *left, *kind, *right;
    if (!PyArg_ParseTuple(object, "OOOO", &left, &kind, &right, &check->message))
        return -1;
    int number = read_word(kind, kinds, CHECK_KINDS, "relation");
    check->kind = number < 0 ? CHECK_EQUAL : number;
    return number < 0 ||
                   read_position(left, value_count(program), "left of a check", &check->left) < 0
               ? -1
               : read_position(right, value_count(program), "right of a check", &check->right);
}

static int read_call_parts(Program *program, PyObject *fields, CallStep *call) {
    PyObject *name, *items, *targets, *written, *bindings = NULL, *checks;
    if (!PyArg_ParseTuple(fields, "OOOOOO|(iOO)", &name, &call->function, &items, &call->keywords,
                          &targets, &written, &call->stage, &bindings, &checks) ||
        read_parts(program, items, read_item, sizeof(Item), &call->count, &call->items) < 0 ||
        read_positions(program, targets, -1, program->buffer_count, "targets", &call->target_count,
                       &call->targets) < 0 ||
        read_positions(program, written, 0, program->buffer_count, "written", &call->written_count,
                       &call->written) < 0)
        return -1;
    if (bindings && (read_parts(program, bindings, read_binding, sizeof(Binding),
                                &call->binding_count, &call->bindings) < 0 ||
                     read_parts(program, checks, read_check, sizeof(Check), &call->check_count,
                                &call->checks) < 0))
        return -1;
    if (call->keywords == Py_None)
        call->keywords = NULL;
    else if (!PyTuple_Check(call->keywords) || PyTuple_GET_SIZE(call->keywords) > call->count)
        return malformed("keywords", call->keywords);
    call->tensors = count_tensors(call->items, call->count);
    program->calls_torch = 1;
    program->widest_call = Py_MAX(program->widest_call, call->count);
    program->most_tensors = Py_MAX(program->most_tensors, call->tensors);
    for (int i = 0; i < call->written_count; i++)
        program->buffers[call->written[i]].needs_data = 1; /* where it lies is compared */
    for (int i = 0; i < call->target_count; i++)
        if (call->targets[i] >= 0 && program->buffers[call->targets[i]].place != LIBRARY)
            return malformed("a result becomes a library buffer", targets);
    return 0;
}

static int read_call(Program *program, PyObject *fields, Step *step) {
    return read_call_parts(program, fields, &step->call);
}

static int read_product(Program *program, PyObject *fields, Step *step) {
    static const char *const types[INGOT_BLAS_TYPES] = {"float32", "float16", "bfloat16"};
    ProductStep *product = &step->product;
    PyObject *name, *type, *views, *call;
    int count, *operands;
    if (!PyArg_ParseTuple(fields, "OOOO!O!", &name, &type, &views, &PyTuple_Type,
                          &product->conditions, &PyTuple_Type, &call) ||
        read_positions(program, views, 0, program->view_count, "operands of a product", &count,
                       &operands) < 0 ||
        read_call_parts(program, call, &product->otherwise) < 0)
        return -1;
    int number = read_word(type, types, INGOT_BLAS_TYPES, "type of a product");
    if (number < 0)
        return -1;
    if (count != 3)
        return malformed("operands of a product", views);
    product->type = (IngotBlasType)number;
    product->left = operands[0], product->right = operands[1], product->out = operands[2];
    for (int i = 0; i < count; i++) {
        const View *view = &program->views[operands[i]];
        program->buffers[view->buffer].needs_data = 1;
        if (view->geometry.rank != 2 && view->geometry.rank != 3)
            return malformed("rank of an operand", views);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(product->conditions); i++) {
        PyObject *condition = PyTuple_GET_ITEM(product->conditions, i);
        if (!PyTuple_Check(condition) || PyTuple_GET_SIZE(condition) != 2)
            return malformed("condition of a product", condition);
    }
    return 0;
}

static int read_release(Program *program, PyObject *fields, Step *step) {
    PyObject *name, *buffers;
    BufferList *release = &step->release;
    if (!PyArg_ParseTuple(fields, "OO", &name, &buffers))
        return -1;
    return read_positions(program, buffers, 0, program->buffer_count, "buffers to release",
                          &release->count, &release->buffers);
}

static int read_step(Program *program, PyObject *object, void *part) {
    static const char *const kinds[STEP_KINDS] = {"allocate", "kernel",       "call",   "release",
                                                  "launch",   "launch parts", "product"};
    static int (*const readers[STEP_KINDS])(Program *, PyObject *, Step *) = {
        read_allocate, read_kernel,       read_call,   read_release,
        read_launch,   read_launch_parts, read_product};
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) < 2)
        return malformed("step", object);
    int kind = read_word(PyTuple_GET_ITEM(object, 0), kinds, STEP_KINDS, "kind of a step");
    if (kind < 0)
        return -1;
    ((Step *)part)->kind = kind;
    return readers[kind](program, object, part);
}

static int read_output(Program *program, PyObject *object, void *part) {
    static const char *const kinds[OUT_KINDS] = {"buffer", "view", "alone", "copy", "int"};
    Output *output = part;
    PyObject *kind, *index;
    if (!PyArg_ParseTuple(object, "OO", &kind, &index))
        return -1;
    int number = read_word(kind, kinds, OUT_KINDS, "kind of an output");
    if (number < 0)
        return -1;
    const int views = program->view_count;
    const int limits[OUT_KINDS] = {program->buffer_count, views, views, views,
                                   value_count(program)};
    output->kind = number;
    program->calls_torch |= number == OUT_VIEW || number == OUT_ALONE || number == OUT_COPY;
    return read_position(index, limits[number], "output", &output->index);
}

static int read_names(Program *program, PyObject *names) {
    if (!PyTuple_Check(names) || PyTuple_GET_SIZE(names) != program->step_count)
        return malformed("names of the steps", names);
    for (int i = 0; i < program->step_count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (name != Py_None && !PyUnicode_Check(name))
            return malformed("name of a step", name);
    }
    program->names = names;
    return 0;
}

static int read_donated(Program *program, PyObject *object, void *part) {
    Donated *donated = part;
    PyObject *buffer;
    if (!PyArg_ParseTuple(object, "OU", &buffer, &donated->name) ||
        read_position(buffer, program->buffer_count, "donated buffer", &donated->buffer) < 0)
        return -1;
    if (program->buffers[donated->buffer].place != INPUT)
        return malformed("only inputs are donated", object);
    program->buffers[donated->buffer].needs_data = 1;
    return 0;
}

int ingot_program_describe(Program *program, PyObject *description) {
    PyObject *symbols, *expressions, *constants, *buffers, *views, *steps, *outputs, *arena, *bytes,
        *owner, *device = Py_None, *stages = NULL, *peak = Py_None, *joined = NULL, *names = NULL,
                *donated = NULL;
    long long most_joined = -1;
    program->peak_bytes = program->traces_from = -1;
    if (!PyArg_ParseTuple(description, "iOOOOOOOOOO|OOpOOLiOO", &program->input_count, &symbols,
                          &expressions, &constants, &buffers, &views, &steps, &outputs, &arena,
                          &bytes, &owner, &device, &stages, &program->frugal, &peak, &joined,
                          &most_joined, &program->traces_from, &names, &donated))
        return -1;
    program->device = (IngotDevice){device, 0, -1};
    if (device != Py_None &&
        ingot_device_numbers(device, &program->device.type, &program->device.index) < 0)
        return -1;
    PyObject *none = PyTuple_New(0);
    int status = none == NULL ? -1 : 0;
#define READ(tuple, reader, count, array)                                                          \
    status = status < 0 ? -1                                                                       \
                        : read_parts(program, tuple, reader, sizeof *program->array,               \
                                     &program->count, &program->array)
    READ(symbols, read_symbol, symbol_count, symbols);
    READ(expressions, read_expression, expression_count, expressions);
    status = status < 0 ? -1 : read_stages(program, stages);
    READ(constants, read_constant, constant_count, constants);
    READ(buffers, read_buffer, buffer_count, buffers);
    READ(views, read_view, view_count, views);
    READ(steps, read_step, step_count, steps);
    READ(outputs, read_output, output_count, outputs);
    if (donated)
        READ(donated, read_donated, donated_count, donated);
#undef READ
    if (status == 0)
        status = read_position(arena, value_count(program), "arena", &program->arena_bytes);
    if (status == 0 && peak != Py_None)
        status = read_position(peak, value_count(program), "peak", &program->peak_bytes);
    if (status == 0 && names && names != Py_None)
        status = read_names(program, names);
    program->joined_bytes = program->arena_bytes;
    program->most_joined = most_joined;
    if (program->traces_from < 0)
        program->traces_from = program->step_count;
    if (status == 0 && joined)
        status =
            read_position(joined, value_count(program), "joined arena", &program->joined_bytes);
    if (status == 0)
        status = read_geometry(program, bytes, none, none, &program->bytes);
    Py_XDECREF(none);
    return status;
}
