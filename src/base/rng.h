/**
 * Counter-based random numbers: a pure function of (seed, stream, index), never of call order, so that results do not
 * depend on threads, batch position or resume. Philox4x32-10 (Salmon et al., SC 2011). Tests: tests/unit/test_base.c.
 */
#ifndef US_BASE_RNG_H
#define US_BASE_RNG_H

#include <stdint.h>

/** Four 32-bit words of block `index` of `stream` under `seed`. */
void us_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);
/** 64 random bits. */
uint64_t us_rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
/** Uniform in [0, 1), 53 bits. */
double us_rng_double(uint64_t seed, uint64_t stream, uint64_t index);
/** Standard normal (Box-Muller on one block). */
double us_rng_normal(uint64_t seed, uint64_t stream, uint64_t index);
/** Uniform in [0, n), n >= 1; multiply-shift, bias below n/2^64. */
uint64_t us_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);
/** Fisher-Yates permutation of 0..n-1. */
void us_rng_permutation(uint64_t seed, uint64_t stream, uint32_t n, uint32_t *out);

#endif
