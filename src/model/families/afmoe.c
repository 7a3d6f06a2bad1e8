/* Trinity. Facts: spec/families-2026.md 5.4. */
#include "model/family.h"

const us_family us_family_afmoe = {
    .name = "afmoe", .types = "afmoe",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SBE, .routers = {{"router.gate.weight", 0, US_ROUTER_WEIGHT}, {"expert_bias", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_GUD, .known = "shared_experts.",
    .placement = US_PLACE_FIRST_DENSE, .mtp = US_MTP_NONE, .mtp_keys = "num_nextn_predict_layers", .tied = false, .backbone = US_BACK_OTHER,
};
