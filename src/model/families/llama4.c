/* Llama-4 Scout and Maverick: experts [E, H, 2I] in halves. Facts: spec/families-2026.md 5.2, 12. */
#include "model/family.h"

const us_family us_family_llama4 = {
    .name = "llama4", .types = "llama4|llama4_text", .text_path = "text_config",
    .block = "feed_forward.", .count_keys = "num_local_experts|num_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_L4, .routers = {{"router.weight", 0, US_ROUTER_WEIGHT}}, .stacked = US_STACK_COLS,
    .known = "shared_expert.",
    .placement = US_PLACE_LLAMA4, .backbone = US_BACK_GQA,
};
