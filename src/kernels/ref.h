/**
 * Double-precision reference of every operator: plain loops, nothing clever. They are the truth that fast paths are tested against and the
 * operators of the oracle (`understudy forward --dtype ref`). Shape letters: B batch, T time, D model width, H heads, Dh head width, E experts,
 * K top-k, F ffn width, V vocabulary, S state. All arrays are row-major and dense. Nothing allocates unless it says so.
 *
 * Facts: spec/families-2026.md sections 2-4 and 12. Tests: tests/unit/test_ref_ops.c (hand-worked values), tests/golden/test_fix_oracle.c.
 */
#ifndef US_KERNELS_REF_H
#define US_KERNELS_REF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** y[T,N] = x[T,K] w[N,K]^T (+ bias[N] when not NULL). */
void us_ref_linear(const double *x, const double *w, const double *bias, size_t T, size_t K, size_t N, double *y);

/** y = x / sqrt(mean(x^2) + eps) * (plus + w) for T rows of n; w NULL = 1. plus is 0, or 1 for families that store w - 1. */
void us_ref_rmsnorm(const double *x, const double *w, double plus, double eps, size_t T, size_t n, double *y);
/** y = (x - mean) / sqrt(var + eps) * w + b; b may be NULL. */
void us_ref_layernorm(const double *x, const double *w, const double *b, double eps, size_t T, size_t n, double *y);
/** x * rsqrt(sum x^2 + eps) for T rows of n, in place. */
void us_ref_l2norm(double *x, double eps, size_t T, size_t n);

double us_ref_sigmoid(double x);
double us_ref_silu(double x);
double us_ref_softplus(double x);
void us_ref_softmax(double *x, size_t n); /* in place; -inf entries become 0 */

/**
 * Rotate `dims` channels of every head of x[T, heads, width] beginning at channel `from`. inv_freq[dims/2]; angle = position * inv_freq; cos and sin
 * are multiplied by `factor`. pair: channels (2i, 2i+1) form a pair, else (i, i + dims/2). sign -1 rotates back.
 */
void us_ref_rope(double *x, size_t T, size_t heads, size_t width, size_t from, size_t dims, const double *inv_freq, double factor, bool pair,
                 double sign, const int64_t *positions);

/** What restricts which keys a query sees, beyond causality. */
typedef struct us_ref_mask {
    size_t window;        /* > 0: the last `window` positions, the query's own included */
    size_t chunk;         /* > 0: only keys in the same floor(position / chunk) */
    const uint8_t *allow; /* [T,T] or NULL: 0 hides key j from query i */
} us_ref_mask;

/**
 * Causal attention: q[T,H,Dk], k[T,G,Dk], v[T,G,Dv] -> out[T,H,Dv]; head h reads key head h / (H/G). sinks[H] (or NULL) adds exp(sink) to the denominator.
 * scratch: T doubles.
 */
void us_ref_attention(const double *q, const double *k, const double *v, size_t T, size_t H, size_t G, size_t Dk, size_t Dv, double scale,
                      const us_ref_mask *mask, const double *sinks, double *scratch, double *out);

/** Depthwise causal convolution over time: x[T,C], w[C,K] (last tap = current token), bias[C] or NULL; silu after when asked. y != x. */
void us_ref_conv1d(const double *x, const double *w, const double *bias, size_t T, size_t C, size_t K, bool silu, double *y);

/**
 * Gated delta rule, serial: for every value head, state S[Dk,Dv] starts at zero; S *= exp(g); delta = beta (v - S^T k); S += k delta^T; o = S^T q.
 * q, k [T,Hk,Dk]; v [T,Hv,Dv]; value head h uses key head h / (Hv/Hk). g is [T,Hv] (GDN) or [T,Hv,Dk] (per_channel, KDA); beta [T,Hv].
 * q must already be scaled. state: Dk*Dv doubles of scratch. out [T,Hv,Dv].
 */
void us_ref_delta_rule(const double *q, const double *k, const double *v, const double *g, bool per_channel, const double *beta, size_t T, size_t Hk,
                       size_t Hv, size_t Dk, size_t Dv, double *state, double *out);

/**
 * Mamba-2: h = exp(dt A) h + dt B x, y = C h + D x; x [T,H,P], Bm, Cm [T,G,N], dt [T,H] (already softplus and clamped), A[H] negative, D[H].
 * state: P*N doubles of scratch. out [T,H,P].
 */
void us_ref_mamba2(const double *x, const double *Bm, const double *Cm, const double *dt, const double *A, const double *D, size_t T, size_t H, size_t P,
                   size_t G, size_t N, double *state, double *out);

/** Indices of the k largest of x[n], best first; ties to the lowest index; NaN never wins. k <= n. */
void us_ref_topk(const double *x, size_t n, size_t k, uint32_t *index);

#endif
