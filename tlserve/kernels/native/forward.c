/* The order of a forward pass: phases, in each of which the threads take units of work until all are done.

   A unit is computed whole by one thread and never depends on which: the number of threads cannot change a bit. Every array has a row
   per token of the step; rows are padded to whole pairs of panels, so that the products write without a special case.
   Per layer: norm, quantise | queries, keys, values | turn keys, store | turn queries, attention, quantise | output + residual |
   norm, quantise | gate, up, silu, quantise | down + residual. Where every sequence has one row, attention stores it too.
   At the end: final norm | logits of the requested rows.
   In the last layer all rows need their keys and values stored, and only the rows whose logits or hidden states are requested
   (`wanted`) need anything else: where these are fewer, they are moved together after the store and continue alone. */
#include "step_work.h"

#include <string.h>

enum { ROWS_PER_UNIT = 128, NORM_ROWS = 8 };

/* One thread in a step. While phases are counted, none are reserved yet. */
typedef struct {
  work *w;
  long phase; /* the number of the next one */
  float *scratch;
} worker;

/* ---- units of work ---- */

/* Run unit(me, i, argument) for all i below total, together with the other threads; return when all are done. */
typedef void (*unit_work)(worker *me, long unit, const void *argument);

static void run_units(worker *me, long total, unit_work unit, const void *argument) {
  pool *threads = me->w->m->threads;
  long number = me->phase++, first, end;
  if (!me->w->phases) return;
  phase *f = &me->w->phases[number];
  while (phase_take(threads, f, total, &first, &end)) {
    for (long i = first; i < end; i++) unit(me, i, argument);
    phase_finish(threads, f, total, end - first);
  }
  phase_wait(threads, f, total);
}

/* Units that are parts of the rows, or (pair of panels) x (part of the rows): consecutive ones share the panels. */
typedef struct {
  long row, rows;
} part;

static long part_count(long rows, long most) { return (rows + most - 1) / most; }

static part part_of(long index, long rows, long most) {
  long row = index * most;
  return (part){row, rows - row < most ? rows - row : most};
}

static int is_taken_quantised(const model *m, const matrix *w) { return m->activations != ACTIVATIONS_F32 && is_quantised(w); }

/* ---- products ---- */

static void product(worker *me, const matrix *w, long pair, const activations *x, long row, long rows, float *out, long ld, int add) {
  const model *m = me->w->m;
  if (is_taken_quantised(m, w))
    m->cpu->linear[m->activations](w, pair, &x->quantised, row, rows, out, ld, add);
  else
    m->cpu->linear_f32(w, pair, x->f32, x->ld, row, rows, out, ld, add, me->scratch);
}

typedef struct {
  const matrix *w;
  float *out;
  long ld;
} target;

/* out of every target = x w, or out += x w */
typedef struct {
  const activations *x;
  long rows;
  int count, add;
  const target *targets;
} products;

static void product_unit(worker *me, long unit, const void *argument) {
  const products *p = argument;
  const target *t = p->targets;
  long parts = part_count(p->rows, ROWS_PER_UNIT), pair = unit / parts;
  part r = part_of(unit % parts, p->rows, ROWS_PER_UNIT);
  for (; pair >= t->w->pairs; t++) pair -= t->w->pairs;
  product(me, t->w, pair, p->x, r.row, r.rows, t->out + r.row * t->ld + pair * PAIR, t->ld, p->add);
}

static void linear(worker *me, const activations *x, long rows, const target *targets, int count, int add) {
  long pairs = 0;
  for (int i = 0; i < count; i++) pairs += targets[i].w->pairs;
  run_units(me, pairs * part_count(rows, ROWS_PER_UNIT), product_unit, &(products){x, rows, count, add, targets});
}

static void quantise_part(const model *m, activations *x, long row, long column, long columns) {
  m->cpu->quantise[m->activations](x->f32 + row * x->ld + column, &x->quantised, row, column / BLOCK, columns / BLOCK);
}

/* ---- the phases ---- */

static void add(float *x, const float *bias, long n) {
  for (long i = 0; i < n; i++) x[i] += bias[i];
}

static void embed_unit(worker *me, long unit, const void *argument) {
  (void)argument;
  const work *w = me->w;
  part p = part_of(unit, w->s->rows, NORM_ROWS);
  for (long r = p.row; r < p.row + p.rows; r++) weight_row(w->m->embedding, w->s->tokens[r], w->x + r * w->ld_hidden);
}

/* Norm rows of the residual into `normed`, and quantise them; rows[i] (all rows where NULL) becomes row i. `bias` (NULL: none) is
   added to the residual first. */
typedef struct {
  const float *weight, *bias;
  const int32_t *rows;
  long count;
} norms;

static void norm_unit(worker *me, long unit, const void *argument) {
  const norms *n = argument;
  work *w = me->w;
  const model *m = w->m;
  part p = part_of(unit, n->count, NORM_ROWS);
  for (long i = p.row; i < p.row + p.rows; i++) {
    float *x = w->x + (n->rows ? n->rows[i] : i) * w->ld_hidden;
    if (n->bias) add(x, n->bias, m->hidden);
    m->cpu->norm_row(x, n->weight, m->epsilon, m->hidden, w->normed.f32 + i * w->normed.ld, me->scratch);
    if (m->activations) quantise_part(m, &w->normed, i, 0, m->hidden);
  }
}

static void norm(worker *me, const float *weight, const float *bias, const int32_t *rows, long count) {
  run_units(me, part_count(count, NORM_ROWS), norm_unit, &(norms){weight, bias, rows, count});
}

static kv_layer kv_of(const work *w, long index) {
  const model *m = w->m;
  long padded = padded_head(m->head_size), slots = w->s->block_size * m->kv_heads;
  size_t width = w->s->half ? 2 : 4;
  return (kv_layer){.keys = (char *)w->s->keys + (size_t)(index * slots * m->head_size) * width,
                    .values = (char *)w->s->values + (size_t)(index * slots * padded) * width,
                    .block_size = w->s->block_size,
                    .heads = m->kv_heads,
                    .head_size = m->head_size,
                    .block_heads = m->layers * m->kv_heads,
                    .padded_size = padded,
                    .half = w->s->half};
}

/* One layer, as its units need it. */
typedef struct {
  const layer *l;
  const selection *live; /* whose attention and feed-forward part are computed */
  kv_layer kv;
} layer_work;

/* What happens to heads between their product and attention: bias, norm of each head, rotation, scale; each where the layer has it. */
typedef struct {
  const float *bias, *norm; /* [heads][head_size], [head_size]; NULL: none */
  float scale;
} head_work;

static void finish_heads(worker *me, const layer *l, const head_work *h, float *x, long heads, long position) {
  const model *m = me->w->m;
  long size = m->head_size, at = position * (m->rotated / 2);
  float before[MOST_HEAD_SIZE];
  if (h->bias) add(x, h->bias, heads * size);
  for (long i = 0; h->norm && i < heads; i++) {
    memcpy(before, x + i * size, (size_t)size * sizeof(float));
    m->cpu->norm_row(before, h->norm, m->epsilon, size, x + i * size, me->scratch);
  }
  m->cpu->rotate(x, heads, size, l->unrotated ? 0 : m->rotated, m->cos + at, m->sin + at, h->scale);
}

/* Finish the key of one key head of a row of the step, and store key and value. */
static void store_head(worker *me, const layer_work *lw, long r, const int32_t *table, long head) {
  const work *w = me->w;
  const layer *l = lw->l;
  long size = w->m->head_size, position = w->s->positions[r], at = r * w->ld_kv + head * size;
  head_work key = {l->k_bias ? l->k_bias + head * size : NULL, l->key_norm, 1.0f};
  finish_heads(me, l, &key, w->k + at, 1, position);
  if (l->v_bias) add(w->v + at, l->v_bias + head * size, size);
  w->m->cpu->write_kv(&lw->kv, table[position / w->s->block_size], position % w->s->block_size, head, w->k + at, w->v + at);
}

/* Finish the queries of a unit that share one key head. */
static void finish_queries(worker *me, const layer *l, const attention_unit *u, long head) {
  const work *w = me->w;
  long group = w->m->heads / w->m->kv_heads, share = group * w->m->head_size;
  head_work query = {l->q_bias ? l->q_bias + head * share : NULL, l->query_norm, w->m->query_scale};
  for (long i = 0; i < u->rows; i++)
    finish_heads(me, l, &query, w->q + (u->row + i) * w->ld_q + head * share, group, u->position + i);
}

static const int32_t *table_of(const step *s, long sequence) { return s->tables + s->table_starts[sequence]; }

static void store_row(worker *me, long r, const void *argument) {
  const layer_work *lw = argument;
  const step *s = me->w->s;
  const int32_t *table = table_of(s, sequence_of(s, r));
  for (long head = 0; head < me->w->m->kv_heads; head++) store_head(me, lw, r, table, head);
}

/* Where every sequence has one row, no other unit needs its new keys: the unit that attends stores them. */
static int stores_while_attending(const work *w, const selection *live) { return w->s->rows == w->s->sequences && !live->rows; }

/* A key head's share of a row is whole blocks: then the unit that made it can quantise it. */
static int share_is_blocks(const model *m) { return m->heads / m->kv_heads * m->head_size % BLOCK == 0; }

static void attend_unit(worker *me, long unit, const void *argument) {
  const layer_work *lw = argument;
  work *w = me->w;
  const model *m = w->m;
  const attention_unit *u = &lw->live->units[unit / m->kv_heads];
  long head = unit % m->kv_heads, group = m->heads / m->kv_heads, share = group * m->head_size;
  attention a = {.kv = lw->kv, .table = table_of(w->s, u->sequence), .q = w->q, .out = w->mixed.f32, .ld_q = w->ld_q,
                 .ld_out = w->mixed.ld, .group = group, .window = lw->l->window};
  if (stores_while_attending(w, lw->live)) store_head(me, lw, u->row, a.table, head);
  finish_queries(me, lw->l, u, head);
  m->cpu->attend(&a, u->row, u->rows, u->position, head, me->scratch);
  if (m->activations && share_is_blocks(m))
    for (long r = u->row; r < u->row + u->rows; r++) quantise_part(m, &w->mixed, r, head * share, share);
}

static void quantise_mixed(worker *me, long row, const void *argument) {
  (void)argument;
  quantise_part(me->w->m, &me->w->mixed, row, 0, me->w->mixed.quantised.inputs);
}

static void attend_rows(worker *me, const layer_work *lw) {
  const model *m = me->w->m;
  run_units(me, lw->live->unit_count * m->kv_heads, attend_unit, lw);
  if (is_taken_quantised(m, lw->l->output) && !share_is_blocks(m)) run_units(me, lw->live->count, quantise_mixed, NULL);
}

static void gate_and_up(worker *me, long unit, const void *argument) {
  const layer *l = ((const layer_work *)argument)->l;
  work *w = me->w;
  const model *m = w->m;
  long rows = ((const layer_work *)argument)->live->count, parts = part_count(rows, ROWS_PER_UNIT), pair = unit / parts;
  part p = part_of(unit % parts, rows, ROWS_PER_UNIT);
  int quantised = is_taken_quantised(m, l->down);
  float up[ROWS_PER_UNIT * PAIR], here[ROWS_PER_UNIT * PAIR]; /* quantised at once, and needed nowhere else */
  float *gate = quantised ? here : w->gated.f32 + p.row * w->gated.ld + pair * PAIR;
  long ld = quantised ? PAIR : w->gated.ld;
  product(me, l->gate, pair, &w->normed, p.row, p.rows, gate, ld, 0);
  product(me, l->up, pair, &w->normed, p.row, p.rows, up, PAIR, 0);
  for (long r = 0; r < p.rows; r++) {
    m->cpu->silu_times(gate + r * ld, up + r * PAIR, PAIR);
    if (quantised) m->cpu->quantise[m->activations](gate + r * PAIR, &w->gated.quantised, p.row + r, pair, 1);
  }
}

/* Move the residual of the wanted rows together, in ascending order, so that no row is overwritten before it has moved. */
static void gather_unit(worker *me, long unit, const void *argument) {
  (void)unit;
  const selection *live = argument;
  work *w = me->w;
  for (long i = 0; i < live->count; i++)
    if (live->rows[i] != i)
      memcpy(w->x + i * w->ld_hidden, w->x + live->rows[i] * w->ld_hidden, (size_t)w->ld_hidden * sizeof(float));
}

/* Norm and the first products; afterwards all keys and values are stored, or attention does it. */
static void queries_keys_values(worker *me, const layer_work *lw) {
  work *w = me->w;
  const layer *l = lw->l;
  long rows = w->s->rows;
  const target targets[] = {{l->k, w->k, w->ld_kv}, {l->v, w->v, w->ld_kv}, {l->q, w->q, w->ld_q}};
  norm(me, l->attention_norm, NULL, NULL, rows);
  linear(me, &w->normed, rows, targets, lw->live->rows ? 2 : 3, 0);
  if (!stores_while_attending(w, lw->live)) run_units(me, rows, store_row, lw);
  if (!lw->live->rows) return;
  run_units(me, 1, gather_unit, lw->live);
  norm(me, l->attention_norm, NULL, NULL, lw->live->count);
  linear(me, &w->normed, lw->live->count, targets + 2, 1, 0);
}

static void run_layer(worker *me, long index) {
  work *w = me->w;
  const layer *l = &w->m->layer[index];
  const selection *live = index + 1 < w->m->layers ? &w->all : &w->wanted;
  layer_work lw = {l, live, kv_of(w, index)};
  queries_keys_values(me, &lw);
  attend_rows(me, &lw);
  linear(me, &w->mixed, live->count, &(target){l->output, w->x, w->ld_hidden}, 1, 1);
  norm(me, l->ffn_norm, l->output_bias, NULL, live->count);
  run_units(me, l->gate->pairs * part_count(live->count, ROWS_PER_UNIT), gate_and_up, &lw);
  linear(me, &w->gated, live->count, &(target){l->down, w->x, w->ld_hidden}, 1, 1);
}

/* Write the logits of one pair of panels: directly, or the last one by a copy of the columns that the vocabulary has. */
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

static void logits_unit(worker *me, long unit, const void *argument) {
  (void)argument;
  long rows = me->w->s->logit_count, parts = part_count(rows, ROWS_PER_UNIT);
  part p = part_of(unit % parts, rows, ROWS_PER_UNIT);
  logits_of_pair(me, unit / parts, p.row, p.rows);
}

static void hidden_unit(worker *me, long i, const void *argument) {
  (void)argument;
  const work *w = me->w;
  w->m->cpu->norm_row(w->x + w->hidden_places[i] * w->ld_hidden, w->m->norm, w->m->epsilon, w->m->hidden,
                      w->s->hidden + i * w->m->hidden, me->scratch);
}

/* All phases of a step, in order. Which ones there are depends on the shapes of the model and of the step only, never on numbers that a
   unit computes. */
static void run_phases(worker *me) {
  const work *w = me->w;
  const model *m = w->m;
  long logit_rows = w->s->logit_count;
  run_units(me, part_count(w->s->rows, NORM_ROWS), embed_unit, NULL);
  for (long index = 0; index < m->layers; index++) run_layer(me, index);
  run_units(me, w->s->hidden_count, hidden_unit, NULL);
  norm(me, m->norm, NULL, w->logit_places, logit_rows);
  run_units(me, m->head->pairs * part_count(logit_rows, ROWS_PER_UNIT), logits_unit, NULL);
}

static void run_worker(void *argument, int thread) {
  work *w = argument;
  run_phases(&(worker){w, 0, w->scratch + w->scratch_floats * thread});
}

/* Run the order of the phases without threads and without units, only to count them. */
static long count_phases(work *w) {
  worker counter = {w, 0, NULL};
  run_phases(&counter);
  return counter.phase;
}

int forward(const model *m, const step *s) {
  work w;
  int failed = work_open(&w, m, s) < 0 || work_reserve_phases(&w, count_phases(&w)) < 0;
  if (!failed) pool_run(m->threads, run_worker, &w);
  work_close(&w);
  return failed ? -1 : 0;
}
