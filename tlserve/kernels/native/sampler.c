/* One call draws for all rows of a step; one thread computes all rows of a run, one after the other.

   The order of every sum, the rule for ties and the random number are those of engine/sampling/sampler.py, engine/sampling/logit_edits.py and
   engine/sampling/fixed_math.py: edits, mask, temperature, top-k, top-p, min-p, draw; the lower id first among equals; lane i mod 1024 of a
   sum; Philox4x64-10. The filters are in sampler_filters.c, further ones and other orders in sampler_chain.c. */
#include "sampler.h"
#include "sampler_chain.h"
#include "sampler_draw_math.h"
#include "sampler_field.h"

#include <stdlib.h>

/* ---- the edits ---- */

/* Every operation is rounded by itself, as in engine/sampling/logit_edits.py; the result once more, to f32. */
static float edited_logit(float logit, const logit_edit *e, const edit_list *list) {
  double x = logit;
  if (e->count >= 0) x = x > 0 ? x / list->repetition : x * list->repetition;
  if (e->count > 0) {
    x -= list->presence;
    x -= list->frequency * e->count;
  }
  return (float)(x + e->bias);
}

static void apply_edits(const edit_list *list, float *logits, float *unedited) {
  for (long j = 0; j < list->n; j++) {
    float *logit = &logits[list->entries[j].id];
    unedited[j] = *logit;
    *logit = edited_logit(*logit, &list->entries[j], list);
  }
}

/* From the end, so that a logit that was edited twice gets its first value back. */
static void undo_edits(const edit_list *list, float *logits, const float *unedited) {
  for (long j = list->n - 1; j >= 0; j--) logits[list->entries[j].id] = unedited[j];
}

/* Count one more `token` in a list with entries in `own`, which has space for `most`. */
static void count_token(edit_list *list, logit_edit *own, long most, int32_t token) {
  long j = 0;
  while (j < list->n && own[j].id != token) j++;
  if (j == most) return;
  if (j == list->n) own[list->n++] = (logit_edit){token, 0, 0};
  own[j].count = own[j].count < 0 ? 1 : own[j].count + 1;
}

static int counts_tokens(const edit_list *list) { return list->repetition != 1 || list->presence != 0 || list->frequency != 0; }

/* ---- a row ---- */

/* `best`: the greatest logit of the field. `weighed`: the workspace's weights are those of the whole field at temperature 1. */
static int32_t draw_filtered(field *f, float best, const sample_row *row, int weighed) {
  const sampler *s = f->s;
  double u[2];
  workspace *r = f->memory;
  if (row->top_k > 0 && row->top_k < f->n) {
    keep_best(f, row->top_k);
    weighed = 0;
  }
  if (!weighed || row->temperature != 1) s->loops.weigh(f->values, f->n, best, row->temperature, &s->table, r->weights);
  if (row->top_p < 1) keep_nucleus(f, best, row->temperature, row->top_p);
  if (row->min_p > 0) keep_heavy(f, row->min_p);
  uniforms(row->seed, row->choice, row->index, u);
  long place = field_pick(f, u[0]);
  return f->ids ? f->ids[place] : (int32_t)place;
}

static int is_finite(float x) { return x - x == 0; }

static int32_t draw_greedy(const field *all, float best, const uint32_t *mask) {
  const sampler_loops *loops = &all->s->loops;
  long place = loops->equal(all->values, 0, all->n, best);
  while (mask && !(mask[place / 32] >> place % 32 & 1)) place = loops->equal(all->values, place + 1, all->n, best);
  return (int32_t)place;
}

/* Draw from a row whose greatest logit is `best`, a finite number. */
static int32_t draw_token(field f, float best, const sample_row *row, sample_chain *chain, const uint32_t *mask, int weighed) {
  double u[2];
  if (mask) {
    int allowed = 0;
    best = f.s->loops.greatest_allowed(f.values, f.n, mask, &allowed);
    if (!allowed) return NOTHING_ALLOWED;
    if (!is_finite(best)) return NOT_A_NUMBER;
  }
  if (!chain && row->temperature == 0) return draw_greedy(&f, best, mask);
  if (mask) keep_allowed(&f, mask);
  if (chain) {
    uniforms(row->seed, row->choice, row->index, u);
    return draw_chain(f, chain, u);
  }
  return draw_filtered(&f, best, row, weighed && !mask);
}

static void report(const field *all, float best, double log_total, int32_t token, const sample_row *row, double *logprobs, int32_t *tops) {
  const float *logits = all->values;
  long count = row->logprobs < all->n ? row->logprobs : all->n;
  logprobs[0] = ((double)logits[token] - (double)best) - log_total;
  if (count > 0) find_best(all, count);
  for (long j = 0; j < count; j++) {
    tops[j] = (int32_t)(all->memory->keys[j] & UINT32_MAX);
    logprobs[1 + j] = ((double)logits[tops[j]] - (double)best) - log_total;
  }
}

static int32_t draw_row(sampler *s, workspace *r, const sample_call *c, long i, const edit_list *edits) {
  const sample_row *row = &c->rows[i];
  float *logits = c->logits + i * c->vocabulary, best;
  const field all = {s, r, logits, NULL, c->vocabulary};
  const uint32_t *mask = row->mask < 0 ? NULL : c->masks + row->mask * c->mask_words;
  sample_chain *chain = row->chain < 0 ? NULL : &c->chains[row->chain];
  int with_logprobs = row->logprobs >= 0, edited = edits->n > 0;
  double log_total = 0;
  int32_t token = (int32_t)row->given;
  if (!is_finite(best = s->loops.greatest(logits, all.n))) return NOT_A_NUMBER;
  if (with_logprobs) {
    s->loops.weigh(logits, all.n, best, 1, &s->table, r->weights);
    log_total = natural_log(field_total(&all, r->weights), &s->table);
  }
  if (token < 0 && edited) {
    apply_edits(edits, logits, r->unedited);
    float best_edited = s->loops.greatest(logits, all.n);
    token = is_finite(best_edited) ? draw_token(all, best_edited, row, chain, mask, 0) : NOT_A_NUMBER;
    undo_edits(edits, logits, r->unedited);
  } else if (token < 0) {
    token = draw_token(all, best, row, chain, mask, with_logprobs);
  }
  if (with_logprobs && token >= 0) report(&all, best, log_total, token, row, c->logprobs + i * (1 + c->most), c->tops + i * c->most);
  return token;
}

/* ---- a call ---- */

typedef struct {
  sampler *s;
  const sample_call *call;
  phase runs;
} drawing;

/* A row sees the tokens that were drawn in the rows before it. */
static void draw_run(drawing *d, long run, int thread) {
  const sample_call *c = d->call;
  workspace *r = &d->s->workspaces[thread];
  long first = c->run_starts[run], end = c->run_starts[run + 1], which = c->rows[first].edits;
  edit_list none = {0}, edits = which < 0 ? none : c->edits[which];
  int counts = which >= 0 && end > first + 1 && counts_tokens(&edits);
  if (counts) {
    memcpy(r->edits, edits.entries, (size_t)edits.n * sizeof *r->edits);
    edits.entries = r->edits;
  }
  for (long i = first; i < end; i++) {
    c->tokens[i] = draw_row(d->s, r, c, i, &edits);
    if (c->tokens[i] != c->rows[i].expected) return;
    if (counts) count_token(&edits, r->edits, c->vocabulary, c->tokens[i]);
  }
}

static void draw_runs(void *argument, int thread) {
  drawing *d = argument;
  pool *threads = d->s->threads;
  long first, end;
  while (phase_take(threads, &d->runs, d->call->runs, &first, &end)) {
    for (long run = first; run < end; run++) draw_run(d, run, thread);
    phase_finish(threads, &d->runs, d->call->runs, end - first);
  }
  phase_wait(threads, &d->runs, d->call->runs);
}

/* Whether two rows need more than the greatest logit: then it pays to wake a second thread. */
static int has_much_to_do(const sample_call *c) {
  int much = 0;
  for (long run = 0; run < c->runs; run++) {
    const sample_row *row = &c->rows[c->run_starts[run]];
    much += ((row->temperature != 0 || row->chain >= 0) && row->given < 0) || row->logprobs >= 0;
  }
  return much > 1;
}

void sampler_draw(sampler *s, const sample_call *call) {
  drawing d = {s, call, {0}};
  for (long i = 0; i < call->run_starts[call->runs]; i++) call->tokens[i] = NOT_DRAWN;
  if (has_much_to_do(call))
    pool_run(s->threads, draw_runs, &d);
  else
    for (long run = 0; run < call->runs; run++) draw_run(&d, run, 0);
}

/* ---- life ---- */

static int make_workspace(workspace *r, long vocabulary) {
  size_t v = (size_t)vocabulary;
  r->values = malloc((v + SLACK) * sizeof *r->values);
  r->ids = malloc((v + SLACK) * sizeof *r->ids);
  r->weights = malloc(v * sizeof *r->weights);
  r->keys = malloc(2 * v * sizeof *r->keys);
  r->buckets = malloc(v * sizeof *r->buckets);
  r->edits = malloc(v * sizeof *r->edits);
  r->unedited = malloc(v * sizeof *r->unedited);
  return r->values && r->ids && r->weights && r->keys && r->buckets && r->edits && r->unedited;
}

sampler *sampler_new(long vocabulary, int threads, int widest, const exp_table *table) {
  sampler *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->vocabulary = vocabulary;
  s->table = *table;
  s->loops = best_loops(widest);
  s->threads = pool_new(threads);
  s->workspaces = calloc((size_t)threads, sizeof *s->workspaces);
  int made = s->threads && s->workspaces;
  for (int t = 0; made && t < threads; t++) made = make_workspace(&s->workspaces[t], vocabulary);
  if (made) return s;
  sampler_free(s);
  return NULL;
}

void sampler_free(sampler *s) {
  if (!s) return;
  int threads = s->threads ? pool_threads(s->threads) : 0;
  for (int t = 0; s->workspaces && t < threads; t++) {
    free(s->workspaces[t].values);
    free(s->workspaces[t].ids);
    free(s->workspaces[t].weights);
    free(s->workspaces[t].keys);
    free(s->workspaces[t].buckets);
    free(s->workspaces[t].edits);
    free(s->workspaces[t].unedited);
  }
  free(s->workspaces);
  pool_free(s->threads);
  free(s);
}

long sampler_vocabulary(const sampler *s) { return s->vocabulary; }
