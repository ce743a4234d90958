/* The arrays of a step as Python hands them over: opened, sized and checked. */
#ifndef TL_STEP_ARGUMENTS_H
#define TL_STEP_ARGUMENTS_H

#include "buffers.h"
#include "forward.h"

enum { TOKENS, POSITIONS, ROW_STARTS, TABLES, TABLE_STARTS, LOGIT_ROWS, HIDDEN_ROWS, KEYS, VALUES, LOGITS, HIDDEN, INPUTS, VIEWS };

/* Open all arrays; *opened counts those that the caller must release, also after a failure. 0, or -1 with an error. */
int open_step(const model *m, step *s, PyObject **given, Py_buffer *views, int *opened);

/* Point the step to its arrays. 0, or -1 with an error. */
int fill_step(step *s, const Py_buffer *views);

/* Check that each index is inside the array that it points into. 0, or -1 with an error. */
int check_step(const model *m, const step *s);

#endif
