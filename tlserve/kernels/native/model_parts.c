/* A block is a dict: pre, post, after, scale, out_scale, and attention and feed_forward, each a dict of its own or None. A norm is None or a tuple:
   whether it is LayerNorm, epsilon, weight, bias or None. A vector that a part does not have is None. Experts are a dict with tuples of
   matrices, and one vector of the biases of all. Without an embedding every step brings its rows. */
#include "model_parts.h"

#include "matrix_object.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK_VECTORS = 44, MODEL_VECTORS = 7 };

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
  PyObject *q, *k, *v, *output, *q_bias, *k_bias, *v_bias, *output_bias, *q_norm, *k_norm, *v_norm, *cos, *sin, *query_scales, *sinks;
} given_attention;

static int read_attention(attention_part *a, given_attention *g, PyObject *given) {
  static char *names[] = {"heads", "kv_heads", "head_size", "kv_from", "window", "query_scale", "cap", "norm_after_rope", "per_head",
                          "whole_row", "both_sides", "q", "k", "v", "output", "q_bias", "k_bias", "v_bias", "output_bias", "q_norm", "k_norm",
                          "v_norm", "cos", "sin", "query_scales", "sinks", NULL};
  if (read_dict(given, "$lllllffppppOOOOOOOOOOOOOOO", names, &a->heads, &a->kv_heads, &a->head_size, &a->kv_from, &a->window, &a->query_scale, &a->cap,
                &a->norm_after_rope, &a->per_head, &a->whole_row, &a->both_sides, &g->q, &g->k, &g->v, &g->output, &g->q_bias, &g->k_bias, &g->v_bias,
                &g->output_bias, &g->q_norm, &g->k_norm, &g->v_norm, &g->cos, &g->sin, &g->query_scales, &g->sinks) < 0)
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
  return keep_vector(kept, &a->query_scales, g->query_scales, "query_scales", m->context) < 0 ||
                 keep_vector(kept, &a->sinks, g->sinks, "sinks", a->heads) < 0
             ? -1
             : 0;
}

static int keep_head_norm(kept_parts *kept, norm *n, PyObject *given, const attention_part *a, const char *name, long heads) {
  return keep_norm(kept, n, given, name, a->per_head || a->whole_row ? heads * a->head_size : a->head_size);
}

/* Nothing of attention to both sides is read after its block, so all such blocks use the same numbers. */
static int place_in_store(model *m, attention_part *a) {
  if (a->kv_from >= 0) {
    const attention_part *from = &m->block[a->kv_from].attention;
    a->keys_before = from->keys_before;
    a->values_before = from->values_before;
    return 0;
  }
  long keys = a->kv_heads * a->head_size, values = a->kv_heads * padded_head(a->head_size);
  int is_first = !m->key_width;
  if (!is_first && a->both_sides != m->whole) return refuse("all attention is to both sides, or none is");
  m->whole = a->both_sides;
  a->keys_before = m->whole ? 0 : m->key_width;
  a->values_before = m->whole ? 0 : m->value_width;
  if (!is_first && m->whole && (keys != m->key_width || values != m->value_width)) return refuse("attention to both sides has heads of one size");
  m->key_width = a->keys_before + keys;
  m->value_width = a->values_before + values;
  return 0;
}

/* The keys of an earlier block that stores some, of the same sizes. */
static int check_source(const model *m, const attention_part *a, const residual_block *b) {
  if (a->kv_from >= b - m->block) return refuse("keys are of an earlier block");
  const residual_block *source = &m->block[a->kv_from];
  const attention_part *from = &source->attention;
  if (!source->has_attention || !from->k.w || a->both_sides || from->both_sides) return refuse("keys are of a block that stores some");
  return a->kv_heads != from->kv_heads || a->head_size != from->head_size ? refuse("keys of another block have its sizes") : 0;
}

static int keep_keys(const model *m, kept_parts *kept, attention_part *a, const given_attention *g) {
  long keys = a->kv_heads * a->head_size;
  if (a->kv_from >= 0) return 0;
  if (keep_linear(kept, &a->k, g->k, g->k_bias, "k", keys, m->hidden) < 0 ||
      keep_head_norm(kept, &a->key_norm, g->k_norm, a, "k_norm", a->kv_heads) < 0 ||
      keep_norm(kept, &a->value_norm, g->v_norm, "v_norm", a->head_size) < 0)
    return -1;
  if (g->v == Py_None) return a->whole_row && a->key_norm.weight ? refuse("values from keys that are normed as rows") : 0;
  return keep_linear(kept, &a->v, g->v, g->v_bias, "v", keys, m->hidden);
}

static int keep_attention(model *m, kept_parts *kept, residual_block *b, PyObject *given) {
  attention_part *a = &b->attention;
  given_attention g;
  if (read_attention(a, &g, given) < 0 || (a->kv_from >= 0 && check_source(m, a, b) < 0)) return -1;
  long queries = a->heads * a->head_size;
  if (keep_linear(kept, &a->q, g.q, g.q_bias, "q", queries, m->hidden) < 0 || keep_keys(m, kept, a, &g) < 0 ||
      keep_linear(kept, &a->output, g.output, g.output_bias, "output", m->hidden, queries) < 0 ||
      keep_head_norm(kept, &a->query_norm, g.q_norm, a, "q_norm", a->heads) < 0 || keep_rotation(m, kept, a, &g) < 0)
    return -1;
  return place_in_store(m, a);
}

/* ---- the feed-forward part ---- */

static int keep_feed_forward(const model *m, kept_parts *kept, feed_forward_part *f, PyObject *given) {
  static char *names[] = {"width", "activation", "input_from", "gate", "up", "down", "gate_bias", "up_bias", "down_bias", NULL};
  PyObject *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
  long width;
  int activation;
  if (read_dict(given, "$lilOOOOOO", names, &width, &activation, &f->input_from, &gate, &up, &down, &gate_bias, &up_bias, &down_bias) < 0) return -1;
  if (width < 1 || activation < 0 || activation >= ACTIVATION_KINDS) return refuse("a feed-forward part has a width and a known activation");
  f->activation = (enum activation)activation;
  if (gate == Py_None && f->activation == ACTIVATION_CLAMPED_SWIGLU) return refuse("a clamped swiglu has a gate");
  if (gate != Py_None && keep_linear(kept, &f->gate, gate, gate_bias, "gate", width, m->hidden) < 0) return -1;
  if (f->input_from >= 0 && (!f->gate.w || f->input_from > m->inputs.width * m->inputs.layers - width))
    return refuse("the input of a layer is gated, and one of the inputs of all layers");
  return (f->input_from < 0 && keep_linear(kept, &f->up, up, up_bias, "up", width, m->hidden) < 0) ||
                 keep_linear(kept, &f->down, down, down_bias, "down", m->hidden, width) < 0
             ? -1
             : 0;
}

/* ---- experts ---- */

/* The objects of a dict of experts. */
typedef struct {
  PyObject *router, *router_bias, *choice_bias, *gates, *ups, *downs, *gate_bias, *up_bias, *down_bias, *shared, *shared_gate,
      *own_scales, *router_norm, *pre, *post, *shared_post;
} given_experts;

static int read_experts(experts_part *e, given_experts *g, long *width, int *activation, PyObject *given) {
  static char *names[] = {"count", "chosen", "groups", "kept_groups", "sigmoid", "divided", "scale", "width", "activation", "router",
                          "router_bias", "choice_bias", "own_scales", "gate", "up", "down", "gate_bias", "up_bias", "down_bias", "shared",
                          "shared_gate", "router_norm", "pre", "post", "shared_post", NULL};
  routing *r = &e->routing;
  if (read_dict(given, "$llllppfliOOOOO!O!O!OOOOOOOOO", names, &r->count, &r->chosen, &r->groups, &r->kept_groups, &r->sigmoid, &r->divided,
                &r->scale, width, activation, &g->router, &g->router_bias, &g->choice_bias, &g->own_scales, &PyTuple_Type, &g->gates, &PyTuple_Type,
                &g->ups, &PyTuple_Type, &g->downs, &g->gate_bias, &g->up_bias, &g->down_bias, &g->shared, &g->shared_gate, &g->router_norm,
                &g->pre, &g->post, &g->shared_post) < 0)
    return -1;
  if (r->count < 1 || r->count > MOST_EXPERTS) return refuse("there are 1 to 1024 experts");
  if (r->groups < 1 || r->count % r->groups || r->kept_groups < 1 || r->kept_groups > r->groups) return refuse("groups are of one size");
  if (r->chosen < 1 || r->chosen > r->count / r->groups * r->kept_groups) return refuse("as many experts cannot be chosen");
  if (PyTuple_Size(g->ups) != r->count || PyTuple_Size(g->downs) != r->count || PyTuple_Size(g->gates) % r->count ||
      PyTuple_Size(g->gates) > r->count)
    return refuse("every expert has its matrices");
  if (*width < 1 || *activation < 0 || *activation >= ACTIVATION_KINDS) return refuse("experts have a width and a known activation");
  return *activation == ACTIVATION_CLAMPED_SWIGLU && !PyTuple_Size(g->gates) ? refuse("a clamped swiglu has a gate") : 0;
}

/* One matrix of every expert, and its share of the biases of all. `which`: the place of that part in a feed_forward_part. */
static int keep_each(kept_parts *kept, experts_part *e, size_t which, PyObject *matrices, PyObject *biases, long outputs, long inputs) {
  const float *bias;
  if (keep_vector(kept, &bias, biases, "bias", e->routing.count * outputs) < 0) return -1;
  for (long i = 0; i < PyTuple_Size(matrices); i++) {
    linear_part *l = (linear_part *)((char *)&e->each[i] + which);
    if (keep_matrix(kept, &l->w, PyTuple_GetItem(matrices, i), "expert", outputs, inputs) < 0) return -1;
    e->takes_f32 |= !is_quantised(l->w);
    l->bias = bias ? bias + i * outputs : NULL;
  }
  return 0;
}

static int keep_shared(const model *m, kept_parts *kept, experts_part *e, const given_experts *g) {
  if (g->shared == Py_None) return g->shared_gate == Py_None ? 0 : refuse("a gate is of a shared expert");
  if (keep_feed_forward(m, kept, &e->shared, g->shared) < 0) return -1;
  return g->shared_gate == Py_None ? 0 : keep_matrix(kept, &e->shared_gate.w, g->shared_gate, "shared_gate", 1, m->hidden);
}

static int keep_expert_norms(const model *m, kept_parts *kept, experts_part *e, const given_experts *g) {
  if (keep_norm(kept, &e->router_norm, g->router_norm, "router_norm", m->hidden) < 0 || keep_norm(kept, &e->pre, g->pre, "pre", m->hidden) < 0 ||
      keep_norm(kept, &e->post, g->post, "post", m->hidden) < 0 || keep_norm(kept, &e->shared_post, g->shared_post, "shared_post", m->hidden) < 0)
    return -1;
  int norms = !!e->router_norm.weight + !!e->pre.weight + !!e->post.weight + !!e->shared_post.weight;
  if (norms && (norms != 4 || g->shared == Py_None || g->shared_gate != Py_None)) return refuse("a mixture has all norms and a shared expert, or none");
  return 0;
}

static int keep_experts(const model *m, kept_parts *kept, experts_part *e, PyObject *given) {
  given_experts g;
  long width;
  int activation;
  if (read_experts(e, &g, &width, &activation, given) < 0) return -1;
  e->each = calloc((size_t)e->routing.count, sizeof(feed_forward_part));
  if (!e->each) return PyErr_NoMemory(), -1;
  for (long i = 0; i < e->routing.count; i++) e->each[i].activation = (enum activation)activation;
  if (keep_linear(kept, &e->router, g.router, g.router_bias, "router", e->routing.count, m->hidden) < 0 ||
      keep_vector(kept, &e->routing.choice_bias, g.choice_bias, "choice_bias", e->routing.count) < 0 ||
      keep_vector(kept, &e->routing.own_scales, g.own_scales, "own_scales", e->routing.count) < 0 || keep_expert_norms(m, kept, e, &g) < 0 ||
      keep_each(kept, e, offsetof(feed_forward_part, gate), g.gates, g.gate_bias, width, m->hidden) < 0 ||
      keep_each(kept, e, offsetof(feed_forward_part, up), g.ups, g.up_bias, width, m->hidden) < 0 ||
      keep_each(kept, e, offsetof(feed_forward_part, down), g.downs, g.down_bias, m->hidden, width) < 0)
    return -1;
  return keep_shared(m, kept, e, &g);
}

/* ---- blocks ---- */

static int keep_block(model *m, kept_parts *kept, residual_block *b, PyObject *given) {
  static char *names[] = {"pre", "post", "after", "scale", "out_scale", "attention", "feed_forward", "experts", NULL};
  PyObject *pre, *post, *after, *out_scale, *attention, *feed_forward, *experts;
  if (read_dict(given, "$OOOfOOOO", names, &pre, &post, &after, &b->scale, &out_scale, &attention, &feed_forward, &experts) < 0 ||
      keep_vector(kept, &b->out_scale, out_scale, "out_scale", 1) < 0 ||
      keep_norm(kept, &b->pre, pre, "pre", m->hidden) < 0 || keep_norm(kept, &b->post, post, "post", m->hidden) < 0 ||
      keep_norm(kept, &b->after, after, "after", m->hidden) < 0)
    return -1;
  b->has_attention = attention != Py_None;
  b->has_feed_forward = feed_forward != Py_None;
  b->has_experts = experts != Py_None;
  if (b->has_attention + b->has_feed_forward + 2 * b->has_experts > 2) return refuse("experts are alone in a block");
  if (b->has_experts) return keep_experts(m, kept, &b->experts, experts);
  if (!b->has_attention && !b->has_feed_forward) return refuse("a block has attention, a feed-forward part, or both, or experts");
  if (b->has_attention && keep_attention(m, kept, b, attention) < 0) return -1;
  return b->has_feed_forward ? keep_feed_forward(m, kept, &b->feed_forward, feed_forward) : 0;
}

/* ---- the model ---- */

static int keep_layer_inputs(model *m, kept_parts *kept, PyObject *given) {
  static char *names[] = {"width", "layers", "table", "projection", "norm", "of_rows", "of_tokens", "of_sum", NULL};
  PyObject *table, *projection, *norm;
  layer_inputs *i = &m->inputs;
  if (given == Py_None) return 0;
  if (read_dict(given, "$llOOOfff", names, &i->width, &i->layers, &table, &projection, &norm, &i->of_rows, &i->of_tokens, &i->of_sum) < 0)
    return -1;
  if (i->width < 1 || i->layers < 1 || i->width > (1L << 24) / i->layers) return refuse("inputs of layers have 1 to 2**24 numbers");
  return keep_matrix(kept, &i->table, table, "table", m->vocabulary, i->width * i->layers) < 0 ||
                 keep_matrix(kept, &i->projection.w, projection, "projection", i->width * i->layers, m->hidden) < 0 ||
                 keep_norm(kept, &i->norm, norm, "norm", i->width) < 0
             ? -1
             : 0;
}

int keep_parts(model *m, kept_parts *kept, const given_parts *given) {
  kept->matrices = PyList_New(0);
  m->block = calloc((size_t)m->count, sizeof(residual_block));
  kept->views = calloc((size_t)m->count * BLOCK_VECTORS + MODEL_VECTORS, sizeof(Py_buffer));
  if (!kept->matrices) return -1;
  if (!m->block || !kept->views) return PyErr_NoMemory(), -1;
  if (given->embedding != Py_None &&
      (keep_matrix(kept, &m->embedding, given->embedding, "embedding", m->vocabulary, m->hidden) < 0 ||
       keep_linear(kept, &m->head, given->head, given->head_bias, "head", m->vocabulary, m->hidden) < 0))
    return -1;
  if (keep_norm(kept, &m->embedding_norm, given->embedding_norm, "embedding_norm", m->hidden) < 0 ||
      keep_norm(kept, &m->norm, given->norm, "norm", m->hidden) < 0 || keep_layer_inputs(m, kept, given->inputs) < 0)
    return -1;
  m->last_attention = -1;
  for (long i = 0; i < m->count; i++) {
    if (keep_block(m, kept, &m->block[i], PyTuple_GetItem(given->blocks, i)) < 0) return -1;
    if (m->block[i].has_attention && m->block[i].attention.kv_from < 0) m->last_attention = i;
  }
  return m->last_attention < 0 ? refuse("a model has attention") : 0;
}

void free_blocks(model *m) {
  for (long i = 0; m->block && i < m->count; i++) free(m->block[i].experts.each);
  free(m->block);
}

void release_parts(kept_parts *kept) {
  while (kept->count > 0) PyBuffer_Release(&kept->views[--kept->count]);
  free(kept->views);
  Py_XDECREF(kept->matrices);
}
