/*
 * What may not change a result of the engine, bit for bit: the other sequences of a batch and their order, the number of threads, and - in the exact
 * mode - how a text is cut into calls, forks and truncation. Every model of fixtures/models. Without `exact`, pieces agree within 1e-5 of the largest logit.
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

#include "base/rng.h"
#include "model/engine/engine.h"
#include "support/model_ref.h"
#include "support/support.h"

enum { SEQS = 3 };
static const size_t lengths[SEQS] = {37, 70, 5}; /* one crosses a page */

typedef struct bed {
    us_engine *e;
    size_t V;
    int64_t ids[SEQS][128];
} bed;

static us_seq *fresh(const bed *b) {
    us_err err = {0};
    us_seq *s;
    assert_us_ok(us_seq_create(b->e, &s, &err), &err);
    return s;
}

static void step(const bed *b, const us_segment *segs, size_t n, float *logits) {
    us_err err = {0};
    assert_us_ok(us_engine_run(b->e, segs, n, NULL, logits, &err), &err);
}

/* Logits of every token of sequence i, cut into pieces (0 = whole). */
static float *alone(const bed *b, size_t i, size_t piece) {
    size_t n = lengths[i];
    float *logits = malloc(n * b->V * sizeof *logits);
    us_seq *s = fresh(b);
    for (size_t t = 0; t < n;) {
        size_t m = piece && n - t > piece ? piece : n - t;
        step(b, &(us_segment){s, b->ids[i] + t, m, m}, 1, logits + t * b->V);
        t += m;
    }
    us_seq_free(s);
    return logits;
}

/* All sequences in one call, in the order of `order`. */
static float *together(const bed *b, const size_t order[SEQS], float *rows[SEQS]) {
    us_segment segs[SEQS];
    size_t total = 0;
    for (size_t i = 0; i < SEQS; i++) total += lengths[i];
    float *logits = malloc(total * b->V * sizeof *logits), *at = logits;
    for (size_t i = 0; i < SEQS; i++) {
        size_t o = order[i];
        segs[i] = (us_segment){fresh(b), b->ids[o], lengths[o], lengths[o]};
        rows[o] = at;
        at += lengths[o] * b->V;
    }
    step(b, segs, SEQS, logits);
    for (size_t i = 0; i < SEQS; i++) us_seq_free(segs[i].seq);
    return logits;
}

static int same(const char *what, const char *model, const float *a, const float *b, size_t n) {
    if (memcmp(a, b, n * sizeof *a) == 0) return 0;
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) differ += memcmp(a + i, b + i, sizeof *a) != 0;
    print_error("%s: %s: %zu of %zu logits differ\n", model, what, differ, n);
    return 1;
}

static int near(const char *what, const char *model, const float *a, const float *b, size_t n) {
    float worst = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmaxf(worst, fabsf(a[i] - b[i]));
        most = fmaxf(most, fabsf(a[i]));
    }
    if (worst <= 1e-5f * most) return 0;
    print_error("%s: %s: difference %.3g of %.3g\n", model, what, (double)worst, (double)most);
    return 1;
}

/* Prefix, fork, two continuations; then truncation where the model can. */
static int forks(const bed *b, const char *model, const float *whole) {
    us_err err = {0};
    size_t n = lengths[1], cut = 66;
    int wrong = 0;
    float *part = malloc(n * b->V * sizeof *part);
    us_seq *s = fresh(b), *f;
    step(b, &(us_segment){s, b->ids[1], cut, 0}, 1, NULL);
    assert_us_ok(us_seq_fork(s, &f, &err), &err);
    step(b, &(us_segment){f, b->ids[0], 9, 0}, 1, NULL); /* another continuation must not touch the first */
    step(b, &(us_segment){s, b->ids[1] + cut, n - cut, n - cut}, 1, part);
    wrong += same("fork", model, part, whole + cut * b->V, (n - cut) * b->V);
    us_seq_free(f);
    us_status st = us_seq_truncate(s, 20, &err);
    if (st == US_OK) {
        step(b, &(us_segment){s, b->ids[1] + 20, n - 20, n - 20}, 1, part);
        wrong += same("truncation", model, part, whole + 20 * b->V, (n - 20) * b->V);
    } else {
        assert_string_equal(err.cls, "recurrent");
    }
    assert_us_ok(us_seq_truncate(s, 0, &err), &err);
    step(b, &(us_segment){s, b->ids[1], n, n}, 1, part);
    wrong += same("begun anew", model, part, whole, n * b->V);
    us_seq_free(s);
    free(part);
    return wrong;
}

static int check_engine(bed *b, const char *model, bool exact, bool grows) {
    int wrong = 0;
    float *whole[SEQS], *rows[SEQS], *many;
    for (size_t i = 0; i < SEQS; i++) whole[i] = alone(b, i, 0);
    static const size_t orders[2][SEQS] = {{0, 1, 2}, {2, 0, 1}};
    for (int o = 0; o < 2; o++) {
        many = together(b, orders[o], rows);
        for (size_t i = 0; i < SEQS; i++) wrong += same(o ? "permuted batch" : "batch", model, rows[i], whole[i], lengths[i] * b->V);
        free(many);
    }
    static const size_t pieces[] = {1, 7, 64};
    for (size_t p = 0; p < 3 && !grows; p++) { /* where the rope's table depends on the length so far, pieces are another computation */
        float *cut = alone(b, 1, pieces[p]);
        wrong += exact ? same("pieces", model, cut, whole[1], lengths[1] * b->V) : near("pieces", model, cut, whole[1], lengths[1] * b->V);
        free(cut);
    }
    if (exact && !grows) wrong += forks(b, model, whole[1]);
    for (size_t i = 0; i < SEQS; i++) free(whole[i]);
    return wrong;
}

static void check_model(void *user, const char *folder, const char *name, const char *config) {
    int *wrong = user;
    us_err err = {0};
    float *first = NULL;
    if (strcmp(config, "config.json") != 0) return;
    for (int v = 0; v < 6; v++) { /* threads 1, 2, 7 of f32 exact; f32 fast; bf16 exact; bf16 exact on 7 threads */
        static const int threads[] = {1, 2, 7, 2, 2, 7};
        us_engine_options o = {.compute = v >= 4 ? US_COMPUTE_BF16 : US_COMPUTE_F32, .exact = v != 3};
        ref_model m;
        bed b = {0};
        assert_us_ok(ref_model_open(&m, folder, config, threads[v], &err), &err);
        assert_us_ok(us_engine_open(m.ctx, m.st, &o, &b.e, &err), &err);
        b.V = us_engine_recipe(b.e)->V;
        for (uint64_t i = 0; i < SEQS; i++)
            for (uint64_t t = 0; t < lengths[i]; t++) b.ids[i][t] = (int64_t)us_rng_below(7, i, t, b.V);
        bool grows = us_rope_grows(&us_engine_recipe(b.e)->ropes[0]);
        *wrong += check_engine(&b, test_format("%s (%s, %d threads)", name, v == 3 ? "fast" : v >= 4 ? "bf16" : "exact", threads[v]), o.exact, grows);
        float *now = alone(&b, 1, 0);
        if (v == 0 || v == 4) {
            free(first);
            first = now;
        } else {
            if (v != 3) *wrong += same("threads", name, now, first, lengths[1] * b.V);
            free(now);
        }
        us_engine_free(b.e);
        ref_model_close(&m);
    }
    free(first);
}

static void results_depend_on_the_sequence_alone(void **state) {
    (void)state;
    int wrong = 0, models = ref_each_model(check_model, &wrong);
    print_message("%d model configurations seen\n", models);
    assert_int_equal(wrong, 0);
}

/* More tokens than one step takes: two sequences in one call against each alone, in the fast mode; some logits wanted, across the cut. */
static void check_steps(void *user, const char *folder, const char *name, const char *config) {
    enum { N = 290, WANT = 100 };
    int *wrong = user;
    us_err err = {0};
    ref_model m;
    us_engine *e;
    int64_t ids[2][N];
    if (strcmp(config, "config.json") != 0) return;
    assert_us_ok(ref_model_open(&m, folder, config, 2, &err), &err);
    assert_us_ok(us_engine_open(m.ctx, m.st, NULL, &e, &err), &err);
    size_t V = us_engine_recipe(e)->V;
    for (uint64_t i = 0; i < 2 * N; i++) ids[i / N][i % N] = (int64_t)us_rng_below(9, 0, i, V);
    float *both = malloc(2 * WANT * V * sizeof *both), *one = malloc(WANT * V * sizeof *one);
    us_segment segs[2];
    for (int i = 0; i < 2; i++) {
        segs[i] = (us_segment){NULL, ids[i], N, WANT};
        assert_us_ok(us_seq_create(e, &segs[i].seq, &err), &err);
    }
    assert_us_ok(us_engine_run(e, segs, 2, NULL, both, &err), &err);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(us_seq_length(segs[i].seq), N);
        us_seq_free(segs[i].seq);
        assert_us_ok(us_seq_create(e, &segs[i].seq, &err), &err);
        assert_us_ok(us_engine_run(e, &segs[i], 1, NULL, one, &err), &err);
        *wrong += same("two steps", name, one, both + (size_t)i * WANT * V, WANT * V);
        us_seq_free(segs[i].seq);
    }
    free(both);
    free(one);
    us_engine_free(e);
    ref_model_close(&m);
}

static void steps_do_not_show(void **state) {
    (void)state;
    int wrong = 0;
    ref_each_model(check_steps, &wrong);
    assert_int_equal(wrong, 0);
}

/* Cache bytes a page: layers x (kv_lora + rope) x size for MLA. */
static void latent_cache_is_as_small_as_the_formula(void **state) {
    (void)state;
    us_err err = {0};
    for (const char *const *folder = test_folders("models", "ref.safetensors"); *folder; folder++) {
        if (strcmp(test_name(*folder), "deepseek_v3") != 0) continue;
        for (int bf16 = 0; bf16 < 2; bf16++) {
            us_engine_options o = {.compute = bf16 ? US_COMPUTE_BF16 : US_COMPUTE_F32};
            ref_model m;
            us_engine *e;
            us_seq *s;
            int64_t ids[64] = {0};
            assert_us_ok(ref_model_open(&m, *folder, "config.json", 1, &err), &err);
            assert_us_ok(us_engine_open(m.ctx, m.st, &o, &e, &err), &err);
            const us_recipe *r = us_engine_recipe(e);
            size_t formula = (size_t)r->L * (r->kv_lora + r->rope_dims) * (bf16 ? 2 : 4);
            assert_us_ok(us_seq_create(e, &s, &err), &err);
            assert_us_ok(us_engine_run(e, &(us_segment){s, ids, 64, 0}, 1, NULL, NULL, &err), &err);
            assert_int_equal(us_seq_bytes(s), 64 * formula);
            assert_int_equal(us_engine_size_of(e).per_position, formula);
            us_seq_free(s);
            us_engine_free(e);
            ref_model_close(&m);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_depend_on_the_sequence_alone), cmocka_unit_test(steps_do_not_show),
                                       cmocka_unit_test(latent_cache_is_as_small_as_the_formula)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
