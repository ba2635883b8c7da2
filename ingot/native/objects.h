/* Object files of kernels, put into memory without LLVM, which takes longer to load than they do.
 */
#ifndef INGOT_OBJECTS_H
#define INGOT_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ingot_objects_register(PyObject *module);

#endif
