/* The Python side of the sampler: `Sampler` draws for all rows of a step in one call, the interpreter lock released.

   Checks everything that Python hands over: sizes, and that each index is inside the array that it points into. */
#include "sampler_object.h"

#include "buffers.h"
#include "sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 1024, CONSTANTS = 3 + EXP_STEPS };

typedef struct {
  PyObject_HEAD
  sampler *s;
  int busy;
} SamplerObject;

static PyObject *sampler_object_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"vocabulary", "threads", "constants", "widest", NULL};
  long vocabulary;
  int threads, widest = 512;
  Py_buffer constants;
  exp_table table;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "liy*|i", names, &vocabulary, &threads, &constants, &widest)) return NULL;
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
  SamplerObject *self = (SamplerObject *)PyType_GenericAlloc(type, 0);
  if (!self || (self->s = sampler_new(vocabulary, threads, widest, &table))) return (PyObject *)self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

static void sampler_object_dealloc(PyObject *object) {
  sampler_free(((SamplerObject *)object)->s);
  object_free(object);
}

/* ---- arguments ---- */

enum { ROWS, RUN_STARTS, LOGITS, MASKS, CHAINS, VIEWS };

/* The edits of a call, and what holds their memory. */
typedef struct {
  edit_list *lists;
  Py_buffer *views;
  Py_ssize_t count;
} edits_held;

static int refuse(const char *what) {
  PyErr_SetString(PyExc_ValueError, what);
  return -1;
}

static int check_runs(const sample_call *c, Py_ssize_t rows) {
  int good = c->runs > 0 && c->run_starts[0] == 0 && c->run_starts[c->runs] == rows;
  for (long i = 0; good && i < c->runs; i++) good = c->run_starts[i] < c->run_starts[i + 1];
  return good ? 0 : refuse("run_starts must ascend from 0 to the number of rows");
}

static int is_from(double value, double low, double high) { return value >= low && value <= high; }

static int check_chains(const sample_call *c, Py_ssize_t chains) {
  for (Py_ssize_t i = 0; i < chains; i++) {
    const sample_chain *chain = &c->chains[i];
    int good = is_from(chain->temperature, 0, HUGE_VAL) && is_from(chain->dynatemp_range, 0, HUGE_VAL) && is_from(chain->top_n_sigma, 0, HUGE_VAL);
    good = good && chain->typical_p > 0 && chain->top_p > 0 && is_from(chain->min_p, 0, 1) && is_from(chain->xtc_threshold, 0, 1);
    good = good && is_from(chain->dynatemp_exponent, 0, HUGE_VAL) && chain->top_k >= 0 && chain->min_keep >= 0;
    good = good && chain->count >= 0 && chain->count <= STEPS && chain->mu - chain->mu == 0;
    for (int64_t k = 0; good && k < chain->count; k++) good = chain->steps[k] != TOP_K || chain->top_k > 0;
    if (!good) return refuse("a number of a chain is out of range");
  }
  return 0;
}

static int check_rows(sample_call *c, Py_ssize_t rows, Py_ssize_t masks, Py_ssize_t edits, Py_ssize_t chains) {
  for (Py_ssize_t i = 0; i < rows; i++) {
    const sample_row *row = &c->rows[i];
    if (row->logprobs > c->vocabulary) return refuse("a row requests more log-probabilities than there are tokens");
    if (row->mask >= masks) return refuse("a row names a mask that does not exist");
    if (row->edits >= edits) return refuse("a row names edits that do not exist");
    if (row->chain >= chains) return refuse("a row names a chain that does not exist");
    if (row->given < -1 || row->given >= c->vocabulary) return refuse("a row names a token that is not in the vocabulary");
    if (row->given >= 0 && row->logprobs < 0) return refuse("a row names a token and requests no log-probability");
    if (!(row->temperature >= 0)) return refuse("a temperature is below 0");
    if (!(row->top_p > 0)) return refuse("a top_p is not above 0");
    if (!(row->min_p >= 0 && row->min_p <= 1)) return refuse("a min_p is not from 0 to 1");
    if (row->logprobs > c->most) c->most = row->logprobs;
  }
  return 0;
}

static int check_edits(const edit_list *list, long vocabulary) {
  for (long j = 0; j < list->n; j++)
    if (list->entries[j].id < 0 || list->entries[j].id >= vocabulary) return refuse("an edit is of a token that is not in the vocabulary");
  return list->n > vocabulary ? refuse("there are more edits than tokens") : 0;
}

/* Hold one (penalties, entries). */
static int hold_edits(edits_held *held, PyObject *item, long vocabulary) {
  edit_list *list = &held->lists[held->count];
  Py_buffer penalties, *entries = &held->views[held->count];
  if (!PyArg_ParseTuple(item, "y*y*", &penalties, entries)) return -1;
  held->count++;
  int fits = penalties.len == 3 * (Py_ssize_t)sizeof(double) && entries->len % (Py_ssize_t)sizeof(logit_edit) == 0;
  if (fits) memcpy(list, penalties.buf, 3 * sizeof(double));
  list->entries = entries->buf;
  list->n = entries->len / (Py_ssize_t)sizeof(logit_edit);
  PyBuffer_Release(&penalties);
  return fits ? check_edits(list, vocabulary) : refuse("edits have three penalties and entries of 16 bytes");
}

static int hold_all_edits(edits_held *held, PyObject *items, long vocabulary) {
  Py_ssize_t count = PyList_Size(items);
  held->lists = PyMem_Calloc((size_t)count + 1, sizeof *held->lists);
  held->views = PyMem_Calloc((size_t)count + 1, sizeof *held->views);
  if (!held->lists || !held->views) return PyErr_NoMemory(), -1;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *item = PyList_GetItem(items, i);
    if (!PyTuple_Check(item)) return refuse("edits come as tuples");
    if (hold_edits(held, item, vocabulary) < 0) return -1;
  }
  return 0;
}

static void release_edits(edits_held *held) {
  for (Py_ssize_t i = 0; i < held->count; i++) PyBuffer_Release(&held->views[i]);
  PyMem_Free(held->views);
  PyMem_Free(held->lists);
}

static int fill_call(const sampler *s, sample_call *c, const Py_buffer *v, const edits_held *edits) {
  Py_ssize_t rows = v[ROWS].len / (Py_ssize_t)sizeof(sample_row);
  c->vocabulary = sampler_vocabulary(s);
  c->mask_words = (c->vocabulary + 31) / 32;
  c->runs = v[RUN_STARTS].len / 4 - 1;
  c->run_starts = v[RUN_STARTS].buf;
  c->rows = v[ROWS].buf;
  c->logits = v[LOGITS].buf;
  c->masks = v[MASKS].buf;
  c->chains = v[CHAINS].buf;
  c->edits = edits->lists;
  if (v[ROWS].len != rows * (Py_ssize_t)sizeof(sample_row) || v[RUN_STARTS].len % 4 || v[LOGITS].len != rows * c->vocabulary * 4 ||
      v[MASKS].len % (c->mask_words * 4) || v[CHAINS].len % (Py_ssize_t)sizeof(sample_chain))
    return refuse("the sizes of a sampler's arrays do not fit each other");
  Py_ssize_t chains = v[CHAINS].len / (Py_ssize_t)sizeof(sample_chain);
  if (check_runs(c, rows) < 0 || check_chains(c, chains) < 0) return -1;
  return check_rows(c, rows, v[MASKS].len / (c->mask_words * 4), edits->count, chains);
}

/* ---- results ---- */

/* (token, log-probability, ids of the best, their log-probabilities) */
static PyObject *row_with_logprobs(const sample_call *c, long i, long count) {
  const double *logprobs = c->logprobs + i * (1 + c->most);
  PyObject *ids = PyTuple_New(count), *values = PyTuple_New(count);
  for (long j = 0; ids && values && j < count; j++) {
    PyObject *id = PyLong_FromLong(c->tops[i * c->most + j]), *value = PyFloat_FromDouble(logprobs[1 + j]);
    if (!id || !value) {
      Py_XDECREF(id);
      Py_XDECREF(value);
      Py_CLEAR(ids);
    } else {
      PyTuple_SetItem(ids, j, id);
      PyTuple_SetItem(values, j, value);
    }
  }
  if (ids && values) return Py_BuildValue("ldNN", (long)c->tokens[i], logprobs[0], ids, values);
  Py_XDECREF(ids);
  Py_XDECREF(values);
  return NULL;
}

static PyObject *row_result(const sample_call *c, long i) {
  long token = c->tokens[i], count = c->rows[i].logprobs;
  return token < 0 || count < 0 ? PyLong_FromLong(token) : row_with_logprobs(c, i, count);
}

/* A list for each run: the results of its rows, up to the first that was not drawn. */
static PyObject *run_result(const sample_call *c, long run) {
  PyObject *list = PyList_New(0);
  for (long i = c->run_starts[run]; list && i < c->run_starts[run + 1] && c->tokens[i] != NOT_DRAWN; i++) {
    PyObject *row = row_result(c, i);
    if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

static PyObject *results(const sample_call *c) {
  PyObject *list = PyList_New(c->runs);
  for (long run = 0; list && run < c->runs; run++) {
    PyObject *result = run_result(c, run);
    if (result) PyList_SetItem(list, run, result);
    else Py_CLEAR(list);
  }
  return list;
}

/* ---- a call ---- */

static PyObject *run_call(SamplerObject *self, sample_call *c) {
  size_t rows = (size_t)c->run_starts[c->runs], most = (size_t)c->most;
  if (self->busy) {
    PyErr_SetString(PyExc_RuntimeError, "this sampler is already drawing");
    return NULL;
  }
  char *memory = malloc(rows * ((1 + most) * sizeof(double) + (1 + most) * sizeof(int32_t)));
  if (!memory) return PyErr_NoMemory();
  c->logprobs = (double *)memory;
  c->tops = (int32_t *)(c->logprobs + rows * (1 + most));
  c->tokens = c->tops + rows * most;
  self->busy = 1;
  Py_BEGIN_ALLOW_THREADS
  sampler_draw(self->s, c);
  Py_END_ALLOW_THREADS
  self->busy = 0;
  PyObject *drawn = results(c);
  free(memory);
  return drawn;
}

static PyObject *sampler_object_draw(PyObject *object, PyObject *arguments) {
  SamplerObject *self = (SamplerObject *)object;
  Py_buffer v[VIEWS];
  PyObject *edits;
  edits_held held = {0};
  sample_call c = {0};
  if (!PyArg_ParseTuple(arguments, "y*y*w*y*O!w*", &v[ROWS], &v[RUN_STARTS], &v[LOGITS], &v[MASKS], &PyList_Type, &edits, &v[CHAINS]))
    return NULL;
  int good = hold_all_edits(&held, edits, sampler_vocabulary(self->s)) == 0 && fill_call(self->s, &c, v, &held) == 0;
  PyObject *drawn = good ? run_call(self, &c) : NULL;
  release_edits(&held);
  for (int i = 0; i < VIEWS; i++) PyBuffer_Release(&v[i]);
  return drawn;
}

static PyObject *sampler_object_version(PyObject *object, PyObject *none) {
  (void)object;
  (void)none;
  return PyLong_FromLong(SAMPLER_VERSION);
}

static PyMethodDef METHODS[] = {
    {"draw", sampler_object_draw, METH_VARARGS,
     "draw(rows, run_starts, logits, masks, edits, chains): draw for every row; see sampler.h. edits: a list of (three penalties, entries). "
     "chains: writable, because mirostat leaves its mu there. Return a "
     "list for each run, of the results of its rows: a token, or (token, logprob, best ids, their logprobs); -2 where the logits are not numbers, "
     "-3 where nothing is allowed."},
    {"version", sampler_object_version, METH_NOARGS | METH_STATIC, "version(): the version of the interface, on which this type and its caller must agree."},
    {0}};

static PyType_Slot SAMPLER_SLOTS[] = {
    {Py_tp_doc, "Sampler(vocabulary, threads, constants, widest=512): draws tokens, with threads of its own, in vectors of at most `widest` bits."},
    {Py_tp_new, sampler_object_new},
    {Py_tp_dealloc, sampler_object_dealloc},
    {Py_tp_methods, METHODS},
    {0, NULL}};

PyType_Spec SAMPLER_SPEC = {
    .name = "tlserve.kernels.native._native.Sampler",
    .basicsize = sizeof(SamplerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = SAMPLER_SLOTS,
};
