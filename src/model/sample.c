/* Options, processing of one row, and the draw. See sample.h; the loops over V are in sample_math.c, log-probabilities of targets in sample_logprobs.c. */
#include "model/sample.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "model/sample_math.h"

struct us_sampler {
    size_t V;
    double *x, *e;      /* candidates: processed logits, and exp(x - max) once has_e */
    uint32_t *ids;      /* of the candidates, ascending; not used while n == V */
    size_t n;
    double max;         /* of x when the temperature was applied; never below any candidate */
    bool has_e;
    us_sample_sums sums; /* over the candidates, when has_e */
    double *blocks;      /* of us_sample_exp */
    uint8_t *stays;      /* what a filter decided */
    uint32_t *seen;      /* zero between calls: output count, and PROMPT */
    uint64_t *keys;
    double *weights;
};

static const uint32_t PROMPT = UINT32_C(1) << 31;

void us_sampler_free(us_sampler *s) {
    if (!s) return;
    us_free(s->x);
    us_free(s->e);
    us_free(s->ids);
    us_free(s->blocks);
    us_free(s->stays);
    us_free(s->seen);
    us_free(s->keys);
    us_free(s->weights);
    us_free(s);
}

us_status us_sampler_create(size_t V, us_sampler **out, us_err *err) {
    if (V == 0 || V > INT32_MAX) return us_fail(err, US_E_INVAL, "range", "a vocabulary of %zu tokens cannot be sampled", V);
    us_sampler *s = us_calloc(1, sizeof *s);
    if (!s) return us_fail_nomem(err, "making a sampler");
    s->V = V;
    s->x = us_malloc_aligned(V * sizeof *s->x);
    s->e = us_malloc_aligned(V * sizeof *s->e);
    s->ids = us_malloc(V * sizeof *s->ids);
    s->blocks = us_malloc((V / US_SAMPLE_BLOCK + 1) * sizeof *s->blocks);
    s->stays = us_malloc(V);
    s->seen = us_calloc(V, sizeof *s->seen);
    s->keys = us_malloc(V * sizeof *s->keys);
    s->weights = us_malloc(V * sizeof *s->weights);
    if (!s->x || !s->e || !s->ids || !s->blocks || !s->stays || !s->seen || !s->keys || !s->weights) {
        us_sampler_free(s);
        return us_fail_nomem(err, "making a sampler");
    }
    *out = s;
    return US_OK;
}

/* ---- options ---- */

static us_status bad_option(us_err *err, const char *name, double value, const char *rule) {
    us_fail(err, US_E_INVAL, "range", "%s is %g, but must be %s", name, value, rule);
    return us_err_where(err, "%s", name), US_E_INVAL;
}

static us_status check_bias(const us_sampling *o, size_t V, us_err *err) {
    for (size_t i = 0; i < o->n_bias; i++) {
        if (!(o->bias[i].bias < HUGE_VAL)) return bad_option(err, "bias", o->bias[i].bias, "finite or -inf");
        if (o->bias[i].id < V) continue;
        us_fail(err, US_E_INVAL, "token-range", "a bias names token %u, but there are %zu", o->bias[i].id, V);
        return us_err_where(err, "bias"), US_E_INVAL;
    }
    return US_OK;
}

us_status us_sampling_check(const us_sampling *o, size_t V, us_err *err) {
    if (o->order != US_ORDER_TRANSFORMERS && o->order != US_ORDER_VLLM) return bad_option(err, "order", o->order, "one of two");
    if (!(o->temperature >= 0 && o->temperature < HUGE_VAL)) return bad_option(err, "temperature", o->temperature, "0 (greedy) or a positive number");
    if (!(o->top_p >= 0 && o->top_p <= 1)) return bad_option(err, "top_p", o->top_p, "from 0 to 1");
    if (!(o->min_p >= 0 && o->min_p <= 1)) return bad_option(err, "min_p", o->min_p, "from 0 to 1");
    if (!(o->typical_p > 0 && o->typical_p <= 1)) return bad_option(err, "typical_p", o->typical_p, "above 0 and at most 1");
    if (!(o->epsilon >= 0 && o->epsilon < 1)) return bad_option(err, "epsilon", o->epsilon, "from 0 to below 1");
    if (!(o->eta >= 0 && o->eta < 1)) return bad_option(err, "eta", o->eta, "from 0 to below 1");
    if (!(o->repetition > 0 && o->repetition < HUGE_VAL)) return bad_option(err, "repetition", o->repetition, "a positive number");
    if (!isfinite(o->frequency)) return bad_option(err, "frequency", o->frequency, "finite");
    if (!isfinite(o->presence)) return bad_option(err, "presence", o->presence, "finite");
    return check_bias(o, V, err);
}

static us_status check_past(const us_sample_past *p, size_t V, us_err *err) {
    if (!p) return US_OK;
    for (size_t i = 0; i < p->n_prompt + p->n_output; i++) {
        uint32_t id = i < p->n_prompt ? p->prompt[i] : p->output[i - p->n_prompt];
        if (id < V) continue;
        us_fail(err, US_E_INVAL, "token-range", "token %u is not below %zu", id, V);
        return us_err_where(err, "%s token %zu", i < p->n_prompt ? "prompt" : "output", i < p->n_prompt ? i : i - p->n_prompt), US_E_INVAL;
    }
    return US_OK;
}

/* ---- loading, penalties, temperature ---- */

/* Scan x[V]; max out. stage: what the numbers are, for the message. */
static us_status scan(us_sampler *s, const char *stage, us_err *err) {
    size_t at = us_sample_scan(s->x, s->V, &s->max);
    if (at < s->V) {
        us_fail(err, US_E_NONFINITE, "nonfinite", "a logit is %s%s", isnan(s->x[at]) ? "NaN" : "+inf", stage);
        return us_err_where(err, "token %zu", at), US_E_NONFINITE;
    }
    if (s->max == -HUGE_VAL) return us_fail(err, US_E_NONFINITE, "nonfinite", "every logit is -inf%s: no token can be drawn", stage);
    return US_OK;
}

static us_status load(us_sampler *s, const float *f32, const double *f64, us_err *err) {
    if (f64) memcpy(s->x, f64, s->V * sizeof *s->x);
    else
        for (size_t i = 0; i < s->V; i++) s->x[i] = (double)f32[i];
    s->n = s->V;
    s->has_e = false;
    return scan(s, "", err);
}

/* Each distinct token once; seen goes back to zero. */
static void penalise(us_sampler *s, const us_sampling *o, const uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t seen = s->seen[ids[i]];
        double x = s->x[ids[i]];
        if (!seen) continue;
        s->seen[ids[i]] = 0;
        x = x > 0 ? x / o->repetition : x * o->repetition;
        if (seen & ~PROMPT) x = x - o->frequency * (double)(seen & ~PROMPT) - o->presence;
        s->x[ids[i]] = x;
    }
}

/* Bias and penalties; true when anything may have changed. */
static bool shape(us_sampler *s, const us_sampling *o, const us_sample_past *p) {
    bool penalties = p && (o->repetition != 1 || o->frequency != 0 || o->presence != 0);
    for (size_t i = 0; i < o->n_bias; i++) s->x[o->bias[i].id] += o->bias[i].bias;
    if (penalties) {
        for (size_t i = 0; i < p->n_output; i++) s->seen[p->output[i]]++;
        for (size_t i = 0; i < p->n_prompt; i++) s->seen[p->prompt[i]] |= PROMPT;
        penalise(s, o, p->prompt, p->n_prompt);
        penalise(s, o, p->output, p->n_output);
    }
    return penalties || o->n_bias > 0;
}

/* A row whose largest logit would overflow is first moved to 0: the same distribution. */
static void heat(us_sampler *s, double T) {
    double shift = isfinite(s->max / T) ? 0 : s->max;
    if (T == 1) return;
    for (size_t i = 0; i < s->V; i++) s->x[i] = (s->x[i] - shift) / T;
    s->max = (s->max - shift) / T;
}

/* ---- truncation: each filter writes stays[n], then compact ---- */

static void need_e(us_sampler *s) {
    if (s->has_e) return;
    s->sums = us_sample_exp(s->x, s->n, s->max, 1, true, s->e, s->blocks);
    s->has_e = true;
}

static void compact(us_sampler *s) {
    size_t kept = 0;
    bool all = s->n == s->V;
    for (size_t i = 0; i < s->n; i++) {
        uint32_t id = all ? (uint32_t)i : s->ids[i];
        s->ids[kept] = id;
        s->x[kept] = s->x[i];
        if (s->has_e) s->e[kept] = s->e[i];
        kept += s->stays[i];
    }
    if (kept == s->n) return;
    s->n = kept;
    if (s->has_e) s->sums = us_sample_exp(s->x, kept, s->max, 1, false, s->e, s->blocks);
}

static void top_k(us_sampler *s, uint32_t k) {
    us_sample_cut cut;
    if (k == 0 || k >= s->n || !us_sample_select(s->x, NULL, s->n, s->max, k, s->keys, s->weights, &cut)) return;
    for (size_t i = 0; i < s->n; i++) s->stays[i] = s->x[i] >= cut.value;
    compact(s);
}

static void top_p(us_sampler *s, double p) {
    us_sample_cut cut;
    if (p >= 1) return;
    need_e(s);
    double target = p * s->sums.e;
    if (!us_sample_select(s->x, s->e, s->n, s->max, target, s->keys, s->weights, &cut)) return;
    size_t ties = 1; /* of the equal tokens at the boundary as many as are needed, lowest ids first */
    while (ties < cut.ties && cut.before + (double)ties * cut.weight < target) ties++;
    for (size_t i = 0; i < s->n; i++) {
        bool tie = s->x[i] == cut.value;
        s->stays[i] = s->x[i] > cut.value || (tie && ties > 0);
        ties -= tie && ties > 0;
    }
    compact(s);
}

/* Is exp(d) < bound? Asked of the C library where the own exponential is too close to say. */
static bool below(double e, double d, double bound) {
    return fabs(e - bound) > 1e-13 * bound ? e < bound : exp(d) < bound;
}

static void min_p(us_sampler *s, double p) {
    if (p <= 0) return;
    double low = log(p) - 1e-6, high = log(p) + 1e-6; /* outside them no exponential is needed */
    for (size_t i = 0; i < s->n; i++) {
        double d = s->x[i] - s->max;
        s->stays[i] = d > high || (d >= low && !(exp(d) < p));
    }
    compact(s);
}

static double entropy_of(us_sample_sums sums) {
    double h = log(sums.e) - sums.ed / sums.e;
    return h > 0 ? h : 0;
}

static void typical_p(us_sampler *s, double p) {
    if (p >= 1) return;
    need_e(s);
    double log_sum = log(s->sums.e), entropy = log_sum - s->sums.ed / s->sums.e, best;
    double *y = s->weights; /* us_sample_select allows it */
    for (size_t i = 0; i < s->n; i++) y[i] = -fabs(log_sum - (s->x[i] - s->max) - entropy);
    us_sample_scan(y, s->n, &best);
    us_sample_cut cut;
    if (!us_sample_select(y, s->e, s->n, best, p * s->sums.e, s->keys, s->weights, &cut)) return;
    for (size_t i = 0; i < s->n; i++) s->stays[i] = -fabs(log_sum - (s->x[i] - s->max) - entropy) >= cut.value;
    compact(s);
}

static void cut_below(us_sampler *s, double p) {
    double top, bound = p * s->sums.e;
    us_sample_scan(s->x, s->n, &top); /* typical-p may have cut the one that max came from */
    for (size_t i = 0; i < s->n; i++) s->stays[i] = s->x[i] == top || !below(s->e[i], s->x[i] - s->max, bound);
    compact(s);
}

static void epsilon(us_sampler *s, double p) {
    if (p <= 0) return;
    need_e(s);
    cut_below(s, p);
}

static void eta(us_sampler *s, double p) {
    if (p <= 0) return;
    need_e(s);
    double as_float = (double)(float)p;
    cut_below(s, fmin(as_float, (double)sqrtf((float)p) * exp(-entropy_of(s->sums))));
}

/* Everything between the raw row and the draw; greedy leaves one candidate. */
static us_status process(us_sampler *s, const us_sampling *o, const us_sample_past *past, us_err *err) {
    if (shape(s, o, past)) {
        s->has_e = false;
        US_TRY(scan(s, " after bias and penalties", err));
    }
    if (o->temperature == 0) {
        uint32_t best = 0;
        while (s->x[best] != s->max) best++;
        s->ids[0] = best;
        s->x[0] = s->max;
        s->e[0] = 1;
        s->n = 1;
        s->has_e = true;
        s->sums = (us_sample_sums){1, 0};
        return US_OK;
    }
    if (o->temperature != 1) s->has_e = false;
    heat(s, o->temperature);
    if (o->order == US_ORDER_VLLM) min_p(s, o->min_p);
    top_k(s, o->top_k);
    top_p(s, o->top_p);
    if (o->order == US_ORDER_TRANSFORMERS) min_p(s, o->min_p);
    typical_p(s, o->typical_p);
    epsilon(s, o->epsilon);
    eta(s, o->eta);
    return US_OK;
}

static us_status process_row(us_sampler *s, const us_sampling *o, const us_sample_past *past, const float *f32, const double *f64, us_err *err) {
    US_TRY(us_sampling_check(o, s->V, err));
    US_TRY(check_past(past, s->V, err));
    US_TRY(load(s, f32, f64, err));
    return process(s, o, past, err);
}

static uint32_t id_of(const us_sampler *s, size_t i) {
    return s->n == s->V ? (uint32_t)i : s->ids[i];
}

us_status us_sample_process(us_sampler *s, const us_sampling *o, const us_sample_past *past, const double *logits, double *out, us_err *err) {
    US_TRY(process_row(s, o, past, NULL, logits, err));
    for (size_t i = 0; i < s->V && s->n < s->V; i++) out[i] = -HUGE_VAL;
    for (size_t i = 0; i < s->n; i++) out[id_of(s, i)] = s->x[i];
    return US_OK;
}

us_status us_sample_process_f32(us_sampler *s, const us_sampling *o, const us_sample_past *past, const float *logits, float *out, us_err *err) {
    US_TRY(process_row(s, o, past, logits, NULL, err));
    for (size_t i = 0; i < s->V && s->n < s->V; i++) out[i] = -HUGE_VALF;
    for (size_t i = 0; i < s->n; i++) out[id_of(s, i)] = (float)s->x[i];
    return US_OK;
}

/* ---- the draw ---- */

double us_sample_uniform(us_sample_key key) {
    /* Another stream than weights, shuffles and the like made from the same seed. */
    return us_rng_double(key.seed ^ UINT64_C(0x73616d706c696e67), key.sequence, key.position);
}

/* The first candidate at which the running sum passes u; sums by block first. Rounding may hide it: then the last that has weight. */
static size_t draw(const us_sampler *s, double u) {
    double target = u * s->sums.e, at = 0;
    size_t b = 0, i, last = 0;
    for (; (b + 1) * US_SAMPLE_BLOCK < s->n && at + s->blocks[b] <= target; b++) at += s->blocks[b];
    for (i = b * US_SAMPLE_BLOCK; i < s->n; i++) {
        if (s->e[i] > 0) last = i;
        at += s->e[i];
        if (at > target && s->e[i] > 0) return i;
    }
    return s->e[last] > 0 ? last : 0;
}

/* Tokens with the largest raw logits of x[V], descending, ties by id. */
static size_t largest(us_sampler *s, us_sample_top *top, size_t n, double log_norm) {
    us_sample_cut cut = {-HUGE_VAL, 0, 0, 0};
    n = n < s->V ? n : s->V;
    if (n == 0) return 0;
    us_sample_select(s->x, NULL, s->V, s->max, (double)n, s->keys, s->weights, &cut);
    size_t found = 0, ties = n - (size_t)cut.before;
    for (size_t i = 0; i < s->V && found < n; i++) {
        bool tie = s->x[i] == cut.value;
        if (s->x[i] < cut.value || (tie && ties == 0)) continue;
        ties -= tie;
        double logp = s->x[i] - log_norm;
        size_t j = found++;
        for (; j > 0 && top[j - 1].logp_raw < logp; j--) top[j] = top[j - 1];
        top[j] = (us_sample_top){(uint32_t)i, logp, -HUGE_VAL};
    }
    return n;
}

/* Processed logit of a token, -inf when it was cut. */
static double find(const us_sampler *s, uint32_t id) {
    size_t low = 0, high = s->n;
    if (s->n == s->V) return s->x[id];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->ids[mid] < id) low = mid + 1;
        else high = mid;
    }
    return low < s->n && s->ids[low] == id ? s->x[low] : -HUGE_VAL;
}

static us_status next(us_sampler *s, const us_sampling *o, const us_sample_past *past, const float *f32, const double *f64, us_sample_key key,
                      us_sampled *out, us_sample_top *top, size_t n_top, us_err *err) {
    us_sampled r = {0};
    if (n_top > US_SAMPLE_TOP_MAX) return bad_option(err, "n_top", (double)n_top, "at most 1024");
    US_TRY(us_sampling_check(o, s->V, err));
    US_TRY(check_past(past, s->V, err));
    US_TRY(load(s, f32, f64, err));
    need_e(s);
    double raw_norm = s->max + log(s->sums.e);
    r.entropy_raw = entropy_of(s->sums);
    r.n_top = largest(s, top, n_top, raw_norm);
    US_TRY(process(s, o, past, err));
    need_e(s);
    size_t at = o->temperature == 0 ? 0 : draw(s, us_sample_uniform(key));
    r.id = id_of(s, at);
    r.logp_raw = (f64 ? f64[r.id] : (double)f32[r.id]) - raw_norm;
    double log_sum = log(s->sums.e);
    r.logp = s->x[at] - s->max - log_sum;
    r.entropy = entropy_of(s->sums);
    r.n_kept = 0;
    for (size_t i = 0; i < s->n; i++) r.n_kept += s->x[i] > -HUGE_VAL;
    for (size_t i = 0; i < r.n_top; i++) top[i].logp = find(s, top[i].id) - s->max - log_sum;
    *out = r;
    return US_OK;
}

us_status us_sample_next(us_sampler *s, const us_sampling *o, const us_sample_past *past, const float *logits, us_sample_key key, us_sampled *out,
                         us_sample_top *top, size_t n_top, us_err *err) {
    return next(s, o, past, logits, NULL, key, out, top, n_top, err);
}

us_status us_sample_next_f64(us_sampler *s, const us_sampling *o, const us_sample_past *past, const double *logits, us_sample_key key, us_sampled *out,
                             us_sample_top *top, size_t n_top, us_err *err) {
    return next(s, o, past, NULL, logits, key, out, top, n_top, err);
}
