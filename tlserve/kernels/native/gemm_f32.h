/* Products of f32 activations with weights of any packing.

   For row m and column n: one accumulator from 0, acc = fma(x[m, k], w[n, k], acc), k ascending; w is the weight in f32:
   scale * (quant - offset), or scale * quant (rounded) + minimum (rounded); scales and minima as matrix.h says.
   A pair of panels becomes f32 once, then all rows use it, slice by slice of its inputs; a sum waits in memory between slices. */

#if defined(TL_AVX512)
enum { F32_ROWS = 8 };
#elif defined(TL_AVX2)
enum { F32_ROWS = 6 };
#else
enum { F32_ROWS = 2 };
#endif
#if defined(TL_AVX2) && !defined(TL_AVX512)
enum { F32_VECTORS = 2 }; /* of a tile: 12 accumulators in 16 registers */
#else
enum { F32_VECTORS = PAIR / VL };
#endif

INLINE vf load_bf16(const uint16_t *p) { return (vf)(load_u16(p) << 16); }

static void decode_float_pair(const matrix *w, const uint8_t *pair, float *to) {
  for (long at = 0; at < w->inputs * PAIR; at += VL) {
    vf value = w->packing == PACK_F16 ? load_f16((const uint16_t *)pair + at) : load_bf16((const uint16_t *)pair + at);
    store(to + at, value);
  }
}

/* The four inputs of one quad, for VL columns. */
INLINE void decode_quad(vi bytes, int offset, vf scale, vf minimum, int has_min, float *to) {
  for (int i = 0; i < 4; i++) {
    vf value = to_float(((bytes >> (8 * i)) & 255) - offset) * scale;
    store(to + i * PAIR, has_min ? value + minimum : value);
  }
}

static void decode_block(const matrix *w, block_parts b, int column, float *to) {
  const uint8_t *quants = b.quants + (size_t)(column / PANEL) * panel_bytes(w->packing) + column % PANEL * 4;
  const uint16_t *halves = (const uint16_t *)(has_super(w->scaling) ? b.units : b.scales) + column;
  vf scale[2] = {load_f16(halves), load_f16(halves)}, minimum = set1(0);
  if (has_minimum(w->scaling)) minimum = load_f16(halves + PAIR);
  if (w->scaling == SCALE_SUPER_MIN) {
    scale[0] = scale[1] = scale[0] * to_float(load_u8(b.scales + column));
    minimum *= to_float(load_u8(b.scales + PAIR + column));
  }
  for (int half = 0; w->scaling == SCALE_SUPER_HALVES && half < 2; half++)
    scale[half] *= to_float(load_i8(b.scales + half * PAIR + column));
  for (int quad = 0; quad < 8; quad++)
    decode_quad(quad_bytes(quants, quad, w->packing), w->offset, scale[quad / 4], minimum, has_minimum(w->scaling), to + quad * 4 * PAIR);
}

/* to[k][32] = the weights of a pair that are not f32 */
static void decode_pair(const matrix *w, long pair, float *to) {
  if (!is_quantised(w)) {
    decode_float_pair(w, pair_of(w, pair), to);
    return;
  }
  for (long b = 0; b < w->blocks; b++)
    for (int c = 0; c < PAIR; c += VL)
      decode_block(w, block_of(w, pair, b), c, to + b * BLOCK * PAIR + c);
}

/* Rows of a product in turn: a slice of a pair, K_SLICE inputs of 32 columns, stays in the first cache while all of them use it. */
enum { K_SLICE = 128, F32_CHUNK = 96 };

/* Rows of a chunk: sums so far of inputs before `k` are in `sums`, and those of all inputs go to `out`. */
typedef struct {
  const float *w, *x; /* [inputs][PAIR], from row 0 on */
  long ld_x, inputs, k, end;
  float *sums, *out;  /* [][PAIR], [][ld] */
  long ld;
  int add;
} f32_slice;

INLINE void tile_f32(const f32_slice *s, long m0, const int column, const int rows) {
  vf acc[F32_ROWS][F32_VECTORS];
  const float *x = s->x + m0 * s->ld_x, *w = s->w + column;
  float *sums = s->sums + m0 * PAIR + column, *out = s->out + m0 * s->ld + column;
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < F32_VECTORS; v++)
    acc[m][v] = s->k ? load(sums + m * PAIR + v * VL) : set1(0);
  for (long k = s->k; k < s->end; k++) {
    vf weights[F32_VECTORS];
    UNROLL for (int v = 0; v < F32_VECTORS; v++) weights[v] = load(w + k * PAIR + v * VL);
    UNROLL for (int m = 0; m < rows; m++) {
      vf xx = set1(x[m * s->ld_x + k]);
      UNROLL for (int v = 0; v < F32_VECTORS; v++) acc[m][v] = fma1(weights[v], xx, acc[m][v]);
    }
  }
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < F32_VECTORS; v++) {
    if (s->end < s->inputs) {
      store(sums + m * PAIR + v * VL, acc[m][v]);
    } else {
      float *to = out + m * s->ld + v * VL;
      store(to, s->add ? load(to) + acc[m][v] : acc[m][v]);
    }
  }
}

/* A tile of rows, all columns of the pair. */
INLINE void rows_f32(const f32_slice *s, long m, const int rows) {
  for (int c = 0; c < PAIR; c += F32_VECTORS * VL) tile_f32(s, m, c, rows);
}

static void slice_f32(const f32_slice *s, long rows) {
  long m = 0;
  for (; m + F32_ROWS <= rows; m += F32_ROWS) rows_f32(s, m, F32_ROWS);
  if (F32_ROWS > 4 && rows - m >= 4) rows_f32(s, m, 4), m += 4;
  if (F32_ROWS > 2 && rows - m >= 2) rows_f32(s, m, 2), m += 2;
  if (m < rows) rows_f32(s, m, 1);
}

static void linear_f32(const matrix *w, long pair, const float *x, long ld_x, long row, long rows, float *out, long ld, int add,
                       float *scratch) {
  float sums[F32_CHUNK * PAIR];
  if (w->packing != PACK_F32) decode_pair(w, pair, scratch);
  f32_slice s = {.w = w->packing == PACK_F32 ? (const float *)pair_of(w, pair) : scratch, .ld_x = ld_x, .inputs = w->inputs,
                 .sums = sums, .ld = ld, .add = add};
  for (long m = 0; m < rows; m += F32_CHUNK) {
    s.x = x + (row + m) * ld_x;
    s.out = out + m * ld;
    for (s.k = 0; s.k < s.inputs; s.k = s.end) {
      s.end = s.inputs - s.k < 2 * K_SLICE ? s.inputs : s.k + K_SLICE;
      slice_f32(&s, rows - m < F32_CHUNK ? rows - m : F32_CHUNK);
    }
  }
}
