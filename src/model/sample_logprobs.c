/* Log-probability, entropy, their gradients, and KL of rows of logits. See sample.h. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "model/sample.h"
#include "model/sample_math.h"

typedef struct job {
    const us_logprobs_in *in;
    const us_logprobs_out *out;
    double *scratch;  /* 3V a thread */
    uint32_t *bad_at; /* [rows]: V = good; V + 1 = nothing but -inf */
} job;

/* Weights e of x with their sums; max is subtracted before the division, so that no temperature overflows. */
static us_sample_sums weigh(const double *x, size_t V, double T, double max, double *e) {
    return us_sample_exp(x, V, max, fmin(1 / T, 1.7e308), true, e, NULL);
}

static void gradient_of_logp(const job *j, size_t row, const double *e, double sum, double *grad) {
    size_t V = j->in->V, target = j->in->targets[row];
    double T = j->in->temperature;
    for (size_t i = 0; i < V; i++) grad[i] = ((i == target) - e[i] / sum) / T;
}

static void gradient_of_entropy(const job *j, const double *x, double max, const double *e, us_sample_sums s, double *grad) {
    double T = j->in->temperature, log_sum = log(s.e), entropy = log_sum - s.ed / s.e;
    for (size_t i = 0; i < j->in->V; i++)
        grad[i] = e[i] > 0 ? -(e[i] / s.e) * ((x[i] - max) / T - log_sum + entropy) / T : 0;
}

/* Log-probability of the target among the kept tokens and itself. mask: scratch. */
static void target_logp(const job *j, size_t row, const double *x, double max, double *e, us_sample_sums s, double *mask) {
    size_t V = j->in->V, target = j->in->targets[row];
    double T = j->in->temperature;
    const double *in = x;
    if (j->in->keep) {
        const uint8_t *keep = j->in->keep + row * V;
        for (size_t i = 0; i < V; i++) mask[i] = keep[i] || i == target ? x[i] : -HUGE_VAL;
        us_sample_scan(mask, V, &max);
        in = mask;
        if (max > -HUGE_VAL) s = weigh(in, V, T, max, e);
    }
    bool none = !(max > -HUGE_VAL); /* only the target was kept, and it is -inf */
    if (j->out->logp) j->out->logp[row] = none ? -HUGE_VAL : (x[target] - max) / T - log(s.e);
    if (!j->out->grad_logp) return;
    if (none) memset(j->out->grad_logp + row * V, 0, V * sizeof *e);
    else gradient_of_logp(j, row, e, s.e, j->out->grad_logp + row * V);
}

static void one_row(void *arg, int64_t r, int thread) {
    job *j = arg;
    size_t row = (size_t)r, V = j->in->V, bad;
    double *x = j->scratch + (size_t)thread * 3 * V, *e = x + V, *mask = e + V, max, T = j->in->temperature;
    if (j->in->f64) memcpy(x, j->in->f64 + row * V, V * sizeof *x);
    else
        for (size_t i = 0; i < V; i++) x[i] = (double)j->in->f32[row * V + i];
    bad = us_sample_scan(x, V, &max);
    j->bad_at[row] = (uint32_t)(bad == V && !(max > -HUGE_VAL) ? V + 1 : bad);
    if (j->bad_at[row] != V) return;
    us_sample_sums s = weigh(x, V, T, max, e);
    if (j->out->entropy) {
        double h = log(s.e) - s.ed / s.e;
        j->out->entropy[row] = h > 0 ? h : 0;
    }
    if (j->out->grad_entropy) gradient_of_entropy(j, x, max, e, s, j->out->grad_entropy + row * V);
    if (j->out->logp || j->out->grad_logp) target_logp(j, row, x, max, e, s, mask);
}

static us_status check(const us_logprobs_in *in, const us_logprobs_out *out, us_err *err) {
    if (!(in->temperature > 0 && in->temperature < HUGE_VAL))
        return us_fail(err, US_E_INVAL, "range", "temperature is %g, but must be a positive number", in->temperature);
    if (in->V == 0 || in->V > INT32_MAX || !in->f32 == !in->f64) return us_fail(err, US_E_INVAL, "range", "one array of logits is needed, with tokens");
    if (!out->logp && !out->grad_logp) return US_OK;
    if (!in->targets) return us_fail(err, US_E_INVAL, "range", "log-probabilities need targets");
    for (size_t r = 0; r < in->rows; r++) {
        if (in->targets[r] < in->V) continue;
        us_fail(err, US_E_INVAL, "token-range", "target %u is not below %zu", in->targets[r], in->V);
        return us_err_where(err, "row %zu", r), US_E_INVAL;
    }
    return US_OK;
}

static us_status refuse(const us_logprobs_in *in, size_t row, size_t at, us_err *err) {
    if (at > in->V) us_fail(err, US_E_NONFINITE, "nonfinite", "every logit of the row is -inf");
    else {
        double x = in->f64 ? in->f64[row * in->V + at] : (double)in->f32[row * in->V + at];
        us_fail(err, US_E_NONFINITE, "nonfinite", "a logit is %s", isnan(x) ? "NaN" : "+inf");
        us_err_where(err, "token %zu", at);
    }
    return us_err_where(err, "row %zu", row), US_E_NONFINITE;
}

us_status us_logprobs(us_pool *pool, const us_logprobs_in *in, const us_logprobs_out *out, us_err *err) {
    size_t n;
    us_status s = US_OK;
    US_TRY(check(in, out, err));
    if (!us_mul_size(in->V, 3 * (size_t)us_pool_threads(pool), &n)) return us_fail_nomem(err, "computing log-probabilities");
    job j = {in, out, us_calloc(n, sizeof(double)), us_calloc(in->rows + 1, sizeof(uint32_t))};
    if (!j.scratch || !j.bad_at) s = us_fail_nomem(err, "computing log-probabilities");
    else us_pool_run(pool, one_row, &j, (int64_t)in->rows);
    for (size_t r = 0; s == US_OK && r < in->rows; r++)
        if (j.bad_at[r] != in->V) s = refuse(in, r, j.bad_at[r], err);
    us_free(j.scratch);
    us_free(j.bad_at);
    return s;
}

us_status us_logits_kl(size_t rows, size_t V, const double *p, const double *q, double *kl, us_err *err) {
    const us_logprobs_in in[2] = {{.rows = rows, .V = V, .f64 = p}, {.rows = rows, .V = V, .f64 = q}};
    double *e = us_calloc(V, sizeof *e);
    us_status s = e ? US_OK : us_fail_nomem(err, "computing a divergence");
    for (size_t r = 0; s == US_OK && r < rows; r++) {
        const double *x[2] = {p + r * V, q + r * V};
        double max[2], norm[2], sum = 0;
        for (int k = 0; s == US_OK && k < 2; k++) { /* q first: e is that of p in the end */
            size_t at = us_sample_scan(x[1 - k], V, &max[1 - k]);
            if (at < V || !(max[1 - k] > -HUGE_VAL)) s = refuse(&in[1 - k], r, at < V ? at : V + 1, err);
            else norm[1 - k] = us_sample_exp(x[1 - k], V, max[1 - k], 1, true, e, NULL).e;
        }
        if (s != US_OK) break;
        double shift = log(norm[1]) - log(norm[0]); /* of log p - log q */
        for (size_t i = 0; i < V; i++)
            if (e[i] > 0) sum += e[i] / norm[0] * ((x[0][i] - max[0]) - (x[1][i] - max[1]) + shift);
        kl[r] = sum;
    }
    us_free(e);
    return s;
}
