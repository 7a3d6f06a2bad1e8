/* The property-test helper itself: finds, shrinks, repeats; and its comparators can fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/alloc.h"
#include "base/str.h"
#include "support/prop.h"
#include "support/support.h"

static bool holds(us_prop *p, void *arg) {
    (*(int *)arg)++;
    return prop_below(p, 10) < 10 && prop_range(p, -3, 5) >= -3 && prop_size(p, 7) <= 7 && prop_unit(p) < 1;
}

/* False when a list holds a number of 100 or more: the smallest case is one number, 100. */
static bool all_below_100(us_prop *p, void *arg) {
    (void)arg;
    size_t n = prop_size(p, 20), largest = 0;
    us_buf list = {0};
    for (size_t i = 0; i < n; i++) {
        size_t x = (size_t)prop_below(p, 1000);
        largest = x > largest ? x : largest;
        us_buf_printf(&list, " %zu", x);
    }
    prop_say(p, "list%s", us_buf_text(&list));
    us_buf_free(&list);
    PROP_CHECK(p, largest < 100);
    return true;
}

static void passes_what_holds(void **state) {
    (void)state;
    int n = 0;
    prop_report r;
    prop_try(holds, &n, 50, 1, &r);
    assert_false(r.failed);
    assert_int_equal(n, 50);
}

static void shrinks_to_the_smallest(void **state) {
    (void)state;
    uint64_t live = us_alloc_get_stats().live_blocks;
    for (uint64_t seed = 1; seed < 20; seed++) {
        prop_report r;
        prop_try(all_below_100, NULL, 1000, seed, &r);
        assert_true(r.failed);
        if (!strstr(r.text, "    list 100\n")) fail_msg("shrunk to: %s", r.text);
        assert_non_null(strstr(r.text, "largest < 100"));
    }
    assert_int_equal(us_alloc_get_stats().live_blocks, live);
}

static void repeats_with_the_same_seed(void **state) {
    (void)state;
    prop_report a, b;
    prop_try(all_below_100, NULL, 1000, 7, &a);
    prop_try(all_below_100, NULL, 1000, 7, &b);
    assert_int_equal(a.i_case, b.i_case);
    assert_string_equal(a.text, b.text);
}

static void trees_that_differ_are_told_apart(void **state) {
    (void)state;
    const char *a = test_temp_dir(), *b = test_temp_dir();
    test_mkdir(test_format("%s/sub", a));
    test_write_text(test_format("%s/sub/x", a), "12");
    test_copy_tree(a, b);
    assert_null(test_tree_difference(a, b));
    test_write_text(test_format("%s/sub/x", b), "13");
    assert_non_null(strstr(test_tree_difference(a, b), "byte 1"));
    test_write_text(test_format("%s/sub/x", b), "12");
    test_write_text(test_format("%s/sub/y", b), "");
    assert_non_null(strstr(test_tree_difference(a, b), "sub/y"));
}

static void programs_report_how_they_ended(void **state) {
    (void)state;
    test_run r = test_run_program((const char *[]){"sh", "-c", "echo out; echo err >&2; exit 3", NULL}, NULL);
    assert_int_equal(r.status, 3);
    assert_string_equal(r.out, "out\n");
    assert_string_equal(r.err, "err\n");
    assert_true(r.peak_bytes > 65536);
    r = test_run_program((const char *[]){"sh", "-c", "kill -9 $$", NULL}, NULL);
    assert_int_equal(r.status, -1);
    assert_int_equal(r.signal, 9);
    r = test_run_program((const char *[]){"sh", "-c", "echo $A; pwd", NULL},
                         &(test_run_options){.folder = "/", .env = (const char *[]){"A=b", NULL}});
    assert_string_equal(r.out, "b\n/\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_what_holds),
        cmocka_unit_test(shrinks_to_the_smallest),
        cmocka_unit_test(repeats_with_the_same_seed),
        cmocka_unit_test(trees_that_differ_are_told_apart),
        cmocka_unit_test(programs_report_how_they_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
