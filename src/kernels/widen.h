/**
 * 16-bit floats to f32, exactly, at the speed of memory. For callers that widen a tile just before a product.
 * Not here: every other type (tensor/dtype.h), scales (proxy/dequant.h). Tests: tests/unit/test_glu.c.
 */
#ifndef US_KERNELS_WIDEN_H
#define US_KERNELS_WIDEN_H

#include <stddef.h>

/** src: n bf16 or f16 numbers, any alignment. */
void us_widen_bf16(const void *src, size_t n, float *dst);
void us_widen_f16(const void *src, size_t n, float *dst);

#endif
