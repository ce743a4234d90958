/* The extension module `_native`: the types `Matrix`, `Model` and `Sampler`, and two functions.

   It and the files of the types keep to Python's limited API (Py_LIMITED_API in pyproject.toml), so that one binary serves every Python
   from 3.11 on. */
#include "find_kernels.h"
#include "matrix_object.h"
#include "model_object.h"
#include "sampler_object.h"

static PyObject *isas(PyObject *module, PyObject *none) {
  (void)module;
  (void)none;
  PyObject *names = PyList_New(0);
  const kernels *found;
  for (int i = 0; names && (found = supported_kernels(i)); i++) {
    PyObject *name = PyUnicode_FromString(found->name);
    if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  PyObject *result = names ? PyList_AsTuple(names) : NULL;
  Py_XDECREF(names);
  return result;
}

static PyMethodDef FUNCTIONS[] = {
    {"isas", isas, METH_NOARGS, "Return the names of the instruction sets that this processor has kernels for, best first."},
    {"multiply", multiply, METH_VARARGS, MULTIPLY_DOC},
    {0}};

static PyModuleDef DEFINITION = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "Native kernels.", .m_size = -1,
                                 .m_methods = FUNCTIONS};

/* Add the type made of `spec` under its name, and put it at `to` where that is given. */
static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **to) {
  PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
  if (!type) return -1;
  int failed = PyModule_AddType(module, type);
  if (to && !failed) *to = type; /* for the life of the process, as a module without state has one */
  else Py_DECREF(type);
  return failed;
}

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&DEFINITION);
  if (!module) return NULL;
  if (add_type(module, &MATRIX_SPEC, &MatrixType) < 0 || add_type(module, &MODEL_SPEC, NULL) < 0 || add_type(module, &SAMPLER_SPEC, NULL) < 0)
    Py_CLEAR(module);
  return module;
}
