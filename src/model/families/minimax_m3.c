/* MiniMax-M3. Facts: spec/families-2026.md 5.4. */
#include "model/family.h"

const us_family us_family_minimax_m3 = {
    .name = "minimax_m3", .types = "minimax_m3|minimax_m3_vl|minimax_m3_vl_text|minimax_m3_text", .text_path = "text_config",
    .block = "block_sparse_moe.", .count_keys = "num_local_experts|num_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SBX, .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"e_score_correction_bias", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_W123, .known = "shared_experts.",
    .placement = US_PLACE_FREQ_LIST, .mtp = US_MTP_PREFIX, .mtp_keys = "num_nextn_predict_layers|num_mtp_modules|use_mtp", .backbone = US_BACK_GQA,
};
