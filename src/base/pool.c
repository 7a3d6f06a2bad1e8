/* Thread pool: workers sleep on a condition variable and take loop indices from an atomic counter. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/alloc.h"

struct us_pool {
    int n_threads, n_started;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    uint64_t generation; /* grows by one a run */
    int working;         /* workers still inside the current run */
    bool stop;
    void (*fn)(void *, int64_t, int);
    void *arg;
    int64_t n;
    atomic_int_fast64_t next;
};

typedef struct worker_arg {
    us_pool *pool;
    int thread;
} worker_arg;

static void work(us_pool *p, int thread) {
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) return;
        p->fn(p->arg, i, thread);
    }
}

static void *worker(void *opaque) {
    worker_arg w = *(worker_arg *)opaque;
    us_free(opaque);
    us_pool *p = w.pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->generation == seen) pthread_cond_wait(&p->wake, &p->lock);
        if (p->stop) break;
        seen = p->generation;
        pthread_mutex_unlock(&p->lock);
        work(p, w.thread);
        pthread_mutex_lock(&p->lock);
        if (--p->working == 0) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* CPU quota of the control group in whole processors, or 0 when there is none. */
static int cgroup_quota(void) {
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!f) return 0;
    long long quota = 0, period = 0;
    int got = fscanf(f, "%lld %lld", &quota, &period);
    fclose(f);
    if (got != 2 || quota <= 0 || period <= 0) return 0;
    long long cpus = (quota + period - 1) / period;
    return cpus > 4096 ? 4096 : (int)cpus;
}

int us_cpu_count(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = cgroup_quota();
    if (quota > 0 && quota < n) n = quota;
    return n < 1 ? 1 : n;
}

us_status us_pool_create(int n_threads, us_pool **out, us_err *err) {
    if (n_threads < 0 || n_threads > 4096)
        return us_fail(err, US_E_INVAL, "threads", "%d threads is not 0 to 4096", n_threads);
    us_pool *p = us_calloc(1, sizeof *p);
    if (!p) return us_fail_nomem(err, "creating the thread pool");
    p->n_threads = n_threads ? n_threads : us_cpu_count();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->threads = us_calloc((size_t)p->n_threads, sizeof *p->threads);
    if (!p->threads) {
        us_pool_free(p);
        return us_fail_nomem(err, "creating the thread pool");
    }
    for (int i = 1; i < p->n_threads; i++) {
        worker_arg *w = us_malloc(sizeof *w);
        if (w) *w = (worker_arg){p, i};
        int sys = w ? pthread_create(&p->threads[i - 1], NULL, worker, w) : 0;
        if (!w || sys) {
            us_free(w);
            us_pool_free(p);
            return w ? us_fail_sys(err, sys, "threads", "cannot start thread %d", i)
                     : us_fail_nomem(err, "starting threads");
        }
        p->n_started++;
    }
    *out = p;
    return US_OK;
}

void us_pool_free(us_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    us_free(p->threads);
    us_free(p);
}

int us_pool_threads(const us_pool *p) {
    return p ? p->n_threads : 1;
}

void us_pool_run(us_pool *p, void (*fn)(void *, int64_t, int), void *arg, int64_t n) {
    if (!p || p->n_started == 0 || n <= 1) {
        for (int64_t i = 0; i < n; i++) fn(arg, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store(&p->next, 0);
    p->working = p->n_started;
    p->generation++;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    work(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->working > 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
