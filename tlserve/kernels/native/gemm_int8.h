/* Products of quantised activations with quantised weights.

   For row m and column n, over blocks b ascending, from acc = 0:
     t   = sum over the block's 32 inputs of x[m, k] * (w[n, k] - offset), an exact integer
     acc = acc + (t * scale[n, b]) * d[m, b]
     acc = acc + minimum[n, b] * d_sum[m, b]                 where the weights have minima
   Every operation is rounded by itself. Neither the number of rows nor the tile has a part in it.

   A tile is ROWS x 16 * PANELS outputs held in registers. `rows` and `panels` are constants in every caller: the loops over them
   unroll, and the arrays become registers. */

#if defined(TL_AVX512)
enum { INT8_ROWS = 6, INT8_PANELS = 2 };
#elif defined(TL_AVX2)
enum { INT8_ROWS = 3, INT8_PANELS = 1 };
#else
enum { INT8_ROWS = 2, INT8_PANELS = 1 };
#endif

enum { AHEAD_BYTES = 4096, PER_PANEL = PANEL / VL, INT8_VECTORS = PER_PANEL * INT8_PANELS };

/* sums += the block's products, quads of inputs ascending; panels of a block lie one after the other. What lies `ahead` of the weights
   is asked for meanwhile. */
INLINE void block_u4(vi (*sums)[INT8_VECTORS], const uint8_t *quants, size_t ahead, const int8_t *x, long ld, const int rows) {
  UNROLL for (int quad = 0; quad < 4; quad++) {
    vi low[INT8_VECTORS], high[INT8_VECTORS];
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
      const uint8_t *from = quants + v / PER_PANEL * 256 + quad * 64 + v % PER_PANEL * VL * 4;
      vi both = load_bytes(from);
      if (v % PER_PANEL == 0) prefetch(from + ahead);
      low[v] = low_nibbles(both);
      high[v] = high_nibbles(both);
    }
    UNROLL for (int m = 0; m < rows; m++) {
      vi x_low = set4(x + m * ld + quad * 4), x_high = set4(x + m * ld + 16 + quad * 4);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = dp_u4(sums[m][v], low[v], x_low);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = dp_u4(sums[m][v], high[v], x_high);
    }
  }
}

INLINE void block_u8(vi (*sums)[INT8_VECTORS], const uint8_t *quants, size_t ahead, const int8_t *x, long ld, const int rows) {
  UNROLL for (int quad = 0; quad < 8; quad++) {
    vi w[INT8_VECTORS];
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
      const uint8_t *from = quants + v / PER_PANEL * 512 + quad * 64 + v % PER_PANEL * VL * 4;
      w[v] = load_bytes(from);
      if (v % PER_PANEL == 0) prefetch(from + ahead);
    }
    UNROLL for (int m = 0; m < rows; m++) {
      vi xx = set4(x + m * ld + quad * 4);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = dp_u8(sums[m][v], w[v], xx);
    }
  }
}

INLINE void tile_int8(const matrix *w, long pair, long panel, size_t ahead, const quantised_rows *x, long row, float *out, long ld,
                      int add, const int rows, const int packing, const int has_min) {
  const int32_t offset = (has_min ? 0 : w->offset) - (packing == PACK_U8 ? DP_U8_BIAS : 0);
  const int8_t *q = x->q + row * x->inputs;
  const float *d = x->d + row * x->blocks, *d_sum = x->d_sum + row * x->blocks;
  const int32_t *minus_sum = x->minus_sum + row * x->blocks;
  const long panel_bytes = packing == PACK_U4 ? 256 : 512, block_bytes = 2 * panel_bytes + (has_min ? 4 : 2) * PAIR;
  const uint8_t *block = pair_of(w, pair);
  vf acc[INT8_ROWS][INT8_VECTORS];
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < INT8_VECTORS; v++) acc[m][v] = set1(0);

  for (long b = 0; b < w->blocks; b++, block += block_bytes) {
    vi sums[INT8_ROWS][INT8_VECTORS];
    UNROLL for (int m = 0; m < rows; m++) {
      vi start = set1_int(minus_sum[m * x->blocks + b] * offset);
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) sums[m][v] = start;
    }
    if (packing == PACK_U4)
      block_u4(sums, block + panel * panel_bytes, ahead, q + b * BLOCK, x->inputs, rows);
    else
      block_u8(sums, block + panel * panel_bytes, ahead, q + b * BLOCK, x->inputs, rows);
    const uint16_t *scales = (const uint16_t *)(block + 2 * panel_bytes) + panel * PANEL, *minima = scales + PAIR;
    prefetch((const uint8_t *)scales + ahead);
    if (has_min) prefetch((const uint8_t *)minima + ahead);
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
      vf scale = load_f16(scales + v * VL);
      UNROLL for (int m = 0; m < rows; m++) acc[m][v] += to_float(sums[m][v]) * scale * set1(d[m * x->blocks + b]);
      if (has_min) {
        vf minimum = load_f16(minima + v * VL);
        UNROLL for (int m = 0; m < rows; m++) acc[m][v] += minimum * set1(d_sum[m * x->blocks + b]);
      }
    }
  }
  UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < INT8_VECTORS; v++) {
    float *to = out + m * ld + v * VL;
    store(to, add ? load(to) + acc[m][v] : acc[m][v]);
  }
}

#define INT8_TILES(NAME, PACKING, HAS_MIN)                                                                                    \
  static void NAME(const matrix *w, long pair, long panel, size_t ahead, const quantised_rows *x, long row, int rows, float *out, \
                   long ld, int add) {                                                                                        \
    switch (rows) {                                                                                                           \
      case 1: tile_int8(w, pair, panel, ahead, x, row, out, ld, add, 1, PACKING, HAS_MIN); break;                                          \
      case 2: tile_int8(w, pair, panel, ahead, x, row, out, ld, add, 2, PACKING, HAS_MIN); break;                                          \
      case 3: if (INT8_ROWS >= 3) tile_int8(w, pair, panel, ahead, x, row, out, ld, add, INT8_ROWS < 3 ? 1 : 3, PACKING, HAS_MIN); break;  \
      case 4: if (INT8_ROWS >= 4) tile_int8(w, pair, panel, ahead, x, row, out, ld, add, INT8_ROWS < 4 ? 1 : 4, PACKING, HAS_MIN); break;  \
      case 5: if (INT8_ROWS >= 5) tile_int8(w, pair, panel, ahead, x, row, out, ld, add, INT8_ROWS < 5 ? 1 : 5, PACKING, HAS_MIN); break;  \
      case 6: if (INT8_ROWS >= 6) tile_int8(w, pair, panel, ahead, x, row, out, ld, add, INT8_ROWS < 6 ? 1 : 6, PACKING, HAS_MIN); break;  \
    }                                                                                                                         \
  }
INT8_TILES(tiles_u4, PACK_U4, 0)
INT8_TILES(tiles_u4_min, PACK_U4, 1)
INT8_TILES(tiles_u8, PACK_U8, 0)
INT8_TILES(tiles_u8_min, PACK_U8, 1)

typedef void (*int8_tiles)(const matrix *, long, long, size_t, const quantised_rows *, long, int, float *, long, int);

static void linear_int8(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld, int add) {
  static const int8_tiles choices[2][2] = {{tiles_u4, tiles_u4_min}, {tiles_u8, tiles_u8_min}};
  int8_tiles tiles = choices[w->packing == PACK_U8][w->has_min];
  long count = (rows + INT8_ROWS - 1) / INT8_ROWS; /* tiles of nearly equal height */
  for (long i = 0, done = 0; i < count; i++) {
    int height = (int)((rows - done + count - i - 1) / (count - i));
    size_t ahead = i == 0 ? AHEAD_BYTES : 0;
    for (int panel = 0; panel < 2; panel += INT8_PANELS)
      tiles(w, pair, panel, ahead, x, row + done, height, out + done * ld + panel * PANEL, ld, add);
    done += height;
  }
}
