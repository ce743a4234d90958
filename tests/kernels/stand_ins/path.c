/* The kernels of one path on stand-ins: compiled once for each, with TABLE (the name of its table), NAME (the name of the path) and the
   macros that the path's own file defines. Nothing is inlined or unrolled by force, which keeps the time to compile short. */
#if defined(TL_NEON)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

static int supported(void) { return 1; } /* by every processor */

#define INLINE static inline
#define UNROLL
#define KEEP_IN_REGISTER(v) /* without the instructions there are no registers of this width */
#include "all_kernels.h"

#if defined(TL_AMX)
#include "gemm_tiles.h"
const kernels TABLE = TILE_TABLE(NAME, supported);
#else
const kernels TABLE = KERNEL_TABLE(NAME, supported);
#endif
