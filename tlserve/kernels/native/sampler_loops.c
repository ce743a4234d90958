/* The loops of the sampler for each kind of processor: the same bits in wider registers, from the same source, except `keep`, which no
   compiler makes fast by itself. */
#include "sampler_math.h"

#define LOOPS(NAME, TARGET, KEEP)                                                                                                      \
  TARGET static void weigh_##NAME(const float *v, long n, double best, double temperature, const exp_table *t, double *weights) { \
    weigh_loop(v, n, best, temperature, t, weights);                                                                              \
  }                                                                                                                               \
  TARGET static long lane_sums_##NAME(const double *w, long n, double *lanes) { return lane_sums_loop(w, n, lanes); }             \
  TARGET static float greatest_##NAME(const float *v, long n) { return greatest_loop(v, n); }                                     \
  TARGET static long above_##NAME(const float *v, long from, long n, float bound) { return find_loop(v, from, n, bound, 0); }     \
  TARGET static long equal_##NAME(const float *v, long from, long n, float bound) { return find_loop(v, from, n, bound, 1); }     \
  TARGET static float greatest_allowed_##NAME(const float *v, long n, const uint32_t *mask, int *allowed) {                       \
    return greatest_allowed_loop(v, n, mask, allowed);                                                                            \
  }                                                                                                                               \
  static const sampler_loops LOOPS_##NAME = {weigh_##NAME, lane_sums_##NAME,        greatest_##NAME, above_##NAME,                \
                                             equal_##NAME, greatest_allowed_##NAME, KEEP};

static long keep_plain(const float *v, long n, const uint32_t *mask, float *kept, int32_t *ids) { return keep_loop(v, n, mask, kept, ids); }

LOOPS(plain, , keep_plain)

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))

/* For each byte of a mask, the places of its bits in order. */
static uint8_t PLACES[256][8];

static void fill_places(void) {
  for (int byte = 0; byte < 256; byte++)
    for (int bit = 0, count = 0; bit < 8; bit++)
      if (byte >> bit & 1) PLACES[byte][count++] = (uint8_t)bit;
}

/* Both: a whole register is written for what is kept of it, so that up to 15 beyond are spoiled. */
AVX2 static long keep_avx2(const float *values, long n, const uint32_t *mask, float *kept, int32_t *ids) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  long count = 0, whole = n / 32;
  for (long w = 0; w < whole; w++) {
    uint32_t word = mask[w];
    for (long first = 32 * w; word; first += 8, word >>= 8) {
      __m256i places = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)PLACES[word & 255]));
      __m256i id = _mm256_add_epi32(lane, _mm256_set1_epi32((int)first));
      _mm256_storeu_ps(kept + count, _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + first), places));
      _mm256_storeu_si256((__m256i *)(ids + count), _mm256_permutevar8x32_epi32(id, places));
      count += __builtin_popcount(word & 255);
    }
  }
  for (long id = 32 * whole; id < n; id++)
    if (mask[whole] >> id % 32 & 1) kept[count] = values[id], ids[count++] = (int32_t)id;
  return count;
}

AVX512 static inline long keep_half(__m512 v, __m512i id, __mmask16 bits, float *kept, int32_t *ids) {
  _mm512_storeu_ps(kept, _mm512_maskz_compress_ps(bits, v));
  _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(bits, id));
  return __builtin_popcount(bits);
}

AVX512 static long keep_avx512(const float *values, long n, const uint32_t *mask, float *kept, int32_t *ids) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  long count = 0;
  for (long w = 0; 32 * w < n; w++) {
    uint32_t word = word_of(mask, w, n);
    for (long first = 32 * w; word; first += 16, word >>= 16) {
      __mmask16 bits = (__mmask16)word;
      __m512 v = _mm512_maskz_loadu_ps(bits, values + first);
      count += keep_half(v, _mm512_add_epi32(lane, _mm512_set1_epi32((int)first)), bits, kept + count, ids + count);
    }
  }
  return count;
}

LOOPS(avx2, AVX2, keep_avx2)
LOOPS(avx512, AVX512, keep_avx512)

sampler_loops best_loops(int widest) {
  fill_places();
  if (widest >= 512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return LOOPS_avx512;
  return widest >= 256 && __builtin_cpu_supports("avx2") ? LOOPS_avx2 : LOOPS_plain;
}
#else
sampler_loops best_loops(int widest) {
  (void)widest;
  return LOOPS_plain;
}
#endif
