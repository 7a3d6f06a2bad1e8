/* Mixtral. Facts: spec/families-2026.md 5.1. */
#include "model/family.h"

const us_family us_family_mixtral = {
    .name = "mixtral", .types = "mixtral",
    .block = "block_sparse_moe.", .count_keys = "num_local_experts|num_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM_PLUS, .routers = US_GATE_PLAIN, .projections = US_PROJ_W123,
    .placement = US_PLACE_ALL, .backbone = US_BACK_GQA,
};
