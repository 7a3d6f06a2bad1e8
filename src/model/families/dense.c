/* Dense families: nothing to prune, but inspect names them and the engine runs them. Facts: fixtures/models/README.md. */
#include "model/family.h"

const us_family us_family_llama = {.name = "llama", .types = "llama", .block = "mlp.", .placement = US_PLACE_NONE, .backbone = US_BACK_GQA};
const us_family us_family_qwen2 = {.name = "qwen2", .types = "qwen2", .block = "mlp.", .placement = US_PLACE_NONE, .tied = true, .backbone = US_BACK_GQA};
const us_family us_family_qwen3 = {.name = "qwen3", .types = "qwen3", .block = "mlp.", .placement = US_PLACE_NONE, .tied = true, .backbone = US_BACK_GQA};
const us_family us_family_qwen3_5 = {
    .name = "qwen3_5", .types = "qwen3_5|qwen3_5_text", .text_path = "text_config", .block = "mlp.",
    .placement = US_PLACE_NONE, .mtp = US_MTP_PREFIX, .mtp_keys = "mtp_num_hidden_layers", .backbone = US_BACK_GDN,
};
