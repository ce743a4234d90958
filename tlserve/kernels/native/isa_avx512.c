/* The kernels for AVX-512 with VNNI, and for AMX: those with products of many rows on tiles. */
#if defined(__x86_64__)
#include <immintrin.h>

static int supported(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"); }

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#endif

#define TL_AVX512
#include "all_kernels.h"

const kernels KERNELS_AVX512 = KERNEL_TABLE("avx512vnni", supported);

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Linux saves the tiles of a process that has asked for it, in all its threads (Documentation/arch/x86/xstate.rst). */
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, HAS_TILES = 1 << 24, HAS_INT8_TILES = 1 << 25 };

static int tiles_permitted;

static void request_tiles(void) {
  unsigned a, b, c, d = 0;
  if (!supported() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & HAS_TILES) || !(d & HAS_INT8_TILES)) return;
  tiles_permitted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static int supports_tiles(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, request_tiles);
  return tiles_permitted;
}

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")
#endif

#include "gemm_tiles.h"

const kernels KERNELS_AMX = TILE_TABLE("amx", supports_tiles);

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
static int supports_tiles(void) { return 0; } /* the compiler does not know the instructions, or the system gives no permission */

const kernels KERNELS_AMX = {.name = "amx", .supported = supports_tiles};
#endif
#else
typedef int not_for_this_processor;
#endif
