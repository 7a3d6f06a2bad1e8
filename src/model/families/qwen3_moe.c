/* Qwen3-30B-A3B, 235B-A22B, Coder. Facts: spec/families-2026.md 5.1. */
#include "model/family.h"

const us_family us_family_qwen3_moe = {
    .name = "qwen3_moe", .types = "qwen3_moe",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM, .routers = US_GATE_PLAIN,
    .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .placement = US_PLACE_STEP, .backbone = US_BACK_GQA,
    .loaders = "loaders of transformers 5 fuse per-expert tensors by a table; a stacked file under this model_type is skipped by several engines without an error",
};
