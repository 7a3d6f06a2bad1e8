/**
 * One thread pool per context. Work is a counted loop over fixed blocks: results must not depend on which thread took
 * which block, so a task function writes only to places that its index owns. Workers park on a condition variable.
 * Tests: tests/unit/test_base.c.
 */
#ifndef US_BASE_POOL_H
#define US_BASE_POOL_H

#include "understudy/us_status.h"

typedef struct us_pool us_pool;

/** n_threads 0 = as many as the process may run on (affinity and cgroup quota respected). The caller counts as one. */
us_status us_pool_create(int n_threads, us_pool **out, us_err *err) US_WARN_UNUSED;
void us_pool_free(us_pool *p);
/** Threads that work in parallel, the caller included; 1 for NULL. */
int us_pool_threads(const us_pool *p);
/**
 * Call fn(arg, i, thread) for i = 0 .. n-1, each once; returns when all are done. `thread` is 0 .. threads-1 and may be
 * used to pick scratch space only. p may be NULL (runs in the caller). Not reentrant: fn must not call us_pool_run on
 * the same pool.
 */
void us_pool_run(us_pool *p, void (*fn)(void *arg, int64_t i, int thread), void *arg, int64_t n);
/** Processors this process may use. */
int us_cpu_count(void);

#endif
