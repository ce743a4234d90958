#include "units.h"

#include "experts.h"

#include <string.h>

void run_units(worker *me, long total, unit_work unit, const void *argument) {
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

/* ---- products ---- */

static void add_bias(const linear_part *l, long pair, long rows, float *out, long ld) {
  long left = l->w->outputs - pair * PAIR, columns = left < PAIR ? left : PAIR;
  const float *bias = l->bias + pair * PAIR;
  for (long r = 0; r < rows; r++)
    for (long i = 0; i < columns; i++) out[r * ld + i] += bias[i];
}

void product(worker *me, const linear_part *l, long pair, const activations *x, long row, long rows, float *out, long ld, int add) {
  const model *m = me->w->m;
  if (is_taken_quantised(m, l->w))
    m->cpu->linear[m->activations](l->w, pair, &x->quantised, row, rows, out, ld, add);
  else
    m->cpu->linear_f32(l->w, pair, x->f32, x->ld, row, rows, out, ld, add, me->scratch);
  if (l->bias) add_bias(l, pair, rows, out, ld);
}

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
  for (; pair >= t->part->w->pairs; t++) pair -= t->part->w->pairs;
  product(me, t->part, pair, p->x, r.row, r.rows, t->out + r.row * t->ld + pair * PAIR, t->ld, p->add);
}

void linear(worker *me, const activations *x, long rows, const target *targets, int count, int add) {
  long pairs = 0;
  for (int i = 0; i < count; i++) pairs += targets[i].part->w->pairs;
  run_units(me, pairs * part_count(rows, ROWS_PER_UNIT), product_unit, &(products){x, rows, count, add, targets});
}

/* ---- norms ---- */

void norm_row_of(const worker *me, const norm *n, const float *x, long size, float *out) {
  const kernels *cpu = me->w->m->cpu;
  if (!n->weight)
    memcpy(out, x, (size_t)size * sizeof(float));
  else if (n->layer)
    cpu->layer_norm_row(x, n->weight, n->bias, n->epsilon, size, out, me->scratch);
  else
    cpu->norm_row(x, n->weight, n->epsilon, size, out, me->scratch);
}

void norm_in_place(const worker *me, const norm *n, float *x, long size) {
  float *before = me->scratch + size; /* after what a norm takes */
  memcpy(before, x, (size_t)size * sizeof(float));
  norm_row_of(me, n, before, size, x);
}

/* Add what a block gave to row r, normed and scaled, to the residual, and norm that. */
static void close_row(const worker *me, const residual_block *b, long r) {
  const work *w = me->w;
  long hidden = w->m->hidden;
  float *sum = w->sum + r * w->ld_hidden;
  float *x = w->x + r * w->ld_hidden, *post = me->scratch + hidden; /* after what a norm takes */
  if (b->has_experts) mixture_row(me, b, r, sum);
  norm_row_of(me, &b->post, sum, hidden, post);
  if (b->scale != 1.0f)
    for (long i = 0; i < hidden; i++) post[i] *= b->scale;
  for (long i = 0; i < hidden; i++) x[i] += post[i];
  if (b->after.weight) norm_in_place(me, &b->after, x, hidden);
  for (long i = 0; b->out_scale && i < hidden; i++) x[i] *= *b->out_scale;
}

static void norm_unit(worker *me, long unit, const void *argument) {
  const norms *n = argument;
  work *w = me->w;
  const model *m = w->m;
  part p = part_of(unit, n->count, NORM_ROWS);
  for (long i = p.row; i < p.row + p.rows; i++) {
    long r = n->rows ? n->rows[i] : i;
    if (n->closed) close_row(me, n->closed, r);
    norm_row_of(me, n->norm, w->x + r * w->ld_hidden, m->hidden, w->normed.f32 + i * w->normed.ld);
    if (m->activations) quantise_part(m, &w->normed, i, 0, m->hidden);
  }
}

void norm_rows(worker *me, const norms *n) { run_units(me, part_count(n->count, NORM_ROWS), norm_unit, n); }

typedef struct {
  const residual_block *b;
  long count;
} closing;

static void close_unit(worker *me, long unit, const void *argument) {
  const closing *c = argument;
  part p = part_of(unit, c->count, NORM_ROWS);
  for (long r = p.row; r < p.row + p.rows; r++) close_row(me, c->b, r);
}

void close_rows(worker *me, const residual_block *b, long count) {
  run_units(me, part_count(count, NORM_ROWS), close_unit, &(closing){b, count});
}
