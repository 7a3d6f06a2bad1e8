/* Oracle: deepseek_v4 - hyper-connections, compressed and sparse attention with one key-value head. Spec: families-2026.md 4 and 12. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/oracle_internal.h"

/* comb: softmax over the last axis + eps, one column step, then iters-1 rounds of (row step, column step); divisors + eps. */
static void sinkhorn(double *m, size_t n, uint32_t iters, double eps) {
    for (size_t i = 0; i < n; i++) {
        us_ref_softmax(m + i * n, n);
        for (size_t j = 0; j < n; j++) m[i * n + j] += eps;
    }
    for (uint32_t round = 0; round < iters; round++) {
        for (size_t i = 0; round && i < n; i++) {
            double sum = eps;
            for (size_t j = 0; j < n; j++) sum += m[i * n + j];
            for (size_t j = 0; j < n; j++) m[i * n + j] /= sum;
        }
        for (size_t j = 0; j < n; j++) {
            double sum = eps;
            for (size_t i = 0; i < n; i++) sum += m[i * n + j];
            for (size_t i = 0; i < n; i++) m[i * n + j] /= sum;
        }
    }
}

static us_status hc_weight(us_oracle *o, uint32_t l, const char *which, const char *part, size_t n, const double **w) {
    char names[128];
    if (l != UINT32_MAX) {
        snprintf(names, sizeof names, "%s%s", which, part);
        return us_oracle_weight(o, (int)l, "", names, n, false, w);
    }
    snprintf(names, sizeof names, "%s_%s|%s.hc_%s", which, part, which, part); /* released and re-saved spelling of the head */
    return us_oracle_weight(o, -1, o->base, names, n, false, w);
}

us_status us_oracle_hc_mix(us_oracle *o, uint32_t l, const char *which, const double *streams, double *x, double *post, double *comb) {
    const us_recipe *r = &o->r;
    size_t hc = r->hc_mult, D = r->D, wide = hc * D, rows = post ? (2 + hc) * hc : hc;
    const double *fn, *base, *scale;
    US_TRY(hc_weight(o, l, which, "fn", rows * wide, &fn));
    US_TRY(hc_weight(o, l, which, "base", rows, &base));
    US_TRY(hc_weight(o, l, which, "scale", post ? 3 : 1, &scale));
    US_SCRATCH(o, normed, o->T * wide);
    US_SCRATCH(o, m, o->T * rows);
    us_ref_rmsnorm(streams, NULL, 0, r->eps, o->T, wide, normed);
    us_ref_linear(normed, fn, NULL, o->T, wide, rows, m);
    for (size_t t = 0; t < o->T; t++) {
        const double *mix = m + t * rows, *s = streams + t * wide;
        memset(x + t * D, 0, D * sizeof *x);
        for (size_t i = 0; i < hc; i++) {
            double pre = us_ref_sigmoid(scale[0] * mix[i] + base[i]) + r->hc_eps;
            for (size_t d = 0; d < D; d++) x[t * D + d] += pre * s[i * D + d];
        }
        if (!post) continue;
        for (size_t i = 0; i < hc; i++) post[t * hc + i] = 2 * us_ref_sigmoid(scale[1] * mix[hc + i] + base[hc + i]);
        double *c = comb + t * hc * hc;
        for (size_t i = 0; i < hc * hc; i++) c[i] = scale[2] * mix[2 * hc + i] + base[2 * hc + i];
        sinkhorn(c, hc, r->hc_iters, r->hc_eps);
    }
    return US_OK;
}

static us_status linear(us_oracle *o, uint32_t l, const char *prefix, const char *name, const double *x, size_t K, size_t N, double *y) {
    const double *w;
    US_TRY(us_oracle_weight(o, (int)l, prefix, name, K * N, false, &w));
    us_ref_linear(x, w, NULL, o->T, K, N, y);
    return US_OK;
}

static void rotate(us_oracle *o, const us_rope *rope, double *x, size_t T, size_t heads, size_t width, double sign, const int64_t *positions) {
    double inv_freq[US_ROPE_DIMS_MAX / 2], multiplier;
    us_rope_table(rope, o->T, inv_freq, &multiplier);
    us_ref_rope(x, T, heads, width, width - rope->dims, rope->dims, inv_freq, multiplier, true, sign, positions);
}

/* One compressed entry: softmax over the window's tokens per channel. kv, gate [T, width]; the overlapping kind takes channels [0,d) of the window before
 * and [d,2d) of its own. */
static void compress_entry(const double *kv, const double *gate, const double *ape, size_t entry, size_t ratio, size_t d, bool overlap, double *scratch,
                           double *out) {
    size_t width = overlap ? 2 * d : d, first = overlap && entry > 0 ? 0 : overlap ? ratio : 0, n = overlap ? 2 * ratio : ratio;
    for (size_t c = 0; c < d; c++) {
        for (size_t i = first; i < n; i++) {
            bool own = !overlap || i >= ratio;
            size_t t = (own ? entry : entry - 1) * ratio + i % ratio, ch = c + (overlap && own ? d : 0);
            scratch[i] = gate[t * width + ch] + ape[i % ratio * width + ch];
        }
        us_ref_softmax(scratch + first, n - first);
        out[c] = 0;
        for (size_t i = first; i < n; i++) {
            bool own = !overlap || i >= ratio;
            size_t t = (own ? entry : entry - 1) * ratio + i % ratio, ch = c + (overlap && own ? d : 0);
            out[c] += scratch[i] * kv[t * width + ch];
        }
    }
}

/* entries[n,d] of layer l's compressor below `prefix` (attention's own, or the indexer's). */
static us_status compress(us_oracle *o, uint32_t l, const char *prefix, const double *x, size_t d, double *entries) {
    const us_layer_recipe *lr = &o->r.layers[l];
    size_t T = o->T, ratio = lr->compress, n = T / ratio, width = lr->compress_sparse ? 2 * d : d;
    const double *ape, *nw;
    US_SCRATCH(o, kv, T * width);
    US_SCRATCH(o, gate, T * width);
    US_SCRATCH(o, scratch, 2 * ratio);
    US_TRY(linear(o, l, prefix, "compressor.wkv.weight", x, o->r.D, width, kv));
    US_TRY(linear(o, l, prefix, "compressor.wgate.weight", x, o->r.D, width, gate));
    US_TRY(us_oracle_weight(o, (int)l, prefix, "compressor.ape", ratio * width, false, &ape));
    US_TRY(us_oracle_weight(o, (int)l, prefix, "compressor.norm.weight", d, false, &nw));
    int64_t *positions = us_arena_alloc(&o->step, (n + 1) * sizeof *positions);
    if (!positions) return us_fail_nomem(o->err, "running the oracle");
    for (size_t j = 0; j < n; j++) {
        compress_entry(kv, gate, ape, j, ratio, d, lr->compress_sparse, scratch, entries + j * d);
        positions[j] = (int64_t)(j * ratio);
    }
    us_ref_rmsnorm(entries, nw, 0, o->r.eps, n, d, entries);
    rotate(o, &o->r.ropes[1], entries, n, 1, d, 1, positions);
    return US_OK;
}

/* allow[T,n]: which entries each query reads. Entry j is visible to position p iff j < floor((p+1)/ratio); the sparse kind keeps the best index_topk. */
static us_status select_entries(us_oracle *o, uint32_t l, const double *x, const double *q_latent, size_t n, uint8_t *allow) {
    const us_recipe *r = &o->r;
    const us_layer_recipe *lr = &r->layers[l];
    size_t T = o->T, h = r->index_heads, di = r->index_dim;
    for (size_t t = 0; t < T; t++)
        for (size_t j = 0; j < n; j++) allow[t * n + j] = j < (t + 1) / lr->compress;
    if (!lr->compress_sparse) return US_OK;
    US_SCRATCH(o, k, (n + 1) * di);
    US_SCRATCH(o, q, T * h * di);
    US_SCRATCH(o, w, T * h);
    US_SCRATCH(o, score, n + 1);
    US_TRY(compress(o, l, "attn.indexer.", x, di, k));
    US_TRY(linear(o, l, "attn.", "indexer.wq_b.weight", q_latent, r->q_lora, h * di, q));
    US_TRY(linear(o, l, "attn.", "indexer.weights_proj.weight", x, r->D, h, w));
    rotate(o, &r->ropes[1], q, T, h, di, 1, o->positions);
    uint32_t *best = us_arena_alloc(&o->step, (n + 1) * sizeof *best);
    if (!best) return us_fail_nomem(o->err, "running the oracle");
    for (size_t t = 0; t < T; t++) {
        size_t visible = (t + 1) / lr->compress, keep = visible < r->index_topk ? visible : r->index_topk;
        for (size_t j = 0; j < visible; j++) {
            score[j] = 0;
            for (size_t i = 0; i < h; i++) {
                double dot = 0;
                for (size_t c = 0; c < di; c++) dot += q[(t * h + i) * di + c] * k[j * di + c];
                if (dot > 0) score[j] += w[t * h + i] / sqrt((double)h) * dot / sqrt((double)di);
            }
        }
        us_ref_topk(score, visible, keep, best);
        memset(allow + t * n, 0, n);
        for (size_t i = 0; i < keep; i++) allow[t * n + best[i]] = 1;
    }
    return US_OK;
}

/* Softmax over [window keys | allowed entries | sink] for every head; keys are values. */
static void attend(const us_oracle *o, const us_layer_recipe *lr, const double *q, const double *kv, const double *entries, size_t n, const uint8_t *allow,
                   const double *sinks, double *score, double *y) {
    size_t T = o->T, H = o->r.H, d = o->r.head_dim;
    double scale = 1 / sqrt((double)d);
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++) {
            const double *qv = q + (t * H + h) * d;
            double *out = y + (t * H + h) * d, max = sinks[h], sum;
            for (size_t j = 0; j <= t + n; j++) {
                bool entry = j > t, seen = entry ? allow[t * n + (j - t - 1)] : !lr->window || t - j < lr->window;
                const double *key = entry ? entries + (j - t - 1) * d : kv + j * d;
                score[j] = -(double)INFINITY;
                if (!seen) continue;
                score[j] = 0;
                for (size_t c = 0; c < d; c++) score[j] += qv[c] * key[c];
                score[j] *= scale;
                if (score[j] > max) max = score[j];
            }
            sum = exp(sinks[h] - max);
            memset(out, 0, d * sizeof *out);
            for (size_t j = 0; j <= t + n; j++) {
                const double *key = j > t ? entries + (j - t - 1) * d : kv + j * d;
                double w = exp(score[j] - max);
                sum += w;
                for (size_t c = 0; w > 0 && c < d; c++) out[c] += w * key[c];
            }
            for (size_t c = 0; c < d; c++) out[c] /= sum;
        }
}

/* Heads in o_groups groups: wo_a per group down to o_lora, then wo_b. */
static us_status project_out(us_oracle *o, uint32_t l, const double *y, double *out) {
    const us_recipe *r = &o->r;
    size_t groups = r->o_groups, per = r->H / groups * r->head_dim, rank = r->o_lora;
    const double *wa;
    US_SCRATCH(o, low, o->T * groups * rank);
    US_TRY(us_oracle_weight(o, (int)l, "attn.", "wo_a.weight", groups * rank * per, false, &wa));
    for (size_t t = 0; t < o->T; t++)
        for (size_t g = 0; g < groups; g++)
            us_ref_linear(y + (t * groups + g) * per, wa + g * rank * per, NULL, 1, per, rank, low + (t * groups + g) * rank);
    return linear(o, l, "attn.", "wo_b.weight", low, groups * rank, r->D, out);
}

us_status us_oracle_v4(us_oracle *o, uint32_t l, const double *x, double *out) {
    const us_recipe *r = &o->r;
    const us_layer_recipe *lr = &r->layers[l];
    size_t T = o->T, H = r->H, d = r->head_dim, n = lr->compress ? T / lr->compress : 0;
    const us_rope *rope = &r->ropes[lr->rope];
    if (!r->q_lora || H % r->o_groups || rope->dims > d || (r->index_dim && rope->dims > r->index_dim))
        return us_fail(o->err, US_E_FORMAT, "range", "the sizes of the attention do not fit together");
    const double *w, *sinks;
    US_SCRATCH(o, latent, T * r->q_lora);
    US_SCRATCH(o, q, T * H * d);
    US_SCRATCH(o, kv, T * d);
    US_SCRATCH(o, entries, (n + 1) * d);
    US_SCRATCH(o, score, T + n + 1);
    US_SCRATCH(o, y, T * H * d);
    uint8_t *allow = us_arena_calloc(&o->step, T, n + 1);
    if (!allow) return us_fail_nomem(o->err, "running the oracle");
    US_TRY(linear(o, l, "attn.", "wq_a.weight", x, r->D, r->q_lora, latent));
    US_TRY(us_oracle_weight(o, (int)l, "attn.", "q_norm.weight", r->q_lora, false, &w));
    us_ref_rmsnorm(latent, w, 0, r->eps, T, r->q_lora, latent);
    US_TRY(linear(o, l, "attn.", "wq_b.weight", latent, r->q_lora, H * d, q));
    us_ref_rmsnorm(q, NULL, 0, r->eps, T * H, d, q);
    US_TRY(linear(o, l, "attn.", "wkv.weight", x, r->D, d, kv));
    US_TRY(us_oracle_weight(o, (int)l, "attn.", "kv_norm.weight|norm.weight", d, false, &w));
    us_ref_rmsnorm(kv, w, 0, r->eps, T, d, kv);
    rotate(o, rope, q, T, H, d, 1, o->positions);
    rotate(o, rope, kv, T, 1, d, 1, o->positions);
    if (lr->compress) {
        US_TRY(compress(o, l, "attn.", x, d, entries));
        US_TRY(select_entries(o, l, x, latent, n, allow));
    }
    US_TRY(us_oracle_weight(o, (int)l, "attn.", "attn_sink", H, false, &sinks));
    attend(o, lr, q, kv, entries, n, allow, sinks, score, y);
    rotate(o, rope, y, T, H, d, -1, o->positions);
    return project_out(o, l, y, out);
}
