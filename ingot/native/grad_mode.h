/* Whether autograd records. */
#ifndef INGOT_GRAD_MODE_H
#define INGOT_GRAD_MODE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Imports torch. 0, or -1 with an exception set. */
int ingot_grad_mode_init(void);

bool ingot_grad_is_enabled(void);

/* Sets grad mode, keeping the exception that may be set; returns what it was. */
bool ingot_swap_grad_mode(bool enabled);

#endif
