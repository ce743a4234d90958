/* The Python side of the native kernels: `Matrix` packs weights, `Model` runs steps.

   Owns every check of what Python hands over: types, sizes, and that each index lies inside of what it points into. A wrong call
   raises; behind these checks nothing is checked again. The interpreter lock is released while packing and in a step. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "forward.h"
#include "sampler_object.h"

#include <stdlib.h>
#include <string.h>

static const kernels *const ALL_KERNELS[] = {
#if defined(__x86_64__)
    &KERNELS_AVX512, &KERNELS_AVX_VNNI, &KERNELS_AVX2,
#elif defined(__aarch64__)
    &KERNELS_NEON_DOT, &KERNELS_NEON,
#endif
    NULL};

/* ---- buffers ---- */

/* Open a contiguous buffer of `items` items (any number where -1) of the type `code` (of the struct module; 0: bytes). */
static int open_buffer(PyObject *object, Py_buffer *view, const char *what, char code, Py_ssize_t size, Py_ssize_t items, int writable) {
  if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) < 0) return -1;
  const char *format = view->format ? view->format : "B";
  char found = format[0] == '=' || format[0] == '<' || format[0] == '@' ? format[1] : format[0];
  if (code == 'i' && found == 'l' && view->itemsize == 4) found = 'i';
  if (view->itemsize != size || found != code) {
    PyErr_Format(PyExc_TypeError, "%s has items of type %s, not '%c'", what, format, code);
  } else if (items >= 0 && view->len / size != items) {
    PyErr_Format(PyExc_ValueError, "%s has %zd items, not %zd", what, view->len / size, items);
  } else {
    return 0;
  }
  PyBuffer_Release(view);
  return -1;
}

/* ---- Matrix ---- */

typedef struct {
  PyObject_HEAD
  matrix w;
} MatrixObject;

static int check_matrix(int kind, long outputs, long inputs, const Py_buffer *raw) {
  size_t row = outputs > 0 && outputs < (1L << 31) && inputs < (1L << 31) ? matrix_row_bytes(kind, inputs) : 0;
  if (row == 0)
    PyErr_Format(PyExc_ValueError, "a matrix of kind %d with shape (%ld, %ld) cannot be packed", kind, outputs, inputs);
  else if ((size_t)raw->len != row * (size_t)outputs)
    PyErr_Format(PyExc_ValueError, "the matrix has %zd bytes, not %zu", raw->len, row * (size_t)outputs);
  else
    return 0;
  return -1;
}

static PyObject *matrix_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"kind", "outputs", "inputs", "raw", NULL};
  int kind;
  long outputs, inputs;
  PyObject *object;
  Py_buffer raw;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "illO", names, &kind, &outputs, &inputs, &object)) return NULL;
  if (open_buffer(object, &raw, "raw", 'B', 1, -1, 0) < 0) return NULL;
  MatrixObject *self = NULL;
  if (check_matrix(kind, outputs, inputs, &raw) == 0 && (self = (MatrixObject *)type->tp_alloc(type, 0))) {
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = matrix_pack(&self->w, kind, outputs, inputs, raw.buf);
    Py_END_ALLOW_THREADS
    if (failed) {
      PyErr_NoMemory();
      Py_CLEAR(self);
    }
  }
  PyBuffer_Release(&raw);
  return (PyObject *)self;
}

static void matrix_dealloc(PyObject *object) {
  matrix_free(&((MatrixObject *)object)->w);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *matrix_nbytes(PyObject *object, void *closure) {
  (void)closure;
  const matrix *w = &((MatrixObject *)object)->w;
  return PyLong_FromSize_t(w->pair_bytes * (size_t)w->pairs);
}

static PyGetSetDef MATRIX_GETTERS[] = {{"nbytes", matrix_nbytes, NULL, "Memory of the packed weights.", NULL}, {0}};

static PyTypeObject MatrixType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlserve.kernels.native._native.Matrix",
    .tp_doc = "Matrix(kind, outputs, inputs, raw): weights in GGUF's rows of type `kind`, packed into panels.",
    .tp_basicsize = sizeof(MatrixObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = matrix_new,
    .tp_dealloc = matrix_dealloc,
    .tp_getset = MATRIX_GETTERS,
};

/* ---- Model ---- */

enum { MOST_BUFFERS = 3, LAYER_PARTS = 15, LAYER_BUFFERS = 8, MOST_THREADS = 1024 };

typedef struct {
  PyObject_HEAD
  model m;
  PyObject *kept;          /* the matrices and arrays that m points into */
  Py_buffer *views;
  Py_ssize_t view_count;
  int busy;
} ModelObject;

static const float *keep_floats(ModelObject *self, PyObject *object, const char *what, Py_ssize_t items) {
  Py_buffer *view = &self->views[self->view_count];
  if (open_buffer(object, view, what, 'f', 4, items, 0) < 0) return NULL;
  self->view_count++;
  return view->buf;
}

static const matrix *keep_matrix(PyObject *object, const char *what, long outputs, long inputs) {
  if (!PyObject_TypeCheck(object, &MatrixType)) {
    PyErr_Format(PyExc_TypeError, "%s must be a Matrix", what);
    return NULL;
  }
  const matrix *w = &((MatrixObject *)object)->w;
  if (w->outputs == outputs && w->inputs == inputs) return w;
  PyErr_Format(PyExc_ValueError, "%s has the shape (%ld, %ld), not (%ld, %ld)", what, w->outputs, w->inputs, outputs, inputs);
  return NULL;
}

/* A vector that may be missing. 0, or -1 with an error. */
static int keep_optional(ModelObject *self, const float **to, PyObject *object, const char *what, Py_ssize_t items) {
  *to = object == Py_None ? NULL : keep_floats(self, object, what, items);
  return object == Py_None || *to ? 0 : -1;
}

static int keep_vectors(ModelObject *self, layer *l, PyObject *const *g) {
  const model *m = &self->m;
  long q = m->heads * m->head_size, kv = m->kv_heads * m->head_size;
  if (!(l->attention_norm = keep_floats(self, g[0], "attention_norm", m->hidden)) ||
      !(l->ffn_norm = keep_floats(self, g[5], "ffn_norm", m->hidden)))
    return -1;
  return keep_optional(self, &l->q_bias, g[9], "q_bias", q) < 0 || keep_optional(self, &l->k_bias, g[10], "k_bias", kv) < 0 ||
                 keep_optional(self, &l->v_bias, g[11], "v_bias", kv) < 0 ||
                 keep_optional(self, &l->output_bias, g[12], "output_bias", m->hidden) < 0 ||
                 keep_optional(self, &l->query_norm, g[13], "query_norm", m->head_size) < 0 ||
                 keep_optional(self, &l->key_norm, g[14], "key_norm", m->head_size) < 0
             ? -1
             : 0;
}

static int keep_matrices(const model *m, layer *l, PyObject *const *g) {
  long q = m->heads * m->head_size, kv = m->kv_heads * m->head_size;
  return (l->q = keep_matrix(g[1], "q", q, m->hidden)) && (l->k = keep_matrix(g[2], "k", kv, m->hidden)) &&
                 (l->v = keep_matrix(g[3], "v", kv, m->hidden)) && (l->output = keep_matrix(g[4], "output", m->hidden, q)) &&
                 (l->gate = keep_matrix(g[6], "gate", m->intermediate, m->hidden)) &&
                 (l->up = keep_matrix(g[7], "up", m->intermediate, m->hidden)) &&
                 (l->down = keep_matrix(g[8], "down", m->hidden, m->intermediate))
             ? 0
             : -1;
}

static int keep_layer(ModelObject *self, layer *l, PyObject *given) {
  PyObject *g[LAYER_PARTS];
  if (!PyTuple_Check(given)) {
    PyErr_SetString(PyExc_TypeError, "a layer is a tuple");
    return -1;
  }
  if (!PyArg_ParseTuple(given, "OOOOOOOOOOOOOOOlp;attention norm, q, k, v, output, ffn norm, gate, up, down, biases of q, k, v and output,"
                               " norms of query and key heads, window, unrotated",
                        &g[0], &g[1], &g[2], &g[3], &g[4], &g[5], &g[6], &g[7], &g[8], &g[9], &g[10], &g[11], &g[12], &g[13], &g[14],
                        &l->window, &l->unrotated))
    return -1;
  if (l->window >= 0) return keep_matrices(&self->m, l, g) < 0 ? -1 : keep_vectors(self, l, g);
  PyErr_SetString(PyExc_ValueError, "a window is 0 or more keys");
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

static const kernels *find_kernels(const char *name) {
  for (int i = 0; ALL_KERNELS[i]; i++)
    if (strcmp(ALL_KERNELS[i]->name, name) == 0 && ALL_KERNELS[i]->supported()) return ALL_KERNELS[i];
  PyErr_Format(PyExc_ValueError, "this processor has no kernels named %s", name);
  return NULL;
}

static int keep_weights(ModelObject *self, PyObject *embedding, PyObject *head, PyObject *norm, PyObject *cos, PyObject *sin,
                        PyObject *layers) {
  model *m = &self->m;
  Py_ssize_t angles = m->context * m->rotated / 2;
  m->layer = calloc((size_t)m->layers, sizeof(layer));
  self->views = calloc((size_t)m->layers * LAYER_BUFFERS + MOST_BUFFERS, sizeof(Py_buffer));
  if (!m->layer || !self->views) {
    PyErr_NoMemory();
    return -1;
  }
  if (!(m->embedding = keep_matrix(embedding, "embedding", m->vocabulary, m->hidden)) ||
      !(m->head = keep_matrix(head, "head", m->vocabulary, m->hidden)) ||
      !(m->norm = keep_floats(self, norm, "norm", m->hidden)) || !(m->cos = keep_floats(self, cos, "cos", angles)) ||
      !(m->sin = keep_floats(self, sin, "sin", angles)))
    return -1;
  for (long i = 0; i < m->layers; i++)
    if (keep_layer(self, &m->layer[i], PyTuple_GET_ITEM(layers, i)) < 0) return -1;
  return 0;
}

static PyObject *model_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"hidden", "intermediate", "heads", "kv_heads", "head_size", "rotated", "vocabulary", "context",
                          "epsilon", "query_scale", "int8_activations", "isa", "threads", "embedding", "head", "norm", "cos", "sin",
                          "layers", NULL};
  model m = {0};
  const char *isa;
  int threads;
  PyObject *embedding, *head, *norm, *cos, *sin, *layers;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$llllllllffpsiOOOOOO!", names, &m.hidden, &m.intermediate, &m.heads,
                                   &m.kv_heads, &m.head_size, &m.rotated, &m.vocabulary, &m.context, &m.epsilon, &m.query_scale,
                                   &m.int8_activations, &isa, &threads, &embedding, &head, &norm, &cos, &sin, &PyTuple_Type, &layers))
    return NULL;
  m.layers = PyTuple_GET_SIZE(layers);
  if (check_sizes(&m, threads) < 0 || !(m.cpu = find_kernels(isa))) return NULL;
  ModelObject *self = (ModelObject *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->m = m;
  self->kept = PyTuple_Pack(3, embedding, head, layers);
  if (!self->kept || keep_weights(self, embedding, head, norm, cos, sin, layers) < 0) goto failed;
  if ((self->m.threads = pool_new(threads))) return (PyObject *)self;
  PyErr_SetString(PyExc_RuntimeError, "cannot start the threads of the kernels");
failed:
  Py_DECREF(self);
  return NULL;
}

static void model_dealloc(PyObject *object) {
  ModelObject *self = (ModelObject *)object;
  pool_free(self->m.threads);
  while (self->view_count > 0) PyBuffer_Release(&self->views[--self->view_count]);
  free(self->views);
  free(self->m.layer);
  Py_XDECREF(self->kept);
  Py_TYPE(object)->tp_free(object);
}

/* ---- one step ---- */

enum { TOKENS, POSITIONS, ROW_STARTS, TABLES, TABLE_STARTS, LOGIT_ROWS, HIDDEN_ROWS, KEYS, VALUES, LOGITS, HIDDEN, VIEWS };

static int refuse(const char *what) {
  PyErr_SetString(PyExc_ValueError, what);
  return -1;
}

static int check_starts(const int32_t *starts, long parts, long end, const char *what) {
  int good = starts[0] == 0 && starts[parts] == end;
  for (long i = 0; i < parts; i++) good &= starts[i] < starts[i + 1];
  return good ? 0 : refuse(what);
}

static int check_indices(const int32_t *indices, long count, long below, const char *what) {
  int good = 1;
  for (long i = 0; i < count; i++) good &= indices[i] >= 0 && indices[i] < below;
  return good ? 0 : refuse(what);
}

/* Each row once, in order: what is wanted of a step never takes more room than its rows. */
static int check_wanted(const int32_t *rows, long count, long below, const char *what) {
  int good = 1;
  for (long i = 0; i < count; i++) good &= rows[i] > (i ? rows[i - 1] : -1) && rows[i] < below;
  return good ? 0 : refuse(what);
}

/* Consecutive positions inside the context, whose blocks are all in the table. */
static int check_sequence(const step *s, long context, long q) {
  long first = s->row_starts[q], last = s->row_starts[q + 1] - 1, blocks = s->table_starts[q + 1] - s->table_starts[q];
  for (long r = first; r <= last; r++)
    if (s->positions[r] < 0 || s->positions[r] != s->positions[first] + (r - first)) return refuse("positions of a sequence must be consecutive");
  if (s->positions[last] >= context) return refuse("a position lies outside of the context");
  return s->positions[last] / s->block_size < blocks ? 0 : refuse("a block table is too short for its rows");
}

static int check_step(const model *m, const step *s) {
  if (check_starts(s->row_starts, s->sequences, s->rows, "row_starts must ascend from 0 to the number of rows") < 0 ||
      check_starts(s->table_starts, s->sequences, s->table_starts[s->sequences], "table_starts must ascend from 0") < 0 ||
      check_indices(s->tokens, s->rows, m->vocabulary, "a token lies outside of the vocabulary") < 0 ||
      check_indices(s->tables, s->table_starts[s->sequences], s->blocks, "a block lies outside of the store") < 0 ||
      check_wanted(s->logit_rows, s->logit_count, s->rows, "logit_rows must be rows of the step, ascending") < 0 ||
      check_wanted(s->hidden_rows, s->hidden_count, s->rows, "hidden_rows must be rows of the step, ascending") < 0)
    return -1;
  for (long q = 0; q < s->sequences; q++)
    if (check_sequence(s, m->context, q) < 0) return -1;
  return 0;
}

/* Open all arrays of a step; those that were opened before a failure are released by the caller. */
static int open_step(const model *m, step *s, PyObject **given, Py_buffer *views, int *opened) {
  static const char *const NAMES[] = {"tokens", "positions", "row_starts", "tables", "table_starts", "logit_rows", "hidden_rows",
                                      "keys", "values", "logits", "hidden"};
  long slots = s->blocks * s->block_size * m->kv_heads * m->layers;
  Py_ssize_t items[VIEWS] = {-1, -1, -1, -1, -1, -1, -1, slots * m->head_size, slots * padded_head(m->head_size), -1, -1};
  for (; *opened < VIEWS; ++*opened) {
    int i = *opened, is_store = i == KEYS || i == VALUES, is_output = i == LOGITS || i == HIDDEN;
    char code = is_store && s->half ? 'H' : is_store || is_output ? 'f' : 'i';
    if (i == POSITIONS) items[i] = views[TOKENS].len / 4;
    if (i == TABLE_STARTS) items[i] = views[ROW_STARTS].len / 4;
    if (i == LOGITS) items[i] = views[LOGIT_ROWS].len / 4 * m->vocabulary;
    if (i == HIDDEN) items[i] = views[HIDDEN_ROWS].len / 4 * m->hidden;
    if (open_buffer(given[i], &views[i], NAMES[i], code, code == 'H' ? 2 : 4, items[i], is_store || is_output) < 0) return -1;
  }
  return 0;
}

static int fill_step(step *s, const Py_buffer *views) {
  s->rows = views[TOKENS].len / 4;
  s->sequences = views[ROW_STARTS].len / 4 - 1;
  s->logit_count = views[LOGIT_ROWS].len / 4;
  s->hidden_count = views[HIDDEN_ROWS].len / 4;
  s->tokens = views[TOKENS].buf;
  s->positions = views[POSITIONS].buf;
  s->row_starts = views[ROW_STARTS].buf;
  s->tables = views[TABLES].buf;
  s->table_starts = views[TABLE_STARTS].buf;
  s->logit_rows = views[LOGIT_ROWS].buf;
  s->hidden_rows = views[HIDDEN_ROWS].buf;
  s->keys = views[KEYS].buf;
  s->values = views[VALUES].buf;
  s->logits = views[LOGITS].buf;
  s->hidden = views[HIDDEN].buf;
  if (s->rows < 1 || s->sequences < 1) return refuse("a step has at least one row and one sequence");
  if (s->table_starts[s->sequences] != views[TABLES].len / 4) return refuse("table_starts must end at the length of tables");
  return 0;
}

static int run_step(ModelObject *self, const step *s) {
  int failed;
  if (self->busy) {
    PyErr_SetString(PyExc_RuntimeError, "a step of this model is already running");
    return -1;
  }
  self->busy = 1;
  Py_BEGIN_ALLOW_THREADS
  failed = forward(&self->m, s);
  Py_END_ALLOW_THREADS
  self->busy = 0;
  if (failed) PyErr_NoMemory();
  return failed;
}

static PyObject *model_forward(PyObject *object, PyObject *arguments) {
  ModelObject *self = (ModelObject *)object;
  PyObject *g[VIEWS];
  Py_buffer views[VIEWS];
  step s = {0};
  int opened = 0, done;
  if (!PyArg_ParseTuple(arguments, "llpOOOOOOOOOOO", &s.blocks, &s.block_size, &s.half, &g[0], &g[1], &g[2], &g[3], &g[4], &g[5], &g[6],
                        &g[7], &g[8], &g[9], &g[10]))
    return NULL;
  if (s.blocks < 1 || s.block_size < 1 || s.blocks > (1L << 31) / s.block_size) {
    PyErr_SetString(PyExc_ValueError, "a store has 1 to 2**31 slots");
    return NULL;
  }
  done = open_step(&self->m, &s, g, views, &opened) == 0 && fill_step(&s, views) == 0 && check_step(&self->m, &s) == 0 &&
         run_step(self, &s) == 0;
  while (opened > 0) PyBuffer_Release(&views[--opened]);
  if (!done) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef MODEL_METHODS[] = {
    {"forward", model_forward, METH_VARARGS,
     "forward(blocks, block_size, half, tokens, positions, row_starts, tables, table_starts, logit_rows, hidden_rows, keys, values, "
     "logits, hidden): run one step; see kernels.interface.StepBatch. keys, values, logits and hidden are written."},
    {0}};

static PyTypeObject ModelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlserve.kernels.native._native.Model",
    .tp_doc = "Model(*, sizes, isa, threads, weights): a llama with threads of its own.",
    .tp_basicsize = sizeof(ModelObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = model_new,
    .tp_dealloc = model_dealloc,
    .tp_methods = MODEL_METHODS,
};

/* ---- one product ---- */

typedef struct {
  const matrix *w;
  const kernels *cpu;
  const float *x;
  float *out;
  long rows;
} multiplication;

/* Copy what is wanted of 32 padded columns into the result. */
static void put_columns(const multiplication *p, long pair, const float *columns) {
  long n = p->w->outputs, width = n - pair * PAIR < PAIR ? n - pair * PAIR : PAIR;
  for (long r = 0; r < p->rows; r++) memcpy(p->out + r * n + pair * PAIR, columns + r * PAIR, (size_t)width * sizeof(float));
}

/* All rows at once, as a step does. 0, or -1 without memory. */
static int multiply_int8(const multiplication *p) {
  long k = p->w->inputs, blocks = p->w->blocks, per_row = k + (blocks * 4 + PAIR) * 4;
  float *memory = malloc((size_t)(p->rows * per_row));
  if (!memory) return -1;
  float *columns = memory, *d = columns + p->rows * PAIR;
  long all = p->rows * blocks;
  quantised_rows x = {.q = (int8_t *)(d + 4 * all), .d = d, .d_sum = d + all, .minus_sums = (int32_t *)(d + 2 * all),
                      .inputs = k, .blocks = blocks};
  for (long r = 0; r < p->rows; r++) p->cpu->quantise(p->x + r * k, &x, r, 0, blocks);
  for (long pair = 0; pair * PAIR < p->w->outputs; pair++) {
    p->cpu->linear_int8(p->w, pair, &x, 0, p->rows, columns, PAIR, 0);
    put_columns(p, pair, columns);
  }
  free(memory);
  return 0;
}

static int multiply_f32(const multiplication *p) {
  long k = p->w->inputs;
  float *scratch = aligned_alloc(64, (size_t)((k + p->rows) * PAIR) * sizeof(float)), *columns = scratch + k * PAIR;
  if (!scratch) return -1;
  for (long pair = 0; pair * PAIR < p->w->outputs; pair++) {
    p->cpu->linear_f32(p->w, pair, p->x, k, 0, p->rows, columns, PAIR, 0, scratch);
    put_columns(p, pair, columns);
  }
  free(scratch);
  return 0;
}

static int multiply_checked(multiplication *p, PyObject *x, PyObject *out, int int8) {
  Py_buffer from, to;
  int failed = -1;
  if (int8 && !is_quantised(p->w)) {
    PyErr_SetString(PyExc_ValueError, "only quantised weights take int8 activations");
    return -1;
  }
  if (open_buffer(x, &from, "x", 'f', 4, -1, 0) < 0) return -1;
  p->rows = from.len / 4 / p->w->inputs;
  if (p->rows * p->w->inputs * 4 != from.len) {
    PyErr_SetString(PyExc_ValueError, "x has no whole rows");
  } else if (open_buffer(out, &to, "out", 'f', 4, p->rows * p->w->outputs, 1) == 0) {
    p->x = from.buf;
    p->out = to.buf;
    failed = int8 ? multiply_int8(p) : multiply_f32(p);
    if (failed) PyErr_NoMemory();
    PyBuffer_Release(&to);
  }
  PyBuffer_Release(&from);
  return failed;
}

static PyObject *multiply(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *w, *x, *out;
  int int8;
  const char *isa;
  if (!PyArg_ParseTuple(arguments, "O!OOps", &MatrixType, &w, &x, &out, &int8, &isa)) return NULL;
  multiplication p = {.w = &((MatrixObject *)w)->w, .cpu = find_kernels(isa)};
  if (!p.cpu || multiply_checked(&p, x, out, int8) < 0) return NULL;
  Py_RETURN_NONE;
}

/* ---- the module ---- */

static PyObject *isas(PyObject *module, PyObject *none) {
  (void)module;
  (void)none;
  PyObject *names = PyList_New(0);
  for (int i = 0; names && ALL_KERNELS[i]; i++) {
    if (!ALL_KERNELS[i]->supported()) continue;
    PyObject *name = PyUnicode_FromString(ALL_KERNELS[i]->name);
    if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  PyObject *result = names ? PyList_AsTuple(names) : NULL;
  Py_XDECREF(names);
  return result;
}

static PyMethodDef FUNCTIONS[] = {
    {"isas", isas, METH_NOARGS, "Return the names of the instruction sets that this processor has kernels for, best first."},
    {"multiply", multiply, METH_VARARGS,
     "multiply(matrix, x, out, int8, isa): write the product of (R, K) rows with the matrix into out (R, N)."},
    {0}};

static PyModuleDef DEFINITION = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "Native kernels.", .m_size = -1,
                                 .m_methods = FUNCTIONS};

PyMODINIT_FUNC PyInit__native(void) {
  if (PyType_Ready(&MatrixType) < 0 || PyType_Ready(&ModelType) < 0 || PyType_Ready(&SamplerType) < 0) return NULL;
  PyObject *module = PyModule_Create(&DEFINITION);
  if (!module) return NULL;
  if (PyModule_AddObjectRef(module, "Matrix", (PyObject *)&MatrixType) < 0 ||
      PyModule_AddObjectRef(module, "Model", (PyObject *)&ModelType) < 0 ||
      PyModule_AddObjectRef(module, "Sampler", (PyObject *)&SamplerType) < 0)
    Py_CLEAR(module);
  return module;
}
