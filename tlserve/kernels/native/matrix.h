/* A weight matrix as the kernels read it: pairs of panels of 16 output columns.

   outputs = N, inputs = K. Pair p holds columns 32 p .. 32 p + 31; lanes run over columns, so no sum crosses lanes. Missing columns
   are zero. A pair is contiguous and is read from its beginning to its end, so the processor can prefetch it.

   U4, U5, U6, U8, M4: K is cut into blocks of 32. A block of a pair is, for both panels one after the other,
     quants  U4, U5, U6, M4: [4 quads][16 columns][4]  low nibble: input 4 quad + i, high nibble: input 16 + 4 quad + i
             U5:   then  [16 columns][4]           bit q: the fifth bit of input 4 q + i
             U6:   then  [2][16 columns][4]        bits 2 q and 2 q + 1 of number h: the upper bits of input 16 h + 4 q + i
             U8:         [8 quads][16 columns][4]  input 4 quad + i
             M4:   a nibble is the place of the quant in MXFP4_QUANTS
   and then the numbers that turn quants into weights, by `scaling`:
     PLAIN         scales [2][16] f16                                    weight = scale * (quant - offset)
     MIN           scales [2][16] f16, minima [2][16] f16                weight = scale * quant + minimum
     SUPER_MIN     parts [2][16] u8, minimum parts [2][16] u8            as MIN: scale = unit * part, minimum = minimum unit * its part
     SUPER_HALVES  parts of inputs 0 .. 15 [2][16] i8, of 16 .. 31 too   as PLAIN: scale = unit * part, by the half
   The last two have super-blocks of 8 blocks, preceded by their units [2][16] f16 and (SUPER_MIN) minimum units [2][16] f16.
   Products of units and parts, and of those with quants, are exact in f32: 11 bits, at most 7, at most 6.
   F16, BF16, F32: a pair is [K][32]. */
#ifndef TL_MATRIX_H
#define TL_MATRIX_H

#include <stddef.h>
#include <stdint.h>

enum { PANEL = 16, PAIR = 32, BLOCK = 32, SUPER = 8, UNITS_BYTES = PAIR * 2 };
enum packing { PACK_U4, PACK_U5, PACK_U6, PACK_U8, PACK_M4, PACK_F16, PACK_BF16, PACK_F32 };

/* Floats of 4 bits (a sign, two bits of exponent, one of fraction) times 2, and 12 more, so that none has a sign. */
#define MXFP4_QUANTS 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0
enum scaling { SCALE_PLAIN, SCALE_MIN, SCALE_SUPER_MIN, SCALE_SUPER_HALVES };

static inline int has_super(enum scaling s) { return s >= SCALE_SUPER_MIN; }
static inline int has_minimum(enum scaling s) { return s == SCALE_MIN || s == SCALE_SUPER_MIN; }
static inline size_t panel_bytes(enum packing p) { return p == PACK_U4 || p == PACK_M4 ? 256 : p == PACK_U5 ? 320 : p == PACK_U6 ? 384 : 512; }
static inline size_t units_bytes(enum scaling s) { return !has_super(s) ? 0 : s == SCALE_SUPER_MIN ? 2 * UNITS_BYTES : UNITS_BYTES; }
static inline size_t block_bytes(enum packing p, enum scaling s) {
  return 2 * panel_bytes(p) + (s == SCALE_MIN ? 2 * UNITS_BYTES : UNITS_BYTES);
}

typedef struct {
  enum packing packing;
  enum scaling scaling;
  int offset;
  long outputs, inputs;
  long blocks; /* K / 32 */
  long pairs;
  size_t pair_bytes; /* a multiple of 64 */
  uint8_t *data;     /* 64-byte aligned */
} matrix;

static inline int is_quantised(const matrix *w) { return w->packing <= PACK_M4; }
static inline const uint8_t *pair_of(const matrix *w, long pair) { return w->data + (size_t)pair * w->pair_bytes; }

/* Of one block of a pair: the quants of its first panel, what scales them, and (where there are any) its units. */
typedef struct {
  const uint8_t *quants, *scales, *units;
} block_parts;

static inline block_parts block_of(const matrix *w, long pair, long block) {
  size_t bytes = block_bytes(w->packing, w->scaling), units = units_bytes(w->scaling);
  const uint8_t *super = pair_of(w, pair) + (size_t)(block / SUPER) * (SUPER * bytes + units);
  const uint8_t *at = super + units + (size_t)(block % SUPER) * bytes;
  return (block_parts){at, at + 2 * panel_bytes(w->packing), super};
}

/* Bytes of one row of `inputs` weights in the file's type `kind` (GGML's number), 0 if the type is not packed here. */
size_t matrix_row_bytes(int kind, long inputs);

/* Whether every scale can be packed: those of MXFP4 as halves, others always. */
int scales_fit(int kind, size_t bytes, const uint8_t *rows);

/* Pack rows of GGUF's type `kind` into `w`, which gets its memory here. Returns 0, or -1 without memory. */
int matrix_pack(matrix *w, int kind, long outputs, long inputs, const uint8_t *rows);
void matrix_free(matrix *w);

/* Row n, in f32: out[inputs]. */
void weight_row(const matrix *w, long n, float *out);

#endif
