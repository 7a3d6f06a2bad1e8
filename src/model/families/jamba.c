/* Jamba. Facts: spec/families-2026.md 5.1. */
#include "model/family.h"

const us_family us_family_jamba = {
    .name = "jamba", .types = "jamba",
    .block = "feed_forward.", .count_keys = "num_experts|num_local_experts", .top_k_keys = "num_experts_per_tok",
    .router = US_ROUTER_SM0, .routers = {{"router.weight", 0, US_ROUTER_WEIGHT}}, .projections = US_PROJ_GUD,
    .placement = US_PLACE_PERIOD, .backbone = US_BACK_OTHER,
};
