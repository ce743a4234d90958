/* The products of gemm_int12.h for calls of many rows: the same operations in the same order, with weights unpacked once for all rows.

   Eight blocks of a pair at a time become 16-bit numbers with f32 scales in a buffer that fits the first cache. All rows use it, tile by
   tile; their accumulators wait in memory meanwhile. Tiles of six rows and two panels hide the unpacking of 4 bits, but not that of 5 and
   more; smaller tiles hide none. */

enum { MANY_BLOCKS = 8, MANY_ROWS = 128 };

/* Whether it pays, as measured. */
INLINE int are_many(const matrix *w, long rows) {
  if (INT8_PANELS == 1) return rows >= 24;
  return w->packing != PACK_U4 && !has_minimum(w->scaling) && rows >= 48;
}

/* One block of both panels; the second scale is that of the second half, where scales differ by halves. */
typedef struct {
  uint8_t words[4][4][PAIR * 4];
  float scale[2][PAIR], minimum[PAIR];
} unpacked_block;

/* A tile over the blocks [first, first + count), which begin at `blocks`; kept: accumulators between such ranges. */
typedef struct {
  int8_tile tile;
  const unpacked_block *blocks;
  long first, count;
  float (*kept)[PAIR];
} unpacked_tile;

INLINE void store_scales(float *to, const uint16_t *halves, const uint8_t *parts, const int scaling) {
  for (int panel = 0; panel < 2; panel += INT8_PANELS) {
    vf scale[INT8_VECTORS];
    load_scales(scale, halves + panel * PANEL, parts + panel * PANEL, scaling);
    UNROLL for (int v = 0; v < INT8_VECTORS; v++) store(to + panel * PANEL + v * VL, scale[v]);
  }
}

/* Unpack block b of a pair; the memory after it is prefetched. */
INLINE void unpack_block(const matrix *w, long pair, long b, unpacked_block *to, const int packing, const int scaling) {
  const block_parts from = block_of(w, pair, b);
  const uint16_t *halves = (const uint16_t *)(has_super(scaling) ? from.units : from.scales);
  for (long line = 0; line < (long)block_bytes(packing, scaling); line += 64) prefetch(from.quants + line + AHEAD_BYTES);
  for (int v = 0; v < PAIR / VL; v++) {
    const uint8_t *quants = from.quants + v / PER_PANEL * (long)panel_bytes(packing) + v % PER_PANEL * VL * 4;
    UNROLL for (int quad = 0; quad < 4; quad++) UNROLL for (int step = 0; step < 4; step++)
      store_ints(to->words[quad][step] + v * VL * 4, word_weights(quants, quad, step, packing));
  }
  store_scales(to->scale[0], halves, from.scales, scaling);
  if (scaling == SCALE_SUPER_HALVES) store_scales(to->scale[1], halves, from.scales + PAIR, scaling);
  if (has_minimum(scaling)) store_scales(to->minimum, halves + PAIR, from.scales + PAIR, scaling);
}

#define UNPACKED(NAME, PACKING, SCALING)                                                       \
  static void NAME(const matrix *w, long pair, long first, long count, unpacked_block *to) {   \
    for (long i = 0; i < count; i++) unpack_block(w, pair, first + i, to + i, PACKING, SCALING); \
  }
UNPACKED(unpack_u4, PACK_U4, SCALE_PLAIN)
UNPACKED(unpack_u4_min, PACK_U4, SCALE_MIN)
UNPACKED(unpack_u4_super, PACK_U4, SCALE_SUPER_MIN)
UNPACKED(unpack_u5, PACK_U5, SCALE_PLAIN)
UNPACKED(unpack_u5_min, PACK_U5, SCALE_MIN)
UNPACKED(unpack_u5_super, PACK_U5, SCALE_SUPER_MIN)
UNPACKED(unpack_u6_halves, PACK_U6, SCALE_SUPER_HALVES)
UNPACKED(unpack_m4, PACK_M4, SCALE_PLAIN)
UNPACKED(unpack_u8, PACK_U8, SCALE_PLAIN)

INLINE void tile_unpacked(const int8_tile *t, const int rows, const int packing, const int scaling) {
  const unpacked_tile *range = (const unpacked_tile *)t;
  const quantised_rows *x = t->x;
  const long panel = t->panel * PANEL, first = range->first;
  const int8_t *words = x->q + t->row * x->inputs * 2;
  long at = t->row * x->blocks + first;
  vf acc[INT12_ROWS][INT8_VECTORS];
  clear_tile(acc, rows);
  if (first)
    UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < INT8_VECTORS; v++) acc[m][v] = load(range->kept[m] + panel + v * VL);

  const unpacked_block *block = range->blocks;
  for (long b = first; b < first + range->count; b++, at++, block++) {
    int12_rows rows_x;
    UNROLL for (int m = 0; m < rows; m++) {
      rows_x[m] = words + (m * x->inputs + b * BLOCK) * 2;
      KEEP_POINTER(rows_x[m]);
    }
    const int halved = scaling == SCALE_SUPER_HALVES;
    UNROLL for (int half = 0; half <= halved; half++) {
      vf scale[INT8_VECTORS];
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) scale[v] = load(block->scale[half] + panel + v * VL);
      add_block(t, acc, block->words[0][0] + panel * 4, rows_x, at, scale, halved ? half : -1, rows, packing, scaling);
    }
    if (has_minimum(scaling)) {
      vf minimum[INT8_VECTORS];
      UNROLL for (int v = 0; v < INT8_VECTORS; v++) minimum[v] = load(block->minimum + panel + v * VL);
      add_minima(t, acc, at, minimum, rows);
    }
  }

  if (first + range->count == t->w->blocks)
    write_tile(t, acc, rows);
  else
    UNROLL for (int m = 0; m < rows; m++) UNROLL for (int v = 0; v < INT8_VECTORS; v++) store(range->kept[m] + panel + v * VL, acc[m][v]);
}

INT8_TILES(unpacked_plain, INT8_ROWS, tile_unpacked, WORDS, SCALE_PLAIN)
INT8_TILES(unpacked_min, INT8_ROWS, tile_unpacked, WORDS, SCALE_MIN)
INT8_TILES(unpacked_halves, INT8_ROWS, tile_unpacked, WORDS, SCALE_SUPER_HALVES)
INT8_TILES(unpacked_u8, INT8_ROWS, tile_unpacked, WORDS_U8, SCALE_PLAIN)

/* At most MANY_ROWS rows. */
static void linear_int12_many(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld, int add) {
  static void (*const unpacks[5][4])(const matrix *, long, long, long, unpacked_block *) = {
      {unpack_u4, unpack_u4_min, unpack_u4_super, NULL},
      {unpack_u5, unpack_u5_min, unpack_u5_super, NULL},
      {NULL, NULL, NULL, unpack_u6_halves},
      {unpack_u8, NULL, NULL, NULL},
      {unpack_m4, NULL, NULL, NULL},
  };
  static void (*const tiles[])(const int8_tile *, int) = {unpacked_plain, unpacked_min, unpacked_min, unpacked_halves};
  void (*tile)(const int8_tile *, int) = w->packing == PACK_U8 ? unpacked_u8 : tiles[w->scaling];
  _Alignas(64) unpacked_block blocks[MANY_BLOCKS];
  _Alignas(64) float kept[MANY_ROWS][PAIR];
  long groups = (rows + INT8_ROWS - 1) / INT8_ROWS;
  for (long first = 0; first < w->blocks; first += MANY_BLOCKS) {
    long count = w->blocks - first < MANY_BLOCKS ? w->blocks - first : MANY_BLOCKS;
    unpacks[w->packing][w->scaling](w, pair, first, count, blocks);
    for (long i = 0, done = 0; i < groups; i++) {
      int height = (int)((rows - done + groups - i - 1) / (groups - i));
      for (long panel = 0; panel < 2; panel += INT8_PANELS) {
        int8_tile own = {w, pair, panel, 0, x, row + done, out + done * ld + panel * PANEL, ld, add};
        unpacked_tile t = {own, blocks, first, count, kept + done};
        tile(&t.tile, height);
      }
      done += height;
    }
  }
}

static void linear_int12(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld, int add) {
  if (!are_many(w, rows)) {
    linear_int12_few(w, pair, x, row, rows, out, ld, add);
    return;
  }
  for (long done = 0; done < rows; done += MANY_ROWS)
    linear_int12_many(w, pair, x, row + done, rows - done < MANY_ROWS ? rows - done : MANY_ROWS, out + done * ld, ld, add);
}
