/* LongCat-Flash: zero experts at the end of the router. Facts: spec/families-2026.md 5.4, 6, 12. */
#include "model/family.h"

const us_family us_family_longcat_flash = {
    .name = "longcat_flash", .types = "longcat_flash",
    .block = "mlp.", .count_keys = "n_routed_experts|num_local_experts", .top_k_keys = "moe_topk|num_experts_per_tok",
    .router = US_ROUTER_LCF,
    .routers = {{"router.classifier.weight", 0, US_ROUTER_WEIGHT}, {"router.e_score_correction_bias", 0, US_ROUTER_CORRECTION},
                {"router.classifier.bias", 0, US_ROUTER_BIAS}},
    .tail_rows_key = "zero_expert_num", .projections = US_PROJ_GUD,
    .placement = US_PLACE_ALL, .mtp = US_MTP_PREFIX, .mtp_keys = "num_nextn_predict_layers", .backbone = US_BACK_MLA,
};
