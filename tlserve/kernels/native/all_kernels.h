/* Everything of one instruction set, compiled once for each: included at the end of every isa_*.c. */
#include "simd.h"

#include "kernels.h"

#include "elementwise.h"
#include "quantise.h"
#include "gemm_int8.h"
#include "gemm_int12.h"
#include "gemm_int12_many.h"
#include "gemm_f32.h"
#include "attention.h"

/* The table of a path; QUANTISE12 and the last two are its own where it has tiles. */
#define TABLE_OF(NAME, SUPPORTED, TILES, QUANTISE12, INT8, INT12)                                                        \
  {                                                                                                                      \
    .name = NAME, .supported = SUPPORTED, .tiles = TILES, .norm_row = norm_row, .layer_norm_row = layer_norm_row,        \
    .quantise = {[ACTIVATIONS_INT8] = quantise_int8, [ACTIVATIONS_INT12] = QUANTISE12},                                  \
    .activate = {[ACTIVATION_SILU] = silu, [ACTIVATION_GELU_TANH] = gelu_tanh, [ACTIVATION_GELU_ERF] = gelu_erf,         \
                 [ACTIVATION_RELU2] = relu2, [ACTIVATION_CLAMPED_SWIGLU] = clamped_swiglu},                              \
    .sigmoid_row = sigmoid_row, .softmax_row = softmax_row, .soft_cap = soft_cap, .rotate = rotate, .write_kv = write_kv, .attend = attend,                                      \
    .linear = {[ACTIVATIONS_INT8] = INT8, [ACTIVATIONS_INT12] = INT12}, .linear_f32 = linear_f32                         \
  }
#define KERNEL_TABLE(NAME, SUPPORTED) TABLE_OF(NAME, SUPPORTED, 0, quantise_int12, linear_int8, linear_int12)
#define TILE_TABLE(NAME, SUPPORTED) TABLE_OF(NAME, SUPPORTED, 1, quantise_int12_tiled, linear_int8_tiled, linear_int12_tiled)
