/* The kernels for AVX2 with AVX-VNNI: byte products in one instruction, where AVX-512 is missing. */
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <cpuid.h>
#include <immintrin.h>

static int supported(void) {
  unsigned a = 0, b, c, d;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif

#define TL_AVX2
#define TL_AVX_VNNI
#include "all_kernels.h"

const kernels KERNELS_AVX_VNNI = KERNEL_TABLE("avxvnni", supported);

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#elif defined(__x86_64__)
#include "kernels.h"

static int supported(void) { return 0; } /* the compiler does not know the instructions */

const kernels KERNELS_AVX_VNNI = {.name = "avxvnni", .supported = supported};
#else
typedef int not_for_this_processor;
#endif
