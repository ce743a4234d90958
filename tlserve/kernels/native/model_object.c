/* `Model` holds the weights of a decoder and runs steps.

   Checks everything that Python hands over: types, sizes, and that each index is inside the array that it points into (`model_parts`
   has the weights, `step_arguments` the steps). A wrong call raises; the code after these checks checks nothing again. The interpreter
   lock is released in a step. */
#include "model_object.h"

#include "matrix_object.h"
#include "model_parts.h"
#include "step_arguments.h"

#include <stdlib.h>

enum { MOST_THREADS = 1024 };

typedef struct {
  PyObject_HEAD
  model model;
  kept_parts kept;
  int busy;
} ModelObject;

/* ---- life ---- */

static PyObject *refuse(const char *what) {
  PyErr_SetString(PyExc_ValueError, what);
  return NULL;
}

static int read_model(model *m, given_parts *given, int *threads, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"hidden", "vocabulary", "context", "embed_scale", "logit_scale", "logit_cap", "activations", "isa",
                          "threads", "embedding", "head", "head_bias", "embedding_norm", "norm", "inputs", "blocks", NULL};
  const char *activations, *isa;
  int format;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$lllfffssiOOOOOOO!", names, &m->hidden, &m->vocabulary, &m->context,
                                   &m->embed_scale, &m->logit_scale, &m->logit_cap, &activations, &isa, threads, &given->embedding,
                                   &given->head, &given->head_bias, &given->embedding_norm, &given->norm, &given->inputs,
                                   &PyTuple_Type, &given->blocks))
    return -1;
  m->count = PyTuple_Size(given->blocks);
  if (m->hidden < 1 || m->vocabulary < 1 || m->context < 1 || m->count < 1) return refuse("a size is below 1"), -1;
  if (*threads < 1 || *threads > MOST_THREADS) return refuse("threads must be 1 to 1024"), -1;
  if ((format = activations_named(activations)) < 0 || !(m->cpu = kernels_named(isa))) return -1;
  m->activations = (enum activation_format)format;
  return 0;
}

static PyObject *model_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  model m = {0};
  int threads;
  given_parts given;
  if (read_model(&m, &given, &threads, arguments, keywords) < 0) return NULL;
  ModelObject *self = (ModelObject *)PyType_GenericAlloc(type, 0);
  if (!self) return NULL;
  self->model = m;
  if (keep_parts(&self->model, &self->kept, &given) < 0) goto failed;
  if ((self->model.threads = pool_new(threads))) return (PyObject *)self;
  PyErr_SetString(PyExc_RuntimeError, "cannot start the threads of the kernels");
failed:
  Py_DECREF(self);
  return NULL;
}

static void model_dealloc(PyObject *object) {
  ModelObject *self = (ModelObject *)object;
  pool_free(self->model.threads);
  release_parts(&self->kept);
  free_blocks(&self->model);
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
  if (!PyArg_ParseTuple(arguments, "llpOOOOOOOOOOOO", &s.blocks, &s.block_size, &s.half, &given[TOKENS], &given[POSITIONS],
                        &given[ROW_STARTS], &given[TABLES], &given[TABLE_STARTS], &given[LOGIT_ROWS], &given[HIDDEN_ROWS],
                        &given[KEYS], &given[VALUES], &given[LOGITS], &given[HIDDEN], &given[INPUTS]))
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
     "logits, hidden, inputs): run one step; see kernels.interface.StepBatch. keys, values, logits and hidden are written. inputs: "
     "rows instead of embeddings, or no items."},
    {0}};

static PyType_Slot MODEL_SLOTS[] = {
    {Py_tp_doc, "Model(*, sizes, isa, threads, weights): a decoder with threads of its own."},
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
