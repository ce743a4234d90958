/* Print a digest of the logits of a small llama for every instruction set of this processor: all lines must be equal, on any processor.

   By hand, from the top of the checkout; for aarch64 the cross compiler and the emulator are Debian's gcc-aarch64-linux-gnu and
   qemu-user-static:
     flags="-O3 -std=gnu11 -ffp-contract=off -fno-math-errno -Wno-unknown-pragmas -pthread -static -Itlserve/kernels/native"
     files="tests/kernels/native_digest.c $(ls tlserve/kernels/native/{forward,pack,weight_row,threads,isa_*}.c)"
     gcc $flags $files -lm -o /tmp/digest && /tmp/digest
     aarch64-linux-gnu-gcc $flags $files -lm -o /tmp/digest-arm && qemu-aarch64-static /tmp/digest-arm */
#include "forward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 64, INTERMEDIATE = 96, HEADS = 6, KV_HEADS = 2, SIZE = 16, VOCABULARY = 101, CONTEXT = 128, TOKENS = 75, BLOCKS = 8 };

static uint32_t state = 1;
static uint32_t draw(void) { return state = state * 1664525u + 1013904223u; }
static float draw_float(void) { return (float)(draw() >> 8) * 0x1p-24f; }

/* Random rows of a type: bytes, with half-precision scales between 2^-8 and 2^-4 in front of each block. */
static matrix *random_matrix(int kind, int block_values, int block_bytes, int halves, long outputs, long inputs) {
  size_t bytes = matrix_row_bytes(kind, inputs) * (size_t)outputs;
  uint8_t *raw = malloc(bytes);
  for (size_t i = 0; i < bytes; i++) raw[i] = (uint8_t)(draw() >> 24);
  for (long b = 0; b < outputs * inputs / block_values; b++)
    for (int h = 0; h < halves; h++) {
      uint16_t half = (uint16_t)(0x1c00 + (draw() >> 20) % 0x1000) | (h ? 0x8000 : 0);
      memcpy(raw + b * block_bytes + h * 2, &half, 2);
    }
  matrix *w = malloc(sizeof *w);
  matrix_pack(w, kind, outputs, inputs, raw);
  free(raw);
  return w;
}

static matrix *q4_0(long n, long k) { return random_matrix(2, 32, 18, 1, n, k); }
static matrix *q4_1(long n, long k) { return random_matrix(3, 32, 20, 2, n, k); }
static matrix *q5_1(long n, long k) { return random_matrix(7, 32, 24, 2, n, k); }
static matrix *q8_0(long n, long k) { return random_matrix(8, 32, 34, 1, n, k); }

static float *random_floats(long n) {
  float *values = malloc((size_t)n * sizeof(float));
  for (long i = 0; i < n; i++) values[i] = draw_float() + 0.5f;
  return values;
}

static void digest(const model *m, int half) {
  int32_t tokens[TOKENS], positions[TOKENS], starts[] = {0, TOKENS}, tables[BLOCKS], table_starts[] = {0, BLOCKS};
  for (int i = 0; i < TOKENS; i++) tokens[i] = i % VOCABULARY, positions[i] = i;
  for (int i = 0; i < BLOCKS; i++) tables[i] = BLOCKS - 1 - i;
  float *logits = calloc(TOKENS * VOCABULARY, sizeof(float)), *store = calloc(2 * BLOCKS * 16 * KV_HEADS * SIZE, sizeof(float));
  step s = {.rows = TOKENS, .sequences = 1, .logit_count = TOKENS, .tokens = tokens, .positions = positions, .row_starts = starts,
            .tables = tables, .table_starts = table_starts, .logit_rows = positions, .keys = store,
            .values = store + BLOCKS * 16 * KV_HEADS * SIZE, .blocks = BLOCKS, .block_size = 16, .half = half, .logits = logits};
  forward(m, &s);
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < TOKENS * VOCABULARY * sizeof(float); i++) hash = (hash ^ ((uint8_t *)logits)[i]) * 1099511628211u;
  printf("%016llx", (unsigned long long)hash);
  free(logits);
  free(store);
}

int main(void) {
  static const kernels *const all[] = {
#if defined(__x86_64__)
      &KERNELS_AVX512, &KERNELS_AVX_VNNI, &KERNELS_AVX2,
#else
      &KERNELS_NEON,
#endif
  };
  long heads = HEADS * SIZE, kv = KV_HEADS * SIZE;
  layer l = {random_floats(HIDDEN),    random_floats(HIDDEN),     q4_1(heads, HIDDEN),        q4_0(kv, HIDDEN),           q5_1(kv, HIDDEN),
             q8_0(HIDDEN, heads),      q4_1(INTERMEDIATE, HIDDEN), q4_0(INTERMEDIATE, HIDDEN), q4_1(HIDDEN, INTERMEDIATE)};
  matrix *head = q8_0(VOCABULARY, HIDDEN);
  model m = {HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, SIZE, SIZE, VOCABULARY, CONTEXT, 1, 1e-5f, 0.36f, 1, NULL, pool_new(2),
             head,   head,         random_floats(HIDDEN), random_floats(CONTEXT * SIZE / 2), random_floats(CONTEXT * SIZE / 2), &l};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!all[i]->supported()) continue;
    m.cpu = all[i];
    for (m.int8_activations = 1; m.int8_activations >= 0; m.int8_activations--)
      for (int half = 1; half >= 0; half--) digest(&m, half), putchar(' ');
    puts("");
  }
  return 0;
}
