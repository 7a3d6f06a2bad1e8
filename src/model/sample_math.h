/**
 * The loops over V behind sample.h: scan, exponentials with their sums, and the weighted selection that replaces sorting.
 *
 * One text compiled for several instruction sets, contraction off, sums over eight fixed lanes: the same bits everywhere (docs/dev/numerics.md).
 * Tests: tests/unit/test_sample.c.
 */
#ifndef US_MODEL_SAMPLE_MATH_H
#define US_MODEL_SAMPLE_MATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { US_SAMPLE_BLOCK = 1024, US_SAMPLE_BUCKETS = 2048 };

/** First index whose x is NaN or +inf, or n. *max (-inf for n = 0) is meaningful when that is n. */
size_t us_sample_scan(const double *x, size_t n, double *max);

/** Sums over i of e_i and of e_i * d_i, the latter 0 where e_i is. */
typedef struct us_sample_sums {
    double e, ed;
} us_sample_sums;

/**
 * fill: write e[i] = exp(d[i]), d = (x - max) * scale, at most 2 ulp off, 0 from e^-708 down; x <= max. Otherwise e is read. Both: the sums, and
 * blocks[b] = the sum of e over block b of US_SAMPLE_BLOCK (may be NULL).
 */
us_sample_sums us_sample_exp(const double *x, size_t n, double max, double scale, bool fill, double *e, double *blocks);

/** Where a target is reached when tokens are taken by descending y. */
typedef struct us_sample_cut {
    double value;  /* y of the token that reaches it */
    double before; /* weight of all tokens with larger y */
    size_t ties;   /* tokens with y == value */
    double weight; /* of the first of them */
} us_sample_cut;

/**
 * The first token, by descending y, at which the sum of weights (NULL: 1 each) is >= target; false when the whole sum is below it. Expected and worst case
 * O(n): one histogram over max - y, then radix digits inside one bucket. max >= all y, finite. y may be -inf. keys[n], weights[n]: scratch; y may be weights.
 */
bool us_sample_select(const double *y, const double *w, size_t n, double max, double target, uint64_t *keys, double *weights, us_sample_cut *out);

#endif
