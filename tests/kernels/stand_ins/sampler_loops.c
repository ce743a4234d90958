/* The sampler's loops on stand-ins, as if this processor had every instruction set. */
#include <immintrin.h>

#define target(...)
#define __builtin_cpu_supports(name) 1
#include "../../../tlserve/kernels/native/sampler_loops.c"
