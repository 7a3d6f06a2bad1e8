/**
 * The inner kernels of the recurrent mixers over portable vectors of four floats. Where the compiler's base target has no fused multiply-add, it is made in double as
 * in gemm_vec.c. See recurrent_kernels.h. Tests: tests/unit/test_recurrent.c.
 */
#include <stdint.h>
#include <string.h>

#define W 4
#define NV 2
#define TARGET
#define TABLE us__rec_lanes
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
#define SMALL static inline __attribute__((always_inline))

SMALL vf v_set1(float x) {
    return (vf){x, x, x, x};
}
SMALL vf v_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
SMALL void v_store(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}
SMALL vf v_loadn(const float *p, size_t n) {
    vf v = {0};
    for (size_t l = 0; l < W && l < n; l++) v[l] = p[l];
    return v;
}
SMALL void v_storen(float *p, vf v, size_t n) {
    for (size_t l = 0; l < W && l < n; l++) p[l] = v[l];
}

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__) || defined(__powerpc64__) || defined(__s390x__)
SMALL vf v_fma(vf a, vf b, vf c) {
    for (int l = 0; l < W; l++) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
    return c;
}
#else
typedef double v4d __attribute__((vector_size(32)));
typedef int64_t v4l __attribute__((vector_size(32)));

SMALL vf v_fma(vf a, vf b, vf c) {
    v4d p = __builtin_convertvector(a, v4d) * __builtin_convertvector(b, v4d); /* 48 bits: exact */
    v4d q = __builtin_convertvector(c, v4d);
    v4d s = p + q, t = s - p, e = (p - (s - t)) + (q - t); /* s + e is the exact sum */
    v4l bits = (v4l)s, sign = (v4l)e ^ bits;
    v4d zero = {0};
    v4l inexact = (e != zero) & ((bits & 1) == 0);
    inexact &= e == e;
    v4l step = 1 | (sign >> 63); /* round to odd */
    return __builtin_convertvector((v4d)(bits + (inexact & step)), vf);
}
#endif

SMALL vf v_pick(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}
SMALL vf v_max(vf c, vf x) {
    return v_pick(c > x, c, x);
}
SMALL vf v_min(vf c, vf x) {
    return v_pick(c < x, c, x);
}
SMALL vf v_pow2(vf t) {
    return (vf)(((vi)t - (0x4b400000 - 127)) << 23);
}
SMALL vf v_not_below(vf x, float limit, vf r) {
    return v_pick(x < v_set1(limit), v_set1(0.0f), r);
}

#include "kernels/recurrent_body.h"
