/* deepseek_v4 in the engine: hyper-connections, window + compressed attention with one key-value head, its indexer. Spec: families-2026.md 4 and 12. */
#include <math.h>
#include <string.h>

#include "model/engine/internal.h"

/* ---- hyper-connections ---- */

/* comb: softmax over the last axis + eps, one column step, then iters-1 rounds of (row step, column step); divisors + eps. */
static void sinkhorn(double *m, size_t n, uint32_t iters, double eps) {
    for (size_t i = 0; i < n; i++) {
        double max = m[i * n], sum = 0;
        for (size_t j = 1; j < n; j++) max = m[i * n + j] > max ? m[i * n + j] : max;
        for (size_t j = 0; j < n; j++) sum += m[i * n + j] = exp(m[i * n + j] - max);
        for (size_t j = 0; j < n; j++) m[i * n + j] = m[i * n + j] / sum + eps;
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

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

us_status us_eng_hc_mix(us_step *s, us_eng_hc *w, bool head, const float *streams, float *x, float *post, float *comb) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    size_t hc = r->hc_mult, D = r->D, wide = hc * D, rows = w->fn.packed.n, T = s->T;
    enum { HC_MAX = 16 };
    if (hc > HC_MAX) return us_fail(s->err, US_E_UNSUPPORTED, "limit", "more than %d residual streams", HC_MAX);
    US_ENG_SCRATCH(s, normed, T * wide);
    US_ENG_SCRATCH(s, m, T * rows);
    us_rmsnorm(streams, wide, NULL, 0, (float)r->eps, T, wide, normed, wide);
    US_TRY(us_eng_apply_full(s, &w->fn, NULL, T, normed, wide, m, rows));
    for (size_t t = 0; t < T; t++) {
        const float *mix = m + t * rows, *st = streams + t * wide;
        memset(x + t * D, 0, D * sizeof *x);
        for (size_t i = 0; i < hc; i++) {
            double pre = sigmoid((double)w->scale[0] * (double)mix[i] + (double)w->base[i]) + r->hc_eps;
            us_axpy((float)pre, st + i * D, D, x + t * D);
        }
        if (head) continue;
        for (size_t i = 0; i < hc; i++) post[t * hc + i] = (float)(2 * sigmoid((double)w->scale[1] * (double)mix[hc + i] + (double)w->base[hc + i]));
        double c[HC_MAX * HC_MAX];
        for (size_t i = 0; i < hc * hc; i++) c[i] = (double)w->scale[2] * (double)mix[2 * hc + i] + (double)w->base[2 * hc + i];
        sinkhorn(c, hc, r->hc_iters, r->hc_eps);
        for (size_t i = 0; i < hc * hc; i++) comb[t * hc * hc + i] = (float)c[i];
    }
    return US_OK;
}

/* ---- compressed entries ---- */

/*
 * Entry j is a softmax-weighted mean per channel over its window's tokens. The overlapping kind (width 2d) takes channels [0, d) of the window before and
 * [d, 2d) of its own. ring: kv | gate rows of the last 2 * ratio positions.
 */
static void compress_entry(const float *ring, const float *ape, size_t entry, size_t ratio, size_t d, bool overlap, float *out) {
    size_t width = overlap ? 2 * d : d, first = overlap && entry == 0 ? ratio : 0, n = overlap ? 2 * ratio : ratio;
    for (size_t c = 0; c < d; c++) {
        double max = -(double)INFINITY, sum = 0, mean = 0;
        for (int pass = 0; pass < 2; pass++)
            for (size_t i = first; i < n; i++) {
                bool own = !overlap || i >= ratio;
                size_t t = (own ? entry : entry - 1) * ratio + i % ratio, ch = c + (overlap && own ? d : 0);
                const float *row = ring + t % (2 * ratio) * 2 * width;
                double z = (double)row[width + ch] + (double)ape[i % ratio * width + ch];
                if (pass == 0) {
                    max = z > max ? z : max;
                    continue;
                }
                z = exp(z - max);
                sum += z;
                mean += z * (double)row[ch];
            }
        out[c] = (float)(mean / sum);
    }
}

/* Feed the rows of all segments to a compressor; every full window appends an entry, normed and rotated at its first position. */
static us_status compress(us_step *s, uint32_t l, us_eng_compressor *w, bool index, const float *x) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    const us_layer_recipe *lr = &r->layers[l];
    const us_rope *rope = &r->ropes[1];
    size_t d = w->dim, ratio = lr->compress, width = w->kv.packed.n, half = rope->dims / 2;
    US_ENG_SCRATCH(s, kv, s->T * width);
    US_ENG_SCRATCH(s, gate, s->T * width);
    US_TRY(us_eng_apply(s, &w->kv, NULL, s->T, x, r->D, kv, width));
    US_TRY(us_eng_apply(s, &w->gate, NULL, s->T, x, r->D, gate, width));
    for (size_t g = 0; g < s->n_segs; g++) {
        us_seq *seq = s->segs[g].seq;
        us_eng_state *st = &seq->layers[l];
        float **entries = index ? &st->index_entries : &st->entries, *ring = index ? st->index_pending : st->pending;
        size_t *cap = index ? &st->cap_index_entries : &st->cap_entries;
        US_TRY(us_eng_rows(entries, cap, ((seq->n + s->segs[g].n) / ratio + 1) * d, s->err));
        double inv[US_ROPE_DIMS_MAX / 2], multiplier;
        us_rope_table(rope, seq->n + s->segs[g].n, inv, &multiplier);
        for (size_t t = 0; t < s->segs[g].n; t++) {
            size_t p = seq->n + t, row = s->row0[g] + t;
            float *to = ring + p % (2 * ratio) * 2 * width;
            memcpy(to, kv + row * width, width * sizeof *kv);
            memcpy(to + width, gate + row * width, width * sizeof *gate);
            if ((p + 1) % ratio) continue;
            size_t j = p / ratio;
            float *entry = *entries + j * d, cs[US_ROPE_DIMS_MAX / 2], sn[US_ROPE_DIMS_MAX / 2];
            compress_entry(ring, w->ape, j, ratio, d, lr->compress_sparse, entry);
            us_rmsnorm(entry, d, w->norm.w, 0, (float)r->eps, 1, d, entry, d);
            for (size_t i = 0; i < half; i++) {
                cs[i] = (float)(cos((double)(j * ratio) * inv[i]) * multiplier);
                sn[i] = (float)(sin((double)(j * ratio) * inv[i]) * multiplier);
            }
            us_rotary(entry, d, 1, 1, d, d - rope->dims, rope->dims, cs, sn, true, 1);
        }
    }
    return US_OK;
}

/* ---- attention over [window | entries | sink] ---- */

enum { LANES = 16 };

/* Sixteen partial sums, then a fixed tree: the same for every row. */
static float dot(const float *a, const float *b, size_t n) {
    float part[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++) part[k] += a[i + k] * b[i + k];
    for (; i < n; i++) part[i % LANES] += a[i] * b[i];
    for (size_t w = LANES / 2; w; w /= 2)
        for (size_t k = 0; k < w; k++) part[k] += part[k + w];
    return part[0];
}

typedef struct v4_job {
    const us_step *s;
    uint32_t l;
    const float *q, *index_q, *index_w, *sinks;
    float *y, *scores;     /* scores: [T, room] */
    size_t room;
    size_t *segment;       /* of every row */
} v4_job;

/* Which entries a query reads: all visible, or the best index_topk by the indexer. list gets their numbers, ascending. */
static size_t choose_entries(const v4_job *j, const us_eng_state *st, size_t row, size_t visible, float *score, uint32_t *list) {
    const us_recipe *r = &j->s->e->r;
    size_t h = r->index_heads, di = r->index_dim, n = 0;
    if (!r->layers[j->l].compress_sparse || visible <= r->index_topk) {
        for (size_t i = 0; i < visible; i++) list[i] = (uint32_t)i;
        return visible;
    }
    float head_scale = (float)(1 / sqrt((double)h)), dot_scale = (float)(1 / sqrt((double)di));
    for (size_t i = 0; i < visible; i++) {
        score[i] = 0;
        for (size_t k = 0; k < h; k++) {
            float d = dot(j->index_q + (row * h + k) * di, st->index_entries + i * di, di);
            if (d > 0) score[i] += j->index_w[row * h + k] * head_scale * d * dot_scale;
        }
    }
    /* The best, one by one; ties to the lowest number. */
    for (size_t k = 0; k < r->index_topk; k++) {
        size_t best = visible;
        for (size_t i = 0; i < visible; i++)
            if (score[i] > -INFINITY && (best == visible || score[i] > score[best])) best = i;
        if (best == visible) break;
        score[best] = -INFINITY;
    }
    for (size_t i = 0; i < visible; i++)
        if (score[i] == -INFINITY) list[n++] = (uint32_t)i;
    return n;
}

static void attend_row(void *arg, int64_t i, int thread) {
    (void)thread;
    const v4_job *j = arg;
    const us_step *s = j->s;
    const us_recipe *r = &s->e->r;
    const us_layer_recipe *lr = &r->layers[j->l];
    size_t row = (size_t)i, d = r->head_dim, H = r->H, p = (size_t)s->positions[row];
    const us_eng_state *st = &s->segs[j->segment[row]].seq->layers[j->l];
    size_t visible = lr->compress ? (p + 1) / lr->compress : 0, lo = lr->window && p + 1 > lr->window ? p + 1 - lr->window : 0, near = p + 1 - lo;
    float *score = j->scores + row * j->room;
    uint32_t *list = (uint32_t *)(void *)(score + near + visible + 1);
    size_t far = choose_entries(j, st, row, visible, score, list);
    float scale = (float)(1 / sqrt((double)d));
    for (size_t h = 0; h < H; h++) {
        const float *q = j->q + (row * H + h) * d;
        float *out = j->y + (row * H + h) * d, max = j->sinks[h];
        double sum;
        for (size_t k = 0; k < near + far; k++) {
            const float *key = k < near ? st->rows + (lo + k) * d : st->entries + list[k - near] * d;
            score[k] = dot(q, key, d) * scale;
            max = score[k] > max ? score[k] : max;
        }
        sum = exp((double)(j->sinks[h] - max));
        memset(out, 0, d * sizeof *out);
        for (size_t k = 0; k < near + far; k++) {
            const float *key = k < near ? st->rows + (lo + k) * d : st->entries + list[k - near] * d;
            double w = exp((double)(score[k] - max));
            sum += w;
            us_axpy((float)w, key, d, out);
        }
        for (size_t c = 0; c < d; c++) out[c] = (float)((double)out[c] / sum);
    }
}

static us_status keep_window(us_step *s, uint32_t l, const float *kv, size_t d) {
    for (size_t g = 0; g < s->n_segs; g++) {
        us_seq *seq = s->segs[g].seq;
        us_eng_state *st = &seq->layers[l];
        US_TRY(us_eng_rows(&st->rows, &st->cap_rows, (seq->n + s->segs[g].n) * d, s->err));
        memcpy(st->rows + seq->n * d, kv + s->row0[g] * d, s->segs[g].n * d * sizeof *kv);
    }
    return US_OK;
}

static us_status attend(us_step *s, uint32_t l, v4_job *j) {
    us_engine *e = s->e;
    uint32_t ratio = e->r.layers[l].compress;
    size_t longest = 0;
    uint64_t mark = e->scratch_used;
    j->segment = us_arena_alloc(&e->overflow, s->T * sizeof *j->segment);
    if (!j->segment) return us_fail_nomem(s->err, "running the model");
    for (size_t g = 0; g < s->n_segs; g++) {
        size_t n = s->segs[g].seq->n + s->segs[g].n;
        longest = n > longest ? n : longest;
        for (size_t t = s->row0[g]; t < s->row0[g + 1]; t++) j->segment[t] = g;
    }
    j->room = longest + 2 * (ratio ? longest / ratio : 0) + 2;
    US_ENG_SCRATCH(s, scores, s->T * j->room);
    j->scores = scores;
    us_pool_run(e->pool, attend_row, j, (int64_t)s->T);
    e->scratch_used = mark;
    return US_OK;
}

/* Heads in o_groups groups: wo_a per group down to o_lora, then wo_b. */
static us_status project_out(us_step *s, us_eng_v4 *w, const float *y, float *out) {
    const us_recipe *r = &s->e->r;
    size_t groups = r->o_groups, per = r->H / groups * r->head_dim, rank = r->o_lora;
    US_ENG_SCRATCH(s, low, s->T * groups * rank);
    for (size_t g = 0; g < groups; g++) US_TRY(us_eng_apply(s, &w->o_groups[g], NULL, s->T, y + g * per, groups * per, low + g * rank, groups * rank));
    return us_eng_apply(s, &w->o_b, NULL, s->T, low, groups * rank, out, r->D);
}

us_status us_eng_run_v4(us_step *s, uint32_t l, const float *x, float *out) {
    us_engine *e = s->e;
    const us_recipe *r = &e->r;
    const us_layer_recipe *lr = &r->layers[l];
    us_eng_v4 *w = &e->layers[l].v4;
    size_t T = s->T, H = r->H, d = r->head_dim, h = r->index_heads, di = r->index_dim;
    const us_rope *rope = &r->ropes[lr->rope];
    const float *cs = s->cos[lr->rope], *sn = s->sin[lr->rope];
    US_ENG_SCRATCH(s, latent, T * r->q_lora);
    US_ENG_SCRATCH(s, q, T * H * d);
    US_ENG_SCRATCH(s, kv, T * d);
    US_ENG_SCRATCH(s, y, T * H * d);
    US_TRY(us_eng_apply(s, &w->q_a, NULL, T, x, r->D, latent, r->q_lora));
    us_eng_norm_rows(e, &w->q_norm, 0, r->eps, T, latent, latent);
    US_TRY(us_eng_apply(s, &w->q_b, NULL, T, latent, r->q_lora, q, H * d));
    us_rmsnorm(q, d, NULL, 0, (float)r->eps, T * H, d, q, d);
    US_TRY(us_eng_apply(s, &w->kv, NULL, T, x, r->D, kv, d));
    us_eng_norm_rows(e, &w->kv_norm, 0, r->eps, T, kv, kv);
    us_rotary(q, H * d, T, H, d, d - rope->dims, rope->dims, cs, sn, true, 1);
    us_rotary(kv, d, T, 1, d, d - rope->dims, rope->dims, cs, sn, true, 1);
    US_TRY(keep_window(s, l, kv, d));
    v4_job j = {.s = s, .l = l, .q = q, .sinks = w->sinks, .y = y};
    if (lr->compress) US_TRY(compress(s, l, &w->own, false, x));
    if (lr->compress_sparse) {
        US_ENG_SCRATCH(s, iq, T * h * di);
        US_ENG_SCRATCH(s, iw, T * h);
        US_TRY(compress(s, l, &w->index, true, x));
        US_TRY(us_eng_apply(s, &w->index_q, NULL, T, latent, r->q_lora, iq, h * di));
        US_TRY(us_eng_apply_full(s, &w->index_w, NULL, T, x, r->D, iw, h));
        us_rotary(iq, h * di, T, h, di, di - r->ropes[1].dims, r->ropes[1].dims, s->cos[1], s->sin[1], true, 1);
        j.index_q = iq;
        j.index_w = iw;
    }
    US_TRY(attend(s, l, &j));
    us_rotary(y, H * d, T, H, d, d - rope->dims, rope->dims, cs, sn, true, -1);
    return project_out(s, w, y, out);
}
