#define _POSIX_C_SOURCE 200809L
/**
 * One run of `proxy`: open, choose, plan, write, put in place. The order matters: everything that can be refused is refused before the
 * destination is touched. Interface: include/understudy/us_proxy.h. Tests: tests/e2e.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/sha256.h"
#include "proxy/lists.h"
#include "proxy/manifest.h"
#include "proxy/report.h"
#include "proxy/target.h"
#include "understudy/us_proxy.h"

typedef struct job {
    us_ctx *ctx;
    const us_proxy_request *r;
    us_checkpoint *ck;
    us_structure *s;
    us_target target;
    bool target_open;
    us_layer_cut cut;
    bool *active;
    us_lists lists;
    us_plan **plans; /* one per size, largest first */
    us_manifest_arguments args;
    char list_sha[65], routing_sha[65], fingerprint[65];
    us_report *report;
    unsigned link_flags;
} job;

static us_status file_sha(const char *const *paths, int n, char out[65], us_err *err) {
    us_sha256 *h = NULL;
    char *buf = us_malloc(1 << 20);
    if (!buf) return us_fail_nomem(err, "hashing a file");
    us_status st = us_sha256_create(&h, err);
    for (int i = 0; i < n && st == US_OK; i++) {
        us_file f = {0};
        st = us_file_open(paths[i], &f, err);
        for (uint64_t at = 0; st == US_OK && at < f.size; at += 1 << 20) {
            size_t k = f.size - at < 1 << 20 ? (size_t)(f.size - at) : (size_t)1 << 20;
            st = us_file_read(&f, at, buf, k, err);
            if (st == US_OK) us_sha256_add(h, buf, k);
        }
        us_file_close(&f);
    }
    if (st == US_OK) us_sha256_hex(h, out);
    us_sha256_free(h);
    us_free(buf);
    return st;
}

/* ---- opening ---- */

/* A head is never invented (case S10): said where the configuration wants one of its own and there is none. */
static void note_head(const job *j) {
    const us_json_doc *d = &j->ck->config;
    bool tied = j->s->family->tied;
    us_json_ref t = us_json_get(d, j->s->text_config, "tie_word_embeddings");
    if (t == US_JSON_NO) t = us_json_get(d, 0, "tie_word_embeddings");
    if (t != US_JSON_NO && !us_json_bool(d, t, &tied)) return;
    for (size_t i = 0; i < j->ck->n_tensors; i++) {
        if (j->s->roles[i].part == US_PART_HEAD) return;
    }
    if (!tied) us_note(j->ctx, "note-head", "the configuration says that the output head is not tied to the embedding, but there is no head; copied as it is, none is invented");
}

static us_status open_source(job *j, us_err *err) {
    const us_proxy_request *r = j->r;
    unsigned flags = (r->follow_links ? US_CK_FOLLOW_LINKS : 0u) | (r->headers_only && r->dry_run ? US_CK_HEADERS_ONLY : 0u);
    j->link_flags = r->follow_links ? US_FS_FOLLOW_LINKS : 0;
    US_TRY(us_checkpoint_open(j->ctx, r->src, flags, &j->ck, err));
    US_TRY(us_structure_resolve(j->ctx, j->ck, &j->s, err));
    if (!j->s->n_blocks) {
        us_status st = us_fail(err, US_E_REFUSED, "dense", "the model has no MoE layers, there are no experts to choose from");
        us_err_where(err, "%s", r->src);
        return st;
    }
    note_head(j);
    us_plan_options o = {.layers = r->layers, .drop_mtp = r->drop_mtp};
    return us_plan_scope(j->ctx, j->s, &o, &j->cut, &j->active, err);
}

/* ---- sizes ---- */

static int cmp_down(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* round(ratio * E), moved to the nearest legal size; of two equally near the larger. */
static us_status size_by_ratio(job *j, double ratio, uint32_t *out, us_err *err) {
    double e = j->s->n_experts, want = floor(ratio * e + 0.5);
    if (!(ratio > 0 && ratio <= 1)) return us_fail(err, US_E_REFUSED, "keep-ratio", "a keep ratio is above 0 and at most 1");
    int64_t w = (int64_t)want;
    us_err first = {0};
    us_status st = us_structure_check_size(j->s, w, &first);
    for (int64_t d = 0; d <= (int64_t)j->s->n_experts; d++) {
        for (int sign = 1; sign >= -1; sign -= 2) {
            if (us_structure_check_size(j->s, w + sign * d, NULL) != US_OK) continue;
            *out = (uint32_t)(w + sign * d);
            us_note(j->ctx, "note-size", "keep ratio %g of %u experts: %u are kept%s", ratio, j->s->n_experts, *out,
                    *out == w ? "" : ", the nearest legal size");
            return US_OK;
        }
    }
    if (err) *err = first;
    return st;
}

static us_status choose_sizes(job *j, uint32_t **out, size_t *n, us_err *err) {
    const us_proxy_request *r = j->r;
    size_t count = r->n_sizes ? r->n_sizes : 1;
    uint32_t *sizes = us_malloc(count * sizeof *sizes);
    if (!sizes) return us_fail_nomem(err, "planning");
    us_status st = US_OK;
    for (size_t i = 0; i < r->n_sizes && st == US_OK; i++) {
        st = us_structure_check_size(j->s, r->sizes[i], err);
        if (st == US_OK) sizes[i] = (uint32_t)r->sizes[i];
    }
    if (!r->n_sizes && r->keep_ratio != 0) st = size_by_ratio(j, r->keep_ratio, &sizes[0], err);
    else if (!r->n_sizes) sizes[0] = 0; /* as the list says */
    if (st == US_OK) qsort(sizes, count, sizeof *sizes, cmp_down);
    for (size_t i = 1; i < count && st == US_OK; i++) {
        if (sizes[i] == sizes[i - 1]) st = us_fail(err, US_E_REFUSED, "size-twice", "%u experts are asked for twice", sizes[i]);
    }
    if (st != US_OK) {
        us_free(sizes);
        return st;
    }
    *out = sizes;
    *n = count;
    return US_OK;
}

/* ---- plans ---- */

static us_status make_plans(job *j, us_err *err) {
    const us_proxy_request *r = j->r;
    us_plan_options o = {.layers = r->layers, .drop_mtp = r->drop_mtp};
    uint32_t *sizes = NULL;
    size_t n = 0;
    US_TRY(choose_sizes(j, &sizes, &n, err));
    us_status st = us_lists_choose(j->ctx, j->s, r, sizes, n, j->active, &j->lists, err);
    us_free(sizes);
    US_TRY(st);
    j->plans = us_calloc(n, sizeof(us_plan *));
    if (!j->plans) return us_fail_nomem(err, "planning");
    for (size_t i = 0; i < n; i++) US_TRY(us_plan_create(j->ctx, j->s, &j->lists.keeps[i], &o, &j->plans[i], err));
    j->args = (us_manifest_arguments){.select = j->lists.method, .layers = r->layers, .seed = us_ctx_seed(j->ctx), .drop_mtp = r->drop_mtp,
                                      .protect = r->protect, .n_protect = r->n_protect,
                                      .selection = j->lists.selection.blocks ? &j->lists.selection : NULL};
    if (j->lists.file) {
        US_TRY(file_sha(&j->lists.file, 1, j->list_sha, err));
        j->args.list_sha256 = j->list_sha;
    }
    if (r->n_routing) {
        US_TRY(file_sha(r->routing, r->n_routing, j->routing_sha, err));
        j->args.routing_sha256 = j->routing_sha;
    }
    return US_OK;
}

/* Path of rung i below `root`; root itself when there is one. */
static us_status rung_folder(const job *j, const char *root, size_t i, us_buf *out, us_err *err) {
    us_buf_clear(out);
    us_buf_z(out, root);
    if (j->lists.n > 1) us_buf_printf(out, "/e%u", j->plans[i]->keep->n);
    us_buf_text(out);
    return us_buf_status(out, err, "planning");
}

static us_status make_report(job *j, const us_hashes *hashes, us_err *err) {
    us_buf folder = {0};
    us_status st = US_OK;
    us_buf *b = &j->report->json;
    us_buf_z(b, "{\"source\": ");
    us_buf_json(b, us_str_z(j->r->src));
    us_buf_printf(b, ", \"dry_run\": %s, \"select\": \"%s\", \"experts\": %u, \"top_k\": %u, \"rungs\": [", j->r->dry_run ? "true" : "false", j->lists.method,
                  j->s->n_experts, j->s->top_k);
    for (size_t i = 0; i < j->lists.n && st == US_OK; i++) {
        st = rung_folder(j, j->target.dst, i, &folder, err);
        us_buf_z(b, i ? ", " : "");
        us_report_rung(j->report, j->plans[i], us_buf_text(&folder), hashes ? &hashes[i] : NULL);
        if (j->args.selection) us_selection_text(&j->report->text, j->args.selection, j->s, j->plans[i]->keep, j->active);
    }
    us_buf_c(b, ']');
    us_report_advice(j->report, j->s, (const us_plan *const *)j->plans, j->lists.n);
    us_buf_z(b, "}");
    us_buf_free(&folder);
    if (st == US_OK) st = us_buf_status(b, err, "reporting");
    if (st == US_OK) st = us_buf_status(&j->report->text, err, "reporting");
    return st;
}

/* ---- writing ---- */

static us_status check_space(const job *j, us_err *err) {
    uint64_t need = 0, free_bytes = 0, have = 0;
    us_arena a = {0};
    us_fs_entry *e = NULL;
    size_t n = 0;
    char parent[4096];
    for (size_t i = 0; i < j->lists.n; i++) need += us_plan_folder_bytes(j->plans[i]);
    if (j->target.partial_exists && us_fs_walk(j->target.partial, 0, NULL, &a, &e, &n, NULL) == US_OK) {
        for (size_t i = 0; i < n; i++) have += e[i].size;
    }
    us_arena_free(&a);
    /* the nearest folder above that exists */
    size_t len = strlen(j->target.dst);
    if (len >= sizeof parent) return US_OK;
    memcpy(parent, j->target.dst, len + 1);
    do {
        char *slash = strrchr(parent, '/');
        if (!slash) memcpy(parent, ".", 2);
        else if (slash == parent) parent[1] = 0;
        else *slash = 0;
    } while (us_fs_kind_of(parent) != US_FS_FOLDER && strcmp(parent, ".") != 0 && strcmp(parent, "/") != 0);
    US_TRY(us_fs_free_bytes(parent, &free_bytes, err));
    if (need <= free_bytes || need - free_bytes <= have) return US_OK;
    char x[24], y[24];
    us_status st = us_fail(err, US_E_REFUSED, "no-space", "%s are needed, %s are free", us_format_bytes(need - have, x), us_format_bytes(free_bytes, y));
    us_err_where(err, "%s", parent);
    us_err_todo(err, "make room, or write elsewhere");
    return st;
}

static us_status write_text(const char *folder, const char *name, const us_buf *text, us_err *err) {
    us_buf path = {0};
    us_buf_printf(&path, "%s/%s", folder, name);
    us_buf_text(&path);
    us_status st = us_buf_status(&path, err, "writing");
    if (st == US_OK) st = us_fs_write_atomic(path.p, us_buf_view(text), err);
    us_buf_free(&path);
    return st;
}

static us_status write_rung(job *j, size_t i, us_hashes *h, us_err *err) {
    us_buf folder = {0}, records = {0}, manifest = {0};
    US_TRY(us_hashes_create(j->plans[i], h, err));
    us_status st = rung_folder(j, j->target.out, i, &folder, err);
    if (st == US_OK) st = rung_folder(j, j->target.done, i, &records, err);
    if (st == US_OK) st = us_fs_mkdirs(folder.p, err);
    if (st == US_OK) st = us_fs_mkdirs(records.p, err);
    if (st == US_OK) st = us_write_folder(j->ctx, j->plans[i], folder.p, records.p, j->fingerprint, j->link_flags, h, err);
    if (st == US_OK) st = us_manifest_write(j->plans[i], &j->args, j->lists.tree, j->fingerprint, h, &manifest, err);
    if (st == US_OK) st = write_text(folder.p, US_MANIFEST_NAME, &manifest, err);
    us_buf_free(&folder);
    us_buf_free(&records);
    us_buf_free(&manifest);
    return st;
}

static us_status write_ladder(job *j, us_err *err) {
    us_buf b = {0};
    if (j->lists.n < 2) return US_OK;
    us_buf_printf(&b, "{\n  \"format\": \"understudy-ladder\",\n  \"tool\": \"understudy %s\",\n  \"fingerprint\": \"%s\",\n  \"rungs\": [", US_VERSION, j->fingerprint);
    for (size_t i = 0; i < j->lists.n; i++) us_buf_printf(&b, "%s\"e%u\"", i ? ", " : "", j->plans[i]->keep->n);
    us_buf_z(&b, "]\n}\n");
    us_status st = us_buf_status(&b, err, "writing");
    if (st == US_OK) st = write_text(j->target.out, US_LADDER_NAME, &b, err);
    us_buf_free(&b);
    return st;
}

/* Does a file below out/ belong to the result? Others are remains of a killed run. */
static bool belongs(void *user, us_str name) {
    const job *j = user;
    if (j->lists.n == 1) return us_write_makes(j->plans[0], name);
    if (us_str_eqz(name, US_LADDER_NAME)) return true;
    for (size_t i = 0; i < j->lists.n; i++) {
        us_buf b = {0};
        us_buf_printf(&b, "e%u/", j->plans[i]->keep->n);
        us_str prefix = us_buf_view(&b);
        bool in = us_str_starts(name, prefix) && us_write_makes(j->plans[i], us_str_sub(name, prefix.n, name.n));
        us_buf_free(&b);
        if (in) return true;
    }
    return false;
}

static us_status write_all(job *j, us_hashes *hashes, us_err *err) {
    uint64_t total = 0;
    for (size_t i = 0; i < j->lists.n; i++) total += j->plans[i]->total_bytes;
    us_status st = us_target_begin(&j->target, j->fingerprint, j->r->force, err);
    us_progress_begin(j->ctx, "writing", "B", total);
    for (size_t i = 0; i < j->lists.n && st == US_OK; i++) st = write_rung(j, i, &hashes[i], err);
    us_progress_end(j->ctx);
    if (st == US_OK) st = write_ladder(j, err);
    if (st == US_OK) st = make_report(j, hashes, err); /* before the result is put in place: nothing may fail after it */
    if (st == US_OK) st = us_target_finish(&j->target, belongs, j, err);
    if (st == US_E_CANCELLED) us_err_todo(err, "run the same command again: it goes on where it stopped");
    return st;
}

static us_status write_and_report(job *j, us_err *err) {
    us_hashes *hashes = us_calloc(j->lists.n, sizeof *hashes);
    if (!hashes) return us_fail_nomem(err, "writing");
    us_status st = write_all(j, hashes, err);
    for (size_t i = 0; i < j->lists.n; i++) us_hashes_free(&hashes[i]);
    us_free(hashes);
    return st;
}

static us_status run(job *j, us_err *err) {
    US_TRY(us_report_create(&j->report, err));
    US_TRY(us_target_open(j->r->src, j->r->dst, &j->target, err));
    j->target_open = true;
    US_TRY(open_source(j, err));
    US_TRY(make_plans(j, err));
    US_TRY(us_manifest_fingerprint((const us_plan *const *)j->plans, j->lists.n, &j->args, j->lists.tree, j->fingerprint, err));
    if (j->r->dry_run) return make_report(j, NULL, err);
    if (us_target_finished(&j->target, j->fingerprint)) { /* killed between putting in place and cleaning up */
        US_TRY(make_report(j, NULL, err));
        us_target_clean(&j->target);
        return US_OK;
    }
    US_TRY(us_target_check(&j->target, j->r->force, err));
    US_TRY(check_space(j, err));
    return write_and_report(j, err);
}

us_status us_proxy_make(us_ctx *ctx, const us_proxy_request *r, us_report **out, us_err *err) {
    job j = {.ctx = ctx, .r = r, .target = {.lock = -1}};
    us_status st = run(&j, err);
    for (size_t i = 0; j.plans && i < j.lists.n; i++) us_plan_free(j.plans[i]);
    us_free(j.plans);
    us_lists_free(&j.lists);
    us_layer_cut_free(&j.cut);
    us_free(j.active);
    if (j.target_open) us_target_close(&j.target);
    us_structure_free(j.s);
    us_checkpoint_free(j.ck);
    if (st == US_OK) *out = j.report;
    else us_report_free(j.report);
    return st;
}
