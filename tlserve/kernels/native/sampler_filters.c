/* The filters of a field, as engine/sampling/sampler.py has them: the lower id first among equals, and whole shares in top-p. */
#include "sampler_field.h"

#include "sampler_draw_math.h"
#include "sampler_keys.h"

enum { BUCKETS = 1024, BUCKETS_PER_UNIT = 32 };

/* ---- sums ---- */

double field_total(const field *f, const double *numbers) {
  double *lanes = f->memory->lanes;
  return sum_lanes_up(lanes, f->s->loops.lane_sums(numbers, f->n, lanes));
}

long field_pick(const field *f, double u) {
  double *lanes = f->memory->lanes;
  const double *weights = f->memory->weights;
  long used = f->s->loops.lane_sums(weights, f->n, lanes);
  double target = u * sum_lanes_up(lanes, used);
  long lane = pick(lanes, used, 1, &target);
  return lane + LANES * pick(weights + lane, (f->n - lane + LANES - 1) / LANES, LANES, &target);
}

/* ---- the best ---- */

/* Fill up to twice as many keys, sort, keep half, and from then on add only better ones. */
void find_best(const field *f, long count) {
  uint64_t *keys = f->memory->keys;
  long n = f->n, most = count < n / 2 ? 2 * count : n, filled = 0, i = 0;
  for (; i < most; i++) keys[filled++] = key_of(f->values[i], i);
  sort_keys(keys, filled, keys + most);
  while (i < n) {
    float bound = value_of(keys[count - 1]);
    filled = count;
    while (filled < most && (i = f->s->loops.above(f->values, i, n, bound)) < n) {
      keys[filled++] = key_of(f->values[i], i);
      i++;
    }
    sort_keys(keys, filled, keys + most);
  }
}

void keep_places(field *f, long count) {
  workspace *r = f->memory;
  for (long j = 0; j < count; j++) r->keys[j] &= UINT32_MAX;
  sort_keys(r->keys, count, r->keys + count);
  for (long j = 0; j < count; j++) { /* places ascend, so that nothing is overwritten before it was read */
    long place = (long)r->keys[j];
    r->ids[j] = f->ids ? f->ids[place] : (int32_t)place;
    r->values[j] = f->values[place];
  }
  f->ids = r->ids;
  f->values = r->values;
  f->n = count;
}

void keep_best(field *f, long count) {
  find_best(f, count);
  keep_places(f, count);
}

void keep_allowed(field *f, const uint32_t *mask) {
  workspace *r = f->memory;
  f->n = f->s->loops.keep(f->values, f->n, mask, r->values, r->ids);
  f->ids = r->ids;
  f->values = r->values;
}

/* ---- by weight ---- */

/* Move what is at `place`, with its weight, to place `to`, which is not behind it. */
static inline void move_to(const field *f, long to, long place) {
  workspace *r = f->memory;
  r->ids[to] = f->ids ? f->ids[place] : (int32_t)place;
  r->values[to] = f->values[place];
  r->weights[to] = r->weights[place];
}

static void cut(field *f, long count) {
  f->ids = f->memory->ids;
  f->values = f->memory->values;
  f->n = count;
}

/* Put each place into a bucket by how far its logit is below the best; later buckets are worse. Return the sum of all shares. */
static int64_t fill_buckets(const field *f, double best, double temperature, int64_t *sums) {
  double scale = temperature > 1e-6 ? BUCKETS_PER_UNIT / temperature : BUCKETS_PER_UNIT * 1e6;
  int64_t all = 0;
  for (long i = 0; i < f->n; i++) {
    double distance = (best - f->values[i]) * scale;
    f->memory->buckets[i] = distance < BUCKETS - 1 ? (uint16_t)distance : BUCKETS - 1;
  }
  for (long i = 0; i < f->n; i++) sums[f->memory->buckets[i]] += share_of(f->memory->weights[i]);
  for (int b = 0; b < BUCKETS; b++) all += sums[b];
  return all;
}

/* The key of the last place in `bucket` that the nucleus needs, to bring `reached` up to `enough`. */
static uint64_t last_key(const field *f, int bucket, int64_t reached, int64_t enough) {
  const workspace *r = f->memory;
  long count = 0;
  for (long i = 0; i < f->n; i++)
    if (r->buckets[i] == bucket) r->keys[count++] = key_of(f->values[i], i);
  sort_keys(r->keys, count, r->keys + count);
  for (long j = 0; j < count; j++) {
    reached += share_of(r->weights[r->keys[j] & UINT32_MAX]);
    if (reached >= enough) return r->keys[j];
  }
  return UINT64_MAX;
}

/* The last of the nucleus: everything in the buckets before `bucket`, and in it the keys up to `key`. */
typedef struct {
  int bucket;
  uint64_t key;
} nucleus_end;

static nucleus_end find_nucleus(const field *f, double best, double temperature, double top_p) {
  int64_t sums[BUCKETS] = {0}, reached = 0, enough = (int64_t)(top_p * (double)fill_buckets(f, best, temperature, sums));
  int bucket = 0;
  for (; bucket < BUCKETS - 1 && reached + sums[bucket] < enough; bucket++) reached += sums[bucket];
  return (nucleus_end){bucket, last_key(f, bucket, reached, enough)};
}

static inline int is_in_nucleus(const field *f, nucleus_end end, long i) {
  int bucket = f->memory->buckets[i];
  return bucket < end.bucket || (bucket == end.bucket && key_of(f->values[i], i) <= end.key);
}

long nucleus_size(const field *f, double best, double temperature, double top_p) {
  nucleus_end end = find_nucleus(f, best, temperature, top_p);
  long count = 0;
  for (long i = 0; i < f->n; i++) count += is_in_nucleus(f, end, i);
  return count;
}

void keep_nucleus(field *f, double best, double temperature, double top_p) {
  nucleus_end end = find_nucleus(f, best, temperature, top_p);
  long kept = 0;
  for (long i = 0; i < f->n; i++)
    if (is_in_nucleus(f, end, i)) move_to(f, kept++, i);
  cut(f, kept);
}

void keep_heavy(field *f, double least) {
  long kept = 0;
  for (long i = 0; i < f->n; i++)
    if (f->memory->weights[i] >= least) move_to(f, kept++, i);
  cut(f, kept);
}
