/* Everything of one instruction set, compiled once for each: included at the end of every isa_*.c. */
#include "simd.h"

#include "kernels.h"

#include "elementwise.h"
#include "quantise.h"
#include "gemm_int8.h"
#include "gemm_f32.h"
#include "attention.h"

#define KERNEL_TABLE(NAME, SUPPORTED)                                                                                    \
  {                                                                                                                      \
    NAME, SUPPORTED, norm_row, quantise, silu_times, rotate, write_kv, attend, linear_int8, linear_f32                  \
  }
