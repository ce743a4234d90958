/* The kernels for aarch64: every processor has NEON. */
#if defined(__aarch64__)
#include <arm_neon.h>

#define TL_NEON
#include "all_kernels.h"

static int supported(void) { return 1; }

const kernels KERNELS_NEON = KERNEL_TABLE("neon", supported);
#else
typedef int not_for_this_processor;
#endif
