/* Arrays that Python hands over, as typed and sized memory. */
#ifndef TL_BUFFERS_H
#define TL_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Free the memory of an object whose type was made of a PyType_Spec; its own parts are gone. */
void object_free(PyObject *object);

/* Open a contiguous buffer of `items` items (any number where -1) of the type `code` (of the struct module), `size` bytes each. `what`
   names it in an error. 0, or -1 with TypeError or ValueError set; the caller releases an open buffer. */
int open_buffer(PyObject *object, Py_buffer *view, const char *what, char code, Py_ssize_t size, Py_ssize_t items, int writable);

#endif
