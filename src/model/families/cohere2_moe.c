/* Command MoE. Facts: spec/families-2026.md 5.4. */
#include "model/family.h"

const us_family us_family_cohere2_moe = {
    .name = "cohere2_moe", .types = "cohere2_moe",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_TKS, .routers = US_GATE_PLAIN, .projections = US_PROJ_GUD, .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .tied = true, .backbone = US_BACK_OTHER,
};
