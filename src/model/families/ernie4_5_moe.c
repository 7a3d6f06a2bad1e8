/* ERNIE-4.5 MoE: the bias is [1, E]. Facts: spec/families-2026.md 5.4. */
#include "model/family.h"

const us_family us_family_ernie4_5_moe = {
    .name = "ernie4_5_moe", .types = "ernie4_5_moe",
    .block = "mlp.", .count_keys = "moe_num_experts|num_experts", .top_k_keys = "moe_k|num_experts_per_tok",
    .router = US_ROUTER_ERN,
    .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"moe_statics.e_score_correction_bias", 1, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_GUD, .stacked = US_STACK_ROWS, .known = "shared_experts.",
    .placement = US_PLACE_ERNIE, .mtp = US_MTP_NONE, .tied = true, .backbone = US_BACK_GQA,
};
