/* Sampling: the loops over V against plain ones, boundaries, the draw and its frequencies, hostile numbers, memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "kernels/dispatch.h"
#include "model/sample.h"
#include "model/sample_math.h"
#include "support/prop.h"
#include "support/support.h"

static us_sampler *sampler(size_t V) {
    us_err err = {0};
    us_sampler *s;
    assert_us_ok(us_sampler_create(V, &s, &err), &err);
    return s;
}

static us_sampling defaults(void) {
    us_sampling o = US_SAMPLING_DEFAULTS;
    return o;
}

/* ---- the loops ---- */

static void the_exponential_is_within_two_ulp(void **state) {
    (void)state;
    for (int i = 0; i < 200000; i++) {
        double x = i == 0 ? 0 : -708.0 * pow(us_rng_double(5, 0, (uint64_t)i), 3), e;
        us_sample_exp(&x, 1, 0, 1, true, &e, NULL);
        double want = exp(x), ulp = nextafter(want, HUGE_VAL) - want;
        if (!(fabs(e - want) <= 2 * ulp)) fail_msg("exp(%.17g) = %.17g, should be %.17g", x, e, want);
    }
    double low[] = {-709, -1e300, -HUGE_VAL, 0}, e[4];
    us_sample_sums s = us_sample_exp(low, 4, 0, 1, true, e, NULL);
    assert_true(e[0] == 0 && e[1] == 0 && e[2] == 0 && e[3] == 1 && s.e == 1 && s.ed == 0);
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    enum { N = 5003 };
    static double x[N], e[2][N], blocks[2][N / US_SAMPLE_BLOCK + 1];
    us_sample_sums s[2] = {{0, 0}, {0, 0}};
    double max[2];
    for (size_t i = 0; i < N; i++) x[i] = i % 97 == 5 ? -HUGE_VAL : 30 * us_rng_normal(1, 2, i);
    for (size_t n = N - 9; n <= N; n++)
        for (int isa = 0; isa < US_ISA_COUNT; isa++) {
            if (!us_isa_force((us_isa)isa)) continue;
            int k = isa != US_ISA_REF;
            assert_int_equal(us_sample_scan(x, n, &max[k]), n);
            s[k] = us_sample_exp(x, n, max[k], 1 / 0.7, true, e[k], blocks[k]);
            assert_memory_equal(&max[0], &max[k], sizeof *max);
            assert_memory_equal(&s[0], &s[k], sizeof *s);
            assert_memory_equal(e[0], e[k], n * sizeof(double));
            assert_memory_equal(blocks[0], blocks[k], (n / US_SAMPLE_BLOCK + 1) * sizeof(double));
            us_sample_sums again = us_sample_exp(x, n, max[k], 1 / 0.7, false, e[k], NULL);
            assert_memory_equal(&again, &s[0], sizeof again);
        }
    us_isa_force(US_ISA_COUNT);
}

typedef struct pair {
    double y, w;
} pair;

static int descending(const void *a, const void *b) {
    double x = ((const pair *)a)->y, y = ((const pair *)b)->y;
    return (x < y) - (x > y);
}

/* Selection against sorting. Weights are whole numbers, so that sums are exact in any order. */
static bool selects_as_sorting_does(us_prop *p, void *arg) {
    (void)arg;
    size_t n = 1 + prop_size(p, 600);
    unsigned kind = (unsigned)prop_below(p, 5);
    double *y = malloc(2 * n * sizeof *y), *w = y + n, *scratch = malloc(n * sizeof *scratch), max = -HUGE_VAL, total = 0, before = 0;
    uint64_t *keys = malloc(n * sizeof *keys);
    pair *sorted = malloc(n * sizeof *sorted);
    bool counted = prop_bool(p), good = true;
    for (size_t i = 0; i < n; i++) {
        double u = prop_unit(p);
        y[i] = kind == 0 ? floor(6 * u) - 3 : kind == 1 ? 1e4 + 1e-12 * floor(9 * u) : kind == 2 ? -900 * u : kind == 3 ? 1 + u * 0x1p-44 : log(u + 1e-300);
        if (kind == 2 && u > 0.9) y[i] = -HUGE_VAL;
        if (i == 0 && !(y[i] > -HUGE_VAL)) y[i] = 0;
        w[i] = counted ? 1 : (double)prop_below(p, 4);
        max = fmax(max, y[i]);
        total += w[i];
        sorted[i] = (pair){y[i], w[i]};
    }
    double target = floor(total * 1.05 * prop_unit(p));
    qsort(sorted, n, sizeof *sorted, descending);
    us_sample_cut cut;
    bool found = us_sample_select(y, counted ? NULL : w, n, max, target, keys, scratch, &cut);
    size_t i = 0, j = 0;
    for (; i < n; i = j) {
        double group = 0;
        for (j = i; j < n && !(sorted[j].y < sorted[i].y); j++) group += sorted[j].w;
        if (before + group >= target) break;
        before += group;
    }
    prop_say(p, "n %zu kind %u target %g of %g", n, kind, target, total);
    if (found != (i < n)) good = prop_wrong(p, "found %d", found);
    else if (found && (cut.value < sorted[i].y || cut.value > sorted[i].y || cut.ties != j - i || cut.before < before || cut.before > before))
        good = prop_wrong(p, "value %.17g ties %zu before %g, should be %.17g %zu %g", cut.value, cut.ties, cut.before, sorted[i].y, j - i, before);
    free(y), free(scratch), free(keys), free(sorted);
    return good;
}

static void selection_equals_sorting(void **state) {
    (void)state;
    prop_run("selection", selects_as_sorting_does, NULL, 3000);
}

/* ---- boundaries ---- */

/* Which of up to 31 tokens stay, as bits. */
static unsigned kept(const us_sampling *o, const double *x, size_t V) {
    us_err err = {0};
    us_sampler *s = sampler(V);
    double out[31];
    unsigned bits = 0;
    assert_us_ok(us_sample_process(s, o, NULL, x, out, &err), &err);
    for (size_t i = 0; i < V; i++) bits |= (unsigned)(out[i] > -HUGE_VAL) << i;
    us_sampler_free(s);
    return bits;
}

static void boundaries_are_as_the_header_says(void **state) {
    (void)state;
    static const double ties[] = {1, 2, 2, 2, 0, 2}, halves[] = {0, 0, -HUGE_VAL};
    us_sampling o = defaults();
    assert_int_equal(kept(&o, ties, 6), 63);
    o.top_k = 2; /* all four that equal the second largest */
    assert_int_equal(kept(&o, ties, 6), 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5);
    o.top_k = 5;
    assert_int_equal(kept(&o, ties, 6), 63 - 16);
    o.top_k = 1000;
    assert_int_equal(kept(&o, ties, 6), 63);
    o = defaults();
    o.top_p = 0; /* one, the lowest id */
    assert_int_equal(kept(&o, ties, 6), 1 << 1);
    o.top_p = 0.5; /* the sum before the second is 0.5 */
    assert_int_equal(kept(&o, halves, 3), 1);
    o.top_p = 0.500001;
    assert_int_equal(kept(&o, halves, 3), 3);
    o = defaults();
    o.min_p = 1;
    assert_int_equal(kept(&o, ties, 6), 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5);
    o.min_p = exp(-1.0); /* equality stays */
    assert_int_equal(kept(&o, ties, 6), 63 - 16);
    o = defaults();
    o.epsilon = 0.99; /* the maximum always stays */
    assert_int_equal(kept(&o, halves, 3), 3);
    double last = 0.0299999995, split[] = {log(0.4), log(0.3), log(0.27 - last / 3), log(0.03 - last * 2 / 3), log(last)};
    o = defaults();
    o.epsilon = 0.03;
    assert_int_equal(kept(&o, split, 5), 7);
    o = defaults();
    o.eta = 0.03; /* 0.02999999933 as float */
    assert_int_equal(kept(&o, split, 5), 7 + 16);
    o = defaults();
    o.temperature = 0;
    assert_int_equal(kept(&o, ties, 6), 1 << 1);
    us_logit_bias b[] = {{1, -HUGE_VAL}, {2, -0.5}, {4, 1.9}};
    o.bias = b;
    o.n_bias = 3;
    assert_int_equal(kept(&o, ties, 6), 1 << 3);
}

static void penalties_leave_no_trace(void **state) {
    (void)state;
    us_err err = {0};
    us_sampler *s = sampler(4);
    static const uint32_t prompt[] = {0, 0, 3}, output[] = {1, 1, 0};
    static const double x[] = {2, 2, 2, -2};
    double out[4];
    us_sampling o = defaults();
    us_sample_past p = {prompt, output, 3, 3};
    o.repetition = 2;
    o.frequency = 0.25;
    o.presence = 0.5;
    for (int again = 0; again < 2; again++) {
        assert_us_ok(us_sample_process(s, &o, &p, x, out, &err), &err);
        static const double want[] = {1 - 0.25 - 0.5, 1 - 0.5 - 0.5, 2, -4};
        assert_memory_equal(out, want, sizeof want);
    }
    us_sampler_free(s);
}

/* ---- the draw ---- */

static void frequencies_follow_the_probabilities(void **state) {
    (void)state;
    enum { V = 3000, N = 40000 }; /* several blocks */
    us_err err = {0};
    us_sampler *s = sampler(V);
    static float x[V];
    static double p[V], seen[V];
    double sum = 0, chi2 = 0;
    for (size_t i = 0; i < V; i++) x[i] = (float)(2 * us_rng_normal(7, 0, i)), sum += exp(1.25 * (double)x[i]);
    for (size_t i = 0; i < V; i++) p[i] = exp(1.25 * (double)x[i]) / sum;
    us_sampling o = defaults();
    o.temperature = 0.8;
    for (uint64_t i = 0; i < N; i++) {
        us_sampled r;
        assert_us_ok(us_sample_next(s, &o, NULL, x, (us_sample_key){11, i % 5, i}, &r, NULL, 0, &err), &err);
        double u = us_sample_uniform((us_sample_key){11, i % 5, i}), at = 0;
        for (size_t k = 0; k < r.id; k++) at += p[k];
        assert_true(at <= u + 1e-12 && u <= at + p[r.id] + 1e-12);
        assert_true(fabs(r.logp - log(p[r.id])) < 1e-11);
        seen[r.id]++;
    }
    int cells = 0;
    double rest = 1, rest_seen = N;
    for (size_t i = 0; i < V; i++) {
        if (p[i] * N < 20) continue;
        chi2 += (seen[i] - p[i] * N) * (seen[i] - p[i] * N) / (p[i] * N);
        rest -= p[i];
        rest_seen -= seen[i];
        cells++;
    }
    chi2 += (rest_seen - rest * N) * (rest_seen - rest * N) / (rest * N);
    assert_true(cells > 100);
    assert_true(fabs(chi2 - cells) < 5 * sqrt(2.0 * cells));
    us_sampler_free(s);
}

/* Bit by bit, without the padding. */
static void same_draw(const us_sampled *a, const us_sampled *b) {
    assert_int_equal(a->id, b->id);
    assert_memory_equal(&a->logp_raw, &b->logp_raw, sizeof *a - offsetof(us_sampled, logp_raw));
}

static void a_token_depends_on_its_key_only(void **state) {
    (void)state;
    enum { V = 1500, ROWS = 12 };
    us_err err = {0};
    us_sampler *s = sampler(V), *t = sampler(V);
    static float x[ROWS][V];
    us_sampled first[ROWS], r;
    int differ = 0;
    us_sampling o = defaults();
    o.temperature = 1.3;
    o.top_p = 0.9;
    for (size_t i = 0; i < ROWS * V; i++) x[i / V][i % V] = (float)(3 * us_rng_normal(3, 0, i));
    for (uint64_t i = 0; i < ROWS; i++) assert_us_ok(us_sample_next(s, &o, NULL, x[i], (us_sample_key){1, i, 5}, &first[i], NULL, 0, &err), &err);
    for (uint64_t i = ROWS; i-- > 0;) {
        assert_us_ok(us_sample_next(t, &o, NULL, x[i], (us_sample_key){1, i, 5}, &r, NULL, 0, &err), &err);
        same_draw(&r, &first[i]);
        assert_us_ok(us_sample_next(t, &o, NULL, x[i], (us_sample_key){2, i, 5}, &r, NULL, 0, &err), &err);
        differ += r.id != first[i].id;
        assert_us_ok(us_sample_next(t, &o, NULL, x[i], (us_sample_key){1, i, 6}, &r, NULL, 0, &err), &err);
        differ += r.id != first[i].id;
    }
    assert_true(differ > ROWS);
    us_sampler_free(s);
    us_sampler_free(t);
}

static void the_numbers_of_a_draw_are_right(void **state) {
    (void)state;
    us_err err = {0};
    us_sampler *s = sampler(5);
    static const double p[] = {0.1, 0.4, 0.1, 0.25, 0.15};
    double x[5], h = 0;
    us_sampled r;
    us_sample_top top[9];
    us_sampling o = defaults();
    for (int i = 0; i < 5; i++) x[i] = log(p[i]) + 3, h -= p[i] * log(p[i]);
    o.top_k = 2;
    assert_us_ok(us_sample_next_f64(s, &o, NULL, x, (us_sample_key){1, 1, 1}, &r, top, 9, &err), &err);
    double q = r.id == 1 ? 0.4 / 0.65 : 0.25 / 0.65;
    assert_true((r.id == 1 || r.id == 3) && fabs(r.logp_raw - log(p[r.id])) < 1e-14 && fabs(r.logp - log(q)) < 1e-14);
    assert_true(fabs(r.entropy_raw - h) < 1e-14 && fabs(r.entropy + q * log(q) + (1 - q) * log(1 - q)) < 1e-14);
    assert_true(r.n_kept == 2 && r.n_top == 5);
    static const uint32_t order[] = {1, 3, 4, 0, 2};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(top[i].id, order[i]);
        assert_true(fabs(top[i].logp_raw - log(p[order[i]])) < 1e-14);
        assert_true(i < 2 ? fabs(top[i].logp - log(p[order[i]] / 0.65)) < 1e-14 : top[i].logp == -HUGE_VAL);
    }
    assert_us_ok(us_sample_next_f64(s, &o, NULL, x, (us_sample_key){1, 1, 1}, &r, top, 4, &err), &err);
    assert_true(r.n_top == 4 && top[3].id == 0); /* of two equal ones the lower id */
    o.temperature = 0;
    assert_us_ok(us_sample_next_f64(s, &o, NULL, x, (us_sample_key){1, 1, 1}, &r, top, 2, &err), &err);
    assert_true(r.id == 1 && r.logp == 0 && r.entropy == 0 && r.n_kept == 1 && top[0].logp == 0 && top[1].logp == -HUGE_VAL);
    assert_true(fabs(r.logp_raw - log(0.4)) < 1e-14);
    us_logit_bias ban = {1, -HUGE_VAL}; /* the raw numbers are those of before, the others not */
    o = defaults();
    o.bias = &ban;
    o.n_bias = 1;
    assert_us_ok(us_sample_next_f64(s, &o, NULL, x, (us_sample_key){1, 1, 1}, &r, top, 1, &err), &err);
    assert_true(r.id != 1 && r.n_kept == 4 && fabs(r.logp - log(p[r.id] / 0.6)) < 1e-14 && fabs(r.logp_raw - log(p[r.id])) < 1e-14);
    assert_true(fabs(r.entropy_raw - h) < 1e-14 && top[0].id == 1 && top[0].logp == -HUGE_VAL);
    us_sampler_free(s);
}

/* ---- hostile numbers ---- */

static void refused(const us_sampling *o, const us_sample_past *past, const double *x, size_t V, const char *cls, const char *where) {
    us_err err = {0};
    us_sampler *s = sampler(V);
    us_sampled r = {.id = 77};
    double out[8] = {42};
    assert_true(V <= 8);
    assert_int_not_equal(us_sample_next_f64(s, o, past, x, (us_sample_key){0, 0, 0}, &r, NULL, 0, &err), US_OK);
    assert_string_equal(err.cls, cls);
    assert_non_null(strstr(err.where, where));
    assert_int_equal(r.id, 77);
    assert_int_not_equal(us_sample_process(s, o, past, x, out, &err), US_OK);
    assert_true(out[0] == 42);
    us_sampler_free(s);
}

static void hostile_logits_are_refused(void **state) {
    (void)state;
    us_sampling o = defaults();
    refused(&o, NULL, (double[]){1, 2, NAN, 4}, 4, "nonfinite", "token 2");
    refused(&o, NULL, (double[]){1, HUGE_VAL}, 2, "nonfinite", "token 1");
    refused(&o, NULL, (double[]){-HUGE_VAL, -HUGE_VAL}, 2, "nonfinite", "");
    refused(&o, NULL, (double[]){NAN}, 1, "nonfinite", "token 0");
    us_logit_bias b[] = {{0, -HUGE_VAL}, {1, -HUGE_VAL}};
    o.bias = b;
    o.n_bias = 2;
    refused(&o, NULL, (double[]){1, 2}, 2, "nonfinite", "");
    b[1] = (us_logit_bias){1, 1e308};
    refused(&o, NULL, (double[]){1, 1.7e308}, 2, "nonfinite", "token 1");
    o = defaults();
    o.temperature = 0;
    refused(&o, NULL, (double[]){1, NAN}, 2, "nonfinite", "token 1");
    static const uint32_t ids[] = {0, 2};
    refused(&o, &(us_sample_past){NULL, ids, 0, 2}, (double[]){1, 2}, 2, "token-range", "output token 1");
}

static void senseless_options_are_refused(void **state) {
    (void)state;
    static const struct {
        size_t at;
        double bad[4];
        const char *where;
    } of[] = {
        {offsetof(us_sampling, temperature), {-1, NAN, HUGE_VAL, -1e-300}, "temperature"}, {offsetof(us_sampling, top_p), {-0.1, 1.1, NAN, HUGE_VAL}, "top_p"},
        {offsetof(us_sampling, min_p), {-0.1, 1.1, NAN, HUGE_VAL}, "min_p"},               {offsetof(us_sampling, typical_p), {0, 1.1, NAN, -1}, "typical_p"},
        {offsetof(us_sampling, epsilon), {-1, 1, NAN, 2}, "epsilon"},                      {offsetof(us_sampling, eta), {-1, 1, NAN, 2}, "eta"},
        {offsetof(us_sampling, repetition), {0, -1, NAN, HUGE_VAL}, "repetition"},
        {offsetof(us_sampling, frequency), {NAN, HUGE_VAL, -HUGE_VAL, NAN}, "frequency"},
        {offsetof(us_sampling, presence), {NAN, HUGE_VAL, -HUGE_VAL, NAN}, "presence"},
    };
    static const double x[] = {1, 2};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int k = 0; k < 4; k++) {
            us_sampling o = defaults();
            memcpy((char *)&o + of[i].at, &of[i].bad[k], sizeof(double));
            refused(&o, NULL, x, 2, "range", of[i].where);
        }
    us_sampling o = defaults();
    us_logit_bias b = {2, 1};
    o.bias = &b;
    o.n_bias = 1;
    refused(&o, NULL, x, 2, "token-range", "bias");
    b = (us_logit_bias){0, HUGE_VAL};
    refused(&o, NULL, x, 2, "range", "bias");
    b.bias = NAN;
    refused(&o, NULL, x, 2, "range", "bias");
    us_sampler *s = NULL;
    us_err err = {0};
    assert_int_equal(us_sampler_create(0, &s, &err), US_E_INVAL);
}

static void tiny_and_huge_numbers_stay_numbers(void **state) {
    (void)state;
    us_err err = {0};
    us_sampler *s = sampler(4);
    static const double rows[][4] = {{1, 2, 2.5, -1}, {-1e300, -1e300, 5e-324, 0}, {1e308, -1e308, 1.7e308, 1e308}, {-5, -4, -3, -2}};
    static const double temperatures[] = {5e-324, 1e-310, 1e-30, 1e-3, 1e3, 1e308};
    us_sampled r;
    us_sampling o = defaults();
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 6; k++)
            for (int filter = 0; filter < 2; filter++) {
                o.temperature = temperatures[k];
                o.top_p = filter ? 0.9 : 1;
                o.typical_p = filter ? 0.9 : 1;
                o.min_p = filter ? 1e-300 : 0;
                assert_us_ok(us_sample_next_f64(s, &o, NULL, rows[i], (us_sample_key){k, i, 9}, &r, NULL, 0, &err), &err);
                assert_true(r.id < 4 && r.logp <= 0 && r.logp > -800 && r.entropy >= 0 && r.entropy < 1.4 && !isnan(r.logp_raw));
                if (temperatures[k] < 1e-29 && i != 1) assert_int_equal(r.id, i == 3 ? 3 : 2);
            }
    us_sampler_free(s);
    s = sampler(1);
    o = defaults();
    o.top_k = 5;
    o.top_p = 0;
    assert_us_ok(us_sample_next_f64(s, &o, NULL, (double[]){-1e9}, (us_sample_key){1, 2, 3}, &r, NULL, 0, &err), &err);
    assert_true(r.id == 0 && r.logp == 0 && r.logp_raw == 0 && r.entropy == 0 && r.n_kept == 1);
    us_sampler_free(s);
}

/* ---- log-probabilities ---- */

static void logprobs_do_not_depend_on_threads_and_name_what_is_bad(void **state) {
    (void)state;
    enum { R = 9, V = 1111 };
    static float x[R * V];
    static double a[4][R * V], b[4][R * V];
    uint32_t targets[R];
    us_err err = {0};
    us_pool *pool;
    for (size_t i = 0; i < R * V; i++) x[i] = (float)(4 * us_rng_normal(2, 2, i));
    for (uint32_t r = 0; r < R; r++) targets[r] = r * 100;
    us_logprobs_in in = {.rows = R, .V = V, .f32 = x, .targets = targets, .temperature = 0.6};
    assert_us_ok(us_pool_create(3, &pool, &err), &err);
    us_logprobs_out oa = {a[0], a[1], a[2], a[3]}, ob = {b[0], b[1], b[2], b[3]};
    assert_us_ok(us_logprobs(NULL, &in, &oa, &err), &err);
    assert_us_ok(us_logprobs(pool, &in, &ob, &err), &err);
    assert_memory_equal(a, b, sizeof a);
    /* Gradients against differences of the values. */
    double up, down;
    us_logprobs_in one = in;
    one.rows = 1;
    for (int k = 0; k < 2; k++) {
        us_logprobs_out o = {k ? NULL : &up, k ? &up : NULL, NULL, NULL};
        static double y[V];
        for (size_t i = 0; i < V; i++) y[i] = (double)x[i];
        one.f32 = NULL;
        one.f64 = y;
        for (size_t i = 0; i < V; i += 37) {
            double h = 1e-5, at = y[i];
            y[i] = at + h;
            assert_us_ok(us_logprobs(NULL, &one, &o, &err), &err);
            down = up;
            y[i] = at - h;
            assert_us_ok(us_logprobs(NULL, &one, &o, &err), &err);
            y[i] = at;
            assert_true(fabs((down - up) / (2 * h) - a[2 + k][i]) < 1e-8);
        }
    }
    x[5 * V + 17] = NAN;
    x[7 * V + 3] = HUGE_VALF;
    assert_int_equal(us_logprobs(pool, &in, &ob, &err), US_E_NONFINITE);
    assert_string_equal(err.cls, "nonfinite");
    assert_string_equal(err.where, "row 5, token 17");
    targets[8] = V;
    assert_int_equal(us_logprobs(pool, &in, &ob, &err), US_E_INVAL);
    assert_string_equal(err.cls, "token-range");
    in.temperature = 0;
    assert_int_equal(us_logprobs(pool, &in, &ob, &err), US_E_INVAL);
    assert_string_equal(err.cls, "range");
    us_pool_free(pool);
}

static void divergences_have_their_limits(void **state) {
    (void)state;
    us_err err = {0};
    static const double p[] = {0, 0, -HUGE_VAL}, q[] = {0, -HUGE_VAL, 0}, none[] = {-HUGE_VAL, -HUGE_VAL, -HUGE_VAL};
    double kl;
    assert_us_ok(us_logits_kl(1, 3, p, p, &kl, &err), &err);
    assert_true(kl == 0);
    assert_us_ok(us_logits_kl(1, 3, p, q, &kl, &err), &err);
    assert_true(kl == HUGE_VAL);
    assert_us_ok(us_logits_kl(1, 3, p, (double[]){1, 1, 5}, &kl, &err), &err);
    assert_true(fabs(kl - (log(2 + exp(4.0)) - log(2.0))) < 1e-14);
    assert_int_equal(us_logits_kl(1, 3, p, none, &kl, &err), US_E_NONFINITE);
    assert_int_equal(us_logits_kl(1, 3, (double[]){0, NAN, 0}, p, &kl, &err), US_E_NONFINITE);
    assert_string_equal(err.where, "row 0, token 1");
}

static void lack_of_memory_is_reported(void **state) {
    (void)state;
    uint64_t before = us_alloc_get_stats().live_blocks;
    static const float x[] = {1, 2, 3};
    static const uint32_t target[] = {1};
    double logp;
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        us_err err = {0};
        us_sampler *s = NULL;
        us_alloc_fail_at(n);
        us_status st = us_sampler_create(3, &s, &err);
        us_logprobs_in in = {.rows = 1, .V = 3, .f32 = x, .targets = target, .temperature = 1};
        us_logprobs_out out = {.logp = &logp};
        if (st == US_OK) st = us_logprobs(NULL, &in, &out, &err);
        done = !us_alloc_failed();
        us_alloc_fail_at(0);
        us_sampler_free(s);
        assert_int_equal(st, done ? US_OK : US_E_NOMEM);
        assert_int_equal(us_alloc_get_stats().live_blocks, before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_exponential_is_within_two_ulp),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(selection_equals_sorting),
        cmocka_unit_test(boundaries_are_as_the_header_says),
        cmocka_unit_test(penalties_leave_no_trace),
        cmocka_unit_test(frequencies_follow_the_probabilities),
        cmocka_unit_test(a_token_depends_on_its_key_only),
        cmocka_unit_test(the_numbers_of_a_draw_are_right),
        cmocka_unit_test(hostile_logits_are_refused),
        cmocka_unit_test(senseless_options_are_refused),
        cmocka_unit_test(tiny_and_huge_numbers_stay_numbers),
        cmocka_unit_test(logprobs_do_not_depend_on_threads_and_name_what_is_bad),
        cmocka_unit_test(divergences_have_their_limits),
        cmocka_unit_test(lack_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
