/* The JSON scanner and document. The 202 texts of fixtures/hostile/json are tested in test_fix_json.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/json.h"

static us_status parse(const char *text, us_err *err) {
    us_json_doc d;
    us_status s = us_json_doc_parse(&d, us_str_z(text), 0, err);
    if (s == US_OK) us_json_doc_free(&d);
    return s;
}

static void navigates_objects_and_arrays(void **state) {
    (void)state;
    us_json_doc d;
    us_err err = {0};
    const char *text = "{\"a\": [1, {\"b\": \"x\\u00e9\\n\"}, 3], \"n\": {\"m\": -7}, \"big\": 9007199254740993}";
    assert_int_equal(us_json_doc_parse(&d, us_str_z(text), 0, &err), US_OK);
    us_json_ref a = us_json_get(&d, 0, "a");
    assert_int_equal(us_json_count(&d, 0), 3);
    assert_int_equal(us_json_count(&d, a), 3);
    us_str b = us_json_string(&d, us_json_get(&d, us_json_at(&d, a, 1), "b"));
    assert_true(us_str_eqz(b, "x\xc3\xa9\n"));
    int64_t m = 0;
    assert_true(us_json_i64(&d, us_json_path(&d, 0, "n.m"), &m));
    assert_int_equal(m, -7);
    uint64_t u = 0;
    assert_false(us_json_u64(&d, us_json_path(&d, 0, "n.m"), &u));
    assert_true(us_json_u64(&d, us_json_get(&d, 0, "big"), &u));
    assert_true(u == 9007199254740993u);
    assert_int_equal(us_json_get(&d, 0, "none"), US_JSON_NO);
    assert_int_equal(us_json_at(&d, a, 3), US_JSON_NO);
    us_json_doc_free(&d);
}

static void names_class_and_position(void **state) {
    (void)state;
    us_err err = {0};
    assert_int_equal(parse("{\"a\": 1, \"\\u0061\": 2}", &err), US_E_FORMAT);
    assert_string_equal(err.cls, "duplicate-key");
    assert_int_equal(err.offset, 9);
    assert_int_equal(parse("[1] x", &err), US_E_FORMAT);
    assert_string_equal(err.cls, "trailing");
    assert_int_equal(parse("[\"\\ud800\"]", &err), US_E_FORMAT);
    assert_string_equal(err.cls, "json");
    assert_int_equal(parse("\"\xff\"", &err), US_E_FORMAT);
    assert_string_equal(err.cls, "utf8");
    assert_int_equal(parse("[Infinity]", &err), US_E_FORMAT);
    char deep[1024];
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = 0;
    assert_int_equal(parse(deep, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "depth");
}

static void edits_keep_other_bytes(void **state) {
    (void)state;
    us_err err = {0};
    us_json_doc d;
    us_str text = US_LIT("{ \"n\" :8,\n\t\"x\": 1.0e+2 }\n");
    assert_int_equal(us_json_doc_parse(&d, text, 0, &err), US_OK);
    us_json_ref n = us_json_get(&d, 0, "n");
    us_json_edit e = {d.nodes[n].begin, d.nodes[n].end, US_LIT("16")};
    us_buf out = {0};
    assert_int_equal(us_json_apply(text, &e, 1, &out, &err), US_OK);
    assert_string_equal(us_buf_text(&out), "{ \"n\" :16,\n\t\"x\": 1.0e+2 }\n");
    us_buf_free(&out);
    us_json_doc_free(&d);
}

static void survives_every_allocation_failure(void **state) {
    (void)state;
    uint64_t live = us_alloc_get_stats().live_blocks;
    for (uint64_t n = 1;; n++) {
        us_err err = {0};
        us_alloc_fail_at(n);
        us_status s = parse("{\"a\\n\": [1, \"\\t\", {\"b\": 0, \"c\": 1}]}", &err);
        bool hit = us_alloc_failed();
        us_alloc_fail_at(0);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
        if (!hit) {
            assert_int_equal(s, US_OK);
            break;
        }
        assert_int_equal(s, US_E_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(navigates_objects_and_arrays),
        cmocka_unit_test(names_class_and_position),
        cmocka_unit_test(edits_keep_other_bytes),
        cmocka_unit_test(survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
