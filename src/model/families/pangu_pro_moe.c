/* Pangu Pro MoE: exactly one expert of each group; router_scale is [1, E]. Facts: spec/families-2026.md 5.5, 6. */
#include "model/family.h"

const us_family us_family_pangu_pro_moe = {
    .name = "pangu_pro_moe", .types = "pangu_pro_moe|PanguProMoE",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .group_rule = US_GROUP_ONE_EACH,
    .router = US_ROUTER_MOGE, .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"router_scale", 1, US_ROUTER_SCALE}}, .projections = US_PROJ_GUD,
    .known = "shared_expert.",
    .placement = US_PLACE_ALL, .backbone = US_BACK_GQA,
};
