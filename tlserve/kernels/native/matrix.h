/* A weight matrix as the kernels read it: panels of 16 output columns.

   outputs = N, inputs = K. Panel p holds columns 16 p .. 16 p + 15; lanes run over columns, so no sum crosses lanes. The number
   of panels is even, missing columns are zero.

   U4, U8: K is cut into blocks of 32. A panel is its blocks' quants, then its blocks' scales, then (has_min) its blocks' minima:
     quants  U4: [K/32][4 quads][16 columns][4]  low nibble: input 4 quad + i, high nibble: input 16 + 4 quad + i
             U8: [K/32][8 quads][16 columns][4]  input 4 quad + i
     scales  [K/32][16] f16;  minima [K/32][16] f16
   The weight is scale * (quant - offset) or, with minima, scale * quant + minimum.
   F16, BF16, F32: a panel is [K][16]. */
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
  long panels;
  size_t panel_bytes;
  uint8_t *data; /* 64-byte aligned */
} matrix;

static inline int is_quantised(const matrix *w) { return w->packing <= PACK_U8; }
static inline size_t quants_bytes(const matrix *w) { return w->packing == PACK_U4 ? 256 : 512; }
static inline const uint8_t *panel_of(const matrix *w, long panel) { return w->data + (size_t)panel * w->panel_bytes; }
static inline const uint16_t *panel_scales(const matrix *w, const uint8_t *panel) {
  return (const uint16_t *)(panel + (size_t)w->blocks * quants_bytes(w));
}
static inline const uint16_t *panel_minima(const matrix *w, const uint8_t *panel) {
  return panel_scales(w, panel) + w->blocks * PANEL;
}

/* Bytes of one row of `inputs` weights in the file's type `kind` (GGML's number), 0 if the type is not packed here. */
size_t matrix_row_bytes(int kind, long inputs);

/* Pack rows of GGUF's type `kind` into `w`, which gets its memory here. Returns 0, or -1 without memory. */
int matrix_pack(matrix *w, int kind, long outputs, long inputs, const uint8_t *rows);
void matrix_free(matrix *w);

#endif
