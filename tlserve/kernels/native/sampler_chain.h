/* Filters in any order, and mirostat, to the bit as engine/sampling/sampler_chain.py has them. */
#ifndef TL_SAMPLER_CHAIN_H
#define TL_SAMPLER_CHAIN_H

#include "sampler_field.h"

/* Draw from a field with at least one token, the greatest logit finite; u[0] is the random number of the draw, u[1] that of XTC. With
   mirostat, c->mu becomes that of the next token. */
int32_t draw_chain(field f, sample_chain *c, const double *u);

#endif
