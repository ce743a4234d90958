/* The forward pass of a decoder over one step's rows. */
#ifndef TL_FORWARD_H
#define TL_FORWARD_H

#include "kernels.h"
#include "routing.h"
#include "threads.h"

/* A norm of rows, or of heads. */
typedef struct {
  const float *weight, *bias; /* weight NULL: there is no norm; bias NULL: none */
  float epsilon;
  int layer; /* LayerNorm; else RMS */
} norm;

/* A matrix and what is added to its product. */
typedef struct {
  const matrix *w;
  const float *bias; /* [outputs]; NULL: none */
} linear_part;

/* Attention to earlier rows of the sequence, or to all of it. */
typedef struct {
  long heads, kv_heads, head_size, window;
  int both_sides;      /* to later rows as well: sequences are whole in a step, and all such layers share a place in the store */
  linear_part q, k, v, output; /* k.w NULL: keys and values are those of the block `kv_from`. v.w NULL: values are the product of k */
  norm query_norm, key_norm, value_norm;
  long kv_from;        /* below 0: none */
  int norm_after_rope; /* else before */
  int per_head;        /* every head has a weight of its own: [heads][head_size] */
  int whole_row;       /* all heads of a row are normed together, before they turn */
  long rotated;
  const float *cos, *sin;     /* [context][rotated / 2] */
  const float *query_scales;  /* [context] of every position; NULL: `query_scale` */
  const float *sinks;         /* [heads] log2(e) times one more score; NULL: none */
  float query_scale, cap;     /* of log2(e) times the scores; cap 0: none */
  long keys_before, values_before; /* numbers for each position that a block of the store has for earlier attention */
} attention_part;

/* down(activation(gate x) * up x), or down(activation(up x)) where there is no gate. Instead of up x it can take the input of a layer. */
typedef struct {
  linear_part gate, up, down; /* gate.w NULL: none. up.w NULL: the numbers of a row's layer inputs from `input_from` on */
  enum activation activation;
  long input_from;
} feed_forward_part;

/* What every layer takes of the tokens besides the rows; see record.LayerInputs. */
typedef struct {
  long width, layers; /* width 0: nothing */
  const matrix *table;
  linear_part projection;
  norm norm;
  float of_rows, of_tokens, of_sum; /* factors */
} layer_inputs;

/* The sum of the chosen experts, each times its weight, and of a shared one. */
typedef struct {
  routing routing;
  linear_part router;
  feed_forward_part *each;   /* [routing.count] of the same sizes */
  int takes_f32;             /* some expert has a matrix that is not quantised */
  feed_forward_part shared;  /* up.w NULL: none */
  linear_part shared_gate;   /* one column, whose sigmoid the shared one is multiplied by; w NULL: none */
  norm router_norm, pre, post, shared_post; /* all or none: see record.ExpertNorms */
} experts_part;

/* x becomes after(x + scale * post(sum of the parts of pre(x))), and that times out_scale. */
typedef struct {
  norm pre, post, after;
  float scale;
  const float *out_scale; /* one number; NULL: none */
  int has_attention, has_feed_forward, has_experts; /* experts are alone */
  attention_part attention;
  feed_forward_part feed_forward;
  experts_part experts;
} residual_block;

/* Each part's product is added to the residual as it is. */
static inline int is_plain(const residual_block *b) {
  return !b->post.weight && !b->after.weight && b->scale == 1.0f && !b->out_scale && !b->has_experts;
}

typedef struct {
  long hidden, vocabulary, context, count; /* count: residual blocks */
  long last_attention;                     /* the number of the last block that stores keys and values */
  long key_width, value_width;             /* numbers in the store for each position */
  float embed_scale, logit_scale, logit_cap;
  enum activation_format activations; /* for quantised weights; other weights always take f32 */
  const kernels *cpu;
  pool *threads;
  int whole;                          /* attention is to both sides */
  const matrix *embedding;            /* NULL: every step brings its rows, and there are no logits */
  linear_part head;
  layer_inputs inputs;
  norm embedding_norm, norm;
  residual_block *block;
} model;

/* One step, validated: T rows of S sequences. Sequence s owns rows row_starts[s] .. row_starts[s + 1] and the blocks
   tables[table_starts[s]] .. */
typedef struct {
  long rows, sequences, logit_count, hidden_count;
  const int32_t *tokens, *positions, *row_starts, *tables, *table_starts, *logit_rows, *hidden_rows;
  void *keys, *values; /* see kv_layer */
  long blocks, block_size;
  int half;
  const float *inputs; /* [rows][hidden] instead of embeddings; NULL: none */
  float *logits; /* [logit_count][vocabulary] */
  float *hidden; /* [hidden_count][hidden] */
} step;

/* Run the step on all threads. Returns 0, or -1 without memory (nothing but the store was touched). */
int forward(const model *m, const step *s);

long padded_head(long head_size);

#endif
