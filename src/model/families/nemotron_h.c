/* Nemotron-3 Nano, Super, Ultra: one mixer a layer, two matrices an expert, latent width. Facts: spec/families-2026.md 5.3, 12. */
#include "model/family.h"

const us_family us_family_nemotron_h = {
    .name = "nemotron_h", .types = "nemotron_h",
    .block = "mixer.", .count_keys = "n_routed_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .group_keys = "n_group", .topk_group_keys = "topk_group", .group_rule = US_GROUP_TOP2_SUM,
    .router = US_ROUTER_DS3, .routers = US_GATE_CORRECTED,
    .projections = {{"up_proj", US_PROJ_UP, 0}, {"down_proj", US_PROJ_DOWN, 0}},
    .stacked = {{"experts.up_proj", US_PROJ_UP, 0}, {"experts.down_proj", US_PROJ_DOWN, 0}},
    .known = "shared_experts.|fc1_latent_proj.|fc2_latent_proj.",
    .placement = US_PLACE_PATTERN, .mtp = US_MTP_PREFIX, .mtp_keys = "num_nextn_predict_layers",
    .mtp_patterns = "mtp_hybrid_override_pattern|mtp_layers_block_type", .backbone = US_BACK_MAMBA,
};
