/* Oracle: attention of the GQA and MLA kinds, with windows, sinks, gates, and the sparse-attention indexer. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/oracle_internal.h"

/* y[T,N] = x W^T + b for "<prefix><name>.weight|bias" of layer l. */
static us_status project(us_oracle *o, uint32_t l, const char *prefix, const char *weight, const char *bias, const double *x, size_t K, size_t N, double *y) {
    const double *w, *b = NULL;
    US_TRY(us_oracle_weight(o, (int)l, prefix, weight, K * N, false, &w));
    if (bias) US_TRY(us_oracle_weight(o, (int)l, prefix, bias, N, true, &b));
    us_ref_linear(x, w, b, o->T, K, N, y);
    return US_OK;
}

static void rotate(us_oracle *o, const us_rope *rope, bool pair, double *x, size_t heads, size_t width, size_t from, double sign) {
    double inv_freq[US_ROPE_DIMS_MAX / 2], multiplier;
    us_rope_table(rope, o->T, inv_freq, &multiplier);
    us_ref_rope(x, o->T, heads, width, from, rope->dims, inv_freq, multiplier, pair, sign, o->positions);
}

/* Query and key norms: one weight per head, or one over all heads; which is told by the weight's size. */
static us_status qk_norm(us_oracle *o, uint32_t l, const char *prefix, const char *name, double *x, size_t heads, size_t width) {
    char full[256];
    const double *w;
    snprintf(full, sizeof full, "%s%u.%s%s", o->layers, l, prefix, name);
    const us_ck_tensor *t = us_ck_find(o->st->ck, us_str_z(full));
    if (!t) return US_OK;
    size_t n = t->rank == 1 && t->shape[0] == width ? width : heads * width;
    US_TRY(us_oracle_weight(o, (int)l, prefix, name, n, false, &w));
    us_ref_rmsnorm(x, w, o->r.norm_plus, o->r.eps, o->T * heads * width / n, n, x);
    return US_OK;
}

/* Rows of "<name>.weight" with `cols` columns, from the tensor itself: gates and per-layer key heads change them. */
static us_status rows_of(us_oracle *o, uint32_t l, const char *prefix, const char *name, size_t cols, size_t *rows) {
    char full[256];
    snprintf(full, sizeof full, "%s%u.%s%s", o->layers, l, prefix, name);
    const us_ck_tensor *t = us_ck_find(o->st->ck, us_str_z(full));
    if (!t || t->rank != 2 || t->shape[1] != cols)
        return us_fail(o->err, US_E_FORMAT, t ? "shape" : "tensor-missing", "the tensor \"%s\" is missing or does not have %zu columns", full, cols);
    *rows = (size_t)t->shape[0];
    return US_OK;
}

static void split_gate(const double *both, size_t rows, size_t width, double *q, double *gate) {
    for (size_t i = 0; i < rows; i++) {
        memcpy(q + i * width, both + 2 * i * width, width * sizeof *q);
        memcpy(gate + i * width, both + (2 * i + 1) * width, width * sizeof *q);
    }
}

us_status us_oracle_gqa(us_oracle *o, uint32_t l, const double *x, double *out) {
    const us_recipe *r = &o->r;
    const us_layer_recipe *lr = &r->layers[l];
    const char *p = r->single_mixer ? "mixer." : "self_attn.";
    size_t T = o->T, H = r->H, Dk = r->head_dim, Dv = r->v_head_dim, q_rows = 0, k_rows = 0;
    US_TRY(rows_of(o, l, p, "q_proj.weight", r->D, &q_rows));
    US_TRY(rows_of(o, l, p, "k_proj.weight", r->D, &k_rows));
    size_t G = k_rows / Dk;
    bool gated = q_rows == 2 * H * Dk;
    if ((q_rows != H * Dk && !gated) || G == 0 || k_rows % Dk || H % G)
        return us_fail(o->err, US_E_FORMAT, "shape", "query rows %zu and key rows %zu do not fit %zu heads of %zu", q_rows, k_rows, H, Dk);
    US_SCRATCH(o, both, T * q_rows);
    US_SCRATCH(o, q, T * H * Dk);
    US_SCRATCH(o, gate, T * H * Dk);
    US_SCRATCH(o, k, T * k_rows);
    US_SCRATCH(o, v, T * G * Dv);
    US_SCRATCH(o, y, T * H * Dv);
    US_SCRATCH(o, scores, T);
    US_TRY(project(o, l, p, "q_proj.weight", "q_proj.bias", x, r->D, q_rows, both));
    US_TRY(project(o, l, p, "k_proj.weight", "k_proj.bias", x, r->D, k_rows, k));
    US_TRY(project(o, l, p, "v_proj.weight", "v_proj.bias", x, r->D, G * Dv, v));
    if (gated) split_gate(both, T * H, Dk, q, gate);
    else memcpy(q, both, T * H * Dk * sizeof *q);
    if (!r->qk_norm_after_rope) {
        US_TRY(qk_norm(o, l, p, "q_norm.weight", q, H, Dk));
        US_TRY(qk_norm(o, l, p, "k_norm.weight", k, G, Dk));
    }
    if (lr->rope >= 0) {
        const us_rope *rope = &r->ropes[lr->rope];
        rotate(o, rope, rope->pair, q, H, Dk, 0, 1);
        rotate(o, rope, rope->pair, k, G, Dk, 0, 1);
    }
    if (r->qk_norm_after_rope) {
        US_TRY(qk_norm(o, l, p, "query_layernorm.weight", q, H, Dk));
        US_TRY(qk_norm(o, l, p, "key_layernorm.weight", k, G, Dk));
    }
    if (r->qk_l2 && lr->rope >= 0) {
        us_ref_rmsnorm(q, NULL, 0, r->eps, T * H, Dk, q);
        us_ref_rmsnorm(k, NULL, 0, r->eps, T * G, Dk, k);
    }
    for (size_t t = 0; lr->temperature && t < T; t++) {
        double f = 1 + r->temperature_scale * log1p(floor(((double)t + 1) / r->temperature_floor));
        for (size_t i = 0; i < H * Dk; i++) q[t * H * Dk + i] *= f;
    }
    for (size_t i = 0; i < T * G * Dv; i++) v[i] *= r->value_scale;
    const double *sinks;
    US_TRY(us_oracle_weight(o, (int)l, p, "sinks|attention_sink_bias", H, true, &sinks));
    us_ref_mask mask = {lr->window, lr->chunk, NULL};
    us_ref_attention(q, k, v, T, H, G, Dk, Dv, r->score_scale > 0 ? r->score_scale : 1 / sqrt((double)Dk), &mask, sinks, scores, y);
    for (size_t i = 0; gated && i < T * H * Dv; i++) y[i] *= us_ref_sigmoid(gate[i]);
    return project(o, l, p, "o_proj.weight", "o_proj.bias", y, H * Dv, r->D, out);
}

/* Which keys each query may see: the best index_topk of the visible ones, ties to the lowest position. */
static us_status select_keys(us_oracle *o, uint32_t l, const char *p, const double *x, const double *q_latent) {
    const us_recipe *r = &o->r;
    size_t T = o->T, n = r->index_heads, di = r->index_dim;
    US_SCRATCH(o, q, T * n * di);
    US_SCRATCH(o, k, T * di);
    US_SCRATCH(o, w, T * n);
    US_SCRATCH(o, score, T);
    const double *kw, *kb;
    US_TRY(project(o, l, p, "indexer.wq_b.weight", NULL, q_latent, r->q_lora, n * di, q));
    US_TRY(project(o, l, p, "indexer.wk.weight", NULL, x, r->D, di, k));
    US_TRY(project(o, l, p, "indexer.weights_proj.weight", NULL, x, r->D, n, w));
    US_TRY(us_oracle_weight(o, (int)l, p, "indexer.k_norm.weight", di, false, &kw));
    US_TRY(us_oracle_weight(o, (int)l, p, "indexer.k_norm.bias", di, true, &kb));
    us_ref_layernorm(k, kw, kb, 1e-6, T, di, k);
    rotate(o, &r->ropes[0], r->index_pair, q, n, di, 0, 1);
    rotate(o, &r->ropes[0], r->index_pair, k, 1, di, 0, 1);
    uint32_t *best = us_arena_alloc(&o->step, T * sizeof *best);
    if (!best) return us_fail_nomem(o->err, "running the oracle");
    memset(o->index_mask, 0, T * T);
    for (size_t t = 0; t < T; t++) {
        for (size_t s = 0; s <= t; s++) {
            score[s] = 0;
            for (size_t h = 0; h < n; h++) {
                double dot = 0;
                for (size_t c = 0; c < di; c++) dot += q[(t * n + h) * di + c] * k[s * di + c];
                dot /= sqrt((double)di);
                if (dot > 0) score[s] += w[t * n + h] / sqrt((double)n) * dot;
            }
        }
        size_t keep = t + 1 < r->index_topk ? t + 1 : r->index_topk;
        us_ref_topk(score, t + 1, keep, best);
        for (size_t i = 0; i < keep; i++) o->index_mask[t * T + best[i]] = 1;
    }
    return US_OK;
}

us_status us_oracle_mla(us_oracle *o, uint32_t l, const char *p, const double *x, double *out) {
    const us_recipe *r = &o->r;
    const us_layer_recipe *lr = &r->layers[l];
    size_t T = o->T, H = r->H, N = r->nope, R = r->rope_dims, Dk = N + R, Dv = r->v_head_dim, C = r->kv_lora;
    US_SCRATCH(o, q, T * H * Dk);
    US_SCRATCH(o, latent, T * (r->q_lora ? r->q_lora : 1));
    US_SCRATCH(o, kv, T * (C + R));
    US_SCRATCH(o, c, T * C);
    US_SCRATCH(o, kvb, T * H * (N + Dv));
    US_SCRATCH(o, k, T * H * Dk);
    US_SCRATCH(o, v, T * H * Dv);
    US_SCRATCH(o, kr, T * R);
    US_SCRATCH(o, y, T * H * Dv);
    US_SCRATCH(o, scores, T);
    const double *w;
    if (r->q_lora) {
        US_TRY(project(o, l, p, "q_a_proj.weight", "q_a_proj.bias", x, r->D, r->q_lora, latent));
        US_TRY(us_oracle_weight(o, (int)l, p, "q_a_layernorm.weight", r->q_lora, false, &w));
        us_ref_rmsnorm(latent, w, 0, r->latent_eps, T, r->q_lora, latent);
        US_TRY(project(o, l, p, "q_b_proj.weight", NULL, latent, r->q_lora, H * Dk, q));
    } else {
        US_TRY(project(o, l, p, "q_proj.weight", NULL, x, r->D, H * Dk, q));
    }
    US_TRY(project(o, l, p, "kv_a_proj_with_mqa.weight", "kv_a_proj_with_mqa.bias", x, r->D, C + R, kv));
    for (size_t t = 0; t < T; t++) {
        memcpy(c + t * C, kv + t * (C + R), C * sizeof *c);
        memcpy(kr + t * R, kv + t * (C + R) + C, R * sizeof *kr);
    }
    US_TRY(us_oracle_weight(o, (int)l, p, "kv_a_layernorm.weight", C, false, &w));
    us_ref_rmsnorm(c, w, 0, r->latent_eps, T, C, c);
    for (size_t i = 0; i < T * H * Dk; i++) q[i] *= r->q_scale;
    for (size_t i = 0; i < T * C; i++) c[i] *= r->latent_scale;
    US_TRY(project(o, l, p, "kv_b_proj.weight", NULL, c, C, H * (N + Dv), kvb));
    if (lr->rope >= 0) {
        rotate(o, &r->ropes[0], r->ropes[0].pair, q, H, Dk, N, 1);
        rotate(o, &r->ropes[0], r->ropes[0].pair, kr, 1, R, 0, 1);
    }
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++) {
            const double *src = kvb + (t * H + h) * (N + Dv);
            memcpy(k + (t * H + h) * Dk, src, N * sizeof *k);
            memcpy(k + (t * H + h) * Dk + N, kr + t * R, R * sizeof *k);
            memcpy(v + (t * H + h) * Dv, src + N, Dv * sizeof *v);
        }
    us_ref_mask mask = {0, 0, NULL};
    if (r->index_topk && r->q_lora) {
        if (!lr->index_shared) US_TRY(select_keys(o, l, p, x, latent));
        mask.allow = o->index_mask;
    }
    us_ref_attention(q, k, v, T, H, H, Dk, Dv, r->score_scale, &mask, NULL, scores, y);
    return project(o, l, p, "o_proj.weight", "o_proj.bias", y, H * Dv, r->D, out);
}
