/* The small f32 operators. One text, compiled for three instruction sets; contraction is off in this file, so they agree bit for bit. See ops.h. */
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

#include "kernels/dispatch.h"
#include "kernels/exp.h"
#include "kernels/gemm.h"
#include "kernels/targets.h"

#define INLINE static inline __attribute__((always_inline))
#define PLAIN_INF __builtin_inff()

/* Outputs may be inputs: element i of the one is element i of the other, so the loop may be taken in any width. */
#if defined(__clang__)
#define ANY_WIDTH _Pragma("clang loop vectorize(assume_safety)")
#else
#define ANY_WIDTH _Pragma("GCC ivdep")
#endif

/* text_NAME becomes us_NAME with the instruction set chosen at run time. */
#if defined(__x86_64__)
#define OPERATOR(name, params, args)                                                                                                                  \
    static void name##_base params {                                                                                                                  \
        text_##name args;                                                                                                                             \
    }                                                                                                                                                 \
    US_TARGET_AVX2 static void name##_avx2 params {                                                                                                   \
        text_##name args;                                                                                                                             \
    }                                                                                                                                                 \
    US_TARGET_AVX512 static void name##_avx512 params {                                                                                               \
        text_##name args;                                                                                                                             \
    }                                                                                                                                                 \
    void us_##name params {                                                                                                                           \
        switch (us_isa_active()) {                                                                                                                    \
        case US_ISA_AVX512: name##_avx512 args; break;                                                                                                \
        case US_ISA_AVX2: name##_avx2 args; break;                                                                                                    \
        default: name##_base args; break;                                                                                                             \
        }                                                                                                                                             \
    }
#else
#define OPERATOR(name, params, args)                                                                                                                  \
    void us_##name params {                                                                                                                           \
        text_##name args;                                                                                                                             \
    }
#endif

/* ---- row sums ---- */

typedef double v4d __attribute__((vector_size(32)));
typedef float v4f __attribute__((vector_size(16)));

INLINE double tree(double s[US_OPS_LANES]) {
    for (size_t half = US_OPS_LANES / 2; half; half /= 2)
        for (size_t l = 0; l < half; l++) s[l] += s[l + half];
    return s[0];
}

/* The sum over a row of x, or of (x - mean)^2. */
INLINE double row_sum(const float *x, size_t n, bool square, double mean) {
    v4d a[4] = {{0}};
    double s[US_OPS_LANES];
    size_t i = 0;
    for (; i + US_OPS_LANES <= n; i += US_OPS_LANES) {
        for (size_t l = 0; l < 4; l++) {
            v4f f;
            memcpy(&f, x + i + 4 * l, sizeof f);
            v4d v = __builtin_convertvector(f, v4d) - mean;
            a[l] += square ? v * v : v;
        }
    }
    memcpy(s, a, sizeof s);
    for (; i < n; i++) {
        double v = (double)x[i] - mean;
        s[i % US_OPS_LANES] += square ? v * v : v;
    }
    return tree(s);
}

/* ---- norms ---- */

INLINE void text_rmsnorm(const float *x, size_t ldx, const float *w, float plus, float eps, size_t rows, size_t n, float *y, size_t ldy) {
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        double f = 1.0 / sqrt(row_sum(x, n, true, 0) / (double)n + (double)eps);
        if (w) {
            ANY_WIDTH for (size_t i = 0; i < n; i++) y[i] = (float)((double)x[i] * f) * (plus + w[i]);
        } else {
            ANY_WIDTH for (size_t i = 0; i < n; i++) y[i] = (float)((double)x[i] * f);
        }
    }
}
OPERATOR(rmsnorm, (const float *x, size_t ldx, const float *w, float plus, float eps, size_t rows, size_t n, float *y, size_t ldy),
         (x, ldx, w, plus, eps, rows, n, y, ldy))

INLINE void text_layernorm(const float *x, size_t ldx, const float *w, const float *b, float eps, size_t rows, size_t n, float *y, size_t ldy) {
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        double mean = row_sum(x, n, false, 0) / (double)n;
        double f = 1.0 / sqrt(row_sum(x, n, true, mean) / (double)n + (double)eps);
        if (b) {
            ANY_WIDTH for (size_t i = 0; i < n; i++) y[i] = (float)(((double)x[i] - mean) * f) * w[i] + b[i];
        } else {
            ANY_WIDTH for (size_t i = 0; i < n; i++) y[i] = (float)(((double)x[i] - mean) * f) * w[i];
        }
    }
}
OPERATOR(layernorm, (const float *x, size_t ldx, const float *w, const float *b, float eps, size_t rows, size_t n, float *y, size_t ldy),
         (x, ldx, w, b, eps, rows, n, y, ldy))

INLINE void text_l2norm(float *x, size_t ldx, float eps, size_t rows, size_t n) {
    for (size_t r = 0; r < rows; r++, x += ldx) {
        double f = 1.0 / sqrt(row_sum(x, n, true, 0) + (double)eps);
        ANY_WIDTH for (size_t i = 0; i < n; i++) x[i] = (float)((double)x[i] * f);
    }
}
OPERATOR(l2norm, (float *x, size_t ldx, float eps, size_t rows, size_t n), (x, ldx, eps, rows, n))

INLINE void text_softmax(float *x, size_t n) {
    float top[US_OPS_LANES];
    for (size_t l = 0; l < US_OPS_LANES; l++) top[l] = -PLAIN_INF;
    size_t i = 0;
    for (; i + US_OPS_LANES <= n; i += US_OPS_LANES)
        for (size_t l = 0; l < US_OPS_LANES; l++) top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
    for (; i < n; i++) top[0] = x[i] > top[0] ? x[i] : top[0];
    for (size_t l = 1; l < US_OPS_LANES; l++) top[0] = top[l] > top[0] ? top[l] : top[0]; /* a maximum has no order */
    float max = top[0] > -PLAIN_INF ? top[0] : 0.0f;
    for (i = 0; i < n; i++) x[i] = us__exp_below(x[i] - max);
    float sum = (float)row_sum(x, n, false, 0);
    if (sum == 0.0f) return;
    for (i = 0; i < n; i++) x[i] = x[i] / sum;
}
OPERATOR(softmax, (float *x, size_t n), (x, n))

/* ---- rotary ---- */

INLINE void text_rotary(float *x, size_t ldx, size_t rows, size_t heads, size_t width, size_t from, size_t dims, const float *cos, const float *sin, bool pair,
                        float sign) {
    size_t half = dims / 2;
    for (size_t r = 0; r < rows; r++, x += ldx, cos += half, sin += half) {
        for (size_t h = 0; h < heads; h++) {
            float *a = x + h * width + from, *b = a + half;
            if (pair) {
                ANY_WIDTH for (size_t i = 0; i < half; i++) {
                    float u = a[2 * i], v = a[2 * i + 1], s = sin[i] * sign;
                    a[2 * i] = u * cos[i] - v * s;
                    a[2 * i + 1] = v * cos[i] + u * s;
                }
            } else {
                ANY_WIDTH for (size_t i = 0; i < half; i++) {
                    float u = a[i], v = b[i], s = sin[i] * sign;
                    a[i] = u * cos[i] - v * s;
                    b[i] = v * cos[i] + u * s;
                }
            }
        }
    }
}
OPERATOR(rotary,
         (float *x, size_t ldx, size_t rows, size_t heads, size_t width, size_t from, size_t dims, const float *cos, const float *sin, bool pair, float sign),
         (x, ldx, rows, heads, width, from, dims, cos, sin, pair, sign))

/* ---- elementwise ---- */

INLINE void text_round_bf16(const float *x, size_t n, float *y) {
    ANY_WIDTH for (size_t i = 0; i < n; i++) {
        uint32_t w, magnitude, r;
        memcpy(&w, x + i, 4);
        magnitude = w & 0x7fffffffu;
        r = (w + 0x7fffu + (w >> 16 & 1)) & 0xffff0000u;
        r = magnitude > 0x7f800000u ? (w & 0xffff0000u) | 0x00400000u : r; /* NaN: quiet, sign and upper payload kept */
        memcpy(y + i, &r, 4);
    }
}
OPERATOR(round_bf16, (const float *x, size_t n, float *y), (x, n, y))

INLINE float sigmoid(float x) {
    float s = 1.0f / (1.0f + us__exp(-x));
    return x < -87.0f ? 0.0f : s;
}

INLINE void text_sigmoid(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = sigmoid(x[i]);
}
OPERATOR(sigmoid, (float *x, size_t n), (x, n))

INLINE void text_silu(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = x[i] * sigmoid(x[i]);
}
OPERATOR(silu, (float *x, size_t n), (x, n))

/* log(1 + t), 0 <= t <= 1: with s = t / (2 + t) <= 1/3 the first term left out is below 1e-12 of the result. */
INLINE double log1p_series(double t) {
    double s = t / (2.0 + t), q = s * s, p = 1.0 / 23;
    p = p * q + 1.0 / 21;
    p = p * q + 1.0 / 19;
    p = p * q + 1.0 / 17;
    p = p * q + 1.0 / 15;
    p = p * q + 1.0 / 13;
    p = p * q + 1.0 / 11;
    p = p * q + 1.0 / 9;
    p = p * q + 1.0 / 7;
    p = p * q + 1.0 / 5;
    p = p * q + 1.0 / 3;
    p = p * q + 1.0;
    return 2.0 * s * p;
}

INLINE void text_softplus(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float v = x[i], below = v > 0.0f ? -v : v, above = v > 0.0f ? v : 0.0f;
        x[i] = (float)((double)above + log1p_series((double)us__exp_below(below)));
    }
}
OPERATOR(softplus, (float *x, size_t n), (x, n))

/* ---- axpy ---- */

/* Where the compiler has a fused multiply-add to use: arm64, or inside the functions with target attributes. */
INLINE void axpy_fused(float a, const float *x, size_t n, float *y) {
    ANY_WIDTH for (size_t i = 0; i < n; i++) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

#if defined(__x86_64__)
US_TARGET_AVX2 static void axpy_avx2(float a, const float *x, size_t n, float *y) {
    axpy_fused(a, x, n, y);
}
US_TARGET_AVX512 static void axpy_avx512(float a, const float *x, size_t n, float *y) {
    axpy_fused(a, x, n, y);
}
#endif

/* Else a row of the portable matrix product, one step deep: its multiply-add is exact on any processor. */
static void axpy_portable(float a, const float *x, size_t n, float *y) {
    size_t i = 0;
    for (; i + US_GEMM_LANES <= n; i += US_GEMM_LANES) us__gemm_tile_vec_f32(1, &a, 1, 1, x + i, y + i, US_GEMM_LANES, false);
    if (i == n) return;
    float lanes[US_GEMM_LANES] = {0}, c[US_GEMM_LANES] = {0};
    memcpy(lanes, x + i, (n - i) * sizeof *x);
    memcpy(c, y + i, (n - i) * sizeof *y);
    us__gemm_tile_vec_f32(1, &a, 1, 1, lanes, c, US_GEMM_LANES, false);
    memcpy(y + i, c, (n - i) * sizeof *y);
}

void us_axpy(float a, const float *x, size_t n, float *y) {
    switch (us_isa_active()) {
#if defined(__x86_64__)
    case US_ISA_AVX512: axpy_avx512(a, x, n, y); return;
    case US_ISA_AVX2: axpy_avx2(a, x, n, y); return;
#endif
    case US_ISA_REF: axpy_fused(a, x, n, y); return;
    default: axpy_portable(a, x, n, y); return;
    }
}
