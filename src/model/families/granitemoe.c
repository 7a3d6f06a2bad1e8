/* Granite MoE, shared and hybrid: stacked under names without experts. Facts: spec/families-2026.md 5.2. */
#include "model/family.h"

const us_family us_family_granitemoe = {
    .name = "granitemoe", .types = "granitemoe|granitemoeshared|granitemoehybrid",
    .block = "block_sparse_moe.", .count_keys = "num_local_experts|num_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_TKS, .routers = {{"router.layer.weight", 0, US_ROUTER_WEIGHT}},
    .stacked = {{"input_linear.weight", US_PROJ_GATE_UP_ROWS, 0}, {"output_linear.weight", US_PROJ_DOWN, 0}},
    .placement = US_PLACE_ALL, .tied = true, .backbone = US_BACK_GQA,
};
