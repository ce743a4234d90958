/* The products of the path `amx` as the package compiles them, in a table without the rest, and no other path. A processor with AVX-512
   that lacks tiles can run them with emulate_tiles.c. */
#include <immintrin.h>
#include <math.h>

static int supported(void) { return 1; }

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")

#define TL_AVX512
#include "simd.h"

#include "kernels.h"

#include "quantise.h"
#include "gemm_int8.h"
#include "gemm_int12.h"
#include "gemm_tiles.h"

const kernels KERNELS_AMX = {.name = "amx", .supported = supported, .tiles = 1,
                             .quantise = {[ACTIVATIONS_INT8] = quantise_int8, [ACTIVATIONS_INT12] = quantise_int12_tiled},
                             .linear = {[ACTIVATIONS_INT8] = linear_int8_tiled, [ACTIVATIONS_INT12] = linear_int12_tiled}};

#pragma GCC pop_options

static int unsupported(void) { return 0; }

#define LEFT_OUT {.name = "", .supported = unsupported}
const kernels KERNELS_AVX512 = LEFT_OUT, KERNELS_AVX_VNNI = LEFT_OUT, KERNELS_AVX2 = LEFT_OUT, KERNELS_NEON_DOT = LEFT_OUT,
              KERNELS_NEON = LEFT_OUT;
