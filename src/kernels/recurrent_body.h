/**
 * The text of the inner kernels, see recurrent_kernels.h. The file that includes it has defined
 *     W, vf            lanes, and the vector of W floats (float itself for W = 1); + - * / work on it
 *     TARGET, TABLE    function attribute, name of the table
 *     NV               vectors of columns that the delta rule keeps in registers
 *     v_set1, v_load, v_store, v_loadn, v_storen (n < W lanes, the rest 0), v_fma(a, b, c) = a * b + c rounded once, v_max(c, x), v_min(c, x) (x when it is NaN),
 *     v_pow2 (see v_exp), v_not_below(x, limit, r) = x < limit ? 0 : r
 */
#ifndef US_KERNELS_RECURRENT_BODY_H
#define US_KERNELS_RECURRENT_BODY_H

#include <string.h>

#include "kernels/recurrent_kernels.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

enum { PARTS = US_REC_FOLD / W };

/* The exponential of glu.c, operation by operation. */
INLINE vf v_exp(vf x) {
    x = v_min(v_set1(87.0f), x);
    x = v_max(v_set1(-87.0f), x);
    vf t = x * v_set1(1.44269504f) + v_set1(12582912.0f); /* adding 1.5 * 2^23 rounds to an integer */
    vf n = t - v_set1(12582912.0f);
    vf r = x - n * v_set1(0.693359375f);
    r = r - n * v_set1(-2.12194440e-4f);
    vf p = v_set1(1.3888889e-3f);
    p = p * r + v_set1(8.3333333e-3f);
    p = p * r + v_set1(4.1666667e-2f);
    p = p * r + v_set1(1.6666667e-1f);
    p = p * r + v_set1(0.5f);
    p = p * r * r + r;
    p = p + v_set1(1.0f);
    return p * v_pow2(t);
}

INLINE vf v_some(const float *p, size_t n) {
    return n >= W ? v_load(p) : v_loadn(p, n);
}

INLINE void v_put(float *p, vf v, size_t n) {
    if (n >= W) v_store(p, v);
    else v_storen(p, v, n);
}

/* Adds the sixteen chains of a sum. */
INLINE float fold(const vf acc[PARTS]) {
    float p[US_REC_FOLD];
    for (size_t u = 0; u < PARTS; u++) v_store(p + u * W, acc[u]);
    for (size_t half = US_REC_FOLD / 2; half; half /= 2)
        for (size_t l = 0; l < half; l++) p[l] = p[l] + p[l + half];
    return p[0];
}

TARGET static void rec_decay(const float *x, float scale, size_t n, float *out) {
    for (size_t i = 0; i < n; i += W) {
        vf v = v_some(x + i, n - i) * v_set1(scale);
        v_put(out + i, v_not_below(v, -87.0f, v_exp(v)), n - i);
    }
}

TARGET static void rec_product(const float *x, const float *y, size_t n, float *out) {
    for (size_t i = 0; i < n; i += W) v_put(out + i, v_some(x + i, n - i) * v_some(y + i, n - i), n - i);
}

TARGET static float rec_dot(const float *x, const float *y, size_t n) {
    vf acc[PARTS];
    for (size_t u = 0; u < PARTS; u++) acc[u] = v_set1(0.0f);
    for (size_t i = 0; i < n; i += US_REC_FOLD)
        for (size_t u = 0; u < PARTS && i + u * W < n; u++) {
            size_t at = i + u * W;
            acc[u] = v_fma(v_some(x + at, n - at), v_some(y + at, n - at), acc[u]);
        }
    return fold(acc);
}

/* ---- short convolution ---- */

enum { CONV_CHANNELS = 256, CONV_TAPS = 8 }; /* a block whose transposed taps and rows of x stay in L1 */

INLINE vf conv_tap(const float *w, size_t K, size_t lanes) {
    float p[W];
    for (size_t l = 0; l < W; l++) p[l] = l < lanes ? w[l * K] : 0.0f;
    return v_load(p);
}

TARGET static void rec_conv(const float *x, size_t ldx, const float *w, const float *bias, size_t n, size_t C, size_t K, bool silu, const float *tail, size_t ldt,
                            float *y, size_t ldy) {
    float taps[CONV_TAPS * CONV_CHANNELS];
    for (size_t c0 = 0; c0 < C; c0 += CONV_CHANNELS) {
        size_t width = C - c0 < CONV_CHANNELS ? C - c0 : CONV_CHANNELS;
        for (size_t i = 0; i < K && K <= CONV_TAPS; i++)
            for (size_t c = 0; c < width; c++) taps[i * CONV_CHANNELS + c] = w[(c0 + c) * K + i];
        for (size_t t = 0; t < n; t++)
            for (size_t c = 0; c < width; c += W) {
                size_t lanes = width - c, at = c0 + c;
                vf s = bias ? v_some(bias + at, lanes) : v_set1(0.0f);
                for (size_t i = 0; i < K; i++) {
                    const float *row = t + i + 1 < K ? tail + (t + i) * ldt + at : x + (t + i + 1 - K) * ldx + at;
                    vf tap = K <= CONV_TAPS ? v_some(taps + i * CONV_CHANNELS + c, lanes) : conv_tap(w + at * K + i, K, lanes);
                    s = v_fma(tap, v_some(row, lanes), s);
                }
                if (silu) s = s / (v_set1(1.0f) + v_exp(v_set1(0.0f) - s));
                v_put(y + t * ldy + at, s, lanes);
            }
    }
}

/* ---- delta rule, serial ---- */

/*
 * nv vectors of columns from column j on; lanes < W: the last vector is cut there. The state is read once before the first token, and then once a token:
 * while a row is updated, the new row is used for the sums of the next token.
 */
INLINE void delta_columns(size_t n, size_t dk, const us_rec_rows *r, float *S, size_t lds, size_t j, const int nv, const size_t lanes) {
    vf seen[NV], read[NV], delta[NV];
    for (int c = 0; c < nv; c++) seen[c] = read[c] = v_set1(0.0f);
    for (size_t i = 0; i < dk; i++) {
        vf ak = v_set1(r->ak[i]), aq = v_set1(r->aq[i]);
        for (int c = 0; c < nv; c++) {
            vf s = v_some(S + i * lds + (size_t)c * W, lanes);
            seen[c] = v_fma(ak, s, seen[c]);
            read[c] = v_fma(aq, s, read[c]);
        }
    }
    for (size_t t = 0; t < n; t++) {
        const float *k = r->k + t * r->ldk, *a = r->a + t * dk, *ak = r->ak + (t + 1) * dk, *aq = r->aq + (t + 1) * dk;
        vf beta = v_set1(r->beta[t * r->ldbeta]), kq = v_set1(r->kq[t]);
        for (int c = 0; c < nv; c++) {
            size_t at = j + (size_t)c * W;
            delta[c] = beta * (v_some(r->v + t * r->ldv + at, lanes) - seen[c]);
            v_put(r->out + t * r->ldo + at, v_fma(kq, delta[c], read[c]), lanes);
            seen[c] = read[c] = v_set1(0.0f);
        }
        if (t + 1 == n) {
            for (size_t i = 0; i < dk; i++)
                for (int c = 0; c < nv; c++) {
                    float *s = S + i * lds + (size_t)c * W;
                    v_put(s, v_fma(v_set1(k[i]), delta[c], v_set1(a[i]) * v_some(s, lanes)), lanes);
                }
            return;
        }
        for (size_t i = 0; i < dk; i++) {
            vf ki = v_set1(k[i]), ai = v_set1(a[i]), aki = v_set1(ak[i]), aqi = v_set1(aq[i]);
            for (int c = 0; c < nv; c++) {
                float *p = S + i * lds + (size_t)c * W;
                vf s = v_fma(ki, delta[c], ai * v_some(p, lanes));
                v_put(p, s, lanes);
                seen[c] = v_fma(aki, s, seen[c]);
                read[c] = v_fma(aqi, s, read[c]);
            }
        }
    }
}

TARGET static void rec_delta(size_t n, size_t dk, size_t dv, const us_rec_rows *r, float *S) {
    if (!n) return;
    size_t j = 0;
    for (; j + NV * W <= dv; j += NV * W) delta_columns(n, dk, r, S + j, dv, j, NV, W);
    for (; j + W <= dv; j += W) delta_columns(n, dk, r, S + j, dv, j, 1, W);
    if (j < dv) delta_columns(n, dk, r, S + j, dv, j, 1, dv - j);
}

/* ---- Mamba-2, serial ---- */

TARGET static void rec_mamba(size_t n, size_t P, size_t N, const us_mamba2_seq *s, size_t head, size_t group, size_t heads, float D, const float *decay,
                             float *S) {
    for (size_t p = 0; p < P; p++)
        for (size_t t = 0; t < n; t++) {
            float x = s->x[t * s->ldx + head * P + p], *h = S + p * N;
            const float *B = s->B + t * s->ldbc + group * N, *C = s->C + t * s->ldbc + group * N;
            vf dx = v_set1(s->dt[t * heads + head] * x), keep = v_set1(decay[t]), acc[PARTS];
            for (size_t u = 0; u < PARTS; u++) acc[u] = v_set1(0.0f);
            for (size_t i = 0; i < N; i += US_REC_FOLD)
                for (size_t u = 0; u < PARTS && i + u * W < N; u++) {
                    size_t at = i + u * W, lanes = N - at;
                    vf v = v_fma(v_some(B + at, lanes), dx, keep * v_some(h + at, lanes));
                    v_put(h + at, v, lanes);
                    acc[u] = v_fma(v_some(C + at, lanes), v, acc[u]);
                }
            float y = fold(acc);
            s->out[t * s->ldo + head * P + p] = __builtin_fmaf(D, x, y);
        }
}

const us_rec_kernels TABLE = {
    .conv = rec_conv, .decay = rec_decay, .product = rec_product, .dot = rec_dot, .delta = rec_delta, .mamba = rec_mamba,
};

#endif
