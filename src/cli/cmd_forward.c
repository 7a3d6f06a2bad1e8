/* `understudy forward`: logits and layer tensors of given token ids, by the double-precision oracle or the fast engine. */
#include <string.h>

#include "cli/cli.h"
#include "cli/ids.h"
#include "io/safetensors.h"
#include "model/engine/engine.h"
#include "model/oracle.h"

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
    size_t B, T;         /* of the padded tensors */
    const us_ids *in;
    size_t b0;           /* the rows that arrive begin with sequence b0 */
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

/* Rows of 4-byte numbers, of the sequences from b0 on, to their places. */
static void put(answer *a, const char *name, us_dtype dtype, const void *x, size_t rows, size_t cols) {
    out_tensor *t = tensor(a, name, dtype, cols);
    for (size_t b = a->b0, done = 0; t && done < rows; b++) {
        size_t n = a->in->start[b + 1] - a->in->start[b];
        memcpy(t->data + b * a->T * cols * 4, (const char *)x + done * cols * 4, n * cols * 4);
        done += n;
    }
}

static void put_double(answer *a, const char *name, const double *x, size_t rows, size_t cols) {
    float *f = us_calloc(rows * cols + 1, sizeof *f);
    if (!f) {
        a->status = US_E_NOMEM;
        return;
    }
    for (size_t i = 0; i < rows * cols; i++) f[i] = (float)x[i];
    put(a, name, US_DTYPE_F32, f, rows, cols);
    us_free(f);
}

static const char *layer_name(char name[64], uint32_t l, const char *what) {
    snprintf(name, 64, "layer.%u.%s", l, what);
    return name;
}

static void oracle_layer(void *user, uint32_t l, const char *what, const double *x, size_t rows, size_t cols) {
    char name[64];
    put_double(user, layer_name(name, l, what), x, rows, cols);
}

static void oracle_route(void *user, uint32_t l, const uint32_t *experts, const double *weights, size_t rows, size_t k) {
    char name[64];
    put(user, layer_name(name, l, "experts"), US_DTYPE_I32, experts, rows, k);
    put_double(user, layer_name(name, l, "weights"), weights, rows, k);
}

static void engine_layer(void *user, uint32_t l, const char *what, const float *x, size_t rows, size_t cols) {
    char name[64];
    put(user, layer_name(name, l, what), US_DTYPE_F32, x, rows, cols);
}

static void engine_route(void *user, uint32_t l, const uint32_t *experts, const float *weights, const float *logits, size_t rows, size_t k, size_t n) {
    char name[64];
    (void)logits, (void)n;
    put(user, layer_name(name, l, "experts"), US_DTYPE_I32, experts, rows, k);
    put(user, layer_name(name, l, "weights"), US_DTYPE_F32, weights, rows, k);
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

static us_status run_oracle(us_cli *c, const us_structure *st, const us_ids *in, bool layers, answer *a, us_err *err) {
    us_oracle *o;
    US_TRY(us_oracle_open(us_cli_ctx(c), st, &o, err));
    size_t V = us_oracle_recipe(o)->V;
    us_oracle_taps taps = {oracle_layer, oracle_route, a};
    double *logits = us_calloc(a->T * V + 1, sizeof *logits);
    us_status s = logits ? US_OK : us_fail_nomem(err, "running the oracle");
    for (a->b0 = 0; s == US_OK && a->b0 < in->B; a->b0++) {
        size_t T = in->start[a->b0 + 1] - in->start[a->b0];
        s = us_oracle_forward(o, in->ids + in->start[a->b0], T, layers ? &taps : NULL, logits, err);
        if (s != US_OK) us_err_where(err, "sequence %zu", a->b0);
        else put_double(a, "logits", logits, T, V);
    }
    us_free(logits);
    us_oracle_free(o);
    return s;
}

/* All sequences in one call. */
static us_status run_engine(us_cli *c, const us_structure *st, us_engine_options options, const us_ids *in, bool layers, answer *a, us_err *err) {
    us_engine *e;
    US_TRY(us_engine_open(us_cli_ctx(c), st, &options, &e, err));
    size_t V = us_engine_recipe(e)->V, total = in->start[in->B];
    us_engine_taps taps = {engine_layer, engine_route, a};
    us_segment *segs = us_calloc(in->B ? in->B : 1, sizeof *segs);
    float *logits = us_calloc(total * V + 1, sizeof *logits);
    us_status s = segs && logits ? US_OK : us_fail_nomem(err, "running the model");
    for (size_t b = 0; s == US_OK && b < in->B; b++) {
        segs[b].ids = in->ids + in->start[b];
        segs[b].n = segs[b].want = in->start[b + 1] - in->start[b];
        s = us_seq_create(e, &segs[b].seq, err);
    }
    if (s == US_OK) s = us_engine_run(e, segs, in->B, layers ? &taps : NULL, logits, err);
    if (s == US_OK) put(a, "logits", US_DTYPE_F32, logits, total, V);
    for (size_t b = 0; segs && b < in->B; b++) us_seq_free(segs[b].seq);
    us_free(segs);
    us_free(logits);
    us_engine_free(e);
    return s;
}

static us_status run(us_cli *c, us_err *err) {
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    us_ids in = {0};
    answer a = {.in = &in};
    us_status s;
    const char *ids = us_cli_string(c, "ids", NULL), *out = us_cli_string(c, "out", NULL), *dtype = us_cli_string(c, "dtype", "ref");
    us_engine_options options = {.exact = us_cli_flag(c, "exact"), .stream = us_cli_flag(c, "stream")};
    bool ref = strcmp(dtype, "ref") == 0, layers = us_cli_flag(c, "layers");
    if (!ids || !out) return us_cli_usage(c, err, "--ids FILE and --out FILE are needed");
    if (strcmp(dtype, "bf16") == 0) options.compute = US_COMPUTE_BF16;
    else if (!ref && strcmp(dtype, "f32") != 0) return us_cli_usage(c, err, "--dtype %s: it is ref, f32 or bf16", dtype);
    US_GO(us_checkpoint_open(us_cli_ctx(c), us_cli_arg(c, 0), 0, &ck, err));
    US_GO(us_structure_resolve(us_cli_ctx(c), ck, &st, err));
    US_GO(us_ids_read(us_cli_ctx(c), ids, &in, err));
    a.B = in.B;
    for (size_t b = 0; b < in.B; b++) a.T = in.start[b + 1] - in.start[b] > a.T ? in.start[b + 1] - in.start[b] : a.T;
    US_GO(ref ? run_oracle(c, st, &in, layers, &a, err) : run_engine(c, st, options, &in, layers, &a, err));
    if (a.status != US_OK) {
        s = us_fail_nomem(err, "keeping the layer tensors");
        goto done;
    }
    US_GO(write_answer(&a, out, err));
    if (us_cli_json(c)) fprintf(us_cli_out(c), "{\"sequences\": %zu, \"tensors\": %zu}\n", in.B, a.n);
done:
    for (size_t i = 0; i < a.n; i++) us_free(a.tensors[i].data);
    us_free(a.tensors);
    us_ids_free(&in);
    us_structure_free(st);
    us_checkpoint_free(ck);
    return s;
}

static const us_option options[] = {
    {"ids", 0, US_OPT_STRING, "FILE", "token ids: .npy of integers [B, T] or JSON [[1, 2], [3]]", false},
    {"out", 'o', US_OPT_STRING, "FILE", "safetensors file to write: logits [B, T, V], padded with zeros behind shorter sequences", false},
    {"dtype", 0, US_OPT_STRING, "TYPE", "ref: double precision, one layer in memory at a time (default); f32 or bf16: the fast engine", false},
    {"layers", 0, US_OPT_FLAG, NULL, "also write layer.N.attn, .ffn, .out, .experts (ascending) and .weights", false},
    {"exact", 0, US_OPT_FLAG, NULL, "f32, bf16: recurrent layers token by token, so that results do not depend on how a text is cut", false},
    {"stream", 0, US_OPT_FLAG, NULL, "f32, bf16: drop each layer's weights when it is done", false},
    {0},
};

const us_command us_cmd_forward = {
    .name = "forward",
    .summary = "logits and layer tensors of given token ids (the oracle)",
    .usage = "CKPT --ids FILE --out FILE.safetensors [--dtype ref|f32|bf16] [--layers]",
    .description = "Runs the checkpoint on the token ids and writes the logits and, with --layers, what every layer computed. Dumps of other engines can be "
                   "held against it. The default is double precision throughout, one layer's weights in memory at a time; f32 and bf16 are the fast engine.",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
