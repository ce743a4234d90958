/* Products of f32 activations with weights of any packing.

   For row m and column n: one accumulator from 0, acc = fma(x[m, k], w[n, k], acc), k ascending; w is the weight in f32:
   scale * (quant - offset), or scale * quant (rounded) + minimum (rounded); scales and minima as matrix.h says.
   A pair of panels becomes f32 once, then all rows use it. */

#if defined(TL_AVX512)
enum { F32_ROWS = 8 };
#elif defined(TL_AVX2)
enum { F32_ROWS = 2 };
#else
enum { F32_ROWS = 2 };
#endif
enum { F32_VECTORS = PAIR / VL };

INLINE vf load_bf16(const uint16_t *p) { return (vf)(load_u16(p) << 16); }

static void decode_float_pair(const matrix *w, const uint8_t *pair, float *to) {
  for (long at = 0; at < w->inputs * PAIR; at += VL) {
    vf value = w->packing == PACK_F32   ? load((const float *)pair + at)
               : w->packing == PACK_F16 ? load_f16((const uint16_t *)pair + at)
                                        : load_bf16((const uint16_t *)pair + at);
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

/* to[k][32] = the weights of a pair in f32 */
static void decode_pair(const matrix *w, long pair, float *to) {
  if (!is_quantised(w)) {
    decode_float_pair(w, pair_of(w, pair), to);
    return;
  }
  for (long b = 0; b < w->blocks; b++)
    for (int c = 0; c < PAIR; c += VL)
      decode_block(w, block_of(w, pair, b), c, to + b * BLOCK * PAIR + c);
}

INLINE void tile_f32(const float *w, long inputs, const float *x, long ld_x, float *out, long ld, int add, const int rows) {
  vf acc[F32_ROWS][F32_VECTORS];
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < F32_VECTORS; v++) acc[m][v] = set1(0);
  for (long k = 0; k < inputs; k++) {
    vf column[F32_VECTORS];
    UNROLL for (int v = 0; v < F32_VECTORS; v++) column[v] = load(w + k * PAIR + v * VL);
    UNROLL for (int m = 0; m < rows; m++) {
      vf xx = set1(x[m * ld_x + k]);
      UNROLL for (int v = 0; v < F32_VECTORS; v++) acc[m][v] = fma1(column[v], xx, acc[m][v]);
    }
  }
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < F32_VECTORS; v++) {
    float *to = out + m * ld + v * VL;
    store(to, add ? load(to) + acc[m][v] : acc[m][v]);
  }
}

static void linear_f32(const matrix *w, long pair, const float *x, long ld_x, long row, long rows, float *out, long ld, int add,
                       float *scratch) {
  decode_pair(w, pair, scratch);
  x += row * ld_x;
  long m = 0;
  for (; m + F32_ROWS <= rows; m += F32_ROWS) tile_f32(scratch, w->inputs, x + m * ld_x, ld_x, out + m * ld, ld, add, F32_ROWS);
  for (; m < rows; m++) tile_f32(scratch, w->inputs, x + m * ld_x, ld_x, out + m * ld, ld, add, 1);
}
