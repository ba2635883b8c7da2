/* Integer expressions over a table of size symbols, compiled from the steps of
 * `ingot.loops.postfix`. */
#ifndef INGOT_EXPRESSION_H
#define INGOT_EXPRESSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct IngotExpression IngotExpression;

/* Compiles a sequence of postfix steps that may read table[0] .. table[symbols - 1]. NULL with a
   Python error when they are not well formed. Free with ingot_expression_free (which accepts NULL).
 */
IngotExpression *ingot_expression_compile(PyObject *steps, Py_ssize_t symbols);
void ingot_expression_free(IngotExpression *expression);

/* Stores the value in *result. -1 with OverflowError or ZeroDivisionError set; 0 when all is well.
 */
int ingot_expression_evaluate(const IngotExpression *expression, const int64_t *table,
                              int64_t *result);

#endif
