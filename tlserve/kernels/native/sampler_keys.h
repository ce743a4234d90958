/* Logits with their places as numbers that sort: the order of the best, with the lower id first among equals. */
#ifndef TL_SAMPLER_KEYS_H
#define TL_SAMPLER_KEYS_H

#include <stdint.h>
#include <string.h>

/* Ascending keys are descending values, and ascending places among equal ones. */
static inline uint64_t key_of(float value, long place) {
  uint32_t bits;
  value += 0.0f; /* minus zero is zero */
  memcpy(&bits, &value, 4);
  bits = bits >> 31 ? bits : ~bits & 0x7fffffff;
  return (uint64_t)bits << 32 | (uint64_t)place;
}

static inline float value_of(uint64_t key) {
  uint32_t bits = (uint32_t)(key >> 32);
  float value;
  bits = bits >> 31 ? bits : ~bits & 0x7fffffff;
  memcpy(&value, &bits, 4);
  return value;
}

/* Sort n keys, byte by byte; a byte that is the same in all is skipped. `other` has space for n. */
static inline void sort_keys(uint64_t *keys, long n, uint64_t *other) {
  uint64_t *from = keys, *to = other, differing = 0;
  for (long i = 1; i < n; i++) differing |= keys[i] ^ keys[0];
  for (int shift = 0; shift < 64; shift += 8) {
    if ((differing >> shift & 255) == 0) continue;
    long starts[257] = {0};
    for (long i = 0; i < n; i++) starts[(from[i] >> shift & 255) + 1]++;
    for (int b = 1; b < 256; b++) starts[b] += starts[b - 1];
    for (long i = 0; i < n; i++) to[starts[from[i] >> shift & 255]++] = from[i];
    uint64_t *swapped = from;
    from = to;
    to = swapped;
  }
  if (from != keys) memcpy(keys, from, (size_t)n * sizeof *keys);
}

#endif
