/* The facts of a tensor, read from its memory without calling Python.

   Where the fields lie is found at import by probing tensors with known facts, and verified on
   others; if anything does not verify, the facts are read through Python attributes instead:
   slower, never wrong. */
#ifndef INGOT_TENSOR_H
#define INGOT_TENSOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#define INGOT_MAX_RANK 64
#define INGOT_CUDA 1 /* the device type */

typedef struct {
    const int64_t *sizes,
        *strides; /* valid as long as the tensor's metadata is not changed, or as this struct */
    int64_t rank, storage_offset;
    uint64_t dispatch_keys;
    int16_t dtype; /* see ingot_dtype_number */
    int8_t device_type, device_index;
    bool requires_grad, is_leaf;
    int64_t room[2 * INGOT_MAX_RANK]; /* where the slow path keeps sizes and strides; untouched by
                                         the fast one */
} IngotTensorFacts;

/* Finds and verifies the layout. Imports torch. 0, or -1 with an exception set. */
int ingot_tensor_init(void);

/* Whether this is exactly a torch.Tensor or torch.nn.Parameter: only these may be asked for facts.
 */
bool ingot_is_plain_tensor(PyObject *object);

/* Whether this is exactly a torch.nn.Parameter. */
bool ingot_is_parameter(PyObject *object);

/* Reads the facts of a plain tensor. 0, or -1 with an exception set. */
int ingot_tensor_facts(PyObject *tensor, IngotTensorFacts *facts);

/* Whether the facts of a tensor of any class are those that its Python attributes tell. */
bool ingot_tensor_facts_agree(PyObject *tensor);

/* A size or stride of this value, in what is wanted, is not compared. */
#define INGOT_NOT_GUARDED INT64_MIN

/* Whether a plain tensor has the facts that are wanted, but for the storage offset. An exception
 * may be set if not. */
bool ingot_tensor_matches(PyObject *tensor, const IngotTensorFacts *wanted);

/* The address of the first element. 0, or -1 with an exception set. */
int ingot_tensor_data(PyObject *tensor, void **data);

/* The first byte and one past the last byte that the elements may occupy; both 0 if there are none.
 * 0, or -1 with an exception set. */
int ingot_tensor_extent(PyObject *tensor, uintptr_t *begin, uintptr_t *end);

/* What identifies the storage of a strided tensor. 0, or -1 with an exception set. */
int ingot_tensor_storage(PyObject *tensor, uintptr_t *storage);

/* Has two tensors change storages, and with them memory: never on the slow path. */
void ingot_tensor_swap_storages(PyObject *one, PyObject *other);

/* The tensor as an AtenTensorHandle of torch's stable C ABI (borrowed); NULL on the slow path. */
void *ingot_tensor_handle(PyObject *tensor);

/* The number that facts use for a torch.dtype: torch's ScalarType on the fast path; -1 with an
 * exception set if it is unknown. */
int ingot_dtype_number(PyObject *dtype);

/* The device type and index (-1 for none) of a torch.device. 0, or -1 with an exception set. */
int ingot_device_numbers(PyObject *device, int8_t *type, int8_t *index);

/* An exported symbol of one of the torch libraries that this process has loaded; NULL, with no
 * exception set, where there is none. */
void *ingot_torch_symbol(const char *name);

/* The names of those that were asked for and are not there, as a new list. */
PyObject *ingot_missing_symbols(void);

/* A new reference to what ingot.torch_private has of a name: where torch has none, it stands for it
   and raises when called. NULL, with an exception set, if that cannot be imported. */
PyObject *ingot_torch_private(const char *name);

/* True while the facts are read through Python attributes; tests force it. */
bool ingot_tensor_facts_are_slow(void);
void ingot_force_slow_tensor_facts(bool slow);

#endif
