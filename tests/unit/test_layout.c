/* The planner: hand-worked memory figures, layout rules, floors, and the public recipes of tests/data/recipes.json. */
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

#include "proxy/device.h"
#include "proxy/layout.h"
#include "support/prop.h"
#include "support/support.h"

static us_counts count(const char *model) {
    us_json_doc d;
    us_config c;
    us_counts n;
    us_err err = {0};
    const char *text = test_read(test_format("%s/configs/%s/config.json", test_data(), model), NULL);
    assert_us_ok(us_json_doc_parse(&d, us_str_z(text), US_JSON_INFINITY, &err), &err);
    assert_us_ok(us_config_open(&d, &c, &err), &err);
    assert_us_ok(us_count_config(&c, &n, &err), &err);
    us_json_doc_free(&d);
    return n;
}

/* Spec 4.1: 64 GB, 85 % usable, 18 bytes a parameter, at r = 1, 1/2, 1/4, 1/8. */
static void floors_of_the_five_models(void **state) {
    (void)state;
    static const struct {
        const char *model;
        uint64_t floor[4];
    } rows[] = {{"Qwen3-30B-A3B", {11, 6, 3, 2}},
                {"GLM-4.5-Air", {36, 19, 11, 7}},
                {"Qwen3-235B-A22B", {78, 41, 22, 13}},
                {"DeepSeek-V3", {223, 114, 60, 33}},
                {"Kimi-K2-Instruct", {340, 172, 88, 46}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        us_counts n = count(rows[i].model);
        for (int r = 0; r < 4; r++) assert_int_equal(us_static_floor(&n, n.n_experts >> r, 18, 64e9, 0.85), rows[i].floor[r]);
    }
}

static us_training training(double gb, uint32_t per_node) {
    return (us_training){.memory = gb * 1e9, .usable = 0.85, .per_node = per_node, .optimizer = US_OPT_ADAM, .longest = 4096, .sequence = 4096, .logprob_copies = 2, .recompute = true};
}

/* 30B on 8 devices with EP 8: experts (29.0e9 x 18)/8, the rest 1.54e9 x (6 + 12/8). */
static void static_memory_by_hand(void **state) {
    (void)state;
    us_counts n = count("Qwen3-30B-A3B");
    us_training t = training(80, 8);
    us_layout l = {8, 1, 1, 1, 8, 1, 0, 0};
    us_moments m;
    us_err err = {0};
    assert_us_ok(us_layout_check(&l, &err), &err);
    us_training_memory(&n, &t, &l, false, &m);
    double gib = (m.weights + m.gradients + m.optimizer) / 1073741824.0, want = 60.75 + 10.764412879943848;
    assert_true(fabs(gib - want) < 1e-6);
    us_training_memory(&n, &t, &l, true, &m);
    assert_true(fabs((m.weights + m.gradients) / 1073741824.0 - 28.861530303955078) < 1e-6);
    assert_true(m.optimizer == 0 && m.host_per_node > 0);
}

/* One f32 copy of log-probs: 27,138 tokens x 151,936 / TP 4 x 4 bytes = 3.84 GiB, whatever the number of experts. */
static void log_prob_transients(void **state) {
    (void)state;
    us_counts n = count("Qwen3-235B-A22B"), half = us_counts_with_experts(&n, 64);
    us_training t = training(80, 8);
    us_layout l = {64, 4, 4, 1, 8, 1, 0, 0};
    us_moments m, mh;
    us_err err = {0};
    t.longest = 27138;
    t.logprob_copies = 1;
    assert_us_ok(us_layout_check(&l, &err), &err);
    us_training_memory(&n, &t, &l, true, &m);
    us_training_memory(&half, &t, &l, true, &mh);
    assert_true(fabs(m.logprobs / 1073741824.0 - 3.8400657176971436) < 1e-9);
    assert_true(m.logprobs == mh.logprobs);
}

static void optimizers_set_the_bytes(void **state) {
    (void)state;
    us_optimizer o;
    static const struct {
        const char *name;
        uint32_t bytes;
    } rows[] = {{"adamw", 18}, {"muon", 14}, {"sgd", 10}, {"adam8bit", 12}};
    for (size_t i = 0; i < 4; i++) {
        assert_true(us_optimizer_parse(rows[i].name, &o));
        assert_int_equal(6 + us_optimizer_state_bytes(o), rows[i].bytes);
    }
    assert_false(us_optimizer_parse("nonsense", &o));
}

static void redundancy_margin_and_engines(void **state) {
    (void)state;
    static const uint32_t r[][3] = {{64, 8, 0}, {96, 64, 32}, {132, 8, 4}, {256, 320, 64}, {60, 8, 4}};
    for (size_t i = 0; i < 5; i++) assert_int_equal(us_redundant_experts(r[i][0], r[i][1]), r[i][2]);
    /* Spec 5.2's table for 128 experts top-8. */
    assert_true(fabs(us_margin_ratio(128, 64, 8) - 1.19) < 0.005 && fabs(us_margin_ratio(128, 32, 8) - 1.55) < 0.005 && fabs(us_margin_ratio(128, 16, 8) - 2.47) < 0.005);
    us_counts n = count("DeepSeek-V4-Flash");
    us_err err = {0};
    assert_int_equal(us_engine_check(&n, US_ROUTER_V4, US_ENGINE_VLLM, 0, 0, false, 160, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "kernel-list");
    assert_int_equal(us_engine_check(&n, US_ROUTER_V4, US_ENGINE_VLLM, 0, 0, false, 192, &err), US_OK);
    assert_int_equal(us_engine_check(&n, US_ROUTER_V4, US_ENGINE_MEGATRON, 8, 0, false, 100, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "ep-divide");
    assert_non_null(us_device_find("h20"));
    assert_null(us_device_find("toaster"));
}

static uint32_t number(const us_json_doc *d, us_json_ref r, const char *key, uint32_t def) {
    uint64_t v;
    return us_json_u64(d, us_json_get(d, r, key), &v) ? (uint32_t)v : def;
}

/* Every recipe's own layout fits where it was run; and where a row states a least number, ours is within a node of it or the row says why not. */
static int check_recipe(const us_json_doc *d, us_json_ref r) {
    const char *name = test_format("%.*s", US_STR_ARG(us_json_string(d, us_json_get(d, r, "name"))));
    us_counts n = count(test_format("%.*s", US_STR_ARG(us_json_string(d, us_json_get(d, r, "model")))));
    uint32_t devices = number(d, r, "devices", 0), node = number(d, r, "per_node", 8);
    us_training t = training(number(d, r, "memory", 0), node);
    us_layout l = {devices, number(d, r, "tp", 1), number(d, r, "pp", 1), number(d, r, "cp", 1), number(d, r, "ep", 1), number(d, r, "etp", 1), 0, 0}, best;
    us_moments m;
    us_err err = {0};
    bool offload = false, minimum = false;
    us_json_bool(d, us_json_get(d, r, "offload"), &offload);
    us_json_bool(d, us_json_get(d, r, "minimum"), &minimum);
    bool search = false;
    t.usable = number(d, r, "usable", 85) / 100.0;
    us_json_bool(d, us_json_get(d, r, "search"), &search);
    if (search) {
        if (us_training_search(&n, &t, offload, devices, &best, &m)) return 0;
        print_error("%s: no layout within %u devices\n", name, devices);
        return 1;
    }
    if (us_layout_check(&l, &err) != US_OK) {
        print_error("%s: %s\n", name, err.what);
        return 1;
    }
    us_training_memory(&n, &t, &l, offload, &m);
    bool fits = m.peak <= t.memory * t.usable, said_small = us_json_get(d, r, "too_small") != US_JSON_NO;
    if (fits == said_small) {
        print_error("%s: peak %.1f GB of %.1f\n", name, m.peak / 1e9, t.memory * t.usable / 1e9);
        return 1;
    }
    if (!minimum) return 0;
    if (!us_training_search(&n, &t, offload, 4096, &best, &m)) return 1;
    uint32_t gap = best.world > devices ? best.world - devices : devices - best.world;
    if (gap <= node || us_json_get(d, r, "explain") != US_JSON_NO) return 0;
    print_error("%s: least %u, published %u\n", name, best.world, devices);
    return 1;
}

static void public_recipes(void **state) {
    (void)state;
    us_json_doc d;
    us_err err = {0};
    int wrong = 0;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/recipes.json", test_data()), NULL)), 0, &err), &err);
    us_json_ref list = us_json_get(&d, 0, "recipes");
    assert_true(us_json_count(&d, list) >= 30);
    for (us_json_ref r = us_json_first(&d, list); r != US_JSON_NO; r = us_json_next(&d, list, r)) wrong += check_recipe(&d, r);
    us_json_doc_free(&d);
    assert_int_equal(wrong, 0);
}

/* Small round numbers: 4 layers (all MoE), width 100, 8 experts top-2 of width 50, vocabulary 1,000. */
static const us_counts round_model = {.n_layers = 4, .n_moe_layers = 4, .n_experts = 8, .top_k = 2, .hidden = 100, .vocab = 1000, .heads = 4, .kv_heads = 2, .expert_ffn = 50,
                                      .total = 1040000, .routed = 480000, .other = 560000, .per_expert = 15000, .embed = 100000, .head = 100000, .tp_sharded = 520000, .replicated = 40000};

/* TP 2, PP 2, EP 2 on 8 devices: stage of 2 layers; dense = 320,000/2 x 1/2 + 40,000/2 + 100,000/2 = 150,000, routed = 480,000/2/2 = 120,000. */
static void every_part_by_hand(void **state) {
    (void)state;
    us_training t = {.memory = 1e9, .usable = 0.85, .per_node = 4, .optimizer = US_OPT_ADAM, .longest = 60, .sequence = 40, .logprob_copies = 3};
    us_layout l = {8, 2, 2, 1, 2, 1, 0, 0};
    us_moments m;
    us_err err = {0};
    assert_us_ok(us_layout_check(&l, &err), &err);
    assert_us_ok(us_layout_check_model(&l, &round_model, &err), &err);
    assert_true(l.dp == 2 && l.edp == 2);
    us_training_memory(&round_model, &t, &l, false, &m);
    assert_true(m.weights == 2 * 270000.0 && m.gradients == 4 * 270000.0 && m.optimizer == 12 * 270000.0 / 2);
    /* a layer keeps 40 x 100 x (18 + 4 x 100/100)/2 = 44,000; first stage: 2 layers x 2 micro-batches; last: 2 layers and logits 40 x 1,000 x 6/2 */
    assert_true(m.logits == 120000 && m.activations == 208000);
    assert_true(m.logprobs == 60.0 * 1000 / 2 * 4 * 3);
    assert_true(m.load == m.weights + 2 * 120000.0);
    assert_true(m.logprob_pass == 540000 + 1080000 + 1620000 + 360000);
    assert_true(m.first_step == 540000 + 1080000 + 1620000 + 540000);
    assert_true(m.steady == 540000 + 1080000 + 1620000 + 208000 && m.peak == m.first_step);
    us_training_memory(&round_model, &t, &l, true, &m);
    assert_true(m.optimizer == 0 && m.host_per_node == 4 * 1620000.0); /* 4 of the 8 devices stand in a node */
    assert_true(m.logprob_pass == 540000 + 360000);                    /* gradients are not alive with the optimizer on the host */
    t.per_node = 16;
    us_training_memory(&round_model, &t, &l, true, &m);
    assert_true(m.host_per_node == 8 * 1620000.0); /* a node is not full */
    t.recompute = true; /* 2 bytes x 40 x 100 / 2 a layer, and one layer being recomputed: first stage 2 x 2 x 4,000 + 44,000 */
    us_training_memory(&round_model, &t, &l, true, &m);
    assert_true(m.activations == 2 * 4000 + 44000 + 120000);
}

static void models_divide(void **state) {
    (void)state;
    us_err err = {0};
    static const struct {
        us_layout l;
        const char *cls;
    } rows[] = {{{8, 8, 1, 1, 1, 1, 0, 0}, "heads-divide"}, {{6, 1, 1, 1, 3, 1, 0, 0}, "ep-divide"}, {{8, 1, 8, 1, 1, 1, 0, 0}, "stages"}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(us_layout_check_model(&rows[i].l, &round_model, &err), US_E_REFUSED);
        assert_string_equal(err.cls, rows[i].cls);
    }
    us_layout copied = {4, 4, 1, 1, 4, 1, 0, 0}; /* 2 KV heads under TP 4: each is held twice */
    assert_us_ok(us_layout_check_model(&copied, &round_model, &err), &err);
    us_counts n = round_model;
    n.heads = 6, n.kv_heads = 3;
    us_layout two = {2, 2, 1, 1, 1, 1, 0, 0};
    assert_int_equal(us_layout_check_model(&two, &n, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "kv-heads-divide");
    assert_int_equal(us_engine_check(&round_model, US_ROUTER_SM, US_ENGINE_VLLM, 16, 0, false, 8, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "ep-above-experts");
}

/* Every tuple of widths up to the world, with nothing but the rules: is there one that fits? */
static bool any_fits(const us_counts *n, const us_training *t, bool offload, uint32_t world) {
    for (uint32_t tp = 1; tp <= t->per_node; tp *= 2)
        for (uint32_t pp = 1; pp <= world; pp++)
            for (uint32_t cp = 1; cp <= 8; cp *= 2)
                for (uint32_t ep = 1; ep <= world; ep++) {
                    us_layout l = {world, tp, pp, cp, ep, 1, 0, 0};
                    us_moments m;
                    if (us_layout_check(&l, NULL) != US_OK || us_layout_check_model(&l, n, NULL) != US_OK) continue;
                    us_training_memory(n, t, &l, offload, &m);
                    if (m.peak <= t->memory * t->usable) return true;
                }
    return false;
}

static bool search_is_exhaustive(us_prop *p, void *arg) {
    (void)arg;
    us_counts n = round_model;
    n.n_layers = n.n_moe_layers = 1 + (uint32_t)prop_below(p, 6);
    n.heads = 1 + (uint32_t)prop_below(p, 12);
    n.kv_heads = n.heads;
    us_training t = {.memory = 4e5 + 4e5 * (double)prop_below(p, 20), .usable = 0.85, .per_node = 4, .longest = 40, .sequence = 40, .logprob_copies = 1, .recompute = true};
    bool offload = prop_bool(p);
    us_layout l = {0};
    us_moments m;
    bool found = us_training_search(&n, &t, offload, 32, &l, &m);
    prop_say(p, "%u layers, %u heads, %.0f bytes, offload %d: %u devices", n.n_layers, n.heads, t.memory, offload, l.world);
    for (uint32_t world = 1; world <= 32; world = world < 4 ? world * 2 : world + 4) {
        bool fits = any_fits(&n, &t, offload, world);
        if (!found || world < l.world) PROP_CHECK(p, !fits);
        else if (world == l.world) PROP_CHECK(p, fits);
    }
    return true;
}

static void exhaustive(void **state) {
    (void)state;
    prop_run("search_is_exhaustive", search_is_exhaustive, NULL, 200);
}

/* More memory never needs more devices, fewer experts never need more. */
static bool search_is_monotone(us_prop *p, void *arg) {
    const us_counts *n = arg;
    us_training t = training(32 + 16 * (double)prop_below(p, 10), 8);
    uint32_t e = 8u << prop_below(p, 5);
    bool offload = prop_bool(p);
    us_counts cut = us_counts_with_experts(n, e);
    us_layout a, b;
    us_moments m;
    prop_say(p, "memory %.0f GB, %u experts, offload %d", t.memory / 1e9, e, offload);
    bool found = us_training_search(n, &t, offload, 2048, &a, &m);
    PROP_CHECK(p, us_training_search(&cut, &t, offload, 2048, &b, &m) || !found);
    if (found) PROP_CHECK(p, b.world <= a.world);
    t.memory *= 1.5;
    if (found) PROP_CHECK(p, us_training_search(n, &t, offload, 2048, &b, &m) && b.world <= a.world);
    return true;
}

static void monotone(void **state) {
    (void)state;
    us_counts n = count("Qwen3-30B-A3B");
    prop_run("search_is_monotone", search_is_monotone, &n, 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floors_of_the_five_models), cmocka_unit_test(static_memory_by_hand),        cmocka_unit_test(log_prob_transients),
        cmocka_unit_test(optimizers_set_the_bytes),  cmocka_unit_test(redundancy_margin_and_engines), cmocka_unit_test(public_recipes),
        cmocka_unit_test(monotone),                  cmocka_unit_test(every_part_by_hand),         cmocka_unit_test(models_divide),
        cmocka_unit_test(exhaustive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
