/* Which experts a row takes, and with which weights. */
#ifndef TL_ROUTING_H
#define TL_ROUTING_H

#include "kernels.h"

enum { MOST_EXPERTS = 1024 };

/* See kernels/reference/routing.py. */
typedef struct {
  long count, chosen, groups, kept_groups;
  const float *choice_bias, *own_scales; /* [count]; NULL: none */
  int sigmoid, divided;
  float scale;
} routing;

/* logits[count], which are overwritten -> chosen[], ascending, and weights[]; scratch: count floats */
void route_row(const kernels *cpu, const routing *r, float *logits, int32_t *chosen, float *weights, float *scratch);

#endif
