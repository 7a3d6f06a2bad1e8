/* Step-3.7-Flash, and Step-3.5-Flash whose flat config has the same keys: stacked under moe. Facts: spec/families-2026.md 5.4. */
#include "model/family.h"

const us_family us_family_step3p7 = {
    .name = "step3p7", .types = "step3p7|step3p7_text|step3p5", .text_path = "text_config",
    .block = "moe.", .count_keys = "moe_num_experts|num_experts", .top_k_keys = "moe_top_k|num_experts_per_tok",
    .router = US_ROUTER_SBX, .routers = {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"router_bias", 0, US_ROUTER_CORRECTION}},
    .stacked = {{"gate_proj.weight", US_PROJ_GATE, 0}, {"up_proj.weight", US_PROJ_UP, 0}, {"down_proj.weight", US_PROJ_DOWN, 0}},
    .placement = US_PLACE_ENUM, .mtp = US_MTP_NUMBERED, .mtp_keys = "num_nextn_predict_layers", .tied = false, .backbone = US_BACK_OTHER,
};
