/* See texts.h. */
#include "cli/texts.h"

#include <string.h>

#include "base/alloc.h"
#include "io/fs.h"
#include "io/json.h"

enum { TEXT_MAX = 1 << 30 };

us_status us_texts_open(us_texts *t, const char *path, us_err *err) {
    us_buf file = {0};
    us_buf_z(&file, path);
    us_buf_z(&file, "/tokenizer.json");
    const char *name = us_buf_text(&file);
    bool there = name && us_fs_exists(name);
    us_buf_free(&file);
    if (!there) return US_OK;
    US_TRY(us_tokenizer_load(path, &t->tok, err));
    return us_tok_scratch_create(t->tok, &t->scratch, err);
}

void us_texts_free(us_texts *t) {
    us_ids_free(&t->in);
    us_tok_ids_free(&t->piece);
    us_tok_scratch_free(t->scratch);
    us_tokenizer_free(t->tok);
}

us_status us_texts_add(us_texts *t, const char *text, size_t n, us_err *err) {
    if (!t->tok) {
        us_fail(err, US_E_REFUSED, "tokenizer-missing", "text needs the checkpoint's tokenizer.json, which is not there");
        return us_err_todo(err, "give token ids by --ids FILE");
    }
    US_TRY(us_tokenizer_encode(t->tok, t->scratch, text, n, 0, &t->piece, err));
    size_t have = t->in.B ? t->in.start[t->in.B] : 0;
    if (!us_grow(&t->in.start, &t->start_cap, t->in.B + 2, sizeof *t->in.start) || !us_grow(&t->in.ids, &t->ids_cap, have + t->piece.n + 1, sizeof *t->in.ids))
        return us_fail_nomem(err, "reading texts");
    for (size_t i = 0; i < t->piece.n; i++) t->in.ids[have + i] = t->piece.ids[i];
    t->in.start[t->in.B++] = have;
    t->in.start[t->in.B] = have + t->piece.n;
    t->bytes += n;
    return US_OK;
}

static us_status add_lines(us_texts *t, us_str all, us_err *err) {
    size_t line = 1;
    us_status s = US_OK;
    for (size_t at = 0; s == US_OK && at < all.n; line++) {
        size_t end = us_str_find(all, '\n', at);
        if (end > all.n) end = all.n;
        us_json_doc d = {0};
        if (end > at) {
            s = us_json_doc_parse(&d, us_str_sub(all, at, end), 0, err);
            us_str text = s == US_OK ? us_json_string(&d, us_json_get(&d, 0, "text")) : (us_str){0};
            if (s == US_OK && !text.p) s = us_fail(err, US_E_FORMAT, "line", "the line is no object with a string \"text\"");
            if (s == US_OK) s = us_texts_add(t, text.p, text.n, err);
            us_json_doc_free(&d);
        }
        at = end + 1;
    }
    return s == US_OK ? s : us_err_where(err, "line %zu", line - 1);
}

us_status us_texts_add_file(us_texts *t, const char *path, bool jsonl, us_err *err) {
    us_buf in = {0};
    char *bytes = NULL;
    size_t n = 0;
    us_status s = US_OK;
    if (strcmp(path, "-") == 0) {
        char chunk[1 << 14];
        size_t k;
        while ((k = fread(chunk, 1, sizeof chunk, stdin)) > 0 && in.n <= TEXT_MAX) us_buf_add(&in, chunk, k);
        s = in.n > TEXT_MAX ? us_fail(err, US_E_LIMIT, "limit", "more than 1 GiB of text") : us_buf_status(&in, err, "reading texts");
    } else {
        s = us_fs_read_all(path, TEXT_MAX, &bytes, &n, err);
    }
    us_str all = bytes ? (us_str){bytes, n} : us_buf_view(&in);
    if (s == US_OK) s = jsonl ? add_lines(t, all, err) : us_texts_add(t, all.p ? all.p : "", all.n, err);
    if (s != US_OK && !err->where[0]) us_err_where(err, "%s", path);
    us_free(bytes);
    us_buf_free(&in);
    return s;
}

us_status us_texts_read(us_texts *t, us_cli *c, int first, us_err *err) {
    const char *ids = us_cli_string(c, "ids", NULL);
    bool jsonl = us_cli_flag(c, "jsonl");
    if (ids && us_cli_n_args(c) > first) return us_cli_usage(c, err, "--ids and files of text exclude each other");
    if (ids) return us_ids_read(us_cli_ctx(c), ids, &t->in, err);
    if (us_cli_n_args(c) <= first) return us_texts_add_file(t, "-", jsonl, err);
    for (int i = first; i < us_cli_n_args(c); i++) US_TRY(us_texts_add_file(t, us_cli_arg(c, i), jsonl, err));
    return US_OK;
}

us_status us_cli_model_open(us_cli *c, us_cli_model *m, us_err *err) {
    us_ctx *ctx = us_cli_ctx(c);
    const char *path = us_cli_arg(c, 0), *dtype = us_cli_string(c, "dtype", "bf16");
    us_engine_options o = {.exact = us_cli_flag(c, "exact"), .stream = us_cli_flag(c, "stream"), .compute = US_COMPUTE_BF16};
    if (strcmp(dtype, "f32") == 0) o.compute = US_COMPUTE_F32;
    else if (strcmp(dtype, "bf16") != 0) return us_cli_usage(c, err, "--dtype %s: it is f32 or bf16", dtype);
    US_TRY(us_checkpoint_open(ctx, path, 0, &m->ck, err));
    US_TRY(us_structure_resolve(ctx, m->ck, &m->st, err));
    US_TRY(us_texts_open(&m->texts, path, err));
    return us_engine_open(ctx, m->st, &o, &m->e, err);
}

void us_cli_model_close(us_cli_model *m) {
    us_engine_free(m->e);
    us_texts_free(&m->texts);
    us_structure_free(m->st);
    us_checkpoint_free(m->ck);
}
