/* Oracle: dense MLP and mixture of experts, whatever the layout of the experts on disk. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/oracle_internal.h"
#include "model/weights.h"

/* act(gate) * up for one row of F, into gate. */
static void activate(const us_recipe *r, double *gate, const double *up, size_t F) {
    for (size_t i = 0; i < F; i++) {
        double g = gate[i], u = up ? up[i] : 0, lim = r->act_limit;
        switch (r->act) {
        case US_ACT_SILU: g = us_ref_silu(g) * u; break;
        case US_ACT_OSS:
            g = g < lim ? g : lim;
            u = u < -lim ? -lim : u > lim ? lim : u;
            g = (u + 1) * g * us_ref_sigmoid(r->act_alpha * g);
            break;
        case US_ACT_CLAMP:
            g = g < lim ? g : lim;
            u = u < -lim ? -lim : u > lim ? lim : u;
            g = us_ref_silu(g) * u;
            break;
        case US_ACT_RELU2: g = g > 0 ? g * g : 0; break;
        case US_ACT_GELU_TANH: g = 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u; break;
        }
        gate[i] = g;
    }
}

/* The three (or, without a gate, two) matrices of one feed-forward part: gate, up [F,D], down [D,F]; biases may be NULL. */
typedef struct mlp_weights {
    const double *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
    size_t D, F;
} mlp_weights;

static us_status run_mlp(us_oracle *o, const mlp_weights *w, const double *x, size_t T, double *y) {
    US_SCRATCH(o, g, T * w->F);
    US_SCRATCH(o, u, T * w->F);
    bool gated = w->gate != NULL;
    us_ref_linear(x, gated ? w->gate : w->up, gated ? w->gate_bias : w->up_bias, T, w->D, w->F, g);
    if (gated) us_ref_linear(x, w->up, w->up_bias, T, w->D, w->F, u);
    for (size_t t = 0; t < T; t++) activate(&o->r, g + t * w->F, gated ? u + t * w->F : NULL, w->F);
    us_ref_linear(g, w->down, w->down_bias, T, w->F, w->D, y);
    return US_OK;
}

/* Load gate/up/down under any of the usual names below full prefix p (no layer part). F comes from the down matrix. */
static us_status load_mlp(us_oracle *o, const char *p, size_t D, mlp_weights *w) {
    char name[256];
    static const char *const down_names[] = {"down_proj.weight", "w2.weight"};
    size_t F = 0;
    for (int i = 0; i < 2 && !F; i++) {
        snprintf(name, sizeof name, "%s%s", p, down_names[i]);
        size_t elements = us_weight_elements(o->st->ck, name);
        if (elements) F = elements % D == 0 ? elements / D : 0;
    }
    if (!F) return us_fail(o->err, US_E_FORMAT, "tensor-missing", "the matrix \"%s\" is missing or mis-shaped", name);
    *w = (mlp_weights){.D = D, .F = F};
    US_TRY(us_oracle_weight(o, -1, p, "gate_proj.weight|w1.weight", D * F, true, &w->gate));
    US_TRY(us_oracle_weight(o, -1, p, "up_proj.weight|w3.weight", D * F, false, &w->up));
    return us_oracle_weight(o, -1, p, "down_proj.weight|w2.weight", D * F, false, &w->down);
}

us_status us_oracle_mlp(us_oracle *o, uint32_t l, const char *prefixes, const double *x, double *out) {
    char p[192];
    mlp_weights w;
    for (const char *at = prefixes; *at;) {
        size_t n = strcspn(at, "|");
        snprintf(p, sizeof p, "%s%u.%.*s", o->layers, l, (int)n, at);
        char probe[256];
        snprintf(probe, sizeof probe, "%sdown_proj.weight", p);
        at += n + (at[n] == '|');
        if (us_weight_find(o->st->ck, probe) || !*at) break;
    }
    US_TRY(load_mlp(o, p, o->r.D, &w));
    return run_mlp(o, &w, x, o->T, out);
}

/* ---- experts ---- */

/* A stacked expert tensor of the block with one of two projection kinds, or NULL. */
static const us_ck_tensor *stacked(const us_oracle *o, int32_t block, us_projection *proj, bool down, const us_expert_tensor **desc) {
    const us_structure *st = o->st;
    for (size_t i = 0; i < st->ck->n_tensors; i++) {
        const us_role *role = &st->roles[i];
        if (role->kind != US_ROLE_SLICE || role->block != (uint32_t)block || !role->desc) continue;
        us_projection k = role->desc->proj;
        bool is_down = k == US_PROJ_DOWN || k == US_PROJ_DOWN_IN_OUT;
        bool is_gate_up = k == US_PROJ_GATE_UP_ROWS || k == US_PROJ_GATE_UP_COLS || k == US_PROJ_GATE_UP_INTERLEAVED;
        if (down ? !is_down : !is_gate_up) continue;
        *proj = k;
        *desc = role->desc;
        return &st->ck->tensors[i];
    }
    return NULL;
}

/* Expert e of a stacked pair, turned into [F,D] and [D,F]. */
static us_status load_stacked(us_oracle *o, int32_t block, uint32_t e, size_t D, mlp_weights *w) {
    us_projection gu = US_PROJ_NONE, dn = US_PROJ_NONE;
    const us_expert_tensor *desc;
    const us_ck_tensor *a = stacked(o, block, &gu, false, &desc), *b = stacked(o, block, &dn, true, &desc);
    if (!a || !b) return us_fail(o->err, US_E_UNSUPPORTED, "layout", "the layout of the experts is not known");
    size_t E = o->st->blocks[block].n_experts, na, nb;
    const double *ga, *db;
    US_TRY(us_weight_expert_f64(o->st->ck, a, e, E, &o->step, &ga, &na, o->err));
    US_TRY(us_weight_expert_f64(o->st->ck, b, e, E, &o->step, &db, &nb, o->err));
    size_t F = nb / D;
    if (na != 2 * F * D) return us_fail(o->err, US_E_FORMAT, "shape", "the stacked experts of block %s do not fit together", o->st->blocks[block].key);
    *w = (mlp_weights){.D = D, .F = F};
    US_SCRATCH(o, gate, F * D);
    US_SCRATCH(o, up, F * D);
    US_SCRATCH(o, down, F * D);
    bool packed_rows = us_weight_is_packed_blocks(a); /* MXFP4 blocks are stored [E, out, in], unlike the plain tensors */
    for (size_t f = 0; f < F; f++)
        for (size_t d = 0; d < D; d++) {
            size_t g = f, u = F + f;
            if (gu == US_PROJ_GATE_UP_INTERLEAVED) g = 2 * f, u = 2 * f + 1;
            bool rows = gu == US_PROJ_GATE_UP_ROWS || packed_rows;
            gate[f * D + d] = rows ? ga[g * D + d] : ga[d * 2 * F + g];
            up[f * D + d] = rows ? ga[u * D + d] : ga[d * 2 * F + u];
            down[d * F + f] = dn == US_PROJ_DOWN || packed_rows ? db[d * F + f] : db[f * D + d];
        }
    w->gate = gate;
    w->up = up;
    w->down = down;
    return US_OK;
}

/* gpt_oss: biases of the stacked products, interleaved like the weights. */
static us_status load_biases(us_oracle *o, const char *prefix, uint32_t e, uint32_t E, mlp_weights *w) {
    const double *gu, *dn;
    US_TRY(us_oracle_weight(o, -1, prefix, "experts.gate_up_proj_bias", (size_t)E * 2 * w->F, true, &gu));
    US_TRY(us_oracle_weight(o, -1, prefix, "experts.down_proj_bias", (size_t)E * w->D, true, &dn));
    if (!gu || !dn) return US_OK;
    US_SCRATCH(o, g, w->F);
    US_SCRATCH(o, u, w->F);
    for (size_t f = 0; f < w->F; f++) {
        g[f] = gu[(size_t)e * 2 * w->F + 2 * f];
        u[f] = gu[(size_t)e * 2 * w->F + 2 * f + 1];
    }
    w->gate_bias = g;
    w->up_bias = u;
    w->down_bias = dn + (size_t)e * w->D;
    return US_OK;
}

static us_status load_expert(us_oracle *o, int32_t block, uint32_t e, size_t D, mlp_weights *w) {
    const us_moe_block *b = &o->st->blocks[block];
    char p[256], probe[320];
    snprintf(p, sizeof p, "%sexperts.%u.", b->prefix, e);
    static const char *const down_names[] = {"down_proj.weight", "w2.weight"};
    for (int i = 0; i < 2; i++) {
        snprintf(probe, sizeof probe, "%s%s", p, down_names[i]);
        if (us_weight_find(o->st->ck, probe)) return load_mlp(o, p, D, w);
    }
    US_TRY(load_stacked(o, block, e, D, w));
    return load_biases(o, b->prefix, e, b->n_experts, w);
}

/* ---- routing ---- */

static us_status route(us_oracle *o, uint32_t l, const double *x, uint32_t *experts, double *weights) {
    const us_recipe *r = &o->r;
    const us_moe_block *b = &o->st->blocks[r->layers[l].block];
    size_t T = o->T, E = r->router.n_rows, K = r->router.top_k;
    const double *w, *linear_bias = NULL, *bias;
    US_SCRATCH(o, z, T * E);
    US_SCRATCH(o, scratch, 2 * E);
    US_TRY(us_oracle_weight(o, -1, b->prefix, "gate.weight|router.weight|router.layer.weight|gate.wg.weight|router.classifier.weight", E * r->D, false, &w));
    US_TRY(us_oracle_weight(o, -1, b->prefix, "router.bias", E, true, &linear_bias));
    US_TRY(us_oracle_weight(o, -1, b->prefix, "gate.e_score_correction_bias|e_score_correction_bias|gate.bias|router.e_score_correction_bias|"
                            "moe_statics.e_score_correction_bias", E, true, &bias));
    us_ref_linear(x, w, linear_bias, T, r->D, E, z);
    const double *table = NULL;
    if (r->layers[l].hash) US_TRY(us_oracle_weight(o, -1, b->prefix, "gate.tid2eid", (size_t)r->V * K, false, &table));
    int64_t *row = us_arena_alloc(&o->step, K * sizeof *row);
    if (!row) return us_fail_nomem(o->err, "routing");
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; table && i < K; i++) {
            row[i] = (int64_t)table[(size_t)o->ids[t] * K + i];
            if (row[i] < 0 || (size_t)row[i] >= E) return us_fail(o->err, US_E_FORMAT, "range", "the token table of layer %u names expert %lld", l, (long long)row[i]);
        }
        if (!us_router_ref(&r->router, z + t * E, table ? NULL : bias, table ? row : NULL, scratch, experts + t * K, weights + t * K))
            return us_fail(o->err, US_E_UNSUPPORTED, "router", "the router of this family has no forward pass here");
    }
    if (o->taps && o->taps->route) o->taps->route(o->taps->user, l, experts, weights, T, K);
    return US_OK;
}

/* y += sum over the chosen experts; x and y are `width` wide. Experts are visited in ascending order, as the reference does. */
static us_status run_experts(us_oracle *o, uint32_t l, const double *x, size_t width, const uint32_t *experts, const double *weights, double *y) {
    const us_recipe *r = &o->r;
    int32_t block = r->layers[l].block;
    size_t T = o->T, K = r->router.top_k, E = o->st->blocks[block].n_experts;
    bool scale_input = r->router.math == US_ROUTER_L4;
    US_SCRATCH(o, in, width);
    US_SCRATCH(o, one, width);
    for (size_t e = 0; e < r->router.n_rows; e++) {
        mlp_weights w = {0};
        bool loaded = false;
        us_arena outer = o->step; /* expert weights live in an arena of their own */
        o->step = (us_arena){0};
        us_status s = US_OK;
        for (size_t i = 0; i < T * K && s == US_OK; i++) {
            if (experts[i] != e) continue;
            const double *xt = x + i / K * width;
            double *yt = y + i / K * width, g = weights[i];
            if (e >= E) { /* zero expert: identity */
                for (size_t d = 0; d < width; d++) yt[d] += g * xt[d];
                continue;
            }
            if (!loaded) s = load_expert(o, block, (uint32_t)e, width, &w);
            loaded = true;
            for (size_t d = 0; d < width; d++) in[d] = xt[d] * (scale_input ? g : 1);
            if (s == US_OK) s = run_mlp(o, &w, in, 1, one);
            for (size_t d = 0; d < width && s == US_OK; d++) yt[d] += one[d] * (scale_input ? 1 : g);
        }
        us_arena_free(&o->step);
        o->step = outer;
        if (s != US_OK) return s;
    }
    return US_OK;
}

static us_status add_shared(us_oracle *o, const char *prefix, const double *x, double *y) {
    static const char *const names[] = {"shared_expert.", "shared_experts.", "shared_mlp."};
    size_t T = o->T, D = o->r.D;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char p[256], probe[320];
        snprintf(p, sizeof p, "%s%s", prefix, names[i]);
        snprintf(probe, sizeof probe, "%sdown_proj.weight", p);
        bool there = us_weight_find(o->st->ck, probe) != NULL;
        snprintf(probe, sizeof probe, "%sw2.weight", p);
        if (!there && !us_weight_find(o->st->ck, probe)) continue;
        mlp_weights w;
        const double *gate;
        US_SCRATCH(o, s, T * D);
        US_TRY(load_mlp(o, p, D, &w));
        US_TRY(run_mlp(o, &w, x, T, s));
        US_TRY(us_oracle_weight(o, -1, prefix, "shared_expert_gate.weight", D, true, &gate));
        for (size_t t = 0; t < T; t++) {
            double g = 1, z = 0;
            for (size_t d = 0; gate && d < D; d++) z += gate[d] * x[t * D + d];
            if (gate) g = us_ref_sigmoid(z);
            for (size_t d = 0; d < D; d++) y[t * D + d] += g * s[t * D + d];
        }
        return US_OK;
    }
    return US_OK;
}

us_status us_oracle_moe(us_oracle *o, uint32_t l, const double *x, double *out) {
    const us_recipe *r = &o->r;
    const us_moe_block *b = &o->st->blocks[r->layers[l].block];
    size_t T = o->T, K = r->router.top_k, D = r->D;
    uint32_t *experts = us_arena_alloc(&o->step, T * K * sizeof *experts);
    if (!experts) return us_fail_nomem(o->err, "routing");
    US_SCRATCH(o, weights, T * K);
    US_TRY(route(o, l, x, experts, weights));
    memset(out, 0, T * D * sizeof *out);
    const double *fc1, *fc2;
    char probe[256];
    snprintf(probe, sizeof probe, "%sfc1_latent_proj.weight", b->prefix);
    size_t latent = us_weight_elements(o->st->ck, probe) / D;
    if (latent) { /* nemotron_h: experts work at a narrower width */
        US_TRY(us_oracle_weight(o, -1, b->prefix, "fc1_latent_proj.weight", latent * D, false, &fc1));
        US_TRY(us_oracle_weight(o, -1, b->prefix, "fc2_latent_proj.weight", latent * D, false, &fc2));
        US_SCRATCH(o, narrow, T * latent);
        US_SCRATCH(o, sum, T * latent);
        us_ref_linear(x, fc1, NULL, T, D, latent, narrow);
        US_TRY(run_experts(o, l, narrow, latent, experts, weights, sum));
        us_ref_linear(sum, fc2, NULL, T, latent, D, out);
    } else {
        US_TRY(run_experts(o, l, x, D, experts, weights, out));
    }
    return add_shared(o, b->prefix, x, out);
}
