/*
 * Cases from public reports about sizes (fixtures/cases/Z*): every figure of a case's expected.json against the planner. A case whose number has no
 * check here fails the test, so a new one cannot go unnoticed; tables of rules (Z12, Z13) are in test_fix_layout.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "proxy/layout.h"
#include "support/support.h"

#define GIB 1073741824.0

static us_counts count(const char *model) {
    us_json_doc d;
    us_config c;
    us_counts n;
    us_err err = {0};
    const char *path = test_format("%s/%s/config.json", test_fixtures("configs"), model);
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(path, NULL)), US_JSON_INFINITY, &err), &err);
    assert_us_ok(us_config_open(&d, &c, &err), &err);
    assert_us_ok(us_count_config(&c, &n, &err), &err);
    us_json_doc_free(&d);
    return n;
}

static double real(const us_json_doc *d, us_json_ref r) {
    double v = -1;
    assert_true(us_json_double(d, r, &v));
    return v;
}

static double at(const us_json_doc *d, const char *path) {
    if (us_json_path(d, 0, path) == US_JSON_NO) fail_msg("no %s", path);
    return real(d, us_json_path(d, 0, path));
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static us_training training(double gb) {
    return (us_training){.memory = gb * 1e9, .usable = 0.85, .per_node = 8, .longest = 4096, .sequence = 4096, .logprob_copies = 2, .recompute = true};
}

/* Perfect sharding of every byte over the devices: the bound that the reporters computed. */
static void case_Z01(const us_json_doc *d) {
    us_counts n = count("Qwen3-235B-A22B");
    assert_true((double)n.total == at(d, "params"));
    double bytes = 6 + us_optimizer_state_bytes(US_OPT_ADAM), host = us_optimizer_state_bytes(US_OPT_ADAM);
    assert_true(bytes == at(d, "bytes_per_param"));
    us_json_ref per = us_json_get(d, 0, "static_GiB_per_gpu");
    assert_true(near(bytes * (double)n.total / 64 / GIB, real(d, us_json_get(d, per, "64"))));
    assert_true(near(bytes * (double)n.total / 32 / GIB, real(d, us_json_get(d, per, "32"))));
    /* what the planner itself says of the host: every byte of state is somewhere on the nodes */
    us_layout l = {32, 4, 8, 1, 4, 1, 0, 0};
    us_training t = training(80);
    us_moments m;
    us_err err = {0};
    assert_us_ok(us_layout_check(&l, &err), &err);
    us_training_memory(&n, &t, &l, true, &m);
    us_json_ref off = us_json_get(d, 0, "with_optimizer_on_host_32");
    double gpu = real(d, us_json_get(d, off, "gpu_GiB")), node = real(d, us_json_get(d, off, "host_GiB_per_8_gpu_node"));
    assert_true(near(6 * (double)n.total / 32 / GIB, gpu) && near(host * (double)n.total / 4 / GIB, node));
    assert_true((m.weights + m.gradients) / GIB >= gpu && (m.weights + m.gradients) / GIB < 1.1 * gpu);
    assert_true(m.host_per_node / GIB >= node && m.host_per_node / GIB < 1.1 * node);
    us_training_memory(&n, &t, &l, false, &m);
    assert_true(m.peak > t.memory); /* 32 is possible only with the optimizer on the host */
}

static void fits_only_with_offload(const char *model, double gb, us_layout l) {
    us_counts n = count(model);
    us_training t = training(gb);
    us_moments m;
    us_err err = {0};
    assert_us_ok(us_layout_check(&l, &err), &err);
    assert_us_ok(us_layout_check_model(&l, &n, &err), &err);
    us_training_memory(&n, &t, &l, true, &m);
    assert_true(m.peak <= t.memory * t.usable);
    us_training_memory(&n, &t, &l, false, &m);
    assert_true(m.peak > t.memory);
}

static void case_Z02(const us_json_doc *d) {
    double gb = at(d, "DeepSeek-V3.memory_GB");
    fits_only_with_offload("DeepSeek-V3", gb, (us_layout){(uint32_t)real(d, us_json_get(d, us_json_get(d, 0, "DeepSeek-V3"), "gpus")), 8, 12, 1, 8, 1, 0, 0});
    fits_only_with_offload("Qwen3-235B-A22B", gb, (us_layout){(uint32_t)real(d, us_json_get(d, us_json_get(d, 0, "Qwen3-235B"), "gpus")), 4, 8, 1, 4, 1, 0, 0});
}

static void case_Z05(const us_json_doc *d) {
    us_counts n = count("Qwen3-30B-A3B");
    us_training t = training(80);
    us_layout l = {8, 1, 1, 1, 8, 1, 0, 0};
    us_moments m;
    us_err err = {0};
    assert_us_ok(us_layout_check(&l, &err), &err);
    us_training_memory(&n, &t, &l, false, &m);
    assert_true(near((m.weights + m.gradients + m.optimizer) / GIB, at(d, "static_GiB")));
    assert_true(near(18 * (double)n.routed / 8 / GIB, at(d, "expert_static_GiB")));
    assert_true(m.peak > 80e9);                      /* "80 GB: no without offload" */
    assert_true(m.peak > 0.85 * 96e9 && m.peak < 96e9); /* "96 GB: tight" */
    us_training_memory(&n, &t, &l, true, &m);
    assert_true(near((m.weights + m.gradients) / GIB, at(d, "optimizer_on_host_GiB")));
    assert_true(m.peak <= 0.85 * 80e9);
}

static void case_Z06(const us_json_doc *d) {
    us_counts n = count("Qwen3-30B-A3B");
    us_layout l = {8, 4, 1, 1, 8, 1, 0, 0};
    us_training t = training(80);
    us_moments m;
    us_err err = {0};
    assert_us_ok(us_layout_check(&l, &err), &err);
    us_training_memory(&n, &t, &l, true, &m);
    double routed = at(d, "routed_experts_per_rank"), replicated = at(d, "replicated_params.router") + at(d, "replicated_params.norms");
    assert_true((double)n.routed / 8 == routed && (double)n.replicated == replicated);
    assert_true(near(m.weights / 2, routed + replicated + (double)n.tp_sharded / 4));
}

static void case_Z07(const us_json_doc *d) {
    us_counts n = count("Nemotron-3-Super-120B-A12B-FP8");
    assert_true((double)n.total == at(d, "total_params") && (double)n.routed == at(d, "routed_expert_params"));
    us_json_ref others = us_json_get(d, 0, "others");
    const char *const *names = test_list(test_fixtures("configs"), NULL);
    size_t seen = 0;
    for (size_t i = 0; names[i]; i++) {
        us_json_ref r = us_json_get(d, others, names[i]);
        if (r == US_JSON_NO) continue;
        n = count(names[i]);
        assert_true((double)n.total == real(d, us_json_get(d, r, "total")));
        assert_true((double)n.routed == real(d, us_json_get(d, r, "experts")));
        assert_true((double)n.other == real(d, us_json_get(d, r, "other")));
        seen++;
    }
    assert_int_equal(seen, us_json_count(d, others));
}

static void case_Z09(const us_json_doc *d) {
    us_counts n = count("Qwen3-30B-A3B"), half = us_counts_with_experts(&n, 64);
    us_training t = training(80);
    us_layout l = {16, (uint32_t)at(d, "tp"), 1, 1, 8, 1, 0, 0};
    us_moments m, mh;
    us_err err = {0};
    assert_true(n.vocab == at(d, "vocab"));
    t.longest = (uint64_t)at(d, "tokens");
    t.logprob_copies = 1;
    assert_us_ok(us_layout_check(&l, &err), &err);
    us_training_memory(&n, &t, &l, true, &m);
    us_training_memory(&half, &t, &l, true, &mh);
    assert_true(near(m.logprobs / GIB, at(d, "one_f32_copy_GiB")) && m.logprobs == mh.logprobs);
}

static void case_Z14(const us_json_doc *d) {
    us_counts n = count("GLM-4.5-Air");
    static const struct {
        const char *name, *bytes, *total;
    } rows[] = {{"adamw", "adamw", "adamw"}, {"muon", "muon (one moment)", "muon"}, {"sgd", "sign-sgd, no moment", "sign-sgd"}};
    assert_true((double)n.total == at(d, "params"));
    for (size_t i = 0; i < 3; i++) {
        us_optimizer o;
        assert_true(us_optimizer_parse(rows[i].name, &o));
        double bytes = 6 + us_optimizer_state_bytes(o);
        assert_true(bytes == real(d, us_json_get(d, us_json_get(d, 0, "bytes_per_param"), rows[i].bytes)));
        assert_true(near(bytes * (double)n.total / 1e12, real(d, us_json_get(d, us_json_get(d, 0, "total_TB"), rows[i].total))));
    }
}

static void elsewhere(const us_json_doc *d) {
    (void)d;
}

static void every_case(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void (*check)(const us_json_doc *);
    } known[] = {{"Z01", case_Z01}, {"Z02", case_Z02}, {"Z05", case_Z05},  {"Z06", case_Z06},  {"Z07", case_Z07},
                 {"Z09", case_Z09}, {"Z14", case_Z14}, {"Z12", elsewhere}, {"Z13", elsewhere}, {NULL, NULL}};
    const char *root = test_fixtures("cases");
    if (!root || !test_fixtures("configs")) return;
    const char *const *names = test_list(root, NULL);
    for (size_t i = 0; names[i]; i++) {
        const char *path = test_format("%s/%s/expected.json", root, names[i]);
        if (names[i][0] != 'Z' || !test_exists(path)) continue;
        size_t k = 0;
        while (known[k].name && strcmp(known[k].name, names[i]) != 0) k++;
        if (!known[k].name) fail_msg("case %s has no check", names[i]);
        us_json_doc d;
        us_err err = {0};
        assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(path, NULL)), 0, &err), &err);
        known[k].check(&d);
        us_json_doc_free(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
