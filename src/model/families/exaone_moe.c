/* EXAONE MoE: the correction bias lies on the block. Facts: spec/families-2026.md 5.3. */
#include "model/family.h"

const us_family us_family_exaone_moe = {
    .name = "exaone_moe", .types = "exaone_moe",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts|n_routed_experts", .top_k_keys = "num_experts_per_tok",
    .group_keys = "n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_TOP2_SUM,
    .router = US_ROUTER_DS3, .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"e_score_correction_bias", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_GUD, .stacked = US_STACK_ROWS, .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .mtp = US_MTP_PREFIX, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_GQA,
};
