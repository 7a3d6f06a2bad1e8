/* JetMoE MLP experts, stacked like Granite's; its attention experts share the count and are refused as unknown. Facts: spec/requirements-proxy.md 6. */
#include "model/family.h"

const us_family us_family_jetmoe = {
    .name = "jetmoe", .types = "jetmoe",
    .block = "mlp.", .count_keys = "num_local_experts|num_experts", .top_k_keys = "num_experts_per_tok|moe_top_k",
    .router = US_ROUTER_TKS, .routers = {{"router.layer.weight", 0, US_ROUTER_WEIGHT}},
    .stacked = {{"input_linear.weight", US_PROJ_GATE_UP_ROWS, 0}, {"output_linear.weight", US_PROJ_DOWN, 0}},
    .placement = US_PLACE_ALL, .tied = true, .backbone = US_BACK_OTHER,
};
