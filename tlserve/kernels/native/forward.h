/* The forward pass of a llama over one step's rows. */
#ifndef TL_FORWARD_H
#define TL_FORWARD_H

#include "kernels.h"
#include "threads.h"

typedef struct {
  const float *attention_norm, *ffn_norm; /* [hidden] */
  const matrix *q, *k, *v, *output, *gate, *up, *down;
  const float *q_bias, *k_bias, *v_bias, *output_bias; /* [outputs]; NULL: none */
  const float *query_norm, *key_norm;                  /* [head_size], of every head before it turns; NULL: none */
  long window;                                         /* how many keys, its own the last, a row sees; 0: all */
  int unrotated;                                       /* nothing turns */
} layer;

typedef struct {
  long hidden, intermediate, heads, kv_heads, head_size, rotated, vocabulary, context, layers;
  float epsilon, query_scale;
  enum activation_format activations; /* for quantised weights; other weights always take f32 */
  const kernels *cpu;
  pool *threads;
  const matrix *embedding, *head;
  const float *norm;      /* [hidden] */
  const float *cos, *sin; /* [context][rotated / 2] */
  layer *layer;
} model;

/* One step, validated: T rows of S sequences. Sequence s owns rows row_starts[s] .. row_starts[s + 1] and the blocks
   tables[table_starts[s]] .. */
typedef struct {
  long rows, sequences, logit_count, hidden_count;
  const int32_t *tokens, *positions, *row_starts, *tables, *table_starts, *logit_rows, *hidden_rows;
  void *keys, *values; /* see kv_layer */
  long blocks, block_size;
  int half;
  float *logits; /* [logit_count][vocabulary] */
  float *hidden; /* [hidden_count][hidden] */
} step;

/* Run the step on all threads. Returns 0, or -1 without memory (nothing but the store was touched). */
int forward(const model *m, const step *s);

long padded_head(long head_size);

#endif
