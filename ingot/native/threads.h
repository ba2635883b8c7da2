/* Running a kernel over a range, on the threads of the OpenMP runtime that torch has loaded. */
#ifndef INGOT_THREADS_H
#define INGOT_THREADS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* See "Kernel ABI" in ingot/runtime/description.py. */
typedef int32_t (*IngotKernel)(void *const *buffers, const int64_t *sizes, int64_t begin,
                               int64_t end, void *scratch);

/* What the launching thread has done of a launch: pieces, the longest of them, and when the last
   one was done (nanoseconds). */
typedef struct {
    int64_t pieces, longest, last;
} IngotWatch;

/* A launch has parts where one kernel runs over several sets of buffers: `width` buffers and an
   extent for each. Its range is then that of all parts, one after the other, each beginning at a
   multiple of `unit`. */
typedef struct {
    IngotKernel kernel;
    void *const *buffers;
    const int64_t *sizes;
    int parts, width;       /* no parts: one set of buffers */
    const int64_t *extents; /* per part */
    int64_t extent;         /* points of the range */
    int64_t unit;           /* what a thread takes at once is a multiple of this many points */
    char *scratch;          /* one block per thread */
    size_t scratch_stride;  /* bytes from one thread's block to the next */
    double nanoseconds;     /* of the whole range, on one core */
    int64_t piece, *taken; /* while it runs: units that a thread takes at a time, and those taken of
                              each share; NULL: it takes all of it */
    bool watched;
    IngotWatch watch;
    int32_t status; /* out: 0, or what one failing share returned */
} IngotLaunch;

/* How many threads a range deserves: at most torch.get_num_threads(), each with more than a
   microsecond of work, one inside a parallel region or where OpenMP is out of reach. `nanoseconds`
   is the whole range's work on one core. */
int ingot_threads_wanted(int64_t extent, int64_t unit, double nanoseconds);

/* Runs the whole range and returns the status. Needs no GIL. */
int32_t ingot_launch(IngotLaunch *launch, int threads);

int ingot_threads_register(PyObject *module);

#endif
