/* The kernels for AVX2 with FMA and F16C (every processor with the first two has it). */
#if defined(__x86_64__)
#include <immintrin.h>

static int supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define TL_AVX2
#include "all_kernels.h"

const kernels KERNELS_AVX2 = KERNEL_TABLE("avx2", supported);

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int not_for_this_processor;
#endif
