/* Products of quantised activations with quantised weights.

   For row m and column n, over blocks b ascending, from acc = 0:
     t   = sum over the block's 32 inputs of x[m, k] * (w[n, k] - offset), an exact integer
     acc = acc + (t * scale[n, b]) * d[m, b]
     acc = acc + minimum[n, b] * d_sum[m, b]                 where the weights have minima
   Every operation is rounded by itself. Neither the number of rows nor the tile affects the bits.
   With parts of scales by halves of a block, t is that sum over the first half times its part, plus the second's: still exact, below
   2 * 16 * 127 * 32 * 128 < 2^24, so f32 holds it and no order matters; scale is the unit.

   A tile is ROWS x 16 * PANELS outputs held in registers. `rows` and `panels` are constants in every caller: the loops over them
   unroll, and the arrays become registers. */

#if defined(TL_AVX512)
enum { INT8_ROWS = 6, HALVES_ROWS = 4, INT8_PANELS = 2 };
#elif defined(TL_AVX2)
enum { INT8_ROWS = 3, HALVES_ROWS = 2, INT8_PANELS = 1 };
#else
enum { INT8_ROWS = 2, HALVES_ROWS = 2, INT8_PANELS = 1 };
#endif

enum { AHEAD_BYTES = 4096, PER_PANEL = PANEL / VL, INT8_VECTORS = PER_PANEL * INT8_PANELS };

/* sums += the products of quads [first, first + 4) and, where `both`, also of quads first + 4, whose nibbles are in the same bytes.
   The panels of a block are one after the other. The memory `ahead` bytes after the weights is prefetched meanwhile. */
INLINE void add_products(vi (*sums)[INT8_VECTORS], const uint8_t *quants, size_t ahead, const int8_t *x, long ld, const int first,
                         const int both, const int rows, const int packing) {
  const long panel_size = (long)panel_bytes(packing);
  UNROLL for (int quad = first; quad < first + 4; quad++) {
    vi w[INT8_VECTORS], beside[INT8_VECTORS];
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
      const uint8_t *from = quants + v / PER_PANEL * panel_size + v % PER_PANEL * VL * 4;
      w[v] = quad_bytes(from, quad, packing);
      if (both) beside[v] = quad_bytes(from, quad + 4, packing);
      if (v % PER_PANEL == 0) prefetch(from + (packing == PACK_U8 ? quad : quad % 4) * 64 + ahead);
    }
    UNROLL for (int m = 0; m < rows; m++) {
      vi xx = set4(x + m * ld + quad * 4), x_beside = set4(x + m * ld + (quad + 4) % 8 * 4);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++)
        sums[m][v] = packing == PACK_U8 ? dp_u8(sums[m][v], w[v], xx) : dp_u7(sums[m][v], w[v], xx);
      if (both) UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = dp_u7(sums[m][v], beside[v], x_beside);
    }
  }
  if (packing == PACK_U5 || packing == PACK_U6)
    UNROLL for (long at = 256 + first / 4 * 64; at < panel_size; at += 64)
      UNROLL for (int panel = 0; panel < INT8_PANELS; panel++) prefetch(quants + panel * panel_size + at + ahead);
}

/* The matrix and the rows of a tile. */
typedef struct {
  const matrix *w;
  long pair, panel;
  size_t ahead;
  const quantised_rows *x;
  long row;
  float *out;
  long ld;
  int add;
} int8_tile;

INLINE void clear_tile(vf (*acc)[INT8_VECTORS], const int rows) {
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < INT8_VECTORS; v++) acc[m][v] = set1(0);
}

INLINE void write_tile(const int8_tile *t, vf (*acc)[INT8_VECTORS], const int rows) {
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
    float *to = t->out + m * t->ld + v * VL;
    store(to, t->add ? load(to) + acc[m][v] : acc[m][v]);
  }
}

INLINE void tile_int8(const int8_tile *t, const int rows, const int packing, const int scaling) {
  const quantised_rows *x = t->x;
  const int32_t offset = (has_minimum(scaling) ? 0 : t->w->offset) - (packing == PACK_U8 ? DP_U8_BIAS : 0);
  const int8_t *q = x->q + t->row * x->inputs;
  const float *d = x->d + t->row * x->blocks, *d_sum = x->d_sum + t->row * x->blocks;
  const int32_t *minus_sums = x->minus_sums + t->row * x->blocks * 2;
  const long panel_size = (long)panel_bytes(packing), block_size = (long)block_bytes(packing, scaling);
  const uint8_t *block = pair_of(t->w, t->pair), *units = block;
  vf acc[INT8_ROWS][INT8_VECTORS];
  clear_tile(acc, rows);

  for (long b = 0; b < t->w->blocks; b++, block += block_size) {
    if (has_super(scaling) && b % SUPER == 0) {
      units = block;
      prefetch(units + t->ahead);
      block += units_bytes(scaling);
    }
    vi sums[INT8_ROWS][INT8_VECTORS];
    UNROLL for (int m = 0; m < rows; m++) {
      const int32_t *halves = minus_sums + (m * x->blocks + b) * 2;
      vi start = set1_int((halves[0] + halves[1]) * offset);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = start;
    }
    const uint8_t *quants = block + t->panel * panel_size;
    add_products(sums, quants, t->ahead, q + b * BLOCK, x->inputs, 0, packing != PACK_U8, rows, packing);
    if (packing == PACK_U8) add_products(sums, quants, t->ahead, q + b * BLOCK, x->inputs, 4, 0, rows, packing);
    const uint8_t *parts = block + 2 * panel_size + t->panel * PANEL;
    const uint16_t *scales = (const uint16_t *)(has_super(scaling) ? units : block + 2 * panel_size) + t->panel * PANEL;
    prefetch(block + 2 * panel_size + t->ahead);
    if (scaling == SCALE_MIN) prefetch(scales + PAIR + t->ahead / 2);
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
      vf scale = load_f16(scales + v * VL);
      if (scaling == SCALE_SUPER_MIN) scale *= to_float(load_u8(parts + v * VL));
      UNROLL for (int m = 0; m < rows; m++) acc[m][v] += to_float(sums[m][v]) * scale * set1(d[m * x->blocks + b]);
      if (has_minimum(scaling)) {
        vf minimum = load_f16(scales + PAIR + v * VL);
        if (scaling == SCALE_SUPER_MIN) minimum *= to_float(load_u8(parts + PAIR + v * VL));
        UNROLL for (int m = 0; m < rows; m++) acc[m][v] += minimum * set1(d_sum[m * x->blocks + b]);
      }
    }
  }
  write_tile(t, acc, rows);
}

/* Super-blocks whose scales have parts by halves of a block. */
INLINE void tile_halves(const int8_tile *t, const int rows) {
  const quantised_rows *x = t->x;
  const int32_t offset = t->w->offset;
  const int8_t *q = x->q + t->row * x->inputs;
  const float *d = x->d + t->row * x->blocks;
  const int32_t *minus_sums = x->minus_sums + t->row * x->blocks * 2;
  const long panel_size = (long)panel_bytes(PACK_U6), block_size = (long)block_bytes(PACK_U6, SCALE_SUPER_HALVES);
  const uint8_t *block = pair_of(t->w, t->pair), *units = block;
  vf acc[HALVES_ROWS][INT8_VECTORS];
  clear_tile(acc, rows);

  for (long b = 0; b < t->w->blocks; b++, block += block_size) {
    if (b % SUPER == 0) {
      units = block;
      prefetch(units + t->ahead);
      block += units_bytes(SCALE_SUPER_HALVES);
    }
    const uint8_t *parts = block + 2 * panel_size + t->panel * PANEL;
    vf total[HALVES_ROWS][INT8_VECTORS];
    prefetch(parts + t->ahead);
    UNROLL for (int half = 0; half < 2; half++) {
      vi sums[HALVES_ROWS][INT8_VECTORS];
      UNROLL for (int m = 0; m < rows; m++) {
        vi start = set1_int(minus_sums[(m * x->blocks + b) * 2 + half] * offset);
        UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = start;
      }
      add_products(sums, block + t->panel * panel_size, t->ahead, q + b * BLOCK, x->inputs, half * 4, 0, rows, PACK_U6);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
        vf part = to_float(load_i8(parts + half * PAIR + v * VL));
        UNROLL for (int m = 0; m < rows; m++)
          total[m][v] = half ? total[m][v] + to_float(sums[m][v]) * part : to_float(sums[m][v]) * part;
      }
    }
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
      vf unit = load_f16((const uint16_t *)units + t->panel * PANEL + v * VL);
      UNROLL for (int m = 0; m < rows; m++) acc[m][v] += total[m][v] * unit * set1(d[m * x->blocks + b]);
    }
  }
  write_tile(t, acc, rows);
}

/* NAME(tile, rows): the tile's function with the number of rows as a constant, up to MOST. A case above MOST cannot occur; it
   compiles as one row, so that no loop exceeds the arrays of a tile. */
#define INT8_TILES(NAME, MOST, TILE, ...)                                                \
  static void NAME(const int8_tile *t, int rows) {                                       \
    switch (rows) {                                                                      \
      case 1: TILE(t, 1, ##__VA_ARGS__); break;                                          \
      case 2: TILE(t, 2, ##__VA_ARGS__); break;                                          \
      case 3: TILE(t, MOST < 3 ? 1 : 3, ##__VA_ARGS__); break;                           \
      case 4: TILE(t, MOST < 4 ? 1 : 4, ##__VA_ARGS__); break;                           \
      case 5: TILE(t, MOST < 5 ? 1 : 5, ##__VA_ARGS__); break;                           \
      case 6: TILE(t, MOST < 6 ? 1 : 6, ##__VA_ARGS__); break;                           \
      case 7: TILE(t, MOST < 7 ? 1 : 7, ##__VA_ARGS__); break;                           \
      case 8: TILE(t, MOST < 8 ? 1 : 8, ##__VA_ARGS__); break;                           \
    }                                                                                    \
  }
INT8_TILES(tiles_u4, INT8_ROWS, tile_int8, PACK_U4, SCALE_PLAIN)
INT8_TILES(tiles_u4_min, INT8_ROWS, tile_int8, PACK_U4, SCALE_MIN)
INT8_TILES(tiles_u4_super, INT8_ROWS, tile_int8, PACK_U4, SCALE_SUPER_MIN)
INT8_TILES(tiles_u5, INT8_ROWS, tile_int8, PACK_U5, SCALE_PLAIN)
INT8_TILES(tiles_u5_min, INT8_ROWS, tile_int8, PACK_U5, SCALE_MIN)
INT8_TILES(tiles_u5_super, INT8_ROWS, tile_int8, PACK_U5, SCALE_SUPER_MIN)
INT8_TILES(tiles_u8, INT8_ROWS, tile_int8, PACK_U8, SCALE_PLAIN)
INT8_TILES(tiles_m4, INT8_ROWS, tile_int8, PACK_M4, SCALE_PLAIN)
INT8_TILES(tiles_halves, HALVES_ROWS, tile_halves)

/* Cut the rows into tiles of nearly equal height, at most `most`. */
INLINE void linear_quantised(void (*tile)(const int8_tile *, int), long most, const matrix *w, long pair, const quantised_rows *x, long row,
                             long rows, float *out, long ld, int add) {
  long count = (rows + most - 1) / most;
  for (long i = 0, done = 0; i < count; i++) {
    int height = (int)((rows - done + count - i - 1) / (count - i));
    for (long panel = 0; panel < 2; panel += INT8_PANELS) {
      int8_tile t = {w, pair, panel, i == 0 ? AHEAD_BYTES : 0, x, row + done, out + done * ld + panel * PANEL, ld, add};
      tile(&t, height);
    }
    done += height;
  }
}

static void linear_int8(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld, int add) {
  static void (*const choices[5][4])(const int8_tile *, int) = {
      {tiles_u4, tiles_u4_min, tiles_u4_super, NULL},
      {tiles_u5, tiles_u5_min, tiles_u5_super, NULL},
      {NULL, NULL, NULL, tiles_halves},
      {tiles_u8, NULL, NULL, NULL},
      {tiles_m4, NULL, NULL, NULL},
  };
  linear_quantised(choices[w->packing][w->scaling], w->scaling == SCALE_SUPER_HALVES ? HALVES_ROWS : INT8_ROWS, w, pair, x, row, rows,
                   out, ld, add);
}
