/* Super-blocks of GGUF's K-quants, unpacked. */
#ifndef TL_SUPER_BLOCKS_H
#define TL_SUPER_BLOCKS_H

#include "matrix.h"

enum { KIND_Q3_K = 11, KIND_Q4_K = 12, KIND_Q5_K = 13, KIND_Q6_K = 14 };

/* Eight blocks of 32. `parts`: see SCALE_SUPER_MIN (scale, minimum) and SCALE_SUPER_HALVES (first, second half) in matrix.h;
   `units`: f16, of the scale and (SUPER_MIN) of the minimum. */
typedef struct {
  uint8_t quants[SUPER][BLOCK];
  uint8_t parts[SUPER][2];
  uint16_t units[2];
} super_block;

void take_apart(int kind, const uint8_t *from, super_block *to);

#endif
