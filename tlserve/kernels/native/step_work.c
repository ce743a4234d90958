#include "step_work.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ATTENTION_ROWS = 64, LEAST_ATTENTION_ROWS = 16, UNITS_PER_THREAD = 4 };

long sequence_of(const step *s, long row) {
  long low = 0, high = s->sequences - 1;
  while (low < high) {
    long middle = (low + high + 1) / 2;
    if (s->row_starts[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

long padded_head(long head_size) { return (head_size + KEY_TILE - 1) / KEY_TILE * KEY_TILE; }

typedef struct {
  char *base; /* NULL while measuring */
  size_t used;
} arena;

static void *reserve(arena *a, size_t bytes) {
  size_t at = a->used;
  a->used += (bytes + 63) / 64 * 64;
  return a->base ? a->base + at : NULL;
}

static activations reserve_rows(arena *a, const model *m, long rows, long inputs) {
  activations x = {.ld = pad(inputs), .quantised = {.inputs = inputs, .blocks = inputs / BLOCK}};
  size_t r = (size_t)rows;
  x.f32 = reserve(a, r * (size_t)x.ld * sizeof(float));
  if (m->activations == ACTIVATIONS_F32) return x;
  x.quantised.q = reserve(a, r * (size_t)(inputs * activation_bytes(m->activations)));
  x.quantised.d = reserve(a, r * (size_t)x.quantised.blocks * sizeof(float));
  x.quantised.d_sum = reserve(a, r * (size_t)x.quantised.blocks * sizeof(float));
  x.quantised.minus_sums = reserve(a, r * (size_t)x.quantised.blocks * 2 * sizeof(int32_t));
  x.quantised.bytes = reserve(a, r * (size_t)tile_bytes(m->cpu, m->activations, inputs));
  if (m->activations == ACTIVATIONS_INT12) x.quantised.starts = reserve(a, r * (size_t)x.quantised.blocks * sizeof(int32_t));
  return x;
}

static long most(long a, long b) { return a > b ? a : b; }

/* The greatest of what the blocks need. */
typedef struct {
  long queries, keys, gated, group, padded; /* numbers of a row; query heads of a key head; components of a value */
  long experts, chosen, expert_gated;       /* of a mixture, and numbers of a row of an expert */
  int sums;                                 /* some block is not plain */
} widths;

static void widen(widths *widest, const experts_part *e) {
  widest->experts = most(widest->experts, e->routing.count);
  widest->chosen = most(widest->chosen, e->routing.chosen);
  widest->expert_gated = most(widest->expert_gated, e->each->down.w->inputs);
  if (e->shared.up.w) widest->gated = most(widest->gated, e->shared.down.w->inputs);
}

static widths widths_of(const model *m) {
  widths widest = {0};
  for (long i = 0; i < m->count; i++) {
    const residual_block *b = &m->block[i];
    const attention_part *a = &b->attention;
    widest.sums |= !is_plain(b);
    if (b->has_feed_forward) widest.gated = most(widest.gated, b->feed_forward.down.w->inputs);
    if (b->has_experts) widen(&widest, &b->experts);
    if (!b->has_attention) continue;
    widest.queries = most(widest.queries, a->heads * a->head_size);
    widest.keys = most(widest.keys, a->kv_heads * a->head_size);
    widest.group = most(widest.group, a->heads / a->kv_heads);
    widest.padded = most(widest.padded, padded_head(a->head_size));
  }
  return widest;
}

/* Many rows of a unit share what attention does once for each segment of keys; few rows make enough units for all threads. */
static int32_t rows_of_attention(const model *m, const step *s) {
  long wanted = UNITS_PER_THREAD * (long)pool_threads(m->threads), rows = MOST_ATTENTION_ROWS;
  long kv_heads = m->block[m->last_attention].attention.kv_heads;
  while (rows > LEAST_ATTENTION_ROWS && s->rows * kv_heads < wanted * rows) rows /= 2;
  return (int32_t)rows;
}

static void lay_out_mixture(mixture *mix, arena *a, const work *w, const widths *widest) {
  size_t rows = (size_t)w->s->rows, all = rows * (size_t)widest->chosen;
  *mix = (mixture){.ld_logits = pad(widest->experts)};
  mix->logits = reserve(a, rows * (size_t)mix->ld_logits * sizeof(float));
  mix->shared_gate = reserve(a, rows * PAIR * sizeof(float));
  mix->chosen = reserve(a, all * sizeof(int32_t));
  mix->places = reserve(a, all * sizeof(int32_t));
  mix->weights = reserve(a, all * sizeof(float));
  mix->sources = reserve(a, all * sizeof(int32_t));
  mix->groups = reserve(a, all * sizeof(expert_group));
  mix->gathered = reserve_rows(a, w->m, (long)all, w->m->hidden);
  mix->gated = reserve_rows(a, w->m, (long)all, widest->expert_gated);
  mix->results = reserve(a, all * (size_t)w->ld_hidden * sizeof(float));
  mix->shared = reserve(a, rows * (size_t)w->ld_hidden * sizeof(float));
}

static void lay_out(work *w, arena *a) {
  const model *m = w->m;
  size_t rows = (size_t)w->s->rows, threads = (size_t)pool_threads(m->threads);
  widths widest = widths_of(m);
  w->ld_hidden = pad(m->hidden);
  w->ld_q = pad(widest.queries);
  w->ld_kv = pad(widest.keys);
  w->x = reserve(a, rows * (size_t)w->ld_hidden * sizeof(float));
  w->sum = widest.sums ? reserve(a, rows * (size_t)w->ld_hidden * sizeof(float)) : NULL;
  w->q = reserve(a, rows * (size_t)w->ld_q * sizeof(float));
  w->k = reserve(a, rows * (size_t)w->ld_kv * sizeof(float));
  w->v = reserve(a, rows * (size_t)w->ld_kv * sizeof(float));
  w->ld_inputs = pad(m->inputs.width * m->inputs.layers);
  w->inputs = reserve(a, rows * (size_t)w->ld_inputs * sizeof(float));
  w->normed = reserve_rows(a, m, w->s->rows, m->hidden);
  w->mixed = reserve_rows(a, m, w->s->rows, widest.queries);
  w->gated = reserve_rows(a, m, w->s->rows, widest.gated);
  if (widest.experts) lay_out_mixture(&w->mixture, a, w, &widest);
  size_t units = rows / (size_t)w->attention_rows + (size_t)w->s->sequences, some = (size_t)(w->s->logit_count + w->s->hidden_count);
  w->all.units = reserve(a, units * sizeof(attention_unit));
  w->wanted.units = reserve(a, some * sizeof(attention_unit));
  w->wanted_rows = reserve(a, some * sizeof(int32_t));
  w->logit_places = reserve(a, (size_t)w->s->logit_count * sizeof(int32_t));
  w->hidden_places = reserve(a, (size_t)w->s->hidden_count * sizeof(int32_t));
  w->scratch_floats = most(PAIR * most(most(m->hidden, widest.gated), most(widest.queries, most(widest.expert_gated, widest.experts))),
                           attend_scratch(w->attention_rows * widest.group, widest.padded));
  w->scratch_floats = most(w->scratch_floats, m->inputs.width * (m->inputs.layers + 2));
  w->scratch_floats = (w->scratch_floats + 15) / 16 * 16;
  w->scratch = reserve(a, threads * (size_t)w->scratch_floats * sizeof(float));
}

static void divide_attention(work *w) {
  const step *s = w->s;
  int32_t most_rows = w->attention_rows;
  w->all.count = s->rows;
  for (int32_t q = 0; q < s->sequences; q++)
    for (int32_t row = s->row_starts[q]; row < s->row_starts[q + 1]; row += most_rows) {
      int32_t left = s->row_starts[q + 1] - row;
      w->all.units[w->all.unit_count++] = (attention_unit){row, left < most_rows ? left : most_rows, q, s->positions[row]};
    }
}

/* Merge the two ascending lists of rows with requested outputs, and note the place of each. */
static void merge_wanted(work *w) {
  const step *s = w->s;
  long l = 0, h = 0, count = 0;
  for (; l < s->logit_count || h < s->hidden_count; count++) {
    int32_t a = l < s->logit_count ? s->logit_rows[l] : INT32_MAX, b = h < s->hidden_count ? s->hidden_rows[h] : INT32_MAX;
    int32_t row = a < b ? a : b;
    if (a == row) w->logit_places[l++] = (int32_t)count;
    if (b == row) w->hidden_places[h++] = (int32_t)count;
    w->wanted_rows[count] = row;
  }
  w->wanted.count = count;
}

/* Divide the wanted rows where the sequence changes, a row is left out, or a unit is full. */
static void choose_wanted(work *w) {
  selection *to = &w->wanted;
  merge_wanted(w);
  if (to->count == w->s->rows) {
    *to = w->all;
    return;
  }
  to->rows = w->wanted_rows;
  attention_unit *u = NULL;
  for (int32_t i = 0; i < to->count; i++) {
    int32_t row = to->rows[i], sequence = (int32_t)sequence_of(w->s, row);
    if (u && u->sequence == sequence && u->rows < w->attention_rows && row == to->rows[i - 1] + 1) {
      u->rows++;
      continue;
    }
    u = &to->units[to->unit_count++];
    *u = (attention_unit){i, 1, sequence, w->s->positions[row]};
  }
}

int work_open(work *w, const model *m, const step *s) {
  arena a = {NULL, 0};
  *w = (work){.m = m, .s = s, .attention_rows = rows_of_attention(m, s)};
  lay_out(w, &a);
  w->memory = aligned_alloc(64, a.used);
  if (!w->memory) return -1;
  a = (arena){w->memory, 0};
  lay_out(w, &a);
  divide_attention(w);
  choose_wanted(w);
  return 0;
}

int work_reserve_phases(work *w, long count) {
  size_t bytes = (size_t)count * sizeof(phase);
  w->phases = aligned_alloc(64, bytes);
  if (!w->phases) return -1;
  memset(w->phases, 0, bytes);
  return 0;
}

void work_close(work *w) {
  free(w->phases);
  free(w->memory);
}
