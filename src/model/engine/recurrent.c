/* Recurrent mixers of the engine: projections, short convolution, gates, and the state of every sequence. */
#include <math.h>
#include <string.h>

#include "model/engine/internal.h"

static void scale_all(float *x, float f, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] *= f;
}

/* -exp(A) softplus(x + bias), in double: decay gates are sensitive and few. */
static float decay(float a_log, float x, float bias) {
    double z = (double)x + (double)bias;
    return (float)(-exp((double)a_log) * (z > 20 ? z : log1p(exp(z))));
}

/* Channels of a block are convolved by themselves, so that a long text keeps all threads busy. */
enum { CONV_BLOCK = 256 };

typedef struct conv_job {
    us_step *s;
    uint32_t layer;
    const float *x, *w, *bias;
    size_t ldx, C, blocks;
    float *y;
} conv_job;

static void conv_one(void *arg, int64_t i, int thread) {
    (void)thread;
    const conv_job *j = arg;
    size_t g = (size_t)i / j->blocks, c = (size_t)i % j->blocks * CONV_BLOCK, n = j->C - c < CONV_BLOCK ? j->C - c : CONV_BLOCK, row = j->s->row0[g], K = j->s->e->r.conv_width;
    us_conv1d(j->x + row * j->ldx + c, j->ldx, j->w + c * K, j->bias ? j->bias + c : NULL, j->s->segs[g].n, n, K, true, j->s->segs[g].seq->layers[j->layer].tail + c, j->C, j->y + row * j->C + c, j->C);
}

/* Convolve every segment's rows [T, C] (stride ldx) with its own tail. */
static void convolve(us_step *s, uint32_t l, const float *x, size_t ldx, const float *w, const float *bias, size_t C, float *y) {
    conv_job j = {s, l, x, w, bias, ldx, C, (C + CONV_BLOCK - 1) / CONV_BLOCK, y};
    us_pool_run(s->e->pool, conv_one, &j, (int64_t)(s->n_segs * j.blocks));
}

typedef struct delta_in {
    const float *conv;  /* [T, 2 key + value] */
    size_t C, key;
    const float *g, *beta;
    size_t g_cols, heads, value;
    float *out;
} delta_in;

static us_status run_delta(us_step *s, uint32_t l, const us_delta *d, const delta_in *in) {
    us_delta_seq *seqs = us_arena_calloc(&s->e->overflow, s->n_segs, sizeof *seqs);
    if (!seqs) return us_fail_nomem(s->err, "running the model");
    for (size_t g = 0; g < s->n_segs; g++) {
        size_t row = s->row0[g];
        const float *c = in->conv + row * in->C;
        seqs[g] = (us_delta_seq){.n = s->segs[g].n, .q = c, .k = c + in->key, .ldqk = in->C, .v = c + 2 * in->key, .ldv = in->C,
                                 .g = in->g + row * in->g_cols, .beta = in->beta + row * in->heads, .state = s->segs[g].seq->layers[l].state,
                                 .out = in->out + row * in->value, .ldo = in->value};
    }
    return us_delta_rule(s->e->pool, d, seqs, s->n_segs, s->err);
}

/* Queries and keys, side by side in front of every row, normalised, the queries scaled; and the gates of the row. */
typedef struct gate_rows {
    float *conv;
    size_t C, heads, K;         /* key heads, key width */
    float *g, *beta;            /* [T, g_cols] raw, becomes the log decay; [T, n_beta] */
    size_t g_cols, per_decay, n_beta, n_decays;
    const float *a_log, *dt_bias;
} gate_rows;

static void gates_some(void *arg, size_t r0, size_t r1) {
    const gate_rows *j = arg;
    for (size_t t = r0; t < r1; t++) {
        float *q = j->conv + t * j->C, *g = j->g + t * j->g_cols;
        us_l2norm(q, j->K, 1e-6f, 2 * j->heads, j->K);
        scale_all(q, (float)(1 / sqrt((double)j->K)), j->heads * j->K);
        for (size_t i = 0; i < j->g_cols; i++) g[i] = decay(j->a_log[i / j->per_decay % j->n_decays], g[i], j->dt_bias[i]);
    }
    us_sigmoid(j->beta + r0 * j->n_beta, (r1 - r0) * j->n_beta);
}

/* qwen3_next: the projections lie grouped per key head, [q k v z] and [b a]. */
typedef struct ungroup_rows {
    const us_recipe *r;
    const float *all, *ba;
    float *qkvz, *b, *a;
} ungroup_rows;

static void ungroup_some(void *arg, size_t r0, size_t r1) {
    const ungroup_rows *j = arg;
    const us_recipe *r = j->r;
    const float *all = j->all, *ba = j->ba;
    float *qkvz = j->qkvz, *b = j->b, *a = j->a;
    size_t Hk = r->key_heads, Hv = r->value_heads, K = r->key_dim, V = r->value_dim, rep = Hv / Hk, key = Hk * K, value = Hv * V, C = 2 * key + value;
    size_t per = 2 * K + 2 * rep * V, W = C + value;
    for (size_t t = r0; t < r1; t++)
        for (size_t h = 0; h < Hk; h++) {
            const float *src = all + t * W + h * per, *sba = ba + t * 2 * Hv + h * 2 * rep;
            float *to = qkvz + t * W;
            memcpy(to + h * K, src, K * sizeof *src);
            memcpy(to + key + h * K, src + K, K * sizeof *src);
            memcpy(to + 2 * key + h * rep * V, src + 2 * K, rep * V * sizeof *src);
            memcpy(to + C + h * rep * V, src + 2 * K + rep * V, rep * V * sizeof *src);
            memcpy(b + t * Hv + h * rep, sba, rep * sizeof *sba);
            memcpy(a + t * Hv + h * rep, sba + rep, rep * sizeof *sba);
        }
}

/* y = norm(y) gate, gate a sigmoid or a silu of what lies in rows of its own stride. */
typedef struct out_rows {
    float *y, *gate;
    size_t n, width, ldg; /* n columns in groups of `width` that are normalised */
    const float *w;
    float eps;
    bool silu;
} out_rows;

static void out_some(void *arg, size_t r0, size_t r1) {
    const out_rows *j = arg;
    for (size_t t = r0; t < r1; t++) {
        float *y = j->y + t * j->n, *g = j->gate + t * j->ldg;
        us_rmsnorm(y, j->width, j->w, 0, j->eps, j->n / j->width, j->width, y, j->width);
        if (j->silu) us_silu(g, j->n);
        else us_sigmoid(g, j->n);
        for (size_t i = 0; i < j->n; i++) y[i] *= g[i];
    }
}

us_status us_eng_run_gdn(us_step *s, uint32_t l, const float *x, float *out) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    us_eng_gdn *w = &e->layers[l].gdn;
    size_t T = s->T, Hk = r->key_heads, Hv = r->value_heads, K = r->key_dim, V = r->value_dim, key = Hk * K, value = Hv * V, C = 2 * key + value, W = C + value;
    US_ENG_SCRATCH(s, in, T * W);
    US_ENG_SCRATCH(s, ba, T * 2 * Hv);
    US_ENG_SCRATCH(s, conv, T * C);
    US_ENG_SCRATCH(s, b, T * Hv);
    US_ENG_SCRATCH(s, a, T * Hv);
    US_ENG_SCRATCH(s, y, T * value);
    US_TRY(us_eng_apply(s, &w->in, NULL, T, x, r->D, in, W));
    US_TRY(us_eng_apply(s, &w->ba, NULL, T, x, r->D, ba, 2 * Hv));
    if (w->grouped) {
        US_ENG_SCRATCH(s, qkvz, T * W);
        us_eng_each_rows(e, T, ungroup_some, &(ungroup_rows){r, in, ba, qkvz, b, a});
        in = qkvz;
    } else {
        for (size_t t = 0; t < T; t++) {
            memcpy(b + t * Hv, ba + t * 2 * Hv, Hv * sizeof *b);
            memcpy(a + t * Hv, ba + t * 2 * Hv + Hv, Hv * sizeof *a);
        }
    }
    convolve(s, l, in, W, w->conv, NULL, C, conv);
    us_eng_each_rows(e, T, gates_some, &(gate_rows){conv, C, Hk, K, a, b, Hv, 1, Hv, Hv, w->a_log, w->dt_bias});
    us_delta d = {(uint32_t)Hk, (uint32_t)Hv, (uint32_t)K, (uint32_t)V, false, e->opt.exact};
    US_TRY(run_delta(s, l, &d, &(delta_in){conv, C, key, a, b, Hv, Hv, value, y}));
    us_eng_each_rows(e, T, out_some, &(out_rows){y, in + C, value, V, W, w->norm.w, (float)r->eps, true}); /* plain weight here, whatever the other norms do */
    return us_eng_apply(s, &w->out, NULL, T, y, value, out, r->D);
}

us_status us_eng_run_kda(us_step *s, uint32_t l, const float *x, float *out) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    us_eng_kda *w = &e->layers[l].kda;
    size_t T = s->T, H = r->key_heads, K = r->key_dim, n = H * K;
    US_ENG_SCRATCH(s, in, T * 3 * n);
    US_ENG_SCRATCH(s, conv, T * 3 * n);
    US_ENG_SCRATCH(s, low, T * K);
    US_ENG_SCRATCH(s, g, T * n);
    US_ENG_SCRATCH(s, gate, T * n);
    US_ENG_SCRATCH(s, beta, T * H);
    US_ENG_SCRATCH(s, y, T * n);
    US_TRY(us_eng_apply(s, &w->qkv, NULL, T, x, r->D, in, 3 * n));
    convolve(s, l, in, 3 * n, w->conv, NULL, 3 * n, conv);
    US_TRY(us_eng_apply(s, &w->f_a, NULL, T, x, r->D, low, K));
    US_TRY(us_eng_apply(s, &w->f_b, NULL, T, low, K, g, n));
    US_TRY(us_eng_apply(s, &w->g_a, NULL, T, x, r->D, low, K));
    US_TRY(us_eng_apply(s, &w->g_b, NULL, T, low, K, gate, n));
    US_TRY(us_eng_apply(s, &w->b, NULL, T, x, r->D, beta, H));
    us_eng_each_rows(e, T, gates_some, &(gate_rows){conv, 3 * n, H, K, g, beta, n, K, H, H, w->a_log, w->dt_bias});
    us_delta d = {(uint32_t)H, (uint32_t)H, (uint32_t)K, (uint32_t)K, true, e->opt.exact};
    US_TRY(run_delta(s, l, &d, &(delta_in){conv, 3 * n, n, g, beta, n, H, n, y}));
    us_eng_each_rows(e, T, out_some, &(out_rows){y, gate, n, K, n, w->norm.w, (float)r->eps, false});
    return us_eng_apply(s, &w->out, NULL, T, y, n, out, r->D);
}

us_status us_eng_run_mamba2(us_step *s, uint32_t l, const float *x, float *out) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    us_eng_mamba *w = &e->layers[l].mamba;
    size_t T = s->T, H = r->mamba_heads, P = r->mamba_dim, G = r->mamba_groups, N = r->mamba_state, inner = H * P, C = inner + 2 * G * N, W = inner + C + H;
    US_ENG_SCRATCH(s, all, T * W);
    US_ENG_SCRATCH(s, conv, T * C);
    US_ENG_SCRATCH(s, dt, T * H);
    US_ENG_SCRATCH(s, y, T * inner);
    US_TRY(us_eng_apply(s, &w->in, NULL, T, x, r->D, all, W));
    convolve(s, l, all + inner, W, w->conv, w->conv_bias, C, conv);
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++) {
            double z = (double)all[t * W + inner + C + h] + (double)w->dt_bias[h], d = z > 20 ? z : log1p(exp(z));
            dt[t * H + h] = (float)(d < r->dt_min ? r->dt_min : d);
        }
    us_mamba2 m = {(uint32_t)H, (uint32_t)P, (uint32_t)G, (uint32_t)N, w->a, w->d, e->opt.exact};
    us_mamba2_seq *seqs = us_arena_calloc(&e->overflow, s->n_segs, sizeof *seqs);
    if (!seqs) return us_fail_nomem(s->err, "running the model");
    for (size_t g = 0; g < s->n_segs; g++) {
        size_t row = s->row0[g];
        const float *c = conv + row * C;
        seqs[g] = (us_mamba2_seq){.n = s->segs[g].n, .x = c, .B = c + inner, .C = c + inner + G * N, .ldx = C, .ldbc = C, .dt = dt + row * H,
                                  .state = s->segs[g].seq->layers[l].state, .out = y + row * inner, .ldo = inner};
    }
    US_TRY(us_mamba2_run(e->pool, &m, seqs, s->n_segs, s->err));
    for (size_t t = 0; t < T; t++) {
        us_silu(all + t * W, inner);
        for (size_t i = 0; i < inner; i++) y[t * inner + i] *= all[t * W + i];
    }
    us_rmsnorm(y, inner / G, NULL, 0, (float)r->eps, T * G, inner / G, y, inner / G);
    for (size_t i = 0; i < T * inner; i++) y[i] *= w->norm.w[i % inner];
    return us_eng_apply(s, &w->out, NULL, T, y, inner, out, r->D);
}
