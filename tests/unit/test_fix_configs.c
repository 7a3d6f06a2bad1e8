/* Counted parameters of every released config of fixtures/configs equal expected.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "model/count.h"
#include "support/support.h"

static int differ(const char *model, const us_json_doc *d, us_json_ref e, const char *key, uint64_t ours) {
    uint64_t theirs;
    if (!us_json_u64(d, us_json_get(d, e, key), &theirs) || theirs == ours) return 0;
    print_error("%s: %s is %llu, should be %llu (%+lld)\n", model, key, (unsigned long long)ours, (unsigned long long)theirs, (long long)(ours - theirs));
    return 1;
}

static int check(const char *model, const char *path, const us_json_doc *d, us_json_ref e) {
    us_json_doc config;
    us_config c;
    us_counts n;
    us_err err = {0};
    int wrong = 0;
    assert_us_ok(us_json_doc_parse(&config, us_str_z(test_read(path, NULL)), US_JSON_INFINITY, &err), &err);
    us_status s = us_config_open(&config, &c, &err);
    if (s == US_OK) s = us_count_config(&c, &n, &err);
    if (s != US_OK) {
        print_error("%s: %s\n", model, err.what);
        wrong = 1;
    } else {
        wrong += differ(model, d, e, "experts", n.n_experts) + differ(model, d, e, "top_k", n.top_k) + differ(model, d, e, "moe_layers", n.n_moe_layers);
        wrong += differ(model, d, e, "params_per_expert", n.per_expert) + differ(model, d, e, "routed_expert_params", n.routed);
        wrong += differ(model, d, e, "text_total", n.total) + differ(model, d, e, "other_params", n.other) + differ(model, d, e, "active_per_token", n.active);
        wrong += differ(model, d, e, "embed", n.embed) + differ(model, d, e, "lm_head", n.head) + differ(model, d, e, "lookup_table_params", n.lookup);
        wrong += differ(model, d, e, "active_without_embed_and_head", n.active - n.embed - n.head);
        wrong += differ(model, d, e, "mtp_params_without_embed_and_head_copies", n.mtp);
    }
    us_json_doc_free(&config);
    return wrong != 0;
}

static void counts_equal_the_built_models(void **state) {
    (void)state;
    const char *root = test_fixtures("configs");
    if (!root || !test_exists(test_format("%s/expected.json", root))) return;
    us_json_doc d;
    us_err err = {0};
    int wrong = 0, models = 0;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/expected.json", root), NULL)), 0, &err), &err);
    for (us_json_ref k = us_json_first(&d, 0); k != US_JSON_NO; k = us_json_next(&d, 0, k + 1)) {
        us_str name = us_json_string(&d, k);
        const char *path = test_format("%s/%.*s/config.json", root, US_STR_ARG(name));
        if (!test_exists(path)) continue;
        models++;
        wrong += check(test_format("%.*s", US_STR_ARG(name)), path, &d, k + 1);
    }
    us_json_doc_free(&d);
    print_message("%d models counted\n", models);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_equal_the_built_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
