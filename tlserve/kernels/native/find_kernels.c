#include "find_kernels.h"

#include <stddef.h>
#include <string.h>

static const kernels *const ALL_KERNELS[] = {
#if defined(__x86_64__) || defined(TL_EVERY_PATH) /* a test's build, with stand-ins for the instructions */
    &KERNELS_AMX,    &KERNELS_AVX512, &KERNELS_AVX_VNNI, &KERNELS_AVX2,
#endif
#if defined(__aarch64__) || defined(TL_EVERY_PATH)
    &KERNELS_NEON_DOT, &KERNELS_NEON,
#endif
    NULL};

const kernels *supported_kernels(int index) {
  for (int i = 0; ALL_KERNELS[i]; i++)
    if (ALL_KERNELS[i]->supported() && index-- == 0) return ALL_KERNELS[i];
  return NULL;
}

const kernels *find_kernels(const char *name) {
  for (int i = 0; ALL_KERNELS[i]; i++)
    if (strcmp(ALL_KERNELS[i]->name, name) == 0 && ALL_KERNELS[i]->supported()) return ALL_KERNELS[i];
  return NULL;
}
