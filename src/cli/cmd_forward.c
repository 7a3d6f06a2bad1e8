/* `understudy forward`: logits and layer tensors of given token ids, by the double-precision oracle. */
#include <string.h>

#include "cli/cli.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "model/oracle.h"

/* Token ids [B][lengths]. */
typedef struct batch {
    int64_t *ids;
    size_t *start; /* B + 1 offsets into ids */
    size_t B;
} batch;

static void batch_free(batch *b) {
    us_free(b->ids);
    us_free(b->start);
}

static us_status batch_alloc(batch *b, size_t n_ids, size_t B, us_err *err) {
    b->ids = us_calloc(n_ids ? n_ids : 1, sizeof *b->ids);
    b->start = us_calloc(B + 1, sizeof *b->start);
    b->B = B;
    return b->ids && b->start ? US_OK : us_fail_nomem(err, "reading token ids");
}

static us_status read_npy_ids(us_ctx *ctx, const char *path, batch *b, us_err *err) {
    us_npy_set set = {0};
    US_TRY(us_npy_open(ctx, path, true, 1u << 30, &set, err));
    const us_npy *a = &set.arrays[0];
    us_status s = US_OK;
    if (set.n != 1 || a->rank < 1 || a->rank > 2) s = us_fail(err, US_E_FORMAT, "shape", "token ids must be one array of shape [T] or [B, T]");
    size_t B = a->rank == 2 ? (size_t)a->shape[0] : 1;
    if (s == US_OK) s = batch_alloc(b, (size_t)a->count, B, err);
    for (uint64_t i = 0; s == US_OK && i < a->count; i++)
        if (!us_npy_i64(a, i, &b->ids[i])) s = us_fail(err, US_E_FORMAT, "type", "token ids must be integers");
    for (size_t i = 0; s == US_OK && i <= B; i++) b->start[i] = B ? i * (size_t)(a->count / B) : 0;
    us_npy_set_free(&set);
    return s;
}

static us_status read_json_ids(const char *path, batch *b, us_err *err) {
    char *text;
    size_t n, total = 0, at = 0, row = 0;
    us_json_doc d;
    US_TRY(us_fs_read_all(path, (size_t)1 << 30, &text, &n, err));
    US_TRY(us_json_doc_take(&d, text, n, 0, err));
    us_status s = US_OK;
    bool nested = us_json_type_of(&d, us_json_first(&d, 0)) == US_JSON_ARRAY;
    if (us_json_type_of(&d, 0) != US_JSON_ARRAY) s = us_fail(err, US_E_FORMAT, "type", "token ids must be a list, or a list of lists");
    for (us_json_ref r = us_json_first(&d, 0); r != US_JSON_NO; r = us_json_next(&d, 0, r)) total += nested ? us_json_count(&d, r) : 1;
    if (s == US_OK) s = batch_alloc(b, total, nested ? us_json_count(&d, 0) : 1, err);
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

/* ---- collecting the answer ---- */

typedef struct out_tensor {
    us_st_tensor t;
    char name[64];
    uint64_t shape[3];
    char *data;
} out_tensor;

typedef struct answer {
    out_tensor *tensors;
    size_t n, cap;
    size_t b, B, T; /* sequence at hand */
    us_status status;
} answer;

/* The tensor `name` of shape [B, T, cols], made on first use. */
static out_tensor *tensor(answer *a, const char *name, us_dtype dtype, size_t cols) {
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->tensors[i].name, name) == 0) return &a->tensors[i];
    if (!us_grow(&a->tensors, &a->cap, a->n + 1, sizeof *a->tensors)) return a->status = US_E_NOMEM, NULL;
    out_tensor *t = &a->tensors[a->n];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->shape[0] = a->B;
    t->shape[1] = a->T;
    t->shape[2] = cols;
    t->t.dtype = dtype;
    t->data = us_calloc(a->B * a->T * cols, 4);
    if (!t->data) return a->status = US_E_NOMEM, NULL;
    a->n++;
    return t;
}

static void put(answer *a, const char *name, const double *x, size_t rows, size_t cols) {
    out_tensor *t = tensor(a, name, US_DTYPE_F32, cols);
    for (size_t i = 0; t && i < rows * cols; i++) {
        float f = (float)x[i];
        memcpy(t->data + (a->b * a->T * cols + i) * 4, &f, 4);
    }
}

static void on_layer(void *user, uint32_t l, const char *what, const double *x, size_t rows, size_t cols) {
    char name[64];
    snprintf(name, sizeof name, "layer.%u.%s", l, what);
    put(user, name, x, rows, cols);
}

static void on_route(void *user, uint32_t l, const uint32_t *experts, const double *weights, size_t rows, size_t k) {
    answer *a = user;
    char name[64];
    snprintf(name, sizeof name, "layer.%u.experts", l);
    out_tensor *t = tensor(a, name, US_DTYPE_I32, k);
    for (size_t i = 0; t && i < rows * k; i++) {
        int32_t e = (int32_t)experts[i];
        memcpy(t->data + (a->b * a->T * k + i) * 4, &e, 4);
    }
    snprintf(name, sizeof name, "layer.%u.weights", l);
    put(a, name, weights, rows, k);
}

static us_status write_answer(answer *a, const char *path, us_err *err) {
    us_buf out = {0};
    us_st_tensor *list = us_calloc(a->n, sizeof *list);
    if (!list) return us_fail_nomem(err, "writing the answer");
    uint64_t at = 0;
    for (size_t i = 0; i < a->n; i++) {
        out_tensor *t = &a->tensors[i];
        t->t.name = us_str_z(t->name);
        t->t.rank = 3;
        t->t.shape = t->shape;
        t->t.begin = at;
        at += t->shape[0] * t->shape[1] * t->shape[2] * 4;
        t->t.end = at;
        list[i] = t->t;
    }
    us_status s = us_st_write_header(&out, list, a->n, NULL, 0, err);
    for (size_t i = 0; s == US_OK && i < a->n; i++) us_buf_add(&out, a->tensors[i].data, (size_t)(list[i].end - list[i].begin));
    if (s == US_OK) s = us_buf_status(&out, err, "writing the answer");
    if (s == US_OK) s = us_fs_write_atomic(path, us_buf_view(&out), err);
    us_buf_free(&out);
    us_free(list);
    return s;
}

static us_status run_batch(us_oracle *o, const batch *b, bool layers, answer *a, us_err *err) {
    size_t longest = 0, V = us_oracle_recipe(o)->V;
    for (size_t i = 0; i < b->B; i++) longest = b->start[i + 1] - b->start[i] > longest ? b->start[i + 1] - b->start[i] : longest;
    a->B = b->B;
    a->T = longest;
    double *logits = us_calloc(longest ? longest * V : 1, sizeof *logits);
    if (!logits) return us_fail_nomem(err, "running the oracle");
    us_status s = US_OK;
    us_oracle_taps taps = {on_layer, on_route, a};
    for (a->b = 0; s == US_OK && a->b < b->B; a->b++) {
        size_t T = b->start[a->b + 1] - b->start[a->b];
        s = us_oracle_forward(o, b->ids + b->start[a->b], T, layers ? &taps : NULL, logits, err);
        if (s != US_OK) us_err_where(err, "sequence %zu", a->b);
        else put(a, "logits", logits, T, V);
        if (s == US_OK && a->status != US_OK) s = us_fail_nomem(err, "keeping the layer tensors");
    }
    us_free(logits);
    return s;
}

static us_status run(us_cli *c, us_err *err) {
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    us_oracle *o = NULL;
    batch b = {0};
    answer a = {0};
    us_status s;
    const char *ids = us_cli_string(c, "ids", NULL), *out = us_cli_string(c, "out", NULL), *dtype = us_cli_string(c, "dtype", "ref");
    if (!ids || !out) return us_cli_usage(c, err, "--ids FILE and --out FILE are needed");
    if (strcmp(dtype, "ref") != 0) return us_cli_usage(c, err, "--dtype %s: only ref (double precision) is there so far", dtype);
    US_GO(us_checkpoint_open(us_cli_ctx(c), us_cli_arg(c, 0), 0, &ck, err));
    US_GO(us_structure_resolve(us_cli_ctx(c), ck, &st, err));
    US_GO(us_oracle_open(us_cli_ctx(c), st, &o, err));
    size_t n = strlen(ids);
    bool npy = n > 4 && strcmp(ids + n - 4, ".npy") == 0;
    US_GO(npy ? read_npy_ids(us_cli_ctx(c), ids, &b, err) : read_json_ids(ids, &b, err));
    US_GO(run_batch(o, &b, us_cli_flag(c, "layers"), &a, err));
    US_GO(write_answer(&a, out, err));
    if (us_cli_json(c)) fprintf(us_cli_out(c), "{\"sequences\": %zu, \"tensors\": %zu}\n", b.B, a.n);
done:
    for (size_t i = 0; i < a.n; i++) us_free(a.tensors[i].data);
    us_free(a.tensors);
    batch_free(&b);
    us_oracle_free(o);
    us_structure_free(st);
    us_checkpoint_free(ck);
    return s;
}

static const us_option options[] = {
    {"ids", 0, US_OPT_STRING, "FILE", "token ids: .npy of integers [B, T] or JSON [[1, 2], [3]]", false},
    {"out", 'o', US_OPT_STRING, "FILE", "safetensors file to write: logits [B, T, V], padded with zeros behind shorter sequences", false},
    {"dtype", 0, US_OPT_STRING, "TYPE", "ref: double precision, the reference (default and so far the only one)", false},
    {"layers", 0, US_OPT_FLAG, NULL, "also write layer.N.attn, .ffn, .out, .experts (ascending) and .weights", false},
    {0},
};

const us_command us_cmd_forward = {
    .name = "forward",
    .summary = "logits and layer tensors of given token ids (the oracle)",
    .usage = "CKPT --ids FILE --out FILE.safetensors [--layers]",
    .description = "Runs the checkpoint on the token ids in double precision, one layer's weights in memory at a time, and writes what every layer "
                   "computed. Dumps of other engines can be held against it.",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
