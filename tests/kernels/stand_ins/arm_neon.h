/* Stand-ins for the NEON instructions that the kernels use, in portable C; see immintrin.h. */
#ifndef STAND_INS_ARM_NEON_H
#define STAND_INS_ARM_NEON_H

#include "lanes.h"

typedef i8x_16 int8x16_t;
typedef i16x_16 int16x8_t;
typedef u16x_16 uint16x8_t;
typedef i32x_16 int32x4_t;
typedef u32x_16 uint32x4_t;
typedef u8x_16 uint8x16_t;
typedef f32x_16 float32x4_t;
typedef i8x_8 int8x8_t;
typedef u8x_8 uint8x8_t;
typedef i16x_8 int16x4_t;
typedef u16x_8 uint16x4_t;
typedef u32x_8 uint32x2_t;
typedef struct { u16x_8 bits; } float16x4_t;

EACH(float32x4_t, f32x_16, 4, vdupq_n_f32, (float x), x)
EACH(int32x4_t, i32x_16, 4, vdupq_n_s32, (int32_t x), x)
EACH(int16x8_t, i16x_16, 8, vdupq_n_s16, (int16_t x), x)
EACH(int16x4_t, i16x_8, 4, vdup_n_s16, (int16_t x), x)
EACH(uint32x2_t, u32x_8, 2, vdup_n_u32, (uint32_t x), x)
FN uint16x4_t vld1_u16(const uint16_t *p) { uint16x4_t v; memcpy(&v, p, 8); return v; }
FN void vst1_u16(uint16_t *p, uint16x4_t v) { memcpy(p, &v, 8); }
FN float16x4_t vreinterpret_f16_u16(uint16x4_t v) { return (float16x4_t){v}; }
FN uint16x4_t vreinterpret_u16_f16(float16x4_t v) { return v.bits; }
FN uint8x8_t vreinterpret_u8_u32(uint32x2_t v) { return (uint8x8_t)v; }
FN int8x8_t vreinterpret_s8_u8(uint8x8_t v) { return (int8x8_t)v; }
EACH(float32x4_t, f32x_16, 4, vcvt_f32_f16, (float16x4_t a), half_to_float(a.bits[i]))
FN float16x4_t vcvt_f16_f32(float32x4_t a) {
  float16x4_t r;
  for (int i = 0; i < 4; i++) r.bits[i] = float_to_half(a[i]);
  return r;
}
EACH(int32x4_t, i32x_16, 4, vcvtnq_s32_f32, (float32x4_t a), rounded(a[i], a[i] > 0 ? INT32_MAX : a[i] < 0 ? INT32_MIN : 0))
EACH(float32x4_t, f32x_16, 4, vfmaq_f32, (float32x4_t c, float32x4_t a, float32x4_t b), __builtin_fmaf(a[i], b[i], c[i]))
EACH(int32x4_t, i32x_16, 4, vmaxq_s32, (int32x4_t a, int32x4_t b), a[i] > b[i] ? a[i] : b[i])
FN int32_t vaddvq_s32(int32x4_t a) { return wrapped_sum(wrapped_sum(a[0], a[1]), wrapped_sum(a[2], a[3])); }
FN int32_t vmaxvq_s32(int32x4_t a) {
  int32_t most = a[0];
  for (int i = 1; i < 4; i++) most = a[i] > most ? a[i] : most;
  return most;
}

/* Halves of a vector, wider and narrower lanes. */
FN int8x8_t vget_low_s8(int8x16_t a) { int8x8_t r; memcpy(&r, &a, 8); return r; }
FN int8x8_t vget_high_s8(int8x16_t a) { int8x8_t r; memcpy(&r, (char *)&a + 8, 8); return r; }
FN int16x4_t vget_low_s16(int16x8_t a) { int16x4_t r; memcpy(&r, &a, 8); return r; }
FN int16x4_t vget_high_s16(int16x8_t a) { int16x4_t r; memcpy(&r, (char *)&a + 8, 8); return r; }
FN uint16x4_t vget_low_u16(uint16x8_t a) { uint16x4_t r; memcpy(&r, &a, 8); return r; }
EACH(int16x8_t, i16x_16, 8, vcombine_s16, (int16x4_t a, int16x4_t b), i < 4 ? a[i % 4] : b[i % 4])
EACH(uint32x4_t, u32x_16, 4, vmovl_u16, (uint16x4_t a), a[i])
EACH(int32x4_t, i32x_16, 4, vmovl_s16, (int16x4_t a), a[i])
EACH(uint16x8_t, u16x_16, 8, vmovl_u8, (uint8x8_t a), a[i])
EACH(int16x8_t, i16x_16, 8, vmovl_s8, (int8x8_t a), a[i])
EACH(int16x4_t, i16x_8, 4, vmovn_s32, (int32x4_t a), (int16_t)a[i])
EACH(int8x8_t, i8x_8, 8, vmovn_s16, (int16x8_t a), (int8_t)a[i])
EACH(int32x4_t, i32x_16, 4, vzip1q_s32, (int32x4_t a, int32x4_t b), i % 2 ? b[i / 2] : a[i / 2])
EACH(uint8x16_t, u8x_16, 16, vqtbl1q_u8, (uint8x16_t a, uint8x16_t to), to[i] < 16 ? a[to[i] & 15] : 0)
EACH(int32x4_t, i32x_16, 4, vextq_s32, (int32x4_t a, int32x4_t b, int from), from + i < 4 ? a[(from + i) % 4] : b[(from + i) % 4])
/* the lowest byte of a count, with its sign: to the left, or below 0 to the right */
FN uint16_t shifted_word(uint16_t word, int8_t by) {
  if (by <= -16 || by >= 16) return 0;
  return (uint16_t)(by < 0 ? word >> -by : word << by);
}
EACH(uint16x8_t, u16x_16, 8, vshlq_u16, (uint16x8_t a, int16x8_t by), shifted_word(a[i], (int8_t)by[i]))

/* Products. */
EACH(int16x8_t, i16x_16, 8, vmull_s8, (int8x8_t a, int8x8_t b), (int16_t)(a[i] * b[i]))
EACH(int32x4_t, i32x_16, 4, vmull_s16, (int16x4_t a, int16x4_t b), a[i] * b[i])
EACH(int32x4_t, i32x_16, 4, vpaddlq_s16, (int16x8_t a), a[2 * i] + a[2 * i + 1])
EACH(int32x4_t, i32x_16, 4, vpaddq_s32, (int32x4_t a, int32x4_t b),
     wrapped_sum((i < 2 ? a : b)[2 * (i % 2)], (i < 2 ? a : b)[2 * (i % 2) + 1]))
EACH(int32x4_t, i32x_16, 4, vdotq_s32, (int32x4_t c, int8x16_t a, int8x16_t b),
     wrapped_sum(c[i], a[4 * i] * b[4 * i] + a[4 * i + 1] * b[4 * i + 1] + a[4 * i + 2] * b[4 * i + 2] + a[4 * i + 3] * b[4 * i + 3]))

#endif
