/* The engine's tables: which tensors make up each layer, with shapes checked, before anything runs. Weights themselves are read later. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/engine/internal.h"
#include "model/weights.h"

typedef struct loader {
    us_engine *e;
    us_err *err;
    char prefix[256]; /* of the part at hand, e.g. "model.layers.3.self_attn." */
} loader;

/* First of the '|'-separated names below the prefix that the checkpoint has; NULL: none, and name holds the last. */
static const us_ck_tensor *find(const loader *l, const char *names, char name[320]) {
    for (const char *at = names; *at;) {
        int n = (int)strcspn(at, "|");
        snprintf(name, 320, "%s%.*s", l->prefix, n, at);
        const us_ck_tensor *t = us_weight_find(l->e->st->ck, name);
        if (t) return t;
        at += n + (at[n] == '|');
    }
    return NULL;
}

static us_status missing(const loader *l, const char *name) {
    return us_fail(l->err, US_E_FORMAT, "tensor-missing", "the tensor \"%s\" is not in the checkpoint", name);
}

static us_status misshaped(const loader *l, const char *name, size_t have, size_t n, size_t k) {
    us_fail(l->err, US_E_FORMAT, "shape", "the tensor has %zu elements where the config wants %zu x %zu", have, n, k);
    return us_err_where(l->err, "%s", name);
}

static us_dtype packed_type(const loader *l, const us_ck_tensor *t, bool coded) {
    return l->e->opt.compute == US_COMPUTE_BF16 || (!coded && t->dtype == US_DTYPE_BF16) ? US_DTYPE_BF16 : US_DTYPE_F32;
}

static bool is_coded(const us_ck_tensor *t) {
    return t->dtype != US_DTYPE_BF16 && t->dtype != US_DTYPE_F32 && t->dtype != US_DTYPE_F16;
}

/* Append rows of "<prefix><names>" ([n, k]; n 0 = what the tensor has) to a matrix. */
static us_status add_rows(loader *l, us_mat *m, const char *names, size_t n, size_t k, bool optional) {
    char name[320];
    const us_ck_tensor *t = find(l, names, name);
    if (!t) return optional ? US_OK : missing(l, name);
    size_t have = us_weight_elements(l->e->st->ck, name);
    if (n == 0) n = k ? have / k : 0;
    if (n == 0 || have != n * k) return misshaped(l, name, have, n, k);
    us_dtype type = packed_type(l, t, is_coded(t));
    if (m->n_parts && m->packed.type != type) type = m->packed.type = US_DTYPE_F32;
    m->packed.type = type;
    m->packed.k = k;
    m->packed.n += n;
    m->parts[m->n_parts++] = (us_eng_part){.t = t, .count = n * k, .sn = k, .sk = 1, .rows = n, .coded = is_coded(t)};
    return US_OK;
}

/* A vector as f32; doubles are narrowed. */
static us_status vector(loader *l, const char *names, size_t n, bool optional, const float **out) {
    char name[320];
    *out = NULL;
    if (!find(l, names, name)) return optional ? US_OK : missing(l, name);
    us_arena tmp = {0};
    const double *d;
    us_status s = us_weight_f64(l->e->st->ck, name, n, &tmp, &d, l->err);
    float *f = s == US_OK ? us_arena_alloc(&l->e->arena, (n + 16) * sizeof *f) : NULL;
    if (s == US_OK && !f) s = us_fail_nomem(l->err, "reading weights");
    for (size_t i = 0; s == US_OK && i < n; i++) f[i] = (float)d[i];
    us_arena_free(&tmp);
    *out = f;
    return s;
}

/* A norm: weight, and bias where there is one beside it. names end in ".weight". */
static us_status norm(loader *l, const char *names, size_t n, bool optional, us_eng_norm *out) {
    char bias[160];
    US_TRY(vector(l, names, n, optional, &out->w));
    out->n = n;
    snprintf(bias, sizeof bias, "%.*s", (int)strcspn(names, "|"), names);
    char *dot = strrchr(bias, '.');
    if (!dot) return US_OK;
    snprintf(dot, sizeof bias - (size_t)(dot - bias), ".bias");
    return vector(l, bias, n, true, &out->b);
}

/* Query or key norm: one weight a head, or one over all heads; the tensor's size tells. */
static us_status head_norm(loader *l, const char *name, size_t heads, size_t width, us_eng_norm *out) {
    char full[320];
    const us_ck_tensor *t = find(l, name, full);
    if (!t) return US_OK;
    return norm(l, name, t->rank == 1 && t->shape[0] == width ? width : heads * width, false, out);
}

static size_t rows_of(const loader *l, const char *name, size_t cols) {
    char full[320];
    const us_ck_tensor *t = find(l, name, full);
    return t && cols ? us_weight_elements(l->e->st->ck, full) / cols : 0;
}

static void below(loader *l, uint32_t layer, const char *part) {
    snprintf(l->prefix, sizeof l->prefix, "%s%u.%s", l->e->layers_at, layer, part);
}

/* The biases of several projections laid end to end, or NULL when none has one. */
static us_status joined_bias(loader *l, const char *const *names, const size_t *sizes, size_t count, const float **out) {
    size_t total = 0, at = 0;
    bool some = false;
    for (size_t i = 0; i < count; i++) total += sizes[i];
    float *all = us_arena_calloc(&l->e->arena, total + 16, sizeof *all);
    if (!all) return us_fail_nomem(l->err, "reading weights");
    for (size_t i = 0; i < count; i++) {
        const float *b;
        US_TRY(vector(l, names[i], sizes[i], true, &b));
        if (b) memcpy(all + at, b, sizes[i] * sizeof *b);
        some |= b != NULL;
        at += sizes[i];
    }
    *out = some ? all : NULL;
    return US_OK;
}

static us_status load_gqa(loader *l, uint32_t layer, us_eng_gqa *w) {
    const us_recipe *r = &l->e->r;
    below(l, layer, r->single_mixer ? "mixer." : "self_attn.");
    size_t Dk = r->head_dim, Dv = r->v_head_dim, q = rows_of(l, "q_proj.weight", r->D), k = rows_of(l, "k_proj.weight", r->D);
    char name[320];
    if (!q || !k) return find(l, q ? "k_proj.weight" : "q_proj.weight", name), missing(l, name);
    size_t G = k / Dk;
    w->gated = q == 2 * (size_t)r->H * Dk;
    if ((q != (size_t)r->H * Dk && !w->gated) || G == 0 || k % Dk || r->H % G)
        return us_fail(l->err, US_E_FORMAT, "shape", "layer %u: query rows %zu and key rows %zu do not fit %u heads of %zu", layer, q, k, r->H, Dk);
    w->q_rows = (uint32_t)q;
    w->groups = (uint32_t)G;
    US_TRY(add_rows(l, &w->qkv, "q_proj.weight", q, r->D, false));
    US_TRY(add_rows(l, &w->qkv, "k_proj.weight", k, r->D, false));
    US_TRY(add_rows(l, &w->qkv, "v_proj.weight", G * Dv, r->D, false));
    static const char *const biases[] = {"q_proj.bias", "k_proj.bias", "v_proj.bias"};
    US_TRY(joined_bias(l, biases, (const size_t[]){q, k, G * Dv}, 3, &w->bias));
    US_TRY(add_rows(l, &w->o, "o_proj.weight", r->D, r->H * Dv, false));
    US_TRY(vector(l, "o_proj.bias", r->D, true, &w->o_bias));
    US_TRY(vector(l, "sinks|attention_sink_bias", r->H, true, &w->sinks));
    US_TRY(head_norm(l, r->qk_norm_after_rope ? "query_layernorm.weight" : "q_norm.weight", r->H, Dk, &w->q));
    return head_norm(l, r->qk_norm_after_rope ? "key_layernorm.weight" : "k_norm.weight", G, Dk, &w->k);
}

/* kv_b_proj [H (N + Dv), C]: for each head W_UK (q_nope -> latent, as W^T) and W_UV. */
static us_status load_absorbed(loader *l, us_eng_mla *w) {
    const us_recipe *r = &l->e->r;
    size_t N = r->nope, Dv = r->v_head_dim, C = r->kv_lora;
    char name[320];
    const us_ck_tensor *t = find(l, "kv_b_proj.weight", name);
    if (!t) return missing(l, name);
    size_t have = us_weight_elements(l->e->st->ck, name);
    if (have != r->H * (N + Dv) * C) return misshaped(l, name, have, r->H * (N + Dv), C);
    w->uk = us_arena_calloc(&l->e->arena, r->H, sizeof *w->uk);
    w->uv = us_arena_calloc(&l->e->arena, r->H, sizeof *w->uv);
    if (!w->uk || !w->uv) return us_fail_nomem(l->err, "reading weights");
    for (size_t h = 0; h < r->H; h++) {
        us_eng_part p = {.t = t, .count = have, .off = h * (N + Dv) * C, .sn = 1, .sk = C, .rows = C, .coded = is_coded(t)};
        w->uk[h] = (us_mat){.packed = {.n = C, .k = N, .type = packed_type(l, t, p.coded)}, .parts = {p}, .n_parts = 1};
        p.off += N * C;
        p.sn = C;
        p.sk = 1;
        p.rows = Dv;
        w->uv[h] = (us_mat){.packed = {.n = Dv, .k = C, .type = packed_type(l, t, p.coded)}, .parts = {p}, .n_parts = 1};
    }
    return US_OK;
}

static us_status load_mla(loader *l, uint32_t layer, const char *part, us_eng_mla *w) {
    const us_recipe *r = &l->e->r;
    below(l, layer, part);
    size_t Dk = r->nope + r->rope_dims, C = r->kv_lora;
    if (r->q_lora) {
        US_TRY(add_rows(l, &w->q_a, "q_a_proj.weight", r->q_lora, r->D, false));
        US_TRY(vector(l, "q_a_proj.bias", r->q_lora, true, &w->q_a_bias));
        US_TRY(norm(l, "q_a_layernorm.weight", r->q_lora, false, &w->q_norm));
        US_TRY(add_rows(l, &w->q, "q_b_proj.weight", r->H * Dk, r->q_lora, false));
    } else {
        US_TRY(add_rows(l, &w->q, "q_proj.weight", r->H * Dk, r->D, false));
    }
    US_TRY(add_rows(l, &w->kv_a, "kv_a_proj_with_mqa.weight", C + r->rope_dims, r->D, false));
    US_TRY(vector(l, "kv_a_proj_with_mqa.bias", C + r->rope_dims, true, &w->kv_a_bias));
    US_TRY(norm(l, "kv_a_layernorm.weight", C, false, &w->kv_norm));
    US_TRY(load_absorbed(l, w));
    US_TRY(add_rows(l, &w->o, "o_proj.weight", r->D, r->H * r->v_head_dim, false));
    US_TRY(vector(l, "o_proj.bias", r->D, true, &w->o_bias));
    if (!r->index_topk || !r->q_lora || r->layers[layer].index_shared) return US_OK;
    US_TRY(add_rows(l, &w->index.q, "indexer.wq_b.weight", r->index_heads * r->index_dim, r->q_lora, false));
    US_TRY(add_rows(l, &w->index.k, "indexer.wk.weight", r->index_dim, r->D, false));
    US_TRY(add_rows(l, &w->index.w, "indexer.weights_proj.weight", r->index_heads, r->D, false));
    return norm(l, "indexer.k_norm.weight", r->index_dim, false, &w->index.norm);
}

static us_status load_gdn(loader *l, uint32_t layer, us_eng_gdn *w) {
    const us_recipe *r = &l->e->r;
    below(l, layer, "linear_attn.");
    size_t Hk = r->key_heads, Hv = r->value_heads, K = r->key_dim, V = r->value_dim, key = Hk * K, value = Hv * V, C = 2 * key + value;
    if (!Hk || !Hv || !K || !V || Hv % Hk) return us_fail(l->err, US_E_FORMAT, "range", "the sizes of the linear attention do not fit together");
    US_TRY(add_rows(l, &w->in, "in_proj_qkvz.weight", C + value, r->D, true));
    w->grouped = us_mat_there(&w->in);
    if (w->grouped) {
        US_TRY(add_rows(l, &w->ba, "in_proj_ba.weight", 2 * Hv, r->D, false));
    } else {
        US_TRY(add_rows(l, &w->in, "in_proj_qkv.weight", C, r->D, false));
        US_TRY(add_rows(l, &w->in, "in_proj_z.weight", value, r->D, false));
        US_TRY(add_rows(l, &w->ba, "in_proj_b.weight", Hv, r->D, false));
        US_TRY(add_rows(l, &w->ba, "in_proj_a.weight", Hv, r->D, false));
    }
    US_TRY(vector(l, "conv1d.weight", C * r->conv_width, false, &w->conv));
    US_TRY(vector(l, "A_log", Hv, false, &w->a_log));
    US_TRY(vector(l, "dt_bias", Hv, false, &w->dt_bias));
    US_TRY(norm(l, "norm.weight", V, false, &w->norm));
    return add_rows(l, &w->out, "out_proj.weight", r->D, value, false);
}

/* The three convolutions of KDA as one over q|k|v. */
static us_status load_kda(loader *l, uint32_t layer, us_eng_kda *w) {
    const us_recipe *r = &l->e->r;
    below(l, layer, "self_attn.");
    size_t H = r->key_heads, K = r->key_dim, n = H * K, W = r->conv_width;
    if (!H || !K) return us_fail(l->err, US_E_FORMAT, "range", "the sizes of the linear attention do not fit together");
    US_TRY(add_rows(l, &w->qkv, "q_proj.weight", n, r->D, false));
    US_TRY(add_rows(l, &w->qkv, "k_proj.weight", n, r->D, false));
    US_TRY(add_rows(l, &w->qkv, "v_proj.weight", n, r->D, false));
    float *conv = us_arena_alloc(&l->e->arena, (3 * n * W + 16) * sizeof *conv);
    if (!conv) return us_fail_nomem(l->err, "reading weights");
    static const char *const names[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
    for (size_t i = 0; i < 3; i++) {
        const float *one;
        US_TRY(vector(l, names[i], n * W, false, &one));
        memcpy(conv + i * n * W, one, n * W * sizeof *one);
    }
    w->conv = conv;
    US_TRY(add_rows(l, &w->f_a, "f_a_proj.weight", K, r->D, false));
    US_TRY(add_rows(l, &w->f_b, "f_b_proj.weight", n, K, false));
    US_TRY(add_rows(l, &w->g_a, "g_a_proj.weight", K, r->D, false));
    US_TRY(add_rows(l, &w->g_b, "g_b_proj.weight", n, K, false));
    US_TRY(add_rows(l, &w->b, "b_proj.weight", H, r->D, false));
    US_TRY(vector(l, "A_log", H, false, &w->a_log));
    US_TRY(vector(l, "dt_bias", n, false, &w->dt_bias));
    US_TRY(norm(l, "o_norm.weight", K, false, &w->norm));
    return add_rows(l, &w->out, "o_proj.weight", r->D, n, false);
}

static us_status load_mamba(loader *l, uint32_t layer, us_eng_mamba *w) {
    const us_recipe *r = &l->e->r;
    below(l, layer, "mixer.");
    size_t H = r->mamba_heads, P = r->mamba_dim, G = r->mamba_groups, N = r->mamba_state, inner = H * P, C = inner + 2 * G * N;
    if (!H || !P || !G || !N || H % G) return us_fail(l->err, US_E_FORMAT, "range", "the sizes of the Mamba layers do not fit together");
    US_TRY(add_rows(l, &w->in, "in_proj.weight", inner + C + H, r->D, false));
    US_TRY(vector(l, "conv1d.weight", C * r->conv_width, false, &w->conv));
    US_TRY(vector(l, "conv1d.bias", C, true, &w->conv_bias));
    US_TRY(vector(l, "A_log", H, false, &w->a));
    for (size_t h = 0; h < H; h++) ((float *)(uintptr_t)w->a)[h] = (float)-exp((double)w->a[h]);
    US_TRY(vector(l, "D", H, false, &w->d));
    US_TRY(vector(l, "dt_bias", H, false, &w->dt_bias));
    US_TRY(norm(l, "norm.weight", inner, false, &w->norm));
    return add_rows(l, &w->out, "out_proj.weight", r->D, inner, false);
}

static us_status load_compressor(loader *l, const us_layer_recipe *lr, const char *below_attn, size_t d, us_eng_compressor *w) {
    size_t at = strlen(l->prefix), width = lr->compress_sparse ? 2 * d : d;
    snprintf(l->prefix + at, sizeof l->prefix - at, "%s", below_attn);
    w->dim = (uint32_t)d;
    us_status s = add_rows(l, &w->kv, "compressor.wkv.weight", width, l->e->r.D, false);
    if (s == US_OK) s = add_rows(l, &w->gate, "compressor.wgate.weight", width, l->e->r.D, false);
    if (s == US_OK) s = vector(l, "compressor.ape", lr->compress * width, false, &w->ape);
    if (s == US_OK) s = norm(l, "compressor.norm.weight", d, false, &w->norm);
    l->prefix[at] = 0;
    return s;
}

static us_status load_v4(loader *l, uint32_t layer, us_eng_v4 *w) {
    const us_recipe *r = &l->e->r;
    const us_layer_recipe *lr = &r->layers[layer];
    size_t d = r->head_dim, groups = r->o_groups, rank = r->o_lora;
    below(l, layer, "attn.");
    if (!r->q_lora || !groups || r->H % groups || lr->rope < 0 || r->ropes[lr->rope].dims > d || (r->index_dim && r->ropes[lr->rope].dims > r->index_dim))
        return us_fail(l->err, US_E_FORMAT, "range", "the sizes of the attention do not fit together");
    size_t per = r->H / groups * d;
    US_TRY(add_rows(l, &w->q_a, "wq_a.weight", r->q_lora, r->D, false));
    US_TRY(norm(l, "q_norm.weight", r->q_lora, false, &w->q_norm));
    US_TRY(add_rows(l, &w->q_b, "wq_b.weight", r->H * d, r->q_lora, false));
    US_TRY(add_rows(l, &w->kv, "wkv.weight", d, r->D, false));
    US_TRY(norm(l, "kv_norm.weight|norm.weight", d, false, &w->kv_norm));
    US_TRY(vector(l, "attn_sink", r->H, false, &w->sinks));
    US_TRY(add_rows(l, &w->o_a, "wo_a.weight", groups * rank, per, false));
    w->o_groups = us_arena_calloc(&l->e->arena, groups, sizeof *w->o_groups);
    if (!w->o_groups) return us_fail_nomem(l->err, "reading weights");
    for (size_t g = 0; g < groups; g++) {
        w->o_groups[g] = w->o_a;
        w->o_groups[g].packed.n = w->o_groups[g].parts[0].rows = rank;
        w->o_groups[g].parts[0].off = g * rank * per;
    }
    US_TRY(add_rows(l, &w->o_b, "wo_b.weight", r->D, groups * rank, false));
    if (!lr->compress) return US_OK;
    US_TRY(load_compressor(l, lr, "", d, &w->own));
    if (!lr->compress_sparse) return US_OK;
    US_TRY(load_compressor(l, lr, "indexer.", r->index_dim, &w->index));
    US_TRY(add_rows(l, &w->index_q, "indexer.wq_b.weight", r->index_heads * r->index_dim, r->q_lora, false));
    return add_rows(l, &w->index_w, "indexer.weights_proj.weight", r->index_heads, r->D, false);
}

/* ---- feed-forward ---- */

#define DOWN "down_proj.weight|w2.weight"

static us_status load_mlp(loader *l, size_t D, us_eng_mlp *w) {
    size_t F = 0;
    char name[320];
    const us_ck_tensor *t = find(l, DOWN, name);
    if (t) F = us_weight_elements(l->e->st->ck, name) / D;
    if (!F) return us_fail(l->err, US_E_FORMAT, "tensor-missing", "the matrix \"%s\" is missing or mis-shaped", name);
    w->width = F;
    US_TRY(add_rows(l, &w->gate, "gate_proj.weight|w1.weight", F, D, true));
    US_TRY(add_rows(l, &w->up, "up_proj.weight|w3.weight", F, D, false));
    return add_rows(l, &w->down, DOWN, D, F, false);
}

static us_status load_dense(loader *l, uint32_t layer, const char *prefixes, us_eng_mlp *w) {
    char name[320];
    for (const char *at = prefixes; *at;) {
        size_t n = strcspn(at, "|");
        char part[64];
        snprintf(part, sizeof part, "%.*s", (int)n, at);
        below(l, layer, part);
        if (find(l, DOWN, name)) break;
        at += n + (at[n] == '|');
    }
    return load_mlp(l, l->e->r.D, w);
}

static const us_ck_tensor *stacked(const us_engine *e, int32_t block, bool down, us_projection *proj) {
    const us_structure *st = e->st;
    for (size_t i = 0; i < st->ck->n_tensors; i++) {
        const us_role *role = &st->roles[i];
        if (role->kind != US_ROLE_SLICE || role->block != (uint32_t)block || !role->desc) continue;
        us_projection k = role->desc->proj;
        bool is_down = k == US_PROJ_DOWN || k == US_PROJ_DOWN_IN_OUT;
        bool is_gate_up = k == US_PROJ_GATE_UP_ROWS || k == US_PROJ_GATE_UP_COLS || k == US_PROJ_GATE_UP_INTERLEAVED;
        if (down ? !is_down : !is_gate_up) continue;
        *proj = k;
        return &st->ck->tensors[i];
    }
    return NULL;
}

static us_mat slice_mat(const loader *l, const us_ck_tensor *t, uint32_t e, uint32_t E, size_t per, size_t n, size_t k, size_t off, size_t sn, size_t sk) {
    bool coded = is_coded(t);
    us_eng_part p = {.t = t, .count = per, .first = coded ? 0 : (uint64_t)e * per, .off = off, .sn = sn, .sk = sk, .rows = n, .coded = coded, .expert = e, .experts = E};
    return (us_mat){.packed = {.n = n, .k = k, .type = packed_type(l, t, coded)}, .parts = {p}, .n_parts = 1};
}

/* Experts stacked in a gate-up and a down tensor, in any of the layouts on disk. */
static us_status load_stacked(loader *l, int32_t block, size_t D, us_eng_moe *w) {
    us_projection gu = US_PROJ_NONE, dn = US_PROJ_NONE;
    const us_ck_tensor *a = stacked(l->e, block, false, &gu), *b = stacked(l->e, block, true, &dn);
    if (!a || !b) return us_fail(l->err, US_E_UNSUPPORTED, "layout", "the layout of the experts is not known");
    size_t E = w->n_experts, per_a = 1, per_b = 1;
    for (int i = 1; i < a->rank; i++) per_a *= a->shape[i];
    for (int i = 1; i < b->rank; i++) per_b *= b->shape[i];
    bool blocks_a = us_weight_is_packed_blocks(a), blocks_b = us_weight_is_packed_blocks(b);
    if (blocks_a) per_a *= 2;
    if (blocks_b) per_b *= 2;
    size_t F = per_b / D;
    if (!F || per_b != F * D || per_a != 2 * F * D || a->shape[0] != E || b->shape[0] != E)
        return us_fail(l->err, US_E_FORMAT, "shape", "the stacked experts of block %s do not fit together", l->e->st->blocks[block].key);
    const float *gub, *dnb;
    US_TRY(vector(l, "experts.gate_up_proj_bias", E * 2 * F, true, &gub));
    US_TRY(vector(l, "experts.down_proj_bias", E * D, true, &dnb));
    bool rows = gu == US_PROJ_GATE_UP_ROWS || blocks_a; /* MXFP4 blocks are stored [E, out, in], unlike the plain tensors */
    bool mixed = gu == US_PROJ_GATE_UP_INTERLEAVED;
    size_t step = mixed ? 2 : 1, up = mixed ? 1 : F;
    for (uint32_t e = 0; e < E; e++) {
        us_eng_mlp *m = &w->experts[e];
        m->width = F;
        size_t sn = rows ? step * D : step, sk = rows ? 1 : 2 * F;
        m->gate = slice_mat(l, a, e, (uint32_t)E, per_a, F, D, 0, sn, sk);
        m->up = slice_mat(l, a, e, (uint32_t)E, per_a, F, D, rows ? up * D : up, sn, sk);
        bool out_in = dn == US_PROJ_DOWN || blocks_b;
        m->down = slice_mat(l, b, e, (uint32_t)E, per_b, D, F, 0, out_in ? F : 1, out_in ? 1 : D);
        if (!gub || !dnb) continue;
        float *g = us_arena_alloc(&l->e->arena, (2 * F + 32) * sizeof *g), *u = g ? g + F + 16 : NULL;
        if (!g) return us_fail_nomem(l->err, "reading weights");
        for (size_t f = 0; f < F; f++) g[f] = gub[e * 2 * F + 2 * f], u[f] = gub[e * 2 * F + 2 * f + 1];
        m->gate_bias = g;
        m->up_bias = u;
        m->down_bias = dnb + (size_t)e * D;
    }
    return US_OK;
}

static us_status load_experts(loader *l, int32_t block, size_t D, us_eng_moe *w) {
    const us_moe_block *b = &l->e->st->blocks[block];
    w->n_experts = b->n_experts;
    w->experts = us_arena_calloc(&l->e->arena, b->n_experts, sizeof *w->experts);
    if (!w->experts) return us_fail_nomem(l->err, "reading weights");
    char name[320];
    snprintf(l->prefix, sizeof l->prefix, "%sexperts.0.", b->prefix);
    if (!find(l, DOWN, name)) {
        snprintf(l->prefix, sizeof l->prefix, "%s", b->prefix);
        return load_stacked(l, block, D, w);
    }
    for (uint32_t e = 0; e < b->n_experts; e++) {
        snprintf(l->prefix, sizeof l->prefix, "%sexperts.%u.", b->prefix, e);
        US_TRY(load_mlp(l, D, &w->experts[e]));
    }
    return US_OK;
}

static us_status load_table(loader *l, size_t K, us_eng_moe *w) {
    const us_recipe *r = &l->e->r;
    us_arena tmp = {0};
    const double *d;
    char name[320];
    if (!find(l, "gate.tid2eid", name)) return missing(l, name);
    us_status s = us_weight_f64(l->e->st->ck, name, (size_t)r->V * K, &tmp, &d, l->err);
    int64_t *table = s == US_OK ? us_arena_alloc(&l->e->arena, (size_t)r->V * K * sizeof *table) : NULL;
    if (s == US_OK && !table) s = us_fail_nomem(l->err, "reading weights");
    for (size_t i = 0; s == US_OK && i < (size_t)r->V * K; i++) {
        table[i] = (int64_t)d[i];
        if (table[i] < 0 || table[i] >= r->router.n_rows) s = us_fail(l->err, US_E_FORMAT, "range", "the token table names expert %lld", (long long)table[i]);
    }
    us_arena_free(&tmp);
    w->table = table;
    return s;
}

static us_status load_moe(loader *l, uint32_t layer, us_eng_moe *w) {
    const us_recipe *r = &l->e->r;
    const us_moe_block *b = &l->e->st->blocks[r->layers[layer].block];
    size_t E = r->router.n_rows, D = r->D;
    snprintf(l->prefix, sizeof l->prefix, "%s", b->prefix);
    US_TRY(add_rows(l, &w->router, "gate.weight|router.weight|router.layer.weight|gate.wg.weight|router.classifier.weight", E, D, false));
    US_TRY(vector(l, "router.bias", E, true, &w->router_bias));
    US_TRY(vector(l, "gate.e_score_correction_bias|e_score_correction_bias|gate.bias|router.e_score_correction_bias|moe_statics.e_score_correction_bias", E,
                  true, &w->correction));
    if (r->layers[layer].hash) US_TRY(load_table(l, r->router.top_k, w));
    US_TRY(add_rows(l, &w->fc1, "fc1_latent_proj.weight", 0, D, true));
    if (us_mat_there(&w->fc1)) US_TRY(add_rows(l, &w->fc2, "fc2_latent_proj.weight", D, w->fc1.packed.n, false));
    US_TRY(load_experts(l, r->layers[layer].block, us_mat_there(&w->fc1) ? w->fc1.packed.n : D, w));
    static const char *const shared[] = {"shared_expert.", "shared_experts.", "shared_mlp."};
    for (size_t i = 0; i < 3; i++) {
        char name[320];
        snprintf(l->prefix, sizeof l->prefix, "%s%s", b->prefix, shared[i]);
        if (!find(l, DOWN, name)) continue;
        w->has_shared = true;
        US_TRY(load_mlp(l, D, &w->shared));
        snprintf(l->prefix, sizeof l->prefix, "%s", b->prefix);
        return add_rows(l, &w->shared_gate, "shared_expert_gate.weight", 1, D, true);
    }
    return US_OK;
}

/* ---- layers ---- */

#define NORM_IN  "input_layernorm.weight|attn_norm.weight|norm.weight"
#define NORM_FFN "post_attention_layernorm.weight|ffn_norm.weight"

static us_status load_hc(loader *l, const char *which, bool head, us_eng_hc *w) {
    const us_recipe *r = &l->e->r;
    size_t hc = r->hc_mult, rows = head ? hc : (2 + hc) * hc;
    char fn[64], base[64], scale[64];
    const char *sep = head ? "_" : "", *again = head ? "|hc_head.hc_" : ""; /* released and re-saved spelling of the head */
    snprintf(fn, sizeof fn, "%s%sfn%s%s", which, sep, again, head ? "fn" : "");
    snprintf(base, sizeof base, "%s%sbase%s%s", which, sep, again, head ? "base" : "");
    snprintf(scale, sizeof scale, "%s%sscale%s%s", which, sep, again, head ? "scale" : "");
    US_TRY(add_rows(l, &w->fn, fn, rows, hc * r->D, false));
    US_TRY(vector(l, base, rows, false, &w->base));
    return vector(l, scale, head ? 1 : 3, false, &w->scale);
}

static us_status load_mixer(loader *l, uint32_t i, us_eng_layer *w) {
    switch (l->e->r.layers[i].mixer) {
    case US_MIX_GQA: return load_gqa(l, i, &w->gqa);
    case US_MIX_MLA: return load_mla(l, i, l->e->r.two_attentions ? "self_attn.0." : "self_attn.", &w->mla);
    case US_MIX_GDN: return load_gdn(l, i, &w->gdn);
    case US_MIX_KDA: return load_kda(l, i, &w->kda);
    case US_MIX_MAMBA2: return load_mamba(l, i, &w->mamba);
    case US_MIX_V4: return load_v4(l, i, &w->v4);
    case US_MIX_NONE: break;
    }
    return US_OK;
}

static us_status load_longcat(loader *l, uint32_t i, us_eng_layer *w) {
    size_t D = l->e->r.D;
    below(l, i, "");
    US_TRY(norm(l, "input_layernorm.0.weight", D, false, &w->norm_in));
    US_TRY(norm(l, "post_attention_layernorm.0.weight", D, false, &w->norm_ffn));
    US_TRY(norm(l, "input_layernorm.1.weight", D, false, &w->norm_in2));
    US_TRY(norm(l, "post_attention_layernorm.1.weight", D, false, &w->norm_ffn2));
    US_TRY(load_mixer(l, i, w));
    US_TRY(load_mla(l, i, "self_attn.1.", &w->mla2));
    US_TRY(load_moe(l, i, &w->moe));
    US_TRY(load_dense(l, i, "mlps.0.", &w->mlp));
    return load_dense(l, i, "mlps.1.", &w->mlp2);
}

static us_status load_layer(loader *l, uint32_t i, us_eng_layer *w) {
    const us_recipe *r = &l->e->r;
    const us_layer_recipe *lr = &r->layers[i];
    if (r->two_attentions) return load_longcat(l, i, w);
    below(l, i, "");
    if (lr->mixer != US_MIX_NONE) US_TRY(norm(l, NORM_IN, r->D, false, &w->norm_in));
    if (lr->has_ffn) US_TRY(norm(l, r->single_mixer ? NORM_IN : NORM_FFN, r->D, false, &w->norm_ffn));
    if (r->hc_mult > 1) {
        US_TRY(load_hc(l, "hc_attn_", false, &w->hc_attn));
        US_TRY(load_hc(l, "hc_ffn_", false, &w->hc_ffn));
    }
    US_TRY(load_mixer(l, i, w));
    if (!lr->has_ffn) return US_OK;
    return lr->moe ? load_moe(l, i, &w->moe) : load_dense(l, i, "mlp.|feed_forward.|block_sparse_moe.|mixer.", &w->mlp);
}

#define EMBED "embed_tokens.weight|embeddings.weight|embed.weight|word_embeddings.weight"

static us_status load_ends(loader *l) {
    us_engine *e = l->e;
    const us_recipe *r = &e->r;
    char name[320];
    snprintf(l->prefix, sizeof l->prefix, "%s", e->base);
    e->embed = find(l, EMBED, name);
    if (!e->embed) return missing(l, name);
    size_t have = us_weight_elements(e->st->ck, name);
    if (have != (size_t)r->V * r->D) return misshaped(l, name, have, r->V, r->D);
    if (is_coded(e->embed)) return us_fail(l->err, US_E_UNSUPPORTED, "dtype", "an embedding of type %s cannot be read", us_dtype_name(e->embed->dtype));
    US_TRY(norm(l, "norm.weight|norm_f.weight|final_layernorm.weight", r->D, false, &e->norm_out));
    if (r->hc_mult > 1) US_TRY(load_hc(l, "hc_head", true, &e->hc_head));
    l->prefix[0] = 0;
    US_TRY(add_rows(l, &e->head, "lm_head.weight|head.weight|language_model.lm_head.weight", r->V, r->D, true));
    US_TRY(vector(l, "lm_head.bias", r->V, true, &e->head_bias));
    if (us_mat_there(&e->head)) return US_OK;
    if (!r->tie_head)
        return us_fail(l->err, US_E_REFUSED, "tensor-missing", "config.json says the head is not tied, but the checkpoint has no lm_head.weight");
    snprintf(l->prefix, sizeof l->prefix, "%s", e->base);
    return add_rows(l, &e->head, EMBED, r->V, r->D, false);
}

us_status us_eng_load(us_engine *e, us_err *err) {
    loader l = {.e = e, .err = err};
    e->layers = us_arena_calloc(&e->arena, e->r.L, sizeof *e->layers);
    if (!e->layers) return us_fail_nomem(err, "reading weights");
    for (uint32_t i = 0; i < e->r.L; i++) {
        us_status s = load_layer(&l, i, &e->layers[i]);
        if (s != US_OK) {
            us_err_where(err, "layer %u", i);
            return s;
        }
    }
    return load_ends(&l);
}

static void mlp_mats(us_eng_mlp *m, void (*fn)(void *, us_mat *), void *user) {
    fn(user, &m->gate);
    fn(user, &m->up);
    fn(user, &m->down);
}

static void mla_mats(us_engine *e, us_eng_mla *m, void (*fn)(void *, us_mat *), void *user) {
    us_mat *all[] = {&m->q_a, &m->q, &m->kv_a, &m->o, &m->index.q, &m->index.k, &m->index.w};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) fn(user, all[i]);
    for (size_t h = 0; m->uk && h < e->r.H; h++) fn(user, &m->uk[h]), fn(user, &m->uv[h]);
}

void us_eng_each_mat(us_engine *e, us_eng_layer *l, void (*fn)(void *user, us_mat *m), void *user) {
    us_mat *all[] = {&l->gqa.qkv, &l->gqa.o, &l->gdn.in, &l->gdn.ba, &l->gdn.out, &l->kda.qkv, &l->kda.f_a, &l->kda.f_b, &l->kda.g_a, &l->kda.g_b,
                     &l->kda.b, &l->kda.out, &l->mamba.in, &l->mamba.out, &l->v4.q_a, &l->v4.q_b, &l->v4.kv, &l->v4.o_b, &l->v4.own.kv, &l->v4.own.gate,
                     &l->v4.index.kv, &l->v4.index.gate, &l->v4.index_q, &l->v4.index_w, &l->hc_attn.fn, &l->hc_ffn.fn, &l->moe.router, &l->moe.fc1,
                     &l->moe.fc2, &l->moe.shared_gate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) fn(user, all[i]);
    for (size_t g = 0; l->v4.o_groups && g < e->r.o_groups; g++) fn(user, &l->v4.o_groups[g]);
    mla_mats(e, &l->mla, fn, user);
    mla_mats(e, &l->mla2, fn, user);
    mlp_mats(&l->mlp, fn, user);
    mlp_mats(&l->mlp2, fn, user);
    mlp_mats(&l->moe.shared, fn, user);
    for (uint32_t i = 0; i < l->moe.n_experts; i++) mlp_mats(&l->moe.experts[i], fn, user);
}
