/* Driver of the oracle: weights on demand, layers in order, taps. The parts are in oracle_mix.c, oracle_recurrent.c, oracle_v4.c, oracle_ffn.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/oracle_internal.h"
#include "model/weights.h"

double *us_oracle_scratch(us_oracle *o, size_t n) {
    return us_arena_calloc(&o->step, n, sizeof(double));
}

us_status us_oracle_weight(us_oracle *o, int layer, const char *prefix, const char *names, size_t elements, bool optional, const double **w) {
    char name[256];
    const char *at = names;
    *w = NULL;
    while (*at) {
        int n = (int)strcspn(at, "|");
        if (layer >= 0) snprintf(name, sizeof name, "%s%d.%s%.*s", o->layers, layer, prefix, n, at);
        else snprintf(name, sizeof name, "%s%.*s", prefix, n, at);
        const us_ck_tensor *t = us_weight_find(o->st->ck, name);
        if (t) return us_weight_f64(o->st->ck, name, elements, &o->step, w, o->err);
        at += n + (at[n] == '|');
    }
    if (optional) return US_OK;
    us_fail(o->err, US_E_FORMAT, "tensor-missing", "the tensor \"%s\" is not in the checkpoint", name);
    return US_E_FORMAT;
}

us_status us_oracle_open(us_ctx *ctx, const us_structure *st, us_oracle **out, us_err *err) {
    us_oracle *o = us_calloc(1, sizeof *o);
    if (!o) return us_fail_nomem(err, "opening the oracle");
    o->ctx = ctx;
    o->st = st;
    o->err = err;
    us_status s = us_recipe_build(st, &o->r, err);
    if (s == US_OK) s = us_weight_prefix(st->ck, o->base, sizeof o->base, err);
    snprintf(o->layers, sizeof o->layers, "%.64slayers.", o->base);
    if (s != US_OK) {
        us_oracle_free(o);
        return s;
    }
    *out = o;
    return US_OK;
}

void us_oracle_free(us_oracle *o) {
    if (!o) return;
    us_recipe_free(&o->r);
    us_arena_free(&o->step);
    us_free(o->index_mask);
    us_free(o);
}

const us_recipe *us_oracle_recipe(const us_oracle *o) {
    return &o->r;
}

static void tap(us_oracle *o, uint32_t l, const char *what, const double *x, size_t cols) {
    if (o->taps && o->taps->layer) o->taps->layer(o->taps->user, l, what, x, o->T, cols);
}

static us_status norm(us_oracle *o, int l, const char *names, const double *x, size_t T, double *y) {
    const double *w, *b;
    char bias[128];
    size_t n = strcspn(names, "|");
    snprintf(bias, sizeof bias, "%.*s", (int)n, names);
    char *dot = strrchr(bias, '.');
    if (dot) snprintf(dot, sizeof bias - (size_t)(dot - bias), ".bias");
    US_TRY(us_oracle_weight(o, l, l < 0 ? o->base : "", names, o->r.D, false, &w));
    US_TRY(us_oracle_weight(o, l, l < 0 ? o->base : "", bias, o->r.D, true, &b));
    if (b) us_ref_layernorm(x, w, b, o->r.eps, T, o->r.D, y);
    else us_ref_rmsnorm(x, w, o->r.norm_plus, o->r.eps, T, o->r.D, y);
    return US_OK;
}

static us_status mix(us_oracle *o, uint32_t l, const double *x, double *y) {
    switch (o->r.layers[l].mixer) {
    case US_MIX_GQA: return us_oracle_gqa(o, l, x, y);
    case US_MIX_MLA: return us_oracle_mla(o, l, "self_attn.", x, y);
    case US_MIX_GDN: return us_oracle_gdn(o, l, x, y);
    case US_MIX_KDA: return us_oracle_kda(o, l, x, y);
    case US_MIX_MAMBA2: return us_oracle_mamba2(o, l, x, y);
    case US_MIX_V4: return us_oracle_v4(o, l, x, y);
    case US_MIX_NONE: break;
    }
    return US_OK;
}

static us_status feed(us_oracle *o, uint32_t l, const double *x, double *y) {
    return o->r.layers[l].moe ? us_oracle_moe(o, l, x, y) : us_oracle_mlp(o, l, "mlp.|feed_forward.|block_sparse_moe.|mixer.", x, y);
}

static void add(double *x, const double *y, double scale, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] += scale * y[i];
}

#define NORM_IN  "input_layernorm.weight|attn_norm.weight|norm.weight"
#define NORM_FFN "post_attention_layernorm.weight|ffn_norm.weight"

static us_status plain_layer(us_oracle *o, uint32_t l, double *x) {
    const us_layer_recipe *lr = &o->r.layers[l];
    size_t n = o->T * o->r.D;
    US_SCRATCH(o, h, n);
    US_SCRATCH(o, y, n);
    if (lr->mixer != US_MIX_NONE) {
        US_TRY(norm(o, (int)l, NORM_IN, x, o->T, h));
        US_TRY(mix(o, l, h, y));
        if (!o->r.single_mixer) tap(o, l, "attn", y, o->r.D);
        add(x, y, o->r.residual_scale, n);
    }
    if (lr->has_ffn) {
        US_TRY(norm(o, (int)l, o->r.single_mixer ? NORM_IN : NORM_FFN, x, o->T, h));
        US_TRY(feed(o, l, h, y));
        if (!o->r.single_mixer) tap(o, l, "ffn", y, o->r.D);
        add(x, y, o->r.residual_scale, n);
    }
    tap(o, l, "out", x, o->r.D);
    return US_OK;
}

/* longcat_flash: attention 0, MoE on its normed output (added at the very end), MLP 0, attention 1, MLP 1. */
static us_status longcat_layer(us_oracle *o, uint32_t l, double *x) {
    size_t n = o->T * o->r.D;
    US_SCRATCH(o, h, n);
    US_SCRATCH(o, y, n);
    US_SCRATCH(o, m, n);
    US_TRY(norm(o, (int)l, "input_layernorm.0.weight", x, o->T, h));
    US_TRY(us_oracle_mla(o, l, "self_attn.0.", h, y));
    add(x, y, 1, n);
    US_TRY(norm(o, (int)l, "post_attention_layernorm.0.weight", x, o->T, h));
    US_TRY(us_oracle_moe(o, l, h, m));
    tap(o, l, "ffn", m, o->r.D);
    US_TRY(us_oracle_mlp(o, l, "mlps.0.", h, y));
    add(x, y, 1, n);
    US_TRY(norm(o, (int)l, "input_layernorm.1.weight", x, o->T, h));
    US_TRY(us_oracle_mla(o, l, "self_attn.1.", h, y));
    add(x, y, 1, n);
    US_TRY(norm(o, (int)l, "post_attention_layernorm.1.weight", x, o->T, h));
    US_TRY(us_oracle_mlp(o, l, "mlps.1.", h, y));
    add(x, y, 1, n);
    add(x, m, 1, n);
    tap(o, l, "out", x, o->r.D);
    return US_OK;
}

/* new_stream_j = post_j y + sum_i comb[i][j] stream_i, for every token. */
static void hc_fold(const us_oracle *o, const double *y, const double *post, const double *comb, double *streams, double *scratch) {
    size_t hc = o->r.hc_mult, D = o->r.D;
    for (size_t t = 0; t < o->T; t++) {
        double *s = streams + t * hc * D;
        for (size_t j = 0; j < hc; j++)
            for (size_t d = 0; d < D; d++) {
                double v = post[t * hc + j] * y[t * D + d];
                for (size_t i = 0; i < hc; i++) v += comb[(t * hc + i) * hc + j] * s[i * D + d];
                scratch[j * D + d] = v;
            }
        memcpy(s, scratch, hc * D * sizeof *s);
    }
}

static us_status v4_layer(us_oracle *o, uint32_t l, double *streams) {
    size_t n = o->T * o->r.D, hc = o->r.hc_mult;
    US_SCRATCH(o, x, n);
    US_SCRATCH(o, h, n);
    US_SCRATCH(o, y, n);
    US_SCRATCH(o, post, o->T * hc);
    US_SCRATCH(o, comb, o->T * hc * hc);
    US_SCRATCH(o, tmp, hc * o->r.D);
    US_TRY(us_oracle_hc_mix(o, l, "hc_attn_", streams, x, post, comb));
    US_TRY(norm(o, (int)l, NORM_IN, x, o->T, h));
    US_TRY(mix(o, l, h, y));
    tap(o, l, "attn", y, o->r.D);
    hc_fold(o, y, post, comb, streams, tmp);
    US_TRY(us_oracle_hc_mix(o, l, "hc_ffn_", streams, x, post, comb));
    US_TRY(norm(o, (int)l, NORM_FFN, x, o->T, h));
    US_TRY(feed(o, l, h, y));
    tap(o, l, "ffn", y, o->r.D);
    hc_fold(o, y, post, comb, streams, tmp);
    tap(o, l, "out", streams, hc * o->r.D);
    return US_OK;
}

static us_status embed(us_oracle *o, double *x) {
    size_t D = o->r.D, hc = o->r.hc_mult;
    const double *e;
    US_TRY(us_oracle_weight(o, -1, o->base, "embed_tokens.weight|embeddings.weight|embed.weight|word_embeddings.weight", (size_t)o->r.V * D, false, &e));
    for (size_t t = 0; t < o->T; t++)
        for (size_t s = 0; s < hc; s++)
            for (size_t d = 0; d < D; d++) x[(t * hc + s) * D + d] = e[(size_t)o->ids[t] * D + d] * o->r.embed_scale;
    return US_OK;
}

/* Final mix of the streams (deepseek_v4), norm, head. */
static us_status finish(us_oracle *o, const double *x, double *logits) {
    size_t D = o->r.D, hc = o->r.hc_mult;
    const double *w, *bias;
    US_SCRATCH(o, h, o->T * D);
    US_SCRATCH(o, n, o->T * D);
    if (hc > 1) {
        US_TRY(us_oracle_hc_mix(o, UINT32_MAX, "hc_head", x, h, NULL, NULL));
        x = h;
    }
    US_TRY(norm(o, -1, "norm.weight|norm_f.weight|final_layernorm.weight", x, o->T, n));
    US_TRY(us_oracle_weight(o, -1, "", "lm_head.weight|head.weight|language_model.lm_head.weight", (size_t)o->r.V * D, true, &w));
    if (!w && !o->r.tie_head)
        return us_fail(o->err, US_E_REFUSED, "tensor-missing", "config.json says the head is not tied, but the checkpoint has no lm_head.weight");
    if (!w) US_TRY(us_oracle_weight(o, -1, o->base, "embed_tokens.weight|embeddings.weight|embed.weight", (size_t)o->r.V * D, false, &w));
    US_TRY(us_oracle_weight(o, -1, "", "lm_head.bias", o->r.V, true, &bias));
    us_ref_linear(n, w, bias, o->T, D, o->r.V, logits);
    if (o->r.logits_divisor != 1)
        for (size_t i = 0; i < o->T * o->r.V; i++) logits[i] /= o->r.logits_divisor;
    return US_OK;
}

static us_status check_ids(us_oracle *o, const int64_t *ids, size_t T, us_err *err) {
    if (T == 0) return us_fail(err, US_E_INVAL, "empty", "a sequence needs at least one token");
    if (o->r.max_positions && T > o->r.max_positions)
        return us_fail(err, US_E_REFUSED, "context", "a sequence of %zu tokens is longer than the model's context of %llu", T,
                       (unsigned long long)o->r.max_positions);
    for (size_t t = 0; t < T; t++)
        if (ids[t] < 0 || ids[t] >= o->r.V)
            return us_fail(err, US_E_REFUSED, "token-range", "token %zu is %lld, the vocabulary has 0 to %u", t, (long long)ids[t], o->r.V - 1);
    return US_OK;
}

static us_status run_layers(us_oracle *o, double *x) {
    for (uint32_t l = 0; l < o->r.L; l++) {
        us_status s = us_ctx_check(o->ctx, o->err);
        if (s == US_OK) s = o->r.two_attentions ? longcat_layer(o, l, x) : o->r.hc_mult > 1 ? v4_layer(o, l, x) : plain_layer(o, l, x);
        us_arena_free(&o->step);
        if (s != US_OK) {
            us_err_where(o->err, "layer %u", l);
            return s;
        }
    }
    return US_OK;
}

us_status us_oracle_forward(us_oracle *o, const int64_t *ids, size_t T, const us_oracle_taps *taps, double *logits, us_err *err) {
    US_TRY(check_ids(o, ids, T, err));
    us_status s = US_E_NOMEM;
    double *x = us_calloc(T * o->r.hc_mult * o->r.D, sizeof *x);
    int64_t *positions = us_malloc(T * sizeof *positions);
    o->err = err;
    o->ids = ids;
    o->positions = positions;
    o->T = T;
    o->taps = taps;
    us_free(o->index_mask);
    o->index_mask = o->r.index_topk ? us_malloc(T * T) : NULL;
    if (!x || !positions || (o->r.index_topk && !o->index_mask)) {
        us_fail_nomem(err, "running the oracle");
        goto done;
    }
    for (size_t t = 0; t < T; t++) positions[t] = (int64_t)t;
    US_GO(embed(o, x));
    us_arena_free(&o->step);
    US_GO(run_layers(o, x));
    US_GO(finish(o, x, logits));
done:
    us_arena_free(&o->step);
    us_free(x);
    us_free(positions);
    return s;
}
