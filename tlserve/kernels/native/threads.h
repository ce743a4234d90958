/* Resident threads that run one function together and sleep between calls, and the phases in it. */
#ifndef TL_THREADS_H
#define TL_THREADS_H

#include <stdatomic.h>

typedef struct pool pool;
typedef void (*pool_work)(void *argument, int thread);

/* Start threads - 1 helpers; the caller of pool_run is thread 0. NULL if a thread cannot be made. */
pool *pool_new(int threads);
void pool_free(pool *p);
int pool_threads(const pool *p);

/* Call work(argument, 0) here and work(argument, t) on every helper t that wakes up in time; returns when no helper is in it.
   The work is complete when any one thread has returned from it, so no thread waits for a helper that has no processor. */
void pool_run(pool *p, pool_work work, void *argument);

/* A phase: units 0 .. total - 1, each done by the thread that takes it. Zero before the step. */
typedef struct {
  _Alignas(64) atomic_long next;
  _Alignas(64) atomic_long done;
} phase;

/* Take the next few units [*first, *end); 0 when none are left. */
int phase_take(pool *p, phase *f, long total, long *first, long *end);
/* Count `units` of those taken as done. */
void phase_finish(pool *p, phase *f, long total, long units);
/* Wait until all units are done, by any thread. The memory that they wrote can then be read. */
void phase_wait(pool *p, phase *f, long total);

#endif
