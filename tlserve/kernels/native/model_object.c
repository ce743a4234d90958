/* `Model` holds the weights of a llama and runs steps.

   Checks everything that Python hands over: types, sizes, and that each index is inside the array that it points into. A wrong call
   raises; the code after these checks checks nothing again. The interpreter lock is released in a step. */
#include "model_object.h"

#include "matrix_object.h"
#include "step_arguments.h"

#include <stdlib.h>

enum { MODEL_VECTORS = 3, LAYER_VECTORS = 8, LAYER_MATRICES = 7, LAYER_FLAGS = 2, MOST_THREADS = 1024 };

typedef struct {
  PyObject_HEAD
  model model;
  PyObject *matrices; /* a list of those that the model points into */
  Py_buffer *views;   /* of the vectors that it points into */
  Py_ssize_t view_count;
  int busy;
} ModelObject;

/* ---- weights ---- */

static int keep_matrix(ModelObject *self, const matrix **to, PyObject *object, const char *name, long outputs, long inputs) {
  *to = matrix_of(object, name, outputs, inputs);
  return *to ? PyList_Append(self->matrices, object) : -1;
}

static int keep_vector(ModelObject *self, const float **to, PyObject *object, const char *name, Py_ssize_t items) {
  Py_buffer *view = &self->views[self->view_count];
  if (open_buffer(object, view, name, 'f', 4, items, 0) < 0) return -1;
  self->view_count++;
  *to = view->buf;
  return 0;
}

/* Return the part `name` of a layer (a borrowed reference), or NULL with an error. */
static PyObject *part_named(PyObject *given, const char *name) {
  PyObject *part = PyDict_GetItemString(given, name);
  if (!part) PyErr_Format(PyExc_ValueError, "a layer has no part named %s", name);
  return part;
}

static int keep_layer_matrices(ModelObject *self, layer *l, PyObject *given) {
  const model *m = &self->model;
  long queries = m->heads * m->head_size, keys = m->kv_heads * m->head_size;
  const struct {
    const char *name;
    const matrix **to;
    long outputs, inputs;
  } parts[LAYER_MATRICES] = {
      {"q", &l->q, queries, m->hidden},         {"k", &l->k, keys, m->hidden},
      {"v", &l->v, keys, m->hidden},            {"output", &l->output, m->hidden, queries},
      {"gate", &l->gate, m->intermediate, m->hidden}, {"up", &l->up, m->intermediate, m->hidden},
      {"down", &l->down, m->hidden, m->intermediate},
  };
  for (int i = 0; i < LAYER_MATRICES; i++) {
    PyObject *part = part_named(given, parts[i].name);
    if (!part || keep_matrix(self, parts[i].to, part, parts[i].name, parts[i].outputs, parts[i].inputs) < 0) return -1;
  }
  return 0;
}

/* The norms must be there; a bias or a norm of heads that the layer does not have is None. */
static int keep_layer_vectors(ModelObject *self, layer *l, PyObject *given) {
  const model *m = &self->model;
  long queries = m->heads * m->head_size, keys = m->kv_heads * m->head_size;
  const struct {
    const char *name;
    const float **to;
    long items;
    int optional;
  } parts[LAYER_VECTORS] = {
      {"attention_norm", &l->attention_norm, m->hidden, 0}, {"ffn_norm", &l->ffn_norm, m->hidden, 0},
      {"q_bias", &l->q_bias, queries, 1},                   {"k_bias", &l->k_bias, keys, 1},
      {"v_bias", &l->v_bias, keys, 1},                      {"output_bias", &l->output_bias, m->hidden, 1},
      {"query_norm", &l->query_norm, m->head_size, 1},      {"key_norm", &l->key_norm, m->head_size, 1},
  };
  for (int i = 0; i < LAYER_VECTORS; i++) {
    PyObject *part = part_named(given, parts[i].name);
    if (!part) return -1;
    if (part == Py_None && parts[i].optional) continue;
    if (keep_vector(self, parts[i].to, part, parts[i].name, parts[i].items) < 0) return -1;
  }
  return 0;
}

static int read_layer_flags(layer *l, PyObject *given) {
  PyObject *window = part_named(given, "window"), *unrotated = window ? part_named(given, "unrotated") : NULL;
  if (!unrotated) return -1;
  l->window = PyLong_AsLong(window);
  l->unrotated = PyObject_IsTrue(unrotated);
  if (PyErr_Occurred()) return -1;
  if (l->window >= 0) return 0;
  PyErr_SetString(PyExc_ValueError, "a window is 0 or more keys");
  return -1;
}

static int keep_layer(ModelObject *self, layer *l, PyObject *given) {
  if (!PyDict_Check(given)) {
    PyErr_SetString(PyExc_TypeError, "a layer is a dict of its parts");
    return -1;
  }
  if (keep_layer_matrices(self, l, given) < 0 || keep_layer_vectors(self, l, given) < 0 || read_layer_flags(l, given) < 0) return -1;
  if (PyDict_Size(given) == LAYER_MATRICES + LAYER_VECTORS + LAYER_FLAGS) return 0;
  PyErr_SetString(PyExc_ValueError, "a layer has a part that the kernels do not know");
  return -1;
}

static int check_sizes(const model *m, int threads) {
  const char *wrong = NULL;
  if (m->hidden < 1 || m->intermediate < 1 || m->vocabulary < 1 || m->layers < 1 || m->context < 1) wrong = "a size is below 1";
  else if (m->heads < 1 || m->kv_heads < 1 || m->heads % m->kv_heads) wrong = "heads must be a multiple of kv_heads";
  else if (m->head_size < 1 || m->head_size > MOST_HEAD_SIZE) wrong = "head_size must be 1 to 1024";
  else if (m->rotated < 0 || m->rotated % 2 || m->rotated > m->head_size) wrong = "rotated must be even and at most head_size";
  else if (threads < 1 || threads > MOST_THREADS) wrong = "threads must be 1 to 1024";
  if (!wrong) return 0;
  PyErr_SetString(PyExc_ValueError, wrong);
  return -1;
}

/* What Python hands over besides sizes. */
typedef struct {
  PyObject *embedding, *head, *norm, *cos, *sin, *layers;
} given_weights;

static int keep_weights(ModelObject *self, const given_weights *given) {
  model *m = &self->model;
  Py_ssize_t angles = m->context * m->rotated / 2;
  self->matrices = PyList_New(0);
  m->layer = calloc((size_t)m->layers, sizeof(layer));
  self->views = calloc((size_t)m->layers * LAYER_VECTORS + MODEL_VECTORS, sizeof(Py_buffer));
  if (!self->matrices) return -1;
  if (!m->layer || !self->views) return PyErr_NoMemory(), -1;
  if (keep_matrix(self, &m->embedding, given->embedding, "embedding", m->vocabulary, m->hidden) < 0 ||
      keep_matrix(self, &m->head, given->head, "head", m->vocabulary, m->hidden) < 0 ||
      keep_vector(self, &m->norm, given->norm, "norm", m->hidden) < 0 ||
      keep_vector(self, &m->cos, given->cos, "cos", angles) < 0 || keep_vector(self, &m->sin, given->sin, "sin", angles) < 0)
    return -1;
  for (long i = 0; i < m->layers; i++)
    if (keep_layer(self, &m->layer[i], PyTuple_GetItem(given->layers, i)) < 0) return -1;
  return 0;
}

/* ---- life ---- */

static PyObject *model_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"hidden", "intermediate", "heads", "kv_heads", "head_size", "rotated", "vocabulary", "context",
                          "epsilon", "query_scale", "activations", "isa", "threads", "embedding", "head", "norm", "cos", "sin",
                          "layers", NULL};
  model m = {0};
  const char *activations, *isa;
  int threads, format;
  given_weights w;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$llllllllffssiOOOOOO!", names, &m.hidden, &m.intermediate, &m.heads,
                                   &m.kv_heads, &m.head_size, &m.rotated, &m.vocabulary, &m.context, &m.epsilon, &m.query_scale,
                                   &activations, &isa, &threads, &w.embedding, &w.head, &w.norm, &w.cos, &w.sin,
                                   &PyTuple_Type, &w.layers))
    return NULL;
  m.layers = PyTuple_Size(w.layers);
  if (check_sizes(&m, threads) < 0 || (format = activations_named(activations)) < 0 || !(m.cpu = kernels_named(isa))) return NULL;
  ModelObject *self = (ModelObject *)PyType_GenericAlloc(type, 0);
  if (!self) return NULL;
  self->model = m;
  self->model.activations = (enum activation_format)format;
  if (keep_weights(self, &w) < 0) goto failed;
  if ((self->model.threads = pool_new(threads))) return (PyObject *)self;
  PyErr_SetString(PyExc_RuntimeError, "cannot start the threads of the kernels");
failed:
  Py_DECREF(self);
  return NULL;
}

static void model_dealloc(PyObject *object) {
  ModelObject *self = (ModelObject *)object;
  pool_free(self->model.threads);
  while (self->view_count > 0) PyBuffer_Release(&self->views[--self->view_count]);
  free(self->views);
  free(self->model.layer);
  Py_XDECREF(self->matrices);
  object_free(object);
}

/* ---- a step ---- */

static int run_step(ModelObject *self, const step *s) {
  int failed;
  if (self->busy) {
    PyErr_SetString(PyExc_RuntimeError, "a step of this model is already running");
    return -1;
  }
  self->busy = 1;
  Py_BEGIN_ALLOW_THREADS
  failed = forward(&self->model, s);
  Py_END_ALLOW_THREADS
  self->busy = 0;
  if (failed) PyErr_NoMemory();
  return failed;
}

static PyObject *model_forward(PyObject *object, PyObject *arguments) {
  ModelObject *self = (ModelObject *)object;
  const model *m = &self->model;
  PyObject *given[VIEWS];
  Py_buffer views[VIEWS];
  step s = {0};
  int opened = 0, done;
  if (!PyArg_ParseTuple(arguments, "llpOOOOOOOOOOO", &s.blocks, &s.block_size, &s.half, &given[TOKENS], &given[POSITIONS],
                        &given[ROW_STARTS], &given[TABLES], &given[TABLE_STARTS], &given[LOGIT_ROWS], &given[HIDDEN_ROWS],
                        &given[KEYS], &given[VALUES], &given[LOGITS], &given[HIDDEN]))
    return NULL;
  if (s.blocks < 1 || s.block_size < 1 || s.blocks > (1L << 31) / s.block_size) {
    PyErr_SetString(PyExc_ValueError, "a store has 1 to 2**31 slots");
    return NULL;
  }
  done = open_step(m, &s, given, views, &opened) == 0 && fill_step(&s, views) == 0 && check_step(m, &s) == 0 && run_step(self, &s) == 0;
  while (opened > 0) PyBuffer_Release(&views[--opened]);
  if (!done) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef MODEL_METHODS[] = {
    {"forward", model_forward, METH_VARARGS,
     "forward(blocks, block_size, half, tokens, positions, row_starts, tables, table_starts, logit_rows, hidden_rows, keys, values, "
     "logits, hidden): run one step; see kernels.interface.StepBatch. keys, values, logits and hidden are written."},
    {0}};

static PyType_Slot MODEL_SLOTS[] = {
    {Py_tp_doc, "Model(*, sizes, isa, threads, weights): a llama with threads of its own."},
    {Py_tp_new, model_new},
    {Py_tp_dealloc, model_dealloc},
    {Py_tp_methods, MODEL_METHODS},
    {0, NULL}};

PyType_Spec MODEL_SPEC = {
    .name = "tlserve.kernels.native._native.Model",
    .basicsize = sizeof(ModelObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = MODEL_SLOTS,
};
