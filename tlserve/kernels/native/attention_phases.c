#include "attention_phases.h"

#include <string.h>

kv_layer kv_of(const step *s, const model *m, const attention_part *a) {
  size_t width = s->half ? 2 : 4;
  return (kv_layer){.keys = (char *)s->keys + (size_t)(a->keys_before * s->block_size) * width,
                    .values = (char *)s->values + (size_t)(a->values_before * s->block_size) * width,
                    .block_size = s->block_size,
                    .head_size = a->head_size,
                    .padded_size = padded_head(a->head_size),
                    .block_keys = m->key_width * s->block_size,
                    .block_values = m->value_width * s->block_size,
                    .half = s->half};
}

/* ---- heads ---- */

/* Norm each of `count` heads, of which the first is number `first` of its row. */
static void norm_heads(const worker *me, const attention_part *a, const norm *n, float *x, long first, long count) {
  norm own = *n;
  if (a->whole_row || !n->weight) return;
  for (long i = 0; i < count; i++) {
    if (a->per_head) own.weight = n->weight + (first + i) * a->head_size;
    norm_in_place(me, &own, x + i * a->head_size, a->head_size);
  }
}

/* What happens to heads between their product and attention: norm of each head, rotation, scale; each where the layer has it. */
static void finish_heads(const worker *me, const attention_part *a, const norm *n, float *x, long first, long count, long position,
                         float scale) {
  const kernels *cpu = me->w->m->cpu;
  long at = position * (a->rotated / 2);
  if (!a->norm_after_rope) norm_heads(me, a, n, x, first, count);
  cpu->rotate(x, count, a->head_size, a->rotated, a->cos + at, a->sin + at, a->norm_after_rope ? 1.0f : scale);
  if (!a->norm_after_rope) return;
  norm_heads(me, a, n, x, first, count);
  cpu->rotate(x, count, a->head_size, 0, NULL, NULL, scale);
}

/* The value that is the product for the key: the first components of all pairs, then the second ones. */
static void value_from_key(const attention_part *a, const float *key, float *value) {
  long half = (a->rotated ? a->rotated : a->head_size) / 2;
  for (long i = 0; i < half; i++) {
    value[i] = key[2 * i];
    value[half + i] = key[2 * i + 1];
  }
  memcpy(value + 2 * half, key + 2 * half, (size_t)(a->head_size - 2 * half) * sizeof(float));
}

/* Finish the key of one key head of a row of the step, and store key and value. */
static void store_head(const worker *me, const block_work *bw, long r, const int32_t *table, long head) {
  const work *w = me->w;
  const attention_part *a = &bw->b->attention;
  long position = w->s->positions[r], at = r * w->ld_kv + head * a->head_size;
  if (!a->v.w) value_from_key(a, w->k + at, w->v + at);
  if (a->value_norm.weight) norm_in_place(me, &a->value_norm, w->v + at, a->head_size);
  finish_heads(me, a, &a->key_norm, w->k + at, head, 1, position, 1.0f);
  w->m->cpu->write_kv(&bw->kv, table[position / w->s->block_size], position % w->s->block_size, head, w->k + at, w->v + at);
}

/* Finish the queries of a unit that share one key head. */
static void finish_queries(const worker *me, const attention_part *a, const attention_unit *u, long head) {
  const work *w = me->w;
  long group = a->heads / a->kv_heads;
  for (long i = 0; i < u->rows; i++) {
    long position = u->position + i;
    float scale = a->query_scales ? a->query_scales[position] : a->query_scale;
    float *q = w->q + (u->row + i) * w->ld_q + head * group * a->head_size;
    finish_heads(me, a, &a->query_norm, q, head * group, group, position, scale);
  }
}

/* Rows whose heads are normed together. */
typedef struct {
  const norm *norm;
  float *x;
  long ld, size;
} whole_rows;

static void norm_whole_row(worker *me, long row, const void *argument) {
  const whole_rows *h = argument;
  norm_in_place(me, h->norm, h->x + row * h->ld, h->size);
}

static void norm_whole_rows(worker *me, const attention_part *a, const whole_rows *h, long rows) {
  if (a->whole_row && h->norm->weight) run_units(me, rows, norm_whole_row, h);
}

/* ---- phases ---- */

static const int32_t *table_of(const step *s, long sequence) { return s->tables + s->table_starts[sequence]; }

static void store_row(worker *me, long r, const void *argument) {
  const block_work *bw = argument;
  const step *s = me->w->s;
  const int32_t *table = table_of(s, sequence_of(s, r));
  for (long head = 0; head < bw->b->attention.kv_heads; head++) store_head(me, bw, r, table, head);
}

/* Where every sequence has one row, no other unit needs its new keys: the unit that attends stores them. */
static int stores_while_attending(const work *w, const attention_part *a, const selection *live) {
  return a->k.w && w->s->rows == w->s->sequences && !live->rows;
}

/* A key head's share of a row is whole blocks: then the unit that made it can quantise it. */
static int share_is_blocks(const attention_part *a) { return a->heads / a->kv_heads * a->head_size % BLOCK == 0; }

static void attend_unit(worker *me, long unit, const void *argument) {
  const block_work *bw = argument;
  const attention_part *p = &bw->b->attention;
  work *w = me->w;
  const model *m = w->m;
  const attention_unit *u = &bw->live->units[unit / p->kv_heads];
  long head = unit % p->kv_heads, group = p->heads / p->kv_heads, share = group * p->head_size;
  activations mixed = bw->mixed;
  attention a = {.kv = bw->kv, .table = table_of(w->s, u->sequence), .q = w->q, .out = mixed.f32, .ld_q = w->ld_q,
                 .ld_out = mixed.ld, .group = group, .window = p->window, .cap = p->cap, .sinks = p->sinks};
  if (p->both_sides) a.length = w->s->row_starts[u->sequence + 1] - w->s->row_starts[u->sequence];
  if (stores_while_attending(w, p, bw->live)) store_head(me, bw, u->row, a.table, head);
  finish_queries(me, p, u, head);
  m->cpu->attend(&a, u->row, u->rows, u->position, head, me->scratch);
  if (m->activations && share_is_blocks(p))
    for (long r = u->row; r < u->row + u->rows; r++) quantise_part(m, &mixed, r, head * share, share);
}

static void quantise_mixed(worker *me, long row, const void *argument) {
  activations mixed = ((const block_work *)argument)->mixed;
  quantise_part(me->w->m, &mixed, row, 0, mixed.quantised.inputs);
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

/* The queries of a block that has no keys of its own. */
static void queries_alone(worker *me, const block_work *bw) {
  const attention_part *a = &bw->b->attention;
  work *w = me->w;
  linear(me, &w->normed, bw->live->count, &(target){&a->q, w->q, w->ld_q}, 1, 0);
  norm_whole_rows(me, a, &(whole_rows){&a->query_norm, w->q, w->ld_q, a->heads * a->head_size}, bw->live->count);
}

/* The first products; afterwards all keys and values are stored, or attention does it. */
static void queries_keys_values(worker *me, const block_work *bw) {
  work *w = me->w;
  const attention_part *a = &bw->b->attention;
  const selection *live = bw->live;
  long rows = w->s->rows;
  const target q = {&a->q, w->q, w->ld_q}, k = {&a->k, w->k, w->ld_kv}, v = {&a->v, w->v, w->ld_kv};
  const target targets[] = {k, a->v.w ? v : q, q};
  int first = a->v.w ? 2 : 1;
  linear(me, &w->normed, rows, targets, live->rows ? first : first + 1, 0);
  norm_whole_rows(me, a, &(whole_rows){&a->key_norm, w->k, w->ld_kv, a->kv_heads * a->head_size}, rows);
  if (!stores_while_attending(w, a, live)) run_units(me, rows, store_row, bw);
  if (live->rows) {
    run_units(me, 1, gather_unit, live);
    norm_rows(me, &(norms){NULL, &bw->b->pre, NULL, live->count});
    linear(me, &w->normed, live->count, &q, 1, 0);
  }
  norm_whole_rows(me, a, &(whole_rows){&a->query_norm, w->q, w->ld_q, a->heads * a->head_size}, live->count);
}

void attend_rows(worker *me, const block_work *bw, float *out, int add) {
  const attention_part *a = &bw->b->attention;
  const selection *live = bw->live;
  (a->k.w ? queries_keys_values : queries_alone)(me, bw);
  run_units(me, live->unit_count * a->kv_heads, attend_unit, bw);
  if (is_taken_quantised(me->w->m, a->output.w) && !share_is_blocks(a)) run_units(me, live->count, quantise_mixed, bw);
  linear(me, &bw->mixed, live->count, &(target){&a->output, out, me->w->ld_hidden}, 1, add);
}
