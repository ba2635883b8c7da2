/* What came of this thread's calls of compiled functions. The frame hook asks it of the functions
   that it captures. */
#ifndef INGOT_WORK_H
#define INGOT_WORK_H

#include <stdbool.h>

typedef struct {
    unsigned graphs; /* how many ran a graph */
    unsigned idle;   /* what the others cost: those that an entry served count 1 */
} IngotWork;

extern _Thread_local IngotWork ingot_work;

static inline void ingot_count_work(bool has_graph) {
    if (has_graph)
        ingot_work.graphs++;
    else
        ingot_work.idle++;
}

#endif
