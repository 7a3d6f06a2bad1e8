/*
 * The engine and what stands on it (generate, score, route statistics) on small models made on the spot: from a bare clone. Against the oracle and against plain loops;
 * refusals before any work; weights that are not numbers are named; every allocation fails once.
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

#include "base/alloc.h"
#include "model/generate.h"
#include "model/oracle.h"
#include "model/route_stats.h"
#include "model/score.h"
#include "support/support.h"
#include "support/tiny.h"

typedef struct model {
    us_ctx *ctx;
    us_checkpoint *ck;
    us_structure *st;
    us_engine *e;
} model;

static const char *folder;

static model open_model(const char *dir, int threads, const us_engine_options *o) {
    model m = {0};
    us_err err = {0};
    assert_us_ok(us_ctx_create(threads, 0, &m.ctx, &err), &err);
    assert_us_ok(us_checkpoint_open(m.ctx, dir, 0, &m.ck, &err), &err);
    assert_us_ok(us_structure_resolve(m.ctx, m.ck, &m.st, &err), &err);
    assert_us_ok(us_engine_open(m.ctx, m.st, o, &m.e, &err), &err);
    return m;
}

static void close_model(model *m) {
    us_engine_free(m->e);
    us_structure_free(m->st);
    us_checkpoint_free(m->ck);
    us_ctx_free(m->ctx);
}

static const int64_t text[] = {5, 17, 3, 3, 30, 9, 22, 13, 1, 0, 31, 8, 25, 14, 2, 19, 27, 29, 11, 12};
enum { N = sizeof text / sizeof *text };

static float *logits_of(model *m, const int64_t *ids, size_t n) {
    us_err err = {0};
    us_seq *s;
    float *out = malloc(n * us_engine_recipe(m->e)->V * sizeof *out);
    assert_non_null(out);
    assert_us_ok(us_seq_create(m->e, &s, &err), &err);
    assert_us_ok(us_engine_run(m->e, &(us_segment){s, ids, n, n}, 1, NULL, out, &err), &err);
    us_seq_free(s);
    return out;
}

static void equals_the_oracle(void **state) {
    (void)state;
    us_err err = {0};
    us_oracle *o;
    model m = open_model(folder, 2, NULL);
    size_t V = us_engine_recipe(m.e)->V;
    double *want = malloc(N * V * sizeof *want), scale = 0, worst = 0;
    assert_us_ok(us_oracle_open(m.ctx, m.st, &o, &err), &err);
    assert_us_ok(us_oracle_forward(o, text, N, NULL, want, &err), &err);
    float *got = logits_of(&m, text, N);
    for (size_t i = 0; i < N * V; i++) {
        scale = fmax(scale, fabs(want[i]));
        worst = fmax(worst, fabs(want[i] - (double)got[i]));
    }
    assert_true(scale > 0 && worst <= 2e-5 * scale);
    free(want);
    free(got);
    us_oracle_free(o);
    close_model(&m);
}

static void streaming_changes_nothing(void **state) {
    (void)state;
    model a = open_model(folder, 1, NULL), b = open_model(folder, 2, &(us_engine_options){.stream = true});
    float *x = logits_of(&a, text, N), *y = logits_of(&b, text, N);
    assert_memory_equal(x, y, N * us_engine_recipe(a.e)->V * sizeof *x);
    free(x);
    free(y);
    close_model(&a);
    close_model(&b);
}

static void refusals_come_before_work(void **state) {
    (void)state;
    us_err err = {0};
    model m = open_model(folder, 1, NULL);
    us_seq *s;
    int64_t bad[] = {1, 2, 1000000}, low[] = {-1}, *many = calloc(us_engine_context(m.e) + 1, sizeof *many);
    float *logits = malloc(us_engine_recipe(m.e)->V * sizeof *logits);
    assert_us_ok(us_seq_create(m.e, &s, &err), &err);
    assert_int_equal(us_engine_run(m.e, &(us_segment){s, bad, 3, 1}, 1, NULL, logits, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "token-range");
    assert_int_equal(us_engine_run(m.e, &(us_segment){s, low, 1, 1}, 1, NULL, logits, &err), US_E_REFUSED);
    assert_int_equal(us_engine_run(m.e, &(us_segment){s, text, 0, 0}, 1, NULL, logits, &err), US_E_INVAL);
    assert_string_equal(err.cls, "empty");
    assert_true(us_engine_context(m.e) > 0);
    assert_int_equal(us_engine_run(m.e, &(us_segment){s, many, us_engine_context(m.e) + 1, 1}, 1, NULL, logits, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "context");
    assert_int_equal(us_seq_length(s), 0);
    us_seq_free(s);
    us_generated g;
    us_generate_options o = {.sampling = US_SAMPLING_DEFAULTS, .max_new = us_engine_context(m.e)};
    assert_int_equal(us_generate(m.ctx, m.e, &o, &(us_prompt){text, N}, 1, NULL, NULL, &g, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "context");
    o.max_new = 1;
    assert_int_equal(us_generate(m.ctx, m.e, &o, &(us_prompt){bad, 3}, 1, NULL, NULL, &g, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "token-range");
    assert_int_equal(us_generate(m.ctx, m.e, &o, &(us_prompt){bad, 0}, 1, NULL, NULL, &g, &err), US_E_INVAL);
    o.sampling.top_p = 2;
    assert_int_equal(us_generate(m.ctx, m.e, &o, &(us_prompt){text, N}, 1, NULL, NULL, &g, &err), US_E_INVAL);
    assert_string_equal(err.cls, "range");
    free(many);
    free(logits);
    close_model(&m);
}

/* A copy of the model in which one number of a tensor of layer 1 is NaN. */
static void weights_that_are_no_numbers_are_named(void **state) {
    (void)state;
    us_err err = {0};
    const char *dir = test_format("%s/nan", test_temp_dir());
    test_copy_tree(folder, dir);
    model m = open_model(dir, 1, NULL);
    const us_ck_tensor *t = us_ck_find(m.ck, US_LIT("model.layers.1.self_attn.o_proj.weight"));
    assert_non_null(t);
    size_t n;
    const char *path = test_format("%s/%s", dir, m.ck->shards[t->shard].name), *bytes = test_read(path, &n);
    char *copy = malloc(n);
    memcpy(copy, bytes, n);
    copy[t->offset + 11] = 0x7f, copy[t->offset + 10] = (char)0xc0;
    close_model(&m);
    test_write(path, copy, n);
    free(copy);
    m = open_model(dir, 2, NULL);
    us_seq *s;
    assert_us_ok(us_seq_create(m.e, &s, &err), &err);
    assert_int_equal(us_engine_run(m.e, &(us_segment){s, text, N, 0}, 1, NULL, NULL, &err), US_E_NONFINITE);
    assert_non_null(strstr(err.where, "model.layers.1.self_attn.o_proj.weight"));
    us_seq_free(s);
    close_model(&m);
}

static void cutting_back_and_forking(void **state) {
    (void)state;
    us_err err = {0};
    model m = open_model(folder, 2, NULL);
    size_t V = us_engine_recipe(m.e)->V;
    us_seq *s, *f;
    float *whole = logits_of(&m, text, N), *got = malloc(N * V * sizeof *got);
    assert_us_ok(us_seq_create(m.e, &s, &err), &err);
    assert_us_ok(us_engine_run(m.e, &(us_segment){s, text + 4, 9, 0}, 1, NULL, NULL, &err), &err);
    assert_us_ok(us_seq_truncate(s, 0, &err), &err);
    assert_us_ok(us_engine_run(m.e, &(us_segment){s, text, 7, 0}, 1, NULL, NULL, &err), &err);
    assert_us_ok(us_seq_fork(s, &f, &err), &err);
    assert_us_ok(us_engine_run(m.e, &(us_segment){s, text + 1, 5, 0}, 1, NULL, NULL, &err), &err); /* the other goes elsewhere */
    assert_us_ok(us_engine_run(m.e, &(us_segment){f, text + 7, N - 7, N - 7}, 1, NULL, got, &err), &err);
    assert_memory_equal(got, whole + 7 * V, (N - 7) * V * sizeof *got);
    us_seq_free(s);
    us_seq_free(f);
    free(whole);
    free(got);
    close_model(&m);
}

/* ---- generate ---- */

typedef struct seen {
    size_t n;
    uint32_t ids[64];
} seen;

static us_status note(void *user, size_t prompt, const us_sampled *t, us_err *err) {
    (void)err;
    seen *s = user;
    if (prompt == 0) s->ids[s->n++] = t->id;
    return US_OK;
}

static void greedy_is_the_largest_logit(void **state) {
    (void)state;
    us_err err = {0};
    model m = open_model(folder, 2, NULL);
    size_t V = us_engine_recipe(m.e)->V;
    us_generate_options o = {.sampling = US_SAMPLING_DEFAULTS, .max_new = 6, .n_top = 3};
    o.sampling.temperature = 0;
    us_generated g;
    seen s = {0};
    assert_us_ok(us_generate(m.ctx, m.e, &o, &(us_prompt){text, 8}, 1, note, &s, &g, &err), &err);
    assert_true(g.n == 14 && g.n_prompt == 8 && g.finish == US_FINISH_LENGTH && s.n == 6);
    float *logits = logits_of(&m, g.ids, g.n);
    for (size_t t = 8; t < g.n; t++) {
        const float *z = logits + (t - 1) * V;
        size_t best = 0;
        for (size_t v = 1; v < V; v++)
            if (z[v] > z[best]) best = v;
        assert_int_equal(g.ids[t], best);
        assert_int_equal(s.ids[t - 8], best);
        assert_int_equal(g.top[(t - 8) * 3].id, best);
    }
    free(logits);
    us_generated_free(&g);
    close_model(&m);
}

/* Nine prompts of different lengths: one after the other, and in batches of three with seven threads. */
static void the_batch_does_not_matter(void **state) {
    (void)state;
    enum { P = 9 };
    us_err err = {0};
    us_prompt prompts[P];
    us_generated one[P], many[P];
    model a = open_model(folder, 1, NULL), b = open_model(folder, 7, NULL);
    for (size_t i = 0; i < P; i++) prompts[i] = (us_prompt){text + i, 1 + i};
    uint32_t stop[] = {0, 1, 2, 3, 4, 5, 6, 7};
    us_generate_options o = {.sampling = US_SAMPLING_DEFAULTS, .seed = 5, .max_new = 12, .batch = 1, .stop = stop, .n_stop = 8};
    o.sampling.repetition = 1.2;
    assert_us_ok(us_generate(a.ctx, a.e, &o, prompts, P, NULL, NULL, one, &err), &err);
    o.batch = 3;
    assert_us_ok(us_generate(b.ctx, b.e, &o, prompts, P, NULL, NULL, many, &err), &err);
    size_t stopped = 0;
    for (size_t i = 0; i < P; i++) {
        assert_int_equal(one[i].n, many[i].n);
        assert_memory_equal(one[i].ids, many[i].ids, one[i].n * sizeof *one[i].ids);
        assert_memory_equal(one[i].tokens, many[i].tokens, (one[i].n - one[i].n_prompt) * sizeof *one[i].tokens);
        bool ended = one[i].ids[one[i].n - 1] < 8;
        assert_int_equal(one[i].finish, ended ? US_FINISH_STOP : US_FINISH_LENGTH);
        if (!ended) assert_int_equal(one[i].n, one[i].n_prompt + 12);
        stopped += ended;
        us_generated_free(&one[i]);
        us_generated_free(&many[i]);
    }
    assert_true(stopped > 0);
    close_model(&a);
    close_model(&b);
}

static void ids_that_end_a_text(void **state) {
    (void)state;
    us_err err = {0};
    uint32_t *ids;
    size_t n;
    const char *dir = test_format("%s/stop", test_temp_dir());
    tiny_write(dir, &(tiny_model){.config_more = "\"eos_token_id\": [7, 9],"});
    model m = open_model(dir, 1, NULL);
    assert_us_ok(us_stop_ids(m.st, &ids, &n, &err), &err);
    assert_true(n == 2 && ids[0] == 7 && ids[1] == 9);
    us_free(ids);
    test_write_text(test_format("%s/generation_config.json", dir), "{\"eos_token_id\": 3}");
    assert_us_ok(us_stop_ids(m.st, &ids, &n, &err), &err);
    assert_true(n == 1 && ids[0] == 3);
    us_free(ids);
    test_write_text(test_format("%s/generation_config.json", dir), "{\"eos_token_id\": ");
    assert_int_not_equal(us_stop_ids(m.st, &ids, &n, &err), US_OK);
    close_model(&m);
}

/* ---- scores ---- */

static double plain_nll(model *m, size_t from, size_t n, size_t first) {
    size_t V = us_engine_recipe(m->e)->V;
    float *z = logits_of(m, text + from, n);
    double nll = 0;
    for (size_t t = first; t < n; t++) {
        const float *row = z + (t - 1) * V;
        double sum = 0;
        for (size_t v = 0; v < V; v++) sum += exp((double)row[v]);
        nll -= (double)row[text[from + t]] - log(sum);
    }
    free(z);
    return nll;
}

static void windows_score_each_token_once(void **state) {
    (void)state;
    us_err err = {0};
    model m = open_model(folder, 2, NULL);
    us_score z = {0};
    assert_us_ok(us_score_text(m.ctx, m.e, &(us_score_options){64, 32}, text, N, &z, &err), &err);
    assert_int_equal(z.n, N - 1);
    assert_true(fabs(z.nll - plain_nll(&m, 0, N, 1)) < 1e-5 * z.nll);
    assert_true(z.bucket_n[0] == 1 && z.bucket_n[1] == 2 && z.bucket_n[2] == 4 && z.bucket_n[3] == 8 && z.bucket_n[4] == N - 1 - 15);
    z = (us_score){0};
    assert_us_ok(us_score_text(m.ctx, m.e, &(us_score_options){8, 5}, text, N, &z, &err), &err); /* windows at 0, 5, 10, 15 */
    assert_int_equal(z.n, N - 1);
    double want = plain_nll(&m, 0, 8, 1) + plain_nll(&m, 5, 8, 3) + plain_nll(&m, 10, 8, 3) + plain_nll(&m, 15, 5, 3);
    assert_true(fabs(z.nll - want) < 1e-5 * want);
    z = (us_score){0};
    assert_us_ok(us_score_text(m.ctx, m.e, &(us_score_options){8, 5}, text, 1, &z, &err), &err);
    assert_int_equal(z.n, 0);
    assert_int_equal(us_score_text(m.ctx, m.e, &(us_score_options){8, 9}, text, N, &z, &err), US_E_INVAL);
    close_model(&m);
}

/* ---- routers ---- */

static void routers_are_counted(void **state) {
    (void)state;
    us_err err = {0};
    model m = open_model(folder, 2, NULL);
    us_route_stats s;
    const int64_t *texts[] = {text, text + 3, text + 9};
    size_t n[] = {N, 5, 1}, k = us_engine_recipe(m.e)->router.top_k;
    assert_us_ok(us_route_stats_create(m.e, m.st, true, &s, &err), &err);
    assert_us_ok(us_route_stats_run(m.ctx, m.e, texts, n, 3, 8, true, &s, &err), &err);
    assert_int_equal(s.tokens, N + 6);
    for (size_t i = 0; i < s.n_layers; i++) {
        const us_route_layer *l = &s.layers[i];
        uint64_t count[64] = {0}, all = 0, pairs = 0;
        for (size_t t = 0; t < s.tokens; t++)
            for (size_t j = 0; j < k; j++) {
                int32_t e = s.choices[(t * s.n_layers + i) * k + j];
                assert_true(e >= 0 && (uint32_t)e < l->n_experts);
                if (j) assert_true(e > s.choices[(t * s.n_layers + i) * k + j - 1]);
                count[e]++;
            }
        double weight = 0;
        for (size_t e = 0; e < l->n_experts; e++) {
            assert_int_equal(count[e], l->count[e]);
            all += l->count[e];
            weight += l->weight[e];
            for (size_t f = 0; f < l->n_experts; f++) pairs += l->pairs[e * l->n_experts + f];
        }
        assert_int_equal(all, s.tokens * k);
        assert_int_equal(pairs, s.tokens * k * (k - 1));
        assert_true(l->tokens == s.tokens && l->margin >= 0 && l->margin_least >= 0 && l->margin_least * (double)l->tokens <= l->margin);
        assert_true(l->entropy > 0 && l->entropy <= (double)l->tokens * log((double)l->n_experts) * (1 + 1e-12));
        assert_true(us_route_balance(l) > 0 && us_route_balance(l) <= 1 + 1e-12 && us_route_peak(l) >= 1);
        assert_true(weight > 0);
    }
    us_route_stats_free(&s);
    close_model(&m);
}

/* ---- lack of memory ---- */

static us_status everything(us_err *err) {
    model m = {0};
    us_generated g = {0};
    us_score z = {0};
    us_route_stats r = {0};
    const int64_t *texts[] = {text};
    size_t n[] = {N};
    us_generate_options o = {.sampling = US_SAMPLING_DEFAULTS, .max_new = 2, .n_top = 1};
    us_status s = us_ctx_create(1, 0, &m.ctx, err);
    if (s == US_OK) s = us_checkpoint_open(m.ctx, folder, 0, &m.ck, err);
    if (s == US_OK) s = us_structure_resolve(m.ctx, m.ck, &m.st, err);
    if (s == US_OK) s = us_engine_open(m.ctx, m.st, NULL, &m.e, err);
    if (s == US_OK) s = us_generate(m.ctx, m.e, &o, &(us_prompt){text, 3}, 1, NULL, NULL, &g, err);
    if (s == US_OK) s = us_score_text(m.ctx, m.e, &(us_score_options){16, 8}, text, N, &z, err);
    if (s == US_OK) s = us_route_stats_create(m.e, m.st, true, &r, err);
    if (s == US_OK) s = us_route_stats_run(m.ctx, m.e, texts, n, 1, 8, true, &r, err);
    us_route_stats_free(&r);
    us_generated_free(&g);
    close_model(&m);
    return s;
}

static void every_allocation_fails_once(void **state) {
    (void)state;
    us_err err = {0};
    uint64_t live = us_alloc_get_stats().live_blocks, n = 1;
    for (;; n += n < 400 ? 1 : 7) {
        us_alloc_fail_at(n);
        us_status s = everything(&err);
        bool failed = us_alloc_failed();
        us_alloc_fail_at(0);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
        if (!failed) {
            assert_us_ok(s, &err);
            break;
        }
        assert_int_equal(s, US_E_NOMEM);
    }
    print_message("%llu allocations\n", (unsigned long long)n);
    assert_true(n > 100);
}

static int set_up(void **state) {
    (void)state;
    folder = test_format("%s/tiny", test_temp_dir());
    tiny_write(folder, &(tiny_model){.layers = 3, .hidden = 32, .top_k = 3, .config_more = "\"max_position_embeddings\": 64,"});
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_oracle),           cmocka_unit_test(streaming_changes_nothing), cmocka_unit_test(refusals_come_before_work),
        cmocka_unit_test(weights_that_are_no_numbers_are_named), cmocka_unit_test(cutting_back_and_forking),  cmocka_unit_test(greedy_is_the_largest_logit),
        cmocka_unit_test(the_batch_does_not_matter),   cmocka_unit_test(ids_that_end_a_text),       cmocka_unit_test(windows_score_each_token_once),
        cmocka_unit_test(routers_are_counted),         cmocka_unit_test(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
