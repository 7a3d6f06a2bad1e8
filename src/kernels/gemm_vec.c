/**
 * Portable tile kernel with GCC/clang vector extensions. Where the target has a fused multiply-add (arm64, power, s390) the compiler contracts the
 * expression to it; where it has none (plain x86-64), the fused result is made in double: the product is exact there, the sum is rounded to odd, and
 * the second rounding is then that of fma. Same bits either way. See gemm.h. Tests: tests/unit/test_gemm.c.
 */
#include <string.h>

#include "kernels/gemm.h"

typedef float v4f __attribute__((vector_size(16)));

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__) || defined(__powerpc64__) || defined(__s390x__)
static inline v4f fma4(v4f a, v4f b, v4f c) {
    return a * b + c; /* -ffp-contract=fast on this file */
}
#else
typedef double v4d __attribute__((vector_size(32)));
typedef int64_t v4l __attribute__((vector_size(32)));

/* By value and inlined: the ABI of wide vectors does not matter. Contraction has no instruction to use here. */
static inline __attribute__((always_inline)) v4f fma4(v4f a, v4f b, v4f c) {
    v4d p = __builtin_convertvector(a, v4d) * __builtin_convertvector(b, v4d); /* 48 bits: exact */
    v4d q = __builtin_convertvector(c, v4d);
    v4d s = p + q, t = s - p, e = (p - (s - t)) + (q - t); /* s + e is the exact sum */
    v4l bits = (v4l)s, sign = (v4l)e ^ bits;
    v4d zero = {0};
    v4l inexact = (e != zero) & ((bits & 1) == 0); /* compare gives all ones; NaN and infinity: e is NaN, see below */
    inexact &= e == e;
    v4l step = 1 | (sign >> 63); /* away from zero when e has the sign of s, else towards it */
    return __builtin_convertvector((v4d)(bits + (inexact & step)), v4f);
}
#endif

static inline __attribute__((always_inline)) v4f load_f32(const void *lanes, size_t i) {
    v4f v;
    memcpy(&v, (const float *)lanes + i, sizeof v);
    return v;
}

static inline __attribute__((always_inline)) v4f load_bf16(const void *lanes, size_t i) {
    const uint16_t *p = (const uint16_t *)lanes + i;
    uint32_t w[4] = {(uint32_t)p[0] << 16, (uint32_t)p[1] << 16, (uint32_t)p[2] << 16, (uint32_t)p[3] << 16};
    v4f v;
    memcpy(&v, w, sizeof v);
    return v;
}

/* Eight lanes of four rows at a time: 8 accumulators fit the registers of every target. */
#define TILE(name, load)                                                                                                                              \
    void name(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {                                 \
        for (size_t r = 0; r < nr; r += 4) {                                                                                                          \
            size_t r1 = r + 1 < nr ? r + 1 : r, r2 = r + 2 < nr ? r + 2 : r, r3 = r + 3 < nr ? r + 3 : r;                                             \
            const float *x0 = x + r * ldx, *x1 = x + r1 * ldx, *x2 = x + r2 * ldx, *x3 = x + r3 * ldx;                                                \
            for (size_t l = 0; l < US_GEMM_LANES; l += 8) {                                                                                           \
                v4f a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};                                                   \
                if (!first) {                                                                                                                         \
                    a0 = load_f32(c, r * ldc + l), b0 = load_f32(c, r * ldc + l + 4), a1 = load_f32(c, r1 * ldc + l);                                 \
                    b1 = load_f32(c, r1 * ldc + l + 4), a2 = load_f32(c, r2 * ldc + l), b2 = load_f32(c, r2 * ldc + l + 4);                           \
                    a3 = load_f32(c, r3 * ldc + l), b3 = load_f32(c, r3 * ldc + l + 4);                                                               \
                }                                                                                                                                     \
                for (size_t i = 0; i < k; i++) {                                                                                                      \
                    v4f u = load(lanes, i * US_GEMM_LANES + l), v = load(lanes, i * US_GEMM_LANES + l + 4);                                           \
                    v4f s0 = {x0[i], x0[i], x0[i], x0[i]}, s1 = {x1[i], x1[i], x1[i], x1[i]};                                                         \
                    v4f s2 = {x2[i], x2[i], x2[i], x2[i]}, s3 = {x3[i], x3[i], x3[i], x3[i]};                                                         \
                    a0 = fma4(s0, u, a0), b0 = fma4(s0, v, b0), a1 = fma4(s1, u, a1), b1 = fma4(s1, v, b1);                                           \
                    a2 = fma4(s2, u, a2), b2 = fma4(s2, v, b2), a3 = fma4(s3, u, a3), b3 = fma4(s3, v, b3);                                           \
                }                                                                                                                                     \
                memcpy(c + r3 * ldc + l, &a3, sizeof a3), memcpy(c + r3 * ldc + l + 4, &b3, sizeof b3);                                               \
                memcpy(c + r2 * ldc + l, &a2, sizeof a2), memcpy(c + r2 * ldc + l + 4, &b2, sizeof b2);                                               \
                memcpy(c + r1 * ldc + l, &a1, sizeof a1), memcpy(c + r1 * ldc + l + 4, &b1, sizeof b1);                                               \
                memcpy(c + r * ldc + l, &a0, sizeof a0), memcpy(c + r * ldc + l + 4, &b0, sizeof b0);                                                 \
            }                                                                                                                                         \
        }                                                                                                                                             \
    }

TILE(us__gemm_tile_vec_f32, load_f32)
TILE(us__gemm_tile_vec_bf16, load_bf16)
