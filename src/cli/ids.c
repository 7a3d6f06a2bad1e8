/* See ids.h. */
#include "cli/ids.h"

#include <string.h>

#include "base/alloc.h"
#include "io/fs.h"
#include "io/json.h"
#include "io/npy.h"

void us_ids_free(us_ids *b) {
    us_free(b->ids);
    us_free(b->start);
}

static us_status ids_alloc(us_ids *b, size_t n_ids, size_t B, us_err *err) {
    b->ids = us_calloc(n_ids ? n_ids : 1, sizeof *b->ids);
    b->start = us_calloc(B + 1, sizeof *b->start);
    b->B = B;
    return b->ids && b->start ? US_OK : us_fail_nomem(err, "reading token ids");
}

static us_status read_npy_ids(us_ctx *ctx, const char *path, us_ids *b, us_err *err) {
    us_npy_set set = {0};
    US_TRY(us_npy_open(ctx, path, true, 1u << 30, &set, err));
    const us_npy *a = &set.arrays[0];
    us_status s = US_OK;
    if (set.n != 1 || a->rank < 1 || a->rank > 2) s = us_fail(err, US_E_FORMAT, "shape", "token ids must be one array of shape [T] or [B, T]");
    size_t B = a->rank == 2 ? (size_t)a->shape[0] : 1;
    if (s == US_OK) s = ids_alloc(b, (size_t)a->count, B, err);
    for (uint64_t i = 0; s == US_OK && i < a->count; i++)
        if (!us_npy_i64(a, i, &b->ids[i])) s = us_fail(err, US_E_FORMAT, "type", "token ids must be integers");
    for (size_t i = 0; s == US_OK && i <= B; i++) b->start[i] = B ? i * (size_t)(a->count / B) : 0;
    us_npy_set_free(&set);
    return s;
}

static us_status read_json_ids(const char *path, us_ids *b, us_err *err) {
    char *text;
    size_t n, total = 0, at = 0, row = 0;
    us_json_doc d;
    US_TRY(us_fs_read_all(path, (size_t)1 << 30, &text, &n, err));
    US_TRY(us_json_doc_take(&d, text, n, 0, err));
    us_status s = US_OK;
    bool nested = us_json_type_of(&d, us_json_first(&d, 0)) == US_JSON_ARRAY;
    if (us_json_type_of(&d, 0) != US_JSON_ARRAY) s = us_fail(err, US_E_FORMAT, "type", "token ids must be a list, or a list of lists");
    for (us_json_ref r = us_json_first(&d, 0); r != US_JSON_NO; r = us_json_next(&d, 0, r)) total += nested ? us_json_count(&d, r) : 1;
    if (s == US_OK) s = ids_alloc(b, total, nested ? us_json_count(&d, 0) : 1, err);
    for (us_json_ref r = us_json_first(&d, 0); s == US_OK && r != US_JSON_NO; r = us_json_next(&d, 0, r)) {
        us_json_ref e = nested ? us_json_first(&d, r) : r;
        if (nested && us_json_type_of(&d, r) != US_JSON_ARRAY) s = us_fail(err, US_E_FORMAT, "type", "token ids must be a list of lists of integers");
        if (nested) b->start[row++] = at;
        for (; s == US_OK && e != US_JSON_NO; e = nested ? us_json_next(&d, r, e) : US_JSON_NO)
            if (!us_json_i64(&d, e, &b->ids[at++])) s = us_fail(err, US_E_FORMAT, "type", "token ids must be integers");
    }
    if (s == US_OK) b->start[b->B] = at;
    us_json_doc_free(&d);
    return s;
}

us_status us_ids_read(us_ctx *ctx, const char *path, us_ids *out, us_err *err) {
    size_t n = strlen(path);
    memset(out, 0, sizeof *out);
    us_status s = n > 4 && strcmp(path + n - 4, ".npy") == 0 ? read_npy_ids(ctx, path, out, err) : read_json_ids(path, out, err);
    if (s != US_OK) us_ids_free(out);
    return s;
}
