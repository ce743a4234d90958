/* The parts of a model as Python hands them over: blocks, matrices and vectors, checked and kept. */
#ifndef TL_MODEL_PARTS_H
#define TL_MODEL_PARTS_H

#include "buffers.h"
#include "forward.h"

/* What a model points into. */
typedef struct {
  PyObject *matrices; /* a list */
  Py_buffer *views;   /* of vectors */
  Py_ssize_t count;
} kept_parts;

/* What Python hands over besides sizes; borrowed references. */
typedef struct {
  PyObject *embedding, *head, *head_bias, *embedding_norm, *norm, *inputs, *blocks;
} given_parts;

/* Fill in all weights and blocks of `m`, whose sizes are there. 0, or -1 with an error; what was kept must be released either way. */
int keep_parts(model *m, kept_parts *kept, const given_parts *given);

void free_blocks(model *m);

void release_parts(kept_parts *kept);

#endif
