/* Print a digest of the logits of a small decoder for every instruction set of this processor: all lines must be equal, on any processor.
   Its first layer has plain blocks; its second has super-blocks, biases, norms of heads, a window, and turns nothing.

   By hand, from the top of the checkout; for aarch64 the cross compiler and the emulator are Debian's gcc-aarch64-linux-gnu and
   qemu-user-static:
     flags="-O3 -std=gnu11 -ffp-contract=off -fno-math-errno -Wno-unknown-pragmas -pthread -static -Itlserve/kernels/native"
     files="tests/kernels/native_digest.c $(ls tlserve/kernels/native/{forward,attention_phases,units,step_work,pack,super_blocks,weight_row,threads,isa_*}.c)"
     gcc $flags $files -lm -o /tmp/digest && /tmp/digest
     aarch64-linux-gnu-gcc $flags $files -lm -o /tmp/digest-arm && qemu-aarch64-static /tmp/digest-arm
   With `-cpu cortex-a53` the emulated processor has no sdot. */
#include "forward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HIDDEN = 256, INTERMEDIATE = 512, HEADS = 6, KV_HEADS = 2, SIZE = 16, VOCABULARY = 101, CONTEXT = 128, TOKENS = 75, BLOCKS = 8 };

#define EPSILON 1e-5f

static uint32_t state = 1;
static uint32_t draw(void) { return state = state * 1664525u + 1013904223u; }
static float draw_float(void) { return (float)(draw() >> 8) * 0x1p-24f; }

/* How random rows of a type are made: bytes, with half-precision scales from 2^-8 (2^-14 in super-blocks) to 16 times that. */
typedef struct {
  int kind, values, bytes;
  int first, count; /* where in a block its scales lie, and how many */
  int least;        /* their least bits */
} recipe;

static const recipe Q4_0 = {2, 32, 18, 0, 1, 0x1c00}, Q4_1 = {3, 32, 20, 0, 2, 0x1c00}, Q5_0 = {6, 32, 22, 0, 1, 0x1c00},
                    Q5_1 = {7, 32, 24, 0, 2, 0x1c00}, Q8_0 = {8, 32, 34, 0, 1, 0x0c00}, Q3_K = {11, 256, 110, 108, 1, 0x0800},
                    Q4_K = {12, 256, 144, 0, 2, 0x0400}, Q5_K = {13, 256, 176, 0, 2, 0x0400}, Q6_K = {14, 256, 210, 208, 1, 0x0400};

static matrix *random_matrix(recipe from, long outputs, long inputs) {
  size_t bytes = matrix_row_bytes(from.kind, inputs) * (size_t)outputs;
  uint8_t *raw = malloc(bytes);
  for (size_t i = 0; i < bytes; i++) raw[i] = (uint8_t)(draw() >> 24);
  for (long b = 0; b < outputs * inputs / from.values; b++)
    for (int h = 0; h < from.count; h++) {
      uint16_t half = (uint16_t)((unsigned)from.least + (draw() >> 20) % 0x1000) | (h && from.values == 32 ? 0x8000 : 0);
      memcpy(raw + b * from.bytes + from.first + h * 2, &half, 2);
    }
  matrix *w = malloc(sizeof *w);
  matrix_pack(w, from.kind, outputs, inputs, raw);
  free(raw);
  return w;
}

static float *random_floats(long n) {
  float *values = malloc((size_t)n * sizeof(float));
  for (long i = 0; i < n; i++) values[i] = draw_float() + 0.5f;
  return values;
}

/* A block of attention and one of a feed-forward part; matrices in the order q, k, v, output, gate, up, down. */
static void random_layer(residual_block *blocks, const recipe *from) {
  long heads = HEADS * SIZE, kv = KV_HEADS * SIZE;
  norm before_attention = {random_floats(HIDDEN), NULL, EPSILON, 0}, before_ffn = {random_floats(HIDDEN), NULL, EPSILON, 0};
  linear_part q = {random_matrix(from[0], heads, HIDDEN), NULL}, k = {random_matrix(from[1], kv, HIDDEN), NULL};
  linear_part v = {random_matrix(from[2], kv, HIDDEN), NULL}, output = {random_matrix(from[3], HIDDEN, heads), NULL};
  linear_part gate = {random_matrix(from[4], INTERMEDIATE, HIDDEN), NULL}, up = {random_matrix(from[5], INTERMEDIATE, HIDDEN), NULL};
  linear_part down = {random_matrix(from[6], HIDDEN, INTERMEDIATE), NULL};
  attention_part attention = {.heads = HEADS, .kv_heads = KV_HEADS, .head_size = SIZE, .q = q, .k = k, .v = v, .output = output,
                              .query_scale = 0.36f};
  blocks[0] = (residual_block){.pre = before_attention, .scale = 1, .has_attention = 1, .attention = attention};
  blocks[1] = (residual_block){.pre = before_ffn, .scale = 1, .has_feed_forward = 1, .feed_forward = {gate, up, down, ACTIVATION_SILU}};
}

static void digest(const model *m, int half) {
  int32_t tokens[TOKENS], positions[TOKENS], starts[] = {0, TOKENS}, tables[BLOCKS], table_starts[] = {0, BLOCKS};
  for (int i = 0; i < TOKENS; i++) tokens[i] = i % VOCABULARY, positions[i] = i;
  for (int i = 0; i < BLOCKS; i++) tables[i] = BLOCKS - 1 - i;
  float *logits = calloc(TOKENS * VOCABULARY, sizeof(float)), *store = calloc(2 * LAYERS * BLOCKS * 16 * KV_HEADS * SIZE, sizeof(float));
  step s = {.rows = TOKENS, .sequences = 1, .logit_count = TOKENS, .tokens = tokens, .positions = positions, .row_starts = starts,
            .tables = tables, .table_starts = table_starts, .logit_rows = positions, .keys = store,
            .values = store + LAYERS * BLOCKS * 16 * KV_HEADS * SIZE, .blocks = BLOCKS, .block_size = 16, .half = half, .logits = logits};
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
      &KERNELS_AMX, &KERNELS_AVX512, &KERNELS_AVX_VNNI, &KERNELS_AVX2,
#else
      &KERNELS_NEON_DOT, &KERNELS_NEON,
#endif
  };
  long heads = HEADS * SIZE, kv = KV_HEADS * SIZE;
  residual_block blocks[2 * LAYERS];
  random_layer(blocks, (recipe[]){Q4_1, Q4_0, Q5_1, Q8_0, Q5_0, Q4_0, Q4_1});
  random_layer(blocks + 2, (recipe[]){Q4_K, Q6_K, Q5_K, Q5_0, Q3_K, Q4_K, Q6_K});
  attention_part *first = &blocks[0].attention, *second = &blocks[2].attention;
  second->q.bias = random_floats(heads), second->k.bias = random_floats(kv), second->v.bias = random_floats(kv);
  second->output.bias = random_floats(HIDDEN);
  second->query_norm = (norm){random_floats(SIZE), NULL, EPSILON, 0}, second->key_norm = (norm){random_floats(SIZE), NULL, EPSILON, 0};
  second->window = 21, second->keys_before = kv, second->values_before = kv;
  matrix *head = random_matrix(Q8_0, VOCABULARY, HIDDEN);
  model m = {.hidden = HIDDEN, .vocabulary = VOCABULARY, .context = CONTEXT, .count = 2 * LAYERS, .last_attention = 2, .key_width = 2 * kv,
             .value_width = 2 * kv, .embed_scale = 1, .logit_scale = 1, .threads = pool_new(2), .embedding = head, .head = {head, NULL},
             .norm = {random_floats(HIDDEN), NULL, EPSILON, 0}, .block = blocks};
  first->rotated = SIZE, first->cos = random_floats(CONTEXT * SIZE / 2), first->sin = random_floats(CONTEXT * SIZE / 2);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!all[i]->supported()) continue;
    m.cpu = all[i];
    for (m.activations = 0; m.activations < ACTIVATION_FORMATS; m.activations++)
      for (int half = 1; half >= 0; half--) digest(&m, half), putchar(' ');
    puts("");
  }
  return 0;
}
