/*
 * Thread pool: workers take loop indices from an atomic counter. Between runs they spin for a moment - a forward pass starts a run every few
 * microseconds, waking a sleeper takes tens of them - and then sleep on a condition variable.
 *
 * A run is open from its publication until the caller has no index left. Workers enter only while it is open, so one that wakes late is never waited
 * for. `state` holds the generation (upper bits), the number of workers inside (bits 1 to 15) and the open bit.
 */
#define _GNU_SOURCE
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/alloc.h"

enum { OPEN = 1, ONE_INSIDE = 2, INSIDE_MASK = 0xfffe, GENERATION = 1 << 16, SPINS = 2000 };

struct us_pool {
    int n_threads, n_started;
    bool spin; /* no more threads than processors */
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_int sleepers;
    atomic_bool stop, caller_sleeps;
    atomic_uint_fast64_t state;
    void (*fn)(void *, int64_t, int);
    void *arg;
    int64_t n;
    atomic_int_fast64_t next;
};

typedef struct worker_arg {
    us_pool *pool;
    int thread;
} worker_arg;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void work(us_pool *p, int thread) {
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) return;
        p->fn(p->arg, i, thread);
    }
}

/* Is there a run that this worker has not been in? */
static bool fresh(us_pool *p, uint64_t seen, uint64_t *state) {
    *state = atomic_load(&p->state);
    return (*state & OPEN) && *state / GENERATION != seen;
}

/* Wait for a run or for the end; false: the end. */
static bool wait_for_run(us_pool *p, uint64_t seen, uint64_t *state) {
    for (int i = 0; p->spin && i < SPINS; i++) {
        if (fresh(p, seen, state)) return true;
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return false;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!atomic_load(&p->stop) && !fresh(p, seen, state)) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
    return !atomic_load(&p->stop);
}

static void *worker(void *opaque) {
    worker_arg w = *(worker_arg *)opaque;
    us_free(opaque);
    us_pool *p = w.pool;
    uint64_t seen = 0, state;
    while (wait_for_run(p, seen, &state)) {
        if (!atomic_compare_exchange_strong(&p->state, &state, state + ONE_INSIDE)) continue;
        seen = state / GENERATION;
        work(p, w.thread);
        state = atomic_fetch_sub(&p->state, ONE_INSIDE) - ONE_INSIDE;
        if ((state & INSIDE_MASK) == 0 && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
    return NULL;
}

/* Close the run and wait for the workers inside. */
static void close_run(us_pool *p) {
    atomic_fetch_and(&p->state, ~(uint64_t)OPEN);
    for (int i = 0; i < SPINS; i++) {
        if (!(atomic_load(&p->state) & INSIDE_MASK)) return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->state) & INSIDE_MASK) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->lock);
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
    p->spin = p->n_threads <= us_cpu_count();
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
    atomic_store(&p->stop, true);
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
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store(&p->next, 0);
    atomic_store(&p->state, (atomic_load(&p->state) / GENERATION + 1) * GENERATION | OPEN);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    work(p, 0);
    close_run(p);
}
