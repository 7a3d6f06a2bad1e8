/**
 * Cases of public reports (fixtures/cases) that are about proxies and files: each folder with an input behaves as its expected.json says.
 * Where the family's forward pass is known, the proxy's logits are held against those of the reference library. The planner's cases are tested there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "io/npy.h"
#include "proxy/config_compare.h"
#include "support/proxy.h"
#include "support/tiny.h"

#define RUN(...) test_understudy((const char *[]){__VA_ARGS__, NULL})

/* Folder of a case, or NULL when this set does not have it. */
static const char *the_case(const char *id, const char *needs) {
    const char *folder = test_fixtures(test_format("cases/%s", id));
    return folder && test_exists(test_format("%s/%s", folder, needs)) ? folder : NULL;
}

static us_checkpoint *opened(const char *folder) {
    us_checkpoint *c = NULL;
    us_err err = {0};
    if (us_checkpoint_open(NULL, folder, 0, &c, &err) != US_OK) fail_msg("%s: %s [%s] %s", folder, err.what, err.cls, err.where);
    return c;
}

static bool lists_path(const us_json_doc *d, us_json_ref list, us_str path) {
    for (us_json_ref r = us_json_first(d, list); r != US_JSON_NO; r = us_json_next(d, list, r)) {
        if (us_str_eq(us_json_string(d, r), path)) return true;
    }
    return false;
}

/* ---- every case with a source and a keep list ---- */

static void check_shapes(const us_json_doc *d, us_json_ref shapes, const us_checkpoint *made, const char *id) {
    for (us_json_ref k = us_json_first(d, shapes); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, shapes, k), dims = us_json_at(d, v, 1);
        const us_ck_tensor *t = us_ck_find(made, us_json_string(d, k));
        if (!t || t->rank != us_json_count(d, dims)) fail_msg("%s: %.*s", id, US_STR_ARG(us_json_string(d, k)));
        uint32_t i = 0;
        for (us_json_ref x = us_json_first(d, dims); x != US_JSON_NO; x = us_json_next(d, dims, x), i++) {
            uint64_t n;
            assert_true(us_json_u64(d, x, &n) && t->shape[i] == n);
        }
        k = us_json_next(d, shapes, v);
    }
}

static void check_config(const us_json_doc *d, const us_checkpoint *src, const us_checkpoint *made, const char *id) {
    us_key_difference k[16];
    us_arena a = {0};
    us_err err = {0};
    size_t n = 0;
    us_json_ref want = us_json_get(d, 0, "config_keys_changed");
    assert_us_ok(us_config_compare(&src->config, &made->config, &a, k, 16, &n, &err), &err);
    if (n != us_json_count(d, want)) fail_msg("%s: %d keys changed", id, (int)n);
    for (size_t i = 0; i < n && i < 16; i++) assert_true(lists_path(d, want, k[i].path));
    us_arena_free(&a);
}

/* Token tables: ids of kept experts map exactly, all are in range, none twice in a row. */
static void check_table(const us_checkpoint *src, const us_checkpoint *made, us_str name, const uint32_t *new_id, uint32_t n_new) {
    const us_ck_tensor *a = us_ck_find(src, name), *b = us_ck_find(made, name);
    us_err err = {0};
    assert_true(a && b && a->rank == 2 && a->dtype == US_DTYPE_I64 && a->bytes == b->bytes);
    int64_t *x = malloc(a->bytes + 1), *y = malloc(a->bytes + 1);
    assert_true(x && y);
    assert_us_ok(us_ck_read(src, a, 0, x, (size_t)a->bytes, &err), &err);
    assert_us_ok(us_ck_read(made, b, 0, y, (size_t)b->bytes, &err), &err);
    for (uint64_t r = 0; r < a->shape[0]; r++) {
        for (uint64_t c = 0; c < a->shape[1]; c++) {
            uint64_t at = r * a->shape[1] + c;
            assert_true(y[at] >= 0 && y[at] < n_new);
            if (new_id[x[at]] != UINT32_MAX) assert_int_equal(y[at], new_id[x[at]]);
            for (uint64_t e = 0; e < c; e++) assert_true(y[at] != y[r * a->shape[1] + e]);
        }
    }
    free(x);
    free(y);
}

static void check_tables(const us_json_doc *d, us_json_ref keep, const us_checkpoint *src, const us_checkpoint *made) {
    for (us_json_ref k = us_json_first(d, keep); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, keep, k);
        uint32_t new_id[1024], j = 0;
        memset(new_id, 0xff, sizeof new_id);
        for (us_json_ref e = us_json_first(d, v); e != US_JSON_NO; e = us_json_next(d, v, e), j++) {
            uint64_t old;
            assert_true(us_json_u64(d, e, &old) && old < 1024);
            new_id[old] = j;
        }
        const char *suffix = test_format("layers.%.*s.ffn.gate.tid2eid", US_STR_ARG(us_json_string(d, k)));
        for (size_t i = 0; i < src->n_tensors; i++) {
            if (us_str_ends(src->tensors[i].name, us_str_z(suffix))) check_table(src, made, src->tensors[i].name, new_id, j);
        }
        k = us_json_next(d, keep, v);
    }
}

/* The forward pass of the written proxy gives the logits of the model that keeps exactly these experts. */
static void check_logits(const char *folder, const us_json_doc *d, const char *made, const char *id) {
    const char *npy = test_format("%s/logits_pruned.npy", folder), *temp = test_temp_dir();
    us_json_ref ids = us_json_get(d, 0, "token_ids");
    double tolerance = 0, largest = 0, worst = 0;
    if (!test_exists(npy) || ids == US_JSON_NO || !us_json_double(d, us_json_get(d, 0, "tolerance_relative_to_max_logit"), &tolerance)) return;
    test_write_text(test_format("%s/ids.json", temp), test_format("[%.*s]", US_STR_ARG(us_json_raw(d, ids))));
    const char *out = test_format("%s/out.safetensors", temp);
    test_run r = RUN("forward", made, "--ids", test_format("%s/ids.json", temp), "--out", out);
    if (r.status == 1 && strstr(r.err, "[family]")) {
        print_message("%s: no forward pass yet\n", id);
        return;
    }
    test_assert_done(&r);
    us_npy_set want = {0};
    us_file f = {0};
    us_st_header h = {0};
    us_err err = {0};
    assert_us_ok(us_npy_open(NULL, npy, true, 1 << 24, &want, &err), &err);
    assert_us_ok(us_file_open(out, &f, &err), &err);
    assert_us_ok(us_st_read(&f, 0, &h, &err), &err);
    const us_npy *w = &want.arrays[0];
    bool found = false;
    for (size_t i = 0; i < h.n_tensors; i++) {
        const us_st_tensor *t = &h.tensors[i];
        if (!us_str_eqz(t->name, "logits")) continue;
        assert_true(us_st_elements(t) == w->count && w->dtype == US_DTYPE_F32 && (t->dtype == US_DTYPE_F32 || t->dtype == US_DTYPE_F64));
        char *raw = malloc(t->end - t->begin + 1);
        assert_non_null(raw);
        assert_us_ok(us_file_read(&f, h.data_start + t->begin, raw, (size_t)(t->end - t->begin), &err), &err);
        for (uint64_t k = 0; k < w->count; k++) {
            double x = t->dtype == US_DTYPE_F64 ? ((double *)(void *)raw)[k] : (double)((float *)(void *)raw)[k], y = (double)((float *)w->data)[k];
            if (y > largest || -y > largest) largest = y < 0 ? -y : y;
            if (x - y > worst || y - x > worst) worst = x > y ? x - y : y - x;
        }
        free(raw);
        found = true;
    }
    assert_true(found);
    print_message("%s: logits differ by %.1e of the largest\n", id, worst / largest);
    if (!(worst <= tolerance * largest)) fail_msg("%s: logits", id);
    us_npy_set_free(&want);
    us_st_header_free(&h);
    us_file_close(&f);
}

static bool one_kept_case(const char *root, const char *id) {
    const char *folder = test_format("%s/%s", root, id), *src = test_format("%s/src", folder), *expected = test_format("%s/expected.json", folder);
    if (!test_exists(expected) || !test_exists(test_format("%s/config.json", src))) return false;
    us_json_doc d = test_json(expected);
    us_json_ref keep = us_json_get(&d, 0, "keep");
    bool has = us_json_type_of(&d, keep) == US_JSON_OBJECT;
    if (has) {
        const char *temp = test_temp_dir(), *list = test_format("%s/keep.json", temp), *dst = test_format("%s/dst", temp);
        test_write_text(list, test_format("%.*s", US_STR_ARG(us_json_raw(&d, keep))));
        test_run r = RUN("proxy", src, dst, "--select", test_format("list:%s", list));
        test_assert_done(&r);
        us_checkpoint *a = opened(src), *b = opened(dst);
        uint64_t n;
        if (us_json_u64(&d, us_json_get(&d, 0, "tensor_count_after"), &n)) assert_int_equal(b->n_tensors, n);
        check_shapes(&d, us_json_get(&d, 0, "e_sized_tensors_after"), b, id);
        check_config(&d, a, b, id);
        check_tables(&d, keep, a, b);
        check_logits(folder, &d, dst, id);
        us_checkpoint_free(a);
        us_checkpoint_free(b);
        for (int i = 0; i < 2; i++) {
            r = RUN("verify", src, dst, i ? "--ignore-manifest" : "--quiet");
            test_assert_done(&r);
        }
    }
    us_json_doc_free(&d);
    return has;
}

static void kept_lists_give_the_expected_tensors(void **state) {
    (void)state;
    const char *root = test_fixtures("cases");
    size_t n = 0;
    int done = 0;
    if (!root) return;
    const char *const *ids = test_list(root, &n);
    for (size_t i = 0; i < n; i++) done += one_kept_case(root, ids[i]);
    print_message("%d cases\n", done);
}

/* ---- files ---- */

static void files_are_copied_or_named(void **state) {
    (void)state;
    const char *folder = the_case("P17", "src/config.json"), *dst = test_format("%s/dst", test_temp_dir());
    if (!folder) return;
    us_json_doc d = test_json(test_format("%s/expected.json", folder));
    test_run r = RUN("proxy", test_format("%s/src", folder), dst, "--experts", "2", "--select", "first");
    test_assert_done(&r);
    us_json_ref copied = us_json_get(&d, 0, "copied_byte_exact"), left = us_json_get(&d, 0, "not_copied_and_named");
    for (us_json_ref x = us_json_first(&d, copied); x != US_JSON_NO; x = us_json_next(&d, copied, x)) {
        const char *name = test_format("%.*s", US_STR_ARG(us_json_string(&d, x)));
        size_t n = 0, m = 0;
        const char *a = test_read(test_format("%s/src/%s", folder, name), &n), *b = test_read(test_format("%s/%s", dst, name), &m);
        assert_true(n == m && memcmp(a, b, n) == 0);
    }
    for (us_json_ref x = us_json_first(&d, left); x != US_JSON_NO; x = us_json_next(&d, left, x)) {
        const char *name = test_format("%.*s", US_STR_ARG(us_json_string(&d, x)));
        assert_false(test_exists(test_format("%s/%s", dst, name)));
        assert_true(strstr(r.out, name) || strstr(r.err, name));
    }
    us_checkpoint *made = opened(dst);
    uint64_t bytes = 0, elements = 0, v;
    for (size_t i = 0; i < made->n_tensors; i++) {
        bytes += made->tensors[i].bytes;
        elements += made->tensors[i].bytes * 8 / us_dtype_bits(made->tensors[i].dtype);
    }
    assert_true(us_json_u64(&made->index, us_json_path(&made->index, 0, "metadata.total_size"), &v) && v == bytes);
    assert_true(us_json_u64(&made->index, us_json_path(&made->index, 0, "metadata.total_parameters"), &v) && v == elements);
    us_checkpoint_free(made);
    us_json_doc_free(&d);
}

static void a_missing_shard_stops_before_anything_is_written(void **state) {
    (void)state;
    const char *folder = the_case("P18", "src/config.json"), *dst = test_format("%s/dst", test_temp_dir());
    if (!folder) return;
    test_run r = RUN("proxy", test_format("%s/src", folder), dst, "--experts", "2", "--select", "first");
    test_assert_refused(&r, 1, "shard-missing");
    assert_non_null(strstr(r.err, "model-00002-of-00002.safetensors"));
    assert_non_null(strstr(r.err, " tensors in it"));
    assert_false(test_exists(dst));
}

static void hub_snapshots_are_read_through_their_links(void **state) {
    (void)state;
    const char *folder = the_case("P16", "models--org--tiny");
    if (!folder) return;
    const char *copy = test_temp_dir(), *snapshot = test_format("%s/models--org--tiny/snapshots/0123abcd", copy);
    test_copy_tree(folder, copy);
    test_restore_links(copy);
    test_run r = RUN("inspect", snapshot);
    test_assert_done(&r);
}

static void stale_copies_lose(void **state) {
    (void)state;
    const char *folder = the_case("S07", "src/config.json"), *dst = test_format("%s/dst", test_temp_dir());
    if (!folder) return;
    test_run r = RUN("proxy", test_format("%s/src", folder), dst, "--experts", "4", "--select", "first");
    test_assert_done(&r);
    assert_non_null(strstr(r.err, "note-unlisted"));
    us_checkpoint *made = opened(dst);
    us_err err = {0};
    size_t found = 0;
    for (size_t i = 0; i < made->n_tensors; i++) {
        const us_ck_tensor *t = &made->tensors[i];
        if (!us_str_ends(t->name, US_LIT("o_proj.weight")) && !us_str_ends(t->name, US_LIT("experts.2.up_proj.weight"))) continue;
        char *raw = malloc(t->bytes + 1);
        float *x = malloc(t->bytes / us_dtype_bits(t->dtype) * 8 * sizeof *x + 4);
        assert_true(raw && x);
        assert_us_ok(us_ck_read(made, t, 0, raw, (size_t)t->bytes, &err), &err);
        size_t n = (size_t)(t->bytes * 8 / us_dtype_bits(t->dtype));
        assert_true(us_to_f32(t->dtype, raw, n, x));
        for (size_t k = 0; k < n; k++) assert_true(x[k] >= 0.5f && x[k] <= 0.5f);
        free(raw);
        free(x);
        found++;
    }
    assert_true(found >= 2);
    us_checkpoint_free(made);
}

/* Sources that must simply work (S01 odd header, S06 no metadata, S10 no head), and what must be said or stand in every shard. */
static void odd_files_give_whole_proxies(void **state) {
    (void)state;
    static const char *const cases[][3] = {{"S01", "src", NULL}, {"S06", "src", NULL}, {"S06", "src_empty_metadata", NULL},
                                           {"S10", "src_tied", NULL}, {"S10", "src_untied", "note-head"}, {"S10", "src_key_absent", "note-head"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = the_case(cases[i][0], test_format("%s/config.json", cases[i][1])), *dst = test_format("%s/dst", test_temp_dir());
        if (!folder) continue;
        const char *src = test_format("%s/%s", folder, cases[i][1]);
        test_run r = RUN("proxy", src, dst, "--experts", "2", "--select", "first");
        test_assert_done(&r);
        assert_true(!cases[i][2] == !strstr(r.err, "note-head"));
        us_checkpoint *made = opened(dst);
        for (size_t s = 0; s < made->n_shards; s++) {
            const us_st_header *h = &made->shards[s].header;
            bool format = false;
            for (size_t m = 0; m < h->n_meta; m++) format |= us_str_eqz(h->meta[m].key, "format") && us_str_eqz(h->meta[m].value, "pt");
            assert_true(format);
            assert_int_equal(h->data_start % 8, 0);
        }
        us_checkpoint_free(made);
        r = RUN("verify", src, dst);
        test_assert_done(&r);
    }
    const char *folder = the_case("S02", "src/config.json");
    if (!folder) return;
    test_run r = RUN("proxy", test_format("%s/src", folder), test_format("%s/dst", test_temp_dir()), "--experts", "2", "--select", "first");
    test_assert_refused(&r, 1, "trailing-data");
    assert_non_null(strstr(r.err, "4 bytes"));
}

/* ---- lists, keys ---- */

static void list_shapes_agree(void **state) {
    (void)state;
    const char *folder = the_case("P25", "expected.json"), *temp = test_temp_dir(), *src = test_format("%s/src", temp);
    if (!folder) return;
    us_json_doc d = test_json(test_format("%s/expected.json", folder));
    tiny_write(src, &(tiny_model){.experts = 4, .top_k = 1});
    static const char *const files[] = {"ranked.jsonl", "keepset.json"};
    for (int i = 0; i < 2; i++) {
        const char *list = test_format("%s/%s", folder, files[i]), *dst = test_format("%s/dst%d", temp, i);
        if (!test_exists(list)) continue;
        test_run r = RUN("proxy", src, dst, "--experts", "2", "--select", test_format("list:%s", list));
        test_assert_done(&r);
        us_json_doc m = test_json(test_format("%s/understudy.json", dst));
        assert_true(us_json_equal(&d, us_json_get(&d, 0, "keep"), &m, us_json_get(&m, 0, "layers")));
        us_json_doc_free(&m);
    }
    us_json_doc_free(&d);
}

static void size_and_behaviour_keys_are_told_apart(void **state) {
    (void)state;
    const char *folder = the_case("T01", "tiny.json");
    if (!folder) return;
    us_json_doc d = test_json(test_format("%s/expected.json", folder)), j = {0};
    us_err err = {0};
    test_run r = RUN("verify", test_format("%s/reference.json", folder), test_format("%s/tiny.json", folder), "--json");
    assert_int_equal(r.status, 3);
    assert_us_ok(us_json_doc_parse(&j, (us_str){r.out, r.n_out}, 0, &err), &err);
    assert_true(us_json_equal(&d, us_json_get(&d, 0, "size_keys"), &j, us_json_get(&j, 0, "size_keys")));
    assert_true(us_json_equal(&d, us_json_get(&d, 0, "behaviour_keys_that_differ"), &j, us_json_get(&j, 0, "behaviour_keys")));
    us_json_doc_free(&d);
    us_json_doc_free(&j);
}

/* P14: the lists of config.json on a checkpoint made to fit. */
static void quantisation_lists_are_renumbered(void **state) {
    (void)state;
    const char *folder = the_case("P14", "config.json"), *temp = test_temp_dir(), *src = test_format("%s/src", temp), *dst = test_format("%s/dst", temp);
    if (!folder) return;
    us_json_doc d = test_json(test_format("%s/expected.json", folder)), c = test_json(test_format("%s/config.json", folder));
    us_json_ref q = us_json_get(&c, 0, "quantization_config");
    tiny_write(src, &(tiny_model){.experts = 4, .top_k = 1, .config_more = test_format("\"quantization_config\": %.*s,", US_STR_ARG(us_json_raw(&c, q)))});
    test_write_text(test_format("%s/hf_quant_config.json", src), test_read(test_format("%s/hf_quant_config.json", folder), NULL));
    const char *list = test_format("%s/keep.json", temp);
    test_write_text(list, test_format("%.*s", US_STR_ARG(us_json_raw(&d, us_json_get(&d, 0, "keep")))));
    test_run r = RUN("proxy", src, dst, "--select", test_format("list:%s", list));
    test_assert_done(&r);
    us_json_doc made = test_json(test_format("%s/config.json", dst)), hf = test_json(test_format("%s/hf_quant_config.json", dst));
    assert_true(us_json_equal(&d, us_json_get(&d, 0, "ignore"), &made, us_json_path(&made, 0, "quantization_config.ignore")));
    /* the glob that ends in an expert's number is expanded to the names it matched */
    us_json_ref ex = us_json_path(&hf, 0, "quantization.exclude_modules");
    assert_true(lists_path(&hf, ex, US_LIT("lm_head")) && lists_path(&hf, ex, US_LIT("*mlp.gate*")));
    assert_true(lists_path(&hf, ex, US_LIT("model.layers.1.mlp.experts.1.gate_proj")));
    assert_true(lists_path(&hf, ex, US_LIT("model.layers.0.mlp.experts.0*")) ||
                (lists_path(&hf, ex, US_LIT("model.layers.0.mlp.experts.0.up_proj")) && lists_path(&hf, ex, US_LIT("model.layers.0.mlp.experts.0.gate_proj")) &&
                 lists_path(&hf, ex, US_LIT("model.layers.0.mlp.experts.0.down_proj"))));
    assert_false(lists_path(&hf, ex, US_LIT("model.layers.0.mlp.experts.1*")));
    us_json_doc_free(&d);
    us_json_doc_free(&c);
    us_json_doc_free(&made);
    us_json_doc_free(&hf);
}

/* P24: keys and tensors of MTP go together, on every model that has either. */
static void mtp_is_dropped_whole(void **state) {
    (void)state;
    for (const char *const *at = test_folders("models", "config.json model.safetensors"); *at; at++) {
        const char *folder = *at;
        const char *temp = test_temp_dir(), *src = test_format("%s/src", temp), *dst = test_format("%s/dst", temp);
        size_t len = 0;
        test_mkdir(src);
        const char *w = test_read(test_format("%s/model.safetensors", folder), &len);
        test_write(test_format("%s/model.safetensors", src), w, len);
        test_write_text(test_format("%s/config.json", src), test_read(test_format("%s/config.json", folder), NULL));
        test_run r = RUN("proxy", src, dst, "--keep-ratio", "1", "--select", "first", "--drop-mtp");
        if (r.status == 1 && strstr(r.err, "[dense]")) continue;
        test_assert_done(&r);
        us_checkpoint *made = opened(dst);
        static const char *const keys[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers"};
        for (int k = 0; k < 4; k++) {
            uint64_t v;
            if (us_json_u64(&made->config, us_json_get(&made->config, 0, keys[k]), &v)) assert_int_equal(v, 0);
        }
        assert_true(us_json_get(&made->config, 0, "mtp_hybrid_override_pattern") == US_JSON_NO);
        assert_true(us_json_get(&made->config, 0, "mtp_layers_block_type") == US_JSON_NO);
        for (size_t t = 0; t < made->n_tensors; t++) assert_false(us_str_starts(made->tensors[t].name, US_LIT("mtp.")));
        us_checkpoint_free(made);
        for (int k = 0; k < 2; k++) {
            r = RUN("verify", src, dst, k ? "--ignore-manifest" : "--quiet");
            if (r.status) fail_msg("%s: %s", folder, r.err);
        }
    }
}

/* P21: the arguments that a trainer needs. */
static void trainer_arguments_are_told(void **state) {
    (void)state;
    const char *root = test_fixtures("checkpoints/deepseek-v3-fp8");
    if (!root || !test_exists(test_format("%s/src/config.json", root))) return;
    test_run r = RUN("proxy", test_format("%s/src", root), "/nonexistent/x", "--experts", "8", "--select", "first", "--dry-run", "--json");
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "\"megatron\": [\"--num-experts 8\", \"--moe-router-num-groups 4\", \"--moe-router-group-topk 2\"]"));
    assert_non_null(strstr(r.out, "\"slime\": [\"--num-experts 8\""));
    assert_non_null(strstr(r.out, "\"vllm_sglang\": []"));
}

/* ---- inventories: names, types and shapes without numbers ---- */

enum { INVENTORY_MAX = 128 };

/* An object of a case with the members that the case leaves out. */
static const char *with_members(const us_json_doc *d, us_json_ref object, const char *more) {
    us_str raw = us_json_raw(d, object);
    return test_format("%.*s, %s}", (int)raw.n - 1, raw.p, more);
}

/* A checkpoint of zeros: the tensors of each list, {"name": ["BF16", [4, 24]]}. */
static void write_inventory(const char *folder, const char *config, const char *const *lists, size_t n_lists) {
    us_st_tensor t[INVENTORY_MAX];
    uint64_t shapes[INVENTORY_MAX][4], at = 0, elements, bytes;
    us_json_doc docs[2];
    us_buf out = {0};
    us_err err = {0};
    size_t n = 0;
    assert_true(n_lists <= 2);
    for (size_t l = 0; l < n_lists; l++) {
        us_json_doc *d = &docs[l];
        assert_us_ok(us_json_doc_parse(d, us_str_z(lists[l]), 0, &err), &err);
        for (us_json_ref k = us_json_first(d, 0); k != US_JSON_NO;) {
            us_json_ref v = us_json_next(d, 0, k), dims = us_json_at(d, v, 1);
            assert_true(n < INVENTORY_MAX && us_json_count(d, dims) <= 4);
            t[n] = (us_st_tensor){.name = us_json_string(d, k), .rank = (uint8_t)us_json_count(d, dims), .shape = shapes[n], .begin = at};
            for (uint8_t i = 0; i < t[n].rank; i++) assert_true(us_json_u64(d, us_json_at(d, dims, i), &shapes[n][i]));
            assert_true(us_dtype_parse(us_json_string(d, us_json_at(d, v, 0)), &t[n].dtype));
            assert_true(us_st_bytes(t[n].dtype, t[n].rank, shapes[n], &elements, &bytes));
            t[n++].end = at += bytes;
            k = us_json_next(d, 0, v);
        }
    }
    assert_us_ok(us_st_write_header(&out, t, n, NULL, 0, &err), &err);
    for (uint64_t i = 0; i < at; i++) us_buf_c(&out, 0);
    test_mkdir(folder);
    test_write(test_format("%s/model.safetensors", folder), out.p, out.n);
    test_write_text(test_format("%s/config.json", folder), config);
    us_buf_free(&out);
    for (size_t l = 0; l < n_lists; l++) us_json_doc_free(&docs[l]);
}

/* P03. The case has no experts and no depth: they are added, so that only the two unknown tensors are left to object to. */
static void unknown_tensors_with_an_axis_of_experts_are_refused(void **state) {
    (void)state;
    const char *folder = the_case("P03", "inventory.json"), *temp = test_temp_dir(), *dst = test_format("%s/dst", temp);
    if (!folder) return;
    us_json_doc d = test_json(test_format("%s/inventory.json", folder));
    us_json_ref tensors = us_json_get(&d, 0, "tensors");
    us_buf more = {0};
    for (int e = 0; e < 6; e++)
        us_buf_printf(&more, "%s\"model.layers.0.mlp.experts.%d.gate_proj.weight\":[\"BF16\",[12,16]],\"model.layers.0.mlp.experts.%d.up_proj.weight\":[\"BF16\",[12,16]],"
                             "\"model.layers.0.mlp.experts.%d.down_proj.weight\":[\"BF16\",[16,12]]", e ? "," : "{", e, e, e);
    us_buf_c(&more, '}');
    const char *config = with_members(&d, us_json_get(&d, 0, "config"), "\"num_hidden_layers\": 1, \"first_k_dense_replace\": 0, \"num_experts_per_tok\": 2, \"n_group\": 1, \"topk_group\": 1");
    const char *lists[] = {test_format("%.*s", US_STR_ARG(us_json_raw(&d, tensors))), us_buf_text(&more)};
    write_inventory(test_format("%s/src", temp), config, lists, 2);
    test_run r = RUN("proxy", test_format("%s/src", temp), dst, "--experts", "4", "--select", "first");
    test_assert_refused(&r, 1, NULL);
    assert_true(strstr(r.err, "load_prior") && strstr(r.err, "expert_temperature"));
    assert_false(test_exists(dst));
    /* without them it is a model like any other */
    us_json_ref known[2] = {us_json_first(&d, tensors), US_JSON_NO};
    us_buf two = {0};
    known[1] = us_json_next(&d, tensors, us_json_next(&d, tensors, known[0]));
    for (int i = 0; i < 2; i++)
        us_buf_printf(&two, "%s%.*s:%.*s", i ? "," : "{", US_STR_ARG(us_json_raw(&d, known[i])), US_STR_ARG(us_json_raw(&d, us_json_next(&d, tensors, known[i]))));
    us_buf_c(&two, '}');
    lists[0] = us_buf_text(&two);
    write_inventory(test_format("%s/known", temp), config, lists, 2);
    r = RUN("proxy", test_format("%s/known", temp), dst, "--experts", "4", "--select", "first");
    test_assert_done(&r);
    us_buf_free(&more);
    us_buf_free(&two);
    us_json_doc_free(&d);
}

/* P20: stacked where the family is published per expert; both readings of the sizes fit, so only the table can tell. */
static void a_layout_is_kept_as_it_came(void **state) {
    (void)state;
    const char *folder = the_case("P20", "inventory.json"), *temp = test_temp_dir(), *src = test_format("%s/src", temp), *dst = test_format("%s/dst", temp);
    if (!folder) return;
    const char *list = test_read(test_format("%s/inventory.json", folder), NULL);
    write_inventory(src, test_read(test_format("%s/config.json", folder), NULL), &list, 1);
    test_run r = RUN("proxy", src, dst, "--experts", "2", "--select", "first");
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "skip the stacked names without an error"));
    us_checkpoint *made = opened(dst);
    const us_ck_tensor *gate_up = us_ck_find(made, US_LIT("model.layers.0.mlp.experts.gate_up_proj")), *down = us_ck_find(made, US_LIT("model.layers.0.mlp.experts.down_proj"));
    assert_true(gate_up && gate_up->rank == 3 && gate_up->shape[0] == 2 && gate_up->shape[1] == 48 && gate_up->shape[2] == 24);
    assert_true(down && down->rank == 3 && down->shape[0] == 2);
    us_checkpoint_free(made);
}

/* P28: mirrors of the count change together, another tower's count stays; mirrors that disagree stop the tool. */
static void mirrors_of_the_count_change_together(void **state) {
    (void)state;
    const char *folder = the_case("P28", "config.json"), *temp = test_temp_dir(), *src = test_format("%s/src", temp), *dst = test_format("%s/dst", temp);
    if (!folder) return;
    static const char list[] = "{\"model.language_model.layers.0.mlp.gate.weight\":[\"BF16\",[16,8]],\"model.language_model.layers.0.mlp.experts.gate_up_proj\":[\"BF16\",[16,8,8]],"
                               "\"model.language_model.layers.0.mlp.experts.down_proj\":[\"BF16\",[16,8,4]]}";
    const char *lists[] = {list}, *config = test_read(test_format("%s/config.json", folder), NULL), *text = strstr(config, "\"num_experts_per_tok\"");
    assert_non_null(text);
    config = test_format("%.*s\"num_hidden_layers\": 1, \"hidden_size\": 8, \"moe_intermediate_size\": 4, %s", (int)(text - config), config, text);
    write_inventory(src, config, lists, 1);
    us_json_doc want = test_json(test_format("%s/expected.json", folder));
    uint64_t to = 0, v;
    assert_true(us_json_u64(&want, us_json_get(&want, 0, "to"), &to));
    test_run r = RUN("proxy", src, dst, "--experts", test_format("%d", (int)to), "--select", "first");
    test_assert_done(&r);
    us_checkpoint *a = opened(src), *b = opened(dst);
    us_key_difference k[16];
    us_arena arena = {0};
    us_err err = {0};
    size_t n = 0;
    us_json_ref changed = us_json_get(&want, 0, "changed"), unchanged = us_json_get(&want, 0, "unchanged");
    assert_us_ok(us_config_compare(&a->config, &b->config, &arena, k, 16, &n, &err), &err);
    assert_int_equal(n, us_json_count(&want, changed));
    for (size_t i = 0; i < n; i++) assert_true(lists_path(&want, changed, k[i].path) && !lists_path(&want, unchanged, k[i].path));
    for (us_json_ref x = us_json_first(&want, changed); x != US_JSON_NO; x = us_json_next(&want, changed, x))
        assert_true(us_json_u64(&b->config, us_json_path(&b->config, 0, test_format("%.*s", US_STR_ARG(us_json_string(&want, x)))), &v) && v == to);
    us_arena_free(&arena);
    us_checkpoint_free(a);
    us_checkpoint_free(b);
    us_json_doc_free(&want);
    char *odd = strstr(config, "\"num_experts\": 16");
    assert_non_null(odd);
    odd[strlen("\"num_experts\": 1")] = '2';
    write_inventory(test_format("%s/odd", temp), config, lists, 1);
    r = RUN("proxy", test_format("%s/odd", temp), test_format("%s/dst2", temp), "--experts", test_format("%d", (int)to), "--select", "first");
    test_assert_refused(&r, 1, NULL);
    assert_non_null(strstr(r.err, "num_experts"));
}

/* T04: more layer types than layers are said and left alone. The case has no sizes; those that any config.json has are added. */
static void surplus_layer_types_are_said(void **state) {
    (void)state;
    const char *folder = the_case("T04", "config.json"), *config = test_format("%s/config.json", test_temp_dir());
    if (!folder) return;
    us_json_doc d = test_json(test_format("%s/config.json", folder)), j = {0};
    us_err err = {0};
    uint64_t layers = 0;
    test_write_text(config, with_members(&d, 0, "\"hidden_size\": 16, \"vocab_size\": 32, \"num_attention_heads\": 2, \"moe_top_k\": 2, \"moe_layers_enum\": \"1,2,3,4\""));
    test_run r = RUN("inspect", "--json", config);
    test_assert_done(&r);
    assert_non_null(strstr(r.err, "layer_types has 8 entries for 5 layers"));
    assert_us_ok(us_json_doc_parse(&j, (us_str){r.out, r.n_out}, 0, &err), &err);
    assert_true(us_json_u64(&j, us_json_get(&j, 0, "n_layers"), &layers) && layers == 5);
    us_json_doc_free(&j);
    us_json_doc_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_lists_give_the_expected_tensors),
        cmocka_unit_test(files_are_copied_or_named),
        cmocka_unit_test(a_missing_shard_stops_before_anything_is_written),
        cmocka_unit_test(hub_snapshots_are_read_through_their_links),
        cmocka_unit_test(stale_copies_lose),
        cmocka_unit_test(odd_files_give_whole_proxies),
        cmocka_unit_test(list_shapes_agree),
        cmocka_unit_test(size_and_behaviour_keys_are_told_apart),
        cmocka_unit_test(quantisation_lists_are_renumbered),
        cmocka_unit_test(mtp_is_dropped_whole),
        cmocka_unit_test(trainer_arguments_are_told),
        cmocka_unit_test(unknown_tensors_with_an_axis_of_experts_are_refused),
        cmocka_unit_test(a_layout_is_kept_as_it_came),
        cmocka_unit_test(mirrors_of_the_count_change_together),
        cmocka_unit_test(surplus_layer_types_are_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
