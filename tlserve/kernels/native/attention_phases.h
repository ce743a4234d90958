/* The phases of attention: queries, keys and values | norm and turn keys, store | turn queries, attention, quantise | output.

   In the last attention of a model all rows need their keys and values stored, and only the rows whose logits or hidden states are
   requested (`wanted`) need anything else: where these are fewer, they are moved together after the store and continue alone. */
#ifndef TL_ATTENTION_PHASES_H
#define TL_ATTENTION_PHASES_H

#include "units.h"

/* The place of a block's keys and values in the store of a step. */
kv_layer kv_of(const step *s, const model *m, const attention_part *a);

/* Add attention of the rows in `normed` to `out` [R][ld_hidden], or write it there. */
void attend_rows(worker *me, const block_work *bw, float *out, int add);

#endif
