/**
 * How well a model predicts given texts: negative log-likelihoods of their tokens, in nats, by position in the window.
 *
 * A text longer than `window` is read in windows that begin `stride` tokens apart; every token but the first of the text is scored once, in the first window that
 * holds it, so with stride < window it has at least window - stride tokens before it (from the second window on). Perplexity is exp(nll / n).
 * Memory: logits of a piece of a window at a time. Tests: tests/unit/test_engine.c.
 */
#ifndef US_MODEL_SCORE_H
#define US_MODEL_SCORE_H

#include "model/engine/engine.h"

enum { US_SCORE_BUCKETS = 32 }; /* bucket b: 2^b to 2^(b+1)-1 tokens of context */

typedef struct us_score {
    double nll;
    uint64_t n;
    double bucket_nll[US_SCORE_BUCKETS];
    uint64_t bucket_n[US_SCORE_BUCKETS];
} us_score;

typedef struct us_score_options {
    size_t window, stride; /* 1 <= stride <= window, window >= 2 and within the model's context */
} us_score_options;

/** Add a text of n ids to *score (zero-initialise). A text of fewer than two tokens adds nothing. Classes: "range" (options), and those of us_engine_run. */
us_status us_score_text(us_ctx *ctx, us_engine *e, const us_score_options *o, const int64_t *ids, size_t n, us_score *score, us_err *err) US_WARN_UNUSED;

#endif
