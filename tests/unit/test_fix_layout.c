/* Cases from public reports that are tables of the planner's rules: layouts (Z12), FP8 blocks under tensor parallelism (Z13), redundant experts (P23),
 * static memory (Z05, Z06); and plan answering for every released config. */
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

static uint32_t number(const us_json_doc *d, us_json_ref r, const char *key, uint32_t def) {
    uint64_t v;
    return us_json_u64(d, us_json_get(d, r, key), &v) ? (uint32_t)v : def;
}

static void layout_rules_case(void **state) {
    (void)state;
    const char *root = test_fixtures("cases/Z12");
    if (!root) return;
    us_json_doc d;
    us_err err = {0};
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/expected.json", root), NULL)), 0, &err), &err);
    us_json_ref rows = us_json_get(&d, 0, "rows");
    for (us_json_ref r = us_json_first(&d, rows); r != US_JSON_NO; r = us_json_next(&d, rows, r)) {
        us_layout l = {number(&d, r, "world", 0), number(&d, r, "TP", 0), number(&d, r, "PP", 0), number(&d, r, "CP", 0), number(&d, r, "EP", 0), number(&d, r, "ETP", 0), 0, 0};
        bool legal = false;
        us_json_bool(&d, us_json_get(&d, r, "legal"), &legal);
        assert_int_equal(us_layout_check(&l, NULL) == US_OK, legal);
        assert_int_equal(l.dp, number(&d, r, "DP", 0));
        assert_int_equal(l.edp, number(&d, r, "EDP", 0));
    }
    us_json_doc_free(&d);
}

static void redundant_experts_case(void **state) {
    (void)state;
    const char *root = test_fixtures("cases/P23");
    if (!root) return;
    us_json_doc d;
    us_err err = {0};
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/expected.json", root), NULL)), 0, &err), &err);
    us_json_ref rows = us_json_get(&d, 0, "table");
    for (us_json_ref r = us_json_first(&d, rows); r != US_JSON_NO; r = us_json_next(&d, rows, r))
        assert_int_equal(us_redundant_experts(number(&d, r, "E", 0), number(&d, r, "EP", 0)), number(&d, r, "R", 0));
    us_json_doc_free(&d);
}

/* The width a rank holds must be whole blocks of 128: the table's own width x TP gives the expert width back. */
static void fp8_block_case(void **state) {
    (void)state;
    const char *root = test_fixtures("cases/Z13");
    if (!root) return;
    us_json_doc d;
    us_err err = {0};
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/expected.json", root), NULL)), 0, &err), &err);
    us_json_ref rows = us_json_get(&d, 0, "table");
    for (us_json_ref r = us_json_first(&d, rows); r != US_JSON_NO; r = us_json_next(&d, rows, r)) {
        double width = 0;
        bool legal = false;
        uint32_t tp = number(&d, r, "TP", 1);
        assert_true(us_json_double(&d, us_json_get(&d, r, "expert_width_per_rank"), &width));
        us_json_bool(&d, us_json_get(&d, r, "legal"), &legal);
        us_counts n = {.n_experts = 64, .top_k = 8, .n_group = 1, .topk_group = 1, .expert_ffn = (uint32_t)(width * tp)};
        assert_int_equal(us_engine_check(&n, US_ROUTER_SM, US_ENGINE_VLLM, 0, tp, true, 64, NULL) == US_OK, legal);
    }
    us_json_doc_free(&d);
}

/* `plan CONFIG --memory 64` alone answers for every released model. */
static void every_config_is_planned(void **state) {
    (void)state;
    for (const char *const *folder = test_folders("configs", "config.json"); *folder; folder++) {
        const char *path = test_format("%s/config.json", *folder);
        us_json_doc d;
        us_err err = {0};
        test_run r = test_understudy((const char *const[]){"plan", path, "--memory", "64", "--json", NULL});
        test_assert_done(&r);
        assert_us_ok(us_json_doc_parse(&d, (us_str){r.out, r.n_out}, 0, &err), &err);
        assert_true(number(&d, 0, "static_floor", 0) > 0);
        assert_int_equal(number(&d, 0, "bytes_per_parameter", 0), 18);
        assert_true(us_json_count(&d, us_json_get(&d, 0, "legal")) > 0);
        assert_int_not_equal(us_json_path(&d, 0, "original.training.optimizer_offload.devices"), US_JSON_NO);
        assert_int_not_equal(us_json_path(&d, 0, "original.rollout.devices"), US_JSON_NO);
        us_json_doc_free(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_rules_case),
        cmocka_unit_test(redundant_experts_case),
        cmocka_unit_test(fp8_block_case),
        cmocka_unit_test(every_config_is_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
