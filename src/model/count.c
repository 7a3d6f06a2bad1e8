/* Counting parameters from config.json: one function per kind of layer part, one table of family habits. See count.h. */
#include "model/count.h"

#include <string.h>

typedef uint64_t u64;

/* What is being added up. */
typedef struct tally {
    const us_config *c;
    us_counts *n;
    u64 D, H, G, d, dv;
    u64 tp, repl, routed; /* of the part at hand */
    bool mtp;             /* the part is an MTP layer */
    u64 ngram_rows;       /* rows of an n-gram table, once counted */
    bool *absurd;         /* a width that no model has was read: products may have overflowed, the count is refused at the end */
} tally;

/* Bounds that keep every product below 2^64; the largest released models stay a hundred times below each. */
enum { LAYERS_MAX = 1024, MTP_MAX = 64, EXPERTS_MAX = 1 << 16, HEADS_MAX = 1 << 14, HEAD_MAX = 1 << 14, WIDTH_MAX = 1 << 20, VOCAB_MAX = 1 << 28 };
static const u64 sum_max = (u64)1 << 61;

static u64 key(const tally *t, const char *keys, u64 def) {
    u64 v = us_config_u32(t->c, keys, (uint32_t)def);
    bool length = strstr(keys, "window") || strstr(keys, "vocab"); /* counts of positions and rows, never a factor of a weight's two sides */
    if (v > (length ? INT32_MAX : WIDTH_MAX)) *t->absurd = true;
    return v;
}

static bool is(const tally *t, const char *families) {
    return us_word_in(us_str_z(t->c->family->name), families);
}

/* ---- attention ---- */

static void gqa(tally *t, u64 H, u64 G, u64 d, u64 dv, bool gated, bool windowed) {
    bool bias_qkv = us_config_flag(t->c, "attention_bias|use_bias", is(t, "gpt_oss|phimoe|pangu_pro_moe"));
    bool bias_o = bias_qkv && is(t, "gpt_oss|phimoe|pangu_pro_moe|llama");
    if (is(t, "qwen2_moe|qwen2")) bias_qkv = us_config_flag(t->c, "qkv_bias", true);
    t->tp += t->D * H * d * (gated ? 2 : 1) + t->D * G * (d + dv) + H * dv * t->D;
    if (bias_qkv) t->tp += H * d + G * (d + dv);
    if (bias_o) t->repl += t->D;
    bool head_norm = is(t, "qwen3_moe|qwen3|qwen3_next|qwen3_5|qwen3_5_moe|qwen3_vl_moe|qwen3_omni_moe|qwen4_exp|hunyuan_v1_moe|dots1|minimax_m3");
    if (is(t, "glm4_moe")) head_norm = us_config_flag(t->c, "use_qk_norm", false);
    if (head_norm) t->repl += 2 * d;
    if (is(t, "olmoe|minimax_m2|flex_olmo")) t->repl += H * d + G * d;
    if (is(t, "gpt_oss")) t->tp += H; /* sinks */
    if (windowed) {
        t->n->n_window_layers++;
        t->n->kv_window_elements += G * (d + dv);
    } else {
        t->n->n_attention_layers++;
        t->n->kv_elements += G * (d + dv);
    }
}

static void mla(tally *t, bool indexer) {
    u64 q = key(t, "q_lora_rank|attention_q_lora_dim", 0), c = key(t, "kv_lora_rank|attention_kv_lora_dim", 0);
    u64 nope = key(t, "qk_nope_head_dim|attention_qk_dim", 0), r = key(t, "qk_rope_head_dim|attention_qk_rope_dim", 0), v = key(t, "v_head_dim|attention_v_dim", 0);
    if (q) {
        t->repl += t->D * q + q;
        t->tp += q * t->H * (nope + r);
    } else {
        t->tp += t->D * t->H * (nope + r);
    }
    t->repl += t->D * (c + r) + c;
    t->tp += c * t->H * (nope + v) + t->H * v * t->D;
    t->n->n_attention_layers++;
    t->n->kv_elements += c + r;
    u64 n = key(t, "index_n_heads", 0), di = key(t, "index_head_dim", 0);
    if (!n || !indexer) return;
    t->repl += q * n * di + t->D * di + 2 * di + t->D * n;
    t->n->kv_elements += di;
}

static void gdn(tally *t) {
    u64 hk = key(t, "linear_num_key_heads", 0), hv = key(t, "linear_num_value_heads", 0), k = key(t, "linear_key_head_dim", 0), v = key(t, "linear_value_head_dim", 0);
    u64 conv = key(t, "linear_conv_kernel_dim", 4), channels = 2 * hk * k + hv * v;
    t->tp += t->D * (channels + hv * v) + t->D * 2 * hv + channels * conv + 2 * hv + hv * v * t->D;
    t->repl += v;
    t->n->state_elements += hv * k * v + channels * (conv - 1);
}

static void kda(tally *t) {
    us_json_ref o = us_config_get(t->c, "linear_attn_config");
    us_config lin = *t->c;
    if (us_json_type_of(t->c->doc, o) == US_JSON_OBJECT) lin.text = o;
    u64 h = us_config_u32(&lin, "num_heads|linear_num_heads", 0), k = us_json_type_of(t->c->doc, o) == US_JSON_OBJECT ? us_config_u32(&lin, "head_dim", 0) : key(t, "linear_head_dim", 0);
    u64 conv = us_config_u32(&lin, "short_conv_kernel_size|linear_conv_kernel_dim", 4), n = h * k;
    bool full_gate = us_config_flag(&lin, "use_full_rank_gate", false);
    u64 decay = key(t, "routed_expert_hidden_size", 0) ? k : h; /* Kimi-K3 pads A_log to the head size */
    t->tp += 3 * t->D * n + 3 * n * conv + decay + n + k * n + t->D * h + n * t->D;
    t->tp += full_gate ? t->D * n : k * n;
    t->repl += t->D * k + (full_gate ? 0 : t->D * k) + k;
    t->n->state_elements += n * k + 3 * n * (conv - 1);
}

static void mamba2(tally *t) {
    u64 h = key(t, "mamba_num_heads", 0), p = key(t, "mamba_head_dim", 0), g = key(t, "n_groups", 1), s = key(t, "ssm_state_size", 0), conv = key(t, "conv_kernel", 4);
    u64 inner = h * p, channels = inner + 2 * g * s;
    t->tp += t->D * (inner + channels + h) + channels * (conv + 1) + 3 * h + inner + inner * t->D;
    t->n->state_elements += inner * s + channels * (conv - 1);
}

/* deepseek_v4: compressor of width d at a ratio; the overlapping (sparse) kind has doubled channels. */
static u64 compressor(const tally *t, u64 ratio, u64 d, bool overlap) {
    u64 w = overlap ? 2 * d : d;
    return 2 * t->D * w + ratio * w + d;
}

static void v4(tally *t, u64 ratio, u64 sparse_ratio) {
    u64 q = key(t, "q_lora_rank", 0), og = key(t, "o_groups", 1), ol = key(t, "o_lora_rank", 0), n = key(t, "index_n_heads", 0), di = key(t, "index_head_dim", 0);
    t->repl += t->D * q + q + t->D * t->d + t->d;
    t->tp += q * t->H * t->d + ol * t->H * t->d + og * ol * t->D + t->H;
    t->n->n_window_layers++;
    t->n->kv_window_elements += t->d;
    if (!ratio) return;
    bool sparse = ratio == sparse_ratio;
    t->repl += compressor(t, ratio, t->d, sparse);
    t->n->kv_elements += (t->d + (sparse ? di : 0) + ratio - 1) / ratio;
    t->n->n_attention_layers++;
    if (sparse) t->repl += q * n * di + t->D * n + compressor(t, ratio, di, true);
}

/* deepseek_v41: few layers hold a compressor, more hold index queries, two hold an n-gram table. Spec: families-2026.md 4, "deepseek_v41 attention", "Engram". */
static void v41(tally *t, u64 l) {
    u64 q = key(t, "q_lora_rank", 0), og = key(t, "o_groups", 1), ol = key(t, "o_lora_rank", 0), n = key(t, "index_n_heads", 0), di = key(t, "index_head_dim", 0);
    t->repl += t->D * q + q + t->D * t->d + t->d;
    t->tp += q * t->H * t->d + ol * t->H * t->d + og * ol * t->D + t->H;
    t->n->n_window_layers++;
    t->n->kv_window_elements += t->d;
    int64_t ratio = us_config_entry_i64(t->c, us_config_get(t->c, "compress_ratios"), (uint32_t)l, 0);
    if (us_config_listed(t->c, us_config_get(t->c, "kv_source_layer_ids"), (int64_t)l)) {
        t->repl += t->D * t->d * (ratio > 1 ? 2 : 1) + t->d + di * t->d + di;
        t->n->kv_elements += (t->d + di) / (u64)(ratio > 1 ? ratio : 1);
        t->n->n_attention_layers++;
    }
    if (us_config_listed(t->c, us_config_get(t->c, "index_source_layer_ids"), (int64_t)l)) t->repl += q * n * di + t->D * n;
    us_json_ref layers = us_config_get(t->c, "engram_layer_ids"), sizes = us_config_get(t->c, "engram_num_embeddings");
    u64 heads = key(t, "engram_n_heads", 0) * (key(t, "engram_max_ngram_size", 1) - 1), width = key(t, "engram_head_dim", 0), hc = key(t, "hc_mult", 1);
    for (uint32_t i = 0; i < us_json_count(t->c->doc, layers); i++)
        if (us_config_entry_i64(t->c, layers, i, -1) == (int64_t)l) {
            t->n->lookup += (u64)us_config_entry_i64(t->c, sizes, i, 0) * width;
            t->repl += heads * width * (hc + 1) * t->D + 2 * hc * t->D;
        }
}

static u64 next_prime(u64 n) {
    for (n++;; n++) {
        bool prime = n > 1;
        for (u64 d = 2; prime && d * d <= n; d++) prime = n % d != 0;
        if (prime) return n;
    }
}

/* qwen4_exp: gated residual streams instead of layer norms, an indexer in the full layers, n-gram embeddings in a few (1-based ids). */
static void qwen4_extras(tally *t, u64 l, bool recurrent) {
    u64 hc = key(t, "hc_count", 1), wide = hc * t->D, rank = key(t, "hc_lowrank", 0), di = key(t, "indexer_head_dim", 0);
    t->repl += 2 * (wide + 2 * wide * rank + wide * hc);
    if (!recurrent) {
        t->repl += t->D * di * (key(t, "indexer_n_heads", 0) + key(t, "indexer_kv_heads", 0)) + 2 * di;
        t->n->kv_elements += di / (key(t, "indexer_compress_ratio", 1) ? key(t, "indexer_compress_ratio", 1) : 1);
    }
    if (!us_config_listed(t->c, us_config_get(t->c, "ple_layer_ids"), (int64_t)l + 1)) return;
    u64 e = key(t, "ple_embed_dim", 0), heads = (key(t, "ngram_size", 1) - 1) * key(t, "heads_per_ngram", 0), rows = 0, pad = key(t, "make_ngram_vocab_size_divisible_by", 1);
    u64 prime = key(t, "ngram_vocab_size_base", 2) - 1;
    for (u64 i = 0; !t->ngram_rows && i < heads && i < 64; i++) rows += prime = next_prime(prime);
    if (!t->ngram_rows) t->ngram_rows = rows;
    rows = t->ngram_rows;
    if (pad && heads) t->n->lookup += (rows + pad - 1) / pad * pad * (e / heads);
    t->repl += e * wide + e * t->D + 3 * wide + wide * key(t, "ple_conv_kernel_size", 4);
}

/* Hyper-connections around the two parts of a layer. */
static u64 hyper(const tally *t) {
    u64 hc = key(t, "hc_mult", 1), rows = (2 + hc) * hc;
    return hc > 1 ? 2 * (rows * hc * t->D + rows + 3) : 0;
}

/* ---- feed-forward ---- */

static const char corrected_mtp[] = "deepseek_v3|deepseek_v32|glm4_moe|glm4_moe_lite|glm_moe_dsa|pangu_ultra_moe|kimi_k25";

static u64 matrices(const tally *t) {
    return is(t, "nemotron_h") ? 2 : 3;
}

static void dense_mlp(tally *t) {
    t->tp += matrices(t) * t->D * t->n->dense_ffn;
}

static void moe(tally *t) {
    us_counts *n = t->n;
    u64 E = n->n_experts, latent = key(t, "moe_latent_size|routed_expert_hidden_size", 0);
    t->routed += E * n->per_expert;
    t->repl += E * t->D;
    /* Corrections are buffers of the built classes, not parameters, except where a family says otherwise; the layouts of MTP layers and of families without
     * a class were counted with them. */
    if (is(t, "ernie4_5_moe") || key(t, "routed_expert_hidden_size", 0) || (t->mtp && is(t, corrected_mtp))) t->repl += E;
    if (is(t, "deepseek_v41")) t->repl += 2 * E;
    if (is(t, "gpt_oss|pangu_pro_moe")) t->repl += E;
    if (is(t, "gemma4")) t->repl += t->D + E;
    if (n->shared_ffn) t->tp += matrices(t) * t->D * n->shared_ffn;
    if (n->shared_ffn && is(t, "qwen2_moe|qwen3_next|qwen3_5_moe|qwen4_exp")) t->repl += t->D;
    if (latent) t->repl += 2 * t->D * latent;
    if (latent && us_config_flag(t->c, "latent_moe_use_norm", false)) t->repl += latent;
    n->n_moe_layers++;
}

/* ---- layers ---- */

static bool layer_type_is(const tally *t, u64 l, const char *words) {
    return us_config_entry_is(t->c, us_config_get(t->c, "layer_types|layers_block_type"), (uint32_t)l, words);
}

static bool is_recurrent(const tally *t, u64 l) {
    us_json_ref types = us_config_get(t->c, "layer_types"), lin = us_config_get(t->c, "linear_attn_config");
    if (us_json_type_of(t->c->doc, types) == US_JSON_ARRAY) return layer_type_is(t, l, "linear_attention");
    if (us_json_type_of(t->c->doc, lin) == US_JSON_OBJECT)
        return us_config_listed(t->c, us_json_get(t->c->doc, lin, "kda_layers"), (int64_t)l + (is(t, "kimi_linear") ? 1 : 0));
    u64 every = key(t, "full_attention_interval", 4);
    return every && (l + 1) % every != 0;
}

static void gqa_layer(tally *t, u64 l) {
    u64 window = key(t, "sliding_window|sliding_window_size", 0);
    us_json_ref pattern = us_config_get(t->c, "hybrid_layer_pattern");
    bool sliding = layer_type_is(t, l, "sliding_attention|chunked_attention");
    if (us_json_type_of(t->c->doc, pattern) == US_JSON_ARRAY) sliding = us_config_entry_i64(t->c, pattern, (uint32_t)l, 0) == 1;
    if (is(t, "mimo_v2_flash") && sliding) {
        u64 g = key(t, "swa_num_key_value_heads", 2 * t->G);
        gqa(t, key(t, "swa_num_attention_heads", t->H), g, key(t, "swa_head_dim", t->d), key(t, "swa_v_head_dim", t->dv), false, true);
        t->tp += t->H; /* sinks */
    } else {
        gqa(t, t->H, t->G, t->d, t->dv, false, sliding && window > 0);
    }
    if (!is(t, "minimax_m3")) return;
    us_json_ref sparse = us_config_get(t->c, "sparse_attention_config");
    us_config inner = *t->c;
    if (us_json_type_of(t->c->doc, sparse) != US_JSON_OBJECT) return;
    inner.text = sparse;
    if (us_config_entry_i64(t->c, us_json_get(t->c->doc, sparse, "sparse_attention_freq"), (uint32_t)l, 0) != 1) return;
    u64 n = us_config_u32(&inner, "sparse_num_index_heads", 0), di = us_config_u32(&inner, "sparse_index_dim", 0);
    t->repl += t->D * n * di + t->D * di + 2 * di;
    t->n->kv_elements += di;
}

static void gemma4_layer(tally *t, u64 l) {
    bool full = layer_type_is(t, l, "full_attention"), shared = full && us_config_flag(t->c, "attention_k_eq_v", false);
    u64 d = full ? key(t, "global_head_dim", t->d) : t->d, g = full ? key(t, "num_global_key_value_heads", t->G) : t->G;
    t->tp += t->D * t->H * d + t->D * g * d * (shared ? 1 : 2) + t->H * d * t->D;
    t->repl += 2 * d;
    if (full) t->n->kv_elements += g * d * (shared ? 1 : 2), t->n->n_attention_layers++;
    else t->n->kv_window_elements += g * 2 * d, t->n->n_window_layers++;
    dense_mlp(t);
    t->repl += 7 * t->D; /* seven norms: moe() is added by the caller */
}

static void nemotron_layer(tally *t, u64 l) {
    us_str p = us_json_string(t->c->doc, us_config_get(t->c, "hybrid_override_pattern"));
    char kind = l < p.n ? p.p[l] : layer_type_is(t, l, "linear_attention|mamba") ? 'M' : layer_type_is(t, l, "full_attention|attention") ? '*' : layer_type_is(t, l, "moe") ? 'E' : '-';
    t->repl += t->D;
    if (kind == 'M') mamba2(t);
    else if (kind == '*') gqa(t, t->H, t->G, t->d, t->dv, false, false);
    else if (kind == 'E') moe(t);
    else dense_mlp(t);
}

static bool has_indexer(const tally *t, u64 l) {
    us_json_ref types = us_config_get(t->c, "indexer_types");
    return us_json_type_of(t->c->doc, types) != US_JSON_ARRAY || us_config_entry_is(t->c, types, (uint32_t)l, "full");
}

static u64 sparse_ratio(const tally *t) {
    us_json_ref list = us_config_get(t->c, "compress_ratios");
    u64 least = 0, v;
    if (us_json_type_of(t->c->doc, list) != US_JSON_ARRAY) return 0;
    for (us_json_ref e = us_json_first(t->c->doc, list); e != US_JSON_NO; e = us_json_next(t->c->doc, list, e))
        if (us_json_u64(t->c->doc, e, &v) && v && (!least || v < least)) least = v;
    return least;
}

/* Compression ratio of layer l; *sparse = the ratio of the sparse kind. */
static u64 ratio_of(const tally *t, u64 l, u64 *sparse) {
    us_json_ref list = us_config_get(t->c, "compress_ratios"), rates = us_config_get(t->c, "compress_rates");
    u64 v = 0;
    if (us_json_type_of(t->c->doc, list) == US_JSON_ARRAY) {
        *sparse = sparse_ratio(t);
        us_json_u64(t->c->doc, us_json_at(t->c->doc, list, (uint32_t)l), &v);
        return v;
    }
    us_json_u64(t->c->doc, us_json_get(t->c->doc, rates, "compressed_sparse_attention"), sparse);
    if (layer_type_is(t, l, "compressed_sparse_attention")) return *sparse;
    if (layer_type_is(t, l, "heavily_compressed_attention")) us_json_u64(t->c->doc, us_json_get(t->c->doc, rates, "heavily_compressed_attention"), &v);
    return v;
}

static void mixer(tally *t, u64 l) {
    u64 sparse = 0, ratio;
    switch (t->c->family->backbone) {
    case US_BACK_GQA: gqa_layer(t, l); break;
    case US_BACK_MLA: mla(t, has_indexer(t, l)); break;
    case US_BACK_GDN:
        if (is_recurrent(t, l)) gdn(t);
        else gqa(t, t->H, t->G, t->d, t->dv, true, false);
        break;
    case US_BACK_KDA:
        if (is_recurrent(t, l)) {
            kda(t);
            break;
        }
        mla(t, has_indexer(t, l));
        if (us_config_flag(t->c, "mla_use_output_gate", false)) t->tp += t->D * t->H * key(t, "v_head_dim", 0);
        if (key(t, "index_kpool", 0) && us_config_flag(t->c, "index_kpool_compress", false))
            t->repl += key(t, "index_kpool", 0) * key(t, "index_head_dim", 0) + t->D * key(t, "index_head_dim", 0);
        break;
    case US_BACK_V4:
        if (is(t, "deepseek_v41")) {
            v41(t, l);
            break;
        }
        ratio = ratio_of(t, l, &sparse);
        v4(t, ratio, sparse);
        break;
    default: break;
    }
}

static void one_layer(tally *t, u64 l) {
    us_backbone b = t->c->family->backbone;
    if (b == US_BACK_MAMBA) {
        nemotron_layer(t, l);
        return;
    }
    if (is(t, "longcat_flash")) { /* two attentions and two dense MLPs around one MoE; zero experts have router rows only */
        mla(t, false);
        mla(t, false);
        t->n->n_attention_layers--; /* one layer, two caches */
        dense_mlp(t);
        dense_mlp(t);
        t->repl += 4 * t->D + key(t, "zero_expert_num", 0) * t->D;
        moe(t);
        return;
    }
    bool sparse = us_config_layer_is_moe(t->c, (uint32_t)l);
    if (b == US_BACK_GEMMA4) gemma4_layer(t, l);
    else {
        mixer(t, l);
        if (is(t, "qwen4_exp")) qwen4_extras(t, l, is_recurrent(t, l));
        else t->repl += 2 * t->D;
        if (is(t, "phimoe")) t->repl += 2 * t->D;
        if (is(t, "pangu_ultra_moe")) t->repl += 2 * t->D; /* sandwich norms */
        t->repl += hyper(t);
        if (key(t, "attn_res_block_size", 0)) t->repl += 4 * t->D;
    }
    if (sparse) moe(t);
    else if (b != US_BACK_GEMMA4) dense_mlp(t);
}

/* ---- MTP ---- */

/* One decoder layer of the trunk's last kind, a projection of two hidden states to one, and three norms. */
static void count_mtp(tally *t, us_counts *n) {
    uint32_t layers = us_config_mtp_layers(t->c);
    us_backbone b = t->c->family->backbone;
    bool next = is(t, "qwen3_next") && us_config_get(t->c, "mtp_num_hidden_layers") == US_JSON_NO;
    if (next) layers = 1;
    if (!layers || !(b == US_BACK_MLA || b == US_BACK_GDN || is(t, "glm4_moe"))) return;
    us_counts scratch = *n;
    tally m = *t;
    m.n = &scratch;
    m.tp = m.repl = m.routed = 0;
    m.mtp = true;
    if (b == US_BACK_MLA) mla(&m, true);
    else gqa(&m, m.H, m.G, m.d, m.dv, b == US_BACK_GDN, false);
    moe(&m);
    m.repl += 2 * m.D + 2 * m.D * m.D + 3 * m.D;
    n->mtp = layers * (m.tp + m.repl + m.routed);
    n->mtp_routed = layers * m.routed;
}

/* ---- entry point ---- */

static us_status not_a_model(us_err *err) {
    us_fail(err, US_E_FORMAT, "range", "the sizes in config.json cannot be a model's");
    return us_err_where(err, "config.json");
}

/* First entry of a list or the scalar: widths that are the same in every layer. */
static us_status read_shape(tally *t, us_err *err) {
    us_counts *n = t->n;
    const us_config *c = t->c;
    const us_family *f = c->family;
    US_TRY(us_config_layers(c, &n->n_layers, err));
    US_TRY(us_config_positive(c, "hidden_size", &n->hidden, err));
    US_TRY(us_config_positive(c, "vocab_size", &n->vocab, err));
    US_TRY(us_config_positive(c, "num_attention_heads", &n->heads, err));
    if (n->n_layers > LAYERS_MAX || n->heads > n->hidden || n->heads > HEADS_MAX || n->hidden > WIDTH_MAX || n->vocab > VOCAB_MAX) return not_a_model(err);
    n->kv_heads = us_config_u32(c, "num_key_value_heads", n->heads);
    n->head_dim = us_config_u32(c, "head_dim|attention_head_dim", n->hidden / n->heads);
    if (n->head_dim == 0) n->head_dim = n->hidden / n->heads;
    n->window = us_config_u32(c, "sliding_window|sliding_window_size|attention_chunk_size", 0);
    n->dense_ffn = us_config_u32(c, is(t, "minimax_m3") ? "dense_intermediate_size" : is(t, "llama4") ? "intermediate_size_mlp" : "ffn_hidden_size|intermediate_size", 0);
    t->D = n->hidden;
    t->H = n->heads;
    t->G = n->kv_heads;
    t->d = n->head_dim;
    t->dv = us_config_u32(c, "v_head_dim", n->head_dim);
    if (n->kv_heads > HEADS_MAX || n->head_dim > HEAD_MAX || t->dv > HEAD_MAX || n->dense_ffn > WIDTH_MAX) return not_a_model(err);
    n->n_group = n->topk_group = 1;
    if (f->placement == US_PLACE_NONE) return US_OK;
    n->n_experts = us_config_u32(c, f->count_keys, 0);
    n->top_k = us_config_u32(c, f->top_k_keys, 0);
    if (!n->n_experts) US_TRY(us_config_positive(c, f->count_keys, &n->n_experts, err));
    if (!n->top_k) US_TRY(us_config_positive(c, f->top_k_keys, &n->top_k, err));
    n->group_rule = f->group_rule;
    if (f->group_keys) n->n_group = us_config_u32(c, f->group_keys, 1);
    if (f->topk_group_keys) n->topk_group = us_config_u32(c, f->topk_group_keys, 1);
    if (f->group_rule == US_GROUP_ONE_EACH) n->n_group = n->topk_group = n->top_k;
    us_str method = us_json_string(c->doc, us_config_get(c, "topk_method"));
    if (n->n_group < 1 || (method.p && us_str_eqz(method, "greedy"))) n->n_group = n->topk_group = 1;
    static const char own_width[] = "mixtral|olmoe|gpt_oss|granitemoe|llama4|phimoe|minimax_m2|minimax|flex_olmo|jamba";
    n->expert_ffn = us_config_u32(c, is(t, own_width) ? "intermediate_size" : "moe_intermediate_size|expert_ffn_hidden_size|intermediate_size", 0);
    uint32_t shared = us_config_u32(c, "n_shared_experts|num_shared_experts|num_shared_expert|moe_num_shared_experts", is(t, "llama4|hunyuan_v1_moe") ? 1 : 0);
    n->shared_ffn = us_config_u32(c, "shared_expert_intermediate_size|moe_shared_expert_intermediate_size", shared * n->expert_ffn);
    if (is(t, "minimax_m3")) n->shared_ffn = us_config_u32(c, "shared_intermediate_size", n->expert_ffn) * (shared ? shared : 1);
    if (is(t, "qwen3_moe|minimax_m2")) n->shared_ffn = 0;
    u64 width = us_config_u32(c, "moe_latent_size|routed_expert_hidden_size", n->hidden);
    if (n->n_experts > EXPERTS_MAX || n->top_k > n->n_experts || width > WIDTH_MAX || n->expert_ffn > WIDTH_MAX || n->shared_ffn > WIDTH_MAX) return not_a_model(err);
    n->per_expert = matrices(t) * width * n->expert_ffn;
    if (is(t, "gpt_oss")) n->per_expert += 2 * (u64)n->expert_ffn + n->hidden;
    return US_OK;
}

us_status us_count_config(const us_config *c, us_counts *out, us_err *err) {
    us_counts n = {0};
    bool absurd = us_config_mtp_layers(c) > MTP_MAX;
    tally t = {.c = c, .n = &n, .absurd = &absurd};
    US_TRY(read_shape(&t, err));
    US_TRY(us_config_check_placement(NULL, c, n.n_layers, err)); /* what us_config_layer_is_moe relies on */
    if (c->family->backbone == US_BACK_OTHER)
        return us_fail(err, US_E_UNSUPPORTED, "family", "the parameters of %s cannot be counted from config.json alone", c->family->name);
    for (u64 l = 0; l < n.n_layers && !absurd; l++) {
        one_layer(&t, l);
        absurd |= t.tp > sum_max || t.repl > sum_max || t.routed > sum_max || n.lookup > sum_max;
    }
    if (absurd) return not_a_model(err);
    n.embed = (u64)n.vocab * n.hidden;
    bool tied = us_config_flag(c, "tie_word_embeddings", c->family->tied);
    n.head = tied ? 0 : n.embed;
    if (is(&t, "qwen4_exp")) t.repl += key(&t, "hc_count", 1) * t.D * (1 + 2 * key(&t, "hc_lowrank", 0)); /* the final mix normalises */
    else t.repl += t.D;                                                                                    /* final norm */
    if (is(&t, "phimoe")) t.repl += t.D + n.vocab;
    u64 hc = key(&t, "hc_mult", 1);
    if (hc > 1 && is(&t, "deepseek_v4")) t.repl += hc * hc * t.D + hc + 1;
    if (key(&t, "attn_res_block_size", 0)) t.repl += 2 * t.D;
    n.tp_sharded = t.tp + n.embed + n.head + n.lookup;
    n.replicated = t.repl;
    n.routed = t.routed;
    n.other = n.tp_sharded + n.replicated;
    n.total = n.other + n.routed;
    n.active = n.other - n.lookup + (u64)n.n_moe_layers * n.top_k * n.per_expert;
    uint32_t moe_layers = n.n_moe_layers;
    count_mtp(&t, &n);
    n.n_moe_layers = moe_layers;
    if (absurd) return not_a_model(err);
    *out = n;
    return US_OK;
}
