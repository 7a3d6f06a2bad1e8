/**
 * From logits to a token: penalties, temperature, truncation, one draw, and the log-probabilities that reinforcement learning needs.
 *
 * Everything works in double, whatever the logits were, one row of V logits at a time, in O(V). A row holds finite numbers and -inf (a token that
 * cannot be drawn). NaN, +inf and a row of -inf only are refused, US_E_NONFINITE, class "nonfinite", with the position.
 *
 * Two orders. They differ in where min-p stands, and so in what survives:
 *   transformers: bias, repetition, [frequency, presence], temperature, top-k, top-p, min-p, typical-p, epsilon, eta
 *   vLLM:         bias, repetition, frequency, presence, temperature, min-p, top-k, top-p, [typical-p, epsilon, eta]
 * What stands in brackets is absent from that project and stands where it would belong. Each truncation renormalises what the one before it left.
 *
 * Boundaries, where the projects agree unless named:
 *   repetition   each token of prompt or output once: logits > 0 are divided, others multiplied. frequency (times the count) and presence look at the
 *                output only. They come before temperature: a bias of 2 at temperature 0.5 weighs 4.
 *   top-k        every token equal to the k-th stays, so more than k can stay.
 *   top-p        tokens stay in descending order while the sum before them is below p: the token that crosses stays, at least one does. (The projects
 *                cut while the ascending sum is <= 1 - p, which is the same but for rounding where a sum meets the boundary.) Of equal tokens at the
 *                boundary the lowest ids stay; the projects leave that to an unstable sort.
 *   min-p        p_i < min_p * p_max is cut, equality stays.
 *   typical-p    tokens by |surprise - entropy| ascending while the sum before is below p, and all that are equal to the last.
 *   epsilon      p_i < epsilon is cut, never the maximum. eta: the bound is min(eta, sqrt(eta) * exp(-entropy)), eta first rounded to float as
 *                transformers does.
 * Source of the facts: fixtures/rl/README.md ("Samplers") and the code of both projects named there.
 *
 * Cost: one exponential a token for the raw log-probabilities, one more where temperature, penalties or a bias change the row and no top-k or min-p has
 * shortened it; truncation is one histogram over V. No sorting. 1 to 3 ms for V = 200000 on one AVX2 core.
 *
 * Randomness is a function of (seed, sequence, position): the same token whatever the batch, the order of calls, or speculation.
 * Not here: grammars and stop words (a mask is a bias of -inf). Tests: tests/unit/test_sample.c, tests/golden/test_fix_samplers.c.
 */
#ifndef US_MODEL_SAMPLE_H
#define US_MODEL_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "understudy/us_status.h"

typedef enum us_sample_order { US_ORDER_TRANSFORMERS, US_ORDER_VLLM } us_sample_order;

typedef struct us_logit_bias {
    uint32_t id; /* each id at most once */
    double bias; /* finite, or -inf: the token is never drawn */
} us_logit_bias;

/** Start from US_SAMPLING_DEFAULTS. */
typedef struct us_sampling {
    us_sample_order order;
    double temperature; /* 0 = greedy: the largest logit after bias and penalties, ties to the lowest id. Else any positive number */
    uint32_t top_k;     /* 0 = off; more than V keeps all */
    double top_p;       /* [0, 1]; 1 = off, 0 keeps one */
    double min_p;       /* [0, 1]; 0 = off */
    double typical_p;   /* (0, 1]; 1 = off */
    double epsilon;     /* [0, 1); 0 = off */
    double eta;         /* [0, 1); 0 = off */
    double repetition;  /* > 0; 1 = off */
    double frequency, presence; /* finite; 0 = off */
    const us_logit_bias *bias;  /* borrowed for the call */
    size_t n_bias;
} us_sampling;

#define US_SAMPLING_DEFAULTS {.temperature = 1.0, .top_p = 1.0, .typical_p = 1.0, .repetition = 1.0}

/** Tokens so far, for the penalties; borrowed. Ids below V. */
typedef struct us_sample_past {
    const uint32_t *prompt, *output;
    size_t n_prompt, n_output;
} us_sample_past;

/** What a draw depends on. position: absolute index of the new token in its sequence. */
typedef struct us_sample_key {
    uint64_t seed, sequence, position;
} us_sample_key;

/** The uniform number in [0, 1) of a key: the token is where it falls in the cumulative distribution in order of ids. */
double us_sample_uniform(us_sample_key key);

enum { US_SAMPLE_TOP_MAX = 1024 };

typedef struct us_sample_top {
    uint32_t id;
    double logp_raw, logp; /* as in us_sampled; logp is -inf where truncation removed the token */
} us_sample_top;

typedef struct us_sampled {
    uint32_t id;
    double logp_raw;    /* log-softmax of the logits as given */
    double logp;        /* of the distribution that was drawn from: after everything, renormalised; greedy: 0 */
    double entropy_raw; /* nats */
    double entropy;     /* greedy: 0 */
    size_t n_kept;      /* tokens that could have been drawn; greedy: 1 */
    size_t n_top;       /* entries written to top: min(asked for, V) */
} us_sampled;

/** Scratch of one thread for rows of up to V logits; 41 bytes a logit. */
typedef struct us_sampler us_sampler;
us_status us_sampler_create(size_t V, us_sampler **out, us_err *err) US_WARN_UNUSED;
void us_sampler_free(us_sampler *s);

/** Are the options usable for V logits? Else US_E_INVAL, class "range" (an option) or "token-range" (an id of the bias), where = the option. */
us_status us_sampling_check(const us_sampling *o, size_t V, us_err *err) US_WARN_UNUSED;

/**
 * The processed logits out[V] of logits[V] (may be the same array): what was cut becomes -inf, the rest is logits after bias, penalties and temperature.
 * Greedy leaves one. Where logits / temperature would overflow, the maximum is subtracted first. past may be NULL. Errors: "range", "token-range",
 * "nonfinite".
 */
us_status us_sample_process(us_sampler *s, const us_sampling *o, const us_sample_past *past, const double *logits, double *out, us_err *err) US_WARN_UNUSED;
us_status us_sample_process_f32(us_sampler *s, const us_sampling *o, const us_sample_past *past, const float *logits, float *out, us_err *err) US_WARN_UNUSED;

/**
 * Draw one token from logits[V]. top[n_top] (may be NULL, 0) gets the tokens with the largest raw logits, largest first, ties by id; at most
 * US_SAMPLE_TOP_MAX. Errors as above.
 */
us_status us_sample_next(us_sampler *s, const us_sampling *o, const us_sample_past *past, const float *logits, us_sample_key key, us_sampled *out,
                         us_sample_top *top, size_t n_top, us_err *err) US_WARN_UNUSED;
us_status us_sample_next_f64(us_sampler *s, const us_sampling *o, const us_sample_past *past, const double *logits, us_sample_key key, us_sampled *out,
                             us_sample_top *top, size_t n_top, us_err *err) US_WARN_UNUSED;

/** Rows of logits with one target each; exactly one of f32 and f64 is given. */
typedef struct us_logprobs_in {
    size_t rows, V;
    const float *f32;        /* [rows,V] */
    const double *f64;       /* [rows,V] */
    const uint32_t *targets; /* [rows]; may be NULL when no log-probability is asked for */
    const uint8_t *keep;     /* [rows,V] or NULL: the log-probability is over the tokens with 1 and the target; entropy is over all */
    double temperature;      /* > 0: logits are divided by it */
} us_logprobs_in;

/** Any of them may be NULL. Gradients are with respect to the logits as given, of logp[r] and entropy[r], in row r. */
typedef struct us_logprobs_out {
    double *logp;         /* [rows]; -inf where the target's logit is */
    double *entropy;      /* [rows], nats; tokens with -inf count nothing (0 log 0 = 0) */
    double *grad_logp;    /* [rows,V] */
    double *grad_entropy; /* [rows,V] */
} us_logprobs_out;

/**
 * Log-probability and entropy of softmax(logits / temperature), and their gradients, for every row. pool may be NULL; results do not depend on it.
 * Errors: "range", "token-range", "nonfinite" (the first such row), where = row and position; out is then undefined.
 */
us_status us_logprobs(us_pool *pool, const us_logprobs_in *in, const us_logprobs_out *out, us_err *err) US_WARN_UNUSED;

/** KL(p || q) in nats of softmax(p) and softmax(q), rows [rows,V] in double; inf where q has no weight and p has. Errors: "nonfinite". */
us_status us_logits_kl(size_t rows, size_t V, const double *p, const double *q, double *kl, us_err *err) US_WARN_UNUSED;

#endif
