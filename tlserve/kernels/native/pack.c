/* From GGUF's rows to pairs of panels: values move, and never change.

   Source: ggml-common.h and ggml-quants.c of llama.cpp (block_q4_0 .. block_q8_0). In a block of 32, byte j of Q4 and Q5 holds
   weight j in its low nibble and weight j + 16 in its high one; bit j of Q5's `qh` is the fifth bit of weight j. */
#include "matrix.h"
#include "super_blocks.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_F32 = 0, KIND_F16 = 1, KIND_Q4_0 = 2, KIND_Q4_1 = 3, KIND_Q5_0 = 6, KIND_Q5_1 = 7, KIND_Q8_0 = 8, KIND_BF16 = 30, KIND_MXFP4 = 39 };

typedef struct {
  int kind;
  enum packing packing;
  enum scaling scaling;
  int offset;
  int values, bytes; /* of one block (or super-block) in the file */
} format;

static const format FORMATS[] = {
    {KIND_Q4_0, PACK_U4, SCALE_PLAIN, 8, 32, 18},
    {KIND_Q4_1, PACK_U4, SCALE_MIN, 0, 32, 20},
    {KIND_Q5_0, PACK_U5, SCALE_PLAIN, 16, 32, 22},
    {KIND_Q5_1, PACK_U5, SCALE_MIN, 0, 32, 24},
    {KIND_Q8_0, PACK_U8, SCALE_PLAIN, 128, 32, 34},
    {KIND_MXFP4, PACK_M4, SCALE_PLAIN, 12, 32, 17},
    {KIND_Q3_K, PACK_U6, SCALE_SUPER_HALVES, 4, 256, 110},
    {KIND_Q4_K, PACK_U4, SCALE_SUPER_MIN, 0, 256, 144},
    {KIND_Q5_K, PACK_U5, SCALE_SUPER_MIN, 0, 256, 176},
    {KIND_Q6_K, PACK_U6, SCALE_SUPER_HALVES, 32, 256, 210},
    {KIND_F16, PACK_F16, SCALE_PLAIN, 0, 1, 2},
    {KIND_BF16, PACK_BF16, SCALE_PLAIN, 0, 1, 2},
    {KIND_F32, PACK_F32, SCALE_PLAIN, 0, 1, 4},
};

static const format *find_format(int kind) {
  for (size_t i = 0; i < sizeof FORMATS / sizeof FORMATS[0]; i++)
    if (FORMATS[i].kind == kind) return &FORMATS[i];
  return NULL;
}

size_t matrix_row_bytes(int kind, long inputs) {
  const format *f = find_format(kind);
  return f && inputs > 0 && inputs % f->values == 0 ? (size_t)(inputs / f->values) * (size_t)f->bytes : 0;
}

/* MXFP4: a byte e, then nibbles as in Q4. The scale is 2^(e - 128), as a float of 4 bits is half of what MXFP4_QUANTS has. A block whose
   numbers are all 0 or -0 has the scale 0. */
enum { MXFP4_BYTES = 17, LEAST_MXFP4 = 104, MOST_MXFP4 = 143 };

static int is_zero_mxfp4(const uint8_t *block) {
  int bits = 0;
  for (int i = 1; i < MXFP4_BYTES; i++) bits |= block[i] & 0x77;
  return !bits;
}

static uint16_t mxfp4_scale(const uint8_t *block) {
  if (is_zero_mxfp4(block)) return 0;
  int exponent = block[0] - 128;
  return (uint16_t)(exponent >= -14 ? (exponent + 15) << 10 : 1 << (exponent + 24)); /* below 2^-14: subnormal */
}

int scales_fit(int kind, size_t bytes, const uint8_t *rows) {
  for (size_t at = 0; kind == KIND_MXFP4 && at < bytes; at += MXFP4_BYTES)
    if ((rows[at] < LEAST_MXFP4 || rows[at] > MOST_MXFP4) && !is_zero_mxfp4(rows + at)) return 0;
  return 1;
}

/* Put 4 bytes for each of `quads` quads into column `column` of a panel's block. */
static void put_quads(uint8_t *block, int column, const uint8_t *bytes, int quads) {
  for (int quad = 0; quad < quads; quad++) memcpy(block + quad * PANEL * 4 + column * 4, bytes + quad * 4, 4);
}

/* Put the 32 quants of one block into column `column` of a panel's block. */
static void put_values(const matrix *w, uint8_t *block, int column, const uint8_t *values) {
  uint8_t nibbles[BLOCK / 2], planes[2][4] = {{0}};
  for (int j = 0; j < BLOCK / 2; j++) nibbles[j] = (uint8_t)((values[j] & 15) | values[j + BLOCK / 2] << 4);
  for (int j = 0; j < BLOCK; j++) {
    if (w->packing == PACK_U5) planes[0][j % 4] |= (uint8_t)((values[j] >> 4) << j / 4);
    if (w->packing == PACK_U6) planes[j / 16][j % 4] |= (uint8_t)((values[j] >> 4) << j % 16 / 4 * 2);
  }
  if (w->packing == PACK_U8) {
    put_quads(block, column, values, 8);
    return;
  }
  put_quads(block, column, nibbles, 4);
  put_quads(block + 256, column, planes[0], (int)(panel_bytes(w->packing) - 256) / 64);
}

static void put_q5(const matrix *w, uint8_t *block, int column, const uint8_t *high_bits, const uint8_t *nibbles) {
  uint8_t values[BLOCK];
  uint32_t high;
  memcpy(&high, high_bits, 4);
  for (int j = 0; j < 16; j++) {
    values[j] = (uint8_t)((nibbles[j] & 15) | ((high >> j & 1) << 4));
    values[j + 16] = (uint8_t)(nibbles[j] >> 4 | ((high >> (j + 16) & 1) << 4));
  }
  put_values(w, block, column, values);
}

static void put_q8(const matrix *w, uint8_t *block, int column, const uint8_t *quants) {
  uint8_t values[BLOCK];
  for (int j = 0; j < BLOCK; j++) values[j] = quants[j] ^ 0x80;
  put_values(w, block, column, values);
}

/* Pack one block of the file into column `column` of a panel's block. */
static void put_block(const matrix *w, uint8_t *block, int column, const uint8_t *from) {
  const uint8_t *quants = from + (w->packing == PACK_M4 ? 1 : w->scaling == SCALE_MIN ? 4 : 2);
  if (w->packing == PACK_U4 || w->packing == PACK_M4)
    put_quads(block, column, quants, 4);
  else if (w->packing == PACK_U8)
    put_q8(w, block, column, quants);
  else
    put_q5(w, block, column, quants, quants + 4);
}

static void pack_quantised_row(matrix *w, const format *f, long n, const uint8_t *row) {
  long panel = n % PAIR / PANEL, column = n % PANEL;
  for (long b = 0; b < w->blocks; b++, row += f->bytes) {
    block_parts to = block_of(w, n / PAIR, b);
    put_block(w, (uint8_t *)to.quants + (size_t)panel * panel_bytes(w->packing), (int)column, row);
    uint16_t scale;
    if (w->packing == PACK_M4)
      scale = mxfp4_scale(row);
    else
      memcpy(&scale, row, 2);
    ((uint16_t *)to.scales)[n % PAIR] = scale;
    if (w->scaling == SCALE_MIN) memcpy((uint16_t *)to.scales + PAIR + n % PAIR, row + 2, 2);
  }
}

static void pack_super_row(matrix *w, const format *f, long n, const uint8_t *row) {
  long panel = n % PAIR / PANEL, column = n % PANEL;
  super_block from;
  for (long b = 0; b < w->blocks; b++) {
    block_parts to = block_of(w, n / PAIR, b);
    uint16_t *units = (uint16_t *)to.units + n % PAIR;
    if (b % SUPER == 0) take_apart(f->kind, row + b / SUPER * f->bytes, &from);
    put_values(w, (uint8_t *)to.quants + (size_t)panel * panel_bytes(w->packing), (int)column, from.quants[b % SUPER]);
    for (int i = 0; i < 2; i++) ((uint8_t *)to.scales)[i * PAIR + n % PAIR] = from.parts[b % SUPER][i];
    units[0] = from.units[0];
    if (w->scaling == SCALE_SUPER_MIN) units[PAIR] = from.units[1];
  }
}

static void pack_float_row(matrix *w, const format *f, long n, const uint8_t *row) {
  size_t size = (size_t)f->bytes;
  uint8_t *pair = (uint8_t *)pair_of(w, n / PAIR);
  for (long k = 0; k < w->inputs; k++) memcpy(pair + (size_t)(k * PAIR + n % PAIR) * size, row + (size_t)k * size, size);
}

static void set_sizes(matrix *w, const format *f) {
  w->blocks = w->inputs / BLOCK;
  w->pairs = (w->outputs + PAIR - 1) / PAIR;
  w->pair_bytes = is_quantised(w) ? (size_t)w->blocks * block_bytes(w->packing, w->scaling) + (size_t)(w->blocks / SUPER) * units_bytes(w->scaling)
                                  : (size_t)w->inputs * PAIR * (size_t)f->bytes;
}

int matrix_pack(matrix *w, int kind, long outputs, long inputs, const uint8_t *rows) {
  const format *f = find_format(kind);
  *w = (matrix){.packing = f->packing, .scaling = f->scaling, .offset = f->offset, .outputs = outputs, .inputs = inputs};
  set_sizes(w, f);
  w->data = aligned_alloc(64, w->pair_bytes * (size_t)w->pairs);
  if (!w->data) return -1;
  /* missing columns are zero: their scales are 0, so their quants do not matter */
  size_t last = w->pair_bytes * (size_t)(w->pairs - 1), row_bytes = matrix_row_bytes(kind, inputs);
  if (outputs % PAIR) memset(w->data + last, 0, w->pair_bytes);
  for (long n = 0; n < outputs; n++)
    (!is_quantised(w) ? pack_float_row : has_super(w->scaling) ? pack_super_row : pack_quantised_row)(w, f, n, rows + (size_t)n * row_bytes);
  return 0;
}

void matrix_free(matrix *w) {
  free(w->data);
  w->data = NULL;
}
