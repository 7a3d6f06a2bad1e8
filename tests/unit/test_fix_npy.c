/* Every file of fixtures/hostile/npy: accepted or refused as expect.json says, loading and not loading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/npy.h"
#include "support/hostile.h"

static us_status open_array(const char *path, us_err *err) {
    us_npy_set set = {0};
    us_status s = us_npy_open(NULL, path, false, 0, &set, err);
    us_npy_set_free(&set);
    return s;
}

static void described(void **state) {
    (void)state;
    hostile_each("hostile/npy", open_array);
}

static us_status load_array(const char *path, us_err *err) {
    us_npy_set set = {0};
    us_status s = us_npy_open(NULL, path, true, (uint64_t)1 << 30, &set, err);
    us_npy_set_free(&set);
    return s;
}

static void loaded(void **state) {
    (void)state;
    hostile_each("hostile/npy", load_array);
    assert_false(test_exists("understudy-was-here"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(described), cmocka_unit_test(loaded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
