/* Resident threads: they spin briefly in a step and sleep between steps.

   Between steps the helpers sleep at once: an idle server uses no processor time. A step is a sequence of phases. A thread continues
   with the next phase when all units of this one are done, not when all threads have arrived: a helper that the system has
   suspended between two units delays no other thread, and when it runs again it skips the phases that others have finished.
   A thread that waits spins for some microseconds and then sleeps. A sleeper counts itself before it checks again, and the waker
   changes the state before it looks for sleepers; both are sequentially consistent, so no wake-up is lost. */
#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

enum { SPINS = 2000, TAKES = 8 };

struct pool {
  int threads;
  pthread_t *handles;
  pool_work work;
  void *argument;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  _Alignas(64) atomic_uint step;   /* odd while a step is open to helpers */
  _Alignas(64) atomic_int inside;  /* helpers in the step */
  _Alignas(64) atomic_int sleepers;
  atomic_int ending;
};

typedef struct {
  pool *p;
  int thread;
} helper_argument;

static void cpu_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

/* Wake all sleepers, after a change that they can be waiting for. */
static void wake(pool *p) {
  if (atomic_load(&p->sleepers) == 0) return;
  pthread_mutex_lock(&p->mutex);
  pthread_cond_broadcast(&p->changed);
  pthread_mutex_unlock(&p->mutex);
}

/* Wait until ready(p, argument): spin, then sleep. */
static void wait_until(pool *p, int (*ready)(pool *, void *), void *argument, int spins) {
  for (int i = 0; i < spins; i++) {
    if (ready(p, argument)) return;
    cpu_relax();
  }
  pthread_mutex_lock(&p->mutex);
  atomic_fetch_add(&p->sleepers, 1);
  while (!ready(p, argument)) pthread_cond_wait(&p->changed, &p->mutex);
  atomic_fetch_sub(&p->sleepers, 1);
  pthread_mutex_unlock(&p->mutex);
}

/* ---- phases ---- */

typedef struct {
  phase *f;
  long total;
} completion;

static int is_done(pool *p, void *argument) {
  (void)p;
  const completion *c = argument;
  return atomic_load(&c->f->done) == c->total;
}

int phase_take(pool *p, phase *f, long total, long *first, long *end) {
  long few = total / (p->threads * (long)TAKES);
  if (few < 1) few = 1;
  *first = atomic_fetch_add_explicit(&f->next, few, memory_order_relaxed);
  *end = *first + few < total ? *first + few : total;
  return *first < total;
}

void phase_finish(pool *p, phase *f, long total, long units) {
  if (atomic_fetch_add(&f->done, units) + units == total) wake(p);
}

void phase_wait(pool *p, phase *f, long total) { wait_until(p, is_done, &(completion){f, total}, SPINS); }

/* ---- steps ---- */

static int is_open_or_ending(pool *p, void *seen) {
  unsigned step = atomic_load(&p->step);
  return (step % 2 == 1 && step != *(unsigned *)seen) || atomic_load(&p->ending);
}

static int is_empty(pool *p, void *argument) {
  (void)argument;
  return atomic_load(&p->inside) == 0;
}

/* Take part in the open step, if it is still open once this helper has counted itself. */
static void take_part(pool *p, int thread, unsigned *seen) {
  atomic_fetch_add(&p->inside, 1);
  *seen = atomic_load(&p->step);
  if (*seen % 2 == 1) p->work(p->argument, thread);
  atomic_fetch_sub(&p->inside, 1);
  wake(p);
}

static void *helper(void *given) {
  helper_argument a = *(helper_argument *)given;
  free(given);
  for (unsigned seen = 0;;) {
    wait_until(a.p, is_open_or_ending, &seen, 0);
    if (atomic_load(&a.p->ending)) return NULL;
    take_part(a.p, a.thread, &seen);
  }
}

void pool_run(pool *p, pool_work work, void *argument) {
  p->work = work;
  p->argument = argument;
  atomic_fetch_add(&p->step, 1);
  wake(p);
  work(argument, 0);
  atomic_fetch_add(&p->step, 1); /* closed: no further helper can enter */
  wait_until(p, is_empty, NULL, SPINS);
}

/* ---- life ---- */

static int start_helper(pool *p, int thread) {
  helper_argument *a = malloc(sizeof *a);
  if (!a) return -1;
  *a = (helper_argument){p, thread};
  if (pthread_create(&p->handles[thread - 1], NULL, helper, a) == 0) return 0;
  free(a);
  return -1;
}

/* Helpers receive no signals: the interpreter's own threads do. */
static int start_helpers(pool *p, int threads) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (p->threads < threads && start_helper(p, p->threads) == 0) p->threads++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return p->threads == threads ? 0 : -1;
}

pool *pool_new(int threads) {
  pool *p = aligned_alloc(64, (sizeof(pool) + 63) / 64 * 64);
  if (!p) return NULL;
  p->threads = 1;
  p->handles = calloc((size_t)threads, sizeof(pthread_t));
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->changed, NULL);
  atomic_init(&p->step, 0);
  atomic_init(&p->inside, 0);
  atomic_init(&p->sleepers, 0);
  atomic_init(&p->ending, 0);
  if (p->handles && start_helpers(p, threads) == 0) return p;
  pool_free(p);
  return NULL;
}

void pool_free(pool *p) {
  if (!p) return;
  atomic_store(&p->ending, 1);
  wake(p);
  for (int t = 1; t < p->threads; t++) pthread_join(p->handles[t - 1], NULL);
  pthread_cond_destroy(&p->changed);
  pthread_mutex_destroy(&p->mutex);
  free(p->handles);
  free(p);
}

int pool_threads(const pool *p) { return p->threads; }
