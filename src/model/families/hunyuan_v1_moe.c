/* Hunyuan-A13B: counts may be per-layer lists. Facts: spec/families-2026.md 5.1. */
#include "model/family.h"

const us_family us_family_hunyuan_v1_moe = {
    .name = "hunyuan_v1_moe", .types = "hunyuan_v1_moe|hunyuan",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "moe_topk|num_experts_per_tok",
    .router = US_ROUTER_SM_PLUS, .routers = {{"gate.wg.weight", 0, US_ROUTER_WEIGHT}}, .projections = US_PROJ_GUD,
    .known = "shared_mlp.",
    .placement = US_PLACE_ALL, .lists = true, .backbone = US_BACK_GQA,
};
