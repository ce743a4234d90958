/* The Python type of the sampler, for the module that offers it. */
#ifndef TL_SAMPLER_OBJECT_H
#define TL_SAMPLER_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec SAMPLER_SPEC;

#endif
