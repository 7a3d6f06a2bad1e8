/* Mellum. Facts: spec/families-2026.md 5.1. */
#include "model/family.h"

const us_family us_family_mellum = {
    .name = "mellum", .types = "mellum",
    .block = "mlp.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM, .routers = US_GATE_PLAIN, .projections = US_PROJ_GUD,
    .placement = US_PLACE_ALL, .mtp = US_MTP_PREFIX, .mtp_keys = "num_nextn_predict_layers|mtp_num_hidden_layers", .backbone = US_BACK_GQA,
};
