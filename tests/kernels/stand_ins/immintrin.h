/* Stand-ins for the instructions of x86 that the kernels use, in portable C. They are in a folder of headers that comes first, so that the
   same sources compile with them. cases.c compares each with the processor's own. */
#ifndef STAND_INS_IMMINTRIN_H
#define STAND_INS_IMMINTRIN_H

#include "lanes.h"

typedef long long __m128i __attribute__((vector_size(16), may_alias)), __m256i __attribute__((vector_size(32), may_alias)),
    __m512i __attribute__((vector_size(64), may_alias));
typedef float __m256 __attribute__((vector_size(32), may_alias)), __m512 __attribute__((vector_size(64), may_alias));
typedef uint16_t __mmask16;

FN __m128i _mm_loadu_si128(const void *p) { __m128i v; memcpy(&v, p, 16); return v; }
FN __m128i _mm_loadl_epi64(const void *p) { __m128i v = {0}; memcpy(&v, p, 8); return v; }
FN void _mm_storeu_si128(void *p, __m128i v) { memcpy(p, &v, 16); }
FN void _mm_storel_epi64(void *p, __m128i v) { memcpy(p, &v, 8); }
FN int _mm_cvtsi128_si32(__m128i v) { return ((i32x_16)v)[0]; }
FN __m256i _mm256_loadu_si256(const void *p) { __m256i v; memcpy(&v, p, 32); return v; }
FN __m256 _mm256_loadu_ps(const float *p) { __m256 v; memcpy(&v, p, 32); return v; }
FN void _mm256_storeu_si256(void *p, __m256i v) { memcpy(p, &v, 32); }
FN void _mm256_storeu_ps(float *p, __m256 v) { memcpy(p, &v, 32); }
FN void _mm512_storeu_si512(void *p, __m512i v) { memcpy(p, &v, 64); }
FN void _mm512_storeu_ps(float *p, __m512 v) { memcpy(p, &v, 64); }
FN __m128i _mm256_castsi256_si128(__m256i v) { __m128i r; memcpy(&r, &v, 16); return r; }
FN __m128i _mm256_extracti128_si256(__m256i v, int half) { __m128i r; memcpy(&r, (char *)&v + 16 * half, 16); return r; }

/* What is there in every width of W bytes. */
#define INTEGERS(P, W, I)                                                                                                    \
  EACH(I, i32x_##W, W / 4, P##_set1_epi32, (int x), x)                                                                       \
  EACH(I, i16x_##W, W / 2, P##_set1_epi16, (short x), x)                                                                     \
  EACH(I, i32x_##W, W / 4, P##_add_epi32, (I a, I b), wrapped_sum(AT(i32x_##W, a, i), AT(i32x_##W, b, i)))                   \
  EACH(I, i32x_##W, W / 4, P##_max_epi32, (I a, I b), AT(i32x_##W, a, i) > AT(i32x_##W, b, i) ? AT(i32x_##W, a, i) : AT(i32x_##W, b, i)) \
  EACH(I, u16x_##W, W / 2, P##_srli_epi16, (I a, int by), (uint16_t)(by > 15 ? 0 : AT(u16x_##W, a, i) >> by))                \
  EACH(I, u8x_##W, W, P##_shuffle_epi8, (I a, I to),                                                                         \
       (uint8_t)(AT(u8x_##W, to, i) & 0x80 ? 0 : AT(u8x_##W, a, i / 16 * 16 + (AT(u8x_##W, to, i) & 15))))                   \
  EACH(I, i32x_##W, W / 4, P##_shuffle_epi32, (I a, int to), AT(i32x_##W, a, i / 4 * 4 + (to >> 2 * (i % 4) & 3)))           \
  EACH(I, i32x_##W, W / 4, P##_unpacklo_epi32, (I a, I b), AT(i32x_##W, i % 2 ? b : a, i / 4 * 4 + i % 4 / 2))

/* What is there in the widths above 16 bytes; H: half of W, HI: integers of that width. */
#define WIDE(P, W, I, F, H, HI)                                                                                              \
  EACH(F, f32x_##W, W / 4, P##_set1_ps, (float x), x)                                                                        \
  EACH(F, f32x_##W, W / 4, P##_max_ps, (F a, F b), a[i] > b[i] ? a[i] : b[i])                                                \
  EACH(F, f32x_##W, W / 4, P##_fmadd_ps, (F a, F b, F c), __builtin_fmaf(a[i], b[i], c[i]))                                  \
  EACH(F, f32x_##W, W / 4, P##_cvtph_ps, (HI a), half_to_float(AT(u16x_##H, a, i)))                                          \
  EACH(HI, u16x_##H, W / 4, P##_cvtps_ph, (F a, int rounding), ((void)rounding, float_to_half(a[i])))                        \
  EACH(I, i32x_##W, W / 4, P##_cvtps_epi32, (F a), rounded(a[i], INT32_MIN))                                                 \
  EACH(I, i32x_##W, W / 4, P##_cvtepu16_epi32, (HI a), AT(u16x_##H, a, i))                                                   \
  EACH(I, i32x_##W, W / 4, P##_cvtepu8_epi32, (__m128i a), AT(u8x_16, a, i))                                                 \
  EACH(I, i32x_##W, W / 4, P##_cvtepi8_epi32, (__m128i a), AT(i8x_16, a, i))

/* Products of four bytes, the first ones without a sign, and of two words, added to a lane of 32 bits. */
#define PRODUCTS(W, I, BYTES, WORDS)                                                                                         \
  EACH(I, i32x_##W, W / 4, BYTES, (I c, I a, I b),                                                                           \
       wrapped_sum(AT(i32x_##W, c, i), AT(u8x_##W, a, 4 * i) * AT(i8x_##W, b, 4 * i) +                                       \
                           AT(u8x_##W, a, 4 * i + 1) * AT(i8x_##W, b, 4 * i + 1) +                                           \
                           AT(u8x_##W, a, 4 * i + 2) * AT(i8x_##W, b, 4 * i + 2) +                                           \
                           AT(u8x_##W, a, 4 * i + 3) * AT(i8x_##W, b, 4 * i + 3)))                                           \
  EACH(I, i32x_##W, W / 4, WORDS, (I c, I a, I b),                                                                           \
       wrapped_sum(wrapped_sum(AT(i32x_##W, c, i), AT(i16x_##W, a, 2 * i) * AT(i16x_##W, b, 2 * i)),                         \
           AT(i16x_##W, a, 2 * i + 1) * AT(i16x_##W, b, 2 * i + 1)))

INTEGERS(_mm, 16, __m128i)
INTEGERS(_mm256, 32, __m256i)
INTEGERS(_mm512, 64, __m512i)
WIDE(_mm256, 32, __m256i, __m256, 16, __m128i)
WIDE(_mm512, 64, __m512i, __m512, 32, __m256i)
PRODUCTS(32, __m256i, _mm256_dpbusd_avx_epi32, _mm256_dpwssd_avx_epi32)
PRODUCTS(64, __m512i, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32)

/* ---- of 128 and 256 bits ---- */

EACH(__m128i, i16x_16, 8, _mm_packs_epi32, (__m128i a, __m128i b), (int16_t)between(AT(i32x_16, i < 4 ? a : b, i % 4), -32768, 32767))
EACH(__m128i, i8x_16, 16, _mm_packs_epi16, (__m128i a, __m128i b), (int8_t)between(AT(i16x_16, i < 8 ? a : b, i % 8), -128, 127))
EACH(__m256i, u8x_32, 32, _mm256_abs_epi8, (__m256i a), (uint8_t)(AT(i8x_32, a, i) < 0 ? -AT(i8x_32, a, i) : AT(i8x_32, a, i)))
EACH(__m256i, i8x_32, 32, _mm256_sign_epi8, (__m256i a, __m256i b),
     (int8_t)(AT(i8x_32, b, i) < 0 ? -AT(i8x_32, a, i) : AT(i8x_32, b, i) ? AT(i8x_32, a, i) : 0))
EACH(__m256i, i32x_32, 8, _mm256_madd_epi16, (__m256i a, __m256i b),
     wrapped_sum(AT(i16x_32, a, 2 * i) * AT(i16x_32, b, 2 * i), AT(i16x_32, a, 2 * i + 1) * AT(i16x_32, b, 2 * i + 1)))
EACH(__m256i, i16x_32, 16, _mm256_maddubs_epi16, (__m256i a, __m256i b),
     (int16_t)between(AT(u8x_32, a, 2 * i) * AT(i8x_32, b, 2 * i) + AT(u8x_32, a, 2 * i + 1) * AT(i8x_32, b, 2 * i + 1), -32768, 32767))
EACH(__m256, f32x_32, 8, _mm256_permutevar8x32_ps, (__m256 a, __m256i to), a[AT(i32x_32, to, i) & 7])
EACH(__m256i, i32x_32, 8, _mm256_permutevar8x32_epi32, (__m256i a, __m256i to), AT(i32x_32, a, AT(i32x_32, to, i) & 7))
#define _mm256_setr_epi32(...) ((__m256i)(i32x_32){__VA_ARGS__})

/* ---- of 512 bits ---- */

EACH(__m128i, i8x_16, 16, _mm512_cvtepi32_epi8, (__m512i a), (int8_t)AT(i32x_64, a, i))
FN int _mm512_reduce_add_epi32(__m512i a) {
  int total = 0;
  for (int i = 0; i < 16; i++) total = wrapped_sum(total, AT(i32x_64, a, i));
  return total;
}
FN int _mm512_reduce_max_epi32(__m512i a) {
  int most = AT(i32x_64, a, 0);
  for (int i = 1; i < 16; i++) most = AT(i32x_64, a, i) > most ? AT(i32x_64, a, i) : most;
  return most;
}
#define _mm512_setr_epi32(...) ((__m512i)(i32x_64){__VA_ARGS__})
FN __m512i _mm512_maskz_compress_epi32(__mmask16 mask, __m512i a) {
  i32x_64 r = {0};
  for (int i = 0, count = 0; i < 16; i++)
    if (mask >> i & 1) r[count++] = AT(i32x_64, a, i);
  return (__m512i)r;
}
FN __m512 _mm512_maskz_compress_ps(__mmask16 mask, __m512 a) { return (__m512)_mm512_maskz_compress_epi32(mask, (__m512i)a); }
/* reads no number that the mask leaves out: these can be beyond the memory */
FN __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float *p) {
  f32x_64 r = {0};
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) r[i] = p[i];
  return (__m512)r;
}

/* ---- tiles ---- */

/* What a processor refuses ends the program. */
#define REQUIRE(condition) if (!(condition)) __builtin_trap()

typedef struct {
  int rows, bytes; /* 0: not configured */
  uint8_t at[16][64];
} stand_in_tile;

static _Thread_local stand_in_tile stand_in_tiles[8] __attribute__((unused));

static inline void _tile_release(void) { memset(stand_in_tiles, 0, sizeof stand_in_tiles); }

static inline void _tile_loadconfig(const void *given) {
  const uint8_t *config = given;
  REQUIRE(config[0] == 1);
  _tile_release();
  for (int i = 0; i < 8; i++) {
    uint16_t bytes;
    memcpy(&bytes, config + 16 + 2 * i, 2);
    REQUIRE(config[48 + i] <= 16 && bytes <= 64 && !config[48 + i] == !bytes);
    stand_in_tiles[i].rows = config[48 + i];
    stand_in_tiles[i].bytes = bytes;
  }
}

static inline void _tile_zero(int tile) {
  REQUIRE(stand_in_tiles[tile].rows);
  memset(stand_in_tiles[tile].at, 0, sizeof stand_in_tiles[tile].at);
}

static inline void _tile_loadd(int tile, const void *from, long stride) {
  stand_in_tile *t = &stand_in_tiles[tile];
  _tile_zero(tile);
  for (int row = 0; row < t->rows; row++) memcpy(t->at[row], (const char *)from + row * stride, (size_t)t->bytes);
}

static inline void _tile_stored(int tile, void *to, long stride) {
  const stand_in_tile *t = &stand_in_tiles[tile];
  REQUIRE(t->rows);
  for (int row = 0; row < t->rows; row++) memcpy((char *)to + row * stride, t->at[row], (size_t)t->bytes);
}

/* Bytes of x have a sign, those of w have none. */
static inline void _tile_dpbsud(int sums, int x, int w) {
  stand_in_tile *c = &stand_in_tiles[sums];
  const stand_in_tile *a = &stand_in_tiles[x], *b = &stand_in_tiles[w];
  REQUIRE(c->rows && a->rows == c->rows && a->bytes == 4 * b->rows && b->bytes == c->bytes);
  for (int row = 0; row < c->rows; row++)
    for (int k = 0; k < b->rows; k++)
      for (int column = 0; column < c->bytes; column += 4) {
        int32_t sum;
        memcpy(&sum, c->at[row] + column, 4);
        for (int i = 0; i < 4; i++) sum = wrapped_sum(sum, (int8_t)a->at[row][4 * k + i] * b->at[k][column + i]);
        memcpy(c->at[row] + column, &sum, 4);
      }
}

#endif
