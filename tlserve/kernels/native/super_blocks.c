/* The layout of Q3_K, Q4_K, Q5_K and Q6_K in a file: 256 weights with one or two scales in half precision, each times a small integer.

   Source: ggml-common.h and ggml-quants.c of llama.cpp (block_q3_K .. block_q6_K, get_scale_min_k4). The minimum of Q4_K and Q5_K is
   subtracted there; here its unit is negated, which changes the sign bit alone. */
#include "super_blocks.h"

#include <string.h>

/* Eight pairs of 6 bits (scale, minimum) in 12 bytes. */
static void take_scale_min(const uint8_t *packed, super_block *to) {
  for (int b = 0; b < SUPER; b++) {
    uint8_t *parts = to->parts[b];
    parts[0] = b < 4 ? packed[b] & 63 : (uint8_t)((packed[b + 4] & 15) | packed[b - 4] >> 6 << 4);
    parts[1] = b < 4 ? packed[b + 4] & 63 : (uint8_t)(packed[b + 4] >> 4 | packed[b] >> 6 << 4);
  }
}

static void take_units_min(const uint8_t *from, super_block *to) {
  memcpy(to->units, from, 4);
  to->units[1] ^= 0x8000;
}

/* Two blocks in the low and the high nibbles of 32 bytes. */
static void take_nibbles(const uint8_t *nibbles, super_block *to) {
  for (int b = 0; b < SUPER; b++)
    for (int j = 0; j < BLOCK; j++) to->quants[b][j] = nibbles[b / 2 * BLOCK + j] >> b % 2 * 4 & 15;
}

/* unit, minimum unit, [12] scales and minima, [128] nibbles */
static void take_q4_k(const uint8_t *from, super_block *to) {
  take_units_min(from, to);
  take_scale_min(from + 4, to);
  take_nibbles(from + 16, to);
}

/* unit, minimum unit, [12] scales and minima, [32] fifth bits (bit b: of block b), [128] nibbles */
static void take_q5_k(const uint8_t *from, super_block *to) {
  take_units_min(from, to);
  take_scale_min(from + 4, to);
  take_nibbles(from + 48, to);
  for (int b = 0; b < SUPER; b++)
    for (int j = 0; j < BLOCK; j++) to->quants[b][j] |= (uint8_t)((from[16 + j] >> b & 1) << 4);
}

/* [128] low nibbles, [64] high pairs of bits, [16] signed scales of 16 weights each, unit. In each half of 128 weights, blocks 0 and 1
   are low nibbles of 64 bytes, 2 and 3 the high ones. */
static void take_q6_k(const uint8_t *from, super_block *to) {
  for (int b = 0; b < SUPER; b++)
    for (int j = 0; j < BLOCK; j++) {
      int half = b / 4, low = from[half * 64 + b % 2 * BLOCK + j] >> b % 4 / 2 * 4 & 15;
      to->quants[b][j] = (uint8_t)(low | (from[128 + half * BLOCK + j] >> b % 4 * 2 & 3) << 4);
    }
  memcpy(to->parts, from + 192, 16);
  memcpy(to->units, from + 208, 2);
}

/* [32] third bits (bit b: of block b), [64] low pairs of bits, [12] scales of 16 weights each (6 bits, 32 more than the scale), unit */
static void take_q3_k(const uint8_t *from, super_block *to) {
  const uint8_t *packed = from + 96;
  for (int b = 0; b < SUPER; b++)
    for (int j = 0; j < BLOCK; j++)
      to->quants[b][j] = (uint8_t)((from[32 + b / 4 * BLOCK + j] >> b % 4 * 2 & 3) | (from[j] >> b & 1) << 2);
  for (int i = 0; i < 2 * SUPER; i++) {
    int low = packed[i % 8] >> i / 8 * 4 & 15, high = packed[8 + i % 4] >> i / 4 * 2 & 3;
    to->parts[i / 2][i % 2] = (uint8_t)((low | high << 4) - 32);
  }
  memcpy(to->units, from + 108, 2);
}

void take_apart(int kind, const uint8_t *from, super_block *to) {
  switch (kind) {
    case KIND_Q3_K: take_q3_k(from, to); break;
    case KIND_Q4_K: take_q4_k(from, to); break;
    case KIND_Q5_K: take_q5_k(from, to); break;
    case KIND_Q6_K: take_q6_k(from, to); break;
  }
}
