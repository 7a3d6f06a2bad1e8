/* Qwen3.5 and 3.6 MoE: stacked in BF16, per expert in FP8 and in MTP. Facts: spec/families-2026.md 5.2. */
#include "model/family.h"

const us_family us_family_qwen3_5_moe = {
    .name = "qwen3_5_moe", .types = "qwen3_5_moe|qwen3_5_moe_text", .text_path = "text_config",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM_PLUS, .routers = US_GATE_PLAIN,
    .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .known = "shared_expert.|shared_expert_gate.",
    .placement = US_PLACE_ALL, .mtp = US_MTP_PREFIX, .mtp_keys = "mtp_num_hidden_layers", .backbone = US_BACK_GDN,
    .loaders = "engines that expect the stacked layout skip per-expert files of this family, and the other way round, without an error",
};
