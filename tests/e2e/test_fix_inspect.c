/* `understudy inspect` over the hostile files and the released configs: exit status, exactly one line on refusal, memory bounded by what is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/json.h"
#include "support/support.h"

enum { MIB = 1 << 20 };

/* 1 when the answer is wrong, after saying why. */
static int judge(const us_json_doc *d, us_json_ref entry, const char *name, const test_run *r, uint64_t json_bytes) {
    us_str expect = us_json_string(d, us_json_get(d, entry, "expect"));
    us_json_ref classes = us_json_get(d, entry, "class");
    bool may_accept = !us_str_eqz(expect, "reject"), may_refuse = !us_str_eqz(expect, "accept"), listed = us_json_count(d, classes) == 0;
    if (r->peak_bytes > 64 * (uint64_t)MIB + 12 * json_bytes) {
        print_error("%s: %llu bytes resident\n", name, (unsigned long long)r->peak_bytes);
        return 1;
    }
    if (r->status == 0 && may_accept) return 0;
    for (us_json_ref c = us_json_first(d, classes); c != US_JSON_NO; c = us_json_next(d, classes, c))
        listed |= strstr(r->err, test_format("[%.*s]", US_STR_ARG(us_json_string(d, c)))) != NULL;
    bool one_line = strncmp(r->err, "understudy: ", 12) == 0 && strchr(r->err, '\n') == r->err + r->n_err - 1 && r->n_out == 0;
    if (r->status == 1 && may_refuse && listed && one_line) return 0;
    print_error("%s: expected %.*s, got status %d: %s\n", name, US_STR_ARG(expect), r->status, r->err);
    return 1;
}

static void each(const char *folder, bool config) {
    const char *root = test_fixtures(folder);
    if (!root || !test_exists(test_format("%s/expect.json", root))) return;
    us_json_doc d;
    us_err err = {0};
    int wrong = 0;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/expect.json", root), NULL)), 0, &err), &err);
    us_json_ref files = us_json_get(&d, 0, "files");
    const char *copy = config ? test_format("%s/copy", test_temp_dir()) : NULL;
    if (config) test_copy_tree(test_format("%s/base", root), copy);
    for (us_json_ref f = us_json_first(&d, files); f != US_JSON_NO; f = us_json_next(&d, files, f)) {
        us_str name = us_json_string(&d, us_json_get(&d, f, "file"));
        const char *path = test_format("%s/%.*s", root, US_STR_ARG(name));
        if (!name.p || !test_exists(path)) continue;
        size_t n;
        const char *bytes = test_read(path, &n);
        if (config) test_write(test_format("%s/config.json", copy), bytes, n);
        test_run r = test_understudy((const char *const[]){"inspect", config ? copy : path, NULL});
        wrong += judge(&d, f, path, &r, n);
    }
    us_json_doc_free(&d);
    assert_int_equal(wrong, 0);
}

static void tensor_files(void **state) {
    (void)state;
    each("hostile/safetensors", false);
}

static void arrays(void **state) {
    (void)state;
    each("hostile/npy", false);
}

static void configs(void **state) {
    (void)state;
    each("hostile/config", true);
}

static void json_is_one_object_for_every_config(void **state) {
    (void)state;
    for (const char *const *folder = test_folders("configs", "config.json"); *folder; folder++) {
        const char *path = test_format("%s/config.json", *folder);
        us_json_doc d;
        us_err err = {0};
        uint64_t total = 0;
        test_run r = test_understudy((const char *const[]){"inspect", "--json", path, NULL});
        test_assert_done(&r);
        assert_us_ok(us_json_doc_parse(&d, (us_str){r.out, r.n_out}, 0, &err), &err);
        assert_true(us_json_u64(&d, us_json_path(&d, 0, "parameters.total"), &total) && total > 0);
        assert_true(us_json_count(&d, us_json_get(&d, 0, "layers")) > 0);
        us_json_doc_free(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_files),
        cmocka_unit_test(arrays),
        cmocka_unit_test(configs),
        cmocka_unit_test(json_is_one_object_for_every_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
