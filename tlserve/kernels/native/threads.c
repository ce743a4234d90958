/* Resident threads: spin briefly inside a step, sleep outside of it.

   Two meeting points, both counted by an epoch that the last arrival raises: the start of a step (helpers sleep there at once: an idle
   server uses no processor time) and the barrier between phases (a phase takes microseconds, so a short spin comes first; the
   spin is bounded, for the case that the other thread has no processor).
   A sleeper counts itself before it looks at the epoch again, the raiser raises before it looks for sleepers; both are
   sequentially consistent, so no wake-up is lost. */
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 4000 };

typedef struct {
  _Alignas(64) atomic_uint epoch;
  atomic_uint arrived;
  atomic_uint sleepers;
  pthread_mutex_t mutex;
  pthread_cond_t raised;
} gate;

struct pool {
  int threads;
  pthread_t *handles;
  pool_work work;
  void *argument;
  atomic_int ending;
  gate start, between;
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

static void gate_init(gate *g) {
  atomic_init(&g->epoch, 0);
  atomic_init(&g->arrived, 0);
  atomic_init(&g->sleepers, 0);
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->raised, NULL);
}

static void gate_destroy(gate *g) {
  pthread_cond_destroy(&g->raised);
  pthread_mutex_destroy(&g->mutex);
}

static void gate_raise(gate *g) {
  atomic_fetch_add(&g->epoch, 1);
  if (atomic_load(&g->sleepers) == 0) return;
  pthread_mutex_lock(&g->mutex);
  pthread_cond_broadcast(&g->raised);
  pthread_mutex_unlock(&g->mutex);
}

/* Wait until the epoch is no longer `seen`. */
static void gate_wait(gate *g, unsigned seen, int spins) {
  for (int i = 0; i < spins; i++) {
    if (atomic_load_explicit(&g->epoch, memory_order_acquire) != seen) return;
    cpu_relax();
  }
  pthread_mutex_lock(&g->mutex);
  atomic_fetch_add(&g->sleepers, 1);
  while (atomic_load(&g->epoch) == seen) pthread_cond_wait(&g->raised, &g->mutex);
  atomic_fetch_sub(&g->sleepers, 1);
  pthread_mutex_unlock(&g->mutex);
}

void pool_barrier(pool *p) {
  if (p->threads == 1) return;
  unsigned seen = atomic_load(&p->between.epoch);
  if (atomic_fetch_add(&p->between.arrived, 1) + 1 == (unsigned)p->threads) {
    atomic_store(&p->between.arrived, 0);
    gate_raise(&p->between);
  } else {
    gate_wait(&p->between, seen, SPINS);
  }
}

static void *helper(void *given) {
  helper_argument a = *(helper_argument *)given;
  free(given);
  for (unsigned seen = 0;; seen++) {
    gate_wait(&a.p->start, seen, 0);
    if (atomic_load(&a.p->ending)) return NULL;
    a.p->work(a.p->argument, a.thread);
    pool_barrier(a.p);
  }
}

static int start_helper(pool *p, int thread) {
  helper_argument *a = malloc(sizeof *a);
  if (!a) return -1;
  *a = (helper_argument){p, thread};
  if (pthread_create(&p->handles[thread - 1], NULL, helper, a) == 0) return 0;
  free(a);
  return -1;
}

pool *pool_new(int threads) {
  pool *p = aligned_alloc(64, (sizeof(pool) + 63) / 64 * 64);
  if (!p) return NULL;
  p->threads = 1;
  p->handles = calloc((size_t)threads, sizeof(pthread_t));
  atomic_init(&p->ending, 0);
  gate_init(&p->start);
  gate_init(&p->between);
  int failed = p->handles == NULL;
  for (int t = 1; t < threads && !failed; t++) {
    failed = start_helper(p, t) != 0;
    if (!failed) p->threads = t + 1;
  }
  if (!failed) return p;
  pool_free(p);
  return NULL;
}

void pool_free(pool *p) {
  if (!p) return;
  atomic_store(&p->ending, 1);
  gate_raise(&p->start);
  for (int t = 1; t < p->threads; t++) pthread_join(p->handles[t - 1], NULL);
  gate_destroy(&p->start);
  gate_destroy(&p->between);
  free(p->handles);
  free(p);
}

int pool_threads(const pool *p) { return p->threads; }

void pool_run(pool *p, pool_work work, void *argument) {
  p->work = work;
  p->argument = argument;
  if (p->threads > 1) gate_raise(&p->start);
  work(argument, 0);
  pool_barrier(p);
}
