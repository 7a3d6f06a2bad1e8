/**
 * The fast engine: forward passes of any number of sequences at once, f32 or bf16, with their states (paged keys and values, recurrent states).
 *
 * Reads the same recipe as the oracle (model/recipe.h). Weights are read and packed when first used, so starting is cheap; with `stream` a layer's weights are
 * dropped when the layer is done: at most one layer resident. A token's result does not depend on the other sequences of the call, on padding or on
 * threads, bit for bit; nor, with `exact`, on how its sequence was cut into calls (without it recurrent layers run chunkwise: within 1e-5).
 * f32: activations f32, weights as stored (bf16 widens exactly). bf16: inputs of products and cached keys and values are rounded to bf16, sums are f32.
 *
 * Not thread-safe: one call at a time for an engine; it uses the context's pool. Tests: tests/golden/test_fix_engine.c (transformers' answers), tests/prop/test_engine_prop.c.
 */
#ifndef US_MODEL_ENGINE_H
#define US_MODEL_ENGINE_H

#include "model/recipe.h"

typedef struct us_engine us_engine;
typedef struct us_seq us_seq;

typedef enum us_compute { US_COMPUTE_F32, US_COMPUTE_BF16 } us_compute;

typedef struct us_engine_options {
    us_compute compute;
    bool exact;  /* serial recurrences */
    bool stream; /* drop a layer's weights after use */
} us_engine_options;

/** st and its checkpoint are borrowed and must outlive the engine. Options NULL = zeros. Missing and mis-shaped tensors are found here (classes "tensor-missing", "shape"). */
us_status us_engine_open(us_ctx *ctx, const us_structure *st, const us_engine_options *options, us_engine **out, us_err *err) US_WARN_UNUSED;
/** Free its sequences first. NULL is fine. */
void us_engine_free(us_engine *e);
const us_recipe *us_engine_recipe(const us_engine *e);
/** Longest sequence: the config's context, times the factor of a dynamic rope. 0 = not said. */
uint64_t us_engine_context(const us_engine *e);
/** Bytes of weights as packed when all are used; of the largest layer; of one position in the caches. */
typedef struct us_engine_size {
    uint64_t weights, largest_layer, per_position, per_sequence;
} us_engine_size;
us_engine_size us_engine_size_of(const us_engine *e);

/** An empty sequence. */
us_status us_seq_create(us_engine *e, us_seq **out, us_err *err) US_WARN_UNUSED;
void us_seq_free(us_seq *s);
/** A copy that goes on independently; full pages are shared. */
us_status us_seq_fork(const us_seq *s, us_seq **out, us_err *err) US_WARN_UNUSED;
/** Forget all tokens from position n on. Models with recurrent layers cannot (class "recurrent", nothing changes) unless n is 0 or the length: fork before. */
us_status us_seq_truncate(us_seq *s, size_t n, us_err *err) US_WARN_UNUSED;
size_t us_seq_length(const us_seq *s);
/** Bytes of its states, shared pages included. */
size_t us_seq_bytes(const us_seq *s);

/** The next n tokens of one sequence; logits are wanted for the last `want` of them. */
typedef struct us_segment {
    us_seq *seq;
    const int64_t *ids;
    size_t n, want;
} us_segment;

/** What the engine shows while it runs: rows = tokens of all segments, in order; borrowed for the call. experts ascending by number. */
typedef struct us_engine_taps {
    void (*layer)(void *user, uint32_t layer, const char *what, const float *x, size_t rows, size_t cols); /* what: "attn", "ffn", "out" */
    void (*route)(void *user, uint32_t layer, const uint32_t *experts, const float *weights, const float *logits, size_t rows, size_t k, size_t n_logits);
    void *user;
} us_engine_taps;

/**
 * Append every segment's tokens to its sequence. logits [sum of want, V], in order; NULL when nothing is wanted. taps may be NULL.
 * Before any work: "token-range", "context", "empty". A sequence may occur once. After a failure in the middle, sequences of models with recurrent layers
 * are unusable (class "broken") and others unchanged.
 */
us_status us_engine_run(us_engine *e, const us_segment *segs, size_t n, const us_engine_taps *taps, float *logits, us_err *err) US_WARN_UNUSED;

#endif
