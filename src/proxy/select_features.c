/**
 * The features of one block brought together: distances, saliency, router norms. See select.h, spec/moe-proxy.md 5.4 steps 1, 2.
 * Tests: tests/unit/test_select.c.
 */
#include "proxy/select_features.h"

#include <math.h>
#include <string.h>

#include "kernels/gemm.h"
#include "model/config.h"

void us__features_free(us__features *f) {
    for (size_t b = 0; f->sketches && b < f->s->n_blocks; b++) us_sketch_free(&f->sketches[b]);
    us_free(f->sketches);
    us_free(f->why);
    us_routing_free(&f->routing);
    *f = (us__features){0};
}

us_status us__features_create(us_ctx *ctx, const us_structure *s, const us_select_options *opt, us__features *out, us_err *err) {
    us__features f = {.ctx = ctx, .s = s, .opt = opt};
    f.sketches = us_calloc(s->n_blocks ? s->n_blocks : 1, sizeof *f.sketches);
    f.why = us_calloc(s->n_blocks ? s->n_blocks : 1, sizeof *f.why);
    us_status st = f.sketches && f.why ? US_OK : us_fail_nomem(err, "features");
    if (st == US_OK && opt->n_routing) st = us_routing_read(ctx, s, opt->routing, opt->n_routing, opt->method == US_SELECT_CLUSTER, &f.routing, err);
    if (st != US_OK) {
        us__features_free(&f);
        return st;
    }
    *out = f;
    return US_OK;
}

us_status us__features_sketch(us__features *f, size_t block, us_err *err) {
    if (f->sketches[block].phi || f->why[block]) return US_OK;
    const us_select_options *o = f->opt;
    US_TRY(us_sketch_block(f->ctx, f->s, block, o->seed, o->sketch_dims ? o->sketch_dims : US_SKETCH_DIMS, o->probes ? o->probes : US_SKETCH_PROBES_MAX,
                           &f->sketches[block], &f->why[block], err));
    if (f->why[block]) us_note(f->ctx, "sketch", "no functional sketch of block %s: %s", f->s->blocks[block].key, f->why[block]);
    return US_OK;
}

static void add_weighted(double *sum, const double *d, size_t cells, double weight, bool first) {
    for (size_t i = 0; i < cells; i++) sum[i] = (first ? 0.0 : sum[i]) + weight * d[i];
}

static us_status router_distances(const us__features *f, size_t block, double *d, bool *known, us_err *err) {
    float *rows = NULL, *u = NULL;
    size_t width;
    US_TRY(us_sketch_router_rows(f->s, block, &rows, &width, err));
    *known = rows != NULL;
    if (!rows) return US_OK;
    us_status st = us_sketch_directions(rows, f->s->blocks[block].n_experts, width, &u, err);
    if (st == US_OK) us_cosine_distances(us_ctx_pool(f->ctx), u, f->s->blocks[block].n_experts, width, d);
    us_free(rows);
    us_free(u);
    return st;
}

us_status us__features_distance(const us__features *f, size_t block, double *d, us_select_block *used, us_err *err) {
    const us_select_options *o = f->opt;
    size_t n = f->s->blocks[block].n_experts, cells = n * n;
    double w[3] = {.5, .3, .2}, total = 0;
    if (o->weights_given) w[0] = o->weight_sketch, w[1] = o->weight_router, w[2] = o->weight_coactivation;
    const us_sketch *k = &f->sketches[block];
    const us_routing_block *r = f->routing.n_blocks ? &f->routing.blocks[block] : NULL;
    us_pool *pool = us_ctx_pool(f->ctx);
    double *one = us_malloc(cells * sizeof *one + 1);
    if (!one) return us_fail_nomem(err, "distances");
    us_status st = US_OK;
    bool router = false;
    if (k->phi && w[0] > 0) {
        us_cosine_distances(pool, k->phi, n, k->dims, one);
        add_weighted(d, one, cells, w[0], total == 0);
        total += w[0];
        used->has_sketch = true;
    }
    if (w[1] > 0) st = router_distances(f, block, one, &router, err);
    if (st == US_OK && router) {
        add_weighted(d, one, cells, w[1], total == 0);
        total += w[1];
        used->has_router = true;
    }
    if (st == US_OK && r && r->pairs && w[2] > 0) {
        us_routing_js(pool, r, one);
        add_weighted(d, one, cells, w[2], total == 0);
        total += w[2];
        used->has_routing = true;
    }
    us_free(one);
    if (st == US_OK && !(total > 0)) {
        st = us_fail(err, US_E_UNSUPPORTED, "select", "nothing to compare experts by");
        us_err_where(err, "block %s", f->s->blocks[block].key);
        us_err_todo(err, "choose --select first, random or list:FILE, or give weights to a feature that is there");
    }
    for (size_t i = 0; st == US_OK && i < cells; i++) d[i] /= total;
    return st;
}

us_status us__features_router_norm(const us__features *f, size_t block, double *out, bool *known, us_err *err) {
    float *rows = NULL;
    size_t width;
    US_TRY(us_sketch_router_rows(f->s, block, &rows, &width, err));
    *known = rows != NULL;
    for (size_t e = 0; rows && e < f->s->blocks[block].n_experts; e++) {
        double sum = 0;
        for (size_t k = 0; k < width; k++) sum += (double)rows[e * width + k] * (double)rows[e * width + k];
        out[e] = sqrt(sum);
    }
    us_free(rows);
    return US_OK;
}

/* ---- saliency ---- */

/* A small tensor of at least n numbers as doubles (a bias), or NULL. */
static us_status read_bias(const us_structure *s, uint32_t tensor, size_t n, double **out, us_err *err) {
    *out = NULL;
    if (tensor == UINT32_MAX) return US_OK;
    const us_ck_tensor *t = &s->ck->tensors[tensor];
    size_t have = (size_t)(t->bytes * 8 / us_dtype_bits(t->dtype));
    float v;
    char zero[8] = {0};
    if (have < n || !us_to_f32(t->dtype, zero, 1, &v)) return US_OK;
    void *raw = us_malloc((size_t)t->bytes);
    float *f = us_malloc(have * sizeof *f);
    double *d = us_malloc(n * sizeof *d);
    us_status st = raw && f && d ? us_ck_read(s->ck, t, 0, raw, (size_t)t->bytes, err) : us_fail_nomem(err, "reading a bias");
    if (st == US_OK) {
        us_to_f32(t->dtype, raw, have, f);
        for (size_t i = 0; i < n; i++) d[i] = (double)f[i];
    }
    us_free(raw);
    us_free(f);
    if (st != US_OK) us_free(d);
    else *out = d;
    return st;
}

static us_router router_of(const us_structure *s, uint32_t n) {
    us_config c = {.doc = &s->ck->config, .text = s->text_config, .family = s->family};
    us_router r = {.math = s->family->router, .n_rows = n, .top_k = s->top_k < n ? s->top_k : n, .n_group = 1, .topk_group = 1};
    if (s->n_group > 1 && n % s->n_group == 0) r.n_group = s->n_group, r.topk_group = s->topk_group;
    r.norm_topk = us_config_flag(&c, "norm_topk_prob|moe_renormalize", true);
    r.scaling = us_config_real(&c, "routed_scaling_factor|router_scaling_factor|route_scale", 1.0);
    r.jitter = us_config_real(&c, "router_jitter_noise", 0.01);
    r.norm_min = us_config_real(&c, "moe_norm_min", 1e-12);
    return r;
}

/* The chosen experts of every probe and their weights, through the family's router (plain softmax where it has no reference). */
static void accumulate(const us_router *want, const us_sketch *k, const float *logits, const double *bias, double *scratch, uint32_t *ids, double *weights,
                       double *sum, double *count) {
    us_router r = *want;
    size_t n = k->n_experts;
    double *z = scratch + 2 * n;
    for (uint32_t p = 0; p < k->n_probes; p++) {
        for (size_t e = 0; e < n; e++) z[e] = (double)logits[p * n + e];
        if (!us_router_ref(&r, z, bias, NULL, scratch, ids, weights)) {
            r.math = US_ROUTER_SM_PLUS;
            if (!us_router_ref(&r, z, NULL, NULL, scratch, ids, weights)) return;
        }
        for (uint32_t i = 0; i < r.top_k; i++) {
            if (ids[i] >= n) continue;
            sum[ids[i]] += weights[i] * (double)k->norm[(size_t)ids[i] * k->n_probes + p];
            count[ids[i]] += 1;
        }
    }
}

us_status us__features_saliency(const us__features *f, size_t block, double *out, us_err *err) {
    const us_sketch *k = &f->sketches[block];
    const us_moe_block *b = &f->s->blocks[block];
    size_t n = k->n_experts, m = k->n_probes, width;
    float *rows = NULL;
    double *bias = NULL;
    US_TRY(us_sketch_router_rows(f->s, block, &rows, &width, err));
    float *x = rows ? us_malloc(m * width * sizeof *x) : NULL, *logits = us_malloc(m * n * sizeof *logits);
    double *space = us_calloc(6 * n, sizeof *space); /* router scratch 2n, logits n, spare n, weights n, counts n */
    uint32_t *ids = us_malloc(n * sizeof *ids);
    us_status st = x && logits && space && ids ? read_bias(f->s, b->bias, n, &bias, err) : us_fail_nomem(err, "saliency");
    for (size_t p = 0; st == US_OK && p < m; p++) {
        double ss = 0;
        const float *row = rows + k->probe_expert[p] * width;
        for (size_t i = 0; i < width; i++) ss += (double)row[i] * (double)row[i];
        float scale = ss > 0 ? (float)(1.0 / sqrt(ss / (double)width)) : 0.0f;
        for (size_t i = 0; i < width; i++) x[p * width + i] = row[i] * scale;
    }
    if (st == US_OK) st = us_gemm_nt(us_ctx_pool(f->ctx), m, n, width, x, width, US_DTYPE_F32, rows, width, logits, n, err);
    if (st == US_OK) {
        us_router r = router_of(f->s, (uint32_t)n);
        double *count = space + 5 * n;
        memset(out, 0, n * sizeof *out);
        accumulate(&r, k, logits, bias, space, ids, space + 4 * n, out, count);
        const us_routing_block *rb = f->routing.n_blocks ? &f->routing.blocks[block] : NULL;
        for (size_t e = 0; e < n; e++) {
            if (count[e] > 0) out[e] /= count[e];
            if (rb && rb->count) out[e] *= (double)rb->count[e];
        }
    }
    us_free(rows);
    us_free(x);
    us_free(logits);
    us_free(space);
    us_free(ids);
    us_free(bias);
    return st;
}
