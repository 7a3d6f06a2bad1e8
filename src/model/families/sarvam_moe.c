/* Sarvam MoE. Facts: spec/families-2026.md 5.3. */
#include "model/family.h"

const us_family us_family_sarvam_moe = {
    .name = "sarvam_moe", .types = "sarvam_moe|sarvam_mla",
    .block = "mlp.", .count_keys = "num_experts|n_routed_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .group_keys = "n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_TOP2_SUM,
    .router = US_ROUTER_DS3, .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"gate.expert_bias", 0, US_ROUTER_CORRECTION}, {"gate.e_score_correction_bias", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_GUD, .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .backbone = US_BACK_OTHER,
};
