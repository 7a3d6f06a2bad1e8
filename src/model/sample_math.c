/* Scan, exponentials, weighted selection. See sample_math.h. */
#include "model/sample_math.h"

#include <math.h>
#include <string.h>

#include "kernels/dispatch.h"
#include "kernels/targets.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8 };

typedef double v4 __attribute__((vector_size(32)));
typedef int64_t m4 __attribute__((vector_size(32)));

INLINE double lanes_sum(const double *s) {
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/*
 * Four tokens: e^d, or the e that is there, added to the lanes of s (e) and t (e * d). Vectors as the language extension has them, because compilers
 * turn a loop with these choices into branches for some instruction sets.
 * e^d for -708 < d <= 0 is 2^n times a polynomial on [-ln2/2, ln2/2]; adding 1.5 * 2^52 rounds to an integer; the first omitted term is below 1e-17.
 */
INLINE void four(const double *x, double max, double scale, bool fill, double *e, v4 *s, v4 *t) {
    static const double terms[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                                   1.0 / 5040.0,       1.0 / 720.0,       1.0 / 120.0,      1.0 / 24.0,      1.0 / 6.0,      0.5};
    v4 d, v;
    memcpy(&d, x, sizeof d);
    d = (d - max) * scale;
    m4 counts = d > -708.0; /* not -inf */
    d = (v4)(((m4)d & counts) | (~counts & (m4)(-708.0 + (v4){0})));
    if (fill) {
        v4 up = d * 1.4426950408889634 + 6755399441055744.0, n = up - 6755399441055744.0;
        v4 r = d - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10, p = terms[0] + (v4){0};
        for (size_t i = 1; i < sizeof terms / sizeof *terms; i++) p = p * r + terms[i];
        p = p * (r * r) + r + 1.0;
        m4 power = ((m4)up + 1023) << 52;
        v = (v4)((m4)(p * (v4)power) & counts);
        memcpy(e, &v, sizeof v);
    } else memcpy(&v, e, sizeof v);
    *s += v;
    *t += v * d;
}

/* One block of n <= US_SAMPLE_BLOCK. */
INLINE us_sample_sums block(const double *x, size_t n, double max, double scale, bool fill, double *e) {
    v4 s[2] = {{0}}, t[2] = {{0}};
    size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        four(x + i, max, scale, fill, e + i, &s[0], &t[0]);
        four(x + i + 4, max, scale, fill, e + i + 4, &s[1], &t[1]);
    }
    if (whole < n) {
        double px[LANES], pe[LANES] = {0};
        for (size_t i = 0; i < LANES; i++) px[i] = whole + i < n ? x[whole + i] : -HUGE_VAL;
        memcpy(pe, e + whole, (n - whole) * sizeof *e);
        four(px, max, scale, fill, pe, &s[0], &t[0]);
        four(px + 4, max, scale, fill, pe + 4, &s[1], &t[1]);
        memcpy(e + whole, pe, (n - whole) * sizeof *e);
    }
    double ls[LANES], lt[LANES];
    memcpy(ls, s, sizeof s);
    memcpy(lt, t, sizeof t);
    return (us_sample_sums){lanes_sum(ls), lanes_sum(lt)};
}

INLINE us_sample_sums sums(const double *x, size_t n, double max, double scale, bool fill, double *e, double *blocks) {
    us_sample_sums all = {0, 0};
    for (size_t i = 0; i < n; i += US_SAMPLE_BLOCK) {
        us_sample_sums one = block(x + i, n - i < US_SAMPLE_BLOCK ? n - i : US_SAMPLE_BLOCK, max, scale, fill, e + i);
        if (blocks) blocks[i / US_SAMPLE_BLOCK] = one.e;
        all.e += one.e;
        all.ed += one.ed;
    }
    return all;
}

INLINE bool scan(const double *x, size_t n, double *max) {
    double m[LANES];
    uint64_t bad[LANES] = {0};
    for (size_t j = 0; j < LANES; j++) m[j] = -HUGE_VAL;
    size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            double v = x[i + j];
            m[j] = v > m[j] ? v : m[j];
            bad[j] |= (uint64_t)(v != v);
        }
    for (size_t i = whole; i < n; i++) {
        m[0] = x[i] > m[0] ? x[i] : m[0];
        bad[0] |= (uint64_t)(x[i] != x[i]);
    }
    for (size_t j = 1; j < LANES; j++) {
        m[0] = m[j] > m[0] ? m[j] : m[0];
        bad[0] |= bad[j];
    }
    *max = m[0];
    return !bad[0] && m[0] < HUGE_VAL;
}

/* AVX-512 has no version of its own: twice the width gained a tenth of the time. */
static us_sample_sums sums_base(const double *x, size_t n, double max, double scale, bool fill, double *e, double *blocks) {
    return sums(x, n, max, scale, fill, e, blocks);
}
static bool scan_base(const double *x, size_t n, double *max) {
    return scan(x, n, max);
}
#if defined(__x86_64__)
US_TARGET_AVX2 static us_sample_sums sums_avx2(const double *x, size_t n, double max, double scale, bool fill, double *e, double *blocks) {
    return sums(x, n, max, scale, fill, e, blocks);
}
US_TARGET_AVX2 static bool scan_avx2(const double *x, size_t n, double *max) {
    return scan(x, n, max);
}
#endif

us_sample_sums us_sample_exp(const double *x, size_t n, double max, double scale, bool fill, double *e, double *blocks) {
#if defined(__x86_64__)
    if (us_isa_active() >= US_ISA_AVX2) return sums_avx2(x, n, max, scale, fill, e, blocks);
#endif
    return sums_base(x, n, max, scale, fill, e, blocks);
}

size_t us_sample_scan(const double *x, size_t n, double *max) {
    bool good;
#if defined(__x86_64__)
    good = us_isa_active() >= US_ISA_AVX2 ? scan_avx2(x, n, max) : scan_base(x, n, max);
#else
    good = scan_base(x, n, max);
#endif
    if (good) return n;
    for (size_t i = 0; i < n; i++)
        if (!(x[i] < HUGE_VAL)) return i;
    return n;
}

/* ---- selection ---- */

/* Ascending keys are descending numbers; both zeros have one key. */
static uint64_t key_of(double y) {
    uint64_t u;
    y += 0.0;
    memcpy(&u, &y, 8);
    return u >> 63 ? u : ~(u | UINT64_C(1) << 63);
}

static double number_of(uint64_t k) {
    uint64_t u = k >> 63 ? k : ~k & ~(UINT64_C(1) << 63);
    double y;
    memcpy(&y, &u, 8);
    return y;
}

/* The bucket where base + running sum reaches the target, adding what lies before it to *base; the last that is not empty when rounding hides it. */
static size_t crossing(const double *sum, const uint32_t *count, double target, double *base) {
    size_t last = 0;
    double at = *base, before = at;
    for (size_t b = 0; b < US_SAMPLE_BUCKETS; b++) {
        if (!count[b]) continue;
        last = b;
        before = at;
        at += sum[b];
        if (at >= target) break;
    }
    *base = before;
    return last;
}

static size_t bucket_of(double y, double max) {
    double d = (max - y) * 64.0; /* 1/64 of a nat; everything below e^-32 of the top shares the last */
    return d < US_SAMPLE_BUCKETS - 1 ? (size_t)d : US_SAMPLE_BUCKETS - 1;
}

static void sort_small(uint64_t *k, double *w, size_t n) {
    for (size_t i = 1; i < n; i++) {
        uint64_t a = k[i];
        double b = w[i];
        size_t j = i;
        for (; j > 0 && k[j - 1] > a; j--) {
            k[j] = k[j - 1];
            w[j] = w[j - 1];
        }
        k[j] = a;
        w[j] = b;
    }
}

/* Narrow keys[n] to the 11-bit digits of the one searched for, from the top, until few are left or all are equal. */
static size_t narrow(uint64_t *k, double *w, size_t n, double target, double *base) {
    static const int shifts[] = {53, 42, 31, 20, 9, 0};
    for (size_t s = 0; s < sizeof shifts / sizeof *shifts && n > 32; s++) {
        double sum[US_SAMPLE_BUCKETS] = {0};
        uint32_t count[US_SAMPLE_BUCKETS] = {0};
        for (size_t i = 0; i < n; i++) {
            size_t b = k[i] >> shifts[s] & (US_SAMPLE_BUCKETS - 1);
            sum[b] += w[i];
            count[b]++;
        }
        size_t at = crossing(sum, count, target, base), kept = 0;
        for (size_t i = 0; i < n; i++) {
            if ((k[i] >> shifts[s] & (US_SAMPLE_BUCKETS - 1)) != at) continue;
            k[kept] = k[i];
            w[kept++] = w[i];
        }
        n = kept;
    }
    return n;
}

bool us_sample_select(const double *y, const double *w, size_t n, double max, double target, uint64_t *keys, double *weights, us_sample_cut *out) {
    double sum[US_SAMPLE_BUCKETS] = {0}, base = 0, total = 0;
    uint32_t count[US_SAMPLE_BUCKETS] = {0};
    for (size_t i = 0; i < n; i++) {
        size_t b = bucket_of(y[i], max);
        sum[b] += w ? w[i] : 1.0;
        count[b]++;
    }
    for (size_t b = 0; b < US_SAMPLE_BUCKETS; b++) total += sum[b];
    if (n == 0 || !(total >= target)) return false;
    size_t at = crossing(sum, count, target, &base), m = 0;
    for (size_t i = 0; i < n; i++) {
        if (bucket_of(y[i], max) != at) continue;
        keys[m] = key_of(y[i]);
        weights[m++] = w ? w[i] : 1.0;
    }
    m = narrow(keys, weights, m, target, &base);
    if (m <= 32) sort_small(keys, weights, m);
    for (size_t i = 0, j; i < m; i = j) {
        double group = 0;
        for (j = i; j < m && keys[j] == keys[i]; j++) group += weights[j];
        *out = (us_sample_cut){number_of(keys[i]), base, j - i, weights[i]};
        if (base + group >= target) break;
        base += group;
    }
    return true;
}
