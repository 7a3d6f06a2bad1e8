/* DeepSeek-V2 and V2-Lite. Facts: spec/families-2026.md 5.3. */
#include "model/family.h"

const us_family us_family_deepseek_v2 = {
    .name = "deepseek_v2", .types = "deepseek_v2",
    .block = "mlp.", .count_keys = "n_routed_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .group_keys = "n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_MAX,
    .router = US_ROUTER_DS2, .routers = US_GATE_CORRECTED, .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .backbone = US_BACK_MLA,
};
