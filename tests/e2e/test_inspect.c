/* `understudy inspect` from a bare clone: stored forms count the same, dense and uncountable models say so, MTP is what the file holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/moe_maker.h"

static uint64_t number(const us_json_doc *d, const char *path) {
    uint64_t v = UINT64_MAX;
    us_json_ref r = us_json_path(d, 0, path);
    if (us_json_type_of(d, r) != US_JSON_NULL && !us_json_u64(d, r, &v)) fail_msg("no number %s", path);
    return v;
}

static us_json_doc inspect(const char *path) {
    us_json_doc d;
    us_err err = {0};
    test_run r = test_understudy((const char *const[]){"inspect", "--json", path, NULL});
    test_assert_done(&r);
    assert_us_ok(us_json_doc_parse(&d, (us_str){r.out, r.n_out}, 0, &err), &err);
    return d;
}

static void stored_forms_count_the_same(void **state) {
    (void)state;
    static const maker_form forms[] = {MAKER_BF16, MAKER_F32, MAKER_F16, MAKER_FP8, MAKER_INT4};
    maker m = maker_create(2, 8, 64, 32, 5);
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *folder = test_format("%s/%zu", test_temp_dir(), i);
        maker_write(&m, forms[i], folder);
        us_json_doc d = inspect(folder);
        assert_int_equal(number(&d, "parameters.routed"), 2 * 8 * 3 * 64 * 32);
        if (i == 0) total = number(&d, "parameters.total");
        assert_int_equal(number(&d, "parameters.total"), total);
        assert_int_equal(number(&d, "parameters.other"), total - 2 * 8 * 3 * 64 * 32);
        assert_int_equal(number(&d, "experts"), 8);
        assert_int_equal(us_json_count(&d, us_json_get(&d, 0, "layers")), 2);
        us_json_ref layer = us_json_at(&d, us_json_get(&d, 0, "layers"), 1);
        uint64_t k = 0, E = 0;
        assert_true(us_json_u64(&d, us_json_get(&d, layer, "top_k"), &k) && k == number(&d, "top_k"));
        assert_true(us_json_u64(&d, us_json_get(&d, layer, "experts"), &E) && E == 8);
        us_json_doc_free(&d);
    }
    maker_free(&m);
}

static void a_bare_config_that_cannot_be_counted_says_so(void **state) {
    (void)state;
    const char *path = test_format("%s/config.json", test_temp_dir());
    test_write_text(path, "{\"model_type\":\"jamba\",\"num_hidden_layers\":4,\"num_experts\":16,\"num_experts_per_tok\":2,\"expert_layer_period\":2,"
                          "\"expert_layer_offset\":1,\"hidden_size\":64,\"vocab_size\":100,\"num_attention_heads\":4}");
    us_json_doc d = inspect(path);
    assert_int_equal(number(&d, "parameters.total"), UINT64_MAX); /* null */
    assert_int_equal(number(&d, "experts"), 16);
    bool moe = false;
    assert_true(us_json_bool(&d, us_json_get(&d, us_json_at(&d, us_json_get(&d, 0, "layers"), 1), "moe"), &moe) && moe);
    assert_true(us_json_bool(&d, us_json_get(&d, us_json_at(&d, us_json_get(&d, 0, "layers"), 2), "moe"), &moe) && !moe);
    us_json_doc_free(&d);
    test_write_text(path, "{\"model_type\":\"jamba\",\"num_hidden_layers\":4,\"num_experts\":\"16\",\"num_experts_per_tok\":2,\"hidden_size\":64,"
                          "\"vocab_size\":100,\"num_attention_heads\":4}");
    test_run r = test_understudy((const char *const[]){"inspect", path, NULL});
    test_assert_refused(&r, 1, "type");
}

static void a_dense_model_says_so(void **state) {
    (void)state;
    const char *path = test_format("%s/config.json", test_temp_dir());
    test_write_text(path, "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":8,\"vocab_size\":10,\"num_attention_heads\":2,\"intermediate_size\":16}");
    us_json_doc d = inspect(path);
    bool dense = false;
    assert_true(us_json_bool(&d, us_json_get(&d, 0, "dense"), &dense) && dense);
    assert_int_equal(number(&d, "parameters.routed"), 0);
    assert_int_equal(number(&d, "parameters.total"), 4 * 8 * 8 + 3 * 8 * 16 + 2 * 8 + 8 + 2 * 10 * 8);
    us_json_doc_free(&d);
    test_run r = test_understudy((const char *const[]){"inspect", path, NULL});
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "dense"));
}

static void an_unknown_family_names_the_nearest(void **state) {
    (void)state;
    const char *path = test_format("%s/config.json", test_temp_dir());
    test_write_text(path, "{\"model_type\":\"mixtrall\"}");
    test_run r = test_understudy((const char *const[]){"inspect", path, NULL});
    test_assert_refused(&r, 1, "unknown-model-type");
    assert_non_null(strstr(r.err, "\"mixtral\""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_forms_count_the_same),
        cmocka_unit_test(a_bare_config_that_cannot_be_counted_says_so),
        cmocka_unit_test(a_dense_model_says_so),
        cmocka_unit_test(an_unknown_family_names_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
