/** Helpers of the proxy tests. Header: proxy.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "proxy/config_compare.h"
#include "support/proxy.h"

us_json_doc test_json(const char *path) {
    us_json_doc d = {0};
    us_err err = {0};
    size_t n = 0;
    const char *text = test_read(path, &n);
    if (us_json_doc_parse(&d, (us_str){text, n}, US_JSON_INFINITY, &err) != US_OK) fail_msg("%s: %s", path, err.what);
    return d;
}

const char *test_json_string(const us_json_doc *d, us_json_ref object, const char *key) {
    us_str s = us_json_string(d, us_json_get(d, object, key));
    if (!s.p) fail_msg("no string %s", key);
    return test_format("%.*s", US_STR_ARG(s));
}

us_status test_proxy(const us_proxy_request *r, int threads, us_err *err) {
    us_ctx *ctx = NULL;
    us_report *report = NULL;
    us_status s = us_ctx_create(threads, 0, &ctx, err);
    if (s == US_OK) s = us_proxy_make(ctx, r, &report, err);
    us_report_free(report);
    us_ctx_free(ctx);
    return s;
}

us_status test_verify(const char *src, const char *dst, bool ignore_manifest, us_err *err) {
    us_ctx *ctx = NULL;
    us_report *report = NULL;
    us_verify_request r = {.src = src, .dst = dst, .ignore_manifest = ignore_manifest};
    us_status s = us_ctx_create(2, 0, &ctx, err);
    if (s == US_OK) s = us_proxy_verify(ctx, &r, &report, err);
    us_report_free(report);
    us_ctx_free(ctx);
    return s;
}

static us_checkpoint *open_folder(const char *folder) {
    us_checkpoint *c = NULL;
    us_err err = {0};
    if (us_checkpoint_open(NULL, folder, 0, &c, &err) != US_OK) fail_msg("%s: %s [%s] %s", folder, err.what, err.cls, err.where);
    return c;
}

static const char *tensor_difference(const us_checkpoint *a, const us_checkpoint *b) {
    for (size_t i = 0; i < b->n_tensors; i++) {
        if (!us_ck_find(a, b->tensors[i].name)) return test_format("tensor too many: %.*s", US_STR_ARG(b->tensors[i].name));
    }
    for (size_t i = 0; i < a->n_tensors; i++) {
        const us_ck_tensor *t = &a->tensors[i], *u = us_ck_find(b, t->name);
        if (!u) return test_format("tensor missing: %.*s", US_STR_ARG(t->name));
        if (t->dtype != u->dtype || t->rank != u->rank || t->bytes != u->bytes || (t->rank && memcmp(t->shape, u->shape, t->rank * sizeof *t->shape) != 0))
            return test_format("type or shape: %.*s", US_STR_ARG(t->name));
        char *p = us_malloc(t->bytes + 1), *q = us_malloc(t->bytes + 1);
        us_err err = {0};
        assert_us_ok(us_ck_read(a, t, 0, p, (size_t)t->bytes, &err), &err);
        assert_us_ok(us_ck_read(b, u, 0, q, (size_t)t->bytes, &err), &err);
        bool same = memcmp(p, q, (size_t)t->bytes) == 0;
        us_free(p);
        us_free(q);
        if (!same) return test_format("bytes: %.*s", US_STR_ARG(t->name));
    }
    return NULL;
}

static const char *index_difference(const us_json_doc *a, const us_json_doc *b) {
    if (!a->n_nodes != !b->n_nodes) return "index: one has none";
    if (!a->n_nodes) return NULL;
    if (us_json_count(a, 0) != us_json_count(b, 0)) return "index: top-level keys";
    for (us_json_ref k = us_json_first(a, 0); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(a, 0, k);
        const char *key = test_format("%.*s", US_STR_ARG(us_json_string(a, k)));
        us_json_ref w = us_json_get(b, 0, key);
        if (strcmp(key, "weight_map") == 0) {
            if (us_json_count(a, v) != us_json_count(b, w)) return "index: weight_map";
            for (us_json_ref n = us_json_first(a, v); n != US_JSON_NO; n = us_json_next(a, v, us_json_next(a, v, n))) {
                if (us_json_get(b, w, test_format("%.*s", US_STR_ARG(us_json_string(a, n)))) == US_JSON_NO) return "index: weight_map keys";
            }
        } else if (!us_json_equal(a, v, b, w)) {
            return test_format("index: %s", key);
        }
        k = us_json_next(a, 0, v);
    }
    return NULL;
}

/* Every entry of every source header, the first shard by name wins; beside them only `format` where the source has none, and understudy*. */
static const char *meta_difference(const us_checkpoint *src, const us_checkpoint *made) {
    for (size_t i = 0; i < made->n_shards; i++) {
        const us_st_header *h = &made->shards[i].header;
        for (size_t s = 0; s < src->n_shards; s++) {
            for (size_t k = 0; k < src->shards[s].header.n_meta; k++) {
                us_str key = src->shards[s].header.meta[k].key, value = src->shards[s].header.meta[k].value;
                bool earlier = false, found = false;
                for (size_t e = 0; e < s; e++) {
                    for (size_t m = 0; m < src->shards[e].header.n_meta; m++) earlier |= us_str_eq(src->shards[e].header.meta[m].key, key);
                }
                for (size_t m = 0; m < h->n_meta; m++) found |= us_str_eq(h->meta[m].key, key) && us_str_eq(h->meta[m].value, value);
                if (!earlier && !found) return test_format("metadata: %.*s", US_STR_ARG(key));
            }
        }
        for (size_t m = 0; m < h->n_meta; m++) {
            us_str key = h->meta[m].key;
            bool known = us_str_starts(key, US_LIT("understudy")) || us_str_eqz(key, "format");
            for (size_t s = 0; s < src->n_shards; s++) {
                for (size_t k = 0; k < src->shards[s].header.n_meta; k++) known |= us_str_eq(src->shards[s].header.meta[k].key, key);
            }
            if (!known) return test_format("metadata too much: %.*s", US_STR_ARG(key));
        }
        bool format = false;
        for (size_t m = 0; m < h->n_meta; m++) format |= us_str_eqz(h->meta[m].key, "format");
        if (!format) return "metadata: no format";
    }
    return NULL;
}

static bool compared_elsewhere(const char *name) {
    return strcmp(name, "config.json") == 0 || strcmp(name, "hf_quant_config.json") == 0 || strcmp(name, "model.safetensors.index.json") == 0 ||
           us_str_ends(us_str_z(name), US_LIT(".safetensors"));
}

static const char *file_difference(const char *reference, const char *made) {
    us_arena a = {0};
    us_fs_entry *x = NULL, *y = NULL;
    size_t n = 0, m = 0;
    us_err err = {0};
    const char *found = NULL;
    assert_us_ok(us_fs_walk(reference, 0, NULL, &a, &x, &n, &err), &err);
    assert_us_ok(us_fs_walk(made, 0, NULL, &a, &y, &m, &err), &err);
    for (size_t i = 0; i < m && !found; i++) {
        bool there = compared_elsewhere(y[i].name) || strncmp(y[i].name, "understudy", 10) == 0;
        for (size_t k = 0; k < n; k++) there |= strcmp(x[k].name, y[i].name) == 0;
        if (!there || y[i].is_link) found = test_format("file too many, or a link: %s", y[i].name);
    }
    for (size_t i = 0; i < n && !found; i++) {
        size_t p = 0, q = 0;
        const char *path = test_format("%s/%s", made, x[i].name);
        if (compared_elsewhere(x[i].name) || strncmp(x[i].name, "understudy", 10) == 0) continue;
        if (!test_exists(path)) {
            found = test_format("file missing: %s", x[i].name);
            break;
        }
        const char *u = test_read(test_format("%s/%s", reference, x[i].name), &p), *v = test_read(path, &q);
        if (p != q || memcmp(u, v, p) != 0) found = test_format("file differs: %s", x[i].name);
    }
    us_arena_free(&a);
    return found;
}

const char *test_proxy_difference(const char *src, const char *reference, const char *made) {
    us_checkpoint *s = open_folder(src), *a = open_folder(reference), *b = open_folder(made);
    const char *d = tensor_difference(a, b);
    if (!d && !us_json_equal(&a->config, 0, &b->config, 0)) d = "config.json";
    if (!d && (!a->hf_quant.n_nodes != !b->hf_quant.n_nodes || (a->hf_quant.n_nodes && !us_json_equal(&a->hf_quant, 0, &b->hf_quant, 0)))) d = "hf_quant_config.json";
    if (!d) d = index_difference(&a->index, &b->index);
    if (!d) d = meta_difference(s, b);
    if (!d) d = file_difference(reference, made);
    us_checkpoint_free(s);
    us_checkpoint_free(a);
    us_checkpoint_free(b);
    return d;
}

const char *test_case_source(const char *folder, const us_json_doc *c) {
    const char *src = test_json_string(c, 0, "src");
    if (!strstr(src, "/snapshots/")) return test_format("%s/%s", folder, src);
    const char *copy = test_temp_dir();
    test_copy_tree(folder, copy);
    test_restore_links(copy);
    return test_format("%s/%s", copy, src);
}
