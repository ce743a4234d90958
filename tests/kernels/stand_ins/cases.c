/* Print a digest of what each instruction returns for many inputs: compiled with the stand-ins or with the processor's instructions, the
   lines must be equal. Defined are those of AVX2, AVX_VNNI, AVX512, AMX, NEON, DOTPROD that the build has.

   By hand, for NEON on another processor, from the top of the checkout, with Debian's gcc-aarch64-linux-gnu and qemu-user-static:
     folder=tests/kernels/stand_ins; flags="-O1 -ffp-contract=off -static -DNEON -DDOTPROD"
     aarch64-linux-gnu-gcc $flags -march=armv8.2-a+dotprod $folder/cases.c -lm -o /tmp/real
     gcc $flags -I$folder $folder/cases.c -lm -o /tmp/stand-ins
     diff <(qemu-aarch64-static /tmp/real) <(/tmp/stand-ins) */
#if defined(NEON)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 4000, BYTES = 64 };

static _Alignas(64) uint8_t a[BYTES], b[BYTES], c[BYTES];

static uint64_t state;
static uint32_t draw(void) { return (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); }

/* By the round: any bytes; the ends of their range; floats about the range of halves; floats about that of integers. */
static void fill(uint8_t *bytes, int round) {
  static const uint8_t ends[] = {0x80, 0x7f, 0x00, 0xff};
  for (int i = 0; i < BYTES; i += 4) {
    uint32_t word = draw();
    if (round % 4 == 1)
      for (int k = 0; k < 4; k++) bytes[i + k] = ends[word >> (8 * k) & 3];
    else {
      if (round % 4 == 2) word = (word & 0x807fffff) | (uint32_t)(96 + (word >> 23) % 52) << 23;
      if (round % 4 == 3) word = (word & 0x80fff800) | (uint32_t)(120 + (word >> 23) % 44) << 23;
      memcpy(bytes + i, &word, 4);
    }
  }
}

static uint64_t digest(uint64_t hash, const void *bytes, size_t count, int floats) {
  const uint8_t *p = bytes;
  for (size_t i = 0; i < count; i += 4) {
    uint32_t word = 0;
    memcpy(&word, p + i, count - i < 4 ? count - i : 4);
    if (floats && (word & 0x7fffffff) > 0x7f800000) word = 0x7fc00000; /* which nan is not part of any result */
    hash = (hash ^ word) * 1099511628211u;
  }
  return hash;
}

#define RUN(NAME, FLOATS, OUT, ...)                                \
  do {                                                             \
    uint64_t hash = 14695981039346656037u;                         \
    state = 1;                                                     \
    for (int round = 0; round < ROUNDS; round++) {                 \
      fill(a, round), fill(b, round), fill(c, round);              \
      __VA_ARGS__;                                                 \
      hash = digest(hash, &OUT, sizeof OUT, FLOATS);               \
    }                                                              \
    printf("%s %016llx\n", #NAME, (unsigned long long)hash);       \
  } while (0)
#define CASE(NAME, ...) RUN(NAME, 0, out, __typeof__(NAME(__VA_ARGS__)) out = NAME(__VA_ARGS__))
#define FLOATS(NAME, ...) RUN(NAME, 1, out, __typeof__(NAME(__VA_ARGS__)) out = NAME(__VA_ARGS__))
#define STORE(NAME, ...) RUN(NAME, 0, c, NAME((void *)c, __VA_ARGS__))
#define AS(TYPE, bytes) (*(const TYPE *)(const void *)(bytes))

#if defined(NEON)
static void neon(void) {
#define F AS(float32x4_t, a)
#define I8(x) AS(int8x16_t, x)
#define I16(x) AS(int16x8_t, x)
#define I32(x) AS(int32x4_t, x)
  FLOATS(vdupq_n_f32, AS(float, a));
  CASE(vdupq_n_s32, AS(int32_t, a));
  CASE(vdupq_n_s16, AS(int16_t, a));
  CASE(vdup_n_s16, AS(int16_t, a));
  CASE(vdup_n_u32, AS(uint32_t, a));
  CASE(vld1_u16, AS(uint16_t *, &(uint16_t *){(uint16_t *)a}));
  STORE(vst1_u16, AS(uint16x4_t, a));
  FLOATS(vcvt_f32_f16, vreinterpret_f16_u16(AS(uint16x4_t, a)));
  CASE(vreinterpret_u16_f16, vcvt_f16_f32(F));
  CASE(vreinterpret_s8_u8, vreinterpret_u8_u32(AS(uint32x2_t, a)));
  CASE(vcvtnq_s32_f32, F);
  FLOATS(vfmaq_f32, F, AS(float32x4_t, b), AS(float32x4_t, c));
  CASE(vmaxq_s32, I32(a), I32(b));
  CASE(vaddvq_s32, I32(a));
  CASE(vmaxvq_s32, I32(a));
  CASE(vget_low_s8, I8(a));
  CASE(vget_high_s8, I8(a));
  CASE(vget_low_s16, I16(a));
  CASE(vget_high_s16, I16(a));
  CASE(vget_low_u16, AS(uint16x8_t, a));
  CASE(vcombine_s16, AS(int16x4_t, a), AS(int16x4_t, b));
  CASE(vmovl_u16, AS(uint16x4_t, a));
  CASE(vmovl_s16, AS(int16x4_t, a));
  CASE(vmovl_u8, AS(uint8x8_t, a));
  CASE(vmovl_s8, AS(int8x8_t, a));
  CASE(vmovn_s32, I32(a));
  CASE(vmovn_s16, I16(a));
  CASE(vzip1q_s32, I32(a), I32(b));
  CASE(vextq_s32, I32(a), I32(b), 2);
  CASE(vqtbl1q_u8, AS(uint8x16_t, a), AS(uint8x16_t, b));
  CASE(vshlq_u16, AS(uint16x8_t, a), I16(b));
  CASE(vmull_s8, AS(int8x8_t, a), AS(int8x8_t, b));
  CASE(vmull_s16, AS(int16x4_t, a), AS(int16x4_t, b));
  CASE(vpaddlq_s16, I16(a));
  CASE(vpaddq_s32, I32(a), I32(b));
#if defined(DOTPROD)
  CASE(vdotq_s32, I32(c), I8(a), I8(b));
#endif
}
#else
#define I128(x) AS(__m128i, x)
#define I256(x) AS(__m256i, x)
#define F256(x) AS(__m256, x)
static void avx2(void) {
  CASE(_mm_loadu_si128, (const void *)(a + 3));
  CASE(_mm_loadl_epi64, (const void *)(a + 3));
  STORE(_mm_storeu_si128, I128(a));
  STORE(_mm_storel_epi64, I128(a));
  CASE(_mm_cvtsi128_si32, I128(a));
  CASE(_mm_add_epi32, I128(a), I128(b));
  CASE(_mm_max_epi32, I128(a), I128(b));
  CASE(_mm_shuffle_epi32, I128(a), 0x4e);
  CASE(_mm_shuffle_epi32, I128(a), 0xb1);
  CASE(_mm_packs_epi32, I128(a), I128(b));
  CASE(_mm_packs_epi16, I128(a), I128(b));
  CASE(_mm256_loadu_si256, (const void *)(a + 3));
  FLOATS(_mm256_loadu_ps, (const float *)(a + 4));
  STORE(_mm256_storeu_si256, I256(a));
  STORE(_mm256_storeu_ps, F256(a));
  CASE(_mm256_castsi256_si128, I256(a));
  CASE(_mm256_extracti128_si256, I256(a), 1);
  FLOATS(_mm256_set1_ps, AS(float, a));
  CASE(_mm256_set1_epi32, AS(int, a));
  CASE(_mm256_set1_epi16, AS(short, a));
  CASE(_mm256_setr_epi32, 1, 2, 3, 4, 5, 6, 7, AS(int, a));
  CASE(_mm256_add_epi32, I256(a), I256(b));
  CASE(_mm256_max_epi32, I256(a), I256(b));
  CASE(_mm256_srli_epi16, I256(a), 5);
  CASE(_mm256_shuffle_epi32, I256(a), 0x4e);
  CASE(_mm256_shuffle_epi8, I256(a), I256(b));
  CASE(_mm256_unpacklo_epi32, I256(a), I256(b));
  FLOATS(_mm256_max_ps, F256(a), F256(b));
  FLOATS(_mm256_fmadd_ps, F256(a), F256(b), F256(c));
  FLOATS(_mm256_cvtph_ps, I128(a));
  CASE(_mm256_cvtps_ph, F256(a), 0);
  CASE(_mm256_cvtps_epi32, F256(a));
  CASE(_mm256_cvtepu16_epi32, I128(a));
  CASE(_mm256_cvtepu8_epi32, I128(a));
  CASE(_mm256_cvtepi8_epi32, I128(a));
  CASE(_mm256_abs_epi8, I256(a));
  CASE(_mm256_sign_epi8, I256(a), I256(b));
  CASE(_mm256_madd_epi16, I256(a), I256(b));
  CASE(_mm256_maddubs_epi16, I256(a), I256(b));
  FLOATS(_mm256_permutevar8x32_ps, F256(a), I256(b));
  CASE(_mm256_permutevar8x32_epi32, I256(a), I256(b));
}

#if defined(AVX_VNNI)
static void avx_vnni(void) {
  CASE(_mm256_dpbusd_avx_epi32, I256(c), I256(a), I256(b));
  CASE(_mm256_dpwssd_avx_epi32, I256(c), I256(a), I256(b));
}
#endif

#if defined(AVX512)
#define I512(x) AS(__m512i, x)
#define F512(x) AS(__m512, x)
static void avx512(void) {
  STORE(_mm512_storeu_si512, I512(a));
  STORE(_mm512_storeu_ps, F512(a));
  FLOATS(_mm512_set1_ps, AS(float, a));
  CASE(_mm512_set1_epi32, AS(int, a));
  CASE(_mm512_setr_epi32, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, AS(int, a));
  CASE(_mm512_add_epi32, I512(a), I512(b));
  CASE(_mm512_max_epi32, I512(a), I512(b));
  CASE(_mm512_srli_epi16, I512(a), 5);
  CASE(_mm512_shuffle_epi32, I512(a), 0x4e);
  CASE(_mm512_shuffle_epi8, I512(a), I512(b));
  CASE(_mm512_unpacklo_epi32, I512(a), I512(b));
  FLOATS(_mm512_max_ps, F512(a), F512(b));
  FLOATS(_mm512_fmadd_ps, F512(a), F512(b), F512(c));
  FLOATS(_mm512_cvtph_ps, I256(a));
  CASE(_mm512_cvtps_ph, F512(a), 0);
  CASE(_mm512_cvtps_epi32, F512(a));
  CASE(_mm512_cvtepu16_epi32, I256(a));
  CASE(_mm512_cvtepu8_epi32, I128(a));
  CASE(_mm512_cvtepi8_epi32, I128(a));
  CASE(_mm512_cvtepi32_epi8, I512(a));
  CASE(_mm512_reduce_add_epi32, I512(a));
  CASE(_mm512_reduce_max_epi32, I512(a));
  CASE(_mm512_dpbusd_epi32, I512(c), I512(a), I512(b));
  CASE(_mm512_dpwssd_epi32, I512(c), I512(a), I512(b));
  CASE(_mm512_maskz_compress_epi32, AS(__mmask16, b), I512(a));
  FLOATS(_mm512_maskz_compress_ps, AS(__mmask16, b), F512(a));
  FLOATS(_mm512_maskz_loadu_ps, AS(__mmask16, b), (const float *)a);
}
#endif
#endif

#if defined(AMX)
#if !defined(STAND_INS_IMMINTRIN_H)
#include <sys/syscall.h>
#include <unistd.h>
static void request_tiles(void) { syscall(SYS_arch_prctl, 0x1023, 18); }
#else
static void request_tiles(void) {}
#endif

enum { ROWS = 16 };
static _Alignas(64) uint8_t x[ROWS][BYTES], w[ROWS][BYTES], sums[ROWS][BYTES];

static void fill_tile(uint8_t (*tile)[BYTES], int round) {
  for (int row = 0; row < ROWS; row++) fill(tile[row], round);
}

/* Tiles of `rows` rows of sums and `depth` bytes of x; the stored sums replace the upper part of others. */
static void multiply_tiles(int round, int rows, int depth) {
  static _Alignas(64) uint8_t config[64];
  config[0] = 1;
  config[48] = config[49] = (uint8_t)rows, config[50] = (uint8_t)(depth / 4);
  config[16] = config[20] = BYTES, config[18] = (uint8_t)depth;
  __asm__ volatile("" : "+m"(config));
  _tile_loadconfig(config);
  fill_tile(x, round), fill_tile(w, round), fill_tile(sums, round);
  __asm__ volatile("" : "+m"(x), "+m"(w), "+m"(sums));
  if (round % 2) _tile_zero(0);
  else _tile_loadd(0, sums, BYTES);
  _tile_loadd(1, x, BYTES);
  _tile_loadd(2, w, BYTES);
  _tile_dpbsud(0, 1, 2);
  _tile_stored(0, sums, BYTES);
  _tile_release();
}

static void amx(void) {
  request_tiles();
  RUN(_tile_dpbsud_16_64, 0, sums, multiply_tiles(round, 16, 64));
  RUN(_tile_dpbsud_9_32, 0, sums, multiply_tiles(round, 9, 32));
  RUN(_tile_dpbsud_8_16, 0, sums, multiply_tiles(round, 8, 16));
}
#endif

int main(void) {
#if defined(NEON)
  neon();
#endif
#if defined(AVX2)
  avx2();
#endif
#if defined(AVX_VNNI)
  avx_vnni();
#endif
#if defined(AVX512)
  avx512();
#endif
#if defined(AMX)
  amx();
#endif
  return 0;
}
