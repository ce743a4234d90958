/* Time the attention of a forward pass, the f32 peak and the memory bandwidth of the same threads, in turn.

   attention_speed ISA THREADS ROUNDS HEADS KV_HEADS HEAD_SIZE HALF CASE...
   CASE is prefill:TOKENS (a prompt in steps of CHUNK rows) or decode:CONTEXT:SEQUENCES (one step). A case is timed with attention
   to all keys and with a window of one key; the difference is the time of attention. Every other size of the model is small.
   Prints a line for each measurement: peak GFLOPS | case: seconds in all, seconds with a window of one key, seconds to read the keys and
   values once (decode), floating-point operations, bytes. */
#include "find_kernels.h"
#include "forward.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { HIDDEN = 32, VOCABULARY = 32, BLOCK_SIZE = 16, CHUNK = 256, DECODE_LAYERS = 30, ACCUMULATORS = 16, PEAK_STEPS = 1 << 20,
       AHEAD = 4096 };

static uint32_t state = 1;
static uint32_t draw(void) { return state = state * 1664525u + 1013904223u; }

/* With one thread, processor time: other programs on the machine disturb it less. */
static clockid_t timer = CLOCK_MONOTONIC;

static double now(void) {
  struct timespec t;
  clock_gettime(timer, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the peak: independent chains of fused multiply-adds in the widest vectors ---- */

#define FMA_LOOP(NAME, VECTOR, FMA)                                                                        \
  static float NAME(void) {                                                                                \
    VECTOR acc[ACCUMULATORS], half;                                                                        \
    for (size_t i = 0; i < sizeof acc / 4; i++) ((float *)acc)[i] = (float)draw();                         \
    for (size_t i = 0; i < sizeof half / 4; i++) ((float *)&half)[i] = 0.5f;                               \
    for (long step = 0; step < PEAK_STEPS; step++)                                                         \
      _Pragma("GCC unroll 16") for (int i = 0; i < ACCUMULATORS; i++) acc[i] = FMA(acc[i], half, half);    \
    float total = 0;                                                                                       \
    for (int i = 0; i < ACCUMULATORS; i++) total += *(float *)&acc[i];                                     \
    return total;                                                                                          \
  }

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f")
FMA_LOOP(fma_avx512, __m512, _mm512_fmadd_ps)
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
FMA_LOOP(fma_avx2, __m256, _mm256_fmadd_ps)
#pragma GCC pop_options
#else
#include <arm_neon.h>
#define NEON_FMA(a, b, c) vfmaq_f32(c, a, b)
FMA_LOOP(fma_neon, float32x4_t, NEON_FMA)
#endif

typedef struct {
  float (*loop)(void);
  const uint64_t *memory;
  size_t words, share;
  volatile float kept;
} drill;

static double flops_of_peak(const char *isa, drill *d) {
#if defined(__x86_64__)
  int wide = strcmp(isa, "amx") == 0 || strcmp(isa, "avx512vnni") == 0;
  d->loop = wide ? fma_avx512 : fma_avx2;
  return 2.0 * (wide ? 16 : 8) * ACCUMULATORS * PEAK_STEPS;
#else
  (void)isa;
  d->loop = fma_neon;
  return 2.0 * 4 * ACCUMULATORS * PEAK_STEPS;
#endif
}

static void run_loop(void *argument, int thread) {
  (void)thread;
  ((drill *)argument)->kept = ((drill *)argument)->loop();
}

/* ---- the bandwidth: every word of the memory once, and what lies AHEAD is asked for, as the kernels do ---- */

typedef uint64_t words __attribute__((vector_size(64)));

static void read_share(void *argument, int thread) {
  drill *d = argument;
  const words *from = (const words *)(d->memory + (size_t)thread * d->share);
  words total[4] = {{0}};
  for (size_t i = 0; i + 4 <= d->share / 8; i += 4)
    for (size_t k = 0; k < 4; k++) {
      __builtin_prefetch((const char *)(from + i + k) + AHEAD, 0, 3);
      total[k] |= from[i + k];
    }
  total[0] |= total[1] | total[2] | total[3];
  d->kept = (float)total[0][0];
}

/* ---- the model ---- */

static void *huge(size_t bytes) {
  bytes = (bytes + (2 << 20) - 1) >> 21 << 21;
  void *memory = aligned_alloc(2 << 20, bytes);
  if (!memory) exit(2);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

static float *floats(long n) {
  float *values = malloc((size_t)n * sizeof(float));
  for (long i = 0; i < n; i++) values[i] = (float)(draw() >> 8) * 0x1p-24f - 0.5f;
  return values;
}

static matrix *matrix_of(long outputs, long inputs) {
  matrix *w = malloc(sizeof *w);
  float *rows = floats(outputs * inputs);
  if (matrix_pack(w, 0, outputs, inputs, (const uint8_t *)rows) < 0) exit(2);
  free(rows);
  return w;
}

/* `attending` layers, and a last one, in which no row of these steps attends. */
static model make_model(const kernels *cpu, pool *threads, long heads, long kv_heads, long size, long context, long attending) {
  long queries = heads * size, keys = kv_heads * size, layers = attending + 1;
  model m = {.hidden = HIDDEN, .vocabulary = VOCABULARY, .context = context, .count = 2 * layers, .last_attention = 2 * layers - 2,
             .key_width = keys * layers, .value_width = keys * layers, .embed_scale = 1, .logit_scale = 1,
             .activations = ACTIVATIONS_F32, .cpu = cpu, .threads = threads, .embedding = matrix_of(VOCABULARY, HIDDEN),
             .norm = {floats(HIDDEN), NULL, 1e-5f, 0}};
  residual_block one = {.pre = m.norm, .scale = 1, .has_attention = 1,
                        .attention = {.heads = heads, .kv_heads = kv_heads, .head_size = size, .query_scale = 0.2f,
                                      .q = {matrix_of(queries, HIDDEN), NULL}, .k = {matrix_of(keys, HIDDEN), NULL},
                                      .v = {matrix_of(keys, HIDDEN), NULL}, .output = {matrix_of(HIDDEN, queries), NULL}}};
  linear_part square = {matrix_of(HIDDEN, HIDDEN), NULL};
  residual_block other = {.pre = m.norm, .scale = 1, .has_feed_forward = 1, .feed_forward = {square, square, square, ACTIVATION_SILU}};
  m.head.w = m.embedding;
  m.block = malloc((size_t)m.count * sizeof(residual_block));
  for (long i = 0; i < layers; i++) {
    m.block[2 * i] = one, m.block[2 * i + 1] = other;
    m.block[2 * i].attention.keys_before = m.block[2 * i].attention.values_before = i * keys;
  }
  return m;
}

static void set_window(model *m, long window) {
  for (long i = 0; i < m->count; i += 2) m->block[i].attention.window = window;
}

/* ---- a case ---- */

typedef struct {
  const char *name;
  model m;
  int decode, half;
  long context, sequences, blocks; /* blocks of one sequence */
  void *keys, *values;
  size_t bytes; /* of all keys, and of all values */
  int32_t *tables;
} benchmark;

/* Rows from position `first` on, of every sequence */
static double time_step(const benchmark *b, long first, long rows_each) {
  long rows = rows_each * b->sequences;
  int32_t *tokens = calloc((size_t)rows, 4), *positions = calloc((size_t)rows, 4);
  int32_t starts[1024], table_starts[1024];
  for (long r = 0; r < rows; r++) tokens[r] = (int32_t)(r * 7 % VOCABULARY), positions[r] = (int32_t)(first + r % rows_each);
  for (long s = 0; s <= b->sequences; s++) starts[s] = (int32_t)(s * rows_each), table_starts[s] = (int32_t)(s * b->blocks);
  step s = {.rows = rows, .sequences = b->sequences, .tokens = tokens, .positions = positions, .row_starts = starts, .tables = b->tables,
            .table_starts = table_starts, .keys = b->keys, .values = b->values, .blocks = b->blocks * b->sequences,
            .block_size = BLOCK_SIZE, .half = b->half};
  double began = now();
  if (forward(&b->m, &s) < 0) exit(2);
  double seconds = now() - began;
  free(tokens);
  free(positions);
  return seconds;
}

static double time_case(benchmark *b, long window) {
  double seconds = 0;
  set_window(&b->m, window);
  if (b->decode) return time_step(b, b->context - 1, 1);
  for (long first = 0; first < b->context; first += CHUNK)
    seconds += time_step(b, first, b->context - first < CHUNK ? b->context - first : CHUNK);
  return seconds;
}

static void shuffle(int32_t *table, long n) {
  for (long i = 0; i < n; i++) table[i] = (int32_t)i;
  for (long i = n - 1; i > 0; i--) {
    long j = (long)(draw() >> 4) % (i + 1);
    int32_t kept = table[i];
    table[i] = table[j], table[j] = kept;
  }
}

static benchmark open_case(const char *name, const kernels *cpu, pool *threads, long heads, long kv_heads, long size, int half) {
  benchmark b = {.name = name, .sequences = 1, .half = half, .decode = strncmp(name, "decode:", 7) == 0};
  if (sscanf(name, b.decode ? "decode:%ld:%ld" : "prefill:%ld", &b.context, &b.sequences) < 1) exit(1);
  if (b.sequences < 1 || b.sequences > 1000) exit(1);
  b.m = make_model(cpu, threads, heads, kv_heads, size, b.context, b.decode ? DECODE_LAYERS : 1);
  b.blocks = (b.context + BLOCK_SIZE - 1) / BLOCK_SIZE;
  b.bytes = (size_t)(b.m.key_width * b.blocks * b.sequences * BLOCK_SIZE * (half ? 2 : 4));
  b.keys = huge(b.bytes);
  b.values = huge(b.bytes);
  for (size_t i = 0; i < b.bytes / 2; i++) /* halves, or floats, of either sign and about 1 / 4 */
    ((uint16_t *)b.keys)[i] = ((uint16_t *)b.values)[i] = (uint16_t)((draw() >> 16 & 0x83ff) | 0x3400);
  b.tables = malloc((size_t)(b.blocks * b.sequences) * 4);
  shuffle(b.tables, b.blocks * b.sequences);
  return b;
}

static double time_reading(const benchmark *b, drill *d, pool *threads) {
  double seconds = 0;
  for (int part = 0; part < 2; part++) {
    d->memory = part ? b->values : b->keys;
    d->words = b->bytes / 8;
    d->share = d->words / (size_t)pool_threads(threads) / 32 * 32;
    double began = now();
    pool_run(threads, read_share, d);
    seconds += now() - began;
  }
  return seconds * (double)(b->m.count - 2) / (double)b->m.count; /* no row attends in the last layer */
}

static void measure(benchmark *b, drill *d, pool *threads) {
  const model *m = &b->m;
  double keys = b->decode ? (double)b->context * (double)b->sequences : (double)b->context * (double)(b->context + 1) / 2;
  const attention_part *a = &m->block[0].attention;
  double attending = (double)(m->count / 2 - 1), flops = 4.0 * keys * (double)(a->heads * a->head_size) * attending;
  double bytes = 2.0 * (double)b->bytes * attending / (attending + 1);
  double all = time_case(b, 0), one_key = time_case(b, 1), reading = b->decode ? time_reading(b, d, threads) : 0;
  printf("%s %.9f %.9f %.9f %.0f %.0f\n", b->name, all, one_key, reading, flops, bytes);
}

int main(int count, char **given) {
  if (count < 9) return 1;
  const kernels *cpu = find_kernels(given[1]);
  pool *threads = pool_new(atoi(given[2]));
  if (!cpu || !threads) return 1;
  if (pool_threads(threads) == 1) timer = CLOCK_PROCESS_CPUTIME_ID;
  drill d = {0};
  benchmark cases[32];
  int cases_count = count - 8 < 32 ? count - 8 : 32;
  for (int i = 0; i < cases_count; i++)
    cases[i] = open_case(given[8 + i], cpu, threads, atol(given[4]), atol(given[5]), atol(given[6]), atoi(given[7]));
  for (int round = 0; round < atoi(given[3]); round++)
    for (int i = 0; i < cases_count; i++) {
      double flops = flops_of_peak(given[1], &d) * pool_threads(threads), began = now();
      pool_run(threads, run_loop, &d);
      printf("peak %.3f\n", flops / (now() - began) * 1e-9);
      measure(&cases[i], &d, threads);
      fflush(stdout);
    }
  return 0;
}
