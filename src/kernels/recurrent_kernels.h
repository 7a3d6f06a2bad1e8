/**
 * Inner kernels of recurrent.h, one table an instruction set. The text is recurrent_body.h, compiled in recurrent_{ref,lanes,avx2,avx512}.c over vectors of
 * 1, 4, 8 and 16 lanes; every operation is a single IEEE operation or a fused multiply-add in an order that does not depend on the width, so all tables
 * give the same bits.
 *
 * Two kinds of sums. Over a row index (Dk in the delta rule): one chain of fused multiply-adds, ascending, lanes side by side. Along the lanes (k.q, and
 * C.h in Mamba-2): sixteen chains, element i in chain i mod 16, then added in the order l + (l+8), l + (l+4), l + (l+2), l + (l+1).
 * Tests: tests/unit/test_recurrent.c.
 */
#ifndef US_KERNELS_RECURRENT_KERNELS_H
#define US_KERNELS_RECURRENT_KERNELS_H

#include "kernels/dispatch.h"
#include "kernels/recurrent.h"

enum {
    US_REC_FOLD = 16,  /* chains of a sum along the lanes */
    US_REC_BATCH = 32, /* tokens whose gates are prepared at once in the serial form */
};

/** A few tokens of one value head. a, ak, aq: [n, dk] dense: decay, decay * k, decay * q; kq[n] = k.q. */
typedef struct us_rec_rows {
    const float *k, *v, *beta;
    size_t ldk, ldv, ldbeta;
    const float *a, *ak, *aq, *kq;
    float *out;
    size_t ldo;
} us_rec_rows;

typedef struct us_rec_kernels {
    /** See us_conv1d. */
    void (*conv)(const float *x, size_t ldx, const float *w, const float *bias, size_t n, size_t C, size_t K, bool silu, const float *tail, size_t ldt,
                 float *y, size_t ldy);
    /** out[i] = exp(x[i] * scale), 0 below -87. */
    void (*decay)(const float *x, float scale, size_t n, float *out);
    /** out[i] = x[i] * y[i]. */
    void (*product)(const float *x, const float *y, size_t n, float *out);
    /** Sum along the lanes of x[i] * y[i]. */
    float (*dot)(const float *x, const float *y, size_t n);
    /** n tokens, one after the other: state S[dk, dv]. */
    void (*delta)(size_t n, size_t dk, size_t dv, const us_rec_rows *r, float *S);
    /** n tokens of one head of Mamba-2. decay[n] is dense, dt has stride lddt. */
    void (*mamba)(size_t n, size_t P, size_t N, const us_mamba2_seq *s, size_t head, size_t group, size_t heads, float D, const float *decay, float *S);
} us_rec_kernels;

extern const us_rec_kernels us__rec_ref, us__rec_lanes;
#if defined(__x86_64__)
extern const us_rec_kernels us__rec_avx2, us__rec_avx512;
#endif

/** recurrent_chunk.c: tokens 0 .. n-1 of one head by chunks; scratch of so many floats, 64-byte aligned. Scalar gates only. */
size_t us_rec_delta_chunk_floats(size_t dk, size_t dv);
void us_rec_delta_chunks(const us_rec_kernels *kern, us_isa isa, const us_delta *d, const us_delta_seq *s, size_t head, size_t n, float *scratch);
size_t us_rec_mamba_chunk_floats(size_t P, size_t N);
void us_rec_mamba_chunks(const us_rec_kernels *kern, us_isa isa, const us_mamba2 *m, const us_mamba2_seq *s, size_t head, size_t n, float *scratch);

/** The table of the instruction set in use. */
const us_rec_kernels *us_rec_kernels_active(void);

#endif
