/* Everything of one instruction set, compiled once for each: included at the end of every isa_*.c. */
#include "simd.h"

#include "kernels.h"

#include "elementwise.h"
#include "quantise.h"
#include "gemm_int8.h"
#include "gemm_int12.h"
#include "gemm_f32.h"
#include "attention.h"

#define KERNEL_TABLE(NAME, SUPPORTED)                                                                                    \
  {                                                                                                                      \
    .name = NAME, .supported = SUPPORTED, .norm_row = norm_row,                                                          \
    .quantise = {[ACTIVATIONS_INT8] = quantise_int8, [ACTIVATIONS_INT12] = quantise_int12}, .silu_times = silu_times,    \
    .rotate = rotate, .write_kv = write_kv, .attend = attend,                                                            \
    .linear = {[ACTIVATIONS_INT8] = linear_int8, [ACTIVATIONS_INT12] = linear_int12}, .linear_f32 = linear_f32           \
  }
