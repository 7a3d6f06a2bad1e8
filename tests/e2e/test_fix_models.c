/**
 * Every model of fixtures/models: to a half and a quarter where that is legal, to its largest legal size below E, verified with and without
 * the manifest, nested under a seeded draw; where no size below E is legal every one is refused with a class of sizes; dense ones say so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "model/structure.h"
#include "support/proxy.h"

static const char *const FILES[] = {"config.json", "model.safetensors"};

static const char *copy_model(const char *folder) {
    const char *to = test_temp_dir();
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        const char *bytes = test_read(test_format("%s/%s", folder, FILES[i]), &n);
        test_write(test_format("%s/%s", to, FILES[i]), bytes, n);
    }
    return to;
}

static bool make_and_verify(const char *name, const char *src, const char *dst, int64_t n) {
    us_err err = {0};
    us_proxy_request r = {.src = src, .dst = dst, .sizes = &n, .n_sizes = 1, .select = "random"};
    us_status s = test_proxy(&r, 2, &err);
    if (s == US_E_REFUSED) {
        static const char *const classes[] = {"below-top-k", "groups-divide", "group-too-small", "topk-group", NULL};
        bool known = false;
        for (int i = 0; classes[i]; i++) known |= strcmp(err.cls, classes[i]) == 0;
        if (!known || test_exists(dst)) fail_msg("%s %d: refused for [%s] %s", name, (int)n, err.cls, err.what);
        return false;
    }
    if (s != US_OK) fail_msg("%s %d: %s [%s] %s", name, (int)n, err.what, err.cls, err.where);
    for (int ignore = 0; ignore < 2; ignore++) {
        if (test_verify(src, dst, ignore, &err) != US_OK) fail_msg("%s %d: verify: %s [%s] %s", name, (int)n, err.what, err.cls, err.where);
    }
    return true;
}

static void one_model(const char *name, const char *src) {
    us_checkpoint *ck = NULL;
    us_structure *s = NULL;
    us_err err = {0};
    assert_us_ok(us_checkpoint_open(NULL, src, 0, &ck, &err), &err);
    us_status st = us_structure_resolve(NULL, ck, &s, &err);
    if (st != US_OK) fail_msg("%s: %s [%s] %s", name, err.what, err.cls, err.where);
    uint32_t e = s->n_experts;
    size_t blocks = s->n_blocks;
    us_structure_free(s);
    us_checkpoint_free(ck);
    const char *out = test_temp_dir();
    if (!blocks) {
        int64_t n = 2;
        us_proxy_request r = {.src = src, .dst = test_format("%s/x", out), .sizes = &n, .n_sizes = 1, .select = "first"};
        if (test_proxy(&r, 1, &err) != US_E_REFUSED || strcmp(err.cls, "dense") != 0) fail_msg("%s: a dense model: %s", name, err.what);
        return;
    }
    int made = 0;
    for (int64_t n = e - 1; n >= 1; n--) {
        bool wanted = n == e / 2 || n == e / 4 || !made;
        if (wanted) made += make_and_verify(name, src, test_format("%s/%d", out, (int)n), n);
    }
    print_message("%s: %u experts, %d sizes\n", name, e, made);
}

/* A layer cut either is refused for a reason of layers, or gives a checkpoint that resolves and verifies, by its bytes too. */
static void cut_layers(const char *name, const char *src) {
    static const char *const lists[] = {"1", "2", "3", "0,2", "1-2", "0-1,3"};
    for (int i = 0; i < 6; i++) {
        const char *dst = test_format("%s/cut", test_temp_dir());
        us_err err = {0};
        us_proxy_request r = {.src = src, .dst = dst, .keep_ratio = 0.75, .select = "random", .layers = lists[i]};
        us_status s = test_proxy(&r, 1, &err);
        if (s == US_E_REFUSED && (strncmp(err.cls, "layers-", 7) == 0 || strcmp(err.cls, "dense") == 0)) {
            if (test_exists(dst)) fail_msg("%s --layers %s: refused, but written", name, lists[i]);
            continue;
        }
        if (s != US_OK) fail_msg("%s --layers %s: %s [%s] %s", name, lists[i], err.what, err.cls, err.where);
        for (int ignore = 0; ignore < 2; ignore++) {
            if (test_verify(src, dst, ignore, &err) != US_OK) fail_msg("%s --layers %s: verify: %s [%s] %s", name, lists[i], err.what, err.cls, err.where);
        }
        us_checkpoint *ck = NULL;
        us_structure *st = NULL;
        assert_us_ok(us_checkpoint_open(NULL, dst, 0, &ck, &err), &err);
        if (us_structure_resolve(NULL, ck, &st, &err) != US_OK) fail_msg("%s --layers %s: does not resolve: %s [%s] %s", name, lists[i], err.what, err.cls, err.where);
        us_structure_free(st);
        us_checkpoint_free(ck);
    }
}

static void every_model_is_cut_and_verified(void **state) {
    (void)state;
    for (const char *const *folder = test_folders("models", "config.json model.safetensors"); *folder; folder++) one_model(test_name(*folder), copy_model(*folder));
}

static void layer_cuts_give_models_that_resolve(void **state) {
    (void)state;
    for (const char *const *folder = test_folders("models", "config.json model.safetensors"); *folder; folder++) cut_layers(test_name(*folder), copy_model(*folder));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_model_is_cut_and_verified), cmocka_unit_test(layer_cuts_give_models_that_resolve)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
