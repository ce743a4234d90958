/* The Python type of a packed matrix, and one product with it. */
#ifndef TL_MATRIX_OBJECT_H
#define TL_MATRIX_OBJECT_H

#include "buffers.h"
#include "kernels.h"

extern PyType_Spec MATRIX_SPEC;

/* The type made of MATRIX_SPEC: the module sets it before there is a caller. */
extern PyTypeObject *MatrixType;

/* Return the matrix of a `Matrix` of this shape, or NULL with an error that names it `what`. It lives as long as the object. */
const matrix *matrix_of(PyObject *object, const char *what, long outputs, long inputs);

/* Return the kernels of this name, or NULL with ValueError set. */
const kernels *kernels_named(const char *name);

/* Return the format of activations of this name, or -1 with ValueError set. */
int activations_named(const char *name);

extern const char MULTIPLY_DOC[];
PyObject *multiply(PyObject *module, PyObject *arguments);

#endif
