/* From GGUF's rows to pairs of panels: a change of places, never of values.

   Source: ggml-common.h and ggml-quants.c of llama.cpp (block_q4_0 .. block_q8_0). In a block of 32, byte j of Q4 and Q5 holds
   weight j in its low nibble and weight j + 16 in its high one; bit j of Q5's `qh` is the fifth bit of weight j. */
#include "matrix.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_F32 = 0, KIND_F16 = 1, KIND_Q4_0 = 2, KIND_Q4_1 = 3, KIND_Q5_0 = 6, KIND_Q5_1 = 7, KIND_Q8_0 = 8, KIND_BF16 = 30 };

typedef struct {
  int kind;
  enum packing packing;
  int has_min, offset;
  int values, bytes; /* of one block in the file */
} format;

static const format FORMATS[] = {
    {KIND_Q4_0, PACK_U4, 0, 8, 32, 18},  {KIND_Q4_1, PACK_U4, 1, 0, 32, 20}, {KIND_Q5_0, PACK_U8, 0, 16, 32, 22},
    {KIND_Q5_1, PACK_U8, 1, 0, 32, 24},  {KIND_Q8_0, PACK_U8, 0, 128, 32, 34}, {KIND_F16, PACK_F16, 0, 0, 1, 2},
    {KIND_BF16, PACK_BF16, 0, 0, 1, 2},  {KIND_F32, PACK_F32, 0, 0, 1, 4},
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

/* Put 4 bytes for each of `quads` quads into column `column` of a block. */
static void put_quads(uint8_t *block, int column, const uint8_t *bytes, int quads) {
  for (int quad = 0; quad < quads; quad++) memcpy(block + quad * PANEL * 4 + column * 4, bytes + quad * 4, 4);
}

static void put_q5(uint8_t *block, int column, const uint8_t *high_bits, const uint8_t *nibbles) {
  uint8_t bytes[BLOCK];
  uint32_t high;
  memcpy(&high, high_bits, 4);
  for (int j = 0; j < 16; j++) {
    bytes[j] = (uint8_t)((nibbles[j] & 15) | ((high >> j & 1) << 4));
    bytes[j + 16] = (uint8_t)(nibbles[j] >> 4 | ((high >> (j + 16) & 1) << 4));
  }
  put_quads(block, column, bytes, 8);
}

static void put_q8(uint8_t *block, int column, const uint8_t *quants) {
  uint8_t bytes[BLOCK];
  for (int j = 0; j < BLOCK; j++) bytes[j] = quants[j] ^ 0x80;
  put_quads(block, column, bytes, 8);
}

/* Pack one block of the file into column `column` of a panel's block. */
static void put_block(const matrix *w, int kind, uint8_t *block, int column, const uint8_t *from) {
  const uint8_t *quants = from + (w->has_min ? 4 : 2);
  if (w->packing == PACK_U4)
    put_quads(block, column, quants, 4);
  else if (kind == KIND_Q8_0)
    put_q8(block, column, quants);
  else
    put_q5(block, column, quants, quants + 4);
}

static void pack_quantised_row(matrix *w, const format *f, long n, const uint8_t *row) {
  long panel = n % PAIR / PANEL, column = n % PANEL;
  for (long b = 0; b < w->blocks; b++, row += f->bytes) {
    uint8_t *block = (uint8_t *)block_of(w, n / PAIR, b);
    put_block(w, f->kind, (uint8_t *)block_quants(w, block, panel), (int)column, row);
    memcpy((uint16_t *)block_scales(w, block, panel) + column, row, 2);
    if (w->has_min) memcpy((uint16_t *)block_minima(w, block, panel) + column, row + 2, 2);
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
  w->block_bytes = is_quantised(w) ? 2 * quants_bytes(w) + PAIR * 2 * (w->has_min ? 2 : 1) : 0;
  w->pair_bytes = is_quantised(w) ? (size_t)w->blocks * w->block_bytes : (size_t)w->inputs * PAIR * (size_t)f->bytes;
}

int matrix_pack(matrix *w, int kind, long outputs, long inputs, const uint8_t *rows) {
  const format *f = find_format(kind);
  *w = (matrix){.packing = f->packing, .has_min = f->has_min, .offset = f->offset, .outputs = outputs, .inputs = inputs};
  set_sizes(w, f);
  w->data = aligned_alloc(64, w->pair_bytes * (size_t)w->pairs);
  if (!w->data) return -1;
  /* missing columns are zero: whatever their quants, their scales are 0 */
  size_t last = w->pair_bytes * (size_t)(w->pairs - 1), row_bytes = matrix_row_bytes(kind, inputs);
  if (outputs % PAIR) memset(w->data + last, 0, w->pair_bytes);
  for (long n = 0; n < outputs; n++)
    (is_quantised(w) ? pack_quantised_row : pack_float_row)(w, f, n, rows + (size_t)n * row_bytes);
  return 0;
}

void matrix_free(matrix *w) {
  free(w->data);
  w->data = NULL;
}
