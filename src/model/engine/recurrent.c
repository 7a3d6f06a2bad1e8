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

/* Convolve every segment's rows [T, C] (stride ldx) with its own tail. */
static void convolve(us_step *s, uint32_t l, const float *x, size_t ldx, const float *w, const float *bias, size_t C, float *y) {
    for (size_t g = 0; g < s->n_segs; g++)
        us_conv1d(x + s->row0[g] * ldx, ldx, w, bias, s->segs[g].n, C, s->e->r.conv_width, true, s->segs[g].seq->layers[l].tail, y + s->row0[g] * C, C);
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

/* Normalise queries and keys, which lie side by side in front of every row, and scale the queries. */
static void normalise_qk(const us_step *s, float *conv, size_t C, size_t heads, size_t K) {
    for (size_t t = 0; t < s->T; t++) {
        us_l2norm(conv + t * C, K, 1e-6f, 2 * heads, K);
        scale_all(conv + t * C, (float)(1 / sqrt((double)K)), heads * K);
    }
}

/* qwen3_next: the projections lie grouped per key head, [q k v z] and [b a]. */
static void ungroup(const us_step *s, const float *all, const float *ba, float *qkvz, float *b, float *a) {
    const us_recipe *r = &s->e->r;
    size_t Hk = r->key_heads, Hv = r->value_heads, K = r->key_dim, V = r->value_dim, rep = Hv / Hk, key = Hk * K, value = Hv * V, C = 2 * key + value;
    size_t per = 2 * K + 2 * rep * V, W = C + value;
    for (size_t t = 0; t < s->T; t++)
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
        ungroup(s, in, ba, qkvz, b, a);
        in = qkvz;
    } else {
        for (size_t t = 0; t < T; t++) {
            memcpy(b + t * Hv, ba + t * 2 * Hv, Hv * sizeof *b);
            memcpy(a + t * Hv, ba + t * 2 * Hv + Hv, Hv * sizeof *a);
        }
    }
    convolve(s, l, in, W, w->conv, NULL, C, conv);
    normalise_qk(s, conv, C, Hk, K);
    for (size_t i = 0; i < T * Hv; i++) a[i] = decay(w->a_log[i % Hv], a[i], w->dt_bias[i % Hv]);
    us_sigmoid(b, T * Hv);
    us_delta d = {(uint32_t)Hk, (uint32_t)Hv, (uint32_t)K, (uint32_t)V, false, e->opt.exact};
    US_TRY(run_delta(s, l, &d, &(delta_in){conv, C, key, a, b, Hv, Hv, value, y}));
    us_rmsnorm(y, V, w->norm.w, 0, (float)r->eps, T * Hv, V, y, V); /* plain weight here, whatever the other norms do */
    for (size_t t = 0; t < T; t++) us_silu(in + t * W + C, value);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < value; i++) y[t * value + i] *= in[t * W + C + i];
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
    normalise_qk(s, conv, 3 * n, H, K);
    US_TRY(us_eng_apply(s, &w->f_a, NULL, T, x, r->D, low, K));
    US_TRY(us_eng_apply(s, &w->f_b, NULL, T, low, K, g, n));
    US_TRY(us_eng_apply(s, &w->g_a, NULL, T, x, r->D, low, K));
    US_TRY(us_eng_apply(s, &w->g_b, NULL, T, low, K, gate, n));
    US_TRY(us_eng_apply(s, &w->b, NULL, T, x, r->D, beta, H));
    for (size_t i = 0; i < T * n; i++) g[i] = decay(w->a_log[i / K % H], g[i], w->dt_bias[i % n]);
    us_sigmoid(beta, T * H);
    us_delta d = {(uint32_t)H, (uint32_t)H, (uint32_t)K, (uint32_t)K, true, e->opt.exact};
    US_TRY(run_delta(s, l, &d, &(delta_in){conv, 3 * n, n, g, beta, n, H, n, y}));
    us_rmsnorm(y, K, w->norm.w, 0, (float)r->eps, T * H, K, y, K);
    us_sigmoid(gate, T * n);
    for (size_t i = 0; i < T * n; i++) y[i] *= gate[i];
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
