/* Opening a checkpoint folder: documents, shards, one table of tensors, the other files. See checkpoint.h. */
#define _GNU_SOURCE
#include "io/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { CONFIG_MAX = 16000000, INDEX_MAX = 512000000, NAMES_SHOWN = 3 };

typedef struct opening {
    us_ctx *ctx;
    us_checkpoint *c;
    unsigned flags;
    us_map shard_of; /* shard name -> index into c->shards */
    size_t cap_shards, cap_tensors;
    us_err *err;
} opening;

/* ---- documents ---- */

/* Classes of the scanner as this module's readers name them. */
static void rename_class(us_err *err) {
    if (!err) return;
    if (strcmp(err->cls, "utf8") == 0 || strcmp(err->cls, "trailing") == 0) memcpy(err->cls, "json", sizeof "json");
    if (strcmp(err->cls, "depth") == 0) memcpy(err->cls, "limit", sizeof "limit");
}

/* Parse a JSON file below the folder into d; a missing file leaves it empty. json_flags: only config.json may hold Infinity. */
static us_status read_doc(opening *o, const char *name, size_t max, unsigned json_flags, us_json_doc *d) {
    us_file f = {0};
    char *path = us_fs_join(&o->c->arena, o->c->path, name);
    if (!path) return us_fail_nomem(o->err, "opening a checkpoint");
    if (!us_fs_exists(path)) return US_OK;
    US_TRY(us_fs_open_beneath(o->c->path, us_str_z(name), o->flags & US_CK_FOLLOW_LINKS ? US_FS_FOLLOW_LINKS : 0, &f, o->err));
    us_status s = US_OK;
    char *text = NULL;
    if (f.size > max) s = us_fail(o->err, US_E_LIMIT, "limit", "the file has %llu bytes, at most %zu are read", (unsigned long long)f.size, max);
    else if (!(text = us_malloc((size_t)f.size + 1))) s = us_fail_nomem(o->err, "opening a checkpoint");
    else s = us_file_read(&f, 0, text, (size_t)f.size, o->err);
    size_t n = (size_t)f.size;
    us_file_close(&f);
    if (s != US_OK) us_free(text);
    else s = us_json_doc_take(d, text, n, json_flags, o->err);
    if (s == US_OK) return US_OK;
    rename_class(o->err);
    us_err_where(o->err, "%s", path);
    return s;
}

static us_status read_config(opening *o) {
    us_checkpoint *c = o->c;
    if (us_fs_kind_of(c->path) == US_FS_REGULAR) { /* a bare config.json */
        char *text;
        size_t n;
        US_TRY(us_fs_read_all(c->path, CONFIG_MAX, &text, &n, o->err));
        us_status s = us_json_doc_take(&c->config, text, n, US_JSON_INFINITY, o->err);
        if (s != US_OK) {
            rename_class(o->err);
            us_err_where(o->err, "%s", c->path);
            return s;
        }
    } else {
        US_TRY(read_doc(o, "config.json", CONFIG_MAX, US_JSON_INFINITY, &c->config));
    }
    if (c->config.n_nodes && us_json_type_of(&c->config, 0) != US_JSON_OBJECT) {
        us_fail(o->err, US_E_FORMAT, "type", "config.json is not a JSON object");
        us_err_where(o->err, "%s", c->path);
        return US_E_FORMAT;
    }
    return US_OK;
}

/* ---- shards ---- */

static us_status add_shard(opening *o, us_str name, uint32_t *index) {
    us_checkpoint *c = o->c;
    *index = us_map_get(&o->shard_of, name);
    if (*index != US_MAP_NONE) return US_OK;
    char *copy = us_arena_strndup(&c->arena, name.p, name.n);
    if (!copy || !us_grow(&c->shards, &o->cap_shards, c->n_shards + 1, sizeof *c->shards) ||
        !us_map_put(&o->shard_of, (us_str){copy, name.n}, (uint32_t)c->n_shards, NULL))
        return us_fail_nomem(o->err, "opening a checkpoint");
    memset(&c->shards[c->n_shards], 0, sizeof *c->shards);
    c->shards[c->n_shards].name = copy;
    *index = (uint32_t)c->n_shards++;
    return US_OK;
}

/* Every shard stays open; a large checkpoint may need more descriptors than the soft limit allows. */
static void raise_file_limit(size_t n_shards) {
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= n_shards + 64) return;
    rlim_t want = (rlim_t)n_shards + 64;
    lim.rlim_cur = lim.rlim_max != RLIM_INFINITY && want > lim.rlim_max ? lim.rlim_max : want;
    (void)setrlimit(RLIMIT_NOFILE, &lim);
}

/* How many tensors the index places in a shard. */
static uint64_t tensors_of_shard(const opening *o, const char *shard) {
    const us_json_doc *d = &o->c->index;
    uint64_t n = 0;
    us_json_ref map = d->n_nodes ? us_json_get(d, 0, "weight_map") : US_JSON_NO;
    if (us_json_type_of(d, map) != US_JSON_OBJECT) return 0;
    for (us_json_ref k = us_json_first(d, map); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, map, k);
        n += us_str_eqz(us_json_string(d, v), shard);
        k = us_json_next(d, map, v);
    }
    return n;
}

static us_status open_shard(opening *o, us_ck_shard *s) {
    us_status st = us_fs_open_beneath(o->c->path, us_str_z(s->name), o->flags & US_CK_FOLLOW_LINKS ? US_FS_FOLLOW_LINKS : 0, &s->file, o->err);
    if (st != US_OK) {
        if (o->err && (strcmp(o->err->cls, "missing") == 0 || strcmp(o->err->cls, "not-a-file") == 0)) {
            us_fail(o->err, US_E_FORMAT, "shard-missing", "a shard is not there, or is not a regular file; the index places %llu tensors in it",
                    (unsigned long long)tensors_of_shard(o, s->name));
            us_err_where(o->err, "%s", s->name);
            us_err_todo(o->err, "fetch the checkpoint again");
            return US_E_FORMAT;
        }
        if (o->err && (o->err->sys == EMFILE || o->err->sys == ENFILE))
            us_err_todo(o->err, "all %zu shards are kept open: raise the limit of open files (ulimit -Hn)", o->c->n_shards);
        return st;
    }
    return us_st_read(&s->file, o->flags & US_CK_HEADERS_ONLY ? US_ST_HEADERS_ONLY : 0, &s->header, o->err);
}

static int shard_order(const void *a, const void *b) {
    return strcmp(((const us_ck_shard *)a)->name, ((const us_ck_shard *)b)->name);
}

/* Sort by name and open each in that order, so that the first error is the same whatever order the index has. */
static us_status open_shards(opening *o) {
    us_checkpoint *c = o->c;
    if (c->n_shards > 0) qsort(c->shards, c->n_shards, sizeof *c->shards, shard_order);
    raise_file_limit(c->n_shards);
    us_progress_begin(o->ctx, "reading headers", "", c->n_shards);
    for (size_t i = 0; i < c->n_shards; i++) {
        US_TRY(us_ctx_check(o->ctx, o->err));
        if (!us_map_set(&o->shard_of, us_str_z(c->shards[i].name), (uint32_t)i)) return us_fail_nomem(o->err, "opening a checkpoint");
        US_TRY(open_shard(o, &c->shards[i]));
        us_progress_add(o->ctx, 1);
    }
    us_progress_end(o->ctx);
    return US_OK;
}

/* ---- which shards there are ---- */

static us_status index_fault(opening *o, const char *what) {
    us_fail(o->err, US_E_FORMAT, "index-type", "%s", what);
    us_err_where(o->err, "%s/model.safetensors.index.json", o->c->path);
    return US_E_FORMAT;
}

static us_status shards_of_index(opening *o) {
    us_json_doc *d = &o->c->index;
    us_json_ref map = us_json_get(d, 0, "weight_map");
    if (us_json_type_of(d, 0) != US_JSON_OBJECT || map == US_JSON_NO || us_json_type_of(d, map) != US_JSON_OBJECT)
        return index_fault(o, "the index has no object \"weight_map\"");
    if (us_json_count(d, map) == 0) return index_fault(o, "the index names no tensor");
    for (us_json_ref k = us_json_first(d, map); k != US_JSON_NO; k = us_json_next(d, map, k + 1)) {
        us_str name = us_json_string(d, k + 1);
        uint32_t shard;
        if (!name.p) return index_fault(o, "a value of \"weight_map\" is not a string");
        if (us_map_get(&o->shard_of, name) == US_MAP_NONE && !us_str_ends(name, US_LIT(".safetensors"))) {
            us_fail(o->err, US_E_FORMAT, "path", "a shard's name does not end in .safetensors");
            us_err_where(o->err, "%.*s", US_STR_ARG(name));
            return US_E_FORMAT;
        }
        US_TRY(add_shard(o, name, &shard));
    }
    return US_OK;
}

static bool top_level(const us_fs_entry *e) {
    return !strchr(e->name, '/');
}

static bool is_weight_file(const char *path) {
    static const char *const suffixes[] = {".safetensors", ".safetensors.index.json", ".bin.index.json", ".pth", ".pt",  ".ckpt",
                                           ".gguf",        ".h5",                     ".msgpack",        ".onnx"};
    static const char *const bins[] = {"pytorch_model", "consolidated", "adapter_model"};
    const char *slash = strrchr(path, '/');
    us_str name = us_str_z(slash ? slash + 1 : path);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (us_str_ends(name, us_str_z(suffixes[i]))) return true;
    for (size_t i = 0; i < sizeof bins / sizeof *bins; i++)
        if (us_str_starts(name, us_str_z(bins[i])) && us_str_ends(name, US_LIT(".bin"))) return true;
    return false;
}

static us_status shards_without_index(opening *o, const us_fs_entry *files, size_t n) {
    uint32_t shard;
    for (size_t i = 0; i < n; i++)
        if (strcmp(files[i].name, "model.safetensors") == 0) return add_shard(o, us_str_z(files[i].name), &shard);
    for (size_t i = 0; i < n; i++)
        if (top_level(&files[i]) && us_str_ends(us_str_z(files[i].name), US_LIT(".safetensors"))) US_TRY(add_shard(o, us_str_z(files[i].name), &shard));
    if (o->c->n_shards > 0) return US_OK;
    bool other_form = false;
    for (size_t i = 0; i < n; i++) other_form |= is_weight_file(files[i].name);
    us_fail(o->err, US_E_REFUSED, other_form ? "no-weights" : "mismatch",
            other_form ? "the folder holds weights, but no safetensors file" : "the folder holds no weights for its config.json");
    us_err_where(o->err, "%s", o->c->path);
    us_err_todo(o->err, other_form ? "convert the weights to safetensors first" : "fetch the checkpoint again");
    return US_E_REFUSED;
}

/* ---- the table of tensors ---- */

static us_status add_tensor(opening *o, uint32_t shard, const us_st_tensor *t) {
    us_checkpoint *c = o->c;
    if (!us_grow(&c->tensors, &o->cap_tensors, c->n_tensors + 1, sizeof *c->tensors)) return us_fail_nomem(o->err, "opening a checkpoint");
    c->tensors[c->n_tensors++] = (us_ck_tensor){t->name, t->dtype, t->rank, t->shape, shard, c->shards[shard].header.data_start + t->begin, t->end - t->begin};
    return US_OK;
}

static us_status take_indexed(opening *o) {
    us_checkpoint *c = o->c;
    us_json_doc *d = &c->index;
    us_json_ref map = us_json_get(d, 0, "weight_map");
    us_map place = {0}; /* tensor -> node of its shard's name */
    us_status s = us_map_reserve(&place, us_json_count(d, map)) ? US_OK : us_fail_nomem(o->err, "opening a checkpoint");
    for (us_json_ref k = us_json_first(d, map); s == US_OK && k != US_JSON_NO; k = us_json_next(d, map, k + 1))
        if (!us_map_put(&place, us_json_string(d, k), k + 1, NULL)) s = us_fail_nomem(o->err, "opening a checkpoint");
    for (uint32_t i = 0; s == US_OK && i < c->n_shards; i++)
        for (size_t j = 0; s == US_OK && j < c->shards[i].header.n_tensors; j++) {
            const us_st_tensor *t = &c->shards[i].header.tensors[j];
            uint32_t at = us_map_get(&place, t->name);
            if (at != US_MAP_NONE && us_map_get(&o->shard_of, us_json_string(d, at)) == i) s = add_tensor(o, i, t);
            else c->n_stale++;
        }
    us_map_free(&place);
    return s;
}

static int tensor_order(const void *a, const void *b) {
    return us_str_cmp(((const us_ck_tensor *)a)->name, ((const us_ck_tensor *)b)->name);
}

static us_status finish_table(opening *o) {
    us_checkpoint *c = o->c;
    if (c->n_tensors > 0) qsort(c->tensors, c->n_tensors, sizeof *c->tensors, tensor_order);
    if (!us_map_reserve(&c->by_name, c->n_tensors)) return us_fail_nomem(o->err, "opening a checkpoint");
    for (size_t i = 0; i < c->n_tensors; i++) {
        uint32_t old;
        if (!us_map_put(&c->by_name, c->tensors[i].name, (uint32_t)i, &old)) return us_fail_nomem(o->err, "opening a checkpoint");
        if (old == US_MAP_NONE) continue;
        us_fail(o->err, US_E_FORMAT, "tensor-twice", "two files hold the tensor \"%.*s\" and no index says which is right", US_STR_ARG(c->tensors[i].name));
        us_err_where(o->err, "%s and %s", c->shards[c->tensors[old].shard].name, c->shards[c->tensors[i].shard].name);
        us_err_todo(o->err, "move the stale file away, or add model.safetensors.index.json");
        return US_E_FORMAT;
    }
    return US_OK;
}

/* Every tensor of the map must lie in the shard that the map names. */
static us_status check_all_found(opening *o) {
    us_json_doc *d = &o->c->index;
    us_json_ref map = us_json_get(d, 0, "weight_map");
    for (us_json_ref k = us_json_first(d, map); k != US_JSON_NO; k = us_json_next(d, map, k + 1)) {
        if (us_map_get(&o->c->by_name, us_json_string(d, k)) != US_MAP_NONE) continue;
        us_fail(o->err, US_E_FORMAT, "tensor-missing", "the index places the tensor \"%.*s\" in a shard that does not hold it", US_STR_ARG(us_json_string(d, k)));
        us_err_where(o->err, "%.*s", US_STR_ARG(us_json_string(d, k + 1)));
        return US_E_FORMAT;
    }
    return US_OK;
}

static us_status read_tensors(opening *o) {
    us_checkpoint *c = o->c;
    if (c->index.n_nodes) {
        US_TRY(take_indexed(o));
        US_TRY(finish_table(o));
        return check_all_found(o);
    }
    for (uint32_t i = 0; i < c->n_shards; i++)
        for (size_t j = 0; j < c->shards[i].header.n_tensors; j++) US_TRY(add_tensor(o, i, &c->shards[i].header.tensors[j]));
    return finish_table(o);
}

/* ---- the other files ---- */

/* Files that are rewritten, not copied: documents that are edited, and the manifest of an earlier run. */
static bool is_rewritten(const char *name) {
    static const char *const names[] = {"config.json", "hf_quant_config.json", "model.safetensors.index.json", "understudy.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static us_status sort_files(opening *o, const us_fs_entry *files, size_t n) {
    us_checkpoint *c = o->c;
    c->others = us_arena_alloc(&c->arena, (n + 1) * sizeof *c->others);
    c->left_out = us_arena_alloc(&c->arena, (n + 1) * sizeof *c->left_out);
    if (!c->others || !c->left_out) return us_fail_nomem(o->err, "listing the folder");
    for (size_t i = 0; i < n; i++) {
        if (is_rewritten(files[i].name) || us_map_get(&o->shard_of, us_str_z(files[i].name)) != US_MAP_NONE) continue;
        if (is_weight_file(files[i].name) || files[i].kind != US_FS_REGULAR) c->left_out[c->n_left_out++] = files[i];
        else c->others[c->n_others++] = files[i];
    }
    return US_OK;
}

/* ---- notes ---- */

static void note_left_out(opening *o) {
    const us_checkpoint *c = o->c;
    if (!c->n_left_out) return;
    us_buf b = {0};
    for (size_t i = 0; i < c->n_left_out && i < NAMES_SHOWN; i++) us_buf_printf(&b, "%s%s", i ? ", " : "", c->left_out[i].name);
    if (c->n_left_out > NAMES_SHOWN) us_buf_printf(&b, " and %zu more", c->n_left_out - NAMES_SHOWN);
    us_note(o->ctx, "note-not-copied", "not part of the model, neither read nor copied: %s", us_buf_text(&b));
    us_buf_free(&b);
}

static void note_total_size(opening *o) {
    const us_checkpoint *c = o->c;
    if (!c->index.n_nodes) return;
    double said = -1;
    uint64_t total = 0;
    for (size_t i = 0; i < c->n_tensors; i++) total += c->tensors[i].bytes;
    us_json_double(&c->index, us_json_path(&c->index, 0, "metadata.total_size"), &said);
    if (said != (double)total) us_note(o->ctx, "note-total-size", "the index's total_size is missing or wrong: the tensors have %llu bytes", (unsigned long long)total);
}

/* ---- entry points ---- */

static us_status open_all(opening *o) {
    us_checkpoint *c = o->c;
    static const char *const skip[] = {".git", ".cache", NULL};
    us_fs_entry *files;
    size_t n;
    US_TRY(read_config(o));
    if (o->flags & US_CK_CONFIG_ONLY) return US_OK;
    if (us_fs_kind_of(c->path) != US_FS_FOLDER) {
        us_fail(o->err, US_E_INVAL, "missing", "a checkpoint is a folder");
        us_err_where(o->err, "%s", c->path);
        return US_E_INVAL;
    }
    US_TRY(read_doc(o, "model.safetensors.index.json", INDEX_MAX, 0, &c->index));
    US_TRY(read_doc(o, "hf_quant_config.json", CONFIG_MAX, 0, &c->hf_quant));
    if (c->index.n_nodes) US_TRY(shards_of_index(o));
    US_TRY(us_fs_walk(c->path, o->flags & US_CK_FOLLOW_LINKS ? US_FS_FOLLOW_LINKS : 0, skip, &c->arena, &files, &n, o->err));
    if (!c->index.n_nodes) US_TRY(shards_without_index(o, files, n));
    US_TRY(open_shards(o));
    US_TRY(read_tensors(o));
    US_TRY(sort_files(o, files, n));
    note_left_out(o);
    note_total_size(o);
    if (c->n_stale)
        us_note(o->ctx, "note-unlisted", "%zu %s of the shards %s ignored: the index does not place %s there", c->n_stale,
                c->n_stale == 1 ? "tensor" : "tensors", c->n_stale == 1 ? "is" : "are", c->n_stale == 1 ? "it" : "them");
    return US_OK;
}

us_status us_checkpoint_open(us_ctx *ctx, const char *path, unsigned flags, us_checkpoint **out, us_err *err) {
    opening o = {.ctx = ctx, .flags = flags, .err = err};
    o.c = us_calloc(1, sizeof *o.c);
    if (!o.c) return us_fail_nomem(err, "opening a checkpoint");
    us_status s = US_OK;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    o.c->path = us_arena_strndup(&o.c->arena, path, n);
    if (!o.c->path) s = us_fail_nomem(err, "opening a checkpoint");
    else if (us_fs_kind_of(o.c->path) == US_FS_NONE) {
        s = us_fail(err, US_E_IO, "missing", "there is no such file or folder");
        us_err_where(err, "%s", path);
    } else {
        s = open_all(&o);
    }
    us_map_free(&o.shard_of);
    if (s == US_OK) *out = o.c;
    else us_checkpoint_free(o.c);
    return s;
}

void us_checkpoint_free(us_checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n_shards; i++) {
        us_file_close(&c->shards[i].file);
        us_st_header_free(&c->shards[i].header);
    }
    us_free(c->shards);
    us_free(c->tensors);
    us_map_free(&c->by_name);
    us_json_doc_free(&c->config);
    us_json_doc_free(&c->index);
    us_json_doc_free(&c->hf_quant);
    us_arena_free(&c->arena);
    us_free(c);
}

const us_ck_tensor *us_ck_find(const us_checkpoint *c, us_str name) {
    uint32_t i = us_map_get(&c->by_name, name);
    return i == US_MAP_NONE ? NULL : &c->tensors[i];
}

us_status us_ck_read(const us_checkpoint *c, const us_ck_tensor *t, uint64_t from, void *dst, size_t n, us_err *err) {
    if (from > t->bytes || n > t->bytes - from) return us_fail(err, US_E_INVAL, "range", "a read beyond the end of the tensor \"%.*s\"", US_STR_ARG(t->name));
    return us_file_read(&c->shards[t->shard].file, t->offset + from, dst, n, err);
}
