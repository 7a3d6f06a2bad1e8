/* DeepSeek-V4 Flash and Pro: hash-routed first layers, names with or without model. Facts: spec/families-2026.md 5.4, 6, 12. */
#include "model/family.h"

const us_family us_family_deepseek_v4 = {
    .name = "deepseek_v4", .types = "deepseek_v4",
    .block = "ffn.", .count_keys = "n_routed_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_V4,
    .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"gate.bias", 0, US_ROUTER_CORRECTION}, {"gate.bias_vl", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_W123, .known = "shared_experts.", .token_table = "gate.tid2eid",
    .placement = US_PLACE_ALL, .mtp = US_MTP_BARE, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_V4,
};
