/* Every file of fixtures/hostile/safetensors and every folder of fixtures/hostile/index: accepted or refused as expect.json says, for a listed reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/checkpoint.h"
#include "support/hostile.h"

static us_status open_file(const char *path, us_err *err) {
    us_file f = {0};
    us_st_header h = {0};
    US_TRY(us_file_open(path, &f, err));
    us_status s = us_st_read(&f, 0, &h, err);
    us_file_close(&f);
    us_st_header_free(&h);
    return s;
}

static us_status open_folder(const char *original, us_err *err) {
    us_checkpoint *c = NULL;
    const char *path = test_format("%s/copy", test_temp_dir());
    test_copy_tree(original, path);
    test_restore_links(path);
    us_status s = us_checkpoint_open(NULL, path, 0, &c, err);
    us_checkpoint_free(c);
    return s;
}

static void headers(void **state) {
    (void)state;
    hostile_each("hostile/safetensors", open_file);
}

static void folders(void **state) {
    (void)state;
    hostile_each("hostile/index", open_folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(headers), cmocka_unit_test(folders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
