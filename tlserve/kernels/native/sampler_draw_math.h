/* The arithmetic of one draw, as in engine/sampling/fixed_math.py: sums in order, the logarithm, and the random number. */
#ifndef TL_SAMPLER_DRAW_MATH_H
#define TL_SAMPLER_DRAW_MATH_H

#include "sampler.h"

#include <string.h>

enum { LOG_TERMS = 12 };

/* The first of n weights, `stride` apart, whose running sum passes the target, or the last that is not zero; *target becomes the rest. */
static inline long pick(const double *weights, long n, long stride, double *target) {
  double before = 0, sum = 0;
  long last = 0;
  for (long i = 0; i < n && !(sum > *target); i++) {
    double weight = weights[i * stride];
    if (weight != 0) last = i, before = sum;
    sum += weight;
  }
  *target -= before;
  return last;
}

static inline double sum_lanes_up(const double *lanes, long used) {
  double sum = 0;
  for (long i = 0; i < used; i++) sum += lanes[i];
  return sum;
}

static inline double natural_log(double x, const exp_table *t) {
  static const double TERMS[LOG_TERMS] = {1.0 / 25, 1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15,
                                          1.0 / 13, 1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  uint64_t bits;
  memcpy(&bits, &x, 8); /* a positive normal number: mantissa in 0.5 .. 1 times a power of two */
  long exponent = (long)(bits >> 52) - 1022;
  bits = (bits & 0xfffffffffffff) | (uint64_t)1022 << 52;
  double mantissa, series = 0;
  memcpy(&mantissa, &bits, 8);
  if (mantissa < 0x1.6a09e667f3bcdp-1) mantissa *= 2, exponent--; /* below the root of a half */
  double s = (mantissa - 1) / (mantissa + 1), square = s * s;
  for (int i = 0; i < LOG_TERMS; i++) series = (series + TERMS[i]) * square;
  double high = t->step_high * EXP_STEPS, low = t->step_low * EXP_STEPS;
  return (double)exponent * high + (2 * s + (2 * s * series + (double)exponent * low));
}

static inline void multiply_wide(uint64_t a, uint64_t b, uint64_t *high, uint64_t *low) {
  unsigned __int128 product = (unsigned __int128)a * b;
  *high = (uint64_t)(product >> 64);
  *low = (uint64_t)product;
}

static inline double fraction_of(uint64_t random) { return (double)(random >> 11) * 0x1p-53; }

/* Philox4x64-10, the first two numbers of the block after `index`, as numpy counts; the upper 53 bits as fractions. */
static inline void uniforms(uint64_t seed, uint64_t choice, uint64_t index, double *u) {
  uint64_t c0 = index + 1, c1 = c0 == 0, c2 = 0, c3 = 0;
  for (int i = 0; i < 10; i++) {
    uint64_t a_high, a_low, b_high, b_low;
    multiply_wide(0xD2E7470EE14C6C93, c0, &a_high, &a_low);
    multiply_wide(0xCA5A826395121157, c2, &b_high, &b_low);
    c0 = b_high ^ c1 ^ seed;
    c1 = b_low;
    c2 = a_high ^ c3 ^ choice;
    c3 = a_low;
    seed += 0x9E3779B97F4A7C15;
    choice += 0xBB67AE8584CAA73B;
  }
  u[0] = fraction_of(c0);
  u[1] = fraction_of(c1);
}

#endif
