/* A weight matrix as the kernels read it: pairs of panels of 16 output columns.

   outputs = N, inputs = K. Pair p holds columns 32 p .. 32 p + 31; lanes run over columns, so no sum crosses lanes. Missing columns
   are zero. A pair is one run of memory, read from its beginning to its end: the processor can see what comes next.

   U4, U8: K is cut into blocks of 32. A block of a pair is, for both panels one after the other,
     quants  U4: [4 quads][16 columns][4]  low nibble: input 4 quad + i, high nibble: input 16 + 4 quad + i
             U8: [8 quads][16 columns][4]  input 4 quad + i
     then scales [2][16] f16, then (has_min) minima [2][16] f16.
   The weight is scale * (quant - offset) or, with minima, scale * quant + minimum.
   F16, BF16, F32: a pair is [K][32]. */
#ifndef TL_MATRIX_H
#define TL_MATRIX_H

#include <stddef.h>
#include <stdint.h>

enum { PANEL = 16, PAIR = 32, BLOCK = 32 };
enum packing { PACK_U4, PACK_U8, PACK_F16, PACK_BF16, PACK_F32 };

typedef struct {
  enum packing packing;
  int has_min;
  int offset;
  long outputs, inputs;
  long blocks; /* K / 32 */
  long pairs;
  size_t block_bytes, pair_bytes; /* multiples of 64 */
  uint8_t *data;                  /* 64-byte aligned */
} matrix;

static inline int is_quantised(const matrix *w) { return w->packing <= PACK_U8; }
static inline size_t quants_bytes(const matrix *w) { return w->packing == PACK_U4 ? 256 : 512; }
static inline const uint8_t *pair_of(const matrix *w, long pair) { return w->data + (size_t)pair * w->pair_bytes; }

/* Of one block: the quants, scales and minima of one of its two panels. */
static inline const uint8_t *block_of(const matrix *w, long pair, long block) { return pair_of(w, pair) + (size_t)block * w->block_bytes; }
static inline const uint8_t *block_quants(const matrix *w, const uint8_t *block, long panel) { return block + (size_t)panel * quants_bytes(w); }
static inline const uint16_t *block_scales(const matrix *w, const uint8_t *block, long panel) {
  return (const uint16_t *)(block + 2 * quants_bytes(w)) + panel * PANEL;
}
static inline const uint16_t *block_minima(const matrix *w, const uint8_t *block, long panel) {
  return block_scales(w, block, panel) + PAIR;
}

/* Bytes of one row of `inputs` weights in the file's type `kind` (GGML's number), 0 if the type is not packed here. */
size_t matrix_row_bytes(int kind, long inputs);

/* Pack rows of GGUF's type `kind` into `w`, which gets its memory here. Returns 0, or -1 without memory. */
int matrix_pack(matrix *w, int kind, long outputs, long inputs, const uint8_t *rows);
void matrix_free(matrix *w);

/* Row n, in f32: out[inputs]. */
void weight_row(const matrix *w, long n, float *out);

#endif
