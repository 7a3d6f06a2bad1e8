/* See peaks.h. */
#define _POSIX_C_SOURCE 200809L
#include "kernels/peaks.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ACCUMULATORS = 16, STEPS = 20000, TRIES = 20, THREADS_MAX = 256 };

/* The compiler must not drop what nobody reads. */
static void keep(const void *p) {
    __asm__ volatile("" : : "r"(p) : "memory");
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each runs STEPS times ACCUMULATORS independent multiply-adds and returns the operations done. */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static double fma_avx512(float a, float b, float *out) {
    __m512 x[ACCUMULATORS], va = _mm512_set1_ps(a), vb = _mm512_set1_ps(b);
    for (int i = 0; i < ACCUMULATORS; i++) x[i] = _mm512_set1_ps((float)i);
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < ACCUMULATORS; i++) x[i] = _mm512_fmadd_ps(x[i], va, vb);
    for (int i = 1; i < ACCUMULATORS; i++) x[0] = _mm512_add_ps(x[0], x[i]);
    _mm512_storeu_ps(out, x[0]);
    return 2.0 * 16 * ACCUMULATORS * STEPS;
}

__attribute__((target("avx2,fma"))) static double fma_avx2(float a, float b, float *out) {
    __m256 x[12], va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b); /* 12: 16 registers, two for the constants */
    for (int i = 0; i < 12; i++) x[i] = _mm256_set1_ps((float)i);
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < 12; i++) x[i] = _mm256_fmadd_ps(x[i], va, vb);
    for (int i = 1; i < 12; i++) x[0] = _mm256_add_ps(x[0], x[i]);
    _mm256_storeu_ps(out, x[0]);
    return 2.0 * 8 * 12 * STEPS;
}
#endif

static double fma_plain(float a, float b, float *out) {
    float x[ACCUMULATORS][4];
    for (int i = 0; i < ACCUMULATORS; i++)
        for (int k = 0; k < 4; k++) x[i][k] = (float)i;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < ACCUMULATORS; i++)
            for (int k = 0; k < 4; k++) x[i][k] = x[i][k] * a + b;
    out[0] = 0;
    for (int i = 0; i < ACCUMULATORS; i++) out[0] += x[i][0] + x[i][1] + x[i][2] + x[i][3];
    return 2.0 * 4 * ACCUMULATORS * STEPS;
}

typedef double fma_fn(float a, float b, float *out);

static fma_fn *fma_of_machine(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return fma_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fma_avx2;
#endif
    return fma_plain;
}

typedef struct shares {
    fma_fn *fma;
    char *from, *to;
    size_t bytes; /* of one thread's share */
    double work[THREADS_MAX];
} shares;

static void multiply(void *arg, int64_t i, int thread) {
    (void)thread;
    shares *s = arg;
    volatile float a = 0.999f, b = 0.001f;
    float out[16];
    s->work[i] = s->fma(a, b, out);
    keep(out);
}

static void copy_share(void *arg, int64_t i, int thread) {
    (void)thread;
    const shares *s = arg;
    memcpy(s->to + (size_t)i * s->bytes, s->from + (size_t)i * s->bytes, s->bytes);
    keep(s->to);
}

static void read_share(void *arg, int64_t i, int thread) {
    (void)thread;
    const shares *s = arg;
    us_peaks_read(s->from + (size_t)i * s->bytes, s->bytes);
}

static double seconds_of(us_pool *pool, void (*fn)(void *arg, int64_t i, int thread), shares *s, int n) {
    double t = now();
    us_pool_run(pool, fn, s, n);
    return now() - t;
}

typedef uint64_t words __attribute__((vector_size(16)));

/* Sums in eight independent vectors, so that the additions are no limit. */
void us_peaks_read(const void *p, size_t bytes) {
    const words *x = p;
    words s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    for (size_t k = 0; k < bytes / sizeof *x; k += 8) {
        s0 += x[k], s1 += x[k + 1], s2 += x[k + 2], s3 += x[k + 3];
        s4 += x[k + 4], s5 += x[k + 5], s6 += x[k + 6], s7 += x[k + 7];
    }
    s0 += s1 + s2 + s3 + s4 + s5 + s6 + s7;
    keep(&s0);
}

us_peaks us_peaks_measure(us_pool *pool) {
    enum { BYTES = 256 << 20 };
    int n = us_pool_threads(pool) < THREADS_MAX ? us_pool_threads(pool) : THREADS_MAX;
    us_peaks p = {0};
    shares s = {.fma = fma_of_machine(), .from = us_malloc_aligned(BYTES), .to = us_malloc_aligned(BYTES), .bytes = (size_t)BYTES / (size_t)n / 4096 * 4096};
    for (int i = 0; i < TRIES; i++) {
        double t = seconds_of(pool, multiply, &s, n), work = 0;
        for (int k = 0; k < n; k++) work += s.work[k];
        if (t > 0 && work / t > p.f32_flops) p.f32_flops = work / t;
    }
    if (s.from && s.to) {
        memset(s.from, 1, BYTES);
        memset(s.to, 2, BYTES);
        for (int i = 0; i < 3; i++) {
            double all = (double)s.bytes * n, copied = 2 * all / seconds_of(pool, copy_share, &s, n), taken = all / seconds_of(pool, read_share, &s, n);
            if (copied > p.copy_bytes) p.copy_bytes = copied;
            if (taken > p.read_bytes) p.read_bytes = taken;
        }
    }
    us_free(s.from);
    us_free(s.to);
    return p;
}
