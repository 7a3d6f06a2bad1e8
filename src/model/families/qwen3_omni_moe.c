/* Qwen3-Omni thinker; talker and code2wav are left alone. Facts: spec/families-2026.md 5.1. */
#include "model/family.h"

const us_family us_family_qwen3_omni_moe = {
    .name = "qwen3_omni_moe", .types = "qwen3_omni_moe|qwen3_omni_moe_thinker|qwen3_omni_moe_text", .text_path = "thinker_config.text_config|text_config",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM, .routers = US_GATE_PLAIN,
    .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .placement = US_PLACE_STEP, .backbone = US_BACK_GQA,
};
