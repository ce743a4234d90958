/* `Matrix` packs weights; `multiply` computes one product, for the test at the start.

   Checks everything that Python hands over: types and sizes. A wrong call raises. */
#include "matrix_object.h"

#include "find_kernels.h"

#include <stdlib.h>
#include <string.h>

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
  else if (!scales_fit(kind, (size_t)raw->len, raw->buf))
    PyErr_SetString(PyExc_ValueError, "the matrix has scales that cannot be packed");
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
  if (check_matrix(kind, outputs, inputs, &raw) == 0 && (self = (MatrixObject *)PyType_GenericAlloc(type, 0))) {
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
  object_free(object);
}

static PyObject *matrix_nbytes(PyObject *object, void *closure) {
  (void)closure;
  const matrix *w = &((MatrixObject *)object)->w;
  return PyLong_FromSize_t(w->pair_bytes * (size_t)w->pairs);
}

static PyGetSetDef MATRIX_GETTERS[] = {{"nbytes", matrix_nbytes, NULL, "Memory of the packed weights.", NULL}, {0}};

static PyType_Slot MATRIX_SLOTS[] = {
    {Py_tp_doc, "Matrix(kind, outputs, inputs, raw): weights in GGUF's rows of type `kind`, packed into panels."},
    {Py_tp_new, matrix_new},
    {Py_tp_dealloc, matrix_dealloc},
    {Py_tp_getset, MATRIX_GETTERS},
    {0, NULL}};

PyType_Spec MATRIX_SPEC = {
    .name = "tlserve.kernels.native._native.Matrix",
    .basicsize = sizeof(MatrixObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = MATRIX_SLOTS,
};

PyTypeObject *MatrixType;

const matrix *matrix_of(PyObject *object, const char *what, long outputs, long inputs) {
  if (!PyObject_TypeCheck(object, MatrixType)) {
    PyErr_Format(PyExc_TypeError, "%s must be a Matrix", what);
    return NULL;
  }
  const matrix *w = &((MatrixObject *)object)->w;
  if (w->outputs == outputs && w->inputs == inputs) return w;
  PyErr_Format(PyExc_ValueError, "%s has the shape (%ld, %ld), not (%ld, %ld)", what, w->outputs, w->inputs, outputs, inputs);
  return NULL;
}

const kernels *kernels_named(const char *name) {
  const kernels *found = find_kernels(name);
  if (!found) PyErr_Format(PyExc_ValueError, "this processor has no kernels named %s", name);
  return found;
}

int activations_named(const char *name) {
  static const char *const names[ACTIVATION_FORMATS] = {"f32", "int8", "int12"};
  for (int i = 0; i < ACTIVATION_FORMATS; i++)
    if (strcmp(names[i], name) == 0) return i;
  PyErr_Format(PyExc_ValueError, "activations are f32, int8 or int12, not %s", name);
  return -1;
}

/* ---- one product ---- */

typedef struct {
  const matrix *w;
  const kernels *cpu;
  const float *x;
  float *out;
  long rows;
  enum activation_format activations;
} multiplication;

/* Copy the columns that the matrix has, of 32 padded ones, into the result. */
static void put_columns(const multiplication *p, long pair, const float *columns) {
  long n = p->w->outputs, width = n - pair * PAIR < PAIR ? n - pair * PAIR : PAIR;
  for (long r = 0; r < p->rows; r++) memcpy(p->out + r * n + pair * PAIR, columns + r * PAIR, (size_t)width * sizeof(float));
}

/* All rows at once, as a step does. 0, or -1 without memory. */
static int multiply_quantised(const multiplication *p) {
  long k = p->w->inputs, blocks = p->w->blocks, own = k * activation_bytes(p->activations);
  long per_row = own + tile_bytes(p->cpu, p->activations, k) + (blocks * 5 + PAIR) * 4;
  float *memory = malloc((size_t)(p->rows * per_row));
  if (!memory) return -1;
  float *columns = memory, *d = columns + p->rows * PAIR;
  long all = p->rows * blocks;
  quantised_rows x = {.q = (int8_t *)(d + 5 * all), .d = d, .d_sum = d + all, .minus_sums = (int32_t *)(d + 2 * all),
                      .starts = (int32_t *)(d + 4 * all), .inputs = k, .blocks = blocks};
  x.bytes = x.q + p->rows * own;
  for (long r = 0; r < p->rows; r++) p->cpu->quantise[p->activations](p->x + r * k, &x, r, 0, blocks);
  for (long pair = 0; pair * PAIR < p->w->outputs; pair++) {
    p->cpu->linear[p->activations](p->w, pair, &x, 0, p->rows, columns, PAIR, 0);
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

static int multiply_checked(multiplication *p, PyObject *x, PyObject *out) {
  Py_buffer from, to;
  int failed = -1;
  if (p->activations != ACTIVATIONS_F32 && !is_quantised(p->w)) {
    PyErr_SetString(PyExc_ValueError, "only quantised weights take quantised activations");
    return -1;
  }
  if (open_buffer(x, &from, "x", 'f', 4, -1, 0) < 0) return -1;
  p->rows = from.len / 4 / p->w->inputs;
  if (p->rows * p->w->inputs * 4 != from.len) {
    PyErr_SetString(PyExc_ValueError, "x has no whole rows");
  } else if (open_buffer(out, &to, "out", 'f', 4, p->rows * p->w->outputs, 1) == 0) {
    p->x = from.buf;
    p->out = to.buf;
    failed = p->activations != ACTIVATIONS_F32 ? multiply_quantised(p) : multiply_f32(p);
    if (failed) PyErr_NoMemory();
    PyBuffer_Release(&to);
  }
  PyBuffer_Release(&from);
  return failed;
}

PyObject *multiply(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *w, *x, *out;
  const char *activations, *isa;
  if (!PyArg_ParseTuple(arguments, "O!OOss", MatrixType, &w, &x, &out, &activations, &isa)) return NULL;
  int format = activations_named(activations);
  multiplication p = {.w = &((MatrixObject *)w)->w, .cpu = format < 0 ? NULL : kernels_named(isa), .activations = (enum activation_format)format};
  if (!p.cpu || multiply_checked(&p, x, out) < 0) return NULL;
  Py_RETURN_NONE;
}

const char MULTIPLY_DOC[] = "multiply(matrix, x, out, activations, isa): write the product of (R, K) rows with the matrix into out (R, N).";
