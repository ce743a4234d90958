/* Activations to 8 bits per block of 32, as the numpy reference does (tlserve/kernels/reference/linear.py).

   d = greatest |x| / 127, q = x * (127 / greatest), rounded to nearest even. A block whose greatest |x| is below 2^-100 is
   zero (its reciprocal would not be finite); one with a value that is not finite gets d = nan and q = 0. Magnitudes are compared as
   integers: in that order infinity and nan are the greatest. */

enum { PER_BLOCK = BLOCK / VL, PER_HALF = PER_BLOCK / 2 };

static void quantise_block(const float *restrict x, int8_t *restrict q, float *d, float *d_sum, int32_t *minus_sums) {
  vi magnitude = set1_int(0), total[2] = {set1_int(0), set1_int(0)};
  for (int v = 0; v < PER_BLOCK; v++) magnitude = larger(magnitude, (vi)load(x + v * VL) & 0x7fffffff);
  int32_t greatest = greatest_lane(magnitude);
  float most;
  memcpy(&most, &greatest, 4);
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

static void quantise(const float *x, quantised_rows *to, long row, long first, long count) {
  for (long b = first; b < first + count; b++) {
    long at = row * to->blocks + b;
    quantise_block(x + (b - first) * BLOCK, to->q + row * to->inputs + b * BLOCK, to->d + at, to->d_sum + at, to->minus_sums + 2 * at);
  }
}
