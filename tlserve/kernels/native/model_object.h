/* The Python type of a decoder on the native kernels. */
#ifndef TL_MODEL_OBJECT_H
#define TL_MODEL_OBJECT_H

#include "buffers.h"

extern PyType_Spec MODEL_SPEC;

#endif
