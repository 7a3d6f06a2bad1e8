/* Qwen3-VL-MoE: stacked as [E, in, out]. Facts: spec/families-2026.md 5.2. */
#include "model/family.h"

const us_family us_family_qwen3_vl_moe = {
    .name = "qwen3_vl_moe", .types = "qwen3_vl_moe|qwen3_vl_moe_text", .text_path = "text_config",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM_PLUS, .routers = US_GATE_PLAIN,
    .stacked = US_STACK_COLS, .projections = US_PROJ_GUD,
    .placement = US_PLACE_STEP, .backbone = US_BACK_GQA,
};
