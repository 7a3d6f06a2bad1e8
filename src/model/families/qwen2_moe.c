/* Qwen1.5-MoE, Qwen2-MoE. Facts: spec/families-2026.md 5.1. */
#include "model/family.h"

const us_family us_family_qwen2_moe = {
    .name = "qwen2_moe", .types = "qwen2_moe",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM, .routers = US_GATE_PLAIN,
    .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .known = "shared_expert.|shared_expert_gate.",
    .placement = US_PLACE_STEP, .backbone = US_BACK_GQA,
};
