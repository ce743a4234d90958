/* Units of work: how the threads of a step share a phase, and what most phases consist of: norms and products of rows.

   A unit is computed whole by one thread and never depends on which. */
#ifndef TL_UNITS_H
#define TL_UNITS_H

#include "step_work.h"

enum { ROWS_PER_UNIT = 128, NORM_ROWS = 8 };

/* One thread in a step. While phases are counted, none are reserved yet. */
typedef struct {
  work *w;
  long phase; /* the number of the next one */
  float *scratch;
} worker;

/* Run unit(me, i, argument) for all i below total, together with the other threads; return when all are done. */
typedef void (*unit_work)(worker *me, long unit, const void *argument);
void run_units(worker *me, long total, unit_work unit, const void *argument);

/* Units that are parts of the rows, or (pair of panels) x (part of the rows): consecutive ones share the panels. */
typedef struct {
  long row, rows;
} part;

static inline long part_count(long rows, long most) { return (rows + most - 1) / most; }

static inline part part_of(long index, long rows, long most) {
  long row = index * most;
  return (part){row, rows - row < most ? rows - row : most};
}

static inline int is_taken_quantised(const model *m, const matrix *w) { return m->activations != ACTIVATIONS_F32 && is_quantised(w); }

/* One residual block, as its units need it. `mixed` and `gated` have the widths of this block. */
typedef struct {
  const residual_block *b;
  const selection *live; /* the rows that are computed to the end */
  kv_layer kv;
  activations mixed, gated, expert_gated; /* the last: a row for each assignment, see step_work.h */
} block_work;

/* out[(r - row) * ld + 0 .. 31] = columns 32 pair .. of x w + bias for rows [row, row + rows), or out += x w, and then the bias */
void product(worker *me, const linear_part *l, long pair, const activations *x, long row, long rows, float *out, long ld, int add);

/* One of several products of the same rows. */
typedef struct {
  const linear_part *part;
  float *out;
  long ld;
} target;

/* A phase: out of every target = x w + bias, or out += x w and out += bias. */
void linear(worker *me, const activations *x, long rows, const target *targets, int count, int add);

/* Quantise `columns` numbers of a row from `column` on: whole blocks. */
static inline void quantise_part(const model *m, activations *x, long row, long column, long columns) {
  m->cpu->quantise[m->activations](x->f32 + row * x->ld + column, &x->quantised, row, column / BLOCK, columns / BLOCK);
}

/* The norm of n numbers, or a copy where there is none. */
void norm_row_of(const worker *me, const norm *n, const float *x, long size, float *out);

/* Norm n numbers in their place. */
void norm_in_place(const worker *me, const norm *n, float *x, long size);

/* A phase: norm rows of the residual into `normed`, and quantise them; rows[i] (all rows where NULL) becomes row i. `closed` (NULL:
   none) is a block whose sum is added to the residual first. */
typedef struct {
  const residual_block *closed;
  const norm *norm;
  const int32_t *rows;
  long count;
} norms;

void norm_rows(worker *me, const norms *n);

/* A phase: add the sum of a block that is not plain to the residual of the first `count` rows. */
void close_rows(worker *me, const residual_block *b, long count);

#endif
