/** Patterns of quantisation lists: what they match, and that hostile ones end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "model/quant_list.h"

static bool match(const char *entry, const char *name) {
    us_quant_pattern *p = NULL;
    us_err err = {0};
    bool hit = false;
    assert_true(us_quant_is_pattern(us_str_z(entry)));
    assert_int_equal(us_quant_pattern_create(us_str_z(entry), &p, &err), US_OK);
    assert_int_equal(us_quant_pattern_match(p, us_str_z(name), &hit, &err), US_OK);
    us_quant_pattern_free(p);
    return hit;
}

static void regex_is_anchored_at_its_start_only(void **state) {
    (void)state;
    assert_true(match("re:model\\.layers\\.1", "model.layers.12.mlp"));
    assert_false(match("re:layers\\.1", "model.layers.1"));
    assert_true(match("re:.*mlp\\.gate$", "model.layers.0.mlp.gate"));
    assert_false(match("re:.*mlp\\.gate$", "model.layers.0.mlp.gate_proj"));
}

static void globs_cover_the_whole_name(void **state) {
    (void)state;
    assert_true(match("model.layers.0.mlp.experts.1*", "model.layers.0.mlp.experts.11.up_proj"));
    assert_false(match("*.experts", "model.layers.0.mlp.experts.1"));
    assert_true(match("*mlp.gate*", "model.layers.0.mlp.gate_proj"));
    assert_true(match("a.?.c", "a.b.c"));
    assert_false(match("a.?.c", "aXb.c"));
    assert_true(match("a[!b]*", "ac"));
    assert_false(match("a[!b]*", "ab"));
    assert_true(match("*[", "x["));
    assert_false(match("*a+", "xaa"));
}

static void plain_names_are_no_patterns(void **state) {
    (void)state;
    assert_false(us_quant_is_pattern(US_LIT("lm_head")));
    assert_false(us_quant_is_pattern(US_LIT("model.layers.0.mlp.experts.1")));
}

static void hostile_patterns_are_refused(void **state) {
    (void)state;
    us_quant_pattern *p = NULL;
    us_err err = {0};
    bool hit;
    assert_int_equal(us_quant_pattern_create(US_LIT("re:(unclosed"), &p, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "regex");
    char name[120];
    memset(name, 'a', sizeof name);
    assert_int_equal(us_quant_pattern_create(US_LIT("re:(a|aa|a*)*b"), &p, &err), US_OK);
    us_status s = us_quant_pattern_match(p, (us_str){name, sizeof name}, &hit, &err);
    assert_true(s == US_OK || (s == US_E_LIMIT && strcmp(err.cls, "regex") == 0));
    us_quant_pattern_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regex_is_anchored_at_its_start_only),
        cmocka_unit_test(globs_cover_the_whole_name),
        cmocka_unit_test(plain_names_are_no_patterns),
        cmocka_unit_test(hostile_patterns_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
