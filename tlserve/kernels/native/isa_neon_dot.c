/* The kernels for aarch64 with products of bytes in one instruction (sdot): most processors since 2018. */
#if defined(__aarch64__) && (!defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_DOTPROD))
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
static int supported(void) { return (int)(getauxval(AT_HWCAP) >> 20 & 1); } /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
static int supported(void) { return 1; } /* every processor of a Mac */
#else
static int supported(void) { return 0; } /* no way to find out */
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

#define TL_NEON
#define TL_DOTPROD
#include "all_kernels.h"

const kernels KERNELS_NEON_DOT = KERNEL_TABLE("neondot", supported);

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#elif defined(__aarch64__)
#include "kernels.h"

static int supported(void) { return 0; } /* the compiler does not know the instruction by itself */

const kernels KERNELS_NEON_DOT = {.name = "neondot", .supported = supported};
#else
typedef int not_for_this_processor;
#endif
