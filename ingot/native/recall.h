/* Which entry served the last call that looked like this one: asked first, it makes the time of a
   call independent of how many entries there are. Only a hint: the entry's own facts decide. */
#ifndef INGOT_RECALL_H
#define INGOT_RECALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct IngotRecall IngotRecall;

/* A digest of what the arguments look like: their types, what is to be seen of tensors, numbers and
   strings, and of those that a tuple or a list begins with. Runs no code of the user's. Never 0. */
uint64_t ingot_look_of(PyObject *const *slots, Py_ssize_t count);

/* The entry that is remembered with a look (borrowed), or NULL. `recall` may be NULL: nothing is
 * remembered. */
PyObject *ingot_recall(const IngotRecall *recall, uint64_t look);

/* Remembers an entry, which is not held: forget before it ends. Makes the memory where there is
   none; without memory left, nothing is remembered. */
void ingot_remember(IngotRecall **recall, uint64_t look, PyObject *entry);

/* Forgets all, and frees the memory. */
void ingot_forget(IngotRecall **recall);

#endif
