/* The double-precision oracle against transformers' float64 answers: every model of fixtures/models, both config spellings; logits short and long,
 * layer tensors, choices, weights, greedy continuation. Tolerances: fixtures/models/README.md. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "model/oracle.h"
#include "support/model_ref.h"
#include "support/support.h"

static void on_layer(void *user, uint32_t l, const char *what, const double *x, size_t rows, size_t cols) {
    ref_compare_layer(user, l, what, x, rows, cols);
}

static void on_route(void *user, uint32_t l, const uint32_t *experts, const double *weights, size_t rows, size_t k) {
    ref_compare_route(user, l, experts, weights, rows, k);
}

/* Run one sequence; returns logits [T,V]. */
static double *forward(us_oracle *o, const double *ids, size_t T, const us_oracle_taps *taps) {
    us_err err = {0};
    int64_t *tokens = malloc(T * sizeof *tokens);
    double *logits = malloc(T * us_oracle_recipe(o)->V * sizeof *logits);
    for (size_t t = 0; t < T; t++) tokens[t] = (int64_t)ids[t];
    assert_us_ok(us_oracle_forward(o, tokens, T, taps, logits, &err), &err);
    free(tokens);
    return logits;
}

static void check_short(us_oracle *o, ref_job *j, double scale) {
    size_t n, nl, V = us_oracle_recipe(o)->V;
    double *ids = ref_values(j->ref, "input_ids", &n), *logits = ref_values(j->ref, "logits", &nl);
    size_t B = (size_t)ref_find(j->ref, "input_ids")->shape[0];
    j->T = n / B;
    for (j->b = 0; j->b < B; j->b++) {
        us_oracle_taps taps = {on_layer, on_route, j};
        double *ours = forward(o, ids + j->b * j->T, j->T, &taps);
        ref_compare(j, "logits", ours, logits + j->b * j->T * V, j->T * V, 1e-6 * scale);
        free(ours);
    }
    free(ids);
    free(logits);
}

static void check_long(us_oracle *o, ref_job *j, double scale) {
    size_t n, np, nl, V = us_oracle_recipe(o)->V;
    double *ids = ref_values(j->ref, "long.input_ids", &n);
    if (!ids) return;
    double *at = ref_values(j->ref, "long.positions", &np), *logits = ref_values(j->ref, "long.logits", &nl);
    double *ours = forward(o, ids, n, NULL);
    for (size_t p = 0; p < np; p++) ref_compare(j, "long.logits", ours + (size_t)at[p] * V, logits + p * V, V, 1e-6 * scale);
    free(ours);
    free(ids);
    free(at);
    free(logits);
}

static void check_greedy(us_oracle *o, ref_job *j) {
    size_t n, V = us_oracle_recipe(o)->V;
    double *ref = ref_values(j->ref, "greedy", &n);
    if (!ref) return;
    /* Each step's arg max over the reference's own prefix: one pass over the whole continuation tells all of them - except where the rope table depends
     * on the length, which no greedy text of the fixtures reaches. */
    double *ours = forward(o, ref, n, NULL);
    j->compared++;
    for (size_t t = 12; t < n; t++) {
        size_t best = 0;
        for (size_t v = 1; v < V; v++)
            if (ours[(t - 1) * V + v] > ours[(t - 1) * V + best]) best = v;
        if ((double)best == ref[t]) continue;
        j->wrong++;
        print_error("%s: greedy token %zu is %zu, should be %.0f\n", j->what, t, best, ref[t]);
        break;
    }
    free(ours);
    free(ref);
}

static void check_model(void *user, const char *folder, const char *name, const char *config) {
    int *wrong = user;
    us_err err = {0};
    ref_model m;
    us_oracle *o = NULL;
    ref_file ref = {0};
    ref_job j = {.ref = &ref, .what = test_format("%s (%s)", name, config), .tolerance = 5e-6};
    us_status s = ref_model_open(&m, folder, config, 1, &err);
    if (s == US_OK) s = us_oracle_open(m.ctx, m.st, &o, &err);
    if (s != US_OK) {
        char line[1024];
        us_err_line(&err, line, sizeof line);
        print_error("%s: %s\n", j.what, line);
        j.wrong++;
    } else {
        ref_open(&ref, folder);
        double scale = ref_number(folder, "logit_scale", 0);
        assert_true(scale > 0);
        check_short(o, &j, scale);
        check_long(o, &j, scale);
        check_greedy(o, &j);
        assert_true(j.compared > 0);
        ref_close(&ref);
    }
    us_oracle_free(o);
    ref_model_close(&m);
    *wrong += j.wrong;
}

static void equals_transformers_in_double(void **state) {
    (void)state;
    int wrong = 0, models = ref_each_model(check_model, &wrong);
    print_message("%d model configurations compared\n", models);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_transformers_in_double)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
