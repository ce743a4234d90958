/* Tokens from logits, to the bit as `engine/sampler.py` and `engine/fixed_math.py` draw them: those two are the truth. */
#ifndef TL_SAMPLER_H
#define TL_SAMPLER_H

#include "threads.h"

#include <stdint.h>

/* What one row is asked for; packed by `engine/native_sampler.py`. */
typedef struct {
  double temperature, top_p, min_p; /* temperature 0: the best */
  uint64_t seed, choice, index;
  int64_t top_k;    /* 0: all */
  int64_t logprobs; /* how many of the best, besides the drawn one; -1: no log-probabilities at all */
  int64_t mask;     /* which mask; -1: all tokens are allowed */
  int64_t expected; /* the next row of the run counts only if this token is drawn here */
} sample_row;

enum { EXP_STEPS = 64 };

/* The numbers of fixed_math, made there with exact arithmetic. */
typedef struct {
  double inverse_step, step_high, step_low;
  double powers[EXP_STEPS];
} exp_table;

/* The rows of one call: R runs, each of rows that follow one another in one sequence. */
typedef struct {
  long runs, vocabulary, mask_words, most; /* most: columns of `tops` */
  const int32_t *run_starts;               /* [R + 1] */
  const sample_row *rows;                  /* [N] */
  const float *logits;                     /* [N][vocabulary] */
  const uint32_t *masks;                   /* [masks][mask_words] bit i % 32 of word i / 32 stands for id i */
  int32_t *tokens;                         /* [N] the token drawn, or one of the numbers below */
  double *logprobs;                        /* [N][1 + most] of the drawn token, then of `tops` */
  int32_t *tops;                           /* [N][most] the best, best first */
} sample_call;

enum { NOT_DRAWN = -1, NOT_A_NUMBER = -2, NOTHING_ALLOWED = -3 };

typedef struct sampler sampler;

/* A sampler with threads of its own, which sleep between calls. NULL without memory or threads. */
sampler *sampler_new(long vocabulary, int threads, const exp_table *table);
void sampler_free(sampler *s);
long sampler_vocabulary(const sampler *s);
void sampler_draw(sampler *s, const sample_call *call);

#endif
