/* The long loops of the sampler: written for the compiler's vectoriser, compiled for several processors by sampler_loops.c.

   exp, per element, as fixed_math states it: steps = round(x / step); x - steps * high - steps * low; a polynomial of degree 6; times a
   power of two. Products and sums are rounded one by one (the extension is compiled without contraction), so that the width of a
   vector cannot change a bit. Rounding to a whole number, ties to even: add 1.5 * 2^52, whose low bits then hold the number. */
#ifndef TL_SAMPLER_MATH_H
#define TL_SAMPLER_MATH_H

#include "sampler.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { TILE = 256, SCAN = 32, LANES = 1024, SLACK = 32 };

static const double EXP_FLOOR = -700.0, ROUNDER = 0x1.8p52;

/* Replace n numbers by their exponentials. Three short loops: the middle one, which looks up the table, cannot be vectorised. */
ALWAYS_INLINE void exp_tile(double *x, long n, const exp_table *t) {
  static const double C[] = {1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0};
  double part[TILE], power[TILE];
  int64_t whole[TILE], base;
  memcpy(&base, &ROUNDER, 8);
  for (long i = 0; i < n; i++) {
    double r = x[i] < EXP_FLOOR ? EXP_FLOOR : x[i], shifted = r * t->inverse_step + ROUNDER, steps = shifted - ROUNDER;
    memcpy(&whole[i], &shifted, 8);
    r -= steps * t->step_high;
    r -= steps * t->step_low;
    double p = r * C[0];
    for (int k = 1; k < 6; k++) p = (p + C[k]) * r;
    part[i] = p + 1.0;
  }
  for (long i = 0; i < n; i++) power[i] = t->powers[whole[i] & (EXP_STEPS - 1)]; /* the low bits of base are zero */
  for (long i = 0; i < n; i++) {
    double product = power[i] * part[i];
    uint64_t bits;
    memcpy(&bits, &product, 8);
    bits += (uint64_t)(whole[i] - base) >> 6 << 52; /* times a power of two, in the exponent's bits */
    memcpy(&x[i], &bits, 8);
  }
}

/* weights[i] = exp((values[i] - best) / temperature) */
ALWAYS_INLINE void weigh_loop(const float *values, long n, double best, double temperature, const exp_table *t, double *weights) {
  for (long start = 0; start < n; start += TILE) {
    long size = n - start < TILE ? n - start : TILE;
    double *x = weights + start;
    for (long i = 0; i < size; i++) x[i] = (double)values[start + i] - best;
    if (temperature != 1.0)
      for (long i = 0; i < size; i++) x[i] /= temperature;
    exp_tile(x, size, t);
  }
}

/* Add weight i to lane i mod LANES; return how many lanes there are. */
ALWAYS_INLINE long lane_sums_loop(const double *weights, long n, double *lanes) {
  long used = n < LANES ? n : LANES;
  memcpy(lanes, weights, (size_t)used * sizeof(double));
  for (long start = LANES; start < n; start += LANES) {
    long size = n - start < LANES ? n - start : LANES;
    for (long i = 0; i < size; i++) lanes[i] += weights[start + i];
  }
  return used;
}

/* The greatest of n values; NaN if there is one among them. */
ALWAYS_INLINE float greatest_loop(const float *values, long n) {
  float most[SCAN], greatest = values[0];
  int32_t bad[SCAN] = {0}, any = 0;
  long i = 0;
  for (int j = 0; j < SCAN; j++) most[j] = greatest;
  for (; i + SCAN <= n; i += SCAN)
    for (int j = 0; j < SCAN; j++) {
      float v = values[i + j];
      most[j] = v > most[j] ? v : most[j];
      bad[j] |= v != v;
    }
  for (; i < n; i++) {
    most[0] = values[i] > most[0] ? values[i] : most[0];
    bad[0] |= values[i] != values[i];
  }
  for (int j = 0; j < SCAN; j++) {
    greatest = most[j] > greatest ? most[j] : greatest;
    any |= bad[j];
  }
  return any ? __builtin_nanf("") : greatest;
}

/* The first place from `from` on whose value is above `bound` (`equal`: equal to it), or n. */
ALWAYS_INLINE long find_loop(const float *values, long from, long n, float bound, int equal) {
  long i = from;
  for (; i + SCAN <= n; i += SCAN) {
    int32_t any = 0;
    for (int j = 0; j < SCAN; j++) any |= equal ? values[i + j] == bound : values[i + j] > bound;
    if (any) break;
  }
  while (i < n && !(equal ? values[i] == bound : values[i] > bound)) i++;
  return i;
}

/* The bits of a mask for the ids from 32 w on, below n. */
ALWAYS_INLINE uint32_t word_of(const uint32_t *mask, long w, long n) {
  long left = n - 32 * w;
  return left >= 32 ? mask[w] : mask[w] & (((uint32_t)1 << left) - 1);
}

/* The greatest of the n values that the mask allows, none of them NaN; minus infinity, and *allowed stays 0, if it allows none. */
ALWAYS_INLINE float greatest_allowed_loop(const float *values, long n, const uint32_t *mask, int *allowed) {
  float most[SCAN], greatest = -__builtin_inff();
  uint32_t any = 0;
  for (int j = 0; j < SCAN; j++) most[j] = greatest;
  for (long w = 0; 32 * w < n; w++) {
    uint32_t word = word_of(mask, w, n);
    const float *v = values + 32 * w;
    any |= word;
    if (word == 0) continue;
    if (n - 32 * w < 32) {
      for (; word; word &= word - 1) most[0] = v[__builtin_ctz(word)] > most[0] ? v[__builtin_ctz(word)] : most[0];
      break;
    }
    for (int j = 0; j < SCAN; j++) {
      float candidate = word >> j & 1 ? v[j] : -__builtin_inff();
      most[j] = candidate > most[j] ? candidate : most[j];
    }
  }
  for (int j = 0; j < SCAN; j++) greatest = most[j] > greatest ? most[j] : greatest;
  *allowed |= any != 0;
  return greatest;
}

/* Write the values that the mask allows and their ids side by side, up to SLACK beyond; return how many there are. */
ALWAYS_INLINE long keep_loop(const float *values, long n, const uint32_t *mask, float *kept, int32_t *ids) {
  long count = 0;
  for (long w = 0; 32 * w < n; w++) {
    uint32_t word = word_of(mask, w, n);
    const float *v = values + 32 * w;
    if (word == UINT32_MAX) {
      for (int j = 0; j < 32; j++) kept[count + j] = v[j], ids[count + j] = (int32_t)(32 * w + j);
      count += 32;
    } else {
      for (; word; word &= word - 1) {
        int j = __builtin_ctz(word);
        kept[count] = v[j];
        ids[count++] = (int32_t)(32 * w + j);
      }
    }
  }
  return count;
}

typedef struct {
  void (*weigh)(const float *values, long n, double best, double temperature, const exp_table *t, double *weights);
  long (*lane_sums)(const double *weights, long n, double *lanes);
  float (*greatest)(const float *values, long n);
  long (*above)(const float *values, long from, long n, float bound);
  long (*equal)(const float *values, long from, long n, float bound);
  float (*greatest_allowed)(const float *values, long n, const uint32_t *mask, int *allowed);
  long (*keep)(const float *values, long n, const uint32_t *mask, float *kept, int32_t *ids);
} sampler_loops;

/* The widest that this processor has, in registers of at most `widest` bits. */
sampler_loops best_loops(int widest);

#endif
