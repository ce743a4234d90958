/* The steps of a chain. Weights are computed when a step needs them, and again after a step that changes the temperature or removes the
   best token. Totals are sums over lanes; a field has one number of each kind for each of its tokens. */
#include "sampler_chain.h"

#include "sampler_draw_math.h"
#include "sampler_keys.h"

#include <math.h>

enum { HEAD = 100 }; /* mirostat 1 estimates the exponent of Zipf's law from so many of the best */
static const double MOST_LOG = 40.0;

typedef struct {
  field f;
  const sample_chain *c;
  double temperature, best; /* `best`: the greatest logit, once there are weights */
  long counted;             /* the tokens, with those that top-n-sigma removed */
  int weighed;
} chain_state;

static const exp_table *table_of(const chain_state *x) { return &x->f.s->table; }

static double *terms_of(const chain_state *x) { return (double *)x->f.memory->keys; } /* [2 n] while no keys are needed */

/* ---- numbers ---- */

static double exp_one(double x, const exp_table *t) {
  if (x > 700.0) x = 700.0;
  exp_tile(&x, 1, t);
  return x;
}

static double power(double x, double exponent, const exp_table *t) {
  if (exponent == 0) return 1.0;
  return x < 1e-300 ? 0.0 : exp_one(exponent * natural_log(x, t), t);
}

static double natural_log_of_2(const exp_table *t) { return t->step_high * EXP_STEPS + t->step_low * EXP_STEPS; }

static void weigh(chain_state *x) {
  if (x->weighed) return;
  const field *f = &x->f;
  x->best = f->s->loops.greatest(f->values, f->n);
  f->s->loops.weigh(f->values, f->n, x->best, x->temperature, table_of(x), f->memory->weights);
  x->weighed = 1;
}

/* The logarithm of the weight of a logit. */
static double exponent_of(const chain_state *x, float value) {
  double z = (double)value - x->best;
  if (x->temperature != 1.0) z /= x->temperature;
  return z < EXP_FLOOR ? EXP_FLOOR : z;
}

/* The entropy in nats, and the logarithm of the sum of the weights. */
static double entropy_of(chain_state *x, double *log_total) {
  const field *f = &x->f;
  double *terms = terms_of(x);
  weigh(x);
  for (long i = 0; i < f->n; i++) terms[i] = f->memory->weights[i] * exponent_of(x, f->values[i]);
  double all = field_total(f, f->memory->weights);
  *log_total = natural_log(all, table_of(x));
  return *log_total - field_total(f, terms) / all;
}

/* ---- the temperature ---- */

static void heat(chain_state *x, double temperature) {
  x->weighed = 0;
  if (temperature != 0) {
    x->temperature = temperature;
    return;
  }
  keep_best(&x->f, 1);
  x->counted = 1;
}

static void apply_temperature(chain_state *x) {
  const sample_chain *c = x->c;
  if (c->dynatemp_range <= 0) {
    heat(x, c->temperature);
  } else if (x->counted > 1) {
    double low = c->temperature - c->dynatemp_range, high = c->temperature + c->dynatemp_range, log_total;
    if (!(low > 0)) low = 0;
    double share = entropy_of(x, &log_total) / natural_log((double)x->counted, table_of(x));
    heat(x, low + (high - low) * power(share, c->dynatemp_exponent, table_of(x)));
  }
}

/* ---- filters ---- */

static long count_above(const field *f, double least) {
  long count = 0;
  for (long i = 0; i < f->n; i++) count += f->memory->weights[i] >= least;
  return count;
}

/* Keep the `count` best of more. */
static void keep_more(chain_state *x, long count) {
  if (count < x->f.n) {
    keep_best(&x->f, count);
    x->weighed = 0;
  }
}

/* Keep the `count` places that the keys have. */
static void keep_listed(chain_state *x, long count) {
  keep_places(&x->f, count);
  x->weighed = 0;
  x->counted = count;
}

static void apply_top_n_sigma(chain_state *x) {
  field *f = &x->f;
  double *terms = terms_of(x), best = f->s->loops.greatest(f->values, f->n);
  long count = 0, n = f->n;
  for (long i = 0; i < n; i++) terms[i] = f->values[i];
  double mean = field_total(f, terms) / (double)n;
  for (long i = 0; i < n; i++) terms[i] = (terms[i] - mean) * (terms[i] - mean);
  double least = best - x->c->top_n_sigma * sqrt(field_total(f, terms) / (double)n);
  for (long i = 0; i < n; i++)
    if ((double)f->values[i] >= least) f->memory->keys[count++] = (uint64_t)i;
  long counted = x->counted;
  keep_listed(x, count);
  x->counted = counted;
}

static void apply_top_k(chain_state *x) {
  keep_more(x, x->c->top_k);
  if (x->c->top_k < x->counted) x->counted = x->c->top_k;
}

static void apply_typical_p(chain_state *x) {
  field *f = &x->f;
  const double *weights = f->memory->weights;
  uint64_t *keys = f->memory->keys;
  double log_total, entropy = entropy_of(x, &log_total);
  int64_t all = 0, reached = 0;
  for (long i = 0; i < f->n; i++) {
    float distance = (float)fabs((log_total - exponent_of(x, f->values[i])) - entropy);
    keys[i] = key_of(-distance, i);
    all += share_of(weights[i]);
  }
  int64_t enough = (int64_t)(x->c->typical_p * (double)all);
  sort_keys(keys, f->n, keys + f->n);
  long kept = 0;
  while (kept < f->n && !(reached > enough && kept >= x->c->min_keep)) reached += share_of(weights[keys[kept++] & UINT32_MAX]);
  keep_listed(x, kept);
}

static void apply_top_p(chain_state *x) {
  field *f = &x->f;
  long least = x->c->min_keep < f->n ? x->c->min_keep : f->n;
  weigh(x);
  if (least > 1 && nucleus_size(f, x->best, x->temperature, x->c->top_p) < least) keep_more(x, least);
  else keep_nucleus(f, x->best, x->temperature, x->c->top_p);
  x->counted = f->n;
}

static void apply_min_p(chain_state *x) {
  field *f = &x->f;
  long least = x->c->min_keep < f->n ? x->c->min_keep : f->n;
  weigh(x);
  if (least > 1 && count_above(f, x->c->min_p) < least) keep_more(x, least);
  else keep_heavy(f, x->c->min_p);
  x->counted = f->n;
}

static void apply_xtc(chain_state *x, double chance) {
  field *f = &x->f;
  uint64_t *keys = f->memory->keys;
  if (chance > x->c->xtc_probability) return;
  weigh(x);
  long heavy = count_above(f, x->c->xtc_threshold * field_total(f, f->memory->weights)), kept = 0, counted = x->counted - (heavy - 1);
  if (heavy < 2 || counted < x->c->min_keep) return;
  find_best(f, heavy);
  uint64_t first = keys[heavy - 1];
  for (long i = 0; i < f->n; i++)
    if (key_of(f->values[i], i) >= first) keys[kept++] = (uint64_t)i;
  keep_listed(x, kept);
  x->counted = counted;
}

/* ---- mirostat ---- */

static long count_below(double slope, double mu, double size, const exp_table *t) {
  double excess = slope - 1, log_size = natural_log(size, t), divisor = 1 - exp_one(-excess * log_size, t);
  double ratio = divisor != 0 ? excess / divisor : 1 / log_size;
  double log_count = (natural_log(ratio, t) + mu * natural_log_of_2(t)) / slope;
  double count = exp_one(log_count < MOST_LOG ? log_count : MOST_LOG, t);
  return count > 1 ? (long)count : 1;
}

static long zipf_count(chain_state *x, long size) {
  const field *f = &x->f;
  const exp_table *t = table_of(x);
  long head = f->n < HEAD ? f->n : HEAD;
  double products = 0, squares = 0;
  weigh(x);
  find_best(f, head);
  for (long i = 0; i + 1 < head; i++) {
    const uint64_t *keys = f->memory->keys + i;
    double step = natural_log(((double)i + 2.0) / ((double)i + 1.0), t);
    double fall = exponent_of(x, f->values[keys[0] & UINT32_MAX]) - exponent_of(x, f->values[keys[1] & UINT32_MAX]);
    products += step * fall;
    squares += step * step;
  }
  double slope = squares != 0 ? products / squares : 0;
  return slope > 0 ? count_below(slope, x->c->mu, (double)size, t) : f->n;
}

static void keep_up_to_mu(chain_state *x) {
  weigh(x);
  const double *weights = x->f.memory->weights;
  double bound = field_total(&x->f, weights) * exp_one(-x->c->mu * natural_log_of_2(table_of(x)), table_of(x));
  if (count_above(&x->f, bound)) keep_heavy(&x->f, bound);
  else keep_more(x, 1);
}

static double next_mu(const chain_state *x, long place) {
  const exp_table *t = table_of(x);
  const double *weights = x->f.memory->weights;
  double all = field_total(&x->f, weights);
  double surprise = (natural_log(all, t) - natural_log(weights[place], t)) / natural_log_of_2(t);
  return x->c->mu - x->c->mirostat_eta * (surprise - x->c->mirostat_tau);
}

/* ---- the chain ---- */

/* Remove the logits of minus infinity; the greatest one is finite. */
static void keep_numbers(field *f) {
  uint64_t *keys = f->memory->keys;
  long count = 0;
  for (long i = 0; i < f->n; i++)
    if (f->values[i] > -INFINITY) keys[count++] = (uint64_t)i;
  if (count < f->n) keep_places(f, count);
}

static void apply(chain_state *x, int64_t step, double chance) {
  switch (step) {
    case TOP_N_SIGMA: apply_top_n_sigma(x); break;
    case TEMPERATURE: apply_temperature(x); break;
    case TOP_K: apply_top_k(x); break;
    case TYPICAL_P: apply_typical_p(x); break;
    case TOP_P: apply_top_p(x); break;
    case MIN_P: apply_min_p(x); break;
    case XTC: apply_xtc(x, chance); break;
    default: break;
  }
}

int32_t draw_chain(field f, sample_chain *c, const double *u) {
  keep_numbers(&f);
  chain_state x = {f, c, 1.0, 0, f.n, 0};
  if (c->mirostat) {
    heat(&x, c->temperature);
    if (c->mirostat == 1) keep_more(&x, zipf_count(&x, f.s->vocabulary));
    else keep_up_to_mu(&x);
  } else {
    for (int64_t i = 0; i < c->count; i++) apply(&x, c->steps[i], u[1]);
  }
  weigh(&x);
  long place = field_pick(&x.f, u[0]);
  if (c->mirostat) c->mu = next_mu(&x, place);
  return x.f.ids ? x.f.ids[place] : (int32_t)place;
}
