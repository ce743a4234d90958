/* Activations to 8 bits per block of 32, as the numpy reference does (tlserve/kernels/reference/int8_linear.py).

   d = greatest |x| / 127, q = x * (127 / greatest), rounded to nearest even. A block whose greatest |x| is below 2^-100 is
   zero (its reciprocal would not be finite); one with a value that is not finite gets d = nan and q = 0. Magnitudes are compared as
   integers: in that order infinity and nan come last. */

static void quantise_block(const float *restrict x, int8_t *restrict q, float *d, float *d_sum, int32_t *minus_sum) {
  int32_t bits[BLOCK], rounded[BLOCK], greatest = 0, sum = 0;
  memcpy(bits, x, sizeof bits);
  for (int i = 0; i < BLOCK; i++) {
    int32_t magnitude = bits[i] & 0x7fffffff;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  float most;
  memcpy(&most, &greatest, 4);
  int finite = greatest < 0x7f800000;
  float inverse = finite && most >= 0x1p-100f ? 127.0f / most : 0.0f;
  if (inverse != 0.0f)
    for (int i = 0; i < BLOCK; i++) rounded[i] = (int32_t)rintf(x[i] * inverse);
  else
    memset(rounded, 0, sizeof rounded);
  for (int i = 0; i < BLOCK; i++) sum += rounded[i];
  for (int i = 0; i < BLOCK; i++) q[i] = (int8_t)rounded[i];
  *d = inverse != 0.0f ? most / 127.0f : finite ? 0.0f : NAN;
  *d_sum = *d * (float)sum;
  *minus_sum = -sum;
}

static void quantise(const float *x, quantised_rows *to, long row, long first, long count) {
  for (long b = first; b < first + count; b++) {
    long at = row * to->blocks + b;
    quantise_block(x + b * BLOCK, to->q + row * to->inputs + b * BLOCK, to->d + at, to->d_sum + at, to->minus_sum + at);
  }
}
