/* DeepSeek-V4.1-Flash: draft blocks have an expert count of their own and are left alone. Facts: spec/families-2026.md 5.4, 6. */
#include "model/family.h"

const us_family us_family_deepseek_v41 = {
    .name = "deepseek_v41", .types = "deepseek_v41|deepseek_v41_text", .text_path = "text_config",
    .block = "ffn.", .count_keys = "n_routed_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_V4,
    .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"gate.bias", 0, US_ROUTER_CORRECTION}, {"gate.bias_vl", 0, US_ROUTER_CORRECTION}},
    .projections = US_PROJ_W123, .known = "shared_experts.",
    .placement = US_PLACE_ALL, .mtp = US_MTP_NONE, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_V4,
};
