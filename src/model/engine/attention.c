/* Attention of the engine: grouped-query (windows, chunks, sinks, gates) and multi-head latent, absorbed, with the sparse-attention indexer. */
#include <math.h>
#include <string.h>

#include "model/engine/internal.h"

static void scale_all(float *x, double f, size_t n) {
    float m = (float)f;
    for (size_t i = 0; m != 1 && i < n; i++) x[i] *= m;
}

static void copy_cols(const float *x, size_t ldx, size_t rows, size_t n, float *y) {
    for (size_t t = 0; t < rows; t++) memcpy(y + t * n, x + t * ldx, n * sizeof *y);
}

/* The heads of this layer, positions from `start`, may see; run the attention of all segments over the pages of a layer. */
static us_status attend(us_step *s, uint32_t l, bool second, const us_attn *a, const float *q, float *out) {
    size_t Dk = a->kv.dk, Dv = a->kv.dv, H = a->heads;
    us_attn_seq *seqs = us_arena_calloc(&s->e->overflow, s->n_segs, sizeof *seqs);
    if (!seqs) return us_fail_nomem(s->err, "running the model");
    for (size_t g = 0; g < s->n_segs; g++) {
        us_eng_state *st = &s->segs[g].seq->layers[l];
        us_page **pages = second ? st->pages2 : st->pages;
        size_t n_pages = second ? st->n_pages2 : st->n_pages;
        const void **list = us_arena_alloc(&s->e->overflow, (n_pages + 1) * sizeof *list);
        if (!list) return us_fail_nomem(s->err, "running the model");
        for (size_t i = 0; i < n_pages; i++) list[i] = pages[i]->data;
        size_t row = s->row0[g];
        seqs[g] = (us_attn_seq){.start = s->segs[g].seq->n, .n = s->segs[g].n, .q = q + row * H * Dk, .ldq = H * Dk, .out = out + row * H * Dv,
                                .ldo = H * Dv, .pages = list, .allow = a->kv.latent ? s->allow[g] : NULL, .lda = s->segs[g].seq->n + s->segs[g].n};
    }
    return us_attention(s->e->pool, a, seqs, s->n_segs, s->err);
}

/* ---- grouped-query ---- */

typedef struct gqa_shape {
    size_t H, G, Dk, Dv, q_rows, k_rows, v_rows, width;
} gqa_shape;

/* A rope whose table changed since the last step: rotate all cached keys anew from the raw ones. */
static us_status rotate_again(us_step *s, uint32_t l, size_t g, const gqa_shape *z) {
    us_engine *e = s->e;
    us_seq *seq = s->segs[g].seq;
    us_eng_state *st = &seq->layers[l];
    const us_rope *rope = &e->r.ropes[e->r.layers[l].rope];
    double before[US_ROPE_DIMS_MAX / 2], now[US_ROPE_DIMS_MAX / 2], ma, mb;
    size_t half = rope->dims / 2;
    if (!seq->n) return US_OK;
    us_rope_table(rope, seq->n, before, &ma);
    us_rope_table(rope, seq->n + s->segs[g].n, now, &mb);
    if (ma == mb && memcmp(before, now, half * sizeof *now) == 0) return US_OK;
    US_ENG_SCRATCH(s, k, z->k_rows);
    US_ENG_SCRATCH(s, v, z->v_rows);
    US_ENG_SCRATCH(s, cs, half);
    US_ENG_SCRATCH(s, sn, half);
    for (size_t p = 0; p < seq->n; p++) {
        void *page = st->pages[p / US_KV_PAGE]->data;
        us_kv_load(&e->layers[l].kv, page, p % US_KV_PAGE, k, v);
        memcpy(k, st->rows + p * z->k_rows, z->k_rows * sizeof *k);
        for (size_t d = 0; d < half; d++) {
            cs[d] = (float)(cos((double)p * now[d]) * mb);
            sn[d] = (float)(sin((double)p * now[d]) * mb);
        }
        us_rotary(k, z->k_rows, 1, z->G, z->Dk, 0, rope->dims, cs, sn, rope->pair, 1);
        us_kv_store(&e->layers[l].kv, page, p % US_KV_PAGE, k, v);
    }
    return US_OK;
}

typedef struct store_job {
    const us_kv_layout *kv;
    us_page *const *pages;
    size_t start, k_rows, v_rows;
    const float *k, *v; /* v NULL: latent */
} store_job;

static void store_some(void *arg, size_t r0, size_t r1) {
    const store_job *j = arg;
    for (size_t t = r0; t < r1; t++) {
        size_t p = j->start + t;
        us_kv_store(j->kv, j->pages[p / US_KV_PAGE]->data, p % US_KV_PAGE, j->k + t * j->k_rows, j->v ? j->v + t * j->v_rows : NULL);
    }
}

static us_status store(us_step *s, uint32_t l, const gqa_shape *z, const float *raw, const float *k, const float *v) {
    us_engine *e = s->e;
    for (size_t g = 0; g < s->n_segs; g++) {
        us_seq *seq = s->segs[g].seq;
        us_eng_state *st = &seq->layers[l];
        size_t end = seq->n + s->segs[g].n;
        /* Keys that are rotated again are written in all pages, so none may stay shared. */
        US_TRY(us_eng_pages(&e->layers[l].kv, &st->pages, &st->n_pages, &st->cap_pages, raw ? 0 : seq->n, end, s->err));
        if (raw) {
            US_TRY(us_eng_rows(&st->rows, &st->cap_rows, end * z->k_rows, s->err));
            memcpy(st->rows + seq->n * z->k_rows, raw + s->row0[g] * z->k_rows, s->segs[g].n * z->k_rows * sizeof *raw);
            US_TRY(rotate_again(s, l, g, z));
        }
        size_t row = s->row0[g];
        us_eng_each_rows(e, s->segs[g].n, store_some, &(store_job){&e->layers[l].kv, st->pages, seq->n, z->k_rows, z->v_rows, k + row * z->k_rows, v + row * z->v_rows});
    }
    return US_OK;
}

/* What happens to the projections of a token before attention: split, norms, rotation, scales. */
typedef struct gqa_rows {
    const us_step *s;
    const us_layer_recipe *lr;
    const us_eng_gqa *w;
    const gqa_shape *z;
    const us_rope *rope;
    const float *qkv;
    float *q, *k, *v, *raw, *gate; /* raw, gate may be NULL */
} gqa_rows;

static void qk_norms(const gqa_rows *j, size_t rows, float *q, float *k) {
    const us_recipe *r = &j->s->e->r;
    const gqa_shape *z = j->z;
    const us_eng_norm *a = &j->w->q, *b = &j->w->k;
    if (a->w) us_rmsnorm(q, a->n, a->w, (float)r->norm_plus, (float)r->eps, rows * z->H * z->Dk / a->n, a->n, q, a->n);
    if (b->w) us_rmsnorm(k, b->n, b->w, (float)r->norm_plus, (float)r->eps, rows * z->G * z->Dk / b->n, b->n, k, b->n);
}

static void gqa_some(void *arg, size_t r0, size_t r1) {
    const gqa_rows *j = arg;
    const us_recipe *r = &j->s->e->r;
    const gqa_shape *z = j->z;
    size_t rows = r1 - r0, nq = z->H * z->Dk;
    const float *qkv = j->qkv + r0 * z->width;
    float *q = j->q + r0 * nq, *k = j->k + r0 * z->k_rows, *v = j->v + r0 * z->v_rows;
    if (j->gate) {
        for (size_t i = 0; i < rows * z->H; i++) {
            const float *src = qkv + i / z->H * z->width + i % z->H * 2 * z->Dk;
            memcpy(q + i * z->Dk, src, z->Dk * sizeof *q);
            memcpy(j->gate + r0 * nq + i * z->Dk, src + z->Dk, z->Dk * sizeof *q);
        }
    } else {
        copy_cols(qkv, z->width, rows, nq, q);
    }
    copy_cols(qkv + z->q_rows, z->width, rows, z->k_rows, k);
    copy_cols(qkv + z->q_rows + z->k_rows, z->width, rows, z->v_rows, v);
    if (!r->qk_norm_after_rope) qk_norms(j, rows, q, k);
    if (j->raw) memcpy(j->raw + r0 * z->k_rows, k, rows * z->k_rows * sizeof *k);
    if (j->rope) {
        size_t half = j->rope->dims / 2;
        const float *cs = j->s->cos[j->lr->rope] + r0 * half, *sn = j->s->sin[j->lr->rope] + r0 * half;
        us_rotary(q, nq, rows, z->H, z->Dk, 0, j->rope->dims, cs, sn, j->rope->pair, 1);
        us_rotary(k, z->k_rows, rows, z->G, z->Dk, 0, j->rope->dims, cs, sn, j->rope->pair, 1);
    }
    if (r->qk_norm_after_rope) qk_norms(j, rows, q, k);
    if (r->qk_l2 && j->rope) {
        us_rmsnorm(q, z->Dk, NULL, 0, (float)r->eps, rows * z->H, z->Dk, q, z->Dk);
        us_rmsnorm(k, z->Dk, NULL, 0, (float)r->eps, rows * z->G, z->Dk, k, z->Dk);
    }
    for (size_t t = 0; j->lr->temperature && t < rows; t++) /* llama4: queries of layers without rope grow with their position */
        scale_all(q + t * nq, 1 + r->temperature_scale * log1p(floor(((double)j->s->positions[r0 + t] + 1) / r->temperature_floor)), nq);
    scale_all(v, r->value_scale, rows * z->v_rows);
}

typedef struct gate_job {
    float *gate, *y;
    size_t n;
} gate_job;

static void gate_some(void *arg, size_t r0, size_t r1) {
    const gate_job *j = arg;
    us_sigmoid(j->gate + r0 * j->n, (r1 - r0) * j->n);
    for (size_t i = r0 * j->n; i < r1 * j->n; i++) j->y[i] *= j->gate[i];
}

us_status us_eng_run_gqa(us_step *s, uint32_t l, const float *x, float *out) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    const us_layer_recipe *lr = &r->layers[l];
    us_eng_gqa *w = &e->layers[l].gqa;
    gqa_shape z = {.H = r->H, .G = w->groups, .Dk = r->head_dim, .Dv = r->v_head_dim, .q_rows = w->q_rows};
    z.k_rows = z.G * z.Dk;
    z.v_rows = z.G * z.Dv;
    z.width = z.q_rows + z.k_rows + z.v_rows;
    const us_rope *rope = lr->rope >= 0 ? &r->ropes[lr->rope] : NULL;
    bool keep_raw = rope && us_rope_grows(rope);
    size_t T = s->T, nq = z.H * z.Dk;
    US_ENG_SCRATCH(s, qkv, T * z.width);
    US_ENG_SCRATCH(s, q, T * nq);
    US_ENG_SCRATCH(s, k, T * z.k_rows);
    US_ENG_SCRATCH(s, v, T * z.v_rows);
    US_ENG_SCRATCH(s, y, T * z.H * z.Dv);
    float *raw = NULL, *gate = NULL;
    US_TRY(us_eng_apply(s, &w->qkv, w->bias, T, x, r->D, qkv, z.width));
    if (w->gated && !(gate = us_eng_scratch(e, T * nq))) return us_fail_nomem(s->err, "running the model");
    if (keep_raw && !(raw = us_eng_scratch(e, T * z.k_rows))) return us_fail_nomem(s->err, "running the model");
    us_eng_each_rows(e, T, gqa_some, &(gqa_rows){s, lr, w, &z, rope, qkv, q, k, v, raw, gate});
    US_TRY(store(s, l, &z, raw, k, v));
    us_attn a = {.kv = e->layers[l].kv, .heads = r->H, .scale = (float)(r->score_scale > 0 ? r->score_scale : 1 / sqrt((double)z.Dk)), .window = lr->window,
                 .chunk = lr->chunk, .sinks = w->sinks};
    US_TRY(attend(s, l, false, &a, q, y));
    if (gate) us_eng_each_rows(e, T, gate_some, &(gate_job){gate, y, nq});
    return us_eng_apply(s, &w->o, w->o_bias, T, y, z.H * z.Dv, out, r->D);
}

/* ---- the indexer: which keys each query may see ---- */

/* allow[i] = 1 for the k largest of score[n]; ties to the lowest index. scratch: n floats. */
static void mark_best(const float *score, size_t n, size_t k, float *scratch, uint8_t *allow) {
    memset(allow, 0, n);
    if (k >= n) {
        memset(allow, 1, n);
        return;
    }
    memcpy(scratch, score, n * sizeof *score);
    size_t lo = 0, hi = n - 1; /* quickselect, descending: scratch[k-1] becomes the k-th largest */
    while (lo < hi) {
        float pivot = scratch[lo + (hi - lo) / 2];
        size_t i = lo, j = hi;
        while (i <= j) {
            while (scratch[i] > pivot) i++;
            while (scratch[j] < pivot) j--;
            if (i > j) break;
            float t = scratch[i];
            scratch[i++] = scratch[j];
            scratch[j] = t;
            if (j == 0) break;
            j--;
        }
        if (k - 1 <= j) hi = j;
        else if (k - 1 >= i) lo = i;
        else break;
    }
    float least = scratch[k - 1];
    size_t above = 0;
    for (size_t i = 0; i < n; i++) above += score[i] > least;
    size_t ties = k - above;
    for (size_t i = 0; i < n; i++) {
        if (score[i] > least) allow[i] = 1;
        else if (score[i] == least && ties) allow[i] = 1, ties--;
    }
}

typedef struct select_job {
    const float *dots, *w; /* [rows * heads, keys], [rows, heads] */
    size_t heads, keys, first, topk, lda;
    float dot_scale, head_scale;
    float *scratch;        /* rows of 2 * keys */
    uint8_t *allow;
} select_job;

static void select_one(void *arg, int64_t i, int thread) {
    (void)thread;
    const select_job *j = arg;
    size_t row = (size_t)i, visible = j->first + row + 1, keep = visible < j->topk ? visible : j->topk;
    float *score = j->scratch + row * 2 * j->keys;
    for (size_t k = 0; k < visible; k++) score[k] = 0;
    for (size_t h = 0; h < j->heads; h++) {
        const float *d = j->dots + (row * j->heads + h) * j->keys;
        float w = j->w[row * j->heads + h] * j->head_scale;
        for (size_t k = 0; k < visible; k++) {
            float dot = d[k] * j->dot_scale;
            score[k] += dot > 0 ? w * dot : 0;
        }
    }
    mark_best(score, visible, keep, score + j->keys, j->allow + row * j->lda);
    memset(j->allow + row * j->lda + visible, 0, j->lda - visible);
}

/* Scores of all queries of a segment against its index keys, blocks of queries at a time. */
static us_status select_segment(us_step *s, size_t g, const float *q, const float *w, const float *keys, uint8_t *allow) {
    enum { BLOCK = 16 };
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    size_t h = r->index_heads, di = r->index_dim, start = s->segs[g].seq->n, n = s->segs[g].n, all = start + n;
    uint64_t mark = e->scratch_used;
    us_gemm_packed packed = {.n = all, .k = di, .type = US_DTYPE_F32};
    US_ENG_SCRATCH(s, data, us_gemm_packed_bytes(US_DTYPE_F32, all, di) / sizeof(float));
    US_ENG_SCRATCH(s, dots, BLOCK * h * all);
    US_ENG_SCRATCH(s, scratch, BLOCK * 2 * all);
    us_gemm_pack_nt(US_DTYPE_F32, keys, di, all, di, data);
    packed.data = data;
    for (size_t t = 0; t < n; t += BLOCK) {
        size_t rows = n - t < BLOCK ? n - t : BLOCK;
        us_gemm(e->pool, rows * h, q + t * h * di, di, &packed, dots, all);
        select_job job = {dots, w + t * h, h, all, start + t, r->index_topk, all, (float)(1 / sqrt((double)di)), (float)(1 / sqrt((double)h)), scratch,
                          allow + t * all};
        us_pool_run(e->pool, select_one, &job, (int64_t)rows);
    }
    e->scratch_used = mark;
    return US_OK;
}

static us_status select_keys(us_step *s, uint32_t l, us_eng_mla *m, const float *x, const float *q_latent) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    us_eng_indexer *w = &m->index;
    size_t T = s->T, h = r->index_heads, di = r->index_dim;
    const us_rope *rope = &r->ropes[0];
    US_ENG_SCRATCH(s, q, T * h * di);
    US_ENG_SCRATCH(s, k, T * di);
    US_ENG_SCRATCH(s, weights, T * h);
    US_TRY(us_eng_apply(s, &w->q, NULL, T, q_latent, r->q_lora, q, h * di));
    US_TRY(us_eng_apply(s, &w->k, NULL, T, x, r->D, k, di));
    US_TRY(us_eng_apply_full(s, &w->w, NULL, T, x, r->D, weights, h));
    us_layernorm(k, di, w->norm.w, w->norm.b, 1e-6f, T, di, k, di);
    us_rotary(q, h * di, T, h, di, 0, rope->dims, s->cos[0], s->sin[0], r->index_pair, 1);
    us_rotary(k, di, T, 1, di, 0, rope->dims, s->cos[0], s->sin[0], r->index_pair, 1);
    for (size_t g = 0; g < s->n_segs; g++) {
        us_seq *seq = s->segs[g].seq;
        us_eng_state *st = &seq->layers[l];
        size_t n = s->segs[g].n, all = seq->n + n, row = s->row0[g];
        US_TRY(us_eng_rows(&st->rows, &st->cap_rows, all * di, s->err));
        memcpy(st->rows + seq->n * di, k + row * di, n * di * sizeof *k);
        if (all <= r->index_topk) { /* every visible key is chosen */
            s->allow[g] = NULL;
            continue;
        }
        if (!s->allow[g]) s->allow[g] = us_arena_alloc(&e->overflow, n * all);
        if (!s->allow[g]) return us_fail_nomem(s->err, "running the model");
        US_TRY(select_segment(s, g, q + row * h * di, weights + row * h, st->rows, s->allow[g]));
    }
    return US_OK;
}

/* ---- multi-head latent ---- */

typedef struct head_job {
    us_mat *mats;
    size_t T;
    const float *x;
    float *y;
    size_t ldx, step_x, ldy, step_y; /* head h at x + h*step_x, y + h*step_y */
} head_job;

static void head_one(void *arg, int64_t h, int thread) {
    (void)thread;
    const head_job *j = arg;
    us_gemm(NULL, j->T, j->x + (size_t)h * j->step_x, j->ldx, &j->mats[h].packed, j->y + (size_t)h * j->step_y, j->ldy);
}

/* One product a head, heads in parallel. */
static us_status per_head(us_step *s, us_mat *mats, const head_job *shape) {
    us_engine *e = s->e;
    size_t H = e->r.H, k = mats[0].packed.k;
    uint64_t mark = e->scratch_used;
    us_mat **list = us_arena_alloc(&e->overflow, H * sizeof *list);
    if (!list) return us_fail_nomem(s->err, "running the model");
    for (size_t h = 0; h < H; h++) list[h] = &mats[h];
    US_TRY(us_eng_prepare(e, list, H, s->err));
    head_job j = *shape;
    j.mats = mats;
    if (e->opt.compute == US_COMPUTE_BF16) {
        US_ENG_SCRATCH(s, rounded, s->T * H * k);
        for (size_t t = 0; t < s->T; t++)
            for (size_t h = 0; h < H; h++) us_round_bf16(j.x + t * j.ldx + h * j.step_x, k, rounded + (t * H + h) * k);
        j.x = rounded;
        j.ldx = H * k;
        j.step_x = k;
    }
    us_pool_run(e->pool, head_one, &j, (int64_t)H);
    e->scratch_used = mark;
    return US_OK;
}

/* Norm of the latent, scales, rotation of a token's queries and shared key. */
typedef struct mla_rows {
    const us_step *s;
    const us_eng_mla *w;
    const us_rope *rope;
    float *q, *kv;
} mla_rows;

static void mla_some(void *arg, size_t r0, size_t r1) {
    const mla_rows *j = arg;
    const us_recipe *r = &j->s->e->r;
    size_t rows = r1 - r0, H = r->H, N = r->nope, R = r->rope_dims, Dk = N + R, C = r->kv_lora, W = C + R;
    float *q = j->q + r0 * H * Dk, *kv = j->kv + r0 * W;
    us_rmsnorm(kv, W, j->w->kv_norm.w, 0, (float)r->latent_eps, rows, C, kv, W);
    scale_all(q, r->q_scale, rows * H * Dk);
    for (size_t t = 0; t < rows; t++) scale_all(kv + t * W, r->latent_scale, C);
    if (!j->rope) return;
    const float *cs = j->s->cos[0] + r0 * (j->rope->dims / 2), *sn = j->s->sin[0] + r0 * (j->rope->dims / 2);
    us_rotary(q, H * Dk, rows, H, Dk, N, R, cs, sn, j->rope->pair, 1);
    us_rotary(kv, W, rows, 1, W, C, R, cs, sn, j->rope->pair, 1);
}

us_status us_eng_run_mla(us_step *s, uint32_t l, us_eng_mla *w, bool second, const float *x, float *out) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    const us_rope *rope = r->layers[l].rope >= 0 ? &r->ropes[0] : NULL;
    size_t T = s->T, H = r->H, N = r->nope, R = r->rope_dims, Dk = N + R, Dv = r->v_head_dim, C = r->kv_lora, W = C + R;
    US_ENG_SCRATCH(s, q, T * H * Dk);
    US_ENG_SCRATCH(s, latent, T * (r->q_lora ? r->q_lora : 1));
    US_ENG_SCRATCH(s, kv, T * W);
    US_ENG_SCRATCH(s, wide, T * H * W);
    US_ENG_SCRATCH(s, mixed, T * H * C);
    US_ENG_SCRATCH(s, y, T * H * Dv);
    if (r->q_lora) {
        US_TRY(us_eng_apply(s, &w->q_a, w->q_a_bias, T, x, r->D, latent, r->q_lora));
        us_eng_norm_rows(e, &w->q_norm, 0, r->latent_eps, T, latent, latent);
        US_TRY(us_eng_apply(s, &w->q, NULL, T, latent, r->q_lora, q, H * Dk));
    } else {
        US_TRY(us_eng_apply(s, &w->q, NULL, T, x, r->D, q, H * Dk));
    }
    US_TRY(us_eng_apply(s, &w->kv_a, w->kv_a_bias, T, x, r->D, kv, W));
    us_eng_each_rows(e, T, mla_some, &(mla_rows){s, w, rope, q, kv});
    for (size_t g = 0; g < s->n_segs; g++) {
        us_seq *seq = s->segs[g].seq;
        us_eng_state *st = &seq->layers[l];
        us_page ***pages = second ? &st->pages2 : &st->pages;
        US_TRY(us_eng_pages(&e->layers[l].kv, pages, second ? &st->n_pages2 : &st->n_pages, second ? &st->cap_pages2 : &st->cap_pages, seq->n, seq->n + s->segs[g].n, s->err));
        us_eng_each_rows(e, s->segs[g].n, store_some, &(store_job){&e->layers[l].kv, *pages, seq->n, W, 0, kv + s->row0[g] * W, NULL});
    }
    if (r->index_topk && r->q_lora && !r->layers[l].index_shared) US_TRY(select_keys(s, l, w, x, latent));
    US_TRY(per_head(s, w->uk, &(head_job){.T = T, .x = q, .ldx = H * Dk, .step_x = Dk, .y = wide, .ldy = H * W, .step_y = W}));
    for (size_t i = 0; i < T * H; i++) memcpy(wide + i * W + C, q + i * Dk + N, R * sizeof *q);
    us_attn a = {.kv = e->layers[l].kv, .heads = r->H, .scale = (float)r->score_scale};
    US_TRY(attend(s, l, second, &a, wide, mixed));
    US_TRY(per_head(s, w->uv, &(head_job){.T = T, .x = mixed, .ldx = H * C, .step_x = C, .y = y, .ldy = H * Dv, .step_y = Dv}));
    return us_eng_apply(s, &w->o, w->o_bias, T, y, H * Dv, out, r->D);
}
