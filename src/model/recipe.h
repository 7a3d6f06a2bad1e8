/**
 * The recipe of one model: what its config means for the forward pass, resolved once - sizes, norms, rotary tables, what mixes tokens and what
 * feeds forward in every layer, and the router. Engines (oracle and fast paths) read this and tensors, never config keys.
 *
 * Facts: spec/families-2026.md 2-5 and 12; fixtures/models/README.md. Released and transformers-5 spellings give the same recipe.
 * Tests: tests/golden/test_fix_oracle.c (both spellings of every model of fixtures/models).
 */
#ifndef US_MODEL_RECIPE_H
#define US_MODEL_RECIPE_H

#include "kernels/router.h"
#include "model/rope.h"
#include "model/structure.h"

typedef enum us_mixer {
    US_MIX_NONE,
    US_MIX_GQA,    /* grouped-query attention */
    US_MIX_MLA,    /* multi-head latent attention */
    US_MIX_GDN,    /* gated DeltaNet */
    US_MIX_KDA,    /* Kimi delta attention */
    US_MIX_MAMBA2,
    US_MIX_V4,     /* deepseek_v4: one key-value head, window + compressed entries */
} us_mixer;

typedef enum us_act { US_ACT_SILU, US_ACT_OSS, US_ACT_CLAMP, US_ACT_RELU2, US_ACT_GELU_TANH } us_act;

typedef struct us_layer_recipe {
    us_mixer mixer;
    bool has_ffn, moe;
    int8_t rope;          /* index into ropes, or -1 */
    uint32_t window;      /* 0 = none; counts the query */
    uint32_t chunk;       /* 0 = none */
    bool temperature;     /* llama4: position-dependent query scale */
    uint32_t compress;    /* deepseek_v4: compression ratio, 0 = none */
    bool compress_sparse; /* deepseek_v4: overlapping windows and an indexer */
    bool index_shared;    /* DSA: reuses the selection of the layer before */
    bool hash;            /* experts from a token table */
    int32_t block;        /* index into structure->blocks, or -1 */
} us_layer_recipe;

enum { US_RECIPE_ROPES = 2 };

typedef struct us_recipe {
    uint32_t D, V, L, H, G;         /* model width, vocabulary, layers, heads, key-value heads */
    uint32_t head_dim, v_head_dim;
    double eps, latent_eps;         /* norms; MLA latent norms */
    double norm_plus;               /* 1 where the disk holds w - 1 */
    bool tie_head;
    uint64_t max_positions;         /* context limit; 0 = not said */
    double embed_scale, residual_scale, logits_divisor;
    double score_scale;             /* 0 = head_dim^-0.5 */
    double value_scale;             /* 1 = none */
    bool qk_l2;                     /* llama4: weightless norm on q and k after rope */
    double temperature_scale, temperature_floor;
    bool qk_norm_after_rope;
    us_rope ropes[US_RECIPE_ROPES];
    /* MLA and DSA */
    uint32_t q_lora, kv_lora, nope, rope_dims;
    double q_scale, latent_scale;
    uint32_t index_heads, index_dim, index_topk;
    bool index_pair;
    /* GDN, KDA, Mamba-2 */
    uint32_t key_heads, value_heads, key_dim, value_dim, conv_width;
    uint32_t mamba_heads, mamba_dim, mamba_groups, mamba_state;
    double dt_min;
    /* deepseek_v4 */
    uint32_t o_groups, o_lora, hc_mult, hc_iters;
    double hc_eps;
    /* feed-forward */
    us_act act;
    double act_limit, act_alpha;
    us_router router;
    bool two_attentions;            /* longcat_flash layers */
    bool single_mixer;              /* nemotron_h: one part a layer */
    us_layer_recipe *layers;        /* L, in the arena of the recipe */
    us_arena arena;
} us_recipe;

us_status us_recipe_build(const us_structure *st, us_recipe *out, us_err *err) US_WARN_UNUSED;
void us_recipe_free(us_recipe *r);

#endif
