/* Vectors of one instruction set: VL lanes of 32 bits, with the same few operations everywhere.

   Has everything that differs between instruction sets. The including file defines one of TL_AVX512, TL_AVX2, TL_NEON (with TL_AVX_VNNI or
   TL_DOTPROD where the processor multiplies bytes in one instruction). Arithmetic on vf and vi is the compilers' own (+ - * /),
   each operation rounded by itself: the whole extension is compiled with -ffp-contract=off.

   greater: a > b ? a : b, so b where one is nan. round_to_int rounds to nearest even (no thread of this process changes the rounding mode).
   dp_u7, dp_u8: acc[lane] + sum over i < 4 of w[4 lane + i] * x[4 lane + i], w unsigned bytes (below 128 for dp_u7), x signed
   bytes from -127 to 127. Exact. dp_u8 may leave out DP_U8_BIAS times the sum of x: the caller adds it.
   dp_words: acc[lane] + w[2 lane] * x[2 lane] + w[2 lane + 1] * x[2 lane + 1] of signed 16-bit numbers, in 32 bits.
   INLINE, UNROLL and KEEP_IN_REGISTER can be defined before: the stand-ins of tests/kernels/stand_ins need none of them.
   interleave: lanes a0 b0 a1 b1 of each four lanes of a and b. swap_pairs: lanes 2 3 0 1 of each four. */
#ifndef TL_SIMD_H
#define TL_SIMD_H

#include "matrix.h"

#include <stdint.h>
#include <string.h>

#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

#if defined(TL_AVX512)
#define VL 16
#elif defined(TL_AVX2)
#define VL 8
#else
#define VL 4
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));

INLINE vf load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vi load_bytes(const uint8_t *p) { vi v; memcpy(&v, p, sizeof v); return v; }
INLINE void store_ints(void *p, vi v) { memcpy(p, &v, sizeof v); }
INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }
INLINE vi low_nibbles(vi v) { return v & 0x0f0f0f0f; }
INLINE vi high_nibbles(vi v) { return (vi)((vu)v >> 4) & 0x0f0f0f0f; }
INLINE vi shifted(vi v, const int left) { return left >= 0 ? (vi)((vu)v << left) : (vi)((vu)v >> -left); }

/* look_up: bytes of a table of 16, by bytes below 16. */
#if defined(TL_AVX512)
INLINE vi look_up(const uint8_t *table, vi places) { return (vi)_mm512_shuffle_epi8((__m512i)load_bytes(table), (__m512i)places); }
#elif defined(TL_AVX2)
INLINE vi look_up(const uint8_t *table, vi places) { return (vi)_mm256_shuffle_epi8((__m256i)load_bytes(table), (__m256i)places); }
#else
INLINE vi look_up(const uint8_t *table, vi places) { return (vi)vqtbl1q_u8((uint8x16_t)load_bytes(table), (uint8x16_t)places); }
#endif

static const uint8_t MXFP4_TABLE[64] = {MXFP4_QUANTS, MXFP4_QUANTS, MXFP4_QUANTS, MXFP4_QUANTS};

/* Bits 4 and up of the quants of a quad, see matrix.h; planes: those of the vector's columns. */
INLINE vi upper_bits(const uint8_t *planes, const int quad, const int packing) {
  if (packing == PACK_U5) return shifted(load_bytes(planes), 4 - quad) & 0x10101010;
  return shifted(load_bytes(planes + quad / 4 * 64), 4 - quad % 4 * 2) & 0x30303030;
}

/* The quants of a quad, of VL columns from the one at `quants` on. */
INLINE vi quad_bytes(const uint8_t *quants, const int quad, const int packing) {
  if (packing == PACK_U8) return load_bytes(quants + quad * 64);
  vi both = load_bytes(quants + quad % 4 * 64), nibbles = quad < 4 ? low_nibbles(both) : high_nibbles(both);
  if (packing == PACK_M4) return look_up(MXFP4_TABLE, nibbles);
  return packing == PACK_U4 ? nibbles : nibbles | upper_bits(quants + 256, quad, packing);
}

#if defined(TL_AVX512)

INLINE vf set1(float x) { return (vf)_mm512_set1_ps(x); }
INLINE vi set1_int(int32_t x) { return (vi)_mm512_set1_epi32(x); }
INLINE vf fma1(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE vf load_f16(const uint16_t *p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
INLINE void store_f16(uint16_t *p, vf v) { _mm256_storeu_si256((void *)p, _mm512_cvtps_ph((__m512)v, 0)); }
INLINE vi load_u16(const uint16_t *p) { return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)); }
INLINE vi load_u8(const uint8_t *p) { return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)); }
INLINE vi load_i8(const uint8_t *p) { return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)); }
INLINE int32_t sum_lanes(vi v) { return _mm512_reduce_add_epi32((__m512i)v); }
INLINE int32_t greatest_lane(vi v) { return _mm512_reduce_max_epi32((__m512i)v); }
INLINE vi larger(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INLINE vf greater(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vi round_to_int(vf v) { return (vi)_mm512_cvtps_epi32((__m512)v); }
INLINE void store_bytes(int8_t *p, vi v) { _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8((__m512i)v)); }
#define DP_U8_BIAS 0
INLINE vi dp_u8(vi acc, vi w, vi x) { return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x); }
INLINE vi dp_u7(vi acc, vi w, vi x) { return dp_u8(acc, w, x); }
INLINE vi dp_words(vi acc, vi w, vi x) { return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)w, (__m512i)x); }
INLINE vi shift_right_words(vi v, const int by) { return (vi)_mm512_srli_epi16((__m512i)v, by); }
INLINE vi interleave(vi a, vi b) { return (vi)_mm512_unpacklo_epi32((__m512i)a, (__m512i)b); }
INLINE vi swap_pairs(vi v) { return (vi)_mm512_shuffle_epi32((__m512i)v, 0x4e); }

#elif defined(TL_AVX2)

INLINE vf set1(float x) { return (vf)_mm256_set1_ps(x); }
INLINE vi set1_int(int32_t x) { return (vi)_mm256_set1_epi32(x); }
INLINE vf fma1(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf load_f16(const uint16_t *p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
INLINE void store_f16(uint16_t *p, vf v) { _mm_storeu_si128((void *)p, _mm256_cvtps_ph((__m256)v, 0)); }
INLINE vi load_u16(const uint16_t *p) { return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)); }
INLINE vi load_u8(const uint8_t *p) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)); }
INLINE vi load_i8(const uint8_t *p) { return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)); }
INLINE int32_t sum_lanes(vi v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
INLINE int32_t greatest_lane(vi v) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
INLINE vi larger(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
INLINE vf greater(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vi round_to_int(vf v) { return (vi)_mm256_cvtps_epi32((__m256)v); }
INLINE void store_bytes(int8_t *p, vi v) {
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  _mm_storel_epi64((void *)p, _mm_packs_epi16(words, words));
}
INLINE vi shift_right_words(vi v, const int by) { return (vi)_mm256_srli_epi16((__m256i)v, by); }
INLINE vi interleave(vi a, vi b) { return (vi)_mm256_unpacklo_epi32((__m256i)a, (__m256i)b); }
INLINE vi swap_pairs(vi v) { return (vi)_mm256_shuffle_epi32((__m256i)v, 0x4e); }
#if defined(TL_AVX_VNNI)
INLINE vi dp_words(vi acc, vi w, vi x) { return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x); }
#define DP_U8_BIAS 0
INLINE vi dp_u8(vi acc, vi w, vi x) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x); }
INLINE vi dp_u7(vi acc, vi w, vi x) { return dp_u8(acc, w, x); }
#else
#ifndef KEEP_IN_REGISTER
#define KEEP_IN_REGISTER(v) __asm__("" : "+x"(v))
#endif
INLINE vi dp_words(vi acc, vi w, vi x) {
  acc += (vi)_mm256_madd_epi16((__m256i)w, (__m256i)x);
  KEEP_IN_REGISTER(acc); /* GCC would make all products of a block first, on the stack, and add them at the end */
  return acc;
}
/* maddubs adds pairs in 16 bits with saturation: 2 * 127 * 127 and 2 * 128 * 127 fit, 2 * 255 * 127 would not */
#define DP_U8_BIAS 128
INLINE vi add_pairs(vi acc, __m256i w, __m256i x) {
  __m256i pairs = _mm256_maddubs_epi16(w, x);
  return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
INLINE vi dp_u7(vi acc, vi w, vi x) { return add_pairs(acc, (__m256i)w, (__m256i)x); }
INLINE vi dp_u8(vi acc, vi w, vi x) {
  __m256i centred = (__m256i)(w ^ set1_int((int32_t)0x80808080));
  return add_pairs(acc, _mm256_abs_epi8(centred), _mm256_sign_epi8((__m256i)x, centred));
}
#endif

#else /* NEON */

INLINE vf set1(float x) { return (vf)vdupq_n_f32(x); }
INLINE vi set1_int(int32_t x) { return (vi)vdupq_n_s32(x); }
INLINE vf fma1(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE vf load_f16(const uint16_t *p) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE void store_f16(uint16_t *p, vf v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v))); }
INLINE vi load_u16(const uint16_t *p) { return (vi)vmovl_u16(vld1_u16(p)); }
INLINE uint8x8_t four_bytes(const uint8_t *p) { uint32_t four; memcpy(&four, p, 4); return vreinterpret_u8_u32(vdup_n_u32(four)); }
INLINE vi load_u8(const uint8_t *p) { return (vi)vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(p)))); }
INLINE vi load_i8(const uint8_t *p) { return (vi)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(p))))); }
INLINE int32_t sum_lanes(vi v) { return vaddvq_s32((int32x4_t)v); }
INLINE int32_t greatest_lane(vi v) { return vmaxvq_s32((int32x4_t)v); }
INLINE vi larger(vi a, vi b) { return (vi)vmaxq_s32((int32x4_t)a, (int32x4_t)b); }
INLINE vf greater(vf a, vf b) { vi above = a > b; return (vf)(((vi)a & above) | ((vi)b & ~above)); }
INLINE vi round_to_int(vf v) { return (vi)vcvtnq_s32_f32((float32x4_t)v); }
INLINE void store_bytes(int8_t *p, vi v) {
  int8x8_t bytes = vmovn_s16(vcombine_s16(vmovn_s32((int32x4_t)v), vdup_n_s16(0)));
  memcpy(p, &bytes, 4);
}
#if defined(TL_DOTPROD)
INLINE vi dp_signed(vi acc, vi w, vi x) { return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x); }
#else
INLINE vi dp_signed(vi acc, vi w, vi x) {
  int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x));
  int16x8_t high = vmull_s8(vget_high_s8((int8x16_t)w), vget_high_s8((int8x16_t)x));
  return acc + (vi)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
}
#endif
INLINE vi dp_words(vi acc, vi w, vi x) {
  int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)w), vget_low_s16((int16x8_t)x));
  int32x4_t high = vmull_s16(vget_high_s16((int16x8_t)w), vget_high_s16((int16x8_t)x));
  return acc + (vi)vpaddq_s32(low, high);
}
INLINE vi shift_right_words(vi v, const int by) { return (vi)vshlq_u16((uint16x8_t)v, vdupq_n_s16((int16_t)-by)); }
INLINE vi interleave(vi a, vi b) { return (vi)vzip1q_s32((int32x4_t)a, (int32x4_t)b); }
INLINE vi swap_pairs(vi v) { return (vi)vextq_s32((int32x4_t)v, (int32x4_t)v, 2); }
#define DP_U8_BIAS 128
INLINE vi dp_u7(vi acc, vi w, vi x) { return dp_signed(acc, w, x); }
INLINE vi dp_u8(vi acc, vi w, vi x) { return dp_signed(acc, w ^ set1_int((int32_t)0x80808080), x); }

#endif

/* Ask for the cache line at p; it need not exist. */
INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }

/* Loops over registers: unrolled whole, or the arrays would live in memory. */
#if defined(UNROLL)
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Of each four lanes: 0 and 2, then 1 and 3, as pairs of 16-bit numbers; the other two lanes are of no use. */
INLINE vi word_pairs(vi v) { return (v & 0xffff) | (vi)((vu)swap_pairs(v) << 16); }

/* Four signed bytes of an activation, or two signed 16-bit numbers, in every lane. */
INLINE vi set4(const int8_t *p) { int32_t four; memcpy(&four, p, 4); return set1_int(four); }

#endif
