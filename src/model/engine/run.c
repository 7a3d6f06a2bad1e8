/* Driver of the engine: checks, rotary tables, layers in order, head. The parts are in attention.c, recurrent.c, v4.c, ffn.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/engine/internal.h"
#include "model/weights.h"

/* ---- scratch ---- */

enum { ALIGN = 16, FIRST_CHUNK = 1 << 18 }; /* floats */
#define OFFSET_BITS 48
#define OFFSET_MASK (((uint64_t)1 << OFFSET_BITS) - 1)

float *us_eng_scratch(us_engine *e, size_t n) {
    size_t want, c = (size_t)(e->scratch_used >> OFFSET_BITS), used = (size_t)(e->scratch_used & OFFSET_MASK);
    if (n > OFFSET_MASK / 8) return NULL;
    want = (n + ALIGN - 1) / ALIGN * ALIGN + ALIGN; /* the tail lets vector loops read past an end */
    if (e->chunks[c] && e->chunk_floats[c] - used < want) c++, used = 0;
    if (c == US_ENG_CHUNKS) return NULL;
    if (!e->chunks[c] || e->chunk_floats[c] < want) { /* chunks above the mark hold nothing */
        size_t floats = c ? e->chunk_floats[c - 1] * 2 : FIRST_CHUNK;
        if (floats < want) floats = want;
        us_free(e->chunks[c]);
        e->chunks[c] = us_malloc_large(floats * sizeof(float), false);
        e->chunk_floats[c] = e->chunks[c] ? floats : 0;
        if (!e->chunks[c]) return NULL;
    }
    e->scratch_used = (uint64_t)c << OFFSET_BITS | (used + want);
    return e->chunks[c] + used;
}

static void scratch_free(us_engine *e) {
    for (size_t c = 0; c < US_ENG_CHUNKS; c++) {
        us_free(e->chunks[c]);
        e->chunks[c] = NULL;
        e->chunk_floats[c] = 0;
    }
    e->scratch_used = 0;
}

/* Between steps: several chunks become one. */
static void scratch_reset(us_engine *e) {
    size_t total = 0;
    for (size_t c = 0; c < US_ENG_CHUNKS; c++) total += e->chunk_floats[c];
    e->scratch_used = 0;
    if (total == e->chunk_floats[0]) return;
    scratch_free(e);
    e->chunks[0] = us_malloc_large(total * sizeof(float), false);
    e->chunk_floats[0] = e->chunks[0] ? total : 0;
}

/* ---- opening ---- */

static us_kv_layout page_layout(const us_engine *e, uint32_t l) {
    const us_recipe *r = &e->r;
    us_dtype type = e->opt.compute == US_COMPUTE_BF16 ? US_DTYPE_BF16 : US_DTYPE_F32;
    if (r->layers[l].mixer == US_MIX_MLA) return (us_kv_layout){type, true, 1, r->kv_lora + r->rope_dims, r->kv_lora};
    if (r->layers[l].mixer == US_MIX_GQA) return (us_kv_layout){type, false, e->layers[l].gqa.groups, r->head_dim, r->v_head_dim};
    return (us_kv_layout){type, false, 1, 1, 1};
}

us_status us_engine_open(us_ctx *ctx, const us_structure *st, const us_engine_options *options, us_engine **out, us_err *err) {
    us_status s;
    us_engine *e = us_calloc(1, sizeof *e);
    if (!e) return us_fail_nomem(err, "opening a model");
    e->ctx = ctx;
    e->pool = us_ctx_pool(ctx);
    e->st = st;
    if (options) e->opt = *options;
    US_GO(us_recipe_build(st, &e->r, err));
    US_GO(us_weight_prefix(st->ck, e->base, sizeof e->base, err));
    snprintf(e->layers_at, sizeof e->layers_at, "%.64slayers.", e->base);
    US_GO(us_eng_load(e, err));
    for (uint32_t l = 0; l < e->r.L; l++) e->layers[l].kv = page_layout(e, l);
    *out = e;
    e = NULL;
done:
    us_engine_free(e);
    return s;
}

static void drop_one(void *user, us_mat *m) {
    (void)user;
    us_mat_drop(m);
}

static void drop_layer(us_engine *e, us_eng_layer *l) {
    us_eng_each_mat(e, l, drop_one, NULL);
}

void us_engine_free(us_engine *e) {
    if (!e) return;
    for (uint32_t l = 0; e->layers && l < e->r.L; l++) drop_layer(e, &e->layers[l]);
    us_mat_drop(&e->head);
    us_mat_drop(&e->hc_head.fn);
    us_recipe_free(&e->r);
    us_arena_free(&e->arena);
    us_arena_free(&e->overflow);
    scratch_free(e);
    us_free(e);
}

const us_recipe *us_engine_recipe(const us_engine *e) {
    return &e->r;
}

uint64_t us_engine_context(const us_engine *e) {
    double n = (double)e->r.max_positions;
    for (int i = 0; i < US_RECIPE_ROPES; i++)
        if (e->r.ropes[i].kind == US_ROPE_DYNAMIC && e->r.ropes[i].factor > 1) n = (double)e->r.max_positions * e->r.ropes[i].factor;
    return (uint64_t)n;
}

static void count_one(void *user, us_mat *m) {
    if (us_mat_there(m)) *(uint64_t *)user += us_gemm_packed_bytes(m->packed.type, m->packed.n, m->packed.k);
}

us_engine_size us_engine_size_of(const us_engine *ce) {
    us_engine *e = (us_engine *)(uintptr_t)ce;
    us_engine_size z = {0};
    for (uint32_t l = 0; l < e->r.L; l++) {
        uint64_t bytes = 0;
        us_eng_each_mat(e, &e->layers[l], count_one, &bytes);
        z.weights += bytes;
        if (bytes > z.largest_layer) z.largest_layer = bytes;
        us_mixer m = e->r.layers[l].mixer;
        if (m == US_MIX_GQA || m == US_MIX_MLA) z.per_position += us_kv_page_bytes(&e->layers[l].kv) / US_KV_PAGE * (e->r.two_attentions ? 2 : 1);
        if (m == US_MIX_V4) z.per_position += e->r.head_dim * sizeof(float);
        if (m == US_MIX_GDN) z.per_sequence += (uint64_t)e->r.value_heads * e->r.key_dim * e->r.value_dim * sizeof(float);
        if (m == US_MIX_KDA) z.per_sequence += (uint64_t)e->r.key_heads * e->r.key_dim * e->r.key_dim * sizeof(float);
        if (m == US_MIX_MAMBA2) z.per_sequence += (uint64_t)e->r.mamba_heads * e->r.mamba_dim * e->r.mamba_state * sizeof(float);
    }
    count_one(&z.weights, &e->head);
    return z;
}

/* ---- one step ---- */

typedef struct rows_job {
    us_eng_rows_fn *fn;
    void *arg;
    size_t rows;
} rows_job;

enum { ROWS_A_TASK = 16 };

static void rows_one(void *arg, int64_t i, int thread) {
    (void)thread;
    const rows_job *j = arg;
    size_t r0 = (size_t)i * ROWS_A_TASK;
    j->fn(j->arg, r0, r0 + ROWS_A_TASK < j->rows ? r0 + ROWS_A_TASK : j->rows);
}

void us_eng_each_rows(us_engine *e, size_t rows, us_eng_rows_fn *fn, void *arg) {
    if (rows <= ROWS_A_TASK) {
        fn(arg, 0, rows);
        return;
    }
    us_pool_run(e->pool, rows_one, &(rows_job){fn, arg, rows}, (int64_t)((rows + ROWS_A_TASK - 1) / ROWS_A_TASK));
}

typedef struct norm_job {
    const us_eng_norm *n;
    float plus, eps;
    const float *x;
    float *y;
} norm_job;

static void norm_some(void *arg, size_t r0, size_t r1) {
    const norm_job *j = arg;
    const us_eng_norm *n = j->n;
    const float *x = j->x + r0 * n->n;
    float *y = j->y + r0 * n->n;
    if (n->b) us_layernorm(x, n->n, n->w, n->b, j->eps, r1 - r0, n->n, y, n->n);
    else us_rmsnorm(x, n->n, n->w, j->plus, j->eps, r1 - r0, n->n, y, n->n);
}

void us_eng_norm_rows(us_engine *e, const us_eng_norm *n, float plus, double eps, size_t rows, const float *x, float *y) {
    us_eng_each_rows(e, rows, norm_some, &(norm_job){n, plus, (float)eps, x, y});
}

typedef struct add_job {
    float f;
    const float *x;
    size_t n;
    float *y;
} add_job;

static void add_some(void *arg, size_t r0, size_t r1) {
    const add_job *j = arg;
    us_axpy(j->f, j->x + r0 * j->n, (r1 - r0) * j->n, j->y + r0 * j->n);
}

void us_eng_add_rows(us_engine *e, float f, const float *x, size_t rows, size_t n, float *y) {
    us_eng_each_rows(e, rows, add_some, &(add_job){f, x, n, y});
}

static us_status check_segments(us_engine *e, const us_segment *segs, size_t n, us_err *err) {
    uint64_t limit = us_engine_context(e);
    for (size_t i = 0; i < n; i++) {
        const us_segment *g = &segs[i];
        if (g->n == 0) return us_fail(err, US_E_INVAL, "empty", "a sequence needs at least one token");
        if (g->want > g->n) return us_fail(err, US_E_INVAL, "range", "more logits wanted than tokens given");
        if (g->seq->broken) return us_fail(err, US_E_REFUSED, "broken", "the sequence is unusable after a failure");
        if (limit && g->seq->n + g->n > limit)
            return us_fail(err, US_E_REFUSED, "context", "a sequence of %zu tokens is longer than the model's context of %llu", g->seq->n + g->n,
                           (unsigned long long)limit);
        for (size_t t = 0; t < g->n; t++)
            if (g->ids[t] < 0 || g->ids[t] >= e->r.V)
                return us_fail(err, US_E_REFUSED, "token-range", "token %zu is %lld, the vocabulary has 0 to %u", t, (long long)g->ids[t], e->r.V - 1);
        for (size_t j = 0; j < i; j++)
            if (segs[j].seq == g->seq) return us_fail(err, US_E_INVAL, "twice", "a sequence stands twice in one call");
    }
    return US_OK;
}

/* cos and sin of every row, in double, once a step. */
static us_status rope_tables(us_step *s) {
    for (int i = 0; i < US_RECIPE_ROPES; i++) {
        const us_rope *rope = &s->e->r.ropes[i];
        bool used = false;
        for (uint32_t l = 0; l < s->e->r.L; l++) used |= s->e->r.layers[l].rope == i;
        if (!used || rope->dims == 0) continue;
        size_t half = rope->dims / 2;
        US_ENG_SCRATCH(s, c, s->T * half);
        US_ENG_SCRATCH(s, sn, s->T * half);
        for (size_t g = 0; g < s->n_segs; g++) {
            double inv[US_ROPE_DIMS_MAX / 2], multiplier;
            us_rope_table(rope, s->segs[g].seq->n + s->segs[g].n, inv, &multiplier);
            for (size_t t = s->row0[g]; t < s->row0[g + 1]; t++)
                for (size_t d = 0; d < half; d++) {
                    double a = (double)s->positions[t] * inv[d];
                    c[t * half + d] = (float)(cos(a) * multiplier);
                    sn[t * half + d] = (float)(sin(a) * multiplier);
                }
        }
        s->cos[i] = c;
        s->sin[i] = sn;
    }
    return US_OK;
}

static us_status begin(us_step *s) {
    us_engine *e = s->e;
    s->row0 = us_arena_alloc(&e->overflow, (s->n_segs + 1) * sizeof *s->row0);
    s->allow = us_arena_calloc(&e->overflow, s->n_segs, sizeof *s->allow);
    if (!s->row0 || !s->allow) return us_fail_nomem(s->err, "running the model");
    for (size_t g = 0; g < s->n_segs; g++) {
        s->row0[g] = s->T;
        s->T += s->segs[g].n;
    }
    s->row0[s->n_segs] = s->T;
    s->ids = us_arena_alloc(&e->overflow, s->T * sizeof *s->ids);
    s->positions = us_arena_alloc(&e->overflow, s->T * sizeof *s->positions);
    if (!s->ids || !s->positions) return us_fail_nomem(s->err, "running the model");
    for (size_t g = 0; g < s->n_segs; g++)
        for (size_t t = 0; t < s->segs[g].n; t++) {
            s->ids[s->row0[g] + t] = s->segs[g].ids[t];
            s->positions[s->row0[g] + t] = (int64_t)(s->segs[g].seq->n + t);
        }
    return rope_tables(s);
}

static us_status embed(us_step *s, float *x) {
    us_engine *e = s->e;
    size_t D = e->r.D, hc = e->r.hc_mult, size = us_dtype_bits(e->embed->dtype) / 8;
    uint64_t mark = e->scratch_used;
    US_ENG_SCRATCH(s, raw, (D * size + 3) / 4);
    US_ENG_SCRATCH(s, row, D);
    for (size_t t = 0; t < s->T; t++) {
        US_TRY(us_ck_read(e->st->ck, e->embed, (uint64_t)s->ids[t] * D * size, raw, D * size, s->err));
        if (!us_to_f32(e->embed->dtype, raw, D, row)) return us_fail(s->err, US_E_UNSUPPORTED, "dtype", "the embedding cannot be read");
        for (size_t d = 0; d < D; d++) {
            if (!isfinite(row[d])) {
                us_fail(s->err, US_E_NONFINITE, "nonfinite", "a weight is not finite");
                return us_err_where(s->err, "%.*s", US_STR_ARG(e->embed->name));
            }
            row[d] *= (float)e->r.embed_scale;
        }
        for (size_t h = 0; h < hc; h++) memcpy(x + (t * hc + h) * D, row, D * sizeof *x);
    }
    e->scratch_used = mark;
    return US_OK;
}

static void tap(const us_step *s, uint32_t l, const char *what, const float *x, size_t cols) {
    if (s->taps && s->taps->layer) s->taps->layer(s->taps->user, l, what, x, s->T, cols);
}

static us_status mix(us_step *s, uint32_t l, const float *x, float *y) {
    switch (s->e->r.layers[l].mixer) {
    case US_MIX_GQA: return us_eng_run_gqa(s, l, x, y);
    case US_MIX_MLA: return us_eng_run_mla(s, l, &s->e->layers[l].mla, false, x, y);
    case US_MIX_GDN: return us_eng_run_gdn(s, l, x, y);
    case US_MIX_KDA: return us_eng_run_kda(s, l, x, y);
    case US_MIX_MAMBA2: return us_eng_run_mamba2(s, l, x, y);
    case US_MIX_V4: return us_eng_run_v4(s, l, x, y);
    case US_MIX_NONE: break;
    }
    return US_OK;
}

static us_status feed(us_step *s, uint32_t l, const float *x, float *y) {
    return s->e->r.layers[l].moe ? us_eng_run_moe(s, l, x, y) : us_eng_run_mlp(s, &s->e->layers[l].mlp, x, y);
}

static void norm(const us_step *s, const us_eng_norm *n, size_t rows, const float *x, float *y) {
    us_eng_norm_rows(s->e, n, (float)s->e->r.norm_plus, s->e->r.eps, rows, x, y);
}

/* Behind the last mixer a row matters to nobody but its own logits: keep the rows that are wanted. */
static void keep_wanted(us_step *s, float *x) {
    size_t D = s->e->r.D, at = 0;
    for (size_t g = 0; g < s->n_segs; g++) {
        size_t want = s->logits ? s->segs[g].want : 0;
        memmove(x + at * D, x + (s->row0[g + 1] - want) * D, want * D * sizeof *x);
        at += want;
    }
    s->T = at;
    s->wanted_only = true;
}

static us_status plain_layer(us_step *s, uint32_t l, float *x) {
    const us_recipe *r = &s->e->r;
    const us_layer_recipe *lr = &r->layers[l];
    us_eng_layer *w = &s->e->layers[l];
    size_t n = s->T * r->D;
    US_ENG_SCRATCH(s, h, n);
    US_ENG_SCRATCH(s, y, n);
    if (lr->mixer != US_MIX_NONE) {
        norm(s, &w->norm_in, s->T, x, h);
        US_TRY(mix(s, l, h, y));
        if (!r->single_mixer) tap(s, l, "attn", y, r->D);
        us_eng_add_rows(s->e, (float)r->residual_scale, y, s->T, r->D, x);
    }
    if (l + 1 == r->L && !s->taps && !lr->hash) keep_wanted(s, x); /* a token table is asked by the ids of all rows */
    if (lr->has_ffn && s->T) {
        norm(s, &w->norm_ffn, s->T, x, h);
        US_TRY(feed(s, l, h, y));
        if (!r->single_mixer) tap(s, l, "ffn", y, r->D);
        us_eng_add_rows(s->e, (float)r->residual_scale, y, s->T, r->D, x);
    }
    tap(s, l, "out", x, r->D);
    return US_OK;
}

/* longcat_flash: attention 0, MoE on its normed output (added at the very end), MLP 0, attention 1, MLP 1. */
static us_status longcat_layer(us_step *s, uint32_t l, float *x) {
    us_eng_layer *w = &s->e->layers[l];
    size_t n = s->T * s->e->r.D;
    US_ENG_SCRATCH(s, h, n);
    US_ENG_SCRATCH(s, y, n);
    US_ENG_SCRATCH(s, m, n);
    norm(s, &w->norm_in, s->T, x, h);
    US_TRY(us_eng_run_mla(s, l, &w->mla, false, h, y));
    us_eng_add_rows(s->e, 1, y, s->T, s->e->r.D, x);
    norm(s, &w->norm_ffn, s->T, x, h);
    US_TRY(us_eng_run_moe(s, l, h, m));
    tap(s, l, "ffn", m, s->e->r.D);
    US_TRY(us_eng_run_mlp(s, &w->mlp, h, y));
    us_eng_add_rows(s->e, 1, y, s->T, s->e->r.D, x);
    norm(s, &w->norm_in2, s->T, x, h);
    US_TRY(us_eng_run_mla(s, l, &w->mla2, true, h, y));
    us_eng_add_rows(s->e, 1, y, s->T, s->e->r.D, x);
    norm(s, &w->norm_ffn2, s->T, x, h);
    US_TRY(us_eng_run_mlp(s, &w->mlp2, h, y));
    us_eng_add_rows(s->e, 1, y, s->T, s->e->r.D, x);
    us_eng_add_rows(s->e, 1, m, s->T, s->e->r.D, x);
    tap(s, l, "out", x, s->e->r.D);
    return US_OK;
}

/* new_stream_j = post_j y + sum_i comb[i][j] stream_i, for every token. */
static void hc_fold(const us_step *s, const float *y, const float *post, const float *comb, float *streams, float *scratch) {
    size_t hc = s->e->r.hc_mult, D = s->e->r.D;
    for (size_t t = 0; t < s->T; t++) {
        float *st = streams + t * hc * D;
        for (size_t j = 0; j < hc; j++) {
            float p = post[t * hc + j];
            for (size_t d = 0; d < D; d++) scratch[j * D + d] = p * y[t * D + d];
            for (size_t i = 0; i < hc; i++) us_axpy(comb[(t * hc + i) * hc + j], st + i * D, D, scratch + j * D);
        }
        memcpy(st, scratch, hc * D * sizeof *st);
    }
}

static us_status v4_layer(us_step *s, uint32_t l, float *streams) {
    us_eng_layer *w = &s->e->layers[l];
    size_t D = s->e->r.D, n = s->T * D, hc = s->e->r.hc_mult;
    US_ENG_SCRATCH(s, x, n);
    US_ENG_SCRATCH(s, h, n);
    US_ENG_SCRATCH(s, y, n);
    US_ENG_SCRATCH(s, post, s->T * hc);
    US_ENG_SCRATCH(s, comb, s->T * hc * hc);
    US_ENG_SCRATCH(s, tmp, hc * D);
    US_TRY(us_eng_hc_mix(s, &w->hc_attn, false, streams, x, post, comb));
    norm(s, &w->norm_in, s->T, x, h);
    US_TRY(mix(s, l, h, y));
    tap(s, l, "attn", y, D);
    hc_fold(s, y, post, comb, streams, tmp);
    US_TRY(us_eng_hc_mix(s, &w->hc_ffn, false, streams, x, post, comb));
    norm(s, &w->norm_ffn, s->T, x, h);
    US_TRY(feed(s, l, h, y));
    tap(s, l, "ffn", y, D);
    hc_fold(s, y, post, comb, streams, tmp);
    tap(s, l, "out", streams, hc * D);
    return US_OK;
}

/* Final mix of the streams (deepseek_v4), norm and head, for the rows whose logits are wanted. */
static us_status finish(us_step *s, const float *x, float *logits) {
    us_engine *e = s->e;
    size_t D = e->r.D, hc = e->r.hc_mult, rows = 0, at = 0;
    for (size_t g = 0; g < s->n_segs; g++) rows += s->segs[g].want;
    if (!rows || !logits) return US_OK;
    US_ENG_SCRATCH(s, wanted, rows * hc * D);
    US_ENG_SCRATCH(s, h, rows * D);
    if (s->wanted_only) memcpy(wanted, x, rows * D * sizeof *x);
    for (size_t g = 0; g < s->n_segs && !s->wanted_only; g++) {
        size_t first = s->row0[g + 1] - s->segs[g].want, n = s->segs[g].want;
        memcpy(wanted + at * hc * D, x + first * hc * D, n * hc * D * sizeof *x);
        at += n;
    }
    if (hc > 1) {
        size_t T = s->T;
        US_ENG_SCRATCH(s, mixed, rows * D);
        s->T = rows;
        us_status st = us_eng_hc_mix(s, &e->hc_head, true, wanted, mixed, NULL, NULL);
        s->T = T;
        if (st != US_OK) return st;
        wanted = mixed;
    }
    norm(s, &e->norm_out, rows, wanted, h);
    US_TRY(us_eng_apply(s, &e->head, e->head_bias, rows, h, D, logits, e->r.V));
    float divisor = (float)e->r.logits_divisor;
    for (size_t i = 0; divisor != 1 && i < rows * e->r.V; i++) logits[i] /= divisor;
    return US_OK;
}

static us_status run_layers(us_step *s, float *x) {
    us_engine *e = s->e;
    for (uint32_t l = 0; l < e->r.L; l++) {
        uint64_t mark = e->scratch_used;
        us_status st = us_ctx_check(e->ctx, s->err);
        if (st == US_OK) st = e->r.two_attentions ? longcat_layer(s, l, x) : e->r.hc_mult > 1 ? v4_layer(s, l, x) : plain_layer(s, l, x);
        e->scratch_used = mark;
        if (e->opt.stream) drop_layer(e, &e->layers[l]);
        if (st != US_OK) {
            us_err_where(s->err, "layer %u", l);
            return st;
        }
    }
    return US_OK;
}

/* One pass through the layers; lengths of sequences move when it succeeded. */
static us_status run_step(us_engine *e, const us_segment *segs, size_t n, const us_engine_taps *taps, float *logits, us_err *err) {
    us_status s;
    scratch_reset(e);
    us_step step = {.e = e, .segs = segs, .n_segs = n, .taps = taps, .logits = logits != NULL, .err = err};
    US_GO(begin(&step));
    float *x = us_eng_scratch(e, step.T * e->r.hc_mult * e->r.D);
    if (!x) {
        s = us_fail_nomem(err, "running the model");
        goto done;
    }
    US_GO(embed(&step, x));
    US_GO(run_layers(&step, x));
    US_GO(finish(&step, x, logits));
    for (size_t g = 0; g < n; g++) segs[g].seq->n += segs[g].n;
done:
    us_arena_free(&e->overflow);
    return s;
}

/*
 * Many tokens go in steps of about STEP_TOKENS, which keeps scratch space small and in cache. A segment is cut every STEP_TOKENS from its own beginning,
 * so where it is cut does not depend on the others.
 */
enum { STEP_TOKENS = 512 };

static us_status run_in_steps(us_engine *e, const us_segment *segs, size_t n, float *logits, us_err *err) {
    us_status s = US_OK;
    size_t *done = us_calloc(n, sizeof *done), *row = us_calloc(n, sizeof *row), *of = us_calloc(n, sizeof *of), rows = 0, most = 0;
    us_segment *part = us_calloc(n, sizeof *part);
    float *some = NULL;
    if (!done || !row || !of || !part) s = us_fail_nomem(err, "running the model");
    for (size_t g = 0; s == US_OK && g < n; g++) {
        row[g] = rows;
        rows += segs[g].want;
    }
    if (s == US_OK && rows && logits) {
        most = rows < STEP_TOKENS * 2 ? rows : STEP_TOKENS * 2; /* a step may exceed the mark by less than one piece */
        some = us_calloc(most * e->r.V, sizeof *some);
        if (!some) s = us_fail_nomem(err, "running the model");
    }
    for (size_t first = 0; s == US_OK && first < n;) {
        size_t k = 0, tokens = 0, at = 0;
        for (size_t g = first; g < n && tokens < STEP_TOKENS; g++) {
            size_t left = segs[g].n - done[g], take = left < STEP_TOKENS ? left : STEP_TOKENS, after = left - take;
            if (!take) continue;
            part[k] = (us_segment){segs[g].seq, segs[g].ids + done[g], take, segs[g].want > after ? segs[g].want - after : 0};
            if (part[k].want > take) part[k].want = take;
            of[k++] = g;
            tokens += take;
        }
        s = run_step(e, part, k, NULL, some, err);
        for (size_t i = 0; s == US_OK && i < k; i++) {
            size_t g = of[i], left = segs[g].n - done[g], skipped = left > segs[g].want ? 0 : segs[g].want - left; /* wanted rows before this piece */
            if (some && part[i].want) memcpy(logits + (row[g] + skipped) * e->r.V, some + at * e->r.V, part[i].want * e->r.V * sizeof *some);
            at += part[i].want;
            done[g] += part[i].n;
        }
        while (first < n && done[first] == segs[first].n) first++;
    }
    for (size_t g = 0; s != US_OK && done && g < n; g++) segs[g].seq->n -= done[g];
    us_free(done);
    us_free(row);
    us_free(of);
    us_free(part);
    us_free(some);
    return s;
}

us_status us_engine_run(us_engine *e, const us_segment *segs, size_t n, const us_engine_taps *taps, float *logits, us_err *err) {
    US_TRY(check_segments(e, segs, n, err));
    size_t total = 0;
    for (size_t g = 0; g < n; g++) total += segs[g].n;
    if (n == 0) return US_OK;
    bool whole = taps || e->opt.stream || total <= STEP_TOKENS; /* taps show all rows of a layer at once; a streamed layer is read once */
    us_status s = whole ? run_step(e, segs, n, taps, logits, err) : run_in_steps(e, segs, n, logits, err);
    for (size_t g = 0; s != US_OK && g < n; g++) segs[g].seq->broken = us_eng_recurrent(e); /* keys beyond the length are harmless, a moved state is not */
    return s;
}
