/**
 * Continuing texts: prompts in, tokens out, many sequences in one batch of the engine.
 *
 * Sequences run together, at most `batch` at a time; one that ends makes room for the next prompt. A token depends on its own sequence, the seed and the
 * number of the prompt alone, so the answer is the same for any batch and any number of threads. Nothing is drawn that does not fit the model's context: prompt and
 * max_new are checked before anything runs.
 * Sampling: model/sample.h. Not here: text (the caller decodes ids), speculation. Tests: tests/unit/test_engine.c, tests/golden/test_fix_generate.c.
 */
#ifndef US_MODEL_GENERATE_H
#define US_MODEL_GENERATE_H

#include "model/engine/engine.h"
#include "model/sample.h"

typedef struct us_generate_options {
    us_sampling sampling;
    uint64_t seed;
    size_t max_new;
    const uint32_t *stop; /* ids that end a sequence; they are part of the answer */
    size_t n_stop, n_top; /* n_top: candidates to report beside each token, at most US_SAMPLE_TOP_MAX */
    size_t batch;         /* 0 = 32 */
} us_generate_options;

/** One prompt; ids borrowed. */
typedef struct us_prompt {
    const int64_t *ids;
    size_t n;
} us_prompt;

typedef enum us_finish { US_FINISH_LENGTH, US_FINISH_STOP } us_finish;

typedef struct us_generated {
    int64_t *ids;         /* prompt and continuation */
    us_sampled *tokens;   /* of the continuation */
    us_sample_top *top;   /* [n - n_prompt, n_top], NULL when n_top is 0 */
    size_t n, n_prompt, n_top;
    us_finish finish;
} us_generated;

/** Called for every token as it is drawn; `text` is the number of the prompt. A status other than US_OK ends the run with it. */
typedef us_status us_token_fn(void *user, size_t text, const us_sampled *token, us_err *err);

/**
 * Continue every prompt. out[n] is filled (free each with us_generated_free); on failure nothing stays in it. on_token may be NULL.
 * Classes before any work: "empty", "token-range", "context", "range" (an option).
 */
us_status us_generate(us_ctx *ctx, us_engine *e, const us_generate_options *o, const us_prompt *prompts, size_t n, us_token_fn *on_token, void *user, us_generated *out,
                      us_err *err) US_WARN_UNUSED;
void us_generated_free(us_generated *g);

/**
 * Ids that end a text, from generation_config.json beside the checkpoint, else from config.json (eos_token_id: a number or a list). *ids from us_malloc; none is
 * fine. Ids outside the vocabulary are left out.
 */
us_status us_stop_ids(const us_structure *st, uint32_t **ids, size_t *n, us_err *err) US_WARN_UNUSED;

#endif
