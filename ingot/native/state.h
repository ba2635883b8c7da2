/* The state of the process and of this thread that eager's meaning depends on, as a block of
 * integers that is cheap to compare. */
#ifndef INGOT_STATE_H
#define INGOT_STATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t included,
        excluded;   /* dispatch keys: inference mode, autocast, dispatch modes, functorch, ... */
    uint64_t modes; /* grad mode, default dtype, determinism, ... packed */
    int64_t cpu_autocast_dtype, cuda_autocast_dtype, matmul_precision;
    uint64_t attention; /* which backends it may use, and in which order */
} IngotGlobalState;

/* Finds torch's functions. After it, false where one is missing: then only the Python reader can
 * tell the state. */
bool ingot_global_state_is_readable(void);

/* Reads the state. True if the block says it all; false while torch function modes are active,
 * which it only counts. */
bool ingot_read_global_state(IngotGlobalState *state);

#endif
