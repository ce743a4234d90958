/* Tokens from logits, to the bit as `engine/sampling/sampler.py` and `engine/sampling/fixed_math.py` draw them: those two define the result. */
#ifndef TL_SAMPLER_H
#define TL_SAMPLER_H

#include "threads.h"

#include <stdint.h>

/* Changes with every change of the interface to Python; `engine/sampling/native_sampler.py` checks it. */
enum { SAMPLER_VERSION = 3 };

/* The request of one row; packed by `engine/sampling/native_sampler.py`. */
typedef struct {
  double temperature, top_p, min_p; /* temperature 0: the best */
  uint64_t seed, choice, index;
  int64_t top_k;    /* 0: all */
  int64_t logprobs; /* how many of the best, besides the drawn one; -1: no log-probabilities at all */
  int64_t mask;     /* which mask; -1: all tokens are allowed */
  int64_t edits;    /* which list of edits, as it is at the first row of the run; -1: none */
  int64_t expected; /* the next row of the run counts only if this token is drawn here */
  int64_t given;    /* nothing is drawn: the log-probability of this token is requested; -1: draw */
  int64_t chain;    /* which chain draws; -1: temperature, top-k, top-p and min-p of the row, in this order */
} sample_row;

/* The steps of a chain, by their places in FILTERS of sampling_params.py. */
enum { TOP_N_SIGMA, TEMPERATURE, TOP_K, TYPICAL_P, TOP_P, MIN_P, XTC, STEPS };

/* Filters in their own order, or mirostat; packed by `engine/sampling/native_sampler.py`. */
typedef struct {
  double top_n_sigma, temperature, dynatemp_range, dynatemp_exponent, typical_p, top_p, min_p, xtc_probability, xtc_threshold;
  double mirostat_tau, mirostat_eta, mu; /* `mu` is replaced by that of the next token */
  int64_t top_k, min_keep;
  int64_t mirostat; /* 1 or 2: no step but the temperature; 0: the steps */
  int64_t count, steps[STEPS];
} sample_chain;

/* One edited logit; made by `engine/sampling/logit_edits.py`. */
typedef struct {
  int32_t id;
  int32_t count; /* how often it is in the answer; 0: in the prompt alone; -1: in neither */
  double bias;
} logit_edit;

typedef struct {
  double repetition, presence, frequency;
  const logit_edit *entries; /* [n] an id at most once */
  long n;
} edit_list;

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
  float *logits;                           /* [N][vocabulary] written while a row is edited, then restored */
  const uint32_t *masks;                   /* [masks][mask_words] bit i % 32 of word i / 32 is for id i */
  const edit_list *edits;
  sample_chain *chains;                    /* each of one run */
  int32_t *tokens;                         /* [N] the token drawn, or one of the numbers below */
  double *logprobs;                        /* [N][1 + most] of the drawn token, then of `tops` */
  int32_t *tops;                           /* [N][most] the best, best first */
} sample_call;

enum { NOT_DRAWN = -1, NOT_A_NUMBER = -2, NOTHING_ALLOWED = -3 };

typedef struct sampler sampler;

/* A sampler with threads of its own, which sleep between calls; its vectors are at most `widest` bits wide. NULL without memory or
   threads. */
sampler *sampler_new(long vocabulary, int threads, int widest, const exp_table *table);
void sampler_free(sampler *s);
long sampler_vocabulary(const sampler *s);
void sampler_draw(sampler *s, const sample_call *call);

#endif
