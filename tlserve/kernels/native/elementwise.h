/* Norms, exponential, activations, rotation: plain loops, each operation rounded by itself (the compiler may use lanes, never reorder).

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

static void layer_norm_row(const float *restrict x, const float *restrict weight, const float *restrict bias, float epsilon, long n,
                           float *restrict out, float *restrict scratch) {
  memcpy(scratch, x, (size_t)n * sizeof(float));
  float mean = sum_in_halves(scratch, n) / (float)n;
  for (long i = 0; i < n; i++) out[i] = x[i] - mean;
  for (long i = 0; i < n; i++) scratch[i] = out[i] * out[i];
  float scale = 1.0f / sqrtf(sum_in_halves(scratch, n) / (float)n + epsilon);
  for (long i = 0; i < n; i++) out[i] = out[i] * scale * weight[i];
  for (long i = 0; bias && i < n; i++) out[i] += bias[i];
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

/* NAME(x, up, n): x = FUNCTION(x) * up, or FUNCTION(x) where `up` is NULL */
#define ACTIVATION(NAME, FUNCTION)                                            \
  static void NAME(float *restrict x, const float *restrict up, long n) {     \
    if (up)                                                                   \
      for (long i = 0; i < n; i++) x[i] = FUNCTION(x[i]) * up[i];             \
    else                                                                      \
      for (long i = 0; i < n; i++) x[i] = FUNCTION(x[i]);                     \
  }

INLINE float silu_one(float x) { return x / (exp2_one(x * -1.4426950408889634f) + 1.0f); }

INLINE float gelu_tanh_one(float x) { return x / (exp2_one((x * x * 0.044715f + 1.0f) * x * -2.302208198f) + 1.0f); }

/* max(x, 0) less a polynomial of degree 14 in |x|, cut to 5.5; nan stays nan. */
INLINE vf gelu_erf_lanes(vf x) {
  static const float TAIL[] = {0.03586279973387718f, -0.0397605337202549f, -0.15407727658748627f, 0.23637793958187103f,
                               0.18500642478466034f, -0.5487241148948669f, 0.1922897845506668f,   0.4612792730331421f,
                               -0.6387202739715576f, 0.26004934310913086f, 0.18024154007434845f,  -0.30864328145980835f,
                               0.1912022829055786f,  -0.0605790801346302f, 0.008194840513169765f};
  vf s = (vf)((vi)x & 0x7fffffff), zero = set1(0);
  vi far = (vi)(s > 5.5f), positive = (vi)(x > 0.0f);
  s = (vf)(((vi)set1(5.5f) & far) | ((vi)s & ~far)) * (2.0f / 5.5f) - 1.0f;
  vf tail = s * TAIL[0];
  UNROLL for (int i = 1; i < 14; i++) tail = (tail + TAIL[i]) * s;
  return (vf)(((vi)x & positive) | ((vi)zero & ~positive)) - (tail + TAIL[14]);
}

/* The compiler does not find the lanes of this one. */
static void gelu_erf(float *restrict x, const float *restrict up, long n) {
  for (long i = 0; i < n; i += VL) {
    float here[VL] = {0};
    long lanes = n - i < VL ? n - i : VL;
    vf y = gelu_erf_lanes(lanes == VL ? load(x + i) : load(memcpy(here, x + i, (size_t)lanes * sizeof(float))));
    store(here, y);
    for (long j = 0; up && j < lanes; j++) here[j] *= up[i + j];
    memcpy(x + i, here, (size_t)lanes * sizeof(float));
  }
}

INLINE float relu2_one(float x) {
  x = x < 0.0f ? 0.0f : x;
  return x * x;
}

ACTIVATION(silu, silu_one)
ACTIVATION(gelu_tanh, gelu_tanh_one)
ACTIVATION(relu2, relu2_one)

/* x = g * sigmoid(1.702 g) * (u + 1), with g = min(x, 7) and u = up cut to [-7, 7]; nan stays nan */
static void clamped_swiglu(float *restrict x, const float *restrict up, long n) {
  for (long i = 0; i < n; i++) {
    float g = x[i] > 7.0f ? 7.0f : x[i], u = up[i] > 7.0f ? 7.0f : up[i];
    u = u < -7.0f ? -7.0f : u;
    x[i] = g / (exp2_one(g * (1.702f * -1.4426950408889634f)) + 1.0f) * (u + 1.0f);
  }
}

static void sigmoid_row(float *x, long n) {
  for (long i = 0; i < n; i++) x[i] = 1.0f / (exp2_one(x[i] * -1.4426950408889634f) + 1.0f);
}

static void softmax_row(float *restrict x, long n, float *restrict scratch) {
  float most = x[0];
  for (long i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
  for (long i = 0; i < n; i++) x[i] = exp2_one((x[i] - most) * 1.4426950408889634f);
  memcpy(scratch, x, (size_t)n * sizeof(float));
  float sum = sum_in_halves(scratch, n);
  for (long i = 0; i < n; i++) x[i] /= sum;
}

static void soft_cap(float *x, float cap, long n) {
  for (long i = 0; i < n; i++) {
    float e = exp2_one(fabsf(x[i]) / cap * -2.8853900817779268f);
    x[i] = copysignf((1.0f - e) / (1.0f + e) * cap, x[i]);
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
