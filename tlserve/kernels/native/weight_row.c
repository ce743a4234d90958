/* One row of packed weights in f32, weight by weight: what an embedding is read with. Slow, and rare: a row for each token. */
#include "matrix.h"

#include <string.h>

static float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  float value;
  uint32_t bits = exponent == 31 ? 0x7f800000 | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
  memcpy(&value, &bits, 4);
  if (exponent == 0) value = (float)fraction * 0x1p-24f;
  return sign ? -value : value;
}

static float float_weight(const matrix *w, const uint8_t *pair, long at) {
  if (w->packing == PACK_F32) return ((const float *)pair)[at];
  uint16_t half = ((const uint16_t *)pair)[at];
  if (w->packing == PACK_F16) return half_to_float(half);
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static void quantised_weights(const matrix *w, const uint8_t *block, long n, float *out) {
  long panel = n % PAIR / PANEL, column = n % PANEL;
  const uint8_t *quants = block_quants(w, block, panel) + column * 4;
  float scale = half_to_float(block_scales(w, block, panel)[column]);
  float minimum = w->has_min ? half_to_float(block_minima(w, block, panel)[column]) : 0;
  for (int k = 0; k < BLOCK; k++) {
    int quad = k / 4, byte = quants[(w->packing == PACK_U4 ? quad % 4 : quad) * 64 + k % 4];
    if (w->packing == PACK_U4) byte = quad < 4 ? byte & 15 : byte >> 4;
    float value = (float)(byte - w->offset) * scale;
    out[k] = w->has_min ? value + minimum : value;
  }
}

void weight_row(const matrix *w, long n, float *out) {
  if (is_quantised(w))
    for (long b = 0; b < w->blocks; b++) quantised_weights(w, block_of(w, n / PAIR, b), n, out + b * BLOCK);
  else
    for (long k = 0; k < w->inputs; k++) out[k] = float_weight(w, pair_of(w, n / PAIR), k * PAIR + n % PAIR);
}
