/* What profilers see of a program: each kernel, launch and library call by its name. */
#ifndef INGOT_PROFILER_H
#define INGOT_PROFILER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdalign.h>
#include <stdbool.h>

/* An event that has begun. It holds one of torch's objects, whose size torch does not tell: some
   hundred bytes. */
typedef struct {
    alignas(64) char recorded[4096];
    bool is_recorded, is_marked;
} IngotEvent;

/* Adds the functions that ask for NVTX ranges. 0, or -1 with an exception set. */
int ingot_profiler_register(PyObject *module);

/* Whether anybody may look at the steps of programs in this thread. */
bool ingot_is_profiled(void);

/* Begins an event of that name, a str. Keeps the exception that may be set. */
void ingot_event_begin(IngotEvent *event, PyObject *name);
void ingot_event_end(IngotEvent *event);

/* Whether torch records what its GPU allocator is asked for. Takes a call of torch's. */
bool ingot_memory_is_recorded(void);

/* From now on memory is recorded under that name, a str. Keeps the exception that may be set. */
void ingot_memory_name(PyObject *name);

/* The name before; NULL where there is none to be had. To be given to `ingot_memory_name` again. */
PyObject *ingot_memory_name_before(void);

#endif
