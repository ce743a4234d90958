/* Attention over paged keys and values: softmax(q k) v of each (row, query head), independent of the other rows.

   Order of operations, the same as tlserve/kernels/reference/attention.py. Keys are cut into segments of 256, counted from position 0.
   Of each segment:
     score[t] = chain of fma(q[d], key[t][d], score[t]) over components d ascending, from 0; capped where the layer caps scores
     most = the greatest of -FLT_MAX and the scores that are not nan;  p[t] = 2^(score[t] - most)
     sum: 16 partial sums of p, number j over t = j, j + 16, ..., then folded by halves
     out[d] = chain of fma(p[t], value[t][d], out[d]) over t ascending, from 0
   and the segments are joined in ascending order, from most = -FLT_MAX and zeros, each operation rounded by itself:
     both = the greater most;  a = 2^(most so far - both), b = 2^(most of the segment - both)
     sum = sum so far * a + sum of the segment * b;  out[d] likewise
   A sink is joined last, as a segment with most = sink, sum = 1 and zeros. The result is out[d] / sum + 0 (which makes -0 to 0).
   Stored keys and values are always finite; p of a key that the row does not see, after it or before its window, is exactly 0. So
   a tile of 16 keys, or a segment, of which a row sees nothing, changes no bit and can be left out.

   Queries of one key head go through a segment in tiles of up to QUERIES: lanes run over keys for the scores, over components for the
   values. A unit with several tiles makes f32 of the segment first, in the order in which the tiles read it. */
#include <float.h>

#if defined(TL_AVX512)
enum { KEY_TILES = 4, VALUE_VECTORS = 4 };
#elif defined(TL_AVX2)
enum { KEY_TILES = 1, VALUE_VECTORS = 2 };
#else
enum { KEY_TILES = 1, VALUE_VECTORS = 4 };
#endif
enum { PER_TILE = KEY_TILE / VL, SEGMENT_TILES = SEGMENT / KEY_TILE, MOST_KEY_TILES = 4 };

/* One segment of one key head, as the kernels read it; of each 16 keys: component d at keys[tile] + d * key_stride, the value of key t
   at values[tile] + t * padded. The keys after SEGMENT_TILES are only prefetched. */
typedef struct {
  const void *keys[SEGMENT_TILES + MOST_KEY_TILES], *values[SEGMENT_TILES];
  long key_stride, size, padded;
} segment;

/* Queries in a segment, whose keys are counted from its first. */
typedef struct {
  const float *q;                /* [size][QUERIES] */
  float *scores;                 /* [QUERIES][SEGMENT] */
  float *parts;                  /* [QUERIES][part_floats(padded)] what becomes of them */
  long start[QUERIES], end[QUERIES]; /* what each sees */
  long first_tile, keys;         /* what any sees: from this tile on, below this number */
  float cap;
} queries;

/* What some keys give to a query: out[padded], then most and sum. */
enum { PART_MOST = 0, PART_SUM = 1 };

INLINE vf load_kv(const void *p, long at, const int half) {
  return half ? load_f16((const uint16_t *)p + at) : load((const float *)p + at);
}

/* Round to the store's precision; nan becomes 0, what is too large the greatest finite number. */
static void to_store(const float *x, long n, float greatest, float *to) {
  for (long i = 0; i < n; i++) {
    float v = x[i] == x[i] ? x[i] : 0.0f;
    v = v > greatest ? greatest : v;
    to[i] = v < -greatest ? -greatest : v;
  }
}

static void write_kv(const kv_layer *kv, long block, long slot, long head, const float *key, const float *value) {
  float finite[MOST_HEAD_SIZE] = {0};
  uint16_t halves[MOST_HEAD_SIZE];
  long size = kv->head_size, padded = kv->padded_size, bs = kv->block_size;
  to_store(key, size, kv->half ? 65504.0f : FLT_MAX, finite);
  if (kv->half) {
    uint16_t *keys = (uint16_t *)kv->keys + block * kv->block_keys + head * size * bs + slot;
    for (long d = 0; d < padded; d += VL) store_f16(halves + d, load(finite + d));
    for (long d = 0; d < size; d++) keys[d * bs] = halves[d];
  } else {
    float *keys = (float *)kv->keys + block * kv->block_keys + head * size * bs + slot;
    for (long d = 0; d < size; d++) keys[d * bs] = finite[d];
  }
  to_store(value, size, kv->half ? 65504.0f : FLT_MAX, finite);
  long to = block * kv->block_values + (head * bs + slot) * padded;
  for (long d = 0; d < padded; d += VL) {
    if (kv->half)
      store_f16((uint16_t *)kv->values + to + d, load(finite + d));
    else
      store((float *)kv->values + to + d, load(finite + d));
  }
}

/* ---- the segment ---- */

/* Where the key of a position is: its component d is d * block_size further. */
static const char *key_at(const attention *a, long head, long position) {
  const kv_layer *kv = &a->kv;
  long bs = kv->block_size;
  long at = a->table[position / bs] * kv->block_keys + head * kv->head_size * bs + position % bs;
  return (const char *)kv->keys + at * (kv->half ? 2 : 4);
}

static const char *value_at(const attention *a, long head, long position) {
  const kv_layer *kv = &a->kv;
  long bs = kv->block_size, slot = head * bs + position % bs;
  return (const char *)kv->values + (a->table[position / bs] * kv->block_values + slot * kv->padded_size) * (kv->half ? 2 : 4);
}

/* The segment from position `first` on where it is stored: blocks are whole tiles. Keys from `end` on are not in the table. */
static void point_to_segment(const attention *a, long head, long first, long end, segment *s) {
  s->key_stride = a->kv.block_size;
  for (long tile = 0; tile < SEGMENT_TILES + MOST_KEY_TILES; tile++) {
    long position = first + tile * KEY_TILE;
    s->keys[tile] = position < end ? key_at(a, head, position) : s->keys[0];
    if (tile < SEGMENT_TILES) s->values[tile] = position < end ? value_at(a, head, position) : s->keys[0];
  }
}

/* The 16 keys from `position` on in f32: component d at to + d * stride */
static void unpack_keys(const attention *a, long head, long position, long end, float *to, long stride) {
  const kv_layer *kv = &a->kv;
  long bs = kv->block_size;
  if (bs % KEY_TILE == 0) {
    const void *from = key_at(a, head, position);
    for (long d = 0; d < kv->head_size; d++)
      for (int v = 0; v < PER_TILE; v++) store(to + d * stride + v * VL, load_kv(from, d * bs + v * VL, kv->half));
    return;
  }
  for (long t = 0; t < KEY_TILE; t++) {
    const char *from = key_at(a, head, position + t < end ? position + t : end - 1);
    for (long d = 0; d < kv->head_size; d++) {
      uint16_t half[VL] = {0};
      float whole[VL];
      if (kv->half) {
        memcpy(half, from + d * bs * 2, 2);
        store(whole, load_f16(half));
      } else {
        memcpy(whole, from + d * bs * 4, 4);
      }
      to[d * stride + t] = whole[0];
    }
  }
}

/* The segment's keys in [first_tile, keys) in f32, in the order in which `score` and `weigh_values` read them */
static void unpack_segment(const attention *a, long head, long first, long first_tile, long keys, segment *s, float *to) {
  const kv_layer *kv = &a->kv;
  long group = s->key_stride = MOST_KEY_TILES * KEY_TILE, end = first + keys;
  float *values = to + SEGMENT * s->size;
  for (long tile = 0; tile < SEGMENT_TILES + MOST_KEY_TILES; tile++) s->keys[tile] = s->values[tile % SEGMENT_TILES] = to;
  for (long tile = first_tile; tile * KEY_TILE < keys; tile++) {
    float *at = to + tile / MOST_KEY_TILES * s->size * group + tile % MOST_KEY_TILES * KEY_TILE;
    s->keys[tile] = at;
    s->values[tile] = values + tile * KEY_TILE * s->padded;
    unpack_keys(a, head, first + tile * KEY_TILE, end, at, group);
  }
  for (long t = first_tile * KEY_TILE, run; t < keys; t += run) {
    long to_block_end = kv->block_size - (first + t) % kv->block_size;
    run = to_block_end < keys - t ? to_block_end : keys - t;
    const void *from = value_at(a, head, first + t);
    for (long i = 0; i < run * s->padded; i += VL) store(values + t * s->padded + i, load_kv(from, i, kv->half));
  }
}

/* ---- a tile of queries in a segment ---- */

/* scores of `tiles` tiles of 16 keys; meanwhile as many tiles at next[i] are prefetched */
INLINE void score(const queries *qs, const segment *s, long tile, const void *const *next, const int count, const int tiles,
                  const int half) {
  vf acc[QUERIES][KEY_TILES * PER_TILE];
  const void *keys[KEY_TILES];
  long stride = s->key_stride, size = s->size;
  for (int i = 0; i < tiles; i++) keys[i] = s->keys[tile + i];
  UNROLL for (int m = 0; m < count; m++) UNROLL for (int v = 0; v < tiles * PER_TILE; v++) acc[m][v] = set1(0);
  const float *q = qs->q;
  for (long d = 0; d < size; d++, q += QUERIES) {
    vf key[KEY_TILES * PER_TILE];
    UNROLL for (int v = 0; v < tiles * PER_TILE; v++) key[v] = load_kv(keys[v / PER_TILE], d * stride + v % PER_TILE * VL, half);
    UNROLL for (int i = 0; i < tiles; i++) prefetch((const char *)next[i] + d * stride * (half ? 2 : 4));
    UNROLL for (int m = 0; m < count; m++) {
      vf component = set1(q[m]);
      UNROLL for (int v = 0; v < tiles * PER_TILE; v++) acc[m][v] = fma1(component, key[v], acc[m][v]);
    }
  }
  UNROLL for (int m = 0; m < count; m++) UNROLL for (int v = 0; v < tiles * PER_TILE; v++)
    store(qs->scores + m * SEGMENT + tile * KEY_TILE + v * VL, acc[m][v]);
}

INLINE void all_scores(const queries *qs, const segment *s, const int count, const int half) {
  long tile = qs->first_tile, tiles = (qs->keys + KEY_TILE - 1) / KEY_TILE;
  for (; tile + KEY_TILES <= tiles; tile += KEY_TILES) {
    const void *const *next = tile + 2 * KEY_TILES <= tiles ? s->keys + tile + KEY_TILES : s->values + qs->first_tile;
    score(qs, s, tile, next, count, KEY_TILES, half);
  }
  for (; tile < tiles; tile++) score(qs, s, tile, s->values + qs->first_tile, count, 1, half);
}

/* exp2_one of numbers that are not above 0, or nan */
INLINE vf exp2_below_one(vf x) {
  x = greater(set1(-127.0f), x);
  vi n = round_to_int(x);
  vf f = x - to_float(n), power = f * set1(0.001326472731307149f);
  power = (power + set1(0.009671512991189957f)) * f;
  power = (power + set1(0.05550733581185341f)) * f;
  power = (power + set1(0.24022242426872253f)) * f;
  power = (power + set1(0.6931470036506653f)) * f;
  power = power + set1(1.0f);
  return power * (vf)((n + 127) << 23);
}

/* soft_cap of the scores in [from, n), a multiple of 16 */
static void cap_scores(float *scores, long from, long n, float cap) {
  vf sign = (vf)set1_int((int32_t)0x80000000), one = set1(1.0f);
  for (long t = from; t < n; t += VL) {
    vf x = load(scores + t);
    vf e = exp2_below_one((vf)((vi)x & ~(vi)sign) / set1(cap) * set1(-2.8853900817779268f));
    vf capped = (one - e) / (one + e) * set1(cap);
    store(scores + t, (vf)(((vi)capped & ~(vi)sign) | ((vi)x & (vi)sign)));
  }
}

/* The scores in [from, n) become probabilities, those outside of [start, end) exactly 0; from and n are multiples of 16. */
static void softmax(float *scores, long from, long n, long start, long end, float *most_and_sum) {
  for (long t = from; t < start && t < n; t++) scores[t] = -INFINITY;
  for (long t = end > from ? end : from; t < n; t++) scores[t] = -INFINITY;
  vf most[PER_TILE], partial[PER_TILE];
  UNROLL for (int v = 0; v < PER_TILE; v++) most[v] = set1(-FLT_MAX), partial[v] = set1(0);
  for (long t = from; t < n; t += KEY_TILE)
    UNROLL for (int v = 0; v < PER_TILE; v++) most[v] = greater(load(scores + t + v * VL), most[v]);
  float lanes[KEY_TILE];
  UNROLL for (int v = 0; v < PER_TILE; v++) store(lanes + v * VL, most[v]);
  for (int half = KEY_TILE / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
  float greatest = lanes[0];
  for (long t = from; t < n; t += KEY_TILE)
    UNROLL for (int v = 0; v < PER_TILE; v++) {
      vf p = exp2_below_one(load(scores + t + v * VL) - set1(greatest));
      store(scores + t + v * VL, p);
      partial[v] += p;
    }
  UNROLL for (int v = 0; v < PER_TILE; v++) store(lanes + v * VL, partial[v]);
  most_and_sum[PART_MOST] = greatest;
  most_and_sum[PART_SUM] = sum_in_halves(lanes, KEY_TILE);
}

/* out of the parts, for the components from `component` on */
INLINE void weigh_values(const queries *qs, const segment *s, long component, const int count, const int vectors, const int half) {
  long padded = s->padded, width = half ? 2 : 4;
  vf acc[QUERIES][VALUE_VECTORS];
  UNROLL for (int m = 0; m < count; m++) UNROLL for (int v = 0; v < vectors; v++) acc[m][v] = set1(0);
  for (long tile = qs->first_tile; tile * KEY_TILE < qs->keys; tile++) {
    long left = qs->keys - tile * KEY_TILE, here = left < KEY_TILE ? left : KEY_TILE;
    const void *values = s->values[tile];
    const char *next = left > KEY_TILE ? s->values[tile + 1] : s->keys[SEGMENT_TILES];
    const float *p = qs->scores + tile * KEY_TILE;
    for (long t = 0, at = component; t < here; t++, at += padded) {
      vf value[VALUE_VECTORS];
      UNROLL for (int v = 0; v < vectors; v++) value[v] = load_kv(values, at + v * VL, half);
      for (int byte = 0; byte < vectors * VL * (half ? 2 : 4); byte += 64) prefetch(next + at * width + byte);
      UNROLL for (int m = 0; m < count; m++) {
        vf weight = set1(p[m * SEGMENT + t]);
        UNROLL for (int v = 0; v < vectors; v++) acc[m][v] = fma1(weight, value[v], acc[m][v]);
      }
    }
  }
  UNROLL for (int m = 0; m < count; m++) UNROLL for (int v = 0; v < vectors; v++)
    store(qs->parts + m * part_floats(padded) + component + v * VL, acc[m][v]);
}

INLINE void attend_tile(const queries *qs, const segment *s, const int count, const int half) {
  long n = (qs->keys + KEY_TILE - 1) / KEY_TILE * KEY_TILE, component = 0;
  all_scores(qs, s, count, half);
  for (int m = 0; qs->cap > 0 && m < count; m++) cap_scores(qs->scores + m * SEGMENT, qs->first_tile * KEY_TILE, n, qs->cap);
  for (int m = 0; m < count; m++)
    softmax(qs->scores + m * SEGMENT, qs->first_tile * KEY_TILE, n, qs->start[m], qs->end[m],
            qs->parts + m * part_floats(s->padded) + s->padded);
  for (; component + VALUE_VECTORS * VL <= s->padded; component += VALUE_VECTORS * VL)
    weigh_values(qs, s, component, count, VALUE_VECTORS, half);
  for (; component < s->padded; component += VL) weigh_values(qs, s, component, count, 1, half);
}

/* NAME(..., count): the tile's function with the number of queries as a constant. */
#define ATTEND_TILES(NAME, HALF)                                          \
  static void NAME(const queries *qs, const segment *s, int count) {      \
    switch (count) {                                                      \
      case 1: attend_tile(qs, s, 1, HALF); break;                         \
      case 2: attend_tile(qs, s, 2, HALF); break;                         \
      case 3: attend_tile(qs, s, 3, HALF); break;                         \
      case 4: attend_tile(qs, s, 4, HALF); break;                         \
      case 5: attend_tile(qs, s, 5, HALF); break;                         \
      case 6: attend_tile(qs, s, 6, HALF); break;                         \
    }                                                                     \
  }
ATTEND_TILES(attend_tiles_f16, 1)
ATTEND_TILES(attend_tiles_f32, 0)

/* ---- a unit ---- */

static void join(float *restrict so_far, const float *restrict part, long padded) {
  float *state = so_far + padded;
  const float *added = part + padded;
  float both = added[PART_MOST] > state[PART_MOST] ? added[PART_MOST] : state[PART_MOST];
  float a = exp2_one(state[PART_MOST] - both), b = exp2_one(added[PART_MOST] - both);
  for (long d = 0; d < padded; d++) so_far[d] = so_far[d] * a + part[d] * b;
  state[PART_SUM] = state[PART_SUM] * a + added[PART_SUM] * b;
  state[PART_MOST] = both;
}

/* The queries of one unit: lane i is head i % group of row i / group. */
typedef struct {
  const attention *a;
  long row, rows, position, head, lanes;
  float *q, *joined, *scores, *parts, *segment; /* scratch: see attend_scratch */
} unit;

static void open_unit(unit *u, float *scratch) {
  const attention *a = u->a;
  long size = a->kv.head_size, part = part_floats(a->kv.padded_size), tiles = (u->lanes + QUERIES - 1) / QUERIES;
  u->scores = scratch;
  u->parts = u->scores + QUERIES * SEGMENT;
  u->joined = u->parts + QUERIES * part;
  u->q = u->joined + tiles * QUERIES * part;
  u->segment = u->q + (tiles * QUERIES * size + 15) / 16 * 16;
  memset(u->joined, 0, (size_t)(u->lanes * part) * sizeof(float));
  for (long lane = 0; lane < u->lanes; lane++) {
    const float *q = a->q + (u->row + lane / a->group) * a->ld_q + (u->head * a->group + lane % a->group) * size;
    float *to = u->q + lane / QUERIES * QUERIES * size + lane % QUERIES;
    for (long d = 0; d < size; d++) to[d * QUERIES] = q[d];
    u->joined[lane * part + a->kv.padded_size + PART_MOST] = -FLT_MAX;
  }
}

/* The keys [start_of, end_of) that a row sees. */
static long start_of(const attention *a, long position) {
  long before = a->length ? a->window : a->window - 1;
  return a->window && before < position ? position - before : 0;
}

static long end_of(const attention *a, long position) {
  if (!a->length) return position + 1;
  return a->window && a->window < a->length - position ? position + a->window + 1 : a->length;
}

/* The tile of queries from `lane` on, in the segment from position `first` on; joins what it gives. */
static void attend_lanes(const unit *u, const segment *s, long first, long lane, int half) {
  const attention *a = u->a;
  long part = part_floats(s->padded), end = 0;
  queries qs = {.q = u->q + lane * s->size, .scores = u->scores, .parts = u->parts, .cap = a->cap};
  int count = (int)(u->lanes - lane < QUERIES ? u->lanes - lane : QUERIES);
  for (int m = 0; m < count; m++) {
    long position = u->position + (lane + m) / a->group;
    end = end_of(a, position) - first;
    qs.start[m] = start_of(a, position) - first;
    qs.end[m] = end;
  }
  qs.first_tile = qs.start[0] > 0 ? qs.start[0] / KEY_TILE : 0; /* positions ascend */
  qs.keys = end < SEGMENT ? end : SEGMENT;
  if (qs.keys <= qs.first_tile * KEY_TILE) return;
  (half ? attend_tiles_f16 : attend_tiles_f32)(&qs, s, count);
  for (int m = 0; m < count; m++) join(u->joined + (lane + m) * part, u->parts + m * part, s->padded);
}

static void close_unit(const unit *u) {
  const attention *a = u->a;
  long size = a->kv.head_size, padded = a->kv.padded_size, part = part_floats(padded);
  memset(u->parts, 0, (size_t)padded * sizeof(float)); /* of a sink */
  u->parts[padded + PART_SUM] = 1.0f;
  for (long lane = 0; lane < u->lanes; lane++) {
    float *joined = u->joined + lane * part;
    if (a->sinks) {
      u->parts[padded + PART_MOST] = a->sinks[u->head * a->group + lane % a->group];
      join(joined, u->parts, padded);
    }
    float *out = a->out + (u->row + lane / a->group) * a->ld_out + (u->head * a->group + lane % a->group) * size;
    float sum = joined[padded + PART_SUM];
    for (long d = 0; d < size; d++) out[d] = joined[d] / sum + 0.0f;
  }
}

static void attend(const attention *a, long row, long rows, long position, long head, float *scratch) {
  unit u = {a, row, rows, position, head, rows * a->group, 0, 0, 0, 0, 0};
  int in_place = u.lanes <= QUERIES && a->kv.block_size % KEY_TILE == 0;
  long start = start_of(a, position), end = end_of(a, position + rows - 1);
  open_unit(&u, scratch);
  for (long first = start / SEGMENT * SEGMENT; first < end; first += SEGMENT) {
    segment s = {.size = a->kv.head_size, .padded = a->kv.padded_size};
    long skipped = start > first ? (start - first) / KEY_TILE : 0;
    if (in_place)
      point_to_segment(a, head, first, end, &s);
    else
      unpack_segment(a, head, first, skipped, end - first < SEGMENT ? end - first : SEGMENT, &s, u.segment);
    for (long lane = 0; lane < u.lanes; lane += QUERIES) attend_lanes(&u, &s, first, lane, in_place && a->kv.half);
  }
  close_unit(&u);
}
