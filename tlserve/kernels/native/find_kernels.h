/* The instruction sets that this processor has kernels for, best first. */
#ifndef TL_FIND_KERNELS_H
#define TL_FIND_KERNELS_H

#include "kernels.h"

/* Return the kernels at `index` among those that this processor supports, or NULL beyond the last. */
const kernels *supported_kernels(int index);

/* Return the supported kernels of this name, or NULL. */
const kernels *find_kernels(const char *name);

#endif
