/* The phases of a mixture of experts. */
#ifndef TL_EXPERTS_H
#define TL_EXPERTS_H

#include "units.h"

/* Rows of this block's products: gate and up of rows [row, row + rows) of x become rows from `to` on of `gated`, 32 numbers at `pair`. */
typedef struct {
  const feed_forward_part *part;
  const activations *x;
  long row, rows, to, pair;
  const int32_t *sources; /* rows of the step, for the input of a layer; NULL: the same */
} activation_rows;

/* The product that has as many pairs of panels as the numbers between the products. */
static inline const matrix *first_matrix(const feed_forward_part *f) { return f->gate.w ? f->gate.w : f->up.w; }

void activate_rows(worker *me, const activation_rows *a, activations gated);

/* Phases: route the rows, and compute every chosen expert for the rows that chose it, and the shared one. `mixture_row` adds them up. */
void compute_experts(worker *me, const block_work *bw);

/* The weighted sum of the experts of row r, ascending, the shared one last. */
void mixture_row(const worker *me, const residual_block *b, long r, float *out);

#endif
