/* The order of a forward pass: phases, in each of which the threads take units of work until all are done.

   A unit is computed whole by one thread and never depends on which: the number of threads cannot change a bit. Every array has a row
   per token of the step; rows are padded to whole pairs of panels, so that the products write without a special case.
   A model is a list of residual blocks, each with attention, a feed-forward part, or both on the same normed rows, or with experts, see
   experts.c. Per block:
   add what the block before gave where it is normed or scaled, norm, quantise | attention, see attention_phases.h | gate, up,
   activation, quantise | down. Parts of a plain block are added to the residual, those of others are summed apart.
   At the end: final norm | logits of the requested rows. */
#include "attention_phases.h"
#include "experts.h"

#include <string.h>

/* Row r as it enters the model: given, or the embedding of its token, in scratch after what a norm takes. */
static const float *embedded(worker *me, long r) {
  const work *w = me->w;
  long hidden = w->m->hidden;
  float *x = me->scratch + hidden;
  if (w->s->inputs) return w->s->inputs + r * hidden;
  weight_row(w->m->embedding, w->s->tokens[r], x);
  if (w->m->embed_scale != 1.0f)
    for (long i = 0; i < hidden; i++) x[i] *= w->m->embed_scale;
  return x;
}

static void embed_unit(worker *me, long unit, const void *argument) {
  (void)argument;
  const work *w = me->w;
  part p = part_of(unit, w->s->rows, NORM_ROWS);
  for (long r = p.row; r < p.row + p.rows; r++) {
    float *x = w->x + r * w->ld_hidden;
    const float *input = embedded(me, r);
    norm_row_of(me, &w->m->embedding_norm, input, w->m->hidden, x);
  }
}

/* What all layers take of the token of row r: the product of the row, normed, and a row of the table. */
static void layer_inputs_unit(worker *me, long unit, const void *argument) {
  (void)argument;
  const work *w = me->w;
  const layer_inputs *in = &w->m->inputs;
  part p = part_of(unit, w->s->rows, NORM_ROWS);
  float *token = me->scratch + 2 * in->width; /* after what a norm in its place takes */
  for (long r = p.row; r < p.row + p.rows; r++) {
    float *row = w->inputs + r * w->ld_inputs;
    weight_row(in->table, w->s->tokens[r], token);
    for (long i = 0; i < in->width * in->layers; i++) row[i] *= in->of_rows;
    for (long i = 0; i < in->layers; i++) norm_in_place(me, &in->norm, row + i * in->width, in->width);
    for (long i = 0; i < in->width * in->layers; i++) row[i] = (row[i] + token[i] * in->of_tokens) * in->of_sum;
  }
}

static void take_layer_inputs(worker *me) {
  static const norm none = {0};
  work *w = me->w;
  long rows = w->s->rows;
  norm_rows(me, &(norms){NULL, &none, NULL, rows});
  linear(me, &w->normed, rows, &(target){&w->m->inputs.projection, w->inputs, w->ld_inputs}, 1, 0);
  run_units(me, part_count(rows, NORM_ROWS), layer_inputs_unit, NULL);
}

/* ---- the feed-forward part ---- */

static void activate_unit(worker *me, long unit, const void *argument) {
  const block_work *bw = argument;
  long rows = bw->live->count, parts = part_count(rows, ROWS_PER_UNIT);
  part p = part_of(unit % parts, rows, ROWS_PER_UNIT);
  activate_rows(me, &(activation_rows){&bw->b->feed_forward, &me->w->normed, p.row, p.rows, p.row, unit / parts, bw->live->rows}, bw->gated);
}

static void feed_forward(worker *me, const block_work *bw, float *out, int add) {
  const feed_forward_part *f = &bw->b->feed_forward;
  long rows = bw->live->count;
  run_units(me, first_matrix(f)->pairs * part_count(rows, ROWS_PER_UNIT), activate_unit, bw);
  linear(me, &bw->gated, rows, &(target){&f->down, out, me->w->ld_hidden}, 1, add);
}

/* ---- blocks ---- */

/* Rows of the step with the width that a block needs. */
static activations rows_of_width(activations x, long inputs) {
  x.quantised.inputs = inputs;
  x.quantised.blocks = inputs / BLOCK;
  return x;
}

static block_work block_work_of(const work *w, long index) {
  const residual_block *b = &w->m->block[index];
  block_work bw = {.b = b, .live = index < w->m->last_attention ? &w->all : &w->wanted};
  if (b->has_attention) {
    bw.kv = kv_of(w->s, w->m, &b->attention);
    bw.mixed = rows_of_width(w->mixed, b->attention.output.w->inputs);
  }
  if (b->has_feed_forward) bw.gated = rows_of_width(w->gated, b->feed_forward.down.w->inputs);
  if (b->has_experts) bw.expert_gated = rows_of_width(w->mixture.gated, b->experts.each->down.w->inputs);
  if (b->has_experts && b->experts.shared.up.w) bw.gated = rows_of_width(w->gated, b->experts.shared.down.w->inputs);
  return bw;
}

static void run_block(worker *me, long index) {
  const work *w = me->w;
  const residual_block *b = &w->m->block[index], *before = index ? b - 1 : NULL;
  block_work bw = block_work_of(w, index);
  int plain = is_plain(b);
  float *out = plain ? w->x : w->sum;
  long entering = b->has_attention && b->attention.k.w ? w->s->rows : bw.live->count;
  norm_rows(me, &(norms){before && !is_plain(before) ? before : NULL, &b->pre, NULL, entering});
  if (b->has_attention) attend_rows(me, &bw, out, plain);
  if (b->has_feed_forward) feed_forward(me, &bw, out, plain || b->has_attention);
  if (b->has_experts) compute_experts(me, &bw);
}

/* ---- logits ---- */

static void finish_logits(const model *m, float *logits, long n) {
  if (m->logit_scale != 1.0f)
    for (long i = 0; i < n; i++) logits[i] *= m->logit_scale;
  if (m->logit_cap > 0) m->cpu->soft_cap(logits, m->logit_cap, n);
}

/* Write the logits of one pair of panels: directly, or the last one by a copy of the columns that the vocabulary has. */
static void logits_of_pair(worker *me, long pair, long row, long rows) {
  const work *w = me->w;
  long vocabulary = w->m->vocabulary, left = vocabulary - pair * PAIR;
  float *out = w->s->logits + row * vocabulary + pair * PAIR, edge[ROWS_PER_UNIT * PAIR];
  if (left >= PAIR) {
    product(me, &w->m->head, pair, &w->normed, row, rows, out, vocabulary, 0);
  } else {
    product(me, &w->m->head, pair, &w->normed, row, rows, edge, PAIR, 0);
    for (long r = 0; r < rows; r++) memcpy(out + r * vocabulary, edge + r * PAIR, (size_t)left * sizeof(float));
  }
  for (long r = 0; r < rows; r++) finish_logits(w->m, out + r * vocabulary, left < PAIR ? left : PAIR);
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
  norm_row_of(me, &w->m->norm, w->x + w->hidden_places[i] * w->ld_hidden, w->m->hidden, w->s->hidden + i * w->m->hidden);
}

/* All phases of a step, in order. Which ones there are depends on the shapes of the model and of the step only, never on numbers that a
   unit computes. */
static void run_phases(worker *me) {
  const work *w = me->w;
  const model *m = w->m;
  const residual_block *last = &m->block[m->count - 1];
  long logit_rows = w->s->logit_count;
  run_units(me, part_count(w->s->rows, NORM_ROWS), embed_unit, NULL);
  if (m->inputs.width) take_layer_inputs(me);
  for (long index = 0; index < m->count; index++) run_block(me, index);
  if (!is_plain(last)) close_rows(me, last, w->wanted.count);
  run_units(me, w->s->hidden_count, hidden_unit, NULL);
  norm_rows(me, &(norms){NULL, &m->norm, w->logit_places, logit_rows});
  if (m->head.w) run_units(me, m->head.w->pairs * part_count(logit_rows, ROWS_PER_UNIT), logits_unit, NULL);
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
