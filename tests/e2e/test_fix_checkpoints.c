/**
 * fixtures/checkpoints through the library: every case sliced by its kept list equals the reference; every reference is recognised by its
 * bytes alone; every size and list of refuse.json is refused for its reason and leaves nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/proxy.h"

typedef struct one_case {
    const char *name, *folder, *src;
    us_json_doc doc;
    uint32_t experts;
} one_case;

static bool open_case(const char *root, const char *name, one_case *c) {
    uint64_t e = 0;
    const char *json = test_format("%s/%s/case.json", root, name);
    if (!test_exists(json)) return false;
    *c = (one_case){.name = name, .folder = test_format("%s/%s", root, name), .doc = test_json(json)};
    c->src = test_case_source(c->folder, &c->doc);
    assert_true(us_json_u64(&c->doc, us_json_get(&c->doc, 0, "experts"), &e));
    c->experts = (uint32_t)e;
    return true;
}

/* The kept list of a size: kept-<size>.json, or kept.json where its lists have that length. */
static const char *kept_list(const one_case *c, const char *size) {
    const char *path = test_format("%s/kept-%s.json", c->folder, size);
    return test_exists(path) ? path : test_format("%s/kept.json", c->folder);
}

static void each_size(const one_case *c, void (*fn)(const one_case *c, const char *size)) {
    us_json_ref sizes = us_json_get(&c->doc, 0, "sizes");
    for (us_json_ref k = us_json_first(&c->doc, sizes); k != US_JSON_NO; k = us_json_next(&c->doc, sizes, us_json_next(&c->doc, sizes, k)))
        fn(c, test_format("%.*s", US_STR_ARG(us_json_string(&c->doc, k))));
}

static void each_case(void (*fn)(const one_case *c, const char *size)) {
    const char *root = test_fixtures("checkpoints");
    size_t n = 0, cases = 0;
    if (!root) return;
    const char *const *names = test_list(root, &n);
    for (size_t i = 0; i < n; i++) {
        one_case c;
        if (!open_case(root, names[i], &c)) continue;
        each_size(&c, fn);
        us_json_doc_free(&c.doc);
        cases++;
    }
    assert_true(cases > 0);
}

static void slice_and_compare(const one_case *c, const char *size) {
    us_err err = {0};
    int64_t n = strtoll(size, NULL, 10);
    const char *dst = test_format("%s/out", test_temp_dir());
    us_proxy_request r = {.src = c->src, .dst = dst, .sizes = &n, .n_sizes = 1, .select = test_format("list:%s", kept_list(c, size))};
    if (test_proxy(&r, 2, &err) != US_OK) fail_msg("%s %s: %s [%s] %s", c->name, size, err.what, err.cls, err.where);
    const char *d = test_proxy_difference(c->src, test_format("%s/dst-%s", c->folder, size), dst);
    if (d) fail_msg("%s %s: %s", c->name, size, d);
    assert_false(test_exists(test_format("%s.understudy-partial", dst)));
    for (int ignore = 0; ignore < 2; ignore++) {
        if (test_verify(c->src, dst, ignore, &err) != US_OK) fail_msg("%s %s: verify: %s [%s] %s", c->name, size, err.what, err.cls, err.where);
    }
    /* the manifest is a list file that gives the same folder again */
    const char *again = test_format("%s/again", test_temp_dir());
    us_proxy_request m = {.src = c->src, .dst = again, .select = test_format("list:%s/understudy.json", dst)};
    if (test_proxy(&m, 1, &err) != US_OK) fail_msg("%s %s: from its manifest: %s", c->name, size, err.what);
    d = test_proxy_difference(c->src, dst, again);
    if (d) fail_msg("%s %s: from its manifest: %s", c->name, size, d);
}

static void every_case_equals_its_reference(void **state) {
    (void)state;
    each_case(slice_and_compare);
}

/* The comparator must be able to fail: one flipped byte in the largest tensor, one config value, one file too many. */
static void spoil_and_verify(const one_case *c, const char *size) {
    us_err err = {0};
    const char *copy = test_format("%s/copy", test_temp_dir()), *shard = NULL;
    size_t n = 0, k = 0;
    test_copy_tree(test_format("%s/dst-%s", c->folder, size), copy);
    if (test_verify(c->src, copy, false, &err) != US_OK) fail_msg("%s %s: %s [%s] %s", c->name, size, err.what, err.cls, err.where);
    const char *const *names = test_list(copy, &n);
    for (size_t i = 0; i < n && !shard; i++) {
        if (strstr(names[i], ".safetensors") && !strstr(names[i], ".json")) shard = names[i];
    }
    assert_non_null(shard);
    const char *path = test_format("%s/%s", copy, shard), *bytes = test_read(path, &k);
    char *flipped = malloc(k);
    assert_non_null(flipped);
    memcpy(flipped, bytes, k);
    flipped[k - 1] = (char)(flipped[k - 1] ^ 1);
    test_remove_tree(path);
    test_write(path, flipped, k);
    if (test_verify(c->src, copy, false, &err) != US_E_DIFFERENT) fail_msg("%s %s: a flipped byte is not seen", c->name, size);
    test_remove_tree(path);
    test_write(path, bytes, k);
    free(flipped);
    test_write_text(test_format("%s/extra.txt", copy), "x");
    if (test_verify(c->src, copy, false, &err) != US_E_DIFFERENT || strcmp(err.cls, "file-extra") != 0) fail_msg("%s %s: a file too many is not seen", c->name, size);
}

static void every_reference_is_recognised_and_spoilt_ones_are_not(void **state) {
    (void)state;
    each_case(spoil_and_verify);
}

static void identity_keeps_all_bytes(const one_case *c, const char *size) {
    us_err err = {0};
    int64_t n = c->experts;
    const char *dst = test_format("%s/same", test_temp_dir());
    us_proxy_request r = {.src = c->src, .dst = dst, .sizes = &n, .n_sizes = 1, .select = "first"};
    (void)size;
    if (test_proxy(&r, 2, &err) != US_OK) fail_msg("%s: %s", c->name, err.what);
    us_checkpoint *a = NULL, *b = NULL;
    assert_us_ok(us_checkpoint_open(NULL, c->src, 0, &a, &err), &err);
    assert_us_ok(us_checkpoint_open(NULL, dst, 0, &b, &err), &err);
    assert_int_equal(a->n_tensors, b->n_tensors);
    if (!us_str_eq(a->config.text, b->config.text)) fail_msg("%s: config.json lost bytes", c->name);
    for (size_t i = 0; i < a->n_tensors; i++) assert_true(us_str_eq(a->tensors[i].name, b->tensors[i].name) && a->tensors[i].bytes == b->tensors[i].bytes);
    us_checkpoint_free(a);
    us_checkpoint_free(b);
    assert_us_ok(test_verify(c->src, dst, false, &err), &err);
}

static void keeping_all_experts_is_the_identity(void **state) {
    (void)state;
    each_case(identity_keeps_all_bytes);
}

/* ---- refuse.json ---- */

static void check_refusal(const char *root, const us_json_doc *d, us_json_ref x, const char *temp) {
    one_case c;
    us_err err = {0};
    int64_t size = 0;
    const char *name = test_json_string(d, x, "case"), *cls = test_json_string(d, x, "class"), *dst = test_format("%s/refused", temp);
    us_json_ref kept = us_json_get(d, x, "kept"), n = us_json_get(d, x, "size");
    if (!open_case(root, name, &c)) return;
    us_proxy_request r = {.src = c.src, .dst = dst, .select = "first"};
    if (kept != US_JSON_NO) {
        const char *list = test_format("%s/list.json", temp);
        test_write_text(list, test_format("{\"layers\": %.*s}", US_STR_ARG(us_json_raw(d, kept))));
        r.select = test_format("list:%s", list);
    } else {
        assert_true(us_json_i64(d, n, &size));
        r.sizes = &size;
        r.n_sizes = 1;
    }
    us_status s = test_proxy(&r, 1, &err);
    if (s != US_E_REFUSED || strcmp(err.cls, cls) != 0) fail_msg("%s: %s expected, got %s [%s] %s", name, cls, us_status_name(s), err.cls, err.what);
    if (test_exists(dst) || test_exists(test_format("%s.understudy-partial", dst))) fail_msg("%s: the refused destination was made", name);
    us_json_doc_free(&c.doc);
}

static void what_must_be_refused_is(void **state) {
    (void)state;
    const char *root = test_fixtures("checkpoints"), *temp = test_temp_dir();
    if (!root || !test_exists(test_format("%s/refuse.json", root))) return;
    us_json_doc d = test_json(test_format("%s/refuse.json", root));
    us_json_ref list = us_json_get(&d, 0, "refuse");
    for (us_json_ref x = us_json_first(&d, list); x != US_JSON_NO; x = us_json_next(&d, list, x)) check_refusal(root, &d, x, temp);
    us_json_doc_free(&d);
}

static void exactly_the_legal_sizes_are_taken(void **state) {
    (void)state;
    const char *root = test_fixtures("checkpoints"), *temp = test_temp_dir();
    if (!root || !test_exists(test_format("%s/refuse.json", root))) return;
    us_json_doc d = test_json(test_format("%s/refuse.json", root));
    us_json_ref legal = us_json_get(&d, 0, "legal");
    for (us_json_ref k = us_json_first(&d, legal); k != US_JSON_NO;) {
        us_json_ref list = us_json_next(&d, legal, k);
        one_case c;
        const char *name = test_format("%.*s", US_STR_ARG(us_json_string(&d, k)));
        k = us_json_next(&d, legal, list);
        if (!open_case(root, name, &c)) continue;
        for (int64_t n = 1; n <= c.experts; n++) {
            bool want = false;
            for (us_json_ref r = us_json_first(&d, list); r != US_JSON_NO; r = us_json_next(&d, list, r)) {
                int64_t v;
                want |= us_json_i64(&d, r, &v) && v == n;
            }
            us_err err = {0};
            us_proxy_request r = {.src = c.src, .dst = test_format("%s/dry", temp), .sizes = &n, .n_sizes = 1, .select = "random", .dry_run = true};
            us_status s = test_proxy(&r, 1, &err);
            if ((s == US_OK) != want) fail_msg("%s %d: %s [%s]", name, (int)n, err.what, err.cls);
        }
        us_json_doc_free(&c.doc);
    }
    assert_false(test_exists(test_format("%s/dry", temp)));
    us_json_doc_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_equals_its_reference),
        cmocka_unit_test(every_reference_is_recognised_and_spoilt_ones_are_not),
        cmocka_unit_test(keeping_all_experts_is_the_identity),
        cmocka_unit_test(what_must_be_refused_is),
        cmocka_unit_test(exactly_the_legal_sizes_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
