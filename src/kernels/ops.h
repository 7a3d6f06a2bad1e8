/**
 * Small f32 operators between the products: norms, rotary, softmax. Every row is computed by itself with one fixed order of summation,
 * so results do not depend on the number of rows, on threads or on the instruction set.
 *
 * Row sums (mean, mean square, softmax denominator) run in double in US_OPS_LANES partial sums - element i goes to sum i % LANES, in ascending order - which
 * are then added in a fixed tree (l += l + 8, + 4, + 2, + 1 of 16). In double the square of a float is exact, so a processor without fused multiply-add
 * gets the same bits without an emulation, and no row of finite numbers overflows. The factor of a norm is double too: x times it is rounded once.
 * All other arithmetic is single IEEE f32 operations in the order written here. exp is kernels/exp.h. Nothing allocates; n = 0 and rows = 0 are fine.
 * Tests: tests/unit/test_ops.c against kernels/ref.h. Formulas: spec/families-2026.md 2-4, 12.
 */
#ifndef US_KERNELS_OPS_H
#define US_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { US_OPS_LANES = 16 };

/** y = x / sqrt(mean(x^2) + eps) * (plus + w) for `rows` rows of n (strides ldx, ldy; y may be x). w NULL = 1. */
void us_rmsnorm(const float *x, size_t ldx, const float *w, float plus, float eps, size_t rows, size_t n, float *y, size_t ldy);
/** y = (x - mean) / sqrt(var + eps) * w + b; b may be NULL. */
void us_layernorm(const float *x, size_t ldx, const float *w, const float *b, float eps, size_t rows, size_t n, float *y, size_t ldy);
/** x * rsqrt(sum x^2 + eps) for `rows` rows of n, in place. */
void us_l2norm(float *x, size_t ldx, float eps, size_t rows, size_t n);
/** In place over n numbers; -inf entries become 0; all -inf = all 0 (the reference has no answer there); a NaN or +inf makes NaN of the row. */
void us_softmax(float *x, size_t n);

/**
 * Rotate `dims` (even) channels, from channel `from`, of every head of x[rows, heads, width] (row stride ldx). cos and sin: [rows, dims/2], multiplier included.
 * pair: channels (2i, 2i+1) form a pair, else (i, i + dims/2). sign -1 rotates back.
 * (u, v) becomes (u c - v s, v c + u s), each product and sum rounded.
 */
void us_rotary(float *x, size_t ldx, size_t rows, size_t heads, size_t width, size_t from, size_t dims, const float *cos, const float *sin, bool pair, float sign);

/** y[i] += a * x[i], one rounding (fma). */
void us_axpy(float a, const float *x, size_t n, float *y);
/** x[i] rounded to the nearest bf16 (ties to even, NaN stays NaN), kept as f32, into y (may be x). */
void us_round_bf16(const float *x, size_t n, float *y);
/**
 * Elementwise, in place. sigmoid(x) = 1 / (1 + e^-x), 0 below -87; silu(x) = x * sigmoid(x). softplus(x) = log(1 + e^x) as max(x, 0) + log1p(e^-|x|), the
 * logarithm as the series 2 atanh(t / (2 + t)) in double: the C library's log1p differs between libraries and processors, this does not.
 */
void us_sigmoid(float *x, size_t n);
void us_silu(float *x, size_t n);
void us_softplus(float *x, size_t n);

#endif
