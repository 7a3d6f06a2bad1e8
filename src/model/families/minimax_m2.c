/* MiniMax-M2, M2.5, M2.7: the correction bias lies on the block. Facts: spec/families-2026.md 5.4. */
#include "model/family.h"

const us_family us_family_minimax_m2 = {
    .name = "minimax_m2", .types = "minimax_m2",
    .block = "block_sparse_moe.", .count_keys = "num_local_experts|num_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SB, .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"e_score_correction_bias", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_W123,
    .placement = US_PLACE_ALL, .mtp = US_MTP_NUMBERED, .mtp_keys = "num_mtp_modules|use_mtp", .backbone = US_BACK_GQA,
};
