/* A.X-K1: like DeepSeek-V3, with a norm on the MoE output. Facts: spec/families-2026.md 5.3. */
#include "model/family.h"

const us_family us_family_axk1 = {
    .name = "axk1", .types = "axk1|AXK1",
    .block = "mlp.", .count_keys = "n_routed_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .group_keys = "n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_TOP2_SUM,
    .router = US_ROUTER_DS3, .routers = US_GATE_CORRECTED, .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .mtp = US_MTP_NUMBERED, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_OTHER,
};
