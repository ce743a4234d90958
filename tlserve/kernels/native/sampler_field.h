/* The tokens that can still be drawn in one row, and the filters that remove some of them. */
#ifndef TL_SAMPLER_FIELD_H
#define TL_SAMPLER_FIELD_H

#include "sampler.h"
#include "sampler_math.h"

/* Memory of one thread. V: vocabulary. */
typedef struct {
  float *values;     /* [V + SLACK] */
  int32_t *ids;      /* [V + SLACK] */
  double *weights;   /* [V] */
  uint64_t *keys;    /* [2 V] keys, and the same again to sort in */
  uint16_t *buckets; /* [V] */
  logit_edit *edits; /* [V] those of the run's next row */
  float *unedited;   /* [V] the edited logits before they were edited */
  double lanes[LANES];
} workspace;

struct sampler {
  long vocabulary;
  exp_table table;
  sampler_loops loops;
  pool *threads;
  workspace *workspaces;
};

/* Ids ascend. Once they have been computed, the workspace's weights are those of the field, place by place. */
typedef struct {
  const sampler *s;
  workspace *memory;
  const float *values; /* [n] */
  const int32_t *ids;  /* [n] or NULL: all */
  long n;
} field;

/* The sum of n numbers, lane by lane. */
double field_total(const field *f, const double *numbers);

/* The place that contains the share u of the weights. */
long field_pick(const field *f, double u);

/* Put the keys of the `count` best, best first, at the beginning of the workspace's keys. */
void find_best(const field *f, long count);

/* Keep the places in the first `count` of the workspace's keys, which need not be in order; the weights are not moved. */
void keep_places(field *f, long count);

/* Keep the `count` best; the weights are not moved. */
void keep_best(field *f, long count);

/* Keep the tokens of a whole row that the mask allows. */
void keep_allowed(field *f, const uint32_t *mask);

/* A weight in whole numbers of 2^-44: their sums are exact, in any order. */
static inline int64_t share_of(double weight) { return (int64_t)(weight * 0x1p44); }

/* The nucleus is the fewest of the best whose weights, those at `temperature`, reach the share top_p, at least one. */
long nucleus_size(const field *f, double best, double temperature, double top_p);
void keep_nucleus(field *f, double best, double temperature, double top_p);

/* Keep the tokens that weigh at least `least`. */
void keep_heavy(field *f, double least);

#endif
