/* What the stand-ins share: lanes of vectors, and half precision in integers, rounded to nearest even. */
#ifndef STAND_INS_LANES_H
#define STAND_INS_LANES_H

#include <limits.h>
#include <stdint.h>
#include <string.h>

#define FN static inline __attribute__((always_inline))

FN float float_from_bits(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }

FN float half_to_float(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return float_from_bits(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
  if (exponent) return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float magnitude = (float)fraction * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

FN uint16_t float_to_half(float f) {
  uint32_t bits, sign, size;
  memcpy(&bits, &f, 4);
  sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                                        /* rounds to 65536 */
  if (size < 0x38800000) return (uint16_t)(sign | (uint32_t)__builtin_rintf(float_from_bits(size) * 0x1p24f)); /* subnormal */
  size -= 112u << 23;
  return (uint16_t)(sign | (size + 0xfff + (size >> 13 & 1)) >> 13);
}

/* Nearest even; `otherwise` for what does not fit. */
FN int32_t rounded(float f, int32_t otherwise) {
  float whole = __builtin_rintf(f);
  return whole >= -0x1p31f && whole < 0x1p31f ? (int32_t)whole : otherwise;
}

FN int32_t between(int32_t x, int32_t least, int32_t most) { return x < least ? least : x > most ? most : x; }

/* In two's complement, as the instructions add. */
FN int32_t wrapped_sum(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); }

/* Vectors of BYTES bytes, by type of their lanes: i8x_BYTES and so on. */
#define LANES(BYTES)                                                                \
  typedef int8_t i8x_##BYTES __attribute__((vector_size(BYTES), may_alias));        \
  typedef uint8_t u8x_##BYTES __attribute__((vector_size(BYTES), may_alias));       \
  typedef int16_t i16x_##BYTES __attribute__((vector_size(BYTES), may_alias));      \
  typedef uint16_t u16x_##BYTES __attribute__((vector_size(BYTES), may_alias));     \
  typedef int32_t i32x_##BYTES __attribute__((vector_size(BYTES), may_alias));      \
  typedef uint32_t u32x_##BYTES __attribute__((vector_size(BYTES), may_alias));     \
  typedef float f32x_##BYTES __attribute__((vector_size(BYTES), may_alias));

LANES(8)
LANES(16)
LANES(32)
LANES(64)

/* Lane i of a vector, as one of TYPE. */
#define AT(TYPE, vector, i) ((TYPE)(vector))[i]

/* A function whose result `r` is made lane by lane. */
#define EACH(RESULT, LANE, COUNT, NAME, PARAMETERS, VALUE)      \
  FN RESULT NAME PARAMETERS {                                   \
    LANE r;                                                     \
    for (int i = 0; i < COUNT; i++) r[i] = VALUE;               \
    return (RESULT)r;                                           \
  }

#endif
