/* The Python type of the sampler, for the module that offers it. */
#ifndef TL_SAMPLER_OBJECT_H
#define TL_SAMPLER_OBJECT_H

extern PyTypeObject SamplerType;

#endif
