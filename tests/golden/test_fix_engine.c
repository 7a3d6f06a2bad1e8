/*
 * The engine against transformers' float64 answers: every model of fixtures/models, both config spellings, f32 and bf16, on every instruction set of this
 * machine; whole prompts, prompts in pieces, greedy continuation by decoding. Tolerances: fixtures/models/README.md.
 */
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

#include "kernels/dispatch.h"
#include "model/engine/engine.h"
#include "support/model_ref.h"
#include "support/support.h"

/* All sequences of input_ids run in one call; rows of sequence b begin at b*T. */
static void each_sequence(ref_job *j, void (*fn)(ref_job *j, uint32_t l, const void *a), uint32_t l, size_t rows, const void *a) {
    for (j->b = 0; j->b < rows / j->T; j->b++) fn(j, l, a);
}

typedef struct layer_tap {
    const char *what;
    const double *x;
    size_t cols;
} layer_tap;

static void layer_of(ref_job *j, uint32_t l, const void *a) {
    const layer_tap *t = a;
    ref_compare_layer(j, l, t->what, t->x + j->b * j->T * t->cols, j->T, t->cols);
}

static double *widen(const float *x, size_t n) {
    double *d = malloc((n + 1) * sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = (double)x[i];
    return d;
}

static void on_layer(void *user, uint32_t l, const char *what, const float *x, size_t rows, size_t cols) {
    double *d = widen(x, rows * cols);
    each_sequence(user, layer_of, l, rows, &(layer_tap){what, d, cols});
    free(d);
}

typedef struct route_tap {
    const uint32_t *experts;
    const double *weights;
    size_t k;
} route_tap;

static void route_of(ref_job *j, uint32_t l, const void *a) {
    const route_tap *t = a;
    ref_compare_route(j, l, t->experts + j->b * j->T * t->k, t->weights + j->b * j->T * t->k, j->T, t->k);
}

static void on_route(void *user, uint32_t l, const uint32_t *experts, const float *weights, const float *logits, size_t rows, size_t k, size_t n) {
    (void)logits, (void)n;
    double *d = widen(weights, rows * k);
    each_sequence(user, route_of, l, rows, &(route_tap){experts, d, k});
    free(d);
}

/* Run B sequences of T tokens in pieces of `piece` (0 = whole); logits of all tokens [B, T, V]. */
static float *run(us_engine *e, const double *ids, size_t B, size_t T, size_t piece, const us_engine_taps *taps) {
    us_err err = {0};
    size_t V = us_engine_recipe(e)->V;
    float *logits = malloc(B * T * V * sizeof *logits), *part = malloc(B * T * V * sizeof *part);
    int64_t *tokens = malloc(B * T * sizeof *tokens);
    us_seq **seqs = calloc(B, sizeof *seqs);
    us_segment *segs = calloc(B, sizeof *segs);
    for (size_t i = 0; i < B * T; i++) tokens[i] = (int64_t)ids[i];
    for (size_t b = 0; b < B; b++) assert_us_ok(us_seq_create(e, &seqs[b], &err), &err);
    for (size_t t = 0; t < T;) {
        size_t n = piece && T - t > piece ? piece : T - t;
        for (size_t b = 0; b < B; b++) segs[b] = (us_segment){seqs[b], tokens + b * T + t, n, n};
        assert_us_ok(us_engine_run(e, segs, B, taps, part, &err), &err);
        for (size_t b = 0; b < B; b++) memcpy(logits + (b * T + t) * V, part + b * n * V, n * V * sizeof *part);
        t += n;
    }
    for (size_t b = 0; b < B; b++) us_seq_free(seqs[b]);
    free(part);
    free(tokens);
    free(seqs);
    free(segs);
    return logits;
}

static void check_logits(ref_job *j, const char *name, const float *ours, const double *theirs, size_t n, double bound) {
    double *d = widen(ours, n);
    ref_compare(j, name, d, theirs, n, bound);
    free(d);
}

static void check_short(us_engine *e, ref_job *j, double bound) {
    size_t n, nl, V = us_engine_recipe(e)->V, B = (size_t)ref_find(j->ref, "input_ids")->shape[0];
    double *ids = ref_values(j->ref, "input_ids", &n), *logits = ref_values(j->ref, "logits", &nl);
    us_engine_taps taps = {on_layer, on_route, j};
    j->T = n / B;
    float *whole = run(e, ids, B, j->T, 0, &taps), *pieces = run(e, ids, B, j->T, 5, NULL);
    check_logits(j, "logits", whole, logits, n * V, bound);
    check_logits(j, "logits in pieces of 5", pieces, logits, n * V, bound);
    free(whole);
    free(pieces);
    free(ids);
    free(logits);
}

static void check_long(us_engine *e, ref_job *j, double bound) {
    size_t n, np, nl, V = us_engine_recipe(e)->V;
    double *ids = ref_values(j->ref, "long.input_ids", &n);
    if (!ids) return;
    double *at = ref_values(j->ref, "long.positions", &np), *logits = ref_values(j->ref, "long.logits", &nl);
    float *ours = run(e, ids, 1, n, 0, NULL);
    for (size_t p = 0; p < np; p++) check_logits(j, "long.logits", ours + (size_t)at[p] * V, logits + p * V, V, bound);
    free(ours);
    free(ids);
    free(at);
    free(logits);
}

/* Decoding: the prompt of 12, then one token a call, each the arg max of the last logits. */
static void check_greedy(us_engine *e, ref_job *j) {
    us_err err = {0};
    size_t n, V = us_engine_recipe(e)->V;
    double *ref = ref_values(j->ref, "greedy", &n);
    if (!ref) return;
    int64_t ids[12], next;
    for (size_t i = 0; i < 12; i++) ids[i] = (int64_t)ref[i];
    us_seq *seq;
    float *logits = malloc(V * sizeof *logits);
    assert_us_ok(us_seq_create(e, &seq, &err), &err);
    us_segment seg = {seq, ids, 12, 1};
    j->compared++;
    for (size_t t = 12; t < n; t++) {
        assert_us_ok(us_engine_run(e, &seg, 1, NULL, logits, &err), &err);
        next = 0;
        for (size_t v = 1; v < V; v++)
            if (logits[v] > logits[next]) next = (int64_t)v;
        if ((double)next != ref[t]) {
            j->wrong++;
            print_error("%s: greedy token %zu is %lld, should be %.0f\n", j->what, t, (long long)next, ref[t]);
            break;
        }
        seg = (us_segment){seq, &next, 1, 1};
    }
    us_seq_free(seq);
    free(logits);
    free(ref);
}

static void check_bf16(us_engine *e, ref_job *j, const char *folder) {
    size_t n, nl, V = us_engine_recipe(e)->V;
    double *ids = ref_values(j->ref, "bf16.input_ids", &n), most = ref_number(folder, "bf16_max_error", 0), rms = ref_number(folder, "bf16_rms_error", 0);
    if (!ids || most == 0) {
        free(ids);
        return;
    }
    double *logits = ref_values(j->ref, "bf16.logits", &nl), sum = 0, norm = 0;
    float *ours = run(e, ids, 1, n, 0, NULL);
    /* bf16_max_error is relative to the largest logit, bf16_rms_error to the rms of the logits: as the generator divides them. */
    check_logits(j, "bf16.logits", ours, logits, nl, 2 * most * ref_largest(logits, nl));
    for (size_t i = 0; i < n * V; i++) {
        sum += ((double)ours[i] - logits[i]) * ((double)ours[i] - logits[i]);
        norm += logits[i] * logits[i];
    }
    if (sqrt(sum / norm) > 1.25 * rms) {
        j->wrong++;
        print_error("%s: bf16 rms error %.4g, allowed %.4g\n", j->what, sqrt(sum / norm), 1.25 * rms);
    }
    free(ours);
    free(ids);
    free(logits);
}

typedef struct variant {
    us_engine_options options;
    const char *name;
    int wrong;
} variant;

static void check_model(void *user, const char *folder, const char *name, const char *config) {
    variant *v = user;
    us_err err = {0};
    ref_model m;
    us_engine *e = NULL;
    ref_file ref = {0};
    double scale = ref_number(folder, "logit_scale", 0), f32_error = ref_number(folder, "f32_error", 0), relative = fmax(2e-5, 2 * f32_error);
    ref_job j = {.ref = &ref, .what = test_format("%s (%s, %s)", name, config, v->name), .tolerance = 5 * relative};
    us_status s = ref_model_open(&m, folder, config, 2, &err);
    if (s == US_OK) s = us_engine_open(m.ctx, m.st, &v->options, &e, &err);
    if (s != US_OK) {
        char line[1024];
        us_err_line(&err, line, sizeof line);
        print_error("%s: %s\n", j.what, line);
        j.wrong++;
    } else {
        assert_true(scale > 0);
        ref_open(&ref, folder);
        if (v->options.compute == US_COMPUTE_BF16) {
            check_bf16(e, &j, folder);
        } else {
            check_short(e, &j, relative * scale);
            check_long(e, &j, relative * scale);
            check_greedy(e, &j);
            assert_true(j.compared > 0);
        }
        ref_close(&ref);
    }
    us_engine_free(e);
    ref_model_close(&m);
    v->wrong += j.wrong;
}

static void all_models(us_engine_options options, const char *name) {
    int wrong = 0;
    for (int isa = 0; isa < US_ISA_COUNT; isa++) {
        if (isa <= US_ISA_VEC && options.exact) continue; /* without fused multiply-add instructions both are slow */
        if (!us_isa_force((us_isa)isa)) continue;
        variant v = {.options = options, .name = test_format("%s, %s", name, us_isa_name((us_isa)isa))};
        int models = ref_each_model(check_model, &v);
        print_message("%s: %d model configurations compared\n", v.name, models);
        wrong += v.wrong;
    }
    us_isa_force(US_ISA_COUNT);
    assert_int_equal(wrong, 0);
}

static void f32_equals_transformers(void **state) {
    (void)state;
    all_models((us_engine_options){.compute = US_COMPUTE_F32}, "f32");
}

static void exact_f32_equals_transformers(void **state) {
    (void)state;
    all_models((us_engine_options){.compute = US_COMPUTE_F32, .exact = true, .stream = true}, "f32, exact, streamed");
}

static void bf16_is_as_close_as_transformers(void **state) {
    (void)state;
    all_models((us_engine_options){.compute = US_COMPUTE_BF16}, "bf16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_equals_transformers),
        cmocka_unit_test(exact_f32_equals_transformers),
        cmocka_unit_test(bf16_is_as_close_as_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
