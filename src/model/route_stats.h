/**
 * What a model's routers do on given texts: loads, entropies, margins, experts chosen together, and the choices themselves.
 *
 * Figures are of the trunk's MoE layers, in the order of the structure's blocks. Facts: spec/moe-proxy.md 5.4. Not here: choosing experts by them
 * (proxy/routing.h reads the dump that the command writes). Tests: tests/unit/test_engine.c, tests/e2e/test_run_model.c.
 */
#ifndef US_MODEL_ROUTE_STATS_H
#define US_MODEL_ROUTE_STATS_H

#include "model/engine/engine.h"

typedef struct us_route_layer {
    uint32_t layer;     /* number in the tensor names */
    uint32_t n_experts; /* rows of the router, zero experts included */
    uint64_t *count;    /* [n_experts] times chosen */
    uint64_t *pairs;    /* [n_experts, n_experts] times chosen together, diagonal 0; NULL when not asked for */
    double *weight;     /* [n_experts] sum of the weights it was given */
    uint64_t tokens;
    double entropy;     /* sum over tokens of the entropy of softmax(router logits), nats */
    double margin, margin_least; /* k-th largest router logit less the next: sum over tokens, smallest. The correction bias of a router that has one is not in it */
} us_route_layer;

typedef struct us_route_stats {
    us_route_layer *layers;
    size_t n_layers;
    uint32_t top_k;
    int32_t *choices; /* [tokens, n_layers, top_k] ascending, -1 where a layer has fewer; NULL when not asked for */
    size_t tokens, choices_cap;
} us_route_stats;

us_status us_route_stats_create(const us_engine *e, const us_structure *st, bool pairs, us_route_stats *out, us_err *err) US_WARN_UNUSED;
void us_route_stats_free(us_route_stats *s);

/**
 * Run the texts (each one sequence from its start; n[i] within the context) in calls of at most `batch` tokens (but a whole text at least) and add what the routers do. choices: keep them too.
 * A model without MoE layers is refused, class "dense". Progress in tokens.
 */
us_status us_route_stats_run(us_ctx *ctx, us_engine *e, const int64_t *const *texts, const size_t *n, size_t n_texts, size_t batch, bool choices, us_route_stats *s, us_err *err) US_WARN_UNUSED;

/** Entropy of a layer's loads over log(E): 1 = even. */
double us_route_balance(const us_route_layer *l);
/** The greatest load over the mean load. */
double us_route_peak(const us_route_layer *l);

#endif
