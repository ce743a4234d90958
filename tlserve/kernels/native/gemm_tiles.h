/* Products on tiles (AMX): the same sums as gemm_int8.h and gemm_int12.h, scaled in the same order, for calls of many rows.

   A tile product adds, for 16 rows of activations and the 16 columns of a panel, up to 64 products of bytes, exactly. Weights are bytes
   without a sign. In a panel, the bytes of a quad of inputs are next to one another for each column, as a tile of weights needs them.
   An int12 number q is 16 h + l with h = q >> 4 and l = q & 15, both in a signed byte: the bytes of a block are 32 h, then 32 l.
   Weights of 4 bits appear twice in a tile, times 16 and as they are, so that one tile product makes the sum of a block. Wider ones
   times 16 would not fit a byte: two tile products make the sums of h and of l.

   Tiles 0 and 1 get the sums of both panels (of h), 5 and 6 those of l; 2 and 7 have the activations (h and l), 3 and 4 the weights.
   All sums of a block are stored before they are scaled, so that tile products follow one another.

   Tiles begin to pay where a row's share of unpacking weights and moving tiles is less than its products with VNNI: by a count of
   instructions, from 8 rows on. This count was not checked with a clock. */

enum { TILE_LEAST = 8, TILE_HEIGHT = 16, TILE_CHUNK = 64 };

typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_shapes;

typedef int32_t tile_sums[2][2][TILE_CHUNK][PANEL]; /* of h and l, or of both halves of int8; of each panel */

/* Shape the tiles of this thread for rows of `bytes` bytes of activations. */
static void shape_tiles(int height, int bytes) {
  static const uint8_t sums[] = {0, 1, 5, 6}, rows[] = {2, 7}, weights[] = {3, 4};
  tile_shapes s = {.palette = 1};
  for (int i = 0; i < 4; i++) s.rows[sums[i]] = (uint8_t)height, s.row_bytes[sums[i]] = PANEL * 4;
  for (int i = 0; i < 2; i++) s.rows[rows[i]] = (uint8_t)height, s.row_bytes[rows[i]] = (uint16_t)bytes;
  for (int i = 0; i < 2; i++) s.rows[weights[i]] = (uint8_t)(bytes / 4), s.row_bytes[weights[i]] = PANEL * 4;
  KEEP_IN_MEMORY(s); /* GCC 12 believes that only the first 8 bytes are read */
  _tile_loadconfig(&s);
}

/* Write bytes [first, first + count) of the quads of a panel; twice in the case of `joined`: times 16, then as they are. */
INLINE void unpack_panel(const uint8_t *quants, uint8_t (*to)[PANEL * 4], const int first, const int count, const int joined,
                         const int packing) {
  UNROLL for (int i = 0; i < count; i++) {
    vi bytes = quad_bytes(quants, first + i, packing);
    if (joined) store_ints(to[i], shifted(bytes, 4)); /* below 16 each: no bit enters the next byte */
    store_ints(to[joined ? count + i : i], bytes);
  }
}

/* The quads [first, first + count) of both panels become tiles 3 and 4. */
INLINE void load_weights(const uint8_t *quants, const int first, const int count, const int joined, const int packing) {
  const long panel_size = (long)panel_bytes(packing);
  if (packing == PACK_U8) {
    _tile_loadd(3, quants + first * PANEL * 4, PANEL * 4);
    _tile_loadd(4, quants + panel_size + first * PANEL * 4, PANEL * 4);
    return;
  }
  _Alignas(64) uint8_t bytes[2][16][PANEL * 4];
  for (int panel = 0; panel < 2; panel++) unpack_panel(quants + panel * panel_size, bytes[panel], first, count, joined, packing);
  KEEP_IN_MEMORY(bytes);
  _tile_loadd(3, bytes[0], PANEL * 4);
  _tile_loadd(4, bytes[1], PANEL * 4);
  KEEP_IN_MEMORY(bytes); /* GCC does not know that a tile load reads memory: neither stores nor the end of `bytes` may move before it */
}

/* The products of all rows at `from` (with l: the numbers l are 32 bytes further) with tiles 3 and 4, into the sums of `part` (and 1). A
   last group of less than `height` rows begins earlier, and some sums are stored twice. */
INLINE void multiply_tiles(const int8_t *from, long stride, const int rows, int height, tile_sums sums, const int part, const int with_l) {
  for (int first = 0; first < rows; first += height) {
    int at = first + height <= rows ? first : rows - height;
    const int8_t *x = from + at * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(2, x, stride);
    _tile_dpbsud(0, 2, 3);
    _tile_dpbsud(1, 2, 4);
    _tile_stored(0, sums[part][0][at], PANEL * 4);
    _tile_stored(1, sums[part][1][at], PANEL * 4);
    if (!with_l) continue;
    _tile_zero(5);
    _tile_zero(6);
    _tile_loadd(7, x + BLOCK, stride);
    _tile_dpbsud(5, 7, 3);
    _tile_dpbsud(6, 7, 4);
    _tile_stored(5, sums[1][0][at], PANEL * 4);
    _tile_stored(6, sums[1][1][at], PANEL * 4);
  }
}

/* What scales one block (or half of it) of both panels. */
typedef struct {
  vf scale[2], minimum[2], part[2][2];
} tile_scales;

/* acc += the sums of a block of int12, or of one half of it; `at` is the block's place in the arrays of row 0. */
INLINE void scale_int12(const int8_tile *t, vf (*acc)[2], tile_sums sums, long at, const tile_scales *by, const int half, const int rows,
                        const int joined, const int packing, const int scaling) {
  const quantised_rows *x = t->x;
  const int in_float = packing != PACK_U8;
  const int32_t offset = has_minimum(scaling) ? 0 : t->w->offset;
  for (int m = 0; m < rows; m++, at += x->blocks) {
    const int32_t *halves = x->minus_sums + 2 * at, one = in_float ? x->starts[at] : 0;
    vi start = set1_int(one + (has_minimum(scaling) ? 0 : (half < 0 ? halves[0] + halves[1] : halves[half]) * offset));
    UNROLL for (int v = 0; v < 2; v++) {
      vi sum = load_bytes((const uint8_t *)sums[0][v][m]);
      if (!joined) sum = shifted(sum, 4) + load_bytes((const uint8_t *)sums[1][v][m]);
      sum += start;
      vf total = in_float ? (vf)sum - (vf)set1_int(one) : to_float(sum) * set1(x->d[at]);
      acc[m][v] = fma1(total, by->scale[v], acc[m][v]);
      if (has_minimum(scaling)) acc[m][v] = fma1(by->minimum[v], set1(x->d_sum[at]), acc[m][v]);
    }
  }
}

/* The same of int8; with halves, sums[0] and sums[1] are those of the two. */
INLINE void scale_int8(const int8_tile *t, vf (*acc)[2], tile_sums sums, long at, const tile_scales *by, const int rows, const int scaling) {
  const quantised_rows *x = t->x;
  const int32_t offset = has_minimum(scaling) ? 0 : t->w->offset;
  for (int m = 0; m < rows; m++, at += x->blocks) {
    const int32_t *halves = x->minus_sums + 2 * at;
    vf d = set1(x->d[at]);
    UNROLL for (int v = 0; v < 2; v++) {
      vf total;
      if (scaling == SCALE_SUPER_HALVES) {
        total = to_float(load_bytes((const uint8_t *)sums[0][v][m]) + set1_int(halves[0] * offset)) * by->part[0][v];
        total = total + to_float(load_bytes((const uint8_t *)sums[1][v][m]) + set1_int(halves[1] * offset)) * by->part[1][v];
      } else {
        total = to_float(load_bytes((const uint8_t *)sums[0][v][m]) + set1_int((halves[0] + halves[1]) * offset));
      }
      acc[m][v] += total * by->scale[v] * d;
      if (has_minimum(scaling)) acc[m][v] += by->minimum[v] * set1(x->d_sum[at]);
    }
  }
}

/* One block of int12: its sums, and what they add to the accumulators. */
INLINE void block_int12(const int8_tile *t, vf (*acc)[2], const uint8_t *quants, const uint16_t *halves, const uint8_t *parts, long b,
                        const int rows, int height, const int packing, const int scaling) {
  const quantised_rows *x = t->x;
  const int joined = packing == PACK_U4;
  const long at = t->row * x->blocks + b, stride = x->inputs * 2;
  const int8_t *from = x->bytes + t->row * stride + b * BLOCK * 2;
  tile_sums sums;
  tile_scales by;
  if (has_minimum(scaling)) load_scales(by.minimum, halves + PAIR, parts + PAIR, scaling);
  if (scaling == SCALE_SUPER_HALVES) {
    for (int half = 0; half < 2; half++) {
      load_scales(by.scale, halves, parts + half * PAIR, scaling);
      load_weights(quants, half * 4, 4, 0, packing);
      multiply_tiles(from + half * BLOCK / 2, stride, rows, height, sums, 0, 1);
      scale_int12(t, acc, sums, at, &by, half, rows, 0, packing, scaling);
    }
    return;
  }
  load_scales(by.scale, halves, parts, scaling);
  load_weights(quants, 0, 8, joined, packing);
  multiply_tiles(from, stride, rows, height, sums, 0, !joined);
  scale_int12(t, acc, sums, at, &by, -1, rows, joined, packing, scaling);
}

/* The same of int8. */
INLINE void block_int8(const int8_tile *t, vf (*acc)[2], const uint8_t *quants, const uint16_t *halves, const uint8_t *parts, long b,
                       const int rows, int height, const int packing, const int scaling) {
  const quantised_rows *x = t->x;
  const int8_t *from = x->q + t->row * x->inputs + b * BLOCK;
  const int is_halved = scaling == SCALE_SUPER_HALVES;
  tile_sums sums;
  tile_scales by;
  if (has_minimum(scaling)) load_scales(by.minimum, halves + PAIR, parts + PAIR, scaling);
  load_scales(by.scale, halves, parts, is_halved ? SCALE_PLAIN : scaling);
  for (int half = 0; half <= is_halved; half++) {
    for (int v = 0; is_halved && v < 2; v++) by.part[half][v] = to_float(load_i8(parts + half * PAIR + v * VL));
    load_weights(quants, half * 4, is_halved ? 4 : 8, 0, packing);
    multiply_tiles(from + half * BLOCK / 2, x->inputs, rows, height, sums, half, 0);
  }
  scale_int8(t, acc, sums, t->row * x->blocks + b, &by, rows, scaling);
}

/* All blocks of a pair of panels for `rows` rows, TILE_LEAST to TILE_CHUNK. */
INLINE void tile_chunk(const int8_tile *t, const int rows, const int words, const int packing, const int scaling) {
  const long panel_size = (long)panel_bytes(packing), block_size = (long)block_bytes(packing, scaling);
  const uint8_t *block = pair_of(t->w, t->pair), *units = block;
  const int height = rows < TILE_HEIGHT ? rows : TILE_HEIGHT;
  vf acc[TILE_CHUNK][2];
  for (int m = 0; m < rows; m++) acc[m][0] = acc[m][1] = set1(0);
  shape_tiles(height, scaling == SCALE_SUPER_HALVES ? BLOCK / 2 : words && packing == PACK_U4 ? 2 * BLOCK : BLOCK);
  for (long b = 0; b < t->w->blocks; b++, block += block_size) {
    if (has_super(scaling) && b % SUPER == 0) {
      units = block;
      prefetch(units + t->ahead);
      block += units_bytes(scaling);
    }
    UNROLL for (long line = 0; line < block_size; line += 64) prefetch(block + line + t->ahead);
    const uint8_t *parts = block + 2 * panel_size;
    const uint16_t *halves = (const uint16_t *)(has_super(scaling) ? units : parts);
    (words ? block_int12 : block_int8)(t, acc, block, halves, parts, b, rows, height, packing, scaling);
  }
  _tile_release();
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < 2; v++) {
      float *to = t->out + m * t->ld + v * VL;
      store(to, t->add ? load(to) + acc[m][v] : acc[m][v]);
    }
}

#define TILED(NAME, WORDS, PACKING, SCALING) \
  static void NAME(const int8_tile *t, int rows) { tile_chunk(t, rows, WORDS, PACKING, SCALING); }
#define TILED_KINDS(NAME, WORDS)                                                  \
  TILED(NAME##_u4, WORDS, PACK_U4, SCALE_PLAIN)                                   \
  TILED(NAME##_u4_min, WORDS, PACK_U4, SCALE_MIN)                                 \
  TILED(NAME##_u4_super, WORDS, PACK_U4, SCALE_SUPER_MIN)                         \
  TILED(NAME##_u5, WORDS, PACK_U5, SCALE_PLAIN)                                   \
  TILED(NAME##_u5_min, WORDS, PACK_U5, SCALE_MIN)                                 \
  TILED(NAME##_u5_super, WORDS, PACK_U5, SCALE_SUPER_MIN)                         \
  TILED(NAME##_u6_halves, WORDS, PACK_U6, SCALE_SUPER_HALVES)                     \
  TILED(NAME##_u8, WORDS, PACK_U8, SCALE_PLAIN)                                   \
  TILED(NAME##_m4, WORDS, PACK_M4, SCALE_PLAIN)                                   \
  static void (*const NAME##_choices[5][4])(const int8_tile *, int) = {           \
      {NAME##_u4, NAME##_u4_min, NAME##_u4_super, NULL},                          \
      {NAME##_u5, NAME##_u5_min, NAME##_u5_super, NULL},                          \
      {NULL, NULL, NULL, NAME##_u6_halves},                                       \
      {NAME##_u8, NULL, NULL, NULL},                                              \
      {NAME##_m4, NULL, NULL, NULL},                                              \
  };
TILED_KINDS(tiled_int8, 0)
TILED_KINDS(tiled_int12, 1)

/* In chunks of nearly equal height, at most TILE_CHUNK. */
static void linear_tiled(void (*chunk)(const int8_tile *, int), const matrix *w, long pair, const quantised_rows *x, long row, long rows,
                         float *out, long ld, int add) {
  long count = (rows + TILE_CHUNK - 1) / TILE_CHUNK;
  for (long i = 0, done = 0; i < count; i++) {
    int height = (int)((rows - done + count - i - 1) / (count - i));
    chunk(&(int8_tile){w, pair, 0, i == 0 ? AHEAD_BYTES : 0, x, row + done, out + done * ld, ld, add}, height);
    done += height;
  }
}

static void linear_int8_tiled(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld, int add) {
  if (rows < TILE_LEAST)
    linear_int8(w, pair, x, row, rows, out, ld, add);
  else
    linear_tiled(tiled_int8_choices[w->packing][w->scaling], w, pair, x, row, rows, out, ld, add);
}

static void linear_int12_tiled(const matrix *w, long pair, const quantised_rows *x, long row, long rows, float *out, long ld, int add) {
  if (rows < TILE_LEAST)
    linear_int12(w, pair, x, row, rows, out, ld, add);
  else
    linear_tiled(tiled_int12_choices[w->packing][w->scaling], w, pair, x, row, rows, out, ld, add);
}

/* Quantise to words, and to the bytes of tiles. */
static void quantise_int12_tiled(const float *x, quantised_rows *to, long row, long first, long count) {
  quantise_int12(x, to, row, first, count);
  for (long b = first; b < first + count; b++, x += BLOCK) {
    int8_t *bytes = to->bytes + (row * to->inputs + b * BLOCK) * 2;
    float d = to->d[row * to->blocks + b];
    vf inverse = set1(d > 0 ? 1.0f / d : 0.0f);
    vi mask = set1_int(d > 0 ? -1 : 0);
    for (int v = 0; v < PER_BLOCK; v++) {
      vi q = round_to_int(load(x + v * VL) * inverse) & mask;
      store_bytes(bytes + v * VL, q >> 4);
      store_bytes(bytes + BLOCK + v * VL, q & 15);
    }
  }
}
