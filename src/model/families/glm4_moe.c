/* GLM-4.5, 4.6, 4.7. Facts: spec/families-2026.md 5.3. */
#include "model/family.h"

const us_family us_family_glm4_moe = {
    .name = "glm4_moe", .types = "glm4_moe|glm4v_moe|glm4v_moe_text", .text_path = "text_config",
    .block = "mlp.", .count_keys = "n_routed_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .group_keys = "n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_TOP2_SUM,
    .router = US_ROUTER_DS3, .routers = US_GATE_CORRECTED, .stacked = US_STACK_ROWS, .projections = US_PROJ_GUD,
    .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .mtp = US_MTP_NUMBERED, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_GQA,
};
