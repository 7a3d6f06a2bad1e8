/* Counted parameters of every released config equal expected.json; those of every model of fixtures/models, in both spellings, its tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "model/count.h"
#include "model/structure.h"
#include "support/support.h"

static int differ(const char *model, const us_json_doc *d, us_json_ref e, const char *key, uint64_t ours) {
    uint64_t theirs;
    if (!us_json_u64(d, us_json_get(d, e, key), &theirs) || theirs == ours) return 0;
    print_error("%s: %s is %llu, should be %llu (%+lld)\n", model, key, (unsigned long long)ours, (unsigned long long)theirs, (long long)(ours - theirs));
    return 1;
}

static int check(const char *model, const char *path, const us_json_doc *d, us_json_ref e) {
    us_json_doc config;
    us_config c;
    us_counts n;
    us_err err = {0};
    int wrong = 0;
    assert_us_ok(us_json_doc_parse(&config, us_str_z(test_read(path, NULL)), US_JSON_INFINITY, &err), &err);
    us_status s = us_config_open(&config, &c, &err);
    if (s == US_OK) s = us_count_config(&c, &n, &err);
    if (s != US_OK) {
        print_error("%s: %s\n", model, err.what);
        wrong = 1;
    } else {
        wrong += differ(model, d, e, "experts", n.n_experts) + differ(model, d, e, "top_k", n.top_k) + differ(model, d, e, "moe_layers", n.n_moe_layers);
        wrong += differ(model, d, e, "params_per_expert", n.per_expert) + differ(model, d, e, "routed_expert_params", n.routed);
        wrong += differ(model, d, e, "text_total", n.total) + differ(model, d, e, "other_params", n.other) + differ(model, d, e, "active_per_token", n.active);
        wrong += differ(model, d, e, "embed", n.embed) + differ(model, d, e, "lm_head", n.head) + differ(model, d, e, "lookup_table_params", n.lookup);
        wrong += differ(model, d, e, "active_without_embed_and_head", n.active - n.embed - n.head);
        wrong += differ(model, d, e, "mtp_params_without_embed_and_head_copies", n.mtp);
    }
    us_json_doc_free(&config);
    return wrong != 0;
}

static void counts_equal_the_built_models(void **state) {
    (void)state;
    const char *root = test_fixtures("configs");
    if (!root || !test_exists(test_format("%s/expected.json", root))) return;
    us_json_doc d;
    us_err err = {0};
    int wrong = 0, models = 0;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/expected.json", root), NULL)), 0, &err), &err);
    for (us_json_ref k = us_json_first(&d, 0); k != US_JSON_NO; k = us_json_next(&d, 0, k + 1)) {
        us_str name = us_json_string(&d, k);
        const char *path = test_format("%s/%.*s/config.json", root, US_STR_ARG(name));
        if (!test_exists(path)) continue;
        models++;
        wrong += check(test_format("%.*s", US_STR_ARG(name)), path, &d, k + 1);
    }
    us_json_doc_free(&d);
    print_message("%d models counted\n", models);
    assert_int_equal(wrong, 0);
}

static us_status count_file(const char *path, us_counts *n, us_err *err) {
    us_json_doc d;
    us_config c;
    US_TRY(us_json_doc_parse(&d, us_str_z(test_read(path, NULL)), US_JSON_INFINITY, err));
    us_status s = us_config_open(&d, &c, err);
    if (s == US_OK) s = us_count_config(&c, n, err);
    us_json_doc_free(&d);
    return s;
}

/* Elements of the text model's tensors; *corrections of them belong to correction biases, which most classes keep as buffers. false: packed weights. */
static bool count_tensors(const us_checkpoint *ck, const us_structure *st, uint64_t *total, uint64_t *routed, uint64_t *corrections) {
    *total = *routed = *corrections = 0;
    for (size_t i = 0; i < ck->n_tensors; i++) {
        const us_role *r = &st->roles[i];
        if (r->in_mtp || r->part == US_PART_VISION || r->kind == US_ROLE_TOKEN_TABLE) continue;
        if (us_dtype_bits(ck->tensors[i].dtype) < 16 || us_str_ends(ck->tensors[i].name, US_LIT("weight_packed"))) return false;
        uint64_t n = 1;
        for (int k = 0; k < ck->tensors[i].rank; k++) n *= ck->tensors[i].shape[k];
        *total += n;
        if (r->part == US_PART_ROUTED) *routed += n;
        if (r->router && r->router->role == US_ROUTER_CORRECTION) *corrections += n;
    }
    return true;
}

static int compare_model(const char *folder) {
    us_counts a, b;
    us_err err = {0};
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    uint64_t total, routed, corrections;
    int wrong = 0;
    const char *published = test_format("%s/config.published.json", folder);
    assert_us_ok(count_file(test_format("%s/config.json", folder), &a, &err), &err);
    if (test_exists(published)) {
        assert_us_ok(count_file(published, &b, &err), &err);
        wrong += a.total != b.total || a.routed != b.routed || a.active != b.active || a.kv_elements != b.kv_elements || a.state_elements != b.state_elements;
        if (wrong) print_error("%s: the two spellings of its config give different counts\n", folder);
    }
    const char *copy = test_format("%s/model", test_temp_dir());
    test_remove_tree(copy);
    test_mkdir(copy);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        size_t n;
        const char *bytes = test_read(test_format("%s/%s", folder, files[i]), &n);
        test_write(test_format("%s/%s", copy, files[i]), bytes, n);
    }
    assert_us_ok(us_checkpoint_open(NULL, copy, 0, &ck, &err), &err);
    assert_us_ok(us_structure_resolve(NULL, ck, &st, &err), &err);
    if (count_tensors(ck, st, &total, &routed, &corrections) && ((total != a.total && total - corrections != a.total) || routed != a.routed)) {
        print_error("%s: %llu parameters by its config, %llu of its tensors (%llu in corrections); routed %llu and %llu\n", folder, (unsigned long long)a.total,
                    (unsigned long long)total, (unsigned long long)corrections, (unsigned long long)a.routed, (unsigned long long)routed);
        wrong++;
    }
    us_structure_free(st);
    us_checkpoint_free(ck);
    return wrong;
}

static void counts_equal_the_tensors_of_every_model(void **state) {
    (void)state;
    int wrong = 0;
    for (const char *const *folder = test_folders("models", "config.json model.safetensors"); *folder; folder++) wrong += compare_model(*folder);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_equal_the_built_models), cmocka_unit_test(counts_equal_the_tensors_of_every_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
