/* The loops of the sampler for each kind of processor: the same source, the same bits, wider registers. */
#include "sampler_math.h"

#define LOOPS(NAME, TARGET)                                                                                                       \
  TARGET static void weigh_##NAME(const float *v, long n, double best, double temperature, const exp_table *t, double *weights) { \
    weigh_loop(v, n, best, temperature, t, weights);                                                                              \
  }                                                                                                                               \
  TARGET static long lane_sums_##NAME(const double *w, long n, double *lanes) { return lane_sums_loop(w, n, lanes); }             \
  TARGET static float greatest_##NAME(const float *v, long n) { return greatest_loop(v, n); }                                     \
  TARGET static long above_##NAME(const float *v, long from, long n, float bound) { return find_loop(v, from, n, bound, 0); }     \
  TARGET static long equal_##NAME(const float *v, long from, long n, float bound) { return find_loop(v, from, n, bound, 1); }     \
  static const sampler_loops LOOPS_##NAME = {weigh_##NAME, lane_sums_##NAME, greatest_##NAME, above_##NAME, equal_##NAME};

LOOPS(plain, )

#if defined(__x86_64__)
LOOPS(avx2, __attribute__((target("avx2"))))
LOOPS(avx512, __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl"))))

sampler_loops best_loops(void) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return LOOPS_avx512;
  return __builtin_cpu_supports("avx2") ? LOOPS_avx2 : LOOPS_plain;
}
#else
sampler_loops best_loops(void) { return LOOPS_plain; }
#endif
