/**
 * Token mixers with a fixed-size state, f32: short convolution, gated delta rule (Gated DeltaNet, Kimi delta attention), Mamba-2.
 *
 * Two forms. Serial: one token after the other, fused decay + update + read; the definition, used for single tokens and in the exact mode, so that
 * chunked prefill, whole prefill and decode give the same bits. Chunkwise: US_RECURRENT_CHUNK tokens at once by matrix products (Yang et al. 2024, "Gated Delta Networks",
 * section 3.3; Dao & Gu 2024, "Transformers are SSMs", section 6), the state carried between chunks in f32; within 1e-5 of the serial form, used when `exact` is false for
 * segments of at least 256 tokens (delta rule) or 64 (Mamba-2); never for gates per channel, where it is slower. Chunks begin at the segment's first token. Results never depend on
 * batch or threads.
 * Tests: tests/unit/test_recurrent.c. Formulas: kernels/ref.h, spec/families-2026.md 4 and 12, spec/serving.md 1.
 */
#ifndef US_KERNELS_RECURRENT_H
#define US_KERNELS_RECURRENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"

enum { US_RECURRENT_CHUNK = 64 };

/**
 * Depthwise causal convolution of n tokens: x[n, C] (stride ldx), w[C, K] (last tap = current token), bias[C] or NULL, silu after when asked. tail[K-1, C] (stride ldt): the
 * tokens before (zeros at the start), updated. y[n, C] (stride ldy), y != x.
 */
void us_conv1d(const float *x, size_t ldx, const float *w, const float *bias, size_t n, size_t C, size_t K, bool silu, float *tail, size_t ldt,
               float *y, size_t ldy);

/**
 * One sequence of the gated delta rule. For every value head h (key head h / (Hv/Hk)) and token: S *= exp(g) (per_channel: row d of S by exp(g[d]));
 * delta = beta (v - S^T k); S += k delta^T; o = S^T q.
 */
typedef struct us_delta_seq {
    size_t n;
    const float *q, *k;   /* [n, Hk, Dk], row stride ldqk; q already scaled */
    size_t ldqk;
    const float *v;       /* [n, Hv, Dv], row stride ldv */
    size_t ldv;
    const float *g;       /* [n, Hv] or, per channel, [n, Hv, Dk]; dense; <= 0 */
    const float *beta;    /* [n, Hv] dense */
    float *state;         /* [Hv, Dk, Dv], in and out */
    float *out;           /* [n, Hv, Dv], row stride ldo */
    size_t ldo;
} us_delta_seq;

typedef struct us_delta {
    uint32_t key_heads, value_heads, dk, dv;
    bool per_channel, exact;
} us_delta;

us_status us_delta_rule(us_pool *pool, const us_delta *d, const us_delta_seq *seqs, size_t n_seqs, us_err *err) US_WARN_UNUSED;

/** One sequence of Mamba-2: h = exp(dt A) h + dt B x, y = C h + D x. */
typedef struct us_mamba2_seq {
    size_t n;
    const float *x;       /* [n, H, P], row stride ldx */
    const float *B, *C;   /* [n, G, N], row stride ldbc */
    size_t ldx, ldbc;
    const float *dt;      /* [n, H] dense, softplus and clamp done */
    float *state;         /* [H, P, N], in and out */
    float *out;           /* [n, H, P], row stride ldo */
    size_t ldo;
} us_mamba2_seq;

typedef struct us_mamba2 {
    uint32_t heads, dim, groups, state; /* H, P, G, N */
    const float *A, *D;   /* [H]; A negative */
    bool exact;
} us_mamba2;

us_status us_mamba2_run(us_pool *pool, const us_mamba2 *m, const us_mamba2_seq *seqs, size_t n_seqs, us_err *err) US_WARN_UNUSED;

#endif
