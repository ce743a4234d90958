/* Attention over paged keys and values: softmax(q k) v of each (row, query head), independent of the other rows.

   Order of sums, the same as tlserve/kernels/reference/attention.py:
     score[t] = sum over components d ascending of q[d] * key[t][d], from 0, each operation rounded by itself
     p[t] = 2^(score[t] - greatest score)
     sum of p: 16 partial sums, number j over t = j, j + 16, ..., then folded by halves
     out[d] = (sum over t ascending of p[t] * value[t][d], from 0) / sum of p
   Stored keys and values are always finite; p of a key that the row does not see, after it or before its window, is
   exactly 0 and adds nothing: whole tiles of 16 before the window of every query of a tile are left out.

   A tile is up to QUERIES queries (row, head) of one key head: lanes run over keys for the scores, over components for the values. */

#if defined(TL_AVX512)
enum { QUERIES = 6, KEY_TILES = 4, VALUE_VECTORS = 4 };
#elif defined(TL_AVX2)
enum { QUERIES = 3, KEY_TILES = 1, VALUE_VECTORS = 2 };
#else
enum { QUERIES = 3, KEY_TILES = 1, VALUE_VECTORS = 4 };
#endif
enum { PER_TILE = KEY_TILE / VL };

typedef struct {
  const float *q[QUERIES];
  float *out[QUERIES];
  long start[QUERIES], position[QUERIES]; /* the first and the last key that each sees */
  long first, keys; /* all see some of [first, keys); first is a multiple of KEY_TILE */
} queries;

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
  long size = kv->head_size, padded = kv->padded_size, bs = kv->block_size, at = block * kv->block_heads + head;
  to_store(key, size, kv->half ? 65504.0f : 3.4028234663852886e38f, finite);
  if (kv->half) {
    uint16_t *keys = (uint16_t *)kv->keys + at * size * bs + slot;
    for (long d = 0; d < padded; d += VL) store_f16(halves + d, load(finite + d));
    for (long d = 0; d < size; d++) keys[d * bs] = halves[d];
  } else {
    float *keys = (float *)kv->keys + at * size * bs + slot;
    for (long d = 0; d < size; d++) keys[d * bs] = finite[d];
  }
  to_store(value, size, kv->half ? 65504.0f : 3.4028234663852886e38f, finite);
  long to = (at * bs + slot) * padded;
  for (long d = 0; d < padded; d += VL) {
    if (kv->half)
      store_f16((uint16_t *)kv->values + to + d, load(finite + d));
    else
      store((float *)kv->values + to + d, load(finite + d));
  }
}

/* scores of `tiles` tiles of 16 keys; component d of tile i's keys is at keys[i] + d * stride; meanwhile the memory at next[i] is
   prefetched */
INLINE void score(const queries *qs, const void *const *keys, const void *const *next, long stride, long size, float *scores,
                  long ld, const int count, const int tiles, const int half) {
  vf acc[QUERIES][KEY_TILES * PER_TILE];
  UNROLL for (int m = 0; m < count; m++) UNROLL for (int v = 0; v < tiles * PER_TILE; v++) acc[m][v] = set1(0);
  for (long d = 0; d < size; d++) {
    vf key[KEY_TILES * PER_TILE];
    UNROLL for (int v = 0; v < tiles * PER_TILE; v++) key[v] = load_kv(keys[v / PER_TILE], d * stride + v % PER_TILE * VL, half);
    UNROLL for (int i = 0; i < tiles; i++) prefetch((const char *)next[i] + d * KEY_TILE * (half ? 2 : 4));
    UNROLL for (int m = 0; m < count; m++) {
      vf q = set1(qs->q[m][d]);
      UNROLL for (int v = 0; v < tiles * PER_TILE; v++) acc[m][v] += q * key[v];
    }
  }
  UNROLL for (int m = 0; m < count; m++) UNROLL for (int v = 0; v < tiles * PER_TILE; v++)
    store(scores + m * ld + v * VL, acc[m][v]);
}

/* Where the 16 keys from position 16 tile on are: in one block, or copied together where blocks end elsewhere. */
static const void *key_tile(const attention *a, long head, long tile, long keys, long *stride, void *copy) {
  const kv_layer *kv = &a->kv;
  long bs = kv->block_size, size = kv->head_size, width = kv->half ? 2 : 4, first = tile * KEY_TILE;
  const char *base = kv->keys;
  if (bs % KEY_TILE == 0) {
    *stride = bs;
    return base + ((a->table[first / bs] * kv->block_heads + head) * size * bs + first % bs) * width;
  }
  *stride = KEY_TILE;
  for (long t = first; t < first + KEY_TILE; t++) {
    long key = t < keys ? t : keys - 1;
    const char *from = base + ((a->table[key / bs] * kv->block_heads + head) * size * bs + key % bs) * width;
    for (long d = 0; d < size; d++) memcpy((char *)copy + (d * KEY_TILE + t - first) * width, from + d * bs * width, (size_t)width);
  }
  return copy;
}

/* Where the values from `position` on are; the first ones for a position that the query does not see. */
static const void *value_block(const attention *a, long head, long position, long keys) {
  const kv_layer *kv = &a->kv;
  long bs = kv->block_size, at = position < keys ? position : 0;
  long slot = (a->table[at / bs] * kv->block_heads + head) * bs + at % bs;
  return (const char *)kv->values + slot * kv->padded_size * (kv->half ? 2 : 4);
}

INLINE void all_scores(const attention *a, const queries *qs, long head, float *scores, long ld, void *copy, const int count,
                       const int half) {
  long tiles = (qs->keys + KEY_TILE - 1) / KEY_TILE, tile = qs->first / KEY_TILE, stride;
  if (a->kv.block_size % KEY_TILE == 0)
    for (; tile + KEY_TILES <= tiles; tile += KEY_TILES) {
      const void *keys[KEY_TILES], *next[KEY_TILES];
      for (int i = 0; i < KEY_TILES; i++) {
        keys[i] = key_tile(a, head, tile + i, qs->keys, &stride, copy);
        next[i] = tile + KEY_TILES + i < tiles ? key_tile(a, head, tile + KEY_TILES + i, qs->keys, &stride, copy)
                                               : value_block(a, head, qs->first + (tile + KEY_TILES + i - tiles) * KEY_TILE, qs->keys);
      }
      score(qs, keys, next, stride, a->kv.head_size, scores + tile * KEY_TILE - qs->first, ld, count, KEY_TILES, half);
    }
  for (; tile < tiles; tile++) {
    const void *keys = key_tile(a, head, tile, qs->keys, &stride, copy), *next = value_block(a, head, qs->first, qs->keys);
    score(qs, &keys, &next, stride, a->kv.head_size, scores + tile * KEY_TILE - qs->first, ld, count, 1, half);
  }
}

/* scores[0 .. n) become probabilities, those outside of [start, end) exactly 0; returns their sum. n is a multiple of 16. */
static float softmax(float *restrict scores, long start, long end, long n) {
  for (long t = 0; t < start; t++) scores[t] = -INFINITY;
  for (long t = end; t < n; t++) scores[t] = -INFINITY;
  float most[KEY_TILE], partial[KEY_TILE] = {0};
  memcpy(most, scores, sizeof most);
  for (long t = 0; t < n; t += KEY_TILE)
    for (int i = 0; i < KEY_TILE; i++) most[i] = scores[t + i] > most[i] ? scores[t + i] : most[i];
  float greatest = most[0];
  for (int i = 1; i < KEY_TILE; i++) greatest = most[i] > greatest ? most[i] : greatest;
  for (long t = 0; t < n; t += KEY_TILE)
    for (int i = 0; i < KEY_TILE; i++) {
      scores[t + i] = exp2_one(scores[t + i] - greatest);
      partial[i] += scores[t + i];
    }
  return sum_in_halves(partial, KEY_TILE);
}

/* acc[m][v] over the keys, for the components from `component` on */
INLINE void weigh_values(const attention *a, const queries *qs, long head, long component, const float *scores, long ld,
                         const float *sums, const int count, const int vectors, const int half) {
  const kv_layer *kv = &a->kv;
  long bs = kv->block_size, padded = kv->padded_size;
  vf acc[QUERIES][VALUE_VECTORS];
  UNROLL for (int m = 0; m < count; m++) UNROLL for (int v = 0; v < vectors; v++) acc[m][v] = set1(0);
  for (long start = qs->first, run; start < qs->keys; start += run) {
    long left = qs->keys - start, slot = start % bs;
    run = left < bs - slot ? left : bs - slot;
    long at = ((a->table[start / bs] * kv->block_heads + head) * bs + slot) * padded + component;
    const char *next = value_block(a, head, start + bs, qs->keys);
    for (long t = 0; t < run; t++, at += padded) {
      vf value[VALUE_VECTORS];
      UNROLL for (int v = 0; v < vectors; v++) value[v] = load_kv(kv->values, at + v * VL, half);
      for (long byte = 0; byte < vectors * VL * (half ? 2 : 4); byte += 64) prefetch(next + t * padded * (half ? 2 : 4) + byte);
      UNROLL for (int m = 0; m < count; m++) {
        vf p = set1(scores[m * ld + start - qs->first + t]);
        UNROLL for (int v = 0; v < vectors; v++) acc[m][v] += p * value[v];
      }
    }
  }
  UNROLL for (int m = 0; m < count; m++) {
    float result[VALUE_VECTORS * VL];
    UNROLL for (int v = 0; v < vectors; v++) store(result + v * VL, acc[m][v] / set1(sums[m]));
    long left = kv->head_size - component, width = left < vectors * VL ? left : vectors * VL;
    memcpy(qs->out[m] + component, result, (size_t)width * sizeof(float));
  }
}

INLINE void attend_tile(const attention *a, const queries *qs, long head, float *scratch, const int count, const int half) {
  long n = (qs->keys - qs->first + KEY_TILE - 1) / KEY_TILE * KEY_TILE, component = 0;
  float *scores = scratch + KEY_TILE * a->kv.head_size, sums[QUERIES];
  all_scores(a, qs, head, scores, n, scratch, count, half);
  for (int m = 0; m < count; m++) sums[m] = softmax(scores + m * n, qs->start[m] - qs->first, qs->position[m] + 1 - qs->first, n);
  for (; component + VALUE_VECTORS * VL <= a->kv.padded_size; component += VALUE_VECTORS * VL)
    weigh_values(a, qs, head, component, scores, n, sums, count, VALUE_VECTORS, half);
  for (; component < a->kv.padded_size; component += VL) weigh_values(a, qs, head, component, scores, n, sums, count, 1, half);
}

/* NAME(..., count): the tile's function with the number of queries as a constant. A case above QUERIES cannot occur; it compiles as
   one query, so that no loop exceeds the arrays of a tile. */
#define ATTEND_TILES(NAME, HALF)                                                             \
  static void NAME(const attention *a, const queries *qs, long head, float *scratch, int count) { \
    switch (count) {                                                                         \
      case 1: attend_tile(a, qs, head, scratch, 1, HALF); break;                             \
      case 2: attend_tile(a, qs, head, scratch, 2, HALF); break;                             \
      case 3: attend_tile(a, qs, head, scratch, 3, HALF); break;                             \
      case 4: attend_tile(a, qs, head, scratch, QUERIES < 4 ? 1 : 4, HALF); break;           \
      case 5: attend_tile(a, qs, head, scratch, QUERIES < 5 ? 1 : 5, HALF); break;           \
      case 6: attend_tile(a, qs, head, scratch, QUERIES < 6 ? 1 : 6, HALF); break;           \
    }                                                                                        \
  }
ATTEND_TILES(attend_tiles_f16, 1)
ATTEND_TILES(attend_tiles_f32, 0)

static void attend(const attention *a, long row, long rows, long position, long head, float *scratch) {
  long lanes = rows * a->group, size = a->kv.head_size;
  for (long first = 0; first < lanes; first += QUERIES) {
    queries qs = {0};
    int count = (int)(lanes - first < QUERIES ? lanes - first : QUERIES);
    for (int m = 0; m < count; m++) {
      long r = (first + m) / a->group, component = (head * a->group + (first + m) % a->group) * size;
      qs.q[m] = a->q + (row + r) * a->ld_q + component;
      qs.out[m] = a->out + (row + r) * a->ld_out + component;
      qs.position[m] = position + r;
      qs.start[m] = a->window && a->window <= position + r ? position + r + 1 - a->window : 0;
      qs.keys = position + r + 1;
    }
    qs.first = qs.start[0] / KEY_TILE * KEY_TILE; /* positions ascend */
    (a->kv.half ? attend_tiles_f16 : attend_tiles_f32)(a, &qs, head, scratch, count);
  }
}
