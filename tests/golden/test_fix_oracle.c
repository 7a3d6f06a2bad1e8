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

#include "io/json.h"
#include "model/oracle.h"
#include "support/support.h"

typedef struct ref_file {
    us_file file;
    us_st_header header;
} ref_file;

static const us_st_tensor *find(const ref_file *f, const char *name) {
    for (size_t i = 0; i < f->header.n_tensors; i++)
        if (us_str_eqz(f->header.tensors[i].name, name)) return &f->header.tensors[i];
    return NULL;
}

/* All elements as doubles, or NULL when the reference has no such tensor. Freed by the caller. */
static double *values(const ref_file *f, const char *name, size_t *n) {
    const us_st_tensor *t = find(f, name);
    if (!t) return NULL;
    us_err err = {0};
    *n = (size_t)us_st_elements(t);
    char *raw = malloc((size_t)(t->end - t->begin) + 1);
    float *f32 = malloc(*n * 4 + 4);
    double *x = malloc(*n * 8 + 8);
    assert_us_ok(us_file_read(&f->file, f->header.data_start + t->begin, raw, (size_t)(t->end - t->begin), &err), &err);
    if (t->dtype == US_DTYPE_F64) memcpy(x, raw, *n * 8);
    else {
        assert_true(us_to_f32(t->dtype, raw, *n, f32));
        for (size_t i = 0; i < *n; i++) x[i] = (double)f32[i];
    }
    free(raw);
    free(f32);
    return x;
}

typedef struct job {
    const ref_file *ref;
    const char *what;       /* family and spelling, for messages */
    size_t b, T;            /* sequence at hand of input_ids [B,T] */
    double tolerance;       /* relative, for layer tensors */
    int wrong, compared;
} job;

static double largest(const double *x, size_t n) {
    double m = 0;
    for (size_t i = 0; i < n; i++) m = fabs(x[i]) > m ? fabs(x[i]) : m;
    return m;
}

static void compare(job *j, const char *name, const double *ours, const double *theirs, size_t n, double bound) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs(ours[i] - theirs[i]);
        if (!(d <= worst)) worst = d;
    }
    j->compared++;
    if (worst <= bound) return;
    j->wrong++;
    print_error("%s: %s: difference %.3g, allowed %.3g\n", j->what, name, worst, bound);
}

static void on_layer(void *user, uint32_t l, const char *what, const double *x, size_t rows, size_t cols) {
    job *j = user;
    char name[64];
    size_t n;
    snprintf(name, sizeof name, "layer.%u.%s", l, what);
    double *ref = values(j->ref, name, &n);
    if (!ref) return;
    compare(j, name, x, ref + j->b * rows * cols, rows * cols, j->tolerance * largest(ref, n));
    free(ref);
}

static void on_route(void *user, uint32_t l, const uint32_t *experts, const double *weights, size_t rows, size_t k) {
    job *j = user;
    char name[64];
    size_t n;
    snprintf(name, sizeof name, "layer.%u.experts", l);
    double *ref = values(j->ref, name, &n);
    if (ref) {
        int differ = 0;
        for (size_t i = 0; i < rows * k; i++) differ += (double)experts[i] != ref[j->b * rows * k + i];
        j->compared++;
        if (differ) {
            j->wrong++;
            print_error("%s: %s: %d choices differ\n", j->what, name, differ);
        }
        free(ref);
    }
    snprintf(name, sizeof name, "layer.%u.weights", l);
    ref = values(j->ref, name, &n);
    if (ref) compare(j, name, weights, ref + j->b * rows * k, rows * k, j->tolerance * largest(ref, n));
    free(ref);
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

static void check_short(us_oracle *o, job *j, double scale) {
    size_t n, nl, V = us_oracle_recipe(o)->V;
    double *ids = values(j->ref, "input_ids", &n), *logits = values(j->ref, "logits", &nl);
    size_t B = (size_t)find(j->ref, "input_ids")->shape[0];
    j->T = n / B;
    for (j->b = 0; j->b < B; j->b++) {
        us_oracle_taps taps = {on_layer, on_route, j};
        double *ours = forward(o, ids + j->b * j->T, j->T, &taps);
        compare(j, "logits", ours, logits + j->b * j->T * V, j->T * V, 1e-6 * scale);
        free(ours);
    }
    free(ids);
    free(logits);
}

static void check_long(us_oracle *o, job *j, double scale) {
    size_t n, np, nl, V = us_oracle_recipe(o)->V;
    double *ids = values(j->ref, "long.input_ids", &n);
    if (!ids) return;
    double *at = values(j->ref, "long.positions", &np), *logits = values(j->ref, "long.logits", &nl);
    double *ours = forward(o, ids, n, NULL);
    for (size_t p = 0; p < np; p++) compare(j, "long.logits", ours + (size_t)at[p] * V, logits + p * V, V, 1e-6 * scale);
    free(ours);
    free(ids);
    free(at);
    free(logits);
}

static void check_greedy(us_oracle *o, job *j) {
    size_t n, V = us_oracle_recipe(o)->V;
    double *ref = values(j->ref, "greedy", &n);
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

static double logit_scale(const char *folder) {
    us_json_doc d;
    us_err err = {0};
    double scale = 0;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/ref.json", folder), NULL)), 0, &err), &err);
    assert_true(us_json_double(&d, us_json_get(&d, 0, "logit_scale"), &scale));
    us_json_doc_free(&d);
    return scale;
}

static int check_model(const char *folder, const char *name, const char *config) {
    us_err err = {0};
    us_ctx *ctx;
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    us_oracle *o = NULL;
    ref_file ref = {0};
    const char *dir = test_temp_dir();
    job j = {.ref = &ref, .what = test_format("%s (%s)", name, config), .tolerance = 5e-6};
    size_t n;
    const char *bytes = test_read(test_format("%s/model.safetensors", folder), &n);
    test_write(test_format("%s/model.safetensors", dir), bytes, n);
    test_write_text(test_format("%s/config.json", dir), test_read(test_format("%s/%s", folder, config), NULL));
    assert_us_ok(us_ctx_create(1, 0, &ctx, &err), &err);
    us_status s = us_checkpoint_open(ctx, dir, 0, &ck, &err);
    if (s == US_OK) s = us_structure_resolve(ctx, ck, &st, &err);
    if (s == US_OK) s = us_oracle_open(ctx, st, &o, &err);
    if (s != US_OK) {
        char line[1024];
        us_err_line(&err, line, sizeof line);
        print_error("%s: %s\n", j.what, line);
        j.wrong++;
    } else {
        assert_us_ok(us_file_open(test_format("%s/ref.safetensors", folder), &ref.file, &err), &err);
        assert_us_ok(us_st_read(&ref.file, 0, &ref.header, &err), &err);
        double scale = logit_scale(folder);
        check_short(o, &j, scale);
        check_long(o, &j, scale);
        check_greedy(o, &j);
        assert_true(j.compared > 0);
        us_st_header_free(&ref.header);
        us_file_close(&ref.file);
    }
    us_oracle_free(o);
    us_structure_free(st);
    us_checkpoint_free(ck);
    us_ctx_free(ctx);
    test_remove_tree(dir);
    return j.wrong;
}

static void equals_transformers_in_double(void **state) {
    (void)state;
    const char *only = getenv("US_ONLY"); /* one model, while working on it */
    int wrong = 0, models = 0;
    for (const char *const *folder = test_folders("models", "ref.safetensors"); *folder; folder++) {
        if (only && strcmp(only, test_name(*folder)) != 0) continue;
        static const char *const configs[] = {"config.json", "config.published.json"};
        for (int c = 0; c < 2; c++)
            if (test_exists(test_format("%s/%s", *folder, configs[c]))) wrong += check_model(*folder, test_name(*folder), configs[c]), models++;
    }
    print_message("%d model configurations compared\n", models);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_transformers_in_double)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
