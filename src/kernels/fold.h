/**
 * Fold one row of 32 outputs into a signed sum, squared norms and peaks: the inner step of functional sketches (proxy/sketch.h).
 * Lane by lane, single IEEE operations: the same bits on every instruction set. Tests: tests/unit/test_glu.c.
 */
#ifndef US_KERNELS_FOLD_H
#define US_KERNELS_FOLD_H

#include <stdint.h>

enum { US_FOLD_LANES = 32 };

/** For every lane l: sum[l] += bit l of signs ? -y[l] : y[l]; square[l] += y[l]^2; peak[l] = max(peak[l], |y[l]|). */
void us_fold(const float *y, uint32_t signs, float *sum, float *square, float *peak);

#endif
