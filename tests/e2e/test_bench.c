/* Comparing two benchmark results: noise is told from change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/support.h"

static const char *dir;

static const char *result(const char *name, double median, double spread) {
    const char *path = test_format("%s/%s", dir, name);
    test_write_text(path, test_format("{\"results\": [{\"topic\": \"io\", \"cases\": [{\"name\": \"x\", \"median_s\": "
                                      "%g, \"spread\": %g}, {\"name\": \"peak\", \"value\": 5}]}]}",
                                      median, spread));
    return path;
}

static test_run compare(const char *old, const char *now) {
    const char *program = test_format("%s/bench/bench_compare", getenv("US_BUILD"));
    if (!test_exists(program)) skip(); /* this build has no benchmarks */
    return test_run_program((const char *const[]){program, old, now, NULL}, NULL);
}

static void change_is_told_from_noise(void **state) {
    (void)state;
    dir = test_temp_dir();
    const char *base = result("base", 1.0, 0.01);
    test_run r = compare(base, base);
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "2 cases in both files, 0 with more"));
    r = compare(base, result("noisy", 1.1, 0.15));
    test_assert_done(&r);
    r = compare(base, result("slower", 1.1, 0.01));
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.out, "MORE"));
    r = compare(base, result("faster", 0.9, 0.01));
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "less"));
}

static void files_that_are_no_results_are_refused(void **state) {
    (void)state;
    dir = test_temp_dir();
    const char *bad = test_format("%s/bad", dir);
    test_write_text(bad, "{\"results\": [");
    test_run r = compare(bad, bad);
    assert_int_equal(r.status, 1);
    r = compare(test_format("%s/none", dir), bad);
    assert_int_equal(r.status, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(change_is_told_from_noise),
        cmocka_unit_test(files_that_are_no_results_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
