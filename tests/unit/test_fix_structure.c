/* Structure of checkpoints: hostile configs and checkpoints are refused for the listed reason; every fixture checkpoint and model resolves to what its
 * case.json says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "model/structure.h"
#include "support/hostile.h"

static us_status resolve(const char *path, us_err *err) {
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    us_status s = us_checkpoint_open(NULL, path, 0, &ck, err);
    if (s == US_OK) s = us_structure_resolve(NULL, ck, &st, err);
    us_structure_free(st);
    us_checkpoint_free(ck);
    return s;
}

static us_status resolve_config(const char *file, us_err *err) {
    const char *folder = test_format("%s/copy", test_temp_dir());
    size_t n;
    const char *text = test_read(file, &n);
    test_copy_tree(test_format("%s/base", test_fixtures("hostile/config")), folder);
    test_write(test_format("%s/config.json", folder), text, n);
    return resolve(folder, err);
}

static void configs(void **state) {
    (void)state;
    hostile_each("hostile/config", resolve_config);
}

static void checkpoints(void **state) {
    (void)state;
    hostile_each("hostile/checkpoint", resolve);
}

static uint64_t number(const us_json_doc *d, const char *key) {
    uint64_t v = 0;
    us_json_u64(d, us_json_get(d, 0, key), &v);
    return v;
}

static int compare_case(const char *folder) {
    us_json_doc d;
    us_err err = {0};
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    int wrong = 0;
    const char *copy = test_format("%s/copy", test_temp_dir());
    test_copy_tree(folder, copy);
    test_restore_links(copy);
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/case.json", folder), NULL)), 0, &err), &err);
    us_str src = us_json_string(&d, us_json_get(&d, 0, "src"));
    us_status s = us_checkpoint_open(NULL, test_format("%s/%.*s", copy, US_STR_ARG(src)), 0, &ck, &err);
    if (s == US_OK) s = us_structure_resolve(NULL, ck, &st, &err);
    if (s != US_OK) {
        char line[2048];
        us_err_line(&err, line, sizeof line);
        print_error("%s: %s\n", folder, line);
        wrong++;
    } else {
        us_json_ref layers = us_json_get(&d, 0, "moe_layers");
        bool ok = st->n_experts == number(&d, "experts") && st->top_k == number(&d, "top_k") && st->n_group == number(&d, "n_group") &&
                  st->topk_group == number(&d, "topk_group") && st->n_blocks == us_json_count(&d, layers);
        for (uint32_t i = 0; ok && i < st->n_blocks; i++) ok = us_str_eqz(us_json_string(&d, us_json_at(&d, layers, i)), st->blocks[i].key);
        if (!ok) {
            print_error("%s: experts %u, top-k %u, groups %u/%u, %zu blocks\n", folder, st->n_experts, st->top_k, st->n_group, st->topk_group, st->n_blocks);
            wrong++;
        }
    }
    us_structure_free(st);
    us_checkpoint_free(ck);
    us_json_doc_free(&d);
    return wrong;
}

static void cases_resolve_as_said(void **state) {
    (void)state;
    int wrong = 0;
    for (const char *const *folder = test_folders("checkpoints", "case.json"); *folder; folder++) wrong += compare_case(*folder);
    assert_int_equal(wrong, 0);
}

static void models_resolve(void **state) {
    (void)state;
    int wrong = 0;
    for (const char *const *folder = test_folders("models", "config.json"); *folder; folder++) {
        us_err err = {0};
        if (resolve(*folder, &err) == US_OK) continue;
        char line[2048];
        us_err_line(&err, line, sizeof line);
        print_error("%s: %s\n", test_name(*folder), line);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(cases_resolve_as_said),
        cmocka_unit_test(models_resolve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
