/* Kimi-Linear and Kimi-K3. Facts: spec/families-2026.md 5.3, 12. */
#include "model/family.h"

const us_family us_family_kimi_linear = {
    .name = "kimi_linear", .types = "kimi_linear|kimi_k3", .text_path = "text_config",
    .block = "block_sparse_moe.|mlp.", .count_keys = "num_experts|n_routed_experts|num_local_experts",
    .top_k_keys = "num_experts_per_token|num_experts_per_tok",
    .group_keys = "num_expert_group|n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_TOP2_SUM,
    .router = US_ROUTER_DS3, .routers = US_GATE_CORRECTED, .projections = US_PROJ_W123,
    .known = "shared_experts.|routed_expert_down_proj.|routed_expert_norm.|routed_expert_up_proj.|gate_proj.|up_proj.|down_proj.",
    .placement = US_PLACE_FIRST_DENSE, .mtp = US_MTP_NUMBERED, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_KDA,
};
