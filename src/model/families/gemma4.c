/* Gemma-4 26B-A4B: experts and router lie on the layer beside a dense MLP. Facts: spec/families-2026.md 5.2, 6. */
#include "model/family.h"

const us_family us_family_gemma4 = {
    .name = "gemma4", .types = "gemma4|gemma4_text", .text_path = "text_config",
    .block = "", .count_keys = "num_experts|num_local_experts", .top_k_keys = "top_k_experts|num_experts_per_tok",
    .router = US_ROUTER_GM4,
    .routers = {{"router.proj.weight", 0, US_ROUTER_WEIGHT}, {"router.per_expert_scale", 0, US_ROUTER_SCALE}},
    .stacked = US_STACK_ROWS,
    .known = "router.scale|self_attn.|mlp.|layer_scalar|input_layernorm|post_attention_layernorm|pre_feedforward_layernorm|post_feedforward_layernorm|"
             "per_layer_",
    .placement = US_PLACE_ALL, .tied = true, .backbone = US_BACK_GEMMA4,
};
