/* Config -> recipe. One reader per concern; what belongs to a family stands in its row of `traits`. */
#define _DEFAULT_SOURCE
#include "model/recipe.h"

#include <math.h>
#include <string.h>

typedef struct trait {
    const char *family;
    bool norm_plus;  /* norms stored as w - 1 */
    bool pair;       /* rotary pairing of neighbours */
    bool index_pair; /* the same inside the sparse-attention indexer */
    bool no_rope;
    bool qk_norm_after_rope;
    us_act act;
    us_router_math router;
} trait;

/* A family that is not here has the first row's traits with its table's router. */
static const trait traits[] = {
    {"deepseek_v2", .pair = true, .router = US_ROUTER_DS2},
    {"deepseek_v3", .pair = true, .router = US_ROUTER_DS3},
    {"kimi_k2", .pair = true, .router = US_ROUTER_DS3},
    {"deepseek_v32", .pair = true, .router = US_ROUTER_DS3},
    {"glm_moe_dsa", .pair = true, .index_pair = true, .router = US_ROUTER_DS3},
    {"glm4_moe_lite", .pair = true, .router = US_ROUTER_DS3},
    {"glm4_moe", .router = US_ROUTER_DS3},
    {"dots1", .router = US_ROUTER_DS3},
    {"mimo_v2_flash", .router = US_ROUTER_DS3},
    {"longcat_flash", .pair = true, .router = US_ROUTER_LCF},
    {"kimi_linear", .pair = true, .no_rope = true, .router = US_ROUTER_DS3},
    {"nemotron_h", .no_rope = true, .act = US_ACT_RELU2, .router = US_ROUTER_DS3},
    {"deepseek_v4", .pair = true, .act = US_ACT_CLAMP, .router = US_ROUTER_V4},
    {"ernie4_5_moe", .pair = true, .router = US_ROUTER_ERN},
    {"llama4_text", .pair = true, .router = US_ROUTER_L4},
    {"llama4", .pair = true, .router = US_ROUTER_L4},
    {"gpt_oss", .act = US_ACT_OSS, .router = US_ROUTER_TKS},
    {"granitemoe", .router = US_ROUTER_TKS},
    {"phimoe", .router = US_ROUTER_PHI},
    {"minimax_m2", .router = US_ROUTER_SB},
    {"hunyuan_v1_moe", .qk_norm_after_rope = true, .router = US_ROUTER_SM_PLUS},
    {"mixtral", .router = US_ROUTER_SM_PLUS},
    {"olmoe", .router = US_ROUTER_SM},
    {"qwen2_moe", .router = US_ROUTER_SM},
    {"qwen3_moe", .router = US_ROUTER_SM},
    {"qwen3_next", .norm_plus = true, .router = US_ROUTER_SM},
    {"qwen3_5", .norm_plus = true},
    {"qwen3_5_text", .norm_plus = true},
    {"qwen3_5_moe", .norm_plus = true, .router = US_ROUTER_SM_PLUS},
    {"qwen3_5_moe_text", .norm_plus = true, .router = US_ROUTER_SM_PLUS},
    {"qwen3_vl_moe", .router = US_ROUTER_SM_PLUS},
    {"qwen3_vl_moe_text", .router = US_ROUTER_SM_PLUS},
    {"llama", .router = US_ROUTER_OTHER},
    {"qwen2", .router = US_ROUTER_OTHER},
    {"qwen3", .router = US_ROUTER_OTHER},
};

/* ---- config access: the text model's object first, then the top ---- */

typedef struct cfg {
    const us_json_doc *d;
    us_json_ref text;
    us_err *err;
} cfg;

static us_json_ref key(const cfg *c, const char *name) {
    us_json_ref r = us_json_get(c->d, c->text, name);
    if (r == US_JSON_NO) r = us_json_get(c->d, 0, name);
    return r != US_JSON_NO && us_json_type_of(c->d, r) == US_JSON_NULL ? US_JSON_NO : r;
}

/* First of the '|'-separated names that is there and not null. */
static us_json_ref any(const cfg *c, const char *names) {
    char name[96];
    while (*names) {
        size_t n = strcspn(names, "|");
        if (n < sizeof name) {
            memcpy(name, names, n);
            name[n] = 0;
            us_json_ref r = key(c, name);
            if (r != US_JSON_NO) return r;
        }
        names += n + (names[n] == '|');
    }
    return US_JSON_NO;
}

static double real(const cfg *c, const char *names, double def) {
    double v;
    return us_json_double(c->d, any(c, names), &v) ? v : def;
}

static bool flag(const cfg *c, const char *names, bool def) {
    bool v;
    return us_json_bool(c->d, any(c, names), &v) ? v : def;
}

static uint32_t number(const cfg *c, const char *names, uint32_t def) {
    uint64_t v;
    us_json_ref r = any(c, names);
    if (us_json_type_of(c->d, r) == US_JSON_ARRAY) r = us_json_first(c->d, r); /* per-layer lists: the caller wants the common value */
    return us_json_u64(c->d, r, &v) && v <= INT32_MAX ? (uint32_t)v : def;
}

static us_status need(const cfg *c, const char *names, uint32_t *out) {
    *out = number(c, names, 0);
    if (*out) return US_OK;
    us_fail(c->err, US_E_FORMAT, "missing", "config.json lacks a positive integer for %s", names);
    return US_E_FORMAT;
}

static bool entry_is(const cfg *c, us_json_ref list, uint32_t i, const char *words) {
    us_str s = us_json_string(c->d, us_json_at(c->d, list, i));
    while (s.p && *words) {
        size_t n = strcspn(words, "|");
        if (us_str_eq(s, (us_str){words, n})) return true;
        words += n + (words[n] == '|');
    }
    return false;
}

static const trait *trait_of(const cfg *c, us_str *type) {
    *type = us_json_string(c->d, us_json_get(c->d, c->text, "model_type"));
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; type->p && i < sizeof traits / sizeof *traits; i++)
            if (us_str_eqz(*type, traits[i].family)) return &traits[i];
        *type = us_json_string(c->d, us_json_get(c->d, 0, "model_type"));
    }
    return NULL;
}

/* ---- concerns ---- */

static us_status read_sizes(const cfg *c, us_recipe *r) {
    US_TRY(need(c, "hidden_size", &r->D));
    US_TRY(need(c, "vocab_size", &r->V));
    US_TRY(need(c, "num_attention_heads", &r->H));
    r->G = number(c, "num_key_value_heads", r->H);
    r->head_dim = number(c, "head_dim", r->D / r->H);
    r->v_head_dim = number(c, "v_head_dim", r->head_dim);
    r->eps = real(c, "rms_norm_eps|layer_norm_epsilon|layernorm_epsilon|norm_eps", 1e-6);
    r->latent_eps = 1e-6; /* whatever rms_norm_eps says: families-2026.md section 4, "Trap" */
    r->tie_head = flag(c, "tie_word_embeddings", false);
    r->max_positions = number(c, "max_position_embeddings|model_max_length", 0);
    r->embed_scale = real(c, "embedding_multiplier", 1);
    r->residual_scale = real(c, "residual_multiplier", 1);
    r->logits_divisor = real(c, "logits_scaling", 1);
    r->score_scale = real(c, "attention_multiplier", 0);
    r->value_scale = real(c, "attention_value_scale", 1);
    return US_OK;
}

static void read_mixers(const cfg *c, us_recipe *r) {
    us_json_ref linear = key(c, "linear_attn_config");
    cfg lin = {c->d, linear == US_JSON_NO ? c->text : linear, c->err};
    r->q_lora = number(c, "q_lora_rank", 0);
    r->kv_lora = number(c, "kv_lora_rank", 0);
    r->nope = number(c, "qk_nope_head_dim", 0);
    r->rope_dims = number(c, "qk_rope_head_dim", 0);
    r->q_scale = r->latent_scale = 1;
    r->index_heads = number(c, "index_n_heads", 0);
    r->index_dim = number(c, "index_head_dim", 0);
    r->index_topk = number(c, "index_topk", 0);
    r->key_heads = number(c, "linear_num_key_heads|linear_num_heads", number(&lin, "num_heads", 0));
    r->value_heads = number(c, "linear_num_value_heads", r->key_heads);
    r->key_dim = number(c, "linear_key_head_dim|linear_head_dim", number(&lin, "head_dim", 0));
    r->value_dim = number(c, "linear_value_head_dim", r->key_dim);
    r->conv_width = number(c, "linear_conv_kernel_dim|conv_kernel", number(&lin, "short_conv_kernel_size", 4));
    r->mamba_heads = number(c, "mamba_num_heads", 0);
    r->mamba_dim = number(c, "mamba_head_dim", 0);
    r->mamba_groups = number(c, "n_groups", 1);
    r->mamba_state = number(c, "ssm_state_size", 0);
    r->dt_min = real(c, "time_step_min", 0);
    r->o_groups = number(c, "o_groups", 1);
    r->o_lora = number(c, "o_lora_rank", 0);
    r->hc_mult = number(c, "hc_mult", 1);
    r->hc_iters = number(c, "hc_sinkhorn_iters", 20);
    r->hc_eps = real(c, "hc_eps", 1e-6);
}

static void read_router(const cfg *c, const us_structure *st, const trait *t, us_recipe *r) {
    r->act = t->act;
    r->act_limit = real(c, "swiglu_limit", t->act == US_ACT_OSS ? 7 : 10);
    r->act_alpha = real(c, "swiglu_alpha", 1.702);
    r->router = (us_router){
        .math = t->router,
        .n_rows = st->n_experts + (st->n_blocks ? st->blocks[0].tail_rows : 0),
        .top_k = st->top_k,
        .n_group = st->n_group ? st->n_group : 1,
        .topk_group = st->topk_group ? st->topk_group : 1,
        .norm_topk = flag(c, "norm_topk_prob|moe_renormalize", t->router == US_ROUTER_DS3),
        .scaling = real(c, "routed_scaling_factor", 1),
        .jitter = real(c, "router_jitter_noise", 0.01),
        .norm_min = real(c, "moe_norm_min", 1e-12),
    };
    us_str method = us_json_string(c->d, key(c, "topk_method"));
    if (t->router == US_ROUTER_DS2 && method.p && us_str_eqz(method, "greedy")) r->router.n_group = r->router.topk_group = 1;
}

/* Width of the rotated part of a head, in any of its spellings. */
static uint32_t rotary_width(const cfg *c, const us_recipe *r, us_json_ref params) {
    double part = 1, v;
    if (us_json_double(c->d, us_json_get(c->d, params, "partial_rotary_factor"), &v)) part = v;
    else part = real(c, "partial_rotary_factor", 1);
    uint32_t dims = (uint32_t)(r->head_dim * part);
    if (part == 1) dims = number(c, "rotary_dim", dims);
    return r->kv_lora ? r->rope_dims : dims;
}

static us_status read_ropes(const cfg *c, const trait *t, us_recipe *r) {
    us_json_ref params = any(c, "rope_parameters|rope_scaling");
    if (us_json_type_of(c->d, params) != US_JSON_OBJECT) params = US_JSON_NO;
    static const char *const first[] = {"full_attention", "main"}, *const second[] = {"sliding_attention", "compress"};
    us_json_ref a = params, b = US_JSON_NO;
    for (int i = 0; i < 2; i++)
        if (us_json_type_of(c->d, us_json_get(c->d, params, first[i])) == US_JSON_OBJECT) {
            a = us_json_get(c->d, params, first[i]);
            b = us_json_get(c->d, params, second[i]);
            break;
        }
    double theta = real(c, "rope_theta", 10000), positions = (double)r->max_positions;
    bool v4 = r->hc_mult > 1 && r->o_lora;
    uint32_t dims = v4 ? r->rope_dims : rotary_width(c, r, a);
    /* Released deepseek_v4: the scaling belongs to the compressed layers only, the window layers rotate plainly. */
    bool v4_released = v4 && a == params;
    US_TRY(us_rope_read(c->d, v4_released ? US_JSON_NO : a, theta, dims, positions, &r->ropes[0], c->err));
    double theta2 = real(c, v4 ? "compress_rope_theta" : "swa_rope_theta|local_rope_theta", theta);
    us_json_ref other = b != US_JSON_NO ? b : v4_released ? params : theta2 == theta ? a : US_JSON_NO;
    US_TRY(us_rope_read(c->d, other, theta2, v4 ? dims : rotary_width(c, r, b != US_JSON_NO ? b : a), positions, &r->ropes[1], c->err));
    if (v4_released) r->ropes[1].attention_factor = 1;
    r->ropes[0].pair = r->ropes[1].pair = t->pair;
    if (r->ropes[0].kind == US_ROPE_LONGROPE && r->ropes[0].original_positions == 0)
        r->ropes[0].original_positions = real(c, "original_max_position_embeddings", 0);
    double alpha; /* hunyuan: the released "dynamic" scaling with alpha changes the base once */
    if (us_json_double(c->d, us_json_get(c->d, params, "alpha"), &alpha) && r->ropes[0].kind == US_ROPE_DYNAMIC) {
        r->ropes[0].kind = US_ROPE_DEFAULT;
        r->ropes[0].theta *= pow(alpha, (double)dims / (double)(dims - 2));
    }
    if (r->ropes[0].kind == US_ROPE_DYNAMIC && r->max_positions) r->max_positions = (uint64_t)((double)r->max_positions * r->ropes[0].factor);
    return US_OK;
}

/* gpt_oss has no mscale keys and wants plain m(1), which us_rope_table gives; DeepSeek squares m(mscale_all_dim) into the score scale. */
static void set_latent_scales(const cfg *c, us_str type, us_recipe *r) {
    if (!r->kv_lora) return;
    r->score_scale = 1 / sqrt((double)(r->nope + r->rope_dims));
    const us_rope *rope = &r->ropes[0];
    if (rope->kind == US_ROPE_YARN && rope->mscale_all_dim != 0) {
        double m = us_rope_mscale(rope->factor, rope->mscale_all_dim);
        r->score_scale *= m * m;
    }
    if (us_str_eqz(type, "longcat_flash")) {
        r->two_attentions = true;
        if (r->q_lora) r->q_scale = sqrt((double)r->D / r->q_lora);
        r->latent_scale = sqrt((double)r->D / r->kv_lora);
    }
    (void)c;
}

/* Is layer l (0-based) in a list of layer numbers that starts counting at `base`? */
static bool listed(const cfg *c, us_json_ref list, uint32_t l, uint32_t base) {
    uint64_t v;
    for (us_json_ref e = us_json_first(c->d, list); e != US_JSON_NO; e = us_json_next(c->d, list, e))
        if (us_json_u64(c->d, e, &v) && v == l + base) return true;
    return false;
}

static us_mixer mixer_of(const cfg *c, const us_recipe *r, uint32_t l) {
    us_json_ref types = any(c, "layer_types|layers_block_type"), linear = key(c, "linear_attn_config"), pattern = key(c, "hybrid_override_pattern");
    us_mixer full = r->o_lora && r->hc_mult > 1 ? US_MIX_V4 : r->kv_lora ? US_MIX_MLA : US_MIX_GQA;
    us_mixer recurrent = r->mamba_heads ? US_MIX_MAMBA2 : r->kv_lora ? US_MIX_KDA : US_MIX_GDN;
    if (pattern != US_JSON_NO && types == US_JSON_NO) {
        us_str p = us_json_string(c->d, pattern);
        char ch = l < p.n ? p.p[l] : '?';
        return ch == 'M' ? US_MIX_MAMBA2 : ch == '*' ? US_MIX_GQA : US_MIX_NONE;
    }
    if (types != US_JSON_NO) {
        if (entry_is(c, types, l, "linear_attention|mamba")) return recurrent;
        if (entry_is(c, types, l, "moe|mlp")) return US_MIX_NONE;
        return full;
    }
    if (us_json_type_of(c->d, linear) == US_JSON_OBJECT)
        return listed(c, us_json_get(c->d, linear, "kda_layers"), l, 1) ? US_MIX_KDA : full;
    uint32_t interval = r->key_heads ? number(c, "full_attention_interval", 4) : 0;
    return interval && (l + 1) % interval ? recurrent : full;
}

static void read_windows(const cfg *c, const us_recipe *r, uint32_t l, us_layer_recipe *out) {
    us_json_ref types = key(c, "layer_types"), pattern = key(c, "hybrid_layer_pattern");
    uint32_t window = number(c, "sliding_window|sliding_window_size", 0);
    if (types == US_JSON_NO && pattern != US_JSON_NO) { /* mimo: 1 = sliding */
        uint64_t v;
        bool sliding = us_json_u64(c->d, us_json_at(c->d, pattern, l), &v) && v == 1;
        out->window = sliding ? window : 0;
        out->rope = sliding;
    } else if (types != US_JSON_NO) {
        bool sliding = entry_is(c, types, l, "sliding_attention");
        bool own = us_json_type_of(c->d, us_json_get(c->d, any(c, "rope_parameters"), "sliding_attention")) == US_JSON_OBJECT;
        out->window = sliding ? window : 0;
        if (own && sliding) out->rope = 1;
        if (entry_is(c, types, l, "chunked_attention")) out->chunk = number(c, "attention_chunk_size", 0);
    } else if (flag(c, "use_sliding_window", true) && number(c, "max_window_layers", 0) == 0) {
        out->window = window; /* mixtral: every layer */
    }
    if (r->hc_mult > 1) out->window = window;
}

static void read_llama4(const cfg *c, us_recipe *r, uint32_t l, us_layer_recipe *out) {
    us_json_ref list = key(c, "no_rope_layers");
    uint64_t v = 1;
    uint32_t every = number(c, "no_rope_layer_interval", 4);
    if (us_json_count(c->d, list) > l) us_json_u64(c->d, us_json_at(c->d, list, l), &v);
    else v = (l + 1) % every != 0;
    r->qk_l2 = flag(c, "use_qk_norm", true);
    r->temperature_scale = real(c, "attn_scale", 0.1);
    r->temperature_floor = real(c, "floor_scale", 8192);
    if (v == 0) out->rope = -1;
    out->temperature = v == 0 && flag(c, "attn_temperature_tuning", true);
    out->chunk = v ? number(c, "attention_chunk_size", 0) : 0;
    out->window = 0;
}

static void read_v4_layer(const cfg *c, uint32_t l, us_layer_recipe *out) {
    us_json_ref ratios = key(c, "compress_ratios"), types = key(c, "layer_types"), rates = key(c, "compress_rates");
    uint64_t v = 0;
    if (ratios != US_JSON_NO) {
        us_json_u64(c->d, us_json_at(c->d, ratios, l), &v);
        /* The smaller of the two ratios is the sparse kind: it alone has doubled channels and an indexer. */
        uint64_t least = UINT64_MAX, x;
        for (us_json_ref e = us_json_first(c->d, ratios); e != US_JSON_NO; e = us_json_next(c->d, ratios, e))
            if (us_json_u64(c->d, e, &x) && x && x < least) least = x;
        out->compress_sparse = v && v == least;
    } else if (entry_is(c, types, l, "compressed_sparse_attention")) {
        us_json_u64(c->d, us_json_get(c->d, rates, "compressed_sparse_attention"), &v);
        out->compress_sparse = true;
    } else if (entry_is(c, types, l, "heavily_compressed_attention")) {
        us_json_u64(c->d, us_json_get(c->d, rates, "heavily_compressed_attention"), &v);
    }
    out->compress = v <= UINT32_MAX ? (uint32_t)v : 0;
    out->rope = out->compress ? 1 : 0;
}

static us_status read_layers(const cfg *c, const us_structure *st, const trait *t, us_recipe *r) {
    r->L = st->n_layers;
    r->layers = us_arena_calloc(&r->arena, r->L, sizeof *r->layers);
    if (!r->layers) return us_fail_nomem(c->err, "reading the layers");
    bool llama4 = t->router == US_ROUTER_L4;
    us_json_ref indexers = key(c, "indexer_types");
    for (uint32_t l = 0; l < r->L; l++) {
        us_layer_recipe *out = &r->layers[l];
        out->mixer = mixer_of(c, r, l);
        out->block = -1;
        out->rope = t->no_rope ? -1 : 0;
        read_windows(c, r, l, out);
        if (t->no_rope) out->rope = -1;
        if (llama4) read_llama4(c, r, l, out);
        if (out->mixer == US_MIX_V4) read_v4_layer(c, l, out);
        out->index_shared = entry_is(c, indexers, l, "shared");
        for (size_t b = 0; b < st->n_blocks; b++)
            if (!st->blocks[b].mtp && st->blocks[b].layer == l) out->block = (int32_t)b;
        out->moe = out->block >= 0;
        out->hash = out->moe && st->blocks[out->block].hash;
        out->has_ffn = !r->single_mixer || out->mixer == US_MIX_NONE;
    }
    return US_OK;
}

us_status us_recipe_build(const us_structure *st, us_recipe *r, us_err *err) {
    cfg c = {&st->ck->config, st->text_config, err};
    us_str type;
    const trait *t = trait_of(&c, &type);
    memset(r, 0, sizeof *r);
    if (!t) return us_fail(err, US_E_UNSUPPORTED, "family", "the forward pass of this family is not known");
    us_status s;
    US_GO(read_sizes(&c, r));
    read_mixers(&c, r);
    r->norm_plus = t->norm_plus ? 1 : 0;
    r->index_pair = t->index_pair;
    r->qk_norm_after_rope = t->qk_norm_after_rope;
    r->single_mixer = us_str_eqz(type, "nemotron_h");
    read_router(&c, st, t, r);
    US_GO(read_ropes(&c, t, r));
    set_latent_scales(&c, type, r);
    US_GO(read_layers(&c, st, t, r));
done:
    if (s != US_OK) us_recipe_free(r);
    return s;
}

void us_recipe_free(us_recipe *r) {
    us_arena_free(&r->arena);
    memset(r, 0, sizeof *r);
}
