/* gpt-oss: gate and up interleaved, biases on experts and router, MXFP4. Facts: spec/families-2026.md 5.2. */
#include "model/family.h"

const us_family us_family_gpt_oss = {
    .name = "gpt_oss", .types = "gpt_oss",
    .block = "mlp.", .count_keys = "num_local_experts|num_experts", .top_k_keys = "num_experts_per_tok|experts_per_token",
    .router = US_ROUTER_TKS, .routers = {{"router.weight", 0, US_ROUTER_WEIGHT}, {"router.bias", 0, US_ROUTER_BIAS}},
    .stacked = {{"experts.gate_up_proj", US_PROJ_GATE_UP_INTERLEAVED, 0}, {"experts.down_proj", US_PROJ_DOWN_IN_OUT, 0}},
    .placement = US_PLACE_ALL, .backbone = US_BACK_GQA,
};
