/* Ling and Ring 2.5. Facts: spec/families-2026.md 5.3. */
#include "model/family.h"

const us_family us_family_bailing_hybrid = {
    .name = "bailing_hybrid", .types = "bailing_hybrid|bailing_moe_v2_5|bailing_moe_v2|bailing_moe",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .group_keys = "num_expert_group|n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_TOP2_SUM,
    .router = US_ROUTER_DS3, .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"gate.expert_bias", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_GUD, .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .mtp = US_MTP_NUMBERED, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_OTHER,
};
