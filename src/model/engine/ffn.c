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

typedef struct act_job {
    const us_recipe *r;
    bool gated;
    size_t F;
    float *g;
    const float *u;
} act_job;

static void act_some(void *arg, size_t r0, size_t r1) {
    const act_job *j = arg;
    float *g = j->g + r0 * j->F;
    us_glu_apply(glu_of(j->r, j->gated), (float)j->r->act_limit, (float)j->r->act_alpha, (r1 - r0) * j->F, g, j->u + r0 * j->F, g);
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
    us_eng_each_rows(s->e, rows, act_some, &(act_job){r, gated, F, g, u});
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

/* Rows of one expert that a task takes: few enough to balance threads, enough to use each weight many times. */
enum { TASK_ROWS = 96 };
/* While streaming, experts are packed, used and dropped in groups of about this size. */
enum { GROUP_BYTES = 192 << 20 };

typedef struct expert_task {
    us_eng_mlp *w;
    size_t at, rows; /* sorted slots [at, at + rows) */
} expert_task;

typedef struct expert_job {
    const us_engine *e;
    const expert_task *tasks;
    const size_t *slots;
    const float *x, *weights;
    size_t width, K, first; /* outs[0] is the output of sorted slot `first` */
    bool scale_input, round;
    float *outs, *scratch;
    size_t scratch_floats;  /* of one thread */
} expert_job;

static void round_rows(bool round, size_t n, float *x) {
    if (round) us_round_bf16(x, n, x);
}

static void add_row_bias(const float *bias, size_t rows, size_t n, float *y) {
    for (size_t i = 0; bias && i < rows; i++)
        for (size_t c = 0; c < n; c++) y[i * n + c] += bias[c];
}

/* Gather, gate and up, activation, down: one expert's rows on one thread. */
static void expert_one(void *arg, int64_t i, int thread) {
    const expert_job *j = arg;
    const expert_task *t = &j->tasks[i];
    const us_recipe *r = &j->e->r;
    us_eng_mlp *w = t->w;
    bool gated = us_mat_there(&w->gate);
    size_t n = t->rows, D = j->width, F = w->width;
    float *in = j->scratch + (size_t)thread * j->scratch_floats, *g = in + n * D, *u = g + n * F, *out = j->outs + (t->at - j->first) * D;
    for (size_t k = 0; k < n; k++) {
        size_t slot = j->slots[t->at + k];
        memcpy(in + k * D, j->x + slot / j->K * D, D * sizeof *in);
        for (size_t d = 0; j->scale_input && d < D; d++) in[k * D + d] *= j->weights[slot];
    }
    round_rows(j->round, n * D, in);
    if (gated) us_gemm(NULL, n, in, D, &w->gate.packed, g, F);
    us_gemm(NULL, n, in, D, &w->up.packed, u, F);
    if (gated) add_row_bias(w->gate_bias, n, F, g);
    add_row_bias(w->up_bias, n, F, u);
    us_glu_apply(glu_of(r, gated), (float)r->act_limit, (float)r->act_alpha, n * F, g, u, g);
    round_rows(j->round, n * F, g);
    us_gemm(NULL, n, g, F, &w->down.packed, out, D);
    add_row_bias(w->down_bias, n, D, out);
}

typedef struct sum_job {
    const uint32_t *experts;
    const float *weights, *outs, *x;
    const size_t *place; /* sorted position of every slot */
    size_t K, width, first, lo, hi, n_experts;
    bool scale_input;
    float *y;
} sum_job;

/* y[t] += the outputs of its experts of [lo, hi), in ascending order. */
static void sum_one(void *arg, int64_t i, int thread) {
    (void)thread;
    const sum_job *j = arg;
    size_t t = (size_t)i, D = j->width;
    for (size_t k = 0; k < j->K; k++) {
        size_t slot = t * j->K + k, e = j->experts[slot];
        if (e < j->lo || e >= j->hi) continue;
        const float *out = e < j->n_experts ? j->outs + (j->place[slot] - j->first) * D : j->x + t * D; /* zero expert: identity */
        us_axpy(j->scale_input && e < j->n_experts ? 1 : j->weights[slot], out, D, j->y + t * D);
    }
}

typedef struct sorted_slots {
    size_t *first, *slots, *place;
} sorted_slots;

static size_t mlp_bytes(const us_eng_mlp *w) {
    return us_gemm_packed_bytes(w->gate.packed.type, w->gate.packed.n, w->gate.packed.k) +
           us_gemm_packed_bytes(w->up.packed.type, w->up.packed.n, w->up.packed.k) +
           us_gemm_packed_bytes(w->down.packed.type, w->down.packed.n, w->down.packed.k);
}

/* The experts [lo, hi): pack, run, add up. */
static us_status run_group(us_step *s, us_eng_moe *m, const sorted_slots *z, size_t lo, size_t hi, const float *x, size_t width, const uint32_t *experts,
                           const float *weights, float *y) {
    us_engine *e = s->e;
    const us_router *r = &e->r.router;
    size_t K = r->top_k, end = hi < m->n_experts ? hi : m->n_experts, n_tasks = 0, n_need = 0, widest = 0, most = 0;
    size_t first = z->first[lo], rows = lo < end ? z->first[end] - first : 0;
    uint64_t mark = e->scratch_used;
    bool scale_input = r->math == US_ROUTER_L4;
    expert_task *tasks = us_arena_alloc(&e->overflow, (end - (lo < end ? lo : end) + rows / TASK_ROWS + 1) * sizeof *tasks);
    us_mat **need = us_arena_alloc(&e->overflow, ((end - (lo < end ? lo : end)) * 3 + 1) * sizeof *need);
    if (!tasks || !need) return us_fail_nomem(s->err, "running the model");
    for (size_t i = lo; i < end; i++) {
        us_eng_mlp *w = &m->experts[i];
        size_t n = z->first[i + 1] - z->first[i];
        if (!n) continue;
        need[n_need++] = &w->gate;
        need[n_need++] = &w->up;
        need[n_need++] = &w->down;
        widest = w->width > widest ? w->width : widest;
        for (size_t k = 0; k < n; k += TASK_ROWS) {
            size_t part = n - k < TASK_ROWS ? n - k : TASK_ROWS;
            most = part > most ? part : most;
            tasks[n_tasks++] = (expert_task){w, z->first[i] + k, part};
        }
    }
    US_TRY(us_eng_prepare(e, need, n_need, s->err));
    size_t per_thread = most * (width + 2 * widest) + 32;
    US_ENG_SCRATCH(s, outs, rows * width);
    US_ENG_SCRATCH(s, scratch, per_thread * (size_t)us_pool_threads(e->pool));
    expert_job job = {e, tasks, z->slots, x, weights, width, K, first, scale_input, e->opt.compute == US_COMPUTE_BF16, outs, scratch, per_thread};
    us_pool_run(e->pool, expert_one, &job, (int64_t)n_tasks);
    sum_job sum = {experts, weights, outs, x, z->place, K, width, first, lo, hi, m->n_experts, scale_input, y};
    us_pool_run(e->pool, sum_one, &sum, (int64_t)s->T);
    for (size_t i = 0; e->opt.stream && i < n_need; i++) us_mat_drop(need[i]);
    e->scratch_used = mark;
    return US_OK;
}

/* y[T, width] = sum over the chosen experts, in ascending order of their numbers. */
static us_status run_experts(us_step *s, us_eng_moe *m, const float *x, size_t width, const uint32_t *experts, const float *weights, float *y) {
    us_engine *e = s->e;
    size_t T = s->T, K = e->r.router.top_k, n_rows = e->r.router.n_rows;
    sorted_slots z;
    US_TRY(sort_by_expert(s, experts, T * K, n_rows, &z.first, &z.slots));
    z.place = us_arena_alloc(&e->overflow, (T * K + 1) * sizeof *z.place);
    if (!z.place) return us_fail_nomem(s->err, "running the model");
    for (size_t i = 0; i < T * K; i++) z.place[z.slots[i]] = i;
    memset(y, 0, T * width * sizeof *y);
    for (size_t lo = 0; lo < n_rows;) {
        size_t hi = lo, bytes = 0;
        while (hi < n_rows && (!e->opt.stream || hi == lo || bytes < GROUP_BYTES)) {
            if (hi < m->n_experts && z.first[hi + 1] > z.first[hi]) bytes += mlp_bytes(&m->experts[hi]);
            hi++;
        }
        US_TRY(run_group(s, m, &z, lo, hi, x, width, experts, weights, y));
        lo = hi;
    }
    return US_OK;
}

typedef struct shared_job {
    const float *gate, *x;
    size_t D;
    float *y;
} shared_job;

static void shared_some(void *arg, size_t r0, size_t r1) {
    const shared_job *j = arg;
    for (size_t t = r0; t < r1; t++) us_axpy(j->gate[t], j->x + t * j->D, j->D, j->y + t * j->D);
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
    us_eng_each_rows(s->e, T, shared_some, &(shared_job){gate, sh, D, y});
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
