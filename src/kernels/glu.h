/**
 * Expert activations, elementwise on gate and up: the codes of spec/families-2026.md section 3.
 *
 * Written with single IEEE operations in one order (no fusing, own exponential), so that every instruction set gives the same bits.
 * Largest error of the sigmoid inside: 3 ulp. Tests: tests/unit/test_glu.c.
 */
#ifndef US_KERNELS_GLU_H
#define US_KERNELS_GLU_H

#include <stddef.h>

typedef enum us_glu {
    US_GLU_SILU,   /* silu(gate) * up */
    US_GLU_CLAMP,  /* gate = min(gate, limit), up = clamp(up, +-limit); silu(gate) * up */
    US_GLU_OSS,    /* the same clamps; (up + 1) * gate * sigmoid(alpha * gate) */
    US_GLU_STEP,   /* min(silu(gate), limit) * clamp(up, +-limit) */
    US_GLU_GELU,   /* gelu_tanh(gate) * up */
    US_GLU_RELU,   /* max(gate, 0) * up */
    US_GLU_SITU,   /* alpha * tanh(gate / alpha) * sigmoid(gate) * limit * tanh(up / limit) */
    US_GLU_RELU2,  /* no gate: max(up, 0)^2 */
    US_GLU_SILU1,  /* no gate: silu(up) */
    US_GLU_GELU1,  /* no gate: gelu_tanh(up) */
} us_glu;

/** out[i] of n elements; out may be gate or up. gate is not read by the forms without one. */
void us_glu_apply(us_glu act, float limit, float alpha, size_t n, const float *gate, const float *up, float *out);

#endif
