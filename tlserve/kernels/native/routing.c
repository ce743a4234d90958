/* The same numbers as kernels/reference/routing.py, to the bit: comparisons, and sums in a stated order.

   A nan is less than every number. Of equals, the lower number of an expert or of a group wins. */
#include "routing.h"

#include <math.h>

static float without_nan(float x) { return x == x ? x : -INFINITY; }

/* Mark the `count` greatest of n ranks in `taken`, which is 0 everywhere. */
static void take_greatest(const float *ranks, long n, long count, uint8_t *taken) {
  for (; count > 0; count--) {
    long best = -1;
    for (long i = 0; i < n; i++)
      if (!taken[i] && (best < 0 || ranks[i] > ranks[best])) best = i;
    taken[best] = 1;
  }
}

/* The sum of the two greatest, or the only one. */
static float two_greatest(const float *ranks, long n) {
  float first = ranks[0], second = -INFINITY;
  for (long i = 1; i < n; i++) {
    second = ranks[i] > first ? first : ranks[i] > second ? ranks[i] : second;
    first = ranks[i] > first ? ranks[i] : first;
  }
  return n > 1 ? second + first : first;
}

/* Ranks in groups that are not kept become less than every number. */
static void leave_groups_out(const routing *r, float *ranks) {
  long size = r->count / r->groups;
  float sums[MOST_EXPERTS];
  uint8_t kept[MOST_EXPERTS] = {0};
  for (long g = 0; g < r->groups; g++) sums[g] = without_nan(two_greatest(ranks + g * size, size));
  take_greatest(sums, r->groups, r->kept_groups, kept);
  for (long i = 0; i < r->count; i++)
    if (!kept[i / size]) ranks[i] = -INFINITY;
}

static void weigh(const routing *r, const int32_t *chosen, float *weights) {
  float total = weights[0];
  for (long i = 1; i < r->chosen; i++) total += weights[i];
  total = total < 1e-20f ? 1e-20f : total;
  for (long i = 0; r->divided && i < r->chosen; i++) weights[i] /= total;
  for (long i = 0; r->scale != 1.0f && i < r->chosen; i++) weights[i] *= r->scale;
  for (long i = 0; r->own_scales && i < r->chosen; i++) weights[i] *= r->own_scales[chosen[i]];
}

void route_row(const kernels *cpu, const routing *r, float *logits, int32_t *chosen, float *weights, float *scratch) {
  uint8_t taken[MOST_EXPERTS] = {0};
  const float *scores = logits;
  if (r->sigmoid)
    cpu->sigmoid_row(logits, r->count);
  else
    cpu->softmax_row(logits, r->count, scratch);
  for (long i = 0; i < r->count; i++) scratch[i] = without_nan(r->choice_bias ? scores[i] + r->choice_bias[i] : scores[i]);
  if (r->groups > 1) leave_groups_out(r, scratch);
  take_greatest(scratch, r->count, r->chosen, taken);
  for (long i = 0, n = 0; i < r->count; i++)
    if (taken[i]) {
      chosen[n] = (int32_t)i;
      weights[n++] = scores[i];
    }
  weigh(r, chosen, weights);
}
