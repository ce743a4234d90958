/* The extension module `_native`: the types `Matrix`, `Model` and `Sampler`, and two functions. */
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

PyMODINIT_FUNC PyInit__native(void) {
  if (PyType_Ready(&MatrixType) < 0 || PyType_Ready(&ModelType) < 0 || PyType_Ready(&SamplerType) < 0) return NULL;
  PyObject *module = PyModule_Create(&DEFINITION);
  if (!module) return NULL;
  if (PyModule_AddObjectRef(module, "Matrix", (PyObject *)&MatrixType) < 0 ||
      PyModule_AddObjectRef(module, "Model", (PyObject *)&ModelType) < 0 ||
      PyModule_AddObjectRef(module, "Sampler", (PyObject *)&SamplerType) < 0)
    Py_CLEAR(module);
  return module;
}
