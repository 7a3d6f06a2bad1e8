/* data/demo is what its maker writes, and the demonstration runs to its end. */
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

static void the_maker_writes_the_same_bytes(void **state) {
    (void)state;
    const char *dir = test_format("%s/demo", test_temp_dir()), *committed = test_format("%s/data/demo", test_source());
    const char *tools = getenv("US_TOOLS");
    assert_non_null(tools);
    test_run r =
        test_run_program((const char *const[]){test_format("%s/make_demo_checkpoint", tools), dir, NULL}, NULL);
    test_assert_done(&r);
    test_copy_tree(test_format("%s/README.md", committed), test_format("%s/README.md", dir));
    const char *difference = test_tree_difference(committed, dir);
    if (difference) fail_msg("%s", difference);
}

static void the_demonstration_runs(void **state) {
    (void)state;
    test_run r =
        test_run_program((const char *const[]){"sh", test_format("%s/examples/demo.sh", test_source()), NULL}, NULL);
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "$ understudy verify data/demo OUT/ladder/e8\n"));
    assert_non_null(strstr(r.out, "$ understudy plan data/configs/DeepSeek-V3.json --memory 64\n"));
    assert_non_null(strstr(r.out, "\nThe proxies were in a temporary folder"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_maker_writes_the_same_bytes),
        cmocka_unit_test(the_demonstration_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
