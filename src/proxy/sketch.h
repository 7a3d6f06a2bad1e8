/**
 * What an expert does, as a short vector: run it on probe inputs and project the outputs with a seeded sign matrix.
 *
 * Probes are the block's own router rows scaled to RMS 1 (the directions that call each expert), passed through the latent projection where experts
 * are narrower than the router. The sketch does not see the order of neurons. Probes are ordered by a hash of their content, so that neither
 * the numbering of experts nor the thread count changes a bit of any sketch; arithmetic is that of kernels/gemm.h and kernels/glu.h, equal on every
 * instruction set (docs/dev/numerics.md).
 *
 * Memory: one expert's stored bytes a thread, and E x (dims + probes) floats. Cost: 6 H I m flops an expert (4 without a gate).
 * Not here: clustering, routing data. Facts: spec/moe-proxy.md 5.4 step 1. Tests: tests/unit/test_select.c, tests/prop/test_planted.c; bench/bench_sketch.c.
 */
#ifndef US_PROXY_SKETCH_H
#define US_PROXY_SKETCH_H

#include "base/ctx.h"
#include "kernels/glu.h"
#include "proxy/dequant.h"

/** How the experts of a layer activate. */
typedef struct us_sketch_act {
    us_glu glu;
    float limit, alpha;
} us_sketch_act;

/** From family and config; gated: does the expert have a gate projection? */
us_sketch_act us_sketch_activation(const us_structure *s, size_t block, bool gated);

typedef struct us_sketch {
    uint32_t n_experts, n_probes, dims;
    float *phi;              /* n_experts x dims */
    float *norm;             /* n_experts x n_probes: output norm on every probe */
    float *peak;             /* n_experts: largest absolute output */
    uint32_t *probe_expert;  /* n_probes: the expert whose router row the probe is */
    uint64_t bytes;          /* read */
    double flops;
} us_sketch;

/** Router rows of a block, n_experts x *width, f32; caller frees with us_free. NULL rows when the router cannot be read as numbers. */
us_status us_sketch_router_rows(const us_structure *s, size_t block, float **rows, size_t *width, us_err *err) US_WARN_UNUSED;

/**
 * Sketch every expert of a block. *why: NULL, or why there is none (unknown stored form ...); then out stays empty and the status is US_OK.
 * dims: a multiple of 32. probes: at most that many.
 */
us_status us_sketch_block(us_ctx *ctx, const us_structure *s, size_t block, uint64_t seed, uint32_t dims, uint32_t probes, us_sketch *out, const char **why,
                          us_err *err) US_WARN_UNUSED;
void us_sketch_free(us_sketch *k);

/** 1 - cosine of every pair, n x n; zero vectors are at distance 1 from all others. */
void us_cosine_distances(us_pool *pool, const float *x, size_t n, size_t dims, double *d);
/** Router directions: rows minus their mean (in order of content). In place, f64. */
us_status us_sketch_directions(const float *rows, size_t n, size_t width, float **out, us_err *err) US_WARN_UNUSED;
/** Experts in the order of a seeded hash of their rows' content; equal rows by number. */
void us_sketch_order(const float *rows, size_t n, size_t width, uint64_t seed, uint64_t *keys, uint32_t *order);

#endif
