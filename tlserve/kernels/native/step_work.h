/* The memory of one step: its activations, which rows go through which layers, and the units of attention. */
#ifndef TL_STEP_WORK_H
#define TL_STEP_WORK_H

#include "forward.h"

/* Activations that enter a product: f32, and quantised where some matrix needs it. */
typedef struct {
  float *f32; /* [R][ld] */
  long ld;
  quantised_rows quantised;
} activations;

/* Rows [row, row + rows) of a selection: consecutive ones of a sequence, from `position` on. */
typedef struct {
  int32_t row, rows, sequence, position;
} attention_unit;

/* Rows that go through a phase: all of the step in their places, or some of them moved together. */
typedef struct {
  long count;
  const int32_t *rows; /* [count] of the step; NULL: all */
  attention_unit *units;
  long unit_count;
} selection;

/* Rows of one expert: assignments [first, first + rows). `source`: of a single row, its number in the step; else -1. */
typedef struct {
  int32_t expert, first, rows, source;
} expert_group;

/* What a mixture of experts needs: R rows, each with C chosen experts, so A = R C assignments. */
typedef struct {
  float *logits, *shared_gate; /* [R][ld_logits], [R][PAIR] */
  long ld_logits;
  int32_t *chosen, *places;    /* [R][C] experts, and the assignment of each */
  float *weights;              /* [R][C] */
  int32_t *sources;            /* [A] rows */
  expert_group *groups;
  long group_count;
  activations gathered, gated; /* [A] */
  float *results, *shared;     /* [A][ld_hidden], [R][ld_hidden] */
} mixture;

/* What all threads of a step share. */
typedef struct {
  const model *m;
  const step *s;
  float *x;                     /* [R][ld_hidden] the residual */
  float *sum;                   /* [R][ld_hidden] of a block that is not plain */
  activations normed, mixed, gated;
  mixture mixture;              /* of the block that is computed */
  float *q, *k, *v;             /* [R][ld_q], [R][ld_kv] */
  float *inputs;                /* [R][ld_inputs] what all layers take of the tokens */
  long ld_hidden, ld_q, ld_kv, ld_inputs;
  selection all, wanted;
  int32_t attention_rows; /* the most of one unit */
  int32_t *wanted_rows, *logit_places, *hidden_places; /* the last two: places of rows after the last layer */
  float *scratch;
  long scratch_floats; /* of one thread */
  phase *phases; /* in the order of the step */
  char *memory;
} work;

static inline long pad(long n) { return (n + PAIR - 1) / PAIR * PAIR; }

/* Return the sequence that owns a row of the step. */
long sequence_of(const step *s, long row);

/* Reserve all memory but the phases, divide attention into units, and find the rows whose outputs are requested. 0, or -1 without
   memory. */
int work_open(work *w, const model *m, const step *s);

/* Reserve `count` phases. 0, or -1 without memory. */
int work_reserve_phases(work *w, long count);

void work_close(work *w);

#endif
