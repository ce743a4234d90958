/* A table of kernels for one instruction set. All sets give the same bits. */
#ifndef TL_KERNELS_H
#define TL_KERNELS_H

#include "matrix.h"

/* What activations become before they meet quantised weights. */
enum activation_format { ACTIVATIONS_F32, ACTIVATIONS_INT8, ACTIVATIONS_INT12, ACTIVATION_FORMATS };

/* The function between the products of a feed-forward part. */
enum activation {
  ACTIVATION_SILU,
  ACTIVATION_GELU_TANH,
  ACTIVATION_GELU_ERF,
  ACTIVATION_RELU2,
  ACTIVATION_CLAMPED_SWIGLU, /* of both products, see elementwise.h */
  ACTIVATION_KINDS
};

/* Activations of R rows, quantised per block of 32: x = d * q. */
typedef struct {
  int8_t *q;           /* [R][K] int8: -127 .. 127. int12: [R][K] int16 of -2039 .. 2039, see quantise.h */
  float *d;            /* [R][K/32] */
  float *d_sum;        /* [R][K/32] d * sum of q */
  int32_t *minus_sums; /* [R][K/16] -(sum of q) of each half of a block */
  int8_t *bytes;       /* [R][K/32][64] int12 on a path with tiles: the numbers again as 16 h + l: 32 h, then 32 l */
  int32_t *starts;     /* [R][K/32] int12: the bits of the float 1.5 * 2^23 * d */
  long inputs, blocks;
} quantised_rows;

/* Bytes of one quantised activation. */
static inline long activation_bytes(enum activation_format format) { return format == ACTIVATIONS_INT12 ? 2 : 1; }

/* One layer of the paged store, f16 or f32 (`half`). All layers of a block are adjacent, so that memory is touched block by block:
   in each block, for each layer, keys [key heads][D][block_size] and values [key heads][block_size][D padded to 16];
   the pointers are those of this layer in block 0. */
typedef struct {
  void *keys, *values;
  long block_size, head_size, padded_size;
  long block_keys, block_values; /* numbers from one block to the next */
  int half;
} kv_layer;

/* Rows of one sequence: queries (already scaled) and results at row r, head i: r * ld + i * D. */
typedef struct {
  kv_layer kv;
  const int32_t *table;
  const float *q;
  float *out;
  long ld_q, ld_out, group;
  long length; /* above 0: rows see keys on both sides, all of them below this; 0: none after their own */
  long window; /* how many keys, its own the last, a row sees, or so many on each side and its own; 0: all */
  float cap;   /* scores become cap * tanh(score / cap); 0: they stay */
  const float *sinks; /* [query heads] one more score of each, without a value; NULL: none */
} attention;

typedef struct {
  const char *name;
  int (*supported)(void);
  int tiles; /* int12 numbers are also read as bytes */

  /* out = x / sqrt(mean(x^2) + epsilon) * weight; scratch: n floats */
  void (*norm_row)(const float *x, const float *weight, float epsilon, long n, float *out, float *scratch);
  /* by format (f32: none): quantise the `count` blocks at x into row `row`, from block `first` on */
  void (*quantise[ACTIVATION_FORMATS])(const float *x, quantised_rows *to, long row, long first, long count);
  /* out = (x - mean) / sqrt(variance + epsilon) * weight + bias (NULL: none); scratch: n floats */
  void (*layer_norm_row)(const float *x, const float *weight, const float *bias, float epsilon, long n, float *out, float *scratch);
  /* by activation: x = activation(x) * up, or activation(x) where `up` is NULL */
  void (*activate[ACTIVATION_KINDS])(float *x, const float *up, long n);
  /* x = 1 / (1 + e^-x) */
  void (*sigmoid_row)(float *x, long n);
  /* x = e^x / (sum of e^x); scratch: n floats */
  void (*softmax_row)(float *x, long n, float *scratch);
  /* x = cap * tanh(x / cap) */
  void (*soft_cap)(float *x, float cap, long n);
  /* turn pairs (2i, 2i + 1) of `heads` heads of D components by the angles of one position, then multiply by scale */
  void (*rotate)(float *x, long heads, long head_size, long rotated, const float *cos, const float *sin, float scale);
  /* write one position's key and value of key head `head`, D components each */
  void (*write_kv)(const kv_layer *kv, long block, long slot, long head, const float *key, const float *value);
  /* rows [row, row + rows) at positions from `position` on, all query heads of key head `head`; scratch: attend_scratch floats */
  void (*attend)(const attention *a, long row, long rows, long position, long head, float *scratch);
  /* by format (f32: none): columns 32 pair .. + 31 of x w for rows [row, row + rows) to out[(r - row) * ld + 0 .. 31], added where
     `add` */
  void (*linear[ACTIVATION_FORMATS])(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld,
                                     int add);
  /* the same from f32 activations x[r * ld_x]; scratch: 32 K floats */
  void (*linear_f32)(const matrix *w, long pair, const float *x, long ld_x, long row, long rows, float *out, long ld, int add,
                     float *scratch);
} kernels;

/* Bytes of a row in `bytes` of its quantised numbers. */
static inline long tile_bytes(const kernels *cpu, enum activation_format format, long inputs) {
  return cpu->tiles && format == ACTIVATIONS_INT12 ? 2 * inputs : 0;
}

extern const kernels KERNELS_AMX, KERNELS_AVX512, KERNELS_AVX_VNNI, KERNELS_AVX2, KERNELS_NEON_DOT, KERNELS_NEON;

/* SEGMENT is part of the order of operations, see attention.h. */
enum { KEY_TILE = 16, SEGMENT = 256, QUERIES = 6, MOST_HEAD_SIZE = 1024 };
static inline long part_floats(long padded) { return padded + 16; }

/* Of a unit of `lanes` queries: its scores, parts, what was joined, queries, and a segment in f32. */
static inline long attend_scratch(long lanes, long padded) {
  long all = (lanes + QUERIES - 1) / QUERIES * QUERIES;
  return QUERIES * SEGMENT + (QUERIES + all) * part_floats(padded) + all * padded + 16 + 2 * SEGMENT * padded;
}

#endif
