/**
 * The oracle: the forward pass of the families in recipe.c in double precision, whole sequences, one layer's weights in memory at a time.
 *
 * It is the reference that the fast engine is held against, and a product: dumps of other engines are compared with its layer tensors. Built
 * from the operators of kernels/ref.h in plain order, no cache, no threads: read it to learn what a family computes.
 * Tests: tests/golden/test_fix_oracle.c holds it against transformers' float64 answers of every model of fixtures/models.
 */
#ifndef US_MODEL_ORACLE_H
#define US_MODEL_ORACLE_H

#include "model/recipe.h"

typedef struct us_oracle us_oracle;

/** What the oracle shows while it runs. rows = T; values are borrowed for the call. experts ascending by number, weights beside them. */
typedef struct us_oracle_taps {
    void (*layer)(void *user, uint32_t layer, const char *what, const double *x, size_t rows, size_t cols); /* what: "attn", "ffn", "out" */
    void (*route)(void *user, uint32_t layer, const uint32_t *experts, const double *weights, size_t rows, size_t k);
    void *user;
} us_oracle_taps;

/** st and its checkpoint are borrowed and must outlive the oracle. */
us_status us_oracle_open(us_ctx *ctx, const us_structure *st, us_oracle **out, us_err *err) US_WARN_UNUSED;
void us_oracle_free(us_oracle *o);
const us_recipe *us_oracle_recipe(const us_oracle *o);
/** logits[T,V] of one sequence of token ids; taps may be NULL. US_E_REFUSED, class "token-range" or "context", before any work. */
us_status us_oracle_forward(us_oracle *o, const int64_t *ids, size_t T, const us_oracle_taps *taps, double *logits, us_err *err) US_WARN_UNUSED;

#endif
