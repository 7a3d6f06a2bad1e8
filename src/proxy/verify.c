/**
 * Proving that a folder is a proxy of a checkpoint: make the plan again from what the manifest or the bytes say was kept, and hold the folder
 * against the plan, file by file and byte by byte. Interface: include/understudy/us_proxy.h. Tests: tests/e2e/test_fix_checkpoints.c.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "proxy/config_compare.h"
#include "proxy/manifest.h"
#include "proxy/report.h"
#include "proxy/verify_map.h"

enum { KEYS_MAX = 64, BUFFER = 2 << 20, SHOWN = 80 };

typedef struct verifying {
    us_ctx *ctx;
    const us_structure *s;
    const us_checkpoint *dst;
    const us_plan *p;
    unsigned link_flags;
} verifying;

static us_status differ(us_err *err, const char *cls, us_str where, const char *what) {
    us_status st = us_fail(err, US_E_DIFFERENT, cls, "%s", what);
    us_err_where(err, "%.*s", US_STR_ARG(where));
    return st;
}

/* ---- names, types, shapes ---- */

static us_status check_shapes(const verifying *v, us_err *err) {
    for (size_t i = 0; i < v->p->n_tensors; i++) {
        const us_plan_tensor *t = &v->p->tensors[i];
        const us_ck_tensor *src = &v->s->ck->tensors[t->src], *u = us_ck_find(v->dst, t->name);
        if (!u) return differ(err, "tensor-missing", t->name, "the tensor is not there");
        if (u->dtype != src->dtype) return differ(err, "dtype", t->name, "the tensor has another type");
        bool same = u->rank == src->rank;
        for (int k = 0; same && k < u->rank; k++) same = u->shape[k] == t->shape[k];
        if (!same) return differ(err, "shape", t->name, "the tensor has another shape");
    }
    if (v->dst->n_tensors == v->p->n_tensors) return US_OK;
    us_map names = {0};
    us_status st = US_OK;
    for (size_t i = 0; i < v->p->n_tensors && st == US_OK; i++) {
        if (!us_map_put(&names, v->p->tensors[i].name, 0, NULL)) st = us_fail_nomem(err, "comparing tensors");
    }
    for (size_t i = 0; i < v->dst->n_tensors && st == US_OK; i++) {
        if (us_map_get(&names, v->dst->tensors[i].name) == US_MAP_NONE) st = differ(err, "tensor-extra", v->dst->tensors[i].name, "the tensor does not belong there");
    }
    us_map_free(&names);
    return st;
}

/* ---- bytes, in parallel ---- */

typedef struct compare_worker {
    us_stream stream;
    unsigned char *other;
    us_err err;
    int64_t failed;
} compare_worker;

typedef struct comparing {
    const verifying *v;
    compare_worker *w;
    int n;
    _Atomic int64_t first; /* lowest tensor that differs so far */
} comparing;

typedef struct compare_sink {
    comparing *c;
    compare_worker *w;
    const us_ck_tensor *u;
    uint64_t at;
} compare_sink;

static us_status compare_bytes(void *user, const void *data, size_t n, us_err *err) {
    compare_sink *k = user;
    US_TRY(us_ctx_check(k->c->v->ctx, err));
    US_TRY(us_ck_read(k->c->v->dst, k->u, k->at, k->w->other, n, err));
    us_progress_add(k->c->v->ctx, n);
    if (memcmp(data, k->w->other, n) != 0) {
        const unsigned char *p = data;
        size_t i = 0;
        while (p[i] == k->w->other[i]) i++;
        us_status st = us_fail(err, US_E_DIFFERENT, "bytes", "the tensor differs from byte %llu on", (unsigned long long)(k->at + i));
        us_err_where(err, "%.*s", US_STR_ARG(k->u->name));
        return st;
    }
    k->at += n;
    return US_OK;
}

static void compare_tensor(void *arg, int64_t i, int thread) {
    comparing *c = arg;
    compare_worker *w = &c->w[thread];
    const us_plan_tensor *t = &c->v->p->tensors[i];
    us_err e = {0};
    if (i > atomic_load_explicit(&c->first, memory_order_relaxed)) return;
    compare_sink k = {c, w, us_ck_find(c->v->dst, t->name), 0};
    if (us_stream_run(&w->stream, t, 0, compare_bytes, &k, &e) == US_OK) return;
    if (w->failed < 0 || i < w->failed) {
        w->failed = i;
        w->err = e;
    }
    int64_t seen = atomic_load_explicit(&c->first, memory_order_relaxed);
    while (i < seen && !atomic_compare_exchange_weak(&c->first, &seen, i)) {}
}

static us_status check_bytes(const verifying *v, us_err *err) {
    us_table_map tables = {0};
    comparing c = {.v = v, .n = us_pool_threads(us_ctx_pool(v->ctx))};
    compare_worker *worst = NULL;
    atomic_init(&c.first, INT64_MAX);
    US_TRY(us_table_map_create(v->ctx, v->p, &tables, err));
    c.w = us_calloc((size_t)c.n, sizeof *c.w);
    us_status st = c.w ? US_OK : us_fail_nomem(err, "comparing tensors");
    for (int i = 0; i < c.n && st == US_OK; i++) {
        c.w[i].failed = -1;
        st = us_stream_create(v->p, &tables, BUFFER, &c.w[i].stream, err);
        if (st == US_OK && !(c.w[i].other = us_malloc(BUFFER))) st = us_fail_nomem(err, "comparing tensors");
    }
    if (st == US_OK) {
        us_progress_begin(v->ctx, "comparing", "B", v->p->total_bytes);
        us_pool_run(us_ctx_pool(v->ctx), compare_tensor, &c, (int64_t)v->p->n_tensors);
        us_progress_end(v->ctx);
    }
    for (int i = 0; c.w && i < c.n; i++) {
        if (c.w[i].failed >= 0 && (!worst || c.w[i].failed < worst->failed)) worst = &c.w[i];
        us_stream_free(&c.w[i].stream);
        us_free(c.w[i].other);
    }
    if (st == US_OK && worst) {
        st = worst->err.code;
        if (err) *err = worst->err;
    }
    us_free(c.w);
    us_table_map_free(&tables);
    return st;
}

/* ---- configuration, index, metadata ---- */

static us_status check_config(const us_buf *want, const us_json_doc *have, const char *file, us_err *err) {
    us_json_doc d = {0};
    us_arena a = {0};
    us_key_difference k[KEYS_MAX];
    size_t n = 0;
    if (!want->n && !have->n_nodes) return US_OK;
    if (!want->n || !have->n_nodes) return differ(err, "file", us_str_z(file), want->n ? "the file is not there" : "the file does not belong there");
    us_status st = us_json_doc_parse(&d, us_buf_view(want), US_JSON_INFINITY, err);
    if (st == US_OK) st = us_config_compare(&d, have, &a, k, KEYS_MAX, &n, err);
    if (st == US_OK && n) {
        us_str x = k[0].a.p ? k[0].a : US_LIT("absent"), y = k[0].b.p ? k[0].b : US_LIT("absent");
        if (x.n > SHOWN) x.n = SHOWN;
        if (y.n > SHOWN) y.n = SHOWN;
        st = us_fail(err, US_E_DIFFERENT, k[0].kind == US_KEY_SIZE ? "config-size" : "config-behaviour", "%.*s is %.*s, should be %.*s", US_STR_ARG(k[0].path),
                     US_STR_ARG(y), US_STR_ARG(x));
        us_err_where(err, "%s", file);
    }
    us_json_doc_free(&d);
    us_arena_free(&a);
    return st;
}

/* All but the map is compared by value; of the map the keys, for opening has already held them against the shards. */
static us_status check_index(const verifying *v, us_err *err) {
    us_json_doc d = {0};
    const us_json_doc *have = &v->dst->index;
    const char *file = "model.safetensors.index.json";
    if (!v->p->index.n && !have->n_nodes) return US_OK;
    if (!v->p->index.n) return US_OK; /* an index more does no harm: the copy was sharded again */
    if (!have->n_nodes) return differ(err, "file", us_str_z(file), "the file is not there");
    us_status st = us_json_doc_parse(&d, us_buf_view(&v->p->index), 0, err);
    if (st == US_OK && us_json_count(&d, us_json_get(&d, 0, "weight_map")) != us_json_count(have, us_json_get(have, 0, "weight_map")))
        st = differ(err, "index", us_str_z(file), "weight_map has another number of tensors");
    for (us_json_ref k = st == US_OK ? us_json_first(&d, 0) : US_JSON_NO; k != US_JSON_NO && st == US_OK;) {
        us_json_ref val = us_json_next(&d, 0, k);
        us_str key = us_json_string(&d, k);
        char name[128];
        snprintf(name, sizeof name, "%.*s", US_STR_ARG(key));
        if (!us_str_eqz(key, "weight_map") && key.n < sizeof name && !us_json_equal(&d, val, have, us_json_get(have, 0, name))) {
            st = us_fail(err, US_E_DIFFERENT, "index", "%s is not what the tensors and the source give", name);
            us_err_where(err, "%s", file);
        }
        k = us_json_next(&d, 0, val);
    }
    if (st == US_OK && us_json_count(&d, 0) != us_json_count(have, 0)) st = differ(err, "index", us_str_z(file), "a key does not belong there");
    us_json_doc_free(&d);
    return st;
}

static us_status check_meta(const verifying *v, us_err *err) {
    for (size_t i = 0; i < v->dst->n_shards; i++) {
        const us_st_header *h = &v->dst->shards[i].header;
        for (size_t k = 0; k < v->p->n_meta; k++) {
            bool found = false;
            for (size_t m = 0; m < h->n_meta && !found; m++) found = us_str_eq(h->meta[m].key, v->p->meta[k].key) && us_str_eq(h->meta[m].value, v->p->meta[k].value);
            if (found) continue;
            us_status st = differ(err, "metadata", us_str_z(v->dst->shards[i].name), "the header lacks an entry of the source's metadata, or it has another value");
            us_err_where(err, "__metadata__ %.*s", US_STR_ARG(v->p->meta[k].key));
            return st;
        }
    }
    return US_OK;
}

/* ---- other files ---- */

static us_status same_file(const verifying *v, const char *name, us_err *err) {
    us_file a = {0}, b = {0};
    unsigned char *p = us_malloc(BUFFER), *q = us_malloc(BUFFER);
    us_status st = p && q ? us_fs_open_beneath(v->s->ck->path, us_str_z(name), v->link_flags, &a, err) : us_fail_nomem(err, "comparing files");
    if (st == US_OK) st = us_fs_open_beneath(v->dst->path, us_str_z(name), v->link_flags, &b, err);
    if (st == US_OK && a.size != b.size) st = differ(err, "file", us_str_z(name), "the file has another length than in the source");
    for (uint64_t at = 0; st == US_OK && at < a.size; at += BUFFER) {
        size_t n = a.size - at < BUFFER ? (size_t)(a.size - at) : (size_t)BUFFER;
        st = us_file_read(&a, at, p, n, err);
        if (st == US_OK) st = us_file_read(&b, at, q, n, err);
        if (st == US_OK && memcmp(p, q, n) != 0) st = differ(err, "file", us_str_z(name), "the file differs from the source's");
    }
    us_file_close(&a);
    us_file_close(&b);
    us_free(p);
    us_free(q);
    return st;
}

static const us_fs_entry *entry(const us_fs_entry *e, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(e[i].name, name) == 0) return &e[i];
    }
    return NULL;
}

static us_status check_files(const verifying *v, us_err *err) {
    const us_checkpoint *a = v->s->ck, *b = v->dst;
    for (size_t i = 0; i < a->n_others; i++) {
        if (!us_write_copies(&a->others[i])) continue;
        if (!entry(b->others, b->n_others, a->others[i].name)) return differ(err, "file", us_str_z(a->others[i].name), "the file is not there");
        US_TRY(same_file(v, a->others[i].name, err));
    }
    for (size_t i = 0; i < b->n_others; i++) {
        if (!us_write_copies(&b->others[i]) || entry(a->others, a->n_others, b->others[i].name)) continue;
        return differ(err, "file-extra", us_str_z(b->others[i].name), "the file does not belong there");
    }
    for (size_t i = 0; i < b->n_left_out; i++) return differ(err, "file-extra", us_str_z(b->left_out[i].name), "a weight file that the index does not name");
    return US_OK;
}

/* ---- reports ---- */

/* Keys of the source's config that the copy changed, by kind. */
static us_status report_keys(us_buf *b, const us_json_doc *src, const us_json_doc *dst, us_err *err) {
    us_arena a = {0};
    us_key_difference k[KEYS_MAX];
    size_t n = 0;
    us_status st = us_config_compare(src, dst, &a, k, KEYS_MAX, &n, err);
    static const char *const names[] = {"size_keys", "behaviour_keys"};
    if (n > KEYS_MAX) n = KEYS_MAX;
    for (int kind = 0; kind < 2 && st == US_OK; kind++) {
        bool first = true;
        us_buf_printf(b, ", \"%s\": [", names[kind]);
        for (size_t i = 0; i < n; i++) {
            bool size = k[i].kind != US_KEY_BEHAVIOUR;
            if (size != (kind == 0)) continue;
            us_buf_z(b, first ? "" : ", ");
            us_buf_json(b, k[i].path);
            first = false;
        }
        us_buf_c(b, ']');
    }
    us_arena_free(&a);
    return st;
}

static us_status report_equal(us_report *r, const verifying *v, const us_found *f, const char *folder, us_err *err) {
    char bytes[24];
    us_buf_printf(&r->text, "%s: a proxy of the source: %u of %u experts, %zu tensors, %s compared, kept experts %s\n", folder, v->p->keep->n, v->s->n_experts,
                  v->p->n_tensors, us_format_bytes(v->p->total_bytes, bytes), f->by_manifest ? "as the manifest says" : "found by their bytes");
    if (v->p->cut.cut) us_buf_printf(&r->text, "  LAYERS WERE CUT: %u of %u stay\n", v->p->cut.n_new, v->p->cut.n_old);
    us_buf_z(&r->json, "{\"folder\": ");
    us_buf_json(&r->json, us_str_z(folder));
    us_buf_printf(&r->json, ", \"equal\": true, \"experts\": %u, \"layers\": %u, \"mtp_dropped\": %s, \"tensors\": %zu, \"bytes\": %llu, \"manifest\": %s, \"kept\": ", v->p->keep->n,
                  v->p->cut.n_new, f->drop_mtp ? "true" : "false", v->p->n_tensors, (unsigned long long)v->p->total_bytes, f->by_manifest ? "true" : "false");
    us_report_kept(&r->json, v->p);
    us_status st = report_keys(&r->json, &v->s->ck->config, &v->dst->config, err);
    us_buf_c(&r->json, '}');
    return st;
}

static void report_different(us_report *r, const char *folder, const us_err *err) {
    us_buf_z(&r->json, "{\"folder\": ");
    us_buf_json(&r->json, us_str_z(folder));
    us_buf_z(&r->json, ", \"equal\": false, \"class\": ");
    us_buf_json(&r->json, us_str_z(err->cls));
    us_buf_z(&r->json, ", \"what\": ");
    us_buf_json(&r->json, us_str_z(err->what));
    us_buf_z(&r->json, ", \"where\": ");
    us_buf_json(&r->json, us_str_z(err->where));
    us_buf_c(&r->json, '}');
}

/* ---- one folder ---- */

static us_status compare_all(const verifying *v, us_err *err) {
    US_TRY(check_shapes(v, err));
    US_TRY(check_config(&v->p->config, &v->dst->config, "config.json", err));
    US_TRY(check_config(&v->p->hf_quant, &v->dst->hf_quant, "hf_quant_config.json", err));
    US_TRY(check_index(v, err));
    US_TRY(check_meta(v, err));
    US_TRY(check_bytes(v, err));
    return check_files(v, err);
}

/* What was kept: the manifest, or the bytes. A list that slicing could not have used is a difference, not an unreadable file. */
static us_status find_kept(us_ctx *ctx, const us_structure *s, const us_checkpoint *dst, const us_verify_request *r, us_found *f, us_err *err) {
    us_arena a = {0};
    char *path = us_fs_join(&a, dst->path, US_MANIFEST_NAME);
    us_status st = path ? US_OK : us_fail_nomem(err, "looking for a manifest");
    if (st == US_OK && !r->ignore_manifest && us_fs_exists(path)) st = us_found_by_manifest(s, path, f, err);
    else if (st == US_OK) st = us_found_by_bytes(ctx, s, dst, f, err);
    us_arena_free(&a);
    return st == US_E_REFUSED ? US_E_DIFFERENT : st;
}

/* Opening the copy: a part that is missing is a difference, a file that cannot be read is not. */
static us_status open_copy(us_ctx *ctx, const char *folder, unsigned flags, us_checkpoint **out, us_err *err) {
    static const char *const differences[] = {"tensor-missing", "shard-missing", "no-weights", "no-config", NULL};
    us_status st = us_checkpoint_open(ctx, folder, flags, out, err);
    for (int i = 0; st != US_OK && err && differences[i]; i++) {
        if (strcmp(err->cls, differences[i]) == 0 && us_fs_kind_of(folder) == US_FS_FOLDER) return err->code = US_E_DIFFERENT;
    }
    return st;
}

static us_status verify_folder(us_ctx *ctx, const us_structure *s, const us_verify_request *r, const char *folder, us_report *report, us_err *err) {
    us_checkpoint *dst = NULL;
    us_found f = {0};
    us_plan *p = NULL;
    us_status st = open_copy(ctx, folder, r->follow_links ? US_CK_FOLLOW_LINKS : 0, &dst, err);
    if (st == US_OK) st = find_kept(ctx, s, dst, r, &f, err);
    us_plan_options o = {.layers = f.layers, .drop_mtp = f.drop_mtp};
    if (st == US_OK) {
        st = us_plan_create(NULL, s, &f.keep, &o, &p, err);
        if (st == US_E_REFUSED) st = US_E_DIFFERENT;
    }
    verifying v = {.ctx = ctx, .s = s, .dst = dst, .p = p, .link_flags = r->follow_links ? US_FS_FOLLOW_LINKS : 0};
    if (st == US_OK) st = compare_all(&v, err);
    if (st == US_OK) st = report_equal(report, &v, &f, folder, err);
    else if (st == US_E_DIFFERENT && err) {
        err->code = US_E_DIFFERENT;
        report_different(report, folder, err);
        us_err_where(err, "%s", folder);
    }
    us_plan_free(p);
    us_found_free(&f);
    us_checkpoint_free(dst);
    return st;
}

/* A ladder: every rung. */
static us_status verify_ladder(us_ctx *ctx, const us_structure *s, const us_verify_request *r, const char *ladder, us_report *report, us_err *err) {
    us_json_doc d = {0};
    us_arena a = {0};
    char *text = NULL;
    size_t n = 0;
    US_TRY(us_fs_read_all(ladder, 1 << 20, &text, &n, err));
    us_status st = us_json_doc_take(&d, text, n, 0, err);
    us_json_ref rungs = st == US_OK ? us_json_get(&d, 0, "rungs") : US_JSON_NO;
    us_buf_z(&report->json, "{\"rungs\": [");
    if (st == US_OK && us_json_type_of(&d, rungs) != US_JSON_ARRAY) st = us_fail(err, US_E_FORMAT, "type", "no ladder");
    for (us_json_ref k = st == US_OK ? us_json_first(&d, rungs) : US_JSON_NO; k != US_JSON_NO && st == US_OK; k = us_json_next(&d, rungs, k)) {
        us_str name = us_json_string(&d, k);
        char *z = us_arena_strndup(&a, name.p ? name.p : "", name.n), *folder = z ? us_fs_join(&a, r->dst, z) : NULL;
        if (k != us_json_first(&d, rungs)) us_buf_z(&report->json, ", ");
        if (!folder) st = us_fail_nomem(err, "verifying");
        else if (!name.n || us_str_find(name, '/', 0) < name.n || us_str_eqz(name, "..")) st = us_fail(err, US_E_FORMAT, "path", "a rung is no plain name");
        else st = verify_folder(ctx, s, r, folder, report, err);
    }
    us_buf_z(&report->json, "]}");
    us_json_doc_free(&d);
    us_arena_free(&a);
    return st;
}

/* Two configurations instead of two folders (case T01). */
static us_status verify_configs(const us_verify_request *r, us_report *report, us_err *err) {
    us_json_doc d[2];
    us_arena a = {0};
    us_key_difference k[KEYS_MAX];
    size_t n = 0, shown = 0;
    us_status st = US_OK;
    memset(d, 0, sizeof d);
    const char *path[2] = {r->src, r->dst};
    for (int i = 0; i < 2 && st == US_OK; i++) {
        char *text = NULL;
        size_t len = 0;
        st = us_fs_read_all(path[i], 16 << 20, &text, &len, err);
        if (st == US_OK) st = us_json_doc_take(&d[i], text, len, US_JSON_INFINITY, err);
        if (st != US_OK) us_err_where(err, "%s", path[i]);
    }
    if (st == US_OK) st = us_config_compare(&d[0], &d[1], &a, k, KEYS_MAX, &n, err);
    if (st == US_OK) {
        us_buf_z(&report->json, "{\"equal\": ");
        us_buf_z(&report->json, n ? "false" : "true");
        st = report_keys(&report->json, &d[0], &d[1], err);
        us_buf_c(&report->json, '}');
    }
    if (n > KEYS_MAX) n = KEYS_MAX;
    for (size_t i = 0; i < n && st == US_OK; i++) {
        static const char *const kinds[] = {"size", "size, but it changes the routing margin", "behaviour"};
        us_buf_printf(&report->text, "%.*s: %s\n", US_STR_ARG(k[i].path), kinds[k[i].kind]);
    }
    while (shown < n && k[shown].kind == US_KEY_SIZE) shown++;
    if (st == US_OK && shown < n) {
        st = us_fail(err, US_E_DIFFERENT, "config-behaviour", "%.*s differs, and it is no matter of size", US_STR_ARG(k[shown].path));
        us_err_where(err, "%s", r->dst);
    } else if (st == US_OK && !n) {
        us_buf_z(&report->text, "equal\n");
    }
    for (int i = 0; i < 2; i++) us_json_doc_free(&d[i]);
    us_arena_free(&a);
    return st;
}

static us_status verify_checkpoints(us_ctx *ctx, const us_verify_request *r, us_report *report, us_err *err) {
    us_checkpoint *ck = NULL;
    us_structure *s = NULL;
    us_arena a = {0};
    char *ladder = us_fs_join(&a, r->dst, US_LADDER_NAME);
    us_status st = ladder ? US_OK : us_fail_nomem(err, "verifying");
    if (st == US_OK) st = us_checkpoint_open(ctx, r->src, r->follow_links ? US_CK_FOLLOW_LINKS : 0, &ck, err);
    if (st == US_OK) st = us_structure_resolve(ctx, ck, &s, err);
    if (st == US_OK && !s->n_blocks) {
        st = us_fail(err, US_E_REFUSED, "dense", "the source has no MoE layers");
        us_err_where(err, "%s", r->src);
    }
    if (st == US_OK && us_fs_exists(ladder)) st = verify_ladder(ctx, s, r, ladder, report, err);
    else if (st == US_OK) st = verify_folder(ctx, s, r, r->dst, report, err);
    us_structure_free(s);
    us_checkpoint_free(ck);
    us_arena_free(&a);
    return st;
}

us_status us_proxy_verify(us_ctx *ctx, const us_verify_request *r, us_report **out, us_err *err) {
    us_report *report = NULL;
    us_err local = {0};
    if (!err) err = &local;
    US_TRY(us_report_create(&report, err));
    bool configs = us_fs_kind_of(r->src) == US_FS_REGULAR && us_fs_kind_of(r->dst) == US_FS_REGULAR;
    us_status st = configs ? verify_configs(r, report, err) : verify_checkpoints(ctx, r, report, err);
    if (st == US_OK || st == US_E_DIFFERENT) {
        us_status b = us_buf_status(&report->json, err, "reporting");
        if (b != US_OK) st = b;
    }
    if (st == US_OK || st == US_E_DIFFERENT) *out = report;
    else us_report_free(report);
    return st;
}
