/* Resident threads that run one function together and sleep between calls. */
#ifndef TL_THREADS_H
#define TL_THREADS_H

typedef struct pool pool;
typedef void (*pool_work)(void *argument, int thread);

/* Start threads - 1 helpers; the caller of pool_run is thread 0. NULL if a thread cannot be made. */
pool *pool_new(int threads);
void pool_free(pool *p);
int pool_threads(const pool *p);

/* Call work(argument, t) on every thread t at once; returns when all have returned. */
void pool_run(pool *p, pool_work work, void *argument);

/* Inside work: wait until every thread is here. What each wrote before, all see after. */
void pool_barrier(pool *p);

#endif
