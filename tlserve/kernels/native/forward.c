/* The order of a forward pass: phases, in each of which the threads take units of work, with a barrier after each.

   A unit is computed whole by one thread and never depends on which: the number of threads cannot change a bit. Every array has a row
   per token of the step; rows are padded to whole pairs of panels, so that the products write without a special case.
   Per layer: norm, quantise | queries, keys, values | rotate, store | attention, quantise | output + residual |
   norm, quantise | gate, up, silu, quantise | down + residual.  At the end: final norm | logits of the wanted rows. */
#include "forward.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_PER_UNIT = 128, NORM_ROWS = 8, ATTENTION_ROWS = 16, PHASES_PER_LAYER = 8, PHASES_BESIDE = 3 };

/* Activations that enter a product: f32, and quantised where some matrix wants it. */
typedef struct {
  float *f32; /* [R][ld] */
  long ld;
  quantised_rows int8;
} activations;

typedef struct {
  _Alignas(64) atomic_long next;
} counter;

typedef struct {
  int32_t row, rows, sequence;
} attention_unit;

typedef struct {
  const model *m;
  const step *s;
  float *x;                     /* [R][ld_hidden] the residual */
  activations normed, mixed, gated;
  float *q, *k, *v;             /* [R][ld_q], [R][ld_kv] */
  long ld_hidden, ld_q, ld_kv;
  attention_unit *units;
  long unit_count;
  float *scratch;
  long scratch_floats; /* of one thread */
  counter *counters;   /* one per phase */
} work;

typedef struct {
  work *w;
  int phase;
  float *scratch;
} worker;

/* ---- units of work ---- */

/* Take the next units [*first, *end) of this phase; 0 when none are left. */
static int take(worker *me, long total, long *first, long *end) {
  long grain = total / (pool_threads(me->w->m->threads) * 4L);
  if (grain < 1) grain = 1;
  *first = atomic_fetch_add_explicit(&me->w->counters[me->phase].next, grain, memory_order_relaxed);
  *end = *first + grain < total ? *first + grain : total;
  return *first < total;
}

static void end_phase(worker *me) {
  pool_barrier(me->w->m->threads);
  me->phase++;
}

static long pad(long n) { return (n + PAIR - 1) / PAIR * PAIR; }
long padded_head(long head_size) { return (head_size + KEY_TILE - 1) / KEY_TILE * KEY_TILE; }

static int wants_int8(const model *m, const matrix *w) { return m->int8_activations && is_quantised(w); }

/* ---- products ---- */

static void product(worker *me, const matrix *w, long pair, const activations *x, long row, long rows, float *out, long ld, int add) {
  const model *m = me->w->m;
  if (wants_int8(m, w))
    m->cpu->linear_int8(w, pair, &x->int8, row, rows, out, ld, add);
  else
    m->cpu->linear_f32(w, pair, x->f32, x->ld, row, rows, out, ld, add, me->scratch);
}

typedef struct {
  const matrix *w;
  float *out;
  long ld;
} target;

/* out of every target = x w, or out += x w: units are pairs of panels, times parts of the rows. */
static void linear(worker *me, const activations *x, long rows, const target *targets, int count, int add) {
  long parts = (rows + ROWS_PER_UNIT - 1) / ROWS_PER_UNIT, total = 0, first, end;
  for (int i = 0; i < count; i++) total += targets[i].w->panels / 2 * parts;
  while (take(me, total, &first, &end))
    for (long unit = first; unit < end; unit++) {
      const target *t = targets;
      long pair = unit / parts, row = unit % parts * ROWS_PER_UNIT;
      for (; pair >= t->w->panels / 2; t++) pair -= t->w->panels / 2;
      long height = rows - row < ROWS_PER_UNIT ? rows - row : ROWS_PER_UNIT;
      product(me, t->w, pair, x, row, height, t->out + row * t->ld + pair * PAIR, t->ld, add);
    }
  end_phase(me);
}

static void quantise_part(const model *m, activations *x, long row, long column, long columns) {
  m->cpu->quantise(x->f32 + row * x->ld, &x->int8, row, column / BLOCK, columns / BLOCK);
}

/* ---- the phases ---- */

static float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  float value;
  uint32_t bits = exponent == 31 ? 0x7f800000 | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
  memcpy(&value, &bits, 4);
  if (exponent == 0) value = (float)fraction * 0x1p-24f;
  return sign ? -value : value;
}

static float float_weight(const matrix *w, const uint8_t *panel, long at) {
  if (w->packing == PACK_F32) return ((const float *)panel)[at];
  uint16_t half = ((const uint16_t *)panel)[at];
  if (w->packing == PACK_F16) return half_to_float(half);
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static void quantised_weights(const matrix *w, const uint8_t *panel, long column, float *out) {
  const uint16_t *scales = panel_scales(w, panel), *minima = panel_minima(w, panel);
  for (long b = 0; b < w->blocks; b++) {
    const uint8_t *quants = panel + (size_t)b * quants_bytes(w) + column * 4;
    float scale = half_to_float(scales[b * PANEL + column]);
    float minimum = w->has_min ? half_to_float(minima[b * PANEL + column]) : 0;
    for (int k = 0; k < BLOCK; k++) {
      int quad = k / 4, byte = quants[(w->packing == PACK_U4 ? quad % 4 : quad) * 64 + k % 4];
      if (w->packing == PACK_U4) byte = quad < 4 ? byte & 15 : byte >> 4;
      float value = (float)(byte - w->offset) * scale;
      out[b * BLOCK + k] = w->has_min ? value + minimum : value;
    }
  }
}

/* Row n of an (outputs, inputs) matrix, in f32. */
static void weight_row(const matrix *w, long n, float *out) {
  const uint8_t *panel = panel_of(w, n / PANEL);
  if (is_quantised(w))
    quantised_weights(w, panel, n % PANEL, out);
  else
    for (long k = 0; k < w->inputs; k++) out[k] = float_weight(w, panel, k * PANEL + n % PANEL);
}

static void embed(worker *me) {
  const work *w = me->w;
  long first, end;
  while (take(me, (w->s->rows + NORM_ROWS - 1) / NORM_ROWS, &first, &end))
    for (long r = first * NORM_ROWS; r < end * NORM_ROWS && r < w->s->rows; r++)
      weight_row(w->m->embedding, w->s->tokens[r], w->x + r * w->ld_hidden);
  end_phase(me);
}

/* Norm rows of the residual into `normed`, and quantise them; rows[i] (all rows where NULL) becomes row i. */
static void norm(worker *me, const float *weight, const int32_t *rows, long count) {
  work *w = me->w;
  const model *m = w->m;
  long first, end;
  while (take(me, (count + NORM_ROWS - 1) / NORM_ROWS, &first, &end))
    for (long i = first * NORM_ROWS; i < end * NORM_ROWS && i < count; i++) {
      const float *x = w->x + (rows ? rows[i] : i) * w->ld_hidden;
      m->cpu->norm_row(x, weight, m->epsilon, m->hidden, w->normed.f32 + i * w->normed.ld, me->scratch);
      if (m->int8_activations) quantise_part(m, &w->normed, i, 0, m->hidden);
    }
  end_phase(me);
}

static long sequence_of(const step *s, long row) {
  long low = 0, high = s->sequences - 1;
  while (low < high) {
    long middle = (low + high + 1) / 2;
    if (s->row_starts[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

static kv_layer kv_of(const work *w, long index) {
  const model *m = w->m;
  long padded = padded_head(m->head_size), slots = w->s->blocks * w->s->block_size * m->kv_heads;
  size_t width = w->s->half ? 2 : 4;
  return (kv_layer){.keys = (char *)w->s->keys + (size_t)(index * slots * m->head_size) * width,
                    .values = (char *)w->s->values + (size_t)(index * slots * padded) * width,
                    .block_size = w->s->block_size,
                    .heads = m->kv_heads,
                    .head_size = m->head_size,
                    .padded_size = padded,
                    .half = w->s->half};
}

static void store_row(work *w, const kv_layer *kv, long r) {
  const model *m = w->m;
  const step *s = w->s;
  long position = s->positions[r], pairs = m->rotated / 2;
  const float *cos = m->cos + position * pairs, *sin = m->sin + position * pairs;
  float *q = w->q + r * w->ld_q, *k = w->k + r * w->ld_kv;
  m->cpu->rotate(q, m->heads, m->head_size, m->rotated, cos, sin, m->query_scale);
  m->cpu->rotate(k, m->kv_heads, m->head_size, m->rotated, cos, sin, 1.0f);
  const int32_t *table = s->tables + s->table_starts[sequence_of(s, r)];
  m->cpu->write_kv(kv, table[position / s->block_size], position % s->block_size, k, w->v + r * w->ld_kv);
}

static void rotate_and_store(worker *me, long index) {
  kv_layer kv = kv_of(me->w, index);
  long first, end;
  while (take(me, me->w->s->rows, &first, &end))
    for (long r = first; r < end; r++) store_row(me->w, &kv, r);
  end_phase(me);
}

/* A key head's share of a row is whole blocks: then the unit that made it can quantise it. */
static int share_is_blocks(const model *m) { return m->heads / m->kv_heads * m->head_size % BLOCK == 0; }

static void attention_of_unit(worker *me, attention *a, const attention_unit *u, long head) {
  work *w = me->w;
  const model *m = w->m;
  a->table = w->s->tables + w->s->table_starts[u->sequence];
  m->cpu->attend(a, u->row, u->rows, w->s->positions[u->row], head, me->scratch);
  long share = a->group * m->head_size;
  if (m->int8_activations && share_is_blocks(m))
    for (long r = u->row; r < u->row + u->rows; r++) quantise_part(m, &w->mixed, r, head * share, share);
}

static void attention_phase(worker *me, long index) {
  work *w = me->w;
  const model *m = w->m;
  attention a = {.kv = kv_of(w, index), .q = w->q, .out = w->mixed.f32, .ld_q = w->ld_q, .ld_out = w->mixed.ld,
                 .group = m->heads / m->kv_heads};
  long first, end;
  while (take(me, w->unit_count * m->kv_heads, &first, &end))
    for (long i = first; i < end; i++) attention_of_unit(me, &a, &w->units[i / m->kv_heads], i % m->kv_heads);
  end_phase(me);
}

static void quantise_mixed(worker *me) {
  work *w = me->w;
  long first, end;
  while (take(me, w->s->rows, &first, &end))
    for (long r = first; r < end; r++) quantise_part(w->m, &w->mixed, r, 0, w->mixed.int8.inputs);
  end_phase(me);
}

static void gate_and_up(worker *me, const layer *l) {
  work *w = me->w;
  const model *m = w->m;
  long rows = w->s->rows, parts = (rows + ROWS_PER_UNIT - 1) / ROWS_PER_UNIT, first, end;
  while (take(me, l->gate->panels / 2 * parts, &first, &end))
    for (long unit = first; unit < end; unit++) {
      long pair = unit / parts, row = unit % parts * ROWS_PER_UNIT;
      long height = rows - row < ROWS_PER_UNIT ? rows - row : ROWS_PER_UNIT;
      float up[ROWS_PER_UNIT * PAIR];
      float *gate = w->gated.f32 + row * w->gated.ld + pair * PAIR;
      product(me, l->gate, pair, &w->normed, row, height, gate, w->gated.ld, 0);
      product(me, l->up, pair, &w->normed, row, height, up, PAIR, 0);
      for (long r = 0; r < height; r++) {
        m->cpu->silu_times(gate + r * w->gated.ld, up + r * PAIR, PAIR);
        if (wants_int8(m, l->down)) quantise_part(m, &w->gated, row + r, pair * PAIR, PAIR);
      }
    }
  end_phase(me);
}

static void run_layer(worker *me, long index) {
  work *w = me->w;
  const layer *l = &w->m->layer[index];
  long rows = w->s->rows;
  norm(me, l->attention_norm, NULL, rows);
  target qkv[] = {{l->q, w->q, w->ld_q}, {l->k, w->k, w->ld_kv}, {l->v, w->v, w->ld_kv}};
  linear(me, &w->normed, rows, qkv, 3, 0);
  rotate_and_store(me, index);
  attention_phase(me, index);
  if (wants_int8(w->m, l->output) && !share_is_blocks(w->m)) quantise_mixed(me);
  linear(me, &w->mixed, rows, &(target){l->output, w->x, w->ld_hidden}, 1, 1);
  norm(me, l->ffn_norm, NULL, rows);
  gate_and_up(me, l);
  linear(me, &w->gated, rows, &(target){l->down, w->x, w->ld_hidden}, 1, 1);
}

/* Write the logits of one pair of panels: directly, or the last one by a copy of what is wanted of it. */
static void logits_of_pair(worker *me, long pair, long row, long rows) {
  const work *w = me->w;
  long vocabulary = w->m->vocabulary, left = vocabulary - pair * PAIR;
  float *out = w->s->logits + row * vocabulary + pair * PAIR, edge[ROWS_PER_UNIT * PAIR];
  if (left >= PAIR) {
    product(me, w->m->head, pair, &w->normed, row, rows, out, vocabulary, 0);
    return;
  }
  product(me, w->m->head, pair, &w->normed, row, rows, edge, PAIR, 0);
  for (long r = 0; r < rows; r++) memcpy(out + r * vocabulary, edge + r * PAIR, (size_t)left * sizeof(float));
}

static void logits(worker *me) {
  const work *w = me->w;
  long rows = w->s->logit_count, parts = (rows + ROWS_PER_UNIT - 1) / ROWS_PER_UNIT, first, end;
  while (take(me, (w->m->vocabulary + PAIR - 1) / PAIR * parts, &first, &end))
    for (long unit = first; unit < end; unit++) {
      long row = unit % parts * ROWS_PER_UNIT, height = rows - row < ROWS_PER_UNIT ? rows - row : ROWS_PER_UNIT;
      logits_of_pair(me, unit / parts, row, height);
    }
}

static void final_hidden(worker *me) {
  const work *w = me->w;
  for (long i = 0; i < w->s->hidden_count; i++)
    w->m->cpu->norm_row(w->x + w->s->hidden_rows[i] * w->ld_hidden, w->m->norm, w->m->epsilon, w->m->hidden,
                        w->s->hidden + i * w->m->hidden, me->scratch);
}

static void run_worker(void *argument, int thread) {
  work *w = argument;
  worker me = {w, 0, w->scratch + w->scratch_floats * thread};
  embed(&me);
  for (long index = 0; index < w->m->layers; index++) run_layer(&me, index);
  if (thread == 0) final_hidden(&me);
  norm(&me, w->m->norm, w->s->logit_rows, w->s->logit_count);
  logits(&me);
}

/* ---- memory of a step ---- */

typedef struct {
  char *base; /* NULL while measuring */
  size_t used;
} arena;

static void *reserve(arena *a, size_t bytes) {
  size_t at = a->used;
  a->used += (bytes + 63) / 64 * 64;
  return a->base ? a->base + at : NULL;
}

static activations reserve_rows(arena *a, const model *m, long rows, long inputs) {
  activations x = {.ld = pad(inputs), .int8 = {.inputs = inputs, .blocks = inputs / BLOCK}};
  size_t r = (size_t)rows;
  x.f32 = reserve(a, r * (size_t)x.ld * sizeof(float));
  if (!m->int8_activations) return x;
  x.int8.q = reserve(a, r * (size_t)inputs);
  x.int8.d = reserve(a, r * (size_t)x.int8.blocks * sizeof(float));
  x.int8.d_sum = reserve(a, r * (size_t)x.int8.blocks * sizeof(float));
  x.int8.minus_sum = reserve(a, r * (size_t)x.int8.blocks * sizeof(int32_t));
  return x;
}

static long most(long a, long b) { return a > b ? a : b; }

static long longest_sequence(const step *s) {
  long longest = 0;
  for (long r = 0; r < s->rows; r++) longest = most(longest, s->positions[r] + 1L);
  return longest;
}

static void lay_out(work *w, arena *a) {
  const model *m = w->m;
  size_t rows = (size_t)w->s->rows, threads = (size_t)pool_threads(m->threads);
  long attention_width = m->heads * m->head_size;
  w->ld_hidden = pad(m->hidden);
  w->ld_q = pad(attention_width);
  w->ld_kv = pad(m->kv_heads * m->head_size);
  w->x = reserve(a, rows * (size_t)w->ld_hidden * sizeof(float));
  w->q = reserve(a, rows * (size_t)w->ld_q * sizeof(float));
  w->k = reserve(a, rows * (size_t)w->ld_kv * sizeof(float));
  w->v = reserve(a, rows * (size_t)w->ld_kv * sizeof(float));
  w->normed = reserve_rows(a, m, w->s->rows, m->hidden);
  w->mixed = reserve_rows(a, m, w->s->rows, attention_width);
  w->gated = reserve_rows(a, m, w->s->rows, m->intermediate);
  w->units = reserve(a, (rows / ATTENTION_ROWS + (size_t)w->s->sequences) * sizeof(attention_unit));
  w->scratch_floats = most(PAIR * most(most(m->hidden, m->intermediate), attention_width),
                           attend_scratch(longest_sequence(w->s), m->head_size));
  w->scratch_floats = (w->scratch_floats + 15) / 16 * 16;
  w->scratch = reserve(a, threads * (size_t)w->scratch_floats * sizeof(float));
  w->counters = reserve(a, (size_t)(m->layers * (PHASES_PER_LAYER + 1) + PHASES_BESIDE) * sizeof(counter));
}

static void cut_attention(work *w) {
  const step *s = w->s;
  for (int32_t q = 0; q < s->sequences; q++)
    for (int32_t row = s->row_starts[q]; row < s->row_starts[q + 1]; row += ATTENTION_ROWS) {
      int32_t left = s->row_starts[q + 1] - row;
      w->units[w->unit_count++] = (attention_unit){row, left < ATTENTION_ROWS ? left : ATTENTION_ROWS, q};
    }
}

int forward(const model *m, const step *s) {
  work w = {.m = m, .s = s};
  arena a = {NULL, 0};
  lay_out(&w, &a);
  size_t bytes = a.used;
  a = (arena){aligned_alloc(64, bytes), 0};
  if (!a.base) return -1;
  lay_out(&w, &a);
  memset(w.counters, 0, bytes - (size_t)((char *)w.counters - a.base));
  cut_attention(&w);
  pool_run(m->threads, run_worker, &w);
  free(a.base);
  return 0;
}
