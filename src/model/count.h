/**
 * Parameters of a model from its config.json alone: by part, by how parallel training shards them, and what a token touches.
 *
 * Counts equal the built model (fixtures/configs/expected.json, 48 models). Vision and audio towers are not counted; MTP layers apart. Biases and
 * corrections count, scales of quantised weights do not. Tests: tests/unit/test_fix_configs.c.
 */
#ifndef US_MODEL_COUNT_H
#define US_MODEL_COUNT_H

#include "model/config.h"

typedef struct us_counts {
    /* shape */
    uint32_t n_layers, n_moe_layers, n_experts, top_k, n_group, topk_group;
    us_group_rule group_rule;
    uint32_t hidden, vocab, heads, kv_heads, head_dim, dense_ffn, expert_ffn, shared_ffn;
    uint32_t n_attention_layers;   /* layers that keep keys and values of the whole context (windowed ones apart) */
    uint32_t n_window_layers, window;
    uint64_t kv_elements;          /* a token, over the layers that keep the whole context: keys and values, or MLA latents, index keys too */
    uint64_t kv_window_elements;   /* a token inside the window, over the windowed layers */
    uint64_t state_elements;       /* recurrent state of a sequence, over all layers */
    /* parameters of the text model without MTP */
    uint64_t total, routed, other, active;
    uint64_t per_expert;           /* one routed expert */
    uint64_t embed, head;          /* head 0 when tied */
    uint64_t lookup;               /* n-gram tables, part of other, never multiplied */
    uint64_t tp_sharded, replicated; /* other = tp_sharded + replicated */
    uint64_t mtp;                  /* MTP layers without copies of embedding and head; 0 when none or not known */
    uint64_t mtp_routed;           /* routed experts inside mtp */
} us_counts;

/** US_E_UNSUPPORTED, class "family", when the family's backbone cannot be counted from the config alone. */
us_status us_count_config(const us_config *c, us_counts *out, us_err *err) US_WARN_UNUSED;

#endif
