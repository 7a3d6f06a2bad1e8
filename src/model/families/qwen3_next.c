/* Qwen3-Next. Facts: spec/families-2026.md 5.2. */
#include "model/family.h"

const us_family us_family_qwen3_next = {
    .name = "qwen3_next", .types = "qwen3_next",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM, .routers = US_GATE_PLAIN,
    .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .known = "shared_expert.|shared_expert_gate.",
    .placement = US_PLACE_STEP, .mtp = US_MTP_PREFIX, .mtp_keys = "mtp_num_hidden_layers", .backbone = US_BACK_GDN,
};
