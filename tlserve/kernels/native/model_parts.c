/* A block is a dict: pre, post, scale, and attention and feed_forward, each a dict of its own or None. A norm is None or a tuple:
   whether it is LayerNorm, epsilon, weight, bias or None. A vector that a part does not have is None. */
#include "model_parts.h"

#include "matrix_object.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK_VECTORS = 18, MODEL_VECTORS = 3 };

static int refuse(const char *what) {
  PyErr_SetString(PyExc_ValueError, what);
  return -1;
}

static int keep_matrix(kept_parts *kept, const matrix **to, PyObject *object, const char *name, long outputs, long inputs) {
  *to = matrix_of(object, name, outputs, inputs);
  return *to ? PyList_Append(kept->matrices, object) : -1;
}

/* `items`: how many numbers there must be; returns how many there are, 0 for None, or -1 with an error. */
static Py_ssize_t keep_vector(kept_parts *kept, const float **to, PyObject *object, const char *name, Py_ssize_t items) {
  Py_buffer *view = &kept->views[kept->count];
  *to = NULL;
  if (object == Py_None) return 0;
  if (open_buffer(object, view, name, 'f', 4, items, 0) < 0) return -1;
  kept->count++;
  *to = view->buf;
  return view->len / 4;
}

static int keep_linear(kept_parts *kept, linear_part *l, PyObject *w, PyObject *bias, const char *name, long outputs, long inputs) {
  return keep_matrix(kept, &l->w, w, name, outputs, inputs) < 0 || keep_vector(kept, &l->bias, bias, name, outputs) < 0 ? -1 : 0;
}

static int keep_norm(kept_parts *kept, norm *n, PyObject *given, const char *name, long size) {
  PyObject *weight, *bias;
  *n = (norm){0};
  if (given == Py_None) return 0;
  if (!PyTuple_Check(given)) {
    PyErr_Format(PyExc_TypeError, "%s is a tuple or None", name);
    return -1;
  }
  if (!PyArg_ParseTuple(given, "pfOO", &n->layer, &n->epsilon, &weight, &bias)) return -1;
  if (weight == Py_None) return refuse("a norm has a weight");
  return keep_vector(kept, &n->weight, weight, name, size) < 0 || keep_vector(kept, &n->bias, bias, name, size) < 0 ? -1 : 0;
}

/* Read the parts of a dict, as PyArg_ParseTupleAndKeywords does: each must be there, and no other. */
static int read_dict(PyObject *given, const char *format, char **names, ...) {
  PyObject *none;
  va_list to;
  int read;
  if (!PyDict_Check(given)) {
    PyErr_SetString(PyExc_TypeError, "a part of a model is a dict of its parts");
    return -1;
  }
  if (!(none = PyTuple_New(0))) return -1;
  va_start(to, names);
  read = PyArg_VaParseTupleAndKeywords(none, given, format, names, to);
  va_end(to);
  Py_DECREF(none);
  return read ? 0 : -1;
}

/* ---- attention ---- */

/* The objects of a dict of attention. */
typedef struct {
  PyObject *q, *k, *v, *output, *q_bias, *k_bias, *v_bias, *output_bias, *q_norm, *k_norm, *cos, *sin, *query_scales;
} given_attention;

static int read_attention(attention_part *a, given_attention *g, PyObject *given) {
  static char *names[] = {"heads", "kv_heads", "head_size", "window", "query_scale", "cap", "norm_after_rope", "per_head",
                          "whole_row", "q", "k", "v", "output", "q_bias", "k_bias", "v_bias", "output_bias", "q_norm", "k_norm",
                          "cos", "sin", "query_scales", NULL};
  if (read_dict(given, "$llllffpppOOOOOOOOOOOOO", names, &a->heads, &a->kv_heads, &a->head_size, &a->window, &a->query_scale, &a->cap,
                &a->norm_after_rope, &a->per_head, &a->whole_row, &g->q, &g->k, &g->v, &g->output, &g->q_bias, &g->k_bias, &g->v_bias,
                &g->output_bias, &g->q_norm, &g->k_norm, &g->cos, &g->sin, &g->query_scales) < 0)
    return -1;
  if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads) return refuse("heads must be a multiple of kv_heads");
  if (a->head_size < 1 || a->head_size > MOST_HEAD_SIZE) return refuse("head_size must be 1 to 1024");
  if (a->heads > 1L << 20) return refuse("heads must be at most 2**20");
  return a->window < 0 ? refuse("a window is 0 or more keys") : 0;
}

static int keep_rotation(const model *m, kept_parts *kept, attention_part *a, const given_attention *g) {
  Py_ssize_t angles = keep_vector(kept, &a->cos, g->cos, "cos", -1);
  if (angles < 0 || keep_vector(kept, &a->sin, g->sin, "sin", angles) != angles) {
    if (!PyErr_Occurred()) refuse("cos and sin are of one length");
    return -1;
  }
  a->rotated = angles / m->context * 2;
  if (a->rotated * m->context != angles * 2 || a->rotated > a->head_size)
    return refuse("cos and sin have an angle for each position and pair of a head");
  return keep_vector(kept, &a->query_scales, g->query_scales, "query_scales", m->context) < 0 ? -1 : 0;
}

static int keep_head_norm(kept_parts *kept, norm *n, PyObject *given, const attention_part *a, const char *name, long heads) {
  return keep_norm(kept, n, given, name, a->per_head || a->whole_row ? heads * a->head_size : a->head_size);
}

static int keep_attention(model *m, kept_parts *kept, attention_part *a, PyObject *given) {
  given_attention g;
  if (read_attention(a, &g, given) < 0) return -1;
  long queries = a->heads * a->head_size, keys = a->kv_heads * a->head_size;
  if (keep_linear(kept, &a->q, g.q, g.q_bias, "q", queries, m->hidden) < 0 ||
      keep_linear(kept, &a->k, g.k, g.k_bias, "k", keys, m->hidden) < 0 ||
      keep_linear(kept, &a->v, g.v, g.v_bias, "v", keys, m->hidden) < 0 ||
      keep_linear(kept, &a->output, g.output, g.output_bias, "output", m->hidden, queries) < 0 ||
      keep_head_norm(kept, &a->query_norm, g.q_norm, a, "q_norm", a->heads) < 0 ||
      keep_head_norm(kept, &a->key_norm, g.k_norm, a, "k_norm", a->kv_heads) < 0 || keep_rotation(m, kept, a, &g) < 0)
    return -1;
  a->keys_before = m->key_width;
  a->values_before = m->value_width;
  m->key_width += keys;
  m->value_width += a->kv_heads * padded_head(a->head_size);
  return 0;
}

/* ---- the feed-forward part ---- */

static int keep_feed_forward(const model *m, kept_parts *kept, feed_forward_part *f, PyObject *given) {
  static char *names[] = {"width", "activation", "gate", "up", "down", "gate_bias", "up_bias", "down_bias", NULL};
  PyObject *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
  long width;
  int activation;
  if (read_dict(given, "$liOOOOOO", names, &width, &activation, &gate, &up, &down, &gate_bias, &up_bias, &down_bias) < 0) return -1;
  if (width < 1 || activation < 0 || activation >= ACTIVATION_KINDS) return refuse("a feed-forward part has a width and a known activation");
  f->activation = (enum activation)activation;
  if (gate != Py_None && keep_linear(kept, &f->gate, gate, gate_bias, "gate", width, m->hidden) < 0) return -1;
  return keep_linear(kept, &f->up, up, up_bias, "up", width, m->hidden) < 0 ||
                 keep_linear(kept, &f->down, down, down_bias, "down", m->hidden, width) < 0
             ? -1
             : 0;
}

/* ---- blocks ---- */

static int keep_block(model *m, kept_parts *kept, residual_block *b, PyObject *given) {
  static char *names[] = {"pre", "post", "scale", "attention", "feed_forward", NULL};
  PyObject *pre, *post, *attention, *feed_forward;
  if (read_dict(given, "$OOfOO", names, &pre, &post, &b->scale, &attention, &feed_forward) < 0 ||
      keep_norm(kept, &b->pre, pre, "pre", m->hidden) < 0 || keep_norm(kept, &b->post, post, "post", m->hidden) < 0)
    return -1;
  b->has_attention = attention != Py_None;
  b->has_feed_forward = feed_forward != Py_None;
  if (!b->has_attention && !b->has_feed_forward) return refuse("a block has attention, a feed-forward part, or both");
  if (b->has_attention && keep_attention(m, kept, &b->attention, attention) < 0) return -1;
  return b->has_feed_forward ? keep_feed_forward(m, kept, &b->feed_forward, feed_forward) : 0;
}

int keep_parts(model *m, kept_parts *kept, const given_parts *given) {
  kept->matrices = PyList_New(0);
  m->block = calloc((size_t)m->count, sizeof(residual_block));
  kept->views = calloc((size_t)m->count * BLOCK_VECTORS + MODEL_VECTORS, sizeof(Py_buffer));
  if (!kept->matrices) return -1;
  if (!m->block || !kept->views) return PyErr_NoMemory(), -1;
  if (keep_matrix(kept, &m->embedding, given->embedding, "embedding", m->vocabulary, m->hidden) < 0 ||
      keep_linear(kept, &m->head, given->head, given->head_bias, "head", m->vocabulary, m->hidden) < 0 ||
      keep_norm(kept, &m->norm, given->norm, "norm", m->hidden) < 0)
    return -1;
  m->last_attention = -1;
  for (long i = 0; i < m->count; i++) {
    if (keep_block(m, kept, &m->block[i], PyTuple_GetItem(given->blocks, i)) < 0) return -1;
    if (m->block[i].has_attention) m->last_attention = i;
  }
  return m->last_attention < 0 ? refuse("a model has attention") : 0;
}

void release_parts(kept_parts *kept) {
  while (kept->count > 0) PyBuffer_Release(&kept->views[--kept->count]);
  free(kept->views);
  Py_XDECREF(kept->matrices);
}
