/* The extension module `ingot.native._native`: registers what the other files define. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "below_autograd.h"
#include "continue.h"
#include "control.h"
#include "cuda.h"
#include "dispatch.h"
#include "dtensors.h"
#include "frames.h"
#include "guards.h"
#include "hashed.h"
#include "iterators.h"
#include "numbers.h"
#include "objects.h"
#include "places.h"
#include "profiler.h"
#include "program.h"
#include "recorder.h"
#include "signals.h"
#include "stance.h"
#include "tensor.h"
#include "threads.h"

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ingot.native._native",
    .m_doc = "Native core: tensor facts, guard walk, dispatch, programs.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (ingot_tensor_init() < 0 || ingot_threads_register(module) < 0 ||
        ingot_stance_register(module) < 0 || ingot_cuda_register(module) < 0 ||
        ingot_program_register(module) < 0 || ingot_profiler_register(module) < 0 ||
        ingot_guards_register(module) < 0 || ingot_dispatch_register(module) < 0 ||
        ingot_continue_register(module) < 0 || ingot_frames_register(module) < 0 ||
        ingot_recorder_register(module) < 0 || ingot_places_register(module) < 0 ||
        ingot_numbers_register(module) < 0 || ingot_hashed_register(module) < 0 ||
        ingot_iterators_register(module) < 0 || ingot_signals_register(module) < 0 ||
        ingot_control_register(module) < 0 || ingot_objects_register(module) < 0 ||
        ingot_dtensors_register(module) < 0 || ingot_below_autograd_register(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
