#include "buffers.h"

void object_free(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_Free(object);
  Py_DECREF(type); /* each object holds its type */
}

int open_buffer(PyObject *object, Py_buffer *view, const char *what, char code, Py_ssize_t size, Py_ssize_t items, int writable) {
  if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) < 0) return -1;
  const char *format = view->format ? view->format : "B";
  char found = format[0] == '=' || format[0] == '<' || format[0] == '@' ? format[1] : format[0];
  if (code == 'i' && found == 'l' && view->itemsize == 4) found = 'i'; /* where a C long has 32 bits, numpy calls them l */
  if (view->itemsize != size || found != code) {
    PyErr_Format(PyExc_TypeError, "%s has items of type %s, not '%c'", what, format, code);
  } else if (items >= 0 && view->len / size != items) {
    PyErr_Format(PyExc_ValueError, "%s has %zd items, not %zd", what, view->len / size, items);
  } else {
    return 0;
  }
  PyBuffer_Release(view);
  return -1;
}
