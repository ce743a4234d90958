/* Products of activations of 12 bits with quantised weights.

   For row m and column n, over blocks b ascending, from acc = 0:
     t   = sum over the block's 32 inputs of x[m, k] * (w[n, k] - offset), an exact integer
     acc = fma(t * d[m, b], scale[n, b], acc)
     acc = fma(minimum[n, b], d_sum[m, b], acc)              where the weights have minima
   With parts of scales by halves of a block, each half is a sum of its own: t of 16 inputs, and scale = unit * part.
   d is a power of two and t below 2^24, so t * d is exact; so are scale and minimum (matrix.h). Neither the number of rows nor the
   tile affects the bits.

   Where |t| < 2^22 the sum is accumulated inside a float: it begins at the bits of 1.5 * 2^23 * d, whose last bit is worth d, and with
   that float subtracted at the end it is t * d, exactly. t is at most 32 * 2039 * 31 with weights of 4 and 5 bits, 16 * 2039 * 32 with
   halves of 6 bits: below 2^22. With 8 bits it is at most 32 * 2039 * 128, below 2^23: that is converted and multiplied.

   A 32-bit lane has four weights of one column in its bytes. Shifted and masked they become two pairs of 16-bit numbers, inputs 0, 2
   and 1, 3; quantise.h puts the activations into that order. */

#if defined(TL_AVX512)
enum { INT12_ROWS = 8, REGISTER_ROWS = 6 }; /* one tile of 8 unpacks weights once, two of 4 unpack them twice */
#else
enum { INT12_ROWS = INT8_ROWS, REGISTER_ROWS = 0 };
#endif

/* Tiles of more than REGISTER_ROWS have registers for the sums of a block, not for their accumulators: those stay in memory from block
   to block. */
#define KEEP_IN_MEMORY(array) __asm__ volatile("" : "+m"(array))

/* A compiler that sees through the pointer keeps one for every number that is broadcast, most of them on the stack. */
#define KEEP_POINTER(p) __asm__("" : "+r"(p))

/* Weights that gemm_int12_many.h has unpacked: [4 quads][4 steps][32 columns][2] 16-bit. The second are those of PACK_U8. */
enum { WORDS = PACK_F32 + 1, WORDS_U8 };

typedef vi int12_sums[INT12_ROWS][INT8_VECTORS];
typedef const int8_t *int12_rows[INT12_ROWS];

/* Quads `quad` and quad + 4 of VL columns as pairs of 16-bit weights. step 0: inputs 0, 2 of the first; 1: of the second;
   2 and 3: inputs 1, 3. */
INLINE vi word_weights(const uint8_t *quants, const int quad, const int step, const int packing) {
  if (packing >= WORDS) return load_bytes(quants + (quad * 4 + step) * PAIR * 4);
  if (packing == PACK_U4) {
    vi both = load_bytes(quants + quad * 64);
    return step == 3 ? shift_right_words(both, 12) : shifted(both, -4 * step) & 0x000f000f;
  }
  vi bytes = quad_bytes(quants, quad + step % 2 * 4, packing);
  return step < 2 ? bytes & 0x00ff00ff : shift_right_words(bytes, 8);
}

/* sums += the products of a block, of both halves or (`half` 0 or 1) of one. */
INLINE void add_words(int12_sums sums, const uint8_t *quants, int12_rows x, const int half, const int rows, const int packing) {
  const long panel_size = packing >= WORDS ? PANEL * 4 : (long)panel_bytes(packing);
  UNROLL for (int quad = 0; quad < 4; quad++) UNROLL for (int step = 0; step < 4; step++) {
    if (half >= 0 && step % 2 != half) continue;
    vi w[INT8_VECTORS];
    UNROLL for (int v = 0; v < INT8_VECTORS; v++)
      w[v] = word_weights(quants + v / PER_PANEL * panel_size + v % PER_PANEL * VL * 4, quad, step, packing);
    UNROLL for (int m = 0; m < rows; m++) {
      vi xx = set4(x[m] + quad * 16 + step * 4);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = dp_words(sums[m][v], w[v], xx);
    }
  }
}

/* One block, or one half of it: its sums into the accumulators. `at` is the block's place in the arrays of row 0 of the tile. */
INLINE void add_block(const int8_tile *t, vf (*acc)[INT8_VECTORS], const uint8_t *quants, int12_rows rows_x, long at, const vf *scale,
                      const int half, const int rows, const int packing, const int scaling) {
  const quantised_rows *x = t->x;
  const int in_float = packing != PACK_U8 && packing != WORDS_U8;
  const int32_t offset = has_minimum(scaling) ? 0 : t->w->offset;
  int12_sums sums;
  UNROLL for (int m = 0; m < rows; m++) {
    const long own = at + m * x->blocks;
    const int32_t *halves = x->minus_sums + 2 * own;
    vi start = set1_int((in_float ? x->starts[own] : 0) +
                        (has_minimum(scaling) ? 0 : (half < 0 ? halves[0] + halves[1] : halves[half]) * offset));
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = start;
  }
  add_words(sums, quants, rows_x, half, rows, packing);
  UNROLL for (int v = 0; v < INT8_VECTORS; v++) UNROLL for (int m = 0; m < rows; m++) {
    const long own = at + m * x->blocks;
    vf total = in_float ? (vf)sums[m][v] - (vf)set1_int(x->starts[own]) : to_float(sums[m][v]) * set1(x->d[own]);
    acc[m][v] = fma1(total, scale[v], acc[m][v]);
  }
}

/* The scales (of one half, where they differ) or the minima of the tile's columns. */
INLINE void load_scales(vf *to, const uint16_t *halves, const uint8_t *parts, const int scaling) {
  UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
    to[v] = load_f16(halves + v * VL);
    if (scaling == SCALE_SUPER_MIN) to[v] *= to_float(load_u8(parts + v * VL));
    if (scaling == SCALE_SUPER_HALVES) to[v] *= to_float(load_i8(parts + v * VL));
  }
}

/* acc += the minima times d times the sums of the block's numbers. */
INLINE void add_minima(const int8_tile *t, vf (*acc)[INT8_VECTORS], long at, const vf *minimum, const int rows) {
  UNROLL for (int v = 0; v < INT8_VECTORS; v++) UNROLL for (int m = 0; m < rows; m++)
    acc[m][v] = fma1(minimum[v], set1(t->x->d_sum[at + m * t->x->blocks]), acc[m][v]);
}

INLINE void tile_int12(const int8_tile *t, const int rows, const int packing, const int scaling) {
  const quantised_rows *x = t->x;
  const int8_t *words = x->q + t->row * x->inputs * 2;
  const long panel_size = (long)panel_bytes(packing), block_size = (long)block_bytes(packing, scaling);
  const uint8_t *block = pair_of(t->w, t->pair), *units = block;
  long at = t->row * x->blocks;
  vf acc[INT12_ROWS][INT8_VECTORS];
  clear_tile(acc, rows);

  for (long b = 0; b < t->w->blocks; b++, at++, block += block_size) {
    if (has_super(scaling) && b % SUPER == 0) {
      units = block;
      prefetch(units + t->ahead);
      block += units_bytes(scaling);
    }
    UNROLL for (long line = 0; line < block_size; line += 64) prefetch(block + line + t->ahead);
    int12_rows rows_x;
    UNROLL for (int m = 0; m < rows; m++) {
      rows_x[m] = words + (m * x->inputs + b * BLOCK) * 2;
      KEEP_POINTER(rows_x[m]);
    }
    const uint8_t *quants = block + t->panel * panel_size, *parts = block + 2 * panel_size + t->panel * PANEL;
    const uint16_t *halves = (const uint16_t *)(has_super(scaling) ? units : block + 2 * panel_size) + t->panel * PANEL;
    vf scale[INT8_VECTORS];
    if (scaling == SCALE_SUPER_HALVES) {
      UNROLL for (int half = 0; half < 2; half++) {
        load_scales(scale, halves, parts + half * PAIR, scaling);
        add_block(t, acc, quants, rows_x, at, scale, half, rows, packing, scaling);
      }
    } else {
      load_scales(scale, halves, parts, scaling);
      add_block(t, acc, quants, rows_x, at, scale, -1, rows, packing, scaling);
    }
    if (has_minimum(scaling)) {
      load_scales(scale, halves + PAIR, parts + PAIR, scaling);
      add_minima(t, acc, at, scale, rows);
    }
    if (rows > REGISTER_ROWS) KEEP_IN_MEMORY(acc);
  }
  write_tile(t, acc, rows);
}

INT8_TILES(words_u4, INT12_ROWS, tile_int12, PACK_U4, SCALE_PLAIN)
INT8_TILES(words_u4_min, INT12_ROWS, tile_int12, PACK_U4, SCALE_MIN)
INT8_TILES(words_u4_super, INT12_ROWS, tile_int12, PACK_U4, SCALE_SUPER_MIN)
INT8_TILES(words_u5, INT12_ROWS, tile_int12, PACK_U5, SCALE_PLAIN)
INT8_TILES(words_u5_min, INT12_ROWS, tile_int12, PACK_U5, SCALE_MIN)
INT8_TILES(words_u5_super, INT12_ROWS, tile_int12, PACK_U5, SCALE_SUPER_MIN)
INT8_TILES(words_u6_halves, INT12_ROWS, tile_int12, PACK_U6, SCALE_SUPER_HALVES)
INT8_TILES(words_m4, INT12_ROWS, tile_int12, PACK_M4, SCALE_PLAIN)
INT8_TILES(words_u8, INT12_ROWS, tile_int12, PACK_U8, SCALE_PLAIN)

static void linear_int12_few(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld, int add) {
  static void (*const choices[5][4])(const int8_tile *, int) = {
      {words_u4, words_u4_min, words_u4_super, NULL},
      {words_u5, words_u5_min, words_u5_super, NULL},
      {NULL, NULL, NULL, words_u6_halves},
      {words_u8, NULL, NULL, NULL},
      {words_m4, NULL, NULL, NULL},
  };
  linear_quantised(choices[w->packing][w->scaling], rows <= INT12_ROWS ? INT12_ROWS : INT8_ROWS, w, pair, x, row, rows, out, ld, add);
}
