/* Feed-forward parts of the engine: dense MLP, router, experts, shared expert. */
#include <math.h>
#include <string.h>

#include "kernels/ref.h"
#include "model/engine/internal.h"

static us_glu glu_of(const us_recipe *r, bool gated) {
    switch (r->act) {
    case US_ACT_OSS: return US_GLU_OSS;
    case US_ACT_CLAMP: return US_GLU_CLAMP;
    case US_ACT_RELU2: return gated ? US_GLU_RELU : US_GLU_RELU2;
    case US_ACT_GELU_TANH: return gated ? US_GLU_GELU : US_GLU_GELU1;
    case US_ACT_SILU: break;
    }
    return gated ? US_GLU_SILU : US_GLU_SILU1;
}

static us_status prepare_mlp(us_step *s, us_eng_mlp *w) {
    us_mat *all[] = {&w->gate, &w->up, &w->down};
    return us_eng_prepare(s->e, all, 3, s->err);
}

static us_status mlp_rows(us_step *s, us_eng_mlp *w, size_t rows, const float *x, size_t D, float *y) {
    const us_recipe *r = &s->e->r;
    size_t F = w->width;
    uint64_t mark = s->e->scratch_used;
    bool gated = us_mat_there(&w->gate);
    US_ENG_SCRATCH(s, g, rows * F);
    US_ENG_SCRATCH(s, u, rows * F);
    US_TRY(prepare_mlp(s, w));
    if (gated) US_TRY(us_eng_apply(s, &w->gate, w->gate_bias, rows, x, D, g, F));
    US_TRY(us_eng_apply(s, &w->up, w->up_bias, rows, x, D, u, F));
    us_glu_apply(glu_of(r, gated), (float)r->act_limit, (float)r->act_alpha, rows * F, g, u, g);
    US_TRY(us_eng_apply(s, &w->down, w->down_bias, rows, g, F, y, D));
    s->e->scratch_used = mark;
    return US_OK;
}

us_status us_eng_run_mlp(us_step *s, us_eng_mlp *w, const float *x, float *out) {
    return mlp_rows(s, w, s->T, x, s->e->r.D, out);
}

/* ---- router ---- */

typedef struct route_job {
    const us_router *r;
    const float *logits, *bias;
    const int64_t *table, *ids;
    uint32_t *experts;
    float *weights;
    double *scratch; /* [T, 4 E + K] */
    bool unknown;
} route_job;

static void route_one(void *arg, int64_t i, int thread) {
    (void)thread;
    route_job *j = arg;
    size_t E = j->r->n_rows, K = j->r->top_k, t = (size_t)i;
    double *z = j->scratch + t * (4 * E + K), *bias = z + E, *w = z + 4 * E;
    for (size_t e = 0; e < E; e++) {
        z[e] = (double)j->logits[t * E + e];
        bias[e] = j->bias ? (double)j->bias[e] : 0;
    }
    const int64_t *row = j->table ? j->table + (size_t)j->ids[t] * K : NULL;
    if (!us_router_ref(j->r, z, j->bias && !row ? bias : NULL, row, z + 2 * E, j->experts + t * K, w)) j->unknown = true;
    for (size_t k = 0; k < K; k++) j->weights[t * K + k] = (float)w[k];
}

static us_status route(us_step *s, uint32_t l, us_eng_moe *m, const float *x, uint32_t *experts, float *weights) {
    us_engine *e = s->e;
    const us_router *r = &e->r.router;
    size_t T = s->T, E = r->n_rows, K = r->top_k;
    US_ENG_SCRATCH(s, logits, T * E);
    US_ENG_SCRATCH(s, scratch, 2 * T * (4 * E + K));
    US_TRY(us_eng_apply_full(s, &m->router, m->router_bias, T, x, e->r.D, logits, E));
    route_job j = {r, logits, m->correction, m->table, s->ids, experts, weights, (double *)(void *)scratch, false};
    us_pool_run(e->pool, route_one, &j, (int64_t)T);
    if (j.unknown) return us_fail(s->err, US_E_UNSUPPORTED, "router", "the router of this family has no forward pass here");
    if (s->taps && s->taps->route) s->taps->route(s->taps->user, l, experts, weights, logits, T, K, E);
    return US_OK;
}

/* ---- experts ---- */

/* Tokens sorted by expert: slots[first[e] .. first[e+1]) are the (token, choice) pairs t*K + k of expert e, ascending. */
static us_status sort_by_expert(us_step *s, const uint32_t *experts, size_t n, size_t E, size_t **first, size_t **slots) {
    *first = us_arena_calloc(&s->e->overflow, E + 2, sizeof **first);
    *slots = us_arena_alloc(&s->e->overflow, (n + 1) * sizeof **slots);
    if (!*first || !*slots) return us_fail_nomem(s->err, "running the model");
    for (size_t i = 0; i < n; i++) (*first)[experts[i] + 2]++;
    for (size_t e = 2; e <= E; e++) (*first)[e + 1] += (*first)[e];
    for (size_t i = 0; i < n; i++) (*slots)[(*first)[experts[i] + 1]++] = i;
    return US_OK;
}

/* y[T, width] = sum over the chosen experts, in ascending order of their numbers. */
static us_status run_experts(us_step *s, us_eng_moe *m, const float *x, size_t width, const uint32_t *experts, const float *weights, float *y) {
    us_engine *e = s->e;
    const us_router *r = &e->r.router;
    size_t T = s->T, K = r->top_k, n_rows = r->n_rows, *first, *slots;
    bool scale_input = r->math == US_ROUTER_L4;
    US_TRY(sort_by_expert(s, experts, T * K, n_rows, &first, &slots));
    us_mat **need = us_arena_alloc(&e->overflow, (size_t)m->n_experts * 3 * sizeof *need);
    if (!need) return us_fail_nomem(s->err, "running the model");
    size_t n_need = 0;
    for (size_t i = 0; i < m->n_experts; i++)
        if (first[i + 1] > first[i]) {
            need[n_need++] = &m->experts[i].gate;
            need[n_need++] = &m->experts[i].up;
            need[n_need++] = &m->experts[i].down;
        }
    US_TRY(us_eng_prepare(e, need, n_need, s->err));
    US_ENG_SCRATCH(s, outs, T * K * width);
    US_ENG_SCRATCH(s, in, T * width);
    US_ENG_SCRATCH(s, one, T * width);
    for (size_t i = 0; i < n_rows; i++) {
        size_t rows = first[i + 1] - first[i];
        const size_t *at = slots + first[i];
        for (size_t j = 0; j < rows; j++) {
            memcpy(in + j * width, x + at[j] / K * width, width * sizeof *x);
            for (size_t d = 0; scale_input && d < width; d++) in[j * width + d] *= weights[at[j]];
        }
        if (!rows) continue;
        if (i < m->n_experts) US_TRY(mlp_rows(s, &m->experts[i], rows, in, width, one));
        else memcpy(one, in, rows * width * sizeof *in); /* zero expert: identity */
        for (size_t j = 0; j < rows; j++) memcpy(outs + at[j] * width, one + j * width, width * sizeof *one);
    }
    for (size_t t = 0; t < T; t++) {
        memset(y + t * width, 0, width * sizeof *y);
        for (size_t k = 0; k < K; k++) us_axpy(scale_input ? 1 : weights[t * K + k], outs + (t * K + k) * width, width, y + t * width);
    }
    return US_OK;
}

static us_status add_shared(us_step *s, us_eng_moe *m, const float *x, float *y) {
    size_t T = s->T, D = s->e->r.D;
    if (!m->has_shared) return US_OK;
    US_ENG_SCRATCH(s, sh, T * D);
    US_ENG_SCRATCH(s, gate, T);
    US_TRY(mlp_rows(s, &m->shared, T, x, D, sh));
    for (size_t t = 0; t < T; t++) gate[t] = 1;
    if (us_mat_there(&m->shared_gate)) {
        US_TRY(us_eng_apply(s, &m->shared_gate, NULL, T, x, D, gate, 1));
        us_sigmoid(gate, T);
    }
    for (size_t t = 0; t < T; t++) us_axpy(gate[t], sh + t * D, D, y + t * D);
    return US_OK;
}

us_status us_eng_run_moe(us_step *s, uint32_t l, const float *x, float *out) {
    us_engine *e = s->e;
    us_eng_moe *m = &e->layers[l].moe;
    size_t T = s->T, K = e->r.router.top_k, D = e->r.D;
    uint32_t *experts = us_arena_alloc(&e->overflow, T * K * sizeof *experts);
    if (!experts) return us_fail_nomem(s->err, "routing");
    US_ENG_SCRATCH(s, weights, T * K);
    US_TRY(route(s, l, m, x, experts, weights));
    if (us_mat_there(&m->fc1)) { /* nemotron_h: experts work at a narrower width */
        size_t narrow = m->fc1.packed.n;
        US_ENG_SCRATCH(s, h, T * narrow);
        US_ENG_SCRATCH(s, sum, T * narrow);
        US_TRY(us_eng_apply(s, &m->fc1, NULL, T, x, D, h, narrow));
        US_TRY(run_experts(s, m, h, narrow, experts, weights, sum));
        US_TRY(us_eng_apply(s, &m->fc2, NULL, T, sum, narrow, out, D));
    } else {
        US_TRY(run_experts(s, m, x, D, experts, weights, out));
    }
    return add_shared(s, m, x, out);
}
