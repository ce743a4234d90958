/* Activations to integers per block of 32, as the numpy reference does (tlserve/kernels/reference/linear.py).

   int8: d = greatest |x| / 127, q = x * (127 / greatest), rounded to nearest even.
   int12: d = the least power of two with greatest |x| <= 2039 * d, q = x / d, rounded to nearest even.
   A block whose greatest |x| is below 2^-100 is zero (the reciprocal of int8 would not be finite); one with a value that is not finite,
   or in int12 above 2039 * 2^104, gets d = nan and q = 0. Magnitudes are compared as integers: in that order infinity and nan are the
   greatest.

   The int16 of int12 lie as gemm_int12.h reads them. With a = input 4 quad + i and b = input 16 + 4 quad + i, the eight numbers of a
   quad are a0 a2, b0 b2, a1 a3, b1 b3. */

enum { PER_BLOCK = BLOCK / VL, PER_HALF = PER_BLOCK / 2 };

/* The bits of the greatest |x| of a block. */
INLINE int32_t greatest_magnitude(const float *x) {
  vi magnitude = set1_int(0);
  for (int v = 0; v < PER_BLOCK; v++) magnitude = larger(magnitude, (vi)load(x + v * VL) & 0x7fffffff);
  return greatest_lane(magnitude);
}

INLINE float float_of(int32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static void quantise_block_int8(const float *restrict x, int8_t *restrict q, float *d, float *d_sum, int32_t *minus_sums) {
  vi total[2] = {set1_int(0), set1_int(0)};
  int32_t greatest = greatest_magnitude(x);
  float most = float_of(greatest);
  int finite = greatest < 0x7f800000, used = finite && most >= 0x1p-100f;
  vf inverse = set1(used ? 127.0f / most : 0.0f);
  vi mask = set1_int(used ? -1 : 0); /* a mask, because nan * 0 is not an integer */
  for (int v = 0; v < PER_BLOCK; v++) {
    vi rounded = round_to_int(load(x + v * VL) * inverse) & mask;
    store_bytes(q + v * VL, rounded);
    total[v / PER_HALF] += rounded;
  }
  for (int half = 0; half < 2; half++) minus_sums[half] = -sum_lanes(total[half]);
  *d = used ? most / 127.0f : finite ? 0.0f : NAN;
  *d_sum = *d * (float)-(minus_sums[0] + minus_sums[1]);
}

static void quantise_int8(const float *x, quantised_rows *to, long row, long first, long count) {
  for (long b = first; b < first + count; b++) {
    long at = row * to->blocks + b;
    quantise_block_int8(x + (b - first) * BLOCK, to->q + row * to->inputs + b * BLOCK, to->d + at, to->d_sum + at, to->minus_sums + 2 * at);
  }
}

/* Bits: of 2^-100, of 2039 * 2^104, and what carries a mantissa above that of 2039 into the exponent. */
enum { LEAST_USED = 27 << 23, MOST_INT12 = 241 << 23 | 1015 << 13, CARRY_INT12 = (1 << 23) - (1015 << 13) - 1 };

static void quantise_block_int12(const float *restrict x, int8_t *restrict words, float *d, float *d_sum, int32_t *minus_sums,
                                 int32_t *start) {
  int32_t greatest = greatest_magnitude(x), exponent = (int32_t)(((uint32_t)greatest + CARRY_INT12) >> 23);
  int used = greatest >= LEAST_USED && greatest <= MOST_INT12;
  vf inverse = set1(used ? float_of((264 - exponent) << 23) : 0.0f);
  vi mask = set1_int(used ? -1 : 0), total[2] = {set1_int(0), set1_int(0)};
  for (int v = 0; v < PER_HALF; v++) {
    vi low = round_to_int(load(x + v * VL) * inverse) & mask, high = round_to_int(load(x + 16 + v * VL) * inverse) & mask;
    store_ints(words + v * VL * 4, interleave(word_pairs(low), word_pairs(high)));
    total[0] += low;
    total[1] += high;
  }
  for (int half = 0; half < 2; half++) minus_sums[half] = -sum_lanes(total[half]);
  *d = used ? float_of((exponent - 10) << 23) : greatest < LEAST_USED ? 0.0f : NAN;
  *d_sum = *d * (float)-(minus_sums[0] + minus_sums[1]);
  float one = 0x1.8p23f * *d;
  memcpy(start, &one, 4);
}

static void quantise_int12(const float *x, quantised_rows *to, long row, long first, long count) {
  for (long b = first; b < first + count; b++) {
    long at = row * to->blocks + b;
    quantise_block_int12(x + (b - first) * BLOCK, to->q + (row * to->inputs + b * BLOCK) * 2, to->d + at, to->d_sum + at,
                         to->minus_sums + 2 * at, to->starts + at);
  }
}
