/* One row of packed weights in f32, weight by weight, to read an embedding. Slow, and rare: a row for each token. */
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

/* scales[half] of a column's block, and its minimum (0 where there is none) */
static void block_scales(const matrix *w, block_parts b, long column, float *scales, float *minimum) {
  const uint16_t *halves = (const uint16_t *)(has_super(w->scaling) ? b.units : b.scales);
  const uint8_t *parts = b.scales + column;
  float scale = half_to_float(halves[column]);
  *minimum = has_minimum(w->scaling) ? half_to_float(halves[PAIR + column]) : 0;
  scales[0] = scales[1] = scale;
  if (w->scaling == SCALE_SUPER_MIN) {
    scales[0] = scales[1] = scale * (float)parts[0];
    *minimum *= (float)parts[PAIR];
  }
  for (int half = 0; w->scaling == SCALE_SUPER_HALVES && half < 2; half++) scales[half] = scale * (float)(int8_t)parts[half * PAIR];
}

/* Input k of the column whose quants begin at `quants`; see matrix.h. */
static int quant_of(const matrix *w, const uint8_t *quants, int k) {
  int quad = k / 4, i = k % 4;
  if (w->packing == PACK_U8) return quants[quad * 64 + i];
  int nibble = quants[quad % 4 * 64 + i] >> quad / 4 * 4 & 15;
  if (w->packing == PACK_M4) return (const uint8_t[]){MXFP4_QUANTS}[nibble];
  if (w->packing == PACK_U5) return nibble | (quants[256 + i] >> quad & 1) << 4;
  if (w->packing == PACK_U6) return nibble | (quants[256 + quad / 4 * 64 + i] >> quad % 4 * 2 & 3) << 4;
  return nibble;
}

static void quantised_weights(const matrix *w, block_parts b, long n, float *out) {
  long column = n % PAIR;
  const uint8_t *quants = b.quants + (size_t)(column / PANEL) * panel_bytes(w->packing) + column % PANEL * 4;
  float scales[2], minimum;
  block_scales(w, b, column, scales, &minimum);
  for (int k = 0; k < BLOCK; k++) {
    float value = (float)(quant_of(w, quants, k) - w->offset) * scales[k / 16];
    out[k] = has_minimum(w->scaling) ? value + minimum : value;
  }
}

void weight_row(const matrix *w, long n, float *out) {
  if (is_quantised(w))
    for (long b = 0; b < w->blocks; b++) quantised_weights(w, block_of(w, n / PAIR, b), n, out + b * BLOCK);
  else
    for (long k = 0; k < w->inputs; k++) out[k] = float_weight(w, pair_of(w, n / PAIR), k * PAIR + n % PAIR);
}
