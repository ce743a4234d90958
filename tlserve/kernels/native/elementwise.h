/* Norm, exponential, gate, rotation: plain loops, each operation rounded by itself (the compiler may use lanes, never reorder).

   The same numbers as tlserve/kernels/reference/elementwise.py and rope.py, to the bit. */
#include <math.h>

/* Add the upper half to the lower one until one term is left; a middle term stays in place. */
static float sum_in_halves(float *restrict terms, long n) {
  while (n > 1) {
    long half = n / 2;
    const float *upper = terms + (n - half);
    for (long i = 0; i < half; i++) terms[i] += upper[i];
    n -= half;
  }
  return terms[0];
}

static void norm_row(const float *restrict x, const float *restrict weight, float epsilon, long n, float *restrict out,
                     float *restrict scratch) {
  for (long i = 0; i < n; i++) scratch[i] = x[i] * x[i];
  float mean = sum_in_halves(scratch, n) / (float)n;
  float scale = 1.0f / sqrtf(mean + epsilon);
  for (long i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

/* 2^x by a polynomial of degree 5 on [-0.5, 0.5]; -inf gives exactly 0, nan stays nan. */
INLINE float exp2_one(float x) {
  x = x < -127.0f ? -127.0f : x;
  x = x > 126.0f ? 126.0f : x;
  float n = rintf(x);
  float f = x - n;
  float power = f * 0.001326472731307149f;
  power = (power + 0.009671512991189957f) * f;
  power = (power + 0.05550733581185341f) * f;
  power = (power + 0.24022242426872253f) * f;
  power = (power + 0.6931470036506653f) * f;
  power = power + 1.0f;
  int32_t bits = (int32_t)(n * 8388608.0f + 1065353216.0f);
  float two_to_n;
  memcpy(&two_to_n, &bits, 4);
  return power * two_to_n;
}

static void silu_times(float *restrict gate, const float *restrict up, long n) {
  for (long i = 0; i < n; i++) {
    float g = gate[i];
    gate[i] = g / (exp2_one(g * -1.4426950408889634f) + 1.0f) * up[i];
  }
}

static void rotate(float *x, long heads, long head_size, long rotated, const float *cos, const float *sin, float scale) {
  for (long h = 0; h < heads; h++, x += head_size) {
    for (long i = 0; i < rotated / 2; i++) {
      float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
    for (long i = 0; i < head_size; i++) x[i] *= scale;
  }
}
