/**
 * f32 matrix product, y[M,N] = x[M,K] w[N,K]^T, with one defined result: every output is the chain
 *
 *     c = 0; for k = 0 .. K-1: c = fma(x[k], w[k], c)      (f32, one rounding a step)
 *
 * in this order, on every path. So results are equal bit for bit for any M, N, tile, thread count and instruction set - what batch invariance,
 * bisecting and equal selections on different machines need - and it costs nothing, because an outer-product kernel accumulates in that order anyway.
 *
 * The operand called w is packed once: columns (its rows n) in blocks of US_GEMM_LANES, padded with zeros. f32: element (k, lane) of block b at
 * (b*K + k)*LANES + lane. bf16: pairs of k side by side, (b*K' + k/2*2)*LANES + lane*2 + k%2 with K' = K rounded up to even: one shift or one mask widens
 * a vector. bf16 operands widen exactly, so the chain is over the same numbers. int8: element (k, lane) at (b*K + k)*LANES + lane, and one f32 scale a column,
 * which multiplies the finished chain (one more rounding). For many rows, blocks of x are copied (no two rows in the same cache set)
 * and narrow lanes are widened once for all of them; for few, everything is read where it lies.
 *
 * Paths: gemm_ref.c (the definition in plain loops, and a double product that bounds its error), gemm_vec.c (portable), gemm_x86.c (AVX2, AVX-512).
 * Not here: bf16 tile instructions (another summation, so another operator), row-dot for one row of unpacked weights.
 * Tests: tests/unit/test_gemm.c, tests/prop/test_gemm_prop.c; bench/bench_gemm.c. docs/dev/numerics.md.
 */
#ifndef US_KERNELS_GEMM_H
#define US_KERNELS_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "kernels/dispatch.h"
#include "tensor/dtype.h"

enum { US_GEMM_LANES = 32, US_GEMM_ROWS = 12, US_GEMM_DEPTH = 256 };

/** A packed operand; data (64-byte aligned) and scale belong to the caller. type: F32, BF16 or I8. */
typedef struct us_gemm_packed {
    size_t n, k;
    us_dtype type;
    const void *data;
    const float *scale; /* I8: [n]; else not read */
} us_gemm_packed;

/** Bytes of the packed form of [n, k]; 0 when that overflows or for another type. */
size_t us_gemm_packed_bytes(us_dtype type, size_t n, size_t k);
/** Pack w[n, k] (row stride ldw elements, same type). */
void us_gemm_pack_nt(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, void *packed);
/** Pack w[k, n] (the NN layout: y = x w). */
void us_gemm_pack_nn(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, void *packed);
/**
 * Quantise w[n, k] (row stride ldw; F32 or BF16, finite) to int8, symmetric, one scale a row: scale = max|w| / 127, q = w / scale rounded to nearest even. packed:
 * us_gemm_packed_bytes(US_DTYPE_I8, n, k); scale [n]. A row of zeros has scale 0.
 */
void us_gemm_quantise_i8(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, int8_t *packed, float *scale);

/** y[M,N] (stride ldy) = x[M,K] (stride ldx) times the packed operand. pool NULL = the caller's thread. Allocates nothing. */
void us_gemm(us_pool *pool, size_t m, const float *x, size_t ldx, const us_gemm_packed *w, float *y, size_t ldy);
/** Same from unpacked w[n,k] and w[k,n]; packs into scratch of its own. US_E_NOMEM. */
us_status us_gemm_nt(us_pool *pool, size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, float *y, size_t ldy,
                     us_err *err) US_WARN_UNUSED;
us_status us_gemm_nn(us_pool *pool, size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, float *y, size_t ldy,
                     us_err *err) US_WARN_UNUSED;

/** y in double precision from f32 or bf16 w[n,k]: the oracle of the error bound. */
void us_gemm_ref(size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, double *y, size_t ldy);

/**
 * One tile, the building block for fused callers: c[r][lane] (stride ldc) = (first ? 0 : c) continued over k steps, for rows r < nr <= US_GEMM_ROWS of x
 * (stride ldx) and the US_GEMM_LANES lanes of `lanes` (k steps of LANES elements). Avoid ldx * 4 = a multiple of 4096 bytes.
 */
typedef void us_gemm_tile_fn(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first);
/** The tile kernel of an instruction set for f32 or bf16 lanes (bf16: plain, not pairs). */
us_gemm_tile_fn *us_gemm_tile(us_isa isa, us_dtype lanes);

/** Rows of a copied block of x lie this many floats apart: a constant, so that a kernel needs one address for all. */
enum { US_GEMM_CHUNK = 256, US_GEMM_APART = US_GEMM_CHUNK + 16 };

/** The same over bf16 pairs (k of them counted as single elements; an odd last one has no partner), and over int8 lanes (scale not applied). NULL: widen. */
us_gemm_tile_fn *us_gemm_pair_tile(us_isa isa);
us_gemm_tile_fn *us_gemm_i8_tile(us_isa isa);
/**
 * For many rows: lanes widened to f32 in panels as wide as the registers allow at full speed, [LANES / panel][k][panel], so that one of them stays in L1 under all
 * rows. The tile goes over one panel, and over rows that lie US_GEMM_APART floats apart (ldx is not read).
 */
size_t us_gemm_panel(us_isa isa);
us_gemm_tile_fn *us_gemm_panel_tile(us_isa isa);
/** k steps of packed lanes to panels; bf16: from an even step on. */
void us_gemm_widen(us_isa isa, us_dtype type, size_t k, const void *lanes, float *panels);

us_gemm_tile_fn us__gemm_tile_ref_f32, us__gemm_tile_ref_bf16, us__gemm_tile_vec_f32, us__gemm_tile_vec_bf16;
#if defined(__x86_64__)
us_gemm_tile_fn us__gemm_tile_avx2_f32, us__gemm_tile_avx2_bf16, us__gemm_tile_avx512_f32, us__gemm_tile_avx512_bf16;
us_gemm_tile_fn us__gemm_pairs_avx2, us__gemm_pairs_avx512, us__gemm_panel_avx2, us__gemm_panel_avx512, us__gemm_i8_avx2, us__gemm_i8_avx512;
/* 32 rows of n 4-byte elements, `stride` bytes apart, to columns; returns how many were done: n, or up to seven fewer. */
size_t us__gemm_turn_avx2(const void *w, size_t stride, size_t n, void *to);
void us__gemm_copy_avx2(const float *from, size_t n, float *to);
void us__gemm_widen_avx2(us_dtype type, size_t k, const void *lanes, float *panels);
void us__gemm_widen_avx512(us_dtype type, size_t k, const void *lanes, float *panels);
#endif

#endif
