/**
 * The exponential of the f32 kernels, as text to be compiled into loops: single IEEE operations in one order, no library function, no table, so that every
 * instruction set gives the same bits. Include it only in files that are compiled with contraction off (all but *_vec.c and *_x86.c).
 *
 * 2^n times a polynomial on [-ln2/2, ln2/2]; largest error 3 ulp. Not here: the loops (glu.c, ops.c, attention.c). Tests: tests/unit/test_ops.c.
 */
#ifndef US_KERNELS_EXP_H
#define US_KERNELS_EXP_H

#include <stdint.h>
#include <string.h>

/* e^x for |x| <= 87; NaN stays NaN. */
static inline __attribute__((always_inline)) float us__exp_inner(float x) {
    float t = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer */
    float n = t - 12582912.0f;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r;
    p = p + 1.0f;
    uint32_t bits;
    memcpy(&bits, &t, 4);
    bits = (bits - 0x4b400000u + 127u) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

/* e^x with x clamped to +-87: never 0, never infinite. */
static inline __attribute__((always_inline)) float us__exp(float x) {
    x = x > 87.0f ? 87.0f : x;
    x = x < -87.0f ? -87.0f : x;
    return us__exp_inner(x);
}

/* e^x for x <= 0: exactly 0 below -87 (so for -infinity), exactly 1 at 0. What softmax needs: a hidden key weighs nothing. */
static inline __attribute__((always_inline)) float us__exp_below(float x) {
    float e = us__exp_inner(x < -87.0f ? -87.0f : x);
    return x < -87.0f ? 0.0f : e;
}

#endif
