/* Oracle: gated DeltaNet, Kimi delta attention, Mamba-2. Serial recurrences, as the formulas stand. */
#include <math.h>
#include <string.h>

#include "model/oracle_internal.h"

static us_status linear(us_oracle *o, uint32_t l, const char *prefix, const char *name, const double *x, size_t K, size_t N, double *y) {
    const double *w;
    US_TRY(us_oracle_weight(o, (int)l, prefix, name, K * N, false, &w));
    us_ref_linear(x, w, NULL, o->T, K, N, y);
    return US_OK;
}

/* qwen3_next stores the projections grouped per key head, [q k v z] and [b a]; qwen3_5 stores four plain tensors. Out: qkv [T, q|k|v], z, b, a. */
static us_status gdn_inputs(us_oracle *o, uint32_t l, const double *x, double *qkv, double *z, double *b, double *a) {
    const us_recipe *r = &o->r;
    const char *p = "linear_attn.";
    size_t T = o->T, Hk = r->key_heads, Hv = r->value_heads, K = r->key_dim, V = r->value_dim, rep = Hv / Hk;
    size_t key = Hk * K, value = Hv * V, C = 2 * key + value;
    const double *grouped;
    US_TRY(us_oracle_weight(o, (int)l, p, "in_proj_qkvz.weight", (C + value) * r->D, true, &grouped));
    if (!grouped) {
        US_TRY(linear(o, l, p, "in_proj_qkv.weight", x, r->D, C, qkv));
        US_TRY(linear(o, l, p, "in_proj_z.weight", x, r->D, value, z));
        US_TRY(linear(o, l, p, "in_proj_b.weight", x, r->D, Hv, b));
        return linear(o, l, p, "in_proj_a.weight", x, r->D, Hv, a);
    }
    US_SCRATCH(o, all, T * (C + value));
    US_SCRATCH(o, ba, T * 2 * Hv);
    us_ref_linear(x, grouped, NULL, T, r->D, C + value, all);
    US_TRY(linear(o, l, p, "in_proj_ba.weight", x, r->D, 2 * Hv, ba));
    size_t per = 2 * K + 2 * rep * V;
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < Hk; h++) {
            const double *src = all + t * (C + value) + h * per, *sba = ba + t * 2 * Hv + h * 2 * rep;
            memcpy(qkv + t * C + h * K, src, K * sizeof *src);
            memcpy(qkv + t * C + key + h * K, src + K, K * sizeof *src);
            memcpy(qkv + t * C + 2 * key + h * rep * V, src + 2 * K, rep * V * sizeof *src);
            memcpy(z + t * value + h * rep * V, src + 2 * K + rep * V, rep * V * sizeof *src);
            memcpy(b + t * Hv + h * rep, sba, rep * sizeof *sba);
            memcpy(a + t * Hv + h * rep, sba + rep, rep * sizeof *sba);
        }
    return US_OK;
}

us_status us_oracle_gdn(us_oracle *o, uint32_t l, const double *x, double *out) {
    const us_recipe *r = &o->r;
    const char *p = "linear_attn.";
    size_t T = o->T, Hk = r->key_heads, Hv = r->value_heads, K = r->key_dim, V = r->value_dim;
    if (!Hk || !Hv || !K || !V || Hv % Hk) return us_fail(o->err, US_E_FORMAT, "range", "the sizes of the linear attention do not fit together");
    size_t key = Hk * K, value = Hv * V, C = 2 * key + value;
    US_SCRATCH(o, qkv, T * C);
    US_SCRATCH(o, conv, T * C);
    US_SCRATCH(o, z, T * value);
    US_SCRATCH(o, b, T * Hv);
    US_SCRATCH(o, a, T * Hv);
    US_SCRATCH(o, q, T * key);
    US_SCRATCH(o, k, T * key);
    US_SCRATCH(o, v, T * value);
    US_SCRATCH(o, state, K * V);
    US_SCRATCH(o, y, T * value);
    const double *cw, *A, *dt, *nw;
    US_TRY(gdn_inputs(o, l, x, qkv, z, b, a));
    US_TRY(us_oracle_weight(o, (int)l, p, "conv1d.weight", C * r->conv_width, false, &cw));
    US_TRY(us_oracle_weight(o, (int)l, p, "A_log", Hv, false, &A));
    US_TRY(us_oracle_weight(o, (int)l, p, "dt_bias", Hv, false, &dt));
    US_TRY(us_oracle_weight(o, (int)l, p, "norm.weight", V, false, &nw));
    us_ref_conv1d(qkv, cw, NULL, T, C, r->conv_width, true, conv);
    for (size_t t = 0; t < T; t++) {
        memcpy(q + t * key, conv + t * C, key * sizeof *q);
        memcpy(k + t * key, conv + t * C + key, key * sizeof *k);
        memcpy(v + t * value, conv + t * C + 2 * key, value * sizeof *v);
    }
    us_ref_l2norm(q, 1e-6, T * Hk, K);
    us_ref_l2norm(k, 1e-6, T * Hk, K);
    for (size_t i = 0; i < T * key; i++) q[i] /= sqrt((double)K);
    for (size_t i = 0; i < T * Hv; i++) {
        a[i] = -exp(A[i % Hv]) * us_ref_softplus(a[i] + dt[i % Hv]);
        b[i] = us_ref_sigmoid(b[i]);
    }
    us_ref_delta_rule(q, k, v, a, false, b, T, Hk, Hv, K, V, state, y);
    us_ref_rmsnorm(y, nw, 0, r->eps, T * Hv, V, y); /* plain weight here, whatever the other norms do */
    for (size_t i = 0; i < T * value; i++) y[i] *= us_ref_silu(z[i]);
    return linear(o, l, p, "out_proj.weight", y, value, r->D, out);
}

/* One of q, k, v: projection, short convolution, silu. */
static us_status kda_stream(us_oracle *o, uint32_t l, const char *proj, const char *conv, const double *x, size_t n, double *y) {
    const double *w;
    US_SCRATCH(o, raw, o->T * n);
    US_TRY(linear(o, l, "self_attn.", proj, x, o->r.D, n, raw));
    US_TRY(us_oracle_weight(o, (int)l, "self_attn.", conv, n * o->r.conv_width, false, &w));
    us_ref_conv1d(raw, w, NULL, o->T, n, o->r.conv_width, true, y);
    return US_OK;
}

us_status us_oracle_kda(us_oracle *o, uint32_t l, const double *x, double *out) {
    const us_recipe *r = &o->r;
    const char *p = "self_attn.";
    size_t T = o->T, H = r->key_heads, K = r->key_dim, n = H * K;
    if (!H || !K) return us_fail(o->err, US_E_FORMAT, "range", "the sizes of the linear attention do not fit together");
    US_SCRATCH(o, q, T * n);
    US_SCRATCH(o, k, T * n);
    US_SCRATCH(o, v, T * n);
    US_SCRATCH(o, low, T * K);
    US_SCRATCH(o, g, T * n);
    US_SCRATCH(o, gate, T * n);
    US_SCRATCH(o, beta, T * H);
    US_SCRATCH(o, state, K * K);
    US_SCRATCH(o, y, T * n);
    const double *A, *dt, *nw;
    US_TRY(kda_stream(o, l, "q_proj.weight", "q_conv1d.weight", x, n, q));
    US_TRY(kda_stream(o, l, "k_proj.weight", "k_conv1d.weight", x, n, k));
    US_TRY(kda_stream(o, l, "v_proj.weight", "v_conv1d.weight", x, n, v));
    us_ref_l2norm(q, 1e-6, T * H, K);
    us_ref_l2norm(k, 1e-6, T * H, K);
    for (size_t i = 0; i < T * n; i++) q[i] /= sqrt((double)K);
    US_TRY(linear(o, l, p, "f_a_proj.weight", x, r->D, K, low));
    US_TRY(linear(o, l, p, "f_b_proj.weight", low, K, n, g));
    US_TRY(linear(o, l, p, "g_a_proj.weight", x, r->D, K, low));
    US_TRY(linear(o, l, p, "g_b_proj.weight", low, K, n, gate));
    US_TRY(linear(o, l, p, "b_proj.weight", x, r->D, H, beta));
    US_TRY(us_oracle_weight(o, (int)l, p, "A_log", H, false, &A));
    US_TRY(us_oracle_weight(o, (int)l, p, "dt_bias", n, false, &dt));
    US_TRY(us_oracle_weight(o, (int)l, p, "o_norm.weight", K, false, &nw));
    for (size_t i = 0; i < T * n; i++) g[i] = -exp(A[i / K % H]) * us_ref_softplus(g[i] + dt[i % n]);
    for (size_t i = 0; i < T * H; i++) beta[i] = us_ref_sigmoid(beta[i]);
    us_ref_delta_rule(q, k, v, g, true, beta, T, H, H, K, K, state, y);
    us_ref_rmsnorm(y, nw, 0, r->eps, T * H, K, y);
    for (size_t i = 0; i < T * n; i++) y[i] *= us_ref_sigmoid(gate[i]);
    return linear(o, l, p, "o_proj.weight", y, n, r->D, out);
}

us_status us_oracle_mamba2(us_oracle *o, uint32_t l, const double *x, double *out) {
    const us_recipe *r = &o->r;
    const char *p = "mixer.";
    size_t T = o->T, H = r->mamba_heads, P = r->mamba_dim, G = r->mamba_groups, N = r->mamba_state, inner = H * P, C = inner + 2 * G * N;
    if (!H || !P || !G || !N || H % G) return us_fail(o->err, US_E_FORMAT, "range", "the sizes of the Mamba layers do not fit together");
    size_t rows = inner + C + H;
    US_SCRATCH(o, all, T * rows);
    US_SCRATCH(o, raw, T * C);
    US_SCRATCH(o, conv, T * C);
    US_SCRATCH(o, xs, T * inner);
    US_SCRATCH(o, bs, T * G * N);
    US_SCRATCH(o, cs, T * G * N);
    US_SCRATCH(o, dt, T * H);
    US_SCRATCH(o, A, H);
    US_SCRATCH(o, state, P * N);
    US_SCRATCH(o, y, T * inner);
    const double *cw, *cb, *A_log, *D, *dt_bias, *nw;
    US_TRY(linear(o, l, p, "in_proj.weight", x, r->D, rows, all));
    US_TRY(us_oracle_weight(o, (int)l, p, "conv1d.weight", C * r->conv_width, false, &cw));
    US_TRY(us_oracle_weight(o, (int)l, p, "conv1d.bias", C, true, &cb));
    US_TRY(us_oracle_weight(o, (int)l, p, "A_log", H, false, &A_log));
    US_TRY(us_oracle_weight(o, (int)l, p, "D", H, false, &D));
    US_TRY(us_oracle_weight(o, (int)l, p, "dt_bias", H, false, &dt_bias));
    US_TRY(us_oracle_weight(o, (int)l, p, "norm.weight", inner, false, &nw));
    for (size_t t = 0; t < T; t++) memcpy(raw + t * C, all + t * rows + inner, C * sizeof *raw);
    us_ref_conv1d(raw, cw, cb, T, C, r->conv_width, true, conv);
    for (size_t t = 0; t < T; t++) {
        memcpy(xs + t * inner, conv + t * C, inner * sizeof *xs);
        memcpy(bs + t * G * N, conv + t * C + inner, G * N * sizeof *bs);
        memcpy(cs + t * G * N, conv + t * C + inner + G * N, G * N * sizeof *cs);
        for (size_t h = 0; h < H; h++) {
            double d = us_ref_softplus(all[t * rows + inner + C + h] + dt_bias[h]);
            dt[t * H + h] = d < r->dt_min ? r->dt_min : d;
        }
    }
    for (size_t h = 0; h < H; h++) A[h] = -exp(A_log[h]);
    us_ref_mamba2(xs, bs, cs, dt, A, D, T, H, P, G, N, state, y);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < inner; i++) y[t * inner + i] *= us_ref_silu(all[t * rows + i]);
    us_ref_rmsnorm(y, NULL, 0, r->eps, T * G, inner / G, y);
    for (size_t i = 0; i < T * inner; i++) y[i] *= nw[i % inner];
    return linear(o, l, p, "out_proj.weight", y, inner, r->D, out);
}
