#include "step_arguments.h"

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

/* Each row once, in order: the rows whose outputs are requested are never more than the rows of the step. */
static int check_output_rows(const int32_t *rows, long count, long below, const char *what) {
  int good = 1;
  for (long i = 0; i < count; i++) good &= rows[i] > (i ? rows[i - 1] : -1) && rows[i] < below;
  return good ? 0 : refuse(what);
}

/* Consecutive positions inside the context, whose blocks are all in the table. */
static int check_sequence(const step *s, long context, int whole, long sequence) {
  long first = s->row_starts[sequence], last = s->row_starts[sequence + 1] - 1;
  long blocks = s->table_starts[sequence + 1] - s->table_starts[sequence];
  for (long r = first; r <= last; r++)
    if (s->positions[r] < 0 || s->positions[r] != s->positions[first] + (r - first)) return refuse("positions of a sequence must be consecutive");
  if (whole && s->positions[first] != 0) return refuse("a sequence must be whole");
  if (s->positions[last] >= context) return refuse("a position is outside the context");
  return s->positions[last] / s->block_size < blocks ? 0 : refuse("a block table is too short for its rows");
}

int check_step(const model *m, const step *s) {
  if (!m->embedding && (!s->inputs || s->logit_count)) return refuse("a model without embeddings takes rows and has no logits");
  if (check_starts(s->row_starts, s->sequences, s->rows, "row_starts must ascend from 0 to the number of rows") < 0 ||
      check_starts(s->table_starts, s->sequences, s->table_starts[s->sequences], "table_starts must ascend from 0") < 0 ||
      check_indices(s->tokens, s->rows, m->vocabulary, "a token is outside the vocabulary") < 0 ||
      check_indices(s->tables, s->table_starts[s->sequences], s->blocks, "a block is outside the store") < 0 ||
      check_output_rows(s->logit_rows, s->logit_count, s->rows, "logit_rows must be rows of the step, ascending") < 0 ||
      check_output_rows(s->hidden_rows, s->hidden_count, s->rows, "hidden_rows must be rows of the step, ascending") < 0)
    return -1;
  for (long sequence = 0; sequence < s->sequences; sequence++)
    if (check_sequence(s, m->context, m->whole, sequence) < 0) return -1;
  return 0;
}

/* Without items an array of rows says that there are none. */
static int has_items(PyObject *object) {
  Py_ssize_t items = PyObject_Size(object);
  if (items < 0) PyErr_Clear(); /* open_buffer refuses it */
  return items != 0;
}

int open_step(const model *m, step *s, PyObject **given, Py_buffer *views, int *opened) {
  static const char *const NAMES[] = {"tokens", "positions", "row_starts", "tables", "table_starts", "logit_rows", "hidden_rows",
                                      "keys", "values", "logits", "hidden", "inputs"};
  long slots = s->blocks * s->block_size;
  Py_ssize_t items[VIEWS] = {-1, -1, -1, -1, -1, -1, -1, slots * m->key_width, slots * m->value_width, -1, -1, -1};
  for (; *opened < VIEWS; ++*opened) {
    int i = *opened, is_store = i == KEYS || i == VALUES, is_output = i == LOGITS || i == HIDDEN;
    char code = is_store && s->half ? 'H' : is_store || is_output || i == INPUTS ? 'f' : 'i';
    if (i == POSITIONS) items[i] = views[TOKENS].len / 4;
    if (i == TABLE_STARTS) items[i] = views[ROW_STARTS].len / 4;
    if (i == LOGITS) items[i] = views[LOGIT_ROWS].len / 4 * m->vocabulary;
    if (i == HIDDEN) items[i] = views[HIDDEN_ROWS].len / 4 * m->hidden;
    if (i == INPUTS && has_items(given[i])) items[i] = views[TOKENS].len / 4 * m->hidden;
    if (open_buffer(given[i], &views[i], NAMES[i], code, code == 'H' ? 2 : 4, items[i], is_store || is_output) < 0) return -1;
  }
  return 0;
}

int fill_step(step *s, const Py_buffer *views) {
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
  s->inputs = views[INPUTS].len ? views[INPUTS].buf : NULL;
  if (s->rows < 1 || s->sequences < 1) return refuse("a step has at least one row and one sequence");
  if (s->table_starts[s->sequences] != views[TABLES].len / 4) return refuse("table_starts must end at the length of tables");
  return 0;
}
