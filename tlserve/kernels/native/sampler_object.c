/* The Python side of the sampler: `Sampler` draws for all rows of a step in one call, the interpreter lock released.

   Owns every check of what Python hands over: sizes, and that each index lies inside of what it points into. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "sampler.h"
#include "sampler_object.h"

enum { MOST_THREADS = 1024, CONSTANTS = 3 + EXP_STEPS };

typedef struct {
  PyObject_HEAD
  sampler *s;
  int busy;
} SamplerObject;

static PyObject *sampler_object_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"vocabulary", "threads", "constants", NULL};
  long vocabulary;
  int threads;
  Py_buffer constants;
  exp_table table;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "liy*", names, &vocabulary, &threads, &constants)) return NULL;
  int fits = constants.len == CONSTANTS * (Py_ssize_t)sizeof(double);
  if (fits) {
    const double *given = constants.buf;
    table.inverse_step = given[0];
    table.step_high = given[1];
    table.step_low = given[2];
    for (int i = 0; i < EXP_STEPS; i++) table.powers[i] = given[3 + i];
  }
  PyBuffer_Release(&constants);
  if (!fits || vocabulary < 1 || vocabulary >= 1L << 31 || threads < 1 || threads > MOST_THREADS) {
    PyErr_SetString(PyExc_ValueError, "a sampler has 1 to 2**31 - 1 tokens, 1 to 1024 threads, and 67 constants");
    return NULL;
  }
  SamplerObject *self = (SamplerObject *)type->tp_alloc(type, 0);
  if (!self || (self->s = sampler_new(vocabulary, threads, &table))) return (PyObject *)self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

static void sampler_object_dealloc(PyObject *object) {
  sampler_free(((SamplerObject *)object)->s);
  Py_TYPE(object)->tp_free(object);
}

/* ---- a call ---- */

enum { ROWS, RUN_STARTS, LOGITS, MASKS, TOKENS, LOGPROBS, TOPS, VIEWS };

static int refuse(const char *what) {
  PyErr_SetString(PyExc_ValueError, what);
  return -1;
}

static int check_runs(const sample_call *c, Py_ssize_t rows) {
  int good = c->runs > 0 && c->run_starts[0] == 0 && c->run_starts[c->runs] == rows;
  for (long i = 0; good && i < c->runs; i++) good = c->run_starts[i] < c->run_starts[i + 1];
  return good ? 0 : refuse("run_starts must ascend from 0 to the number of rows");
}

static int check_rows(const sample_call *c, Py_ssize_t rows, Py_ssize_t masks) {
  for (Py_ssize_t i = 0; i < rows; i++) {
    if (c->rows[i].logprobs > c->most) return refuse("a row wants more log-probabilities than there is room for");
    if (c->rows[i].mask >= masks) return refuse("a row names a mask that is not there");
    if (!(c->rows[i].temperature >= 0)) return refuse("a temperature is below 0");
  }
  return 0;
}

static int fill_call(const sampler *s, sample_call *c, const Py_buffer *v) {
  Py_ssize_t rows = v[ROWS].len / (Py_ssize_t)sizeof(sample_row);
  c->vocabulary = sampler_vocabulary(s);
  c->mask_words = (c->vocabulary + 31) / 32;
  c->runs = v[RUN_STARTS].len / 4 - 1;
  c->run_starts = v[RUN_STARTS].buf;
  c->rows = v[ROWS].buf;
  c->logits = v[LOGITS].buf;
  c->masks = v[MASKS].buf;
  c->tokens = v[TOKENS].buf;
  c->logprobs = v[LOGPROBS].buf;
  c->tops = v[TOPS].buf;
  if (c->most < 0 || c->most > c->vocabulary || v[ROWS].len != rows * (Py_ssize_t)sizeof(sample_row) || v[RUN_STARTS].len % 4 ||
      v[LOGITS].len != rows * c->vocabulary * 4 || v[MASKS].len % (c->mask_words * 4) || v[TOKENS].len != rows * 4 ||
      v[LOGPROBS].len != rows * (1 + c->most) * 8 || v[TOPS].len != rows * c->most * 4)
    return refuse("the sizes of a sampler's arrays do not fit one another");
  return check_runs(c, rows) < 0 ? -1 : check_rows(c, rows, v[MASKS].len / (c->mask_words * 4));
}

static int run_call(SamplerObject *self, const sample_call *c) {
  if (self->busy) {
    PyErr_SetString(PyExc_RuntimeError, "this sampler is already drawing");
    return -1;
  }
  self->busy = 1;
  Py_BEGIN_ALLOW_THREADS
  sampler_draw(self->s, c);
  Py_END_ALLOW_THREADS
  self->busy = 0;
  return 0;
}

static PyObject *sampler_object_draw(PyObject *object, PyObject *arguments) {
  SamplerObject *self = (SamplerObject *)object;
  Py_buffer v[VIEWS];
  sample_call c = {0};
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*w*w*l", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &c.most)) return NULL;
  int done = fill_call(self->s, &c, v) == 0 && run_call(self, &c) == 0;
  for (int i = 0; i < VIEWS; i++) PyBuffer_Release(&v[i]);
  if (!done) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"draw", sampler_object_draw, METH_VARARGS,
     "draw(rows, run_starts, logits, masks, tokens, logprobs, tops, most): draw for every row; the last three arrays are written. See "
     "sampler.h for what they hold."},
    {0}};

PyTypeObject SamplerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlserve.kernels.native._native.Sampler",
    .tp_doc = "Sampler(vocabulary, threads, constants): draws tokens, with threads of its own.",
    .tp_basicsize = sizeof(SamplerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = sampler_object_new,
    .tp_dealloc = sampler_object_dealloc,
    .tp_methods = METHODS,
};
