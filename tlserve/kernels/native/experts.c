/* A mixture of experts. A row's numbers do not depend on the experts of other rows, nor on how many rows an expert has.

   Phases: the router's products | route rows | sort | gather | gate, up, activation, quantise | down. In between, the rows of an expert
   are next to each other: assignment a is one row at one of its experts, in ascending order of experts, then of rows. The number of
   units in a phase follows from the number of rows alone (see forward.c); those beyond the groups that there are do nothing. */
#include "experts.h"

#include <string.h>

/* ---- gate, up, activation ---- */

/* The input of a layer, in the place of a product. */
static void copy_inputs(const work *w, const activation_rows *a, float *to) {
  long from = a->pair * PAIR, left = a->part->down.w->inputs - from, columns = left < PAIR ? left : PAIR;
  memset(to, 0, (size_t)(a->rows * PAIR) * sizeof(float));
  for (long r = 0; r < a->rows; r++) {
    long row = a->sources ? a->sources[a->row + r] : a->row + r;
    memcpy(to + r * PAIR, w->inputs + row * w->ld_inputs + a->part->input_from + from, (size_t)columns * sizeof(float));
  }
}

void activate_rows(worker *me, const activation_rows *a, activations gated) {
  const model *m = me->w->m;
  const feed_forward_part *f = a->part;
  int quantised = is_taken_quantised(m, f->down.w);
  float up[ROWS_PER_UNIT * PAIR], here[ROWS_PER_UNIT * PAIR]; /* quantised at once, and needed nowhere else */
  float *out = quantised ? here : gated.f32 + a->to * gated.ld + a->pair * PAIR;
  long ld = quantised ? PAIR : gated.ld;
  product(me, f->gate.w ? &f->gate : &f->up, a->pair, a->x, a->row, a->rows, out, ld, 0);
  if (!f->up.w)
    copy_inputs(me->w, a, up);
  else if (f->gate.w)
    product(me, &f->up, a->pair, a->x, a->row, a->rows, up, PAIR, 0);
  for (long r = 0; r < a->rows; r++) {
    m->cpu->activate[f->activation](out + r * ld, f->gate.w ? up + r * PAIR : NULL, PAIR);
    if (quantised) m->cpu->quantise[m->activations](out + r * PAIR, &gated.quantised, a->to + r, a->pair, 1);
  }
}

/* ---- routing ---- */

static void route_unit(worker *me, long unit, const void *argument) {
  const block_work *bw = argument;
  const experts_part *e = &bw->b->experts;
  mixture *mix = &me->w->mixture;
  part p = part_of(unit, bw->live->count, NORM_ROWS);
  for (long r = p.row; r < p.row + p.rows; r++) {
    long at = r * e->routing.chosen;
    route_row(me->w->m->cpu, &e->routing, mix->logits + r * mix->ld_logits, mix->chosen + at, mix->weights + at, me->scratch);
    if (e->shared_gate.w) me->w->m->cpu->sigmoid_row(mix->shared_gate + r * PAIR, 1);
  }
}

/* The groups of one expert, whose assignments are [first, end). */
static void divide_rows(mixture *mix, int32_t expert, int32_t first, int32_t end) {
  for (int32_t at = first; at < end; at += ROWS_PER_UNIT) {
    int32_t rows = end - at < ROWS_PER_UNIT ? end - at : ROWS_PER_UNIT;
    mix->groups[mix->group_count++] = (expert_group){expert, at, rows, rows == 1 ? mix->sources[at] : -1};
  }
}

/* Give every row a place among the assignments of each of its experts. */
static void sort_unit(worker *me, long unit, const void *argument) {
  (void)unit;
  const block_work *bw = argument;
  const routing *r = &bw->b->experts.routing;
  mixture *mix = &me->w->mixture;
  long all = bw->live->count * r->chosen;
  int32_t starts[MOST_EXPERTS + 1] = {0}, next[MOST_EXPERTS];
  for (long i = 0; i < all; i++) starts[mix->chosen[i] + 1]++;
  for (long e = 0; e < r->count; e++) {
    starts[e + 1] += starts[e];
    next[e] = starts[e];
  }
  for (long i = 0; i < all; i++) {
    mix->places[i] = next[mix->chosen[i]]++;
    mix->sources[mix->places[i]] = (int32_t)(i / r->chosen);
  }
  mix->group_count = 0;
  for (int32_t e = 0; e < r->count; e++) divide_rows(mix, e, starts[e], starts[e + 1]);
}

static void route_and_sort_unit(worker *me, long unit, const void *argument) {
  route_unit(me, unit, argument);
  sort_unit(me, unit, argument);
}

static void copy_row(const model *m, const experts_part *e, const activations *from, long row, const activations *to, long at) {
  const quantised_rows *x = &from->quantised, *y = &to->quantised;
  if (!m->activations || e->takes_f32)
    memcpy(to->f32 + at * to->ld, from->f32 + row * from->ld, (size_t)from->ld * sizeof(float));
  if (!m->activations) return;
  size_t bytes = (size_t)(x->inputs * activation_bytes(m->activations)), tiles = (size_t)tile_bytes(m->cpu, m->activations, x->inputs);
  size_t blocks = (size_t)x->blocks;
  memcpy(y->q + (size_t)at * bytes, x->q + (size_t)row * bytes, bytes);
  memcpy(y->d + (size_t)at * blocks, x->d + (size_t)row * blocks, blocks * 4);
  memcpy(y->d_sum + (size_t)at * blocks, x->d_sum + (size_t)row * blocks, blocks * 4);
  memcpy(y->minus_sums + (size_t)at * blocks * 2, x->minus_sums + (size_t)row * blocks * 2, blocks * 8);
  if (tiles) memcpy(y->bytes + (size_t)at * tiles, x->bytes + (size_t)row * tiles, tiles);
  if (m->activations == ACTIVATIONS_INT12) memcpy(y->starts + (size_t)at * blocks, x->starts + (size_t)row * blocks, blocks * 4);
}

/* Copy the rows of an expert that has several. */
static void gather_rows(worker *me, long unit, const void *argument) {
  const block_work *bw = argument;
  const work *w = me->w;
  if (unit >= w->mixture.group_count) return;
  const expert_group *g = &w->mixture.groups[unit];
  for (long i = g->first; g->rows > 1 && i < g->first + g->rows; i++)
    copy_row(w->m, &bw->b->experts, &w->normed, w->mixture.sources[i], &w->mixture.gathered, i);
}

/* ---- products ---- */

/* Groups there can be at most: each expert has one that is not full. */
static long most_groups(const routing *r, long rows) {
  long all = rows * r->chosen;
  return (r->count < all ? r->count : all) + all / ROWS_PER_UNIT;
}

static void shared_activate_unit(worker *me, long unit, const void *argument) {
  const block_work *bw = argument;
  long rows = bw->live->count, parts = part_count(rows, ROWS_PER_UNIT);
  part p = part_of(unit % parts, rows, ROWS_PER_UNIT);
  activate_rows(me, &(activation_rows){&bw->b->experts.shared, &me->w->normed, p.row, p.rows, p.row, unit / parts, NULL}, bw->gated);
}

static void expert_activate_unit(worker *me, long unit, const void *argument) {
  const block_work *bw = argument;
  const experts_part *e = &bw->b->experts;
  const work *w = me->w;
  long pairs = e->each->up.w->pairs, groups = most_groups(&e->routing, bw->live->count);
  if (unit >= groups * pairs) {
    shared_activate_unit(me, unit - groups * pairs, bw);
    return;
  }
  if (unit / pairs >= w->mixture.group_count) return;
  const expert_group *g = &w->mixture.groups[unit / pairs];
  int alone = g->rows == 1;
  activation_rows a = {&e->each[g->expert], alone ? &w->normed : &w->mixture.gathered, alone ? g->source : g->first, g->rows, g->first, unit % pairs, NULL};
  activate_rows(me, &a, bw->expert_gated);
}

static void expert_down_unit(worker *me, long unit, const void *argument) {
  const block_work *bw = argument;
  const experts_part *e = &bw->b->experts;
  const work *w = me->w;
  long rows = bw->live->count, pairs = e->each->down.w->pairs, groups = most_groups(&e->routing, rows), ld = w->ld_hidden;
  if (unit >= groups * pairs) {
    unit -= groups * pairs;
    long parts = part_count(rows, ROWS_PER_UNIT), pair = unit / parts;
    part p = part_of(unit % parts, rows, ROWS_PER_UNIT);
    product(me, &e->shared.down, pair, &bw->gated, p.row, p.rows, w->mixture.shared + p.row * ld + pair * PAIR, ld, 0);
    return;
  }
  if (unit / pairs >= w->mixture.group_count) return;
  const expert_group *g = &w->mixture.groups[unit / pairs];
  long pair = unit % pairs;
  product(me, &e->each[g->expert].down, pair, &bw->expert_gated, g->first, g->rows, w->mixture.results + g->first * ld + pair * PAIR, ld, 0);
}

/* A mixture with norms of its own: the shared expert of the rows that are there, and then other rows for the router. */
static void shared_alone(worker *me, const block_work *bw) {
  const experts_part *e = &bw->b->experts;
  long rows = bw->live->count;
  run_units(me, e->shared.up.w->pairs * part_count(rows, ROWS_PER_UNIT), shared_activate_unit, bw);
  linear(me, &bw->gated, rows, &(target){&e->shared.down, me->w->mixture.shared, me->w->ld_hidden}, 1, 0);
  norm_rows(me, &(norms){NULL, &e->router_norm, NULL, rows});
}

void compute_experts(worker *me, const block_work *bw) {
  const experts_part *e = &bw->b->experts;
  const mixture *mix = &me->w->mixture;
  long rows = bw->live->count, groups = most_groups(&e->routing, rows);
  long shared = e->shared.up.w && !e->pre.weight ? part_count(rows, ROWS_PER_UNIT) : 0, shared_pairs = shared ? e->shared.up.w->pairs : 0;
  if (e->pre.weight) shared_alone(me, bw);
  const target targets[] = {{&e->router, mix->logits, mix->ld_logits}, {&e->shared_gate, mix->shared_gate, PAIR}};
  linear(me, &me->w->normed, rows, targets, e->shared_gate.w ? 2 : 1, 0);
  if (rows <= NORM_ROWS) {
    run_units(me, rows > 0, route_and_sort_unit, bw);
  } else {
    run_units(me, part_count(rows, NORM_ROWS), route_unit, bw);
    run_units(me, 1, sort_unit, bw);
  }
  if (e->pre.weight) norm_rows(me, &(norms){NULL, &e->pre, NULL, rows});
  if (rows > 1) run_units(me, groups, gather_rows, bw);
  run_units(me, groups * e->each->up.w->pairs + shared * shared_pairs, expert_activate_unit, bw);
  run_units(me, (groups + shared) * e->each->down.w->pairs, expert_down_unit, bw);
}

/* ---- the sum ---- */

void mixture_row(const worker *me, const residual_block *b, long r, float *out) {
  const work *w = me->w;
  const mixture *mix = &w->mixture;
  long hidden = w->m->hidden, chosen = b->experts.routing.chosen;
  memset(out, 0, (size_t)hidden * sizeof(float));
  for (long j = r * chosen; j < (r + 1) * chosen; j++) {
    const float *result = mix->results + mix->places[j] * w->ld_hidden;
    for (long i = 0; i < hidden; i++) out[i] += mix->weights[j] * result[i];
  }
  if (b->experts.post.weight) norm_in_place(me, &b->experts.post, out, hidden);
  if (!b->experts.shared.up.w) return;
  if (b->experts.shared_post.weight) norm_in_place(me, &b->experts.shared_post, mix->shared + r * w->ld_hidden, hidden);
  const float *shared = mix->shared + r * w->ld_hidden;
  float gate = b->experts.shared_gate.w ? mix->shared_gate[r * PAIR] : 1.0f;
  for (long i = 0; i < hidden; i++) out[i] += shared[i] * gate;
}
