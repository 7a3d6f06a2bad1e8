/* Tiny MoE checkpoints in several layouts. See moe_maker.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "support/moe_maker.h"

#include "base/rng.h"

static float bf16(double x) {
    return us_bf16_to_f32(us_f32_to_bf16((float)x));
}

static float *numbers(size_t n) {
    float *p = us_calloc(n ? n : 1, sizeof *p);
    assert_non_null(p);
    return p;
}

static maker empty(uint32_t layers, uint32_t E, uint32_t H, uint32_t I) {
    maker m = {.layers = layers, .E = E, .H = H, .I = I};
    size_t n = (size_t)layers * E * H;
    m.router = numbers(n);
    m.gate = numbers(n * I);
    m.up = numbers(n * I);
    m.down = numbers(n * I);
    return m;
}

maker maker_create(uint32_t layers, uint32_t E, uint32_t H, uint32_t I, uint64_t seed) {
    maker m = empty(layers, E, H, I);
    size_t n = (size_t)layers * E * H;
    for (size_t i = 0; i < n; i++) m.router[i] = bf16(us_rng_normal(seed, 1, i));
    for (size_t i = 0; i < n * I; i++) {
        m.gate[i] = bf16(us_rng_normal(seed, 2, i) / sqrt(H));
        m.up[i] = bf16(us_rng_normal(seed, 3, i) / sqrt(H));
        m.down[i] = bf16(us_rng_normal(seed, 4, i) / sqrt(I));
    }
    return m;
}

void maker_free(maker *m) {
    us_free(m->router);
    us_free(m->gate);
    us_free(m->up);
    us_free(m->down);
}

static size_t at(const maker *m, uint32_t layer, uint32_t e) {
    return (size_t)layer * m->E + e;
}
float *maker_router(const maker *m, uint32_t layer, uint32_t e) {
    return m->router + at(m, layer, e) * m->H;
}
float *maker_gate(const maker *m, uint32_t layer, uint32_t e) {
    return m->gate + at(m, layer, e) * m->H * m->I;
}
float *maker_up(const maker *m, uint32_t layer, uint32_t e) {
    return m->up + at(m, layer, e) * m->H * m->I;
}
float *maker_down(const maker *m, uint32_t layer, uint32_t e) {
    return m->down + at(m, layer, e) * m->H * m->I;
}

/* Expert `to` of one model becomes expert `from` of another with neuron perm[i] at place i. */
static void copy_expert(maker *a, uint32_t layer, uint32_t to, const maker *b, uint32_t from, const uint32_t *perm) {
    float *g = maker_gate(a, layer, to), *u = maker_up(a, layer, to), *d = maker_down(a, layer, to);
    const float *bg = maker_gate(b, layer, from), *bu = maker_up(b, layer, from), *bd = maker_down(b, layer, from);
    for (uint32_t i = 0; i < a->I; i++) {
        uint32_t o = perm ? perm[i] : i;
        for (uint32_t k = 0; k < a->H; k++) {
            g[(size_t)i * a->H + k] = bg[(size_t)o * a->H + k];
            u[(size_t)i * a->H + k] = bu[(size_t)o * a->H + k];
            d[(size_t)k * a->I + i] = bd[(size_t)k * a->I + o];
        }
    }
}

static maker clone(const maker *m) {
    maker c = empty(m->layers, m->E, m->H, m->I);
    size_t n = (size_t)m->layers * m->E * m->H;
    memcpy(c.router, m->router, n * sizeof(float));
    memcpy(c.gate, m->gate, n * m->I * sizeof(float));
    memcpy(c.up, m->up, n * m->I * sizeof(float));
    memcpy(c.down, m->down, n * m->I * sizeof(float));
    return c;
}

void maker_plant(maker *m, uint32_t families, double noise, bool per_group, uint64_t seed, uint32_t *label) {
    maker heads = clone(m);
    uint32_t perm[1024], neurons[1024], runs = per_group ? 4 : 1, run = m->E / runs, each = families / runs;
    assert_true(m->E <= 1024 && m->I <= 1024);
    for (uint32_t l = 0; l < m->layers; l++) {
        for (uint32_t r = 0; r < runs; r++) {
            us_rng_permutation(seed, 100 + l * runs + r, run, perm);
            for (uint32_t i = 0; i < run; i++) label[(size_t)l * m->E + r * run + perm[i]] = r * each + i % each;
        }
        for (uint32_t e = 0; e < m->E; e++) {
            us_rng_permutation(seed, 10000 + at(m, l, e), m->I, neurons);
            copy_expert(m, l, e, &heads, label[(size_t)l * m->E + e], neurons);
        }
    }
    size_t n = (size_t)m->layers * m->E * m->H * m->I;
    for (size_t i = 0; i < n; i++) {
        m->gate[i] = bf16((double)m->gate[i] + noise * us_rng_normal(seed, 5, i) / sqrt(m->H));
        m->up[i] = bf16((double)m->up[i] + noise * us_rng_normal(seed, 6, i) / sqrt(m->H));
        m->down[i] = bf16((double)m->down[i] + noise * us_rng_normal(seed, 7, i) / sqrt(m->I));
    }
    maker_free(&heads);
}

maker maker_renumbered(const maker *m, const uint32_t *order) {
    maker c = empty(m->layers, m->E, m->H, m->I);
    for (uint32_t l = 0; l < m->layers; l++) {
        for (uint32_t e = 0; e < m->E; e++) {
            copy_expert(&c, l, e, m, order[e], NULL);
            memcpy(maker_router(&c, l, e), maker_router(m, l, order[e]), m->H * sizeof(float));
        }
    }
    return c;
}

void maker_shuffle_neurons(maker *m, uint64_t seed) {
    maker old = clone(m);
    uint32_t perm[1024];
    assert_true(m->I <= 1024);
    for (uint32_t l = 0; l < m->layers; l++) {
        for (uint32_t e = 0; e < m->E; e++) {
            us_rng_permutation(seed, at(m, l, e), m->I, perm);
            copy_expert(m, l, e, &old, e, perm);
        }
    }
    maker_free(&old);
}

/* ---- writing ---- */

typedef struct out {
    us_st_tensor *t;
    size_t n, cap;
    us_buf data;
    us_arena arena;
} out;

static void put(out *o, const char *name, us_dtype dtype, int rank, const uint64_t *shape, const void *p, size_t bytes) {
    assert_true(us_grow(&o->t, &o->cap, o->n + 1, sizeof *o->t));
    uint64_t *s = us_arena_alloc(&o->arena, sizeof *s * 4);
    assert_non_null(s);
    memcpy(s, shape, (size_t)rank * sizeof *s);
    o->t[o->n++] = (us_st_tensor){.name = us_str_z(name), .dtype = dtype, .rank = (uint8_t)rank, .shape = s, .begin = o->data.n, .end = o->data.n + bytes};
    us_buf_add(&o->data, p, bytes);
}

static void put_floats(out *o, const char *name, us_dtype dtype, int rank, const uint64_t *shape, const float *p, size_t n) {
    if (dtype == US_DTYPE_F32) {
        put(o, name, dtype, rank, shape, p, n * 4);
        return;
    }
    uint16_t *h = us_malloc(n * 2 + 1);
    assert_non_null(h);
    for (size_t i = 0; i < n; i++) h[i] = dtype == US_DTYPE_BF16 ? us_f32_to_bf16(p[i]) : us_f32_to_f16(p[i]);
    put(o, name, dtype, rank, shape, h, n * 2);
    us_free(h);
}

static void put_fp8(out *o, const char *base, const float *p, size_t rows, size_t cols) {
    size_t br = (rows + 31) / 32, bc = (cols + 31) / 32;
    float *scale = numbers(br * bc);
    uint8_t *q = us_malloc(rows * cols + 1);
    assert_non_null(q);
    for (size_t i = 0; i < rows; i++) {
        for (size_t k = 0; k < cols; k++) scale[i / 32 * bc + k / 32] = fmaxf(scale[i / 32 * bc + k / 32], fabsf(p[i * cols + k]) / 448.0f);
    }
    for (size_t i = 0; i < rows * cols; i++) q[i] = us_f32_to_f8e4m3_sat(p[i] / scale[i / cols / 32 * bc + i % cols / 32]);
    put(o, test_format("%s.weight", base), US_DTYPE_F8_E4M3, 2, (uint64_t[]){rows, cols}, q, rows * cols);
    put(o, test_format("%s.weight_scale_inv", base), US_DTYPE_F32, 2, (uint64_t[]){br, bc}, scale, br * bc * 4);
    us_free(q);
    us_free(scale);
}

static void put_int4(out *o, const char *base, const float *p, size_t rows, size_t cols) {
    size_t groups = cols / 32, words = cols / 8;
    uint16_t *scale = us_calloc(rows * groups + 1, 2);
    uint32_t *q = us_calloc(rows * words + 1, 4);
    assert_true(scale && q && cols % 32 == 0);
    for (size_t i = 0; i < rows; i++) {
        for (size_t g = 0; g < groups; g++) {
            float top = 0;
            for (size_t k = g * 32; k < g * 32 + 32; k++) top = fmaxf(top, fabsf(p[i * cols + k]));
            scale[i * groups + g] = us_f32_to_bf16(top / 7.0f);
            float s = us_bf16_to_f32(scale[i * groups + g]);
            for (size_t k = g * 32; k < g * 32 + 32; k++) {
                int v = (int)lrintf(s > 0 ? p[i * cols + k] / s : 0);
                v = v < -8 ? -8 : v > 7 ? 7 : v;
                q[i * words + k / 8] |= (uint32_t)(v + 8) << (k % 8 * 4);
            }
        }
    }
    int64_t shape[2] = {(int64_t)rows, (int64_t)cols};
    put(o, test_format("%s.weight_packed", base), US_DTYPE_I32, 2, (uint64_t[]){rows, words}, q, rows * words * 4);
    put(o, test_format("%s.weight_scale", base), US_DTYPE_BF16, 2, (uint64_t[]){rows, groups}, scale, rows * groups * 2);
    put(o, test_format("%s.weight_shape", base), US_DTYPE_I64, 1, (uint64_t[]){2}, shape, sizeof shape);
    us_free(scale);
    us_free(q);
}

/* E2M1 codes, two a byte, low nibble first; one exponent byte for 32. bytes_as_weight: I8 "weight" with F8_E8M0 "scale", else U8 "weight_packed" and "weight_scale". */
static void put_fp4(out *o, const char *base, const float *p, size_t rows, size_t cols, bool bytes_as_weight) {
    size_t groups = cols / 32;
    uint8_t *q = us_calloc(rows * cols / 2 + 1, 1), *scale = us_calloc(rows * groups + 1, 1);
    assert_true(q && scale && cols % 32 == 0);
    for (size_t g = 0; g < rows * groups; g++) {
        float top = 0;
        for (size_t k = 0; k < 32; k++) top = fmaxf(top, fabsf(p[g * 32 + k]));
        int e = top > 0 ? ilogbf(top / 6.0f) + 1 : 0;
        scale[g] = (uint8_t)(e + 127);
        for (size_t k = 0; k < 32; k++) {
            float x = ldexpf(p[g * 32 + k], -e), best = INFINITY;
            uint8_t code = 0;
            for (uint8_t c = 0; c < 16; c++) {
                float d = fabsf(us_f4_to_f32(c) - x);
                if (d < best) best = d, code = c;
            }
            q[(g * 32 + k) / 2] |= (uint8_t)(code << (k % 2 * 4));
        }
    }
    put(o, test_format("%s.%s", base, bytes_as_weight ? "weight" : "weight_packed"), bytes_as_weight ? US_DTYPE_I8 : US_DTYPE_U8, 2, (uint64_t[]){rows, cols / 2}, q, rows * cols / 2);
    put(o, test_format("%s.%s", base, bytes_as_weight ? "scale" : "weight_scale"), bytes_as_weight ? US_DTYPE_F8_E8M0 : US_DTYPE_U8, 2, (uint64_t[]){rows, groups}, scale, rows * groups);
    us_free(q);
    us_free(scale);
}

static void put_own(out *o, maker_form form, const char *base, const float *p, size_t rows, size_t cols) {
    if (form == MAKER_FP8) put_fp8(o, base, p, rows, cols);
    else if (form == MAKER_INT4) put_int4(o, base, p, rows, cols);
    else if (form == MAKER_FP4) put_fp4(o, base, p, rows, cols, !strstr(base, "down_proj"));
    else {
        us_dtype t = form == MAKER_F32 ? US_DTYPE_F32 : form == MAKER_F16 ? US_DTYPE_F16 : US_DTYPE_BF16;
        put_floats(o, test_format("%s.weight", base), t, 2, (uint64_t[]){rows, cols}, p, rows * cols);
    }
}

static void put_stacked(out *o, const maker *m, maker_form form, uint32_t l, const char *prefix) {
    size_t H = m->H, I = m->I, n = (size_t)m->E * H * I;
    float *gu = numbers(2 * n), *d = numbers(n);
    for (uint32_t e = 0; e < m->E; e++) {
        const float *g = maker_gate(m, l, e), *u = maker_up(m, l, e), *w = maker_down(m, l, e);
        for (size_t i = 0; i < I; i++) {
            for (size_t k = 0; k < H; k++) {
                float *slab = gu + e * 2 * H * I;
                if (form == MAKER_STACKED_ROWS) slab[i * H + k] = g[i * H + k], slab[(I + i) * H + k] = u[i * H + k];
                else if (form == MAKER_STACKED_COLS) slab[k * 2 * I + i] = g[i * H + k], slab[k * 2 * I + I + i] = u[i * H + k];
                else slab[k * 2 * I + 2 * i] = g[i * H + k], slab[k * 2 * I + 2 * i + 1] = u[i * H + k];
                if (form == MAKER_STACKED_ROWS) d[e * H * I + k * I + i] = w[k * I + i];
                else d[e * H * I + i * H + k] = w[k * I + i];
            }
        }
    }
    bool rows = form == MAKER_STACKED_ROWS;
    put_floats(o, test_format("%sexperts.gate_up_proj", prefix), US_DTYPE_BF16, 3, (uint64_t[]){m->E, rows ? 2 * I : H, rows ? H : 2 * I}, gu, 2 * n);
    put_floats(o, test_format("%sexperts.down_proj", prefix), US_DTYPE_BF16, 3, (uint64_t[]){m->E, rows ? H : I, rows ? I : H}, d, n);
    if (form == MAKER_INTERLEAVED) { /* small biases, the same for every expert so that families stay families */
        for (size_t i = 0; i < m->E * 2 * I; i++) gu[i] = bf16(0.05 * us_rng_normal(77, l, i % (2 * I)));
        for (size_t i = 0; i < m->E * H; i++) d[i] = bf16(0.01 * us_rng_normal(78, l, i % H));
        put_floats(o, test_format("%sexperts.gate_up_proj_bias", prefix), US_DTYPE_BF16, 2, (uint64_t[]){m->E, 2 * I}, gu, m->E * 2 * I);
        put_floats(o, test_format("%sexperts.down_proj_bias", prefix), US_DTYPE_BF16, 2, (uint64_t[]){m->E, H}, d, m->E * H);
        put_floats(o, test_format("%srouter.bias", prefix), US_DTYPE_BF16, 1, (uint64_t[]){m->E}, gu, m->E);
    }
    us_free(gu);
    us_free(d);
}

static const char *config_of(const maker *m, maker_form form) {
    const char *common = test_format("\"hidden_size\": %u, \"moe_intermediate_size\": %u, \"intermediate_size\": %u, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
                                     "\"head_dim\": 8, \"num_experts_per_tok\": 2, \"hidden_act\": \"silu\", \"vocab_size\": 8, \"num_hidden_layers\": %u", m->H, m->I,
                                     m->I, m->layers + (form == MAKER_GROUPS));
    switch (form) {
    case MAKER_STACKED_ROWS: return test_format("{\"model_type\": \"qwen3_5_moe\", \"text_config\": {\"model_type\": \"qwen3_5_moe_text\", \"num_experts\": %u, %s}}", m->E, common);
    case MAKER_STACKED_COLS: return test_format("{\"model_type\": \"qwen3_vl_moe\", \"text_config\": {\"model_type\": \"qwen3_vl_moe_text\", \"num_experts\": %u, %s}}", m->E, common);
    case MAKER_INTERLEAVED: return test_format("{\"model_type\": \"gpt_oss\", \"num_local_experts\": %u, %s}", m->E, common);
    case MAKER_GROUPS:
        return test_format("{\"model_type\": \"deepseek_v3\", \"n_routed_experts\": %u, \"n_group\": 4, \"topk_group\": 2, \"first_k_dense_replace\": 1, "
                           "\"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"n_shared_experts\": 1, %s}", m->E, common);
    case MAKER_HASH:
        return test_format("{\"model_type\": \"deepseek_v4\", \"n_routed_experts\": %u, \"num_hash_layers\": 1, \"scoring_func\": \"sqrtsoftplus\", \"swiglu_limit\": 10.0, %s}", m->E, common);
    case MAKER_FP8:
        return test_format("{\"model_type\": \"qwen3_moe\", \"num_experts\": %u, \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [32, 32]}, %s}", m->E, common);
    case MAKER_INT4:
        return test_format("{\"model_type\": \"qwen3_moe\", \"num_experts\": %u, \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}, %s}", m->E,
                           common);
    default: return test_format("{\"model_type\": \"qwen3_moe\", \"num_experts\": %u, %s}", m->E, common);
    }
}

void maker_write(const maker *m, maker_form form, const char *folder) {
    out o = {0};
    bool stacked = form >= MAKER_STACKED_ROWS && form <= MAKER_INTERLEAVED, vl = form == MAKER_STACKED_ROWS || form == MAKER_STACKED_COLS;
    float *embed = numbers((size_t)8 * m->H);
    put_floats(&o, vl ? "model.language_model.embed_tokens.weight" : "model.embed_tokens.weight", US_DTYPE_BF16, 2, (uint64_t[]){8, m->H}, embed, (size_t)8 * m->H);
    if (form == MAKER_GROUPS) put_floats(&o, "model.layers.0.input_layernorm.weight", US_DTYPE_BF16, 1, (uint64_t[]){m->H}, embed, m->H);
    us_free(embed);
    for (uint32_t l = 0; l < m->layers; l++) {
        const char *prefix = test_format("model.%slayers.%u.mlp.", vl ? "language_model." : "", l + (form == MAKER_GROUPS));
        if (form == MAKER_HASH) prefix = test_format("model.layers.%u.ffn.", l);
        put_floats(&o, test_format("%s%s.weight", prefix, form == MAKER_INTERLEAVED ? "router" : "gate"), US_DTYPE_BF16, 2, (uint64_t[]){m->E, m->H}, maker_router(m, l, 0),
                   (size_t)m->E * m->H);
        if (stacked) {
            put_stacked(&o, m, form, l, prefix);
            continue;
        }
        if (form == MAKER_HASH && l == 0) { /* token t goes to experts t and t + 1 */
            int64_t table[16];
            for (int64_t t = 0; t < 8; t++) table[2 * t] = t % m->E, table[2 * t + 1] = (t + 1) % m->E;
            put(&o, test_format("%sgate.tid2eid", prefix), US_DTYPE_I64, 2, (uint64_t[]){8, 2}, table, sizeof table);
        } else if (form == MAKER_HASH) {
            float *bias = numbers(m->E);
            put_floats(&o, test_format("%sgate.bias", prefix), US_DTYPE_F32, 1, (uint64_t[]){m->E}, bias, m->E);
            us_free(bias);
        }
        if (form == MAKER_GROUPS) {
            float *bias = numbers(m->E);
            put_floats(&o, test_format("%sgate.e_score_correction_bias", prefix), US_DTYPE_F32, 1, (uint64_t[]){m->E}, bias, m->E);
            us_free(bias);
        }
        for (uint32_t e = 0; e < m->E; e++) {
            const char *base = test_format("%sexperts.%u.", prefix, e);
            bool w123 = form == MAKER_HASH;
            put_own(&o, form, test_format("%s%s", base, w123 ? "w1" : "gate_proj"), maker_gate(m, l, e), m->I, m->H);
            put_own(&o, form, test_format("%s%s", base, w123 ? "w3" : "up_proj"), maker_up(m, l, e), m->I, m->H);
            put_own(&o, form, test_format("%s%s", base, w123 ? "w2" : "down_proj"), maker_down(m, l, e), m->H, m->I);
        }
    }
    us_buf file = {0};
    us_err err = {0};
    assert_us_ok(us_st_write_header(&file, o.t, o.n, NULL, 0, &err), &err);
    us_buf_add(&file, o.data.p, o.data.n);
    test_mkdir(folder);
    test_write(test_format("%s/model.safetensors", folder), file.p, file.n);
    test_write_text(test_format("%s/config.json", folder), config_of(m, form));
    us_buf_free(&file);
    us_buf_free(&o.data);
    us_free(o.t);
    us_arena_free(&o.arena);
}

opened maker_open(const char *folder, int threads) {
    opened o = {0};
    us_err err = {0};
    assert_us_ok(us_ctx_create(threads, 0, &o.ctx, &err), &err);
    assert_us_ok(us_checkpoint_open(o.ctx, folder, 0, &o.ck, &err), &err);
    assert_us_ok(us_structure_resolve(o.ctx, o.ck, &o.s, &err), &err);
    return o;
}

void maker_close(opened *o) {
    us_structure_free(o->s);
    us_checkpoint_free(o->ck);
    us_ctx_free(o->ctx);
}
