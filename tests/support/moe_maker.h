/**
 * Tiny MoE checkpoints made in tests: the same numbers written in several layouts and types, with planted families of experts.
 *
 * Layer l, expert e: gate and up are [I, H], down is [H, I], router is [E, H]. Include the cmocka block before this header.
 */
#ifndef US_TESTS_MOE_MAKER_H
#define US_TESTS_MOE_MAKER_H

#include "support/support.h"

#include "model/structure.h"

typedef enum maker_form {
    MAKER_BF16,         /* qwen3_moe, a tensor a projection */
    MAKER_F32,
    MAKER_F16,
    MAKER_FP8,          /* blocks of 32 x 32 with weight_scale_inv */
    MAKER_INT4,         /* compressed-tensors, groups of 32 */
    MAKER_FP4,          /* E2M1 codes with E8M0 scales of 32: gate and up as DeepSeek-V4 stores them, down as Kimi-K3 does */
    MAKER_STACKED_ROWS, /* qwen3_5_moe, BF16 */
    MAKER_STACKED_COLS, /* qwen3_vl_moe, BF16: [E, H, 2I], [E, I, H] */
    MAKER_INTERLEAVED,  /* gpt_oss, BF16, with expert biases */
    MAKER_GROUPS,       /* deepseek_v3 in BF16 with four groups, dense layer first */
    MAKER_HASH,         /* deepseek_v4 in BF16: the first layer is routed by a token table */
    MAKER_FORMS
} maker_form;

typedef struct maker {
    uint32_t layers, E, H, I;
    float *router, *gate, *up, *down;
} maker;

/** Random numbers, exact in bf16. */
maker maker_create(uint32_t layers, uint32_t E, uint32_t H, uint32_t I, uint64_t seed);
void maker_free(maker *m);
float *maker_gate(const maker *m, uint32_t layer, uint32_t e);
float *maker_up(const maker *m, uint32_t layer, uint32_t e);
float *maker_down(const maker *m, uint32_t layer, uint32_t e);
float *maker_router(const maker *m, uint32_t layer, uint32_t e);
/**
 * Plant families: expert e of a layer becomes a copy of the head of family label[layer * E + e] with its neurons permuted and every weight perturbed by
 * `noise` times its usual size. per_group: families lie inside runs of E/4 experts.
 */
void maker_plant(maker *m, uint32_t families, double noise, bool per_group, uint64_t seed, uint32_t *label);
/** New expert j of every layer is old order[j]. */
maker maker_renumbered(const maker *m, const uint32_t *order);
/** Permute the neurons of every expert. */
void maker_shuffle_neurons(maker *m, uint64_t seed);
/** Write folder (made if missing). */
void maker_write(const maker *m, maker_form form, const char *folder);

typedef struct opened {
    us_ctx *ctx;
    us_checkpoint *ck;
    us_structure *s;
} opened;
opened maker_open(const char *folder, int threads);
void maker_close(opened *o);

#endif
