/* What this machine can do at most: fused multiply-adds from registers, and memory. The yardstick of every rate that is
 * reported. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "bench.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ACCUMULATORS = 16, STEPS = 20000, TRIES = 20 };

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

static double fma_peak(void) {
    double (*f)(float, float, float *) = fma_plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        f = fma_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        f = fma_avx2;
#endif
    volatile float a = 0.999f, b = 0.001f;
    float out[16];
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        double t = now(), work = f(a, b, out);
        t = now() - t;
        bench_keep(out);
        if (t > 0 && work / t > best) best = work / t;
    }
    return best;
}

typedef uint64_t words __attribute__((vector_size(16)));

/* Sums in eight independent vectors, so that the additions are no limit. */
void bench_read(const void *p, size_t bytes) {
    const words *x = p;
    words s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    for (size_t k = 0; k < bytes / sizeof *x; k += 8) {
        s0 += x[k], s1 += x[k + 1], s2 += x[k + 2], s3 += x[k + 3];
        s4 += x[k + 4], s5 += x[k + 5], s6 += x[k + 6], s7 += x[k + 7];
    }
    s0 += s1 + s2 + s3 + s4 + s5 + s6 + s7;
    bench_keep(&s0);
}

bench_peaks bench_measure_peaks(void) {
    enum { BYTES = 256 << 20 };
    bench_peaks p = {fma_peak(), 1, 1};
    uint64_t *x = us_malloc_aligned(BYTES), *y = us_malloc_aligned(BYTES);
    if (x && y) {
        memset(x, 1, BYTES);
        memset(y, 2, BYTES);
        for (int i = 0; i < 3; i++) {
            double t = now();
            memcpy(y, x, BYTES);
            bench_keep(y);
            t = now() - t;
            if (2.0 * BYTES / t > p.copy_bytes) p.copy_bytes = 2.0 * BYTES / t;
            t = now();
            bench_read(x, BYTES);
            t = now() - t;
            if (BYTES / t > p.read_bytes) p.read_bytes = BYTES / t;
        }
    }
    us_free(x);
    us_free(y);
    return p;
}
