/* Are the frames and the bytecode of this CPython known? Where they are not, nothing is captured.
 *
 * It must not include Python.h. */
#ifndef INGOT_FRAMES_KNOWN_H
#define INGOT_FRAMES_KNOWN_H

#include <patchlevel.h>

/* INGOT_UNKNOWN_PYTHON is for tests: they build as if for a CPython to come. */
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030f0000 && !defined(INGOT_UNKNOWN_PYTHON)
#define INGOT_KNOWS_FRAMES 1
#else
#define INGOT_KNOWS_FRAMES 0
#endif

#endif
