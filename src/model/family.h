/**
 * A model family as data: one table of config keys, tensor-name patterns, router and layer recipes per file in model/families/.
 *
 * Read by inspect, plan and proxy now, and by the forward pass next. Adding a family that differs in names and router needs its table and
 * nothing else (docs/dev/adding-a-family.md). Facts: spec/families-2026.md, spec/moe-proxy.md 2, fixtures/checkpoints/README.md.
 */
#ifndef US_MODEL_FAMILY_H
#define US_MODEL_FAMILY_H

#include "base/str.h"
#include "kernels/router.h"

/** How a group of experts is scored, and so how small it may get. */
typedef enum us_group_rule {
    US_GROUP_NONE,
    US_GROUP_MAX,       /* best expert of the group (deepseek_v2): one is enough */
    US_GROUP_TOP2_SUM,  /* sum of the two best (deepseek_v3 and kin): two are needed */
    US_GROUP_ONE_EACH,  /* exactly one expert per group (Pangu Pro): E' divisible by k */
} us_group_rule;

/** Projection an expert tensor holds, and how a stacked one lies. */
typedef enum us_projection {
    US_PROJ_GATE, US_PROJ_UP, US_PROJ_DOWN,
    US_PROJ_GATE_UP_ROWS,        /* [E, 2I, H]: gate rows first */
    US_PROJ_GATE_UP_COLS,        /* [E, H, 2I]: halves on the last axis */
    US_PROJ_GATE_UP_INTERLEAVED, /* [E, H, 2I]: even gate, odd up */
    US_PROJ_DOWN_IN_OUT,         /* [E, I, H] */
    US_PROJ_BIAS,                /* bias of one of them */
    US_PROJ_NONE,                /* companion data */
} us_projection;

/** A stacked expert tensor or a per-expert projection. */
typedef struct us_expert_tensor {
    const char *suffix;  /* stacked: below the block, e.g. "experts.gate_up_proj"; per expert: behind "experts.N.", e.g. "gate_proj" */
    us_projection proj;
    uint8_t axis;        /* stacked: the expert axis */
} us_expert_tensor;

/** A router tensor below the block. */
typedef struct us_router_tensor {
    const char *suffix;
    uint8_t axis; /* expert axis */
    enum { US_ROUTER_WEIGHT = 1, US_ROUTER_BIAS, US_ROUTER_CORRECTION, US_ROUTER_SCALE } role;
} us_router_tensor;

/** Which trunk layers are MoE. In every family a list `mlp_layer_types` (sparse, moe, hash_moe) wins over the rest. */
typedef enum us_placement {
    US_PLACE_NONE,        /* dense family */
    US_PLACE_ALL,
    US_PLACE_STEP,        /* decoder_sparse_step and mlp_only_layers */
    US_PLACE_FIRST_DENSE, /* first_k_dense_replace | num_dense_layers, then every moe_layer_freq-th */
    US_PLACE_FREQ_LIST,   /* moe_layer_freq is a list of 0 and 1 */
    US_PLACE_PATTERN,     /* layers_block_type words, or hybrid_override_pattern letters (E) */
    US_PLACE_LLAMA4,      /* moe_layers, or every interleave_moe_layer_step-th */
    US_PLACE_ERNIE,       /* moe_layer_start_index, moe_layer_end_index, moe_layer_interval */
    US_PLACE_PERIOD,      /* expert_layer_period, expert_layer_offset */
    US_PLACE_ENUM,        /* moe_layers_enum: comma-separated text or list */
} us_placement;

/** How multi-token-prediction layers are named. */
typedef enum us_mtp {
    US_MTP_NONE,
    US_MTP_NUMBERED, /* layers.<num_hidden_layers + i> */
    US_MTP_PREFIX,   /* mtp.layers.<i> or model.mtp.layers.<i> */
    US_MTP_BARE,     /* mtp.<i> */
} us_mtp;

/** Backbone shape for counting and the forward pass. */
typedef enum us_backbone {
    US_BACK_GQA, US_BACK_MLA, US_BACK_GDN /* hybrid with gated GQA */, US_BACK_KDA /* hybrid with MLA */, US_BACK_MAMBA /* one mixer a layer */,
    US_BACK_V4, US_BACK_GEMMA4, US_BACK_OTHER /* not counted from the config alone */,
} us_backbone;

enum { US_FAMILY_ROUTERS = 6, US_FAMILY_STACKED = 6, US_FAMILY_PROJECTIONS = 4 };

typedef struct us_family {
    const char *name;            /* canonical model_type */
    const char *types;           /* '|'-separated model_type values that mean this family (top level or text model) */
    const char *text_path;       /* where the text model's object lies, '|'-separated paths; NULL = at the top */
    const char *block;           /* MoE block below a layer with trailing dot, '|'-separated; "" = on the layer itself */
    const char *count_keys;      /* every mirror of the expert count; all that are present change together */
    const char *top_k_keys;
    const char *group_keys, *topk_group_keys; /* NULL = no groups */
    us_group_rule group_rule;
    us_router_math router;
    us_router_tensor routers[US_FAMILY_ROUTERS];          /* ends with a NULL suffix; the first is the weight */
    const char *tail_rows_key;   /* router rows behind the experts that stay last (zero experts) */
    us_expert_tensor stacked[US_FAMILY_STACKED];          /* ends with a NULL suffix */
    us_expert_tensor projections[US_FAMILY_PROJECTIONS];  /* per-expert layout */
    const char *known;           /* '|'-separated beginnings below the block that are no experts, whatever their sizes */
    const char *token_table;     /* [V, k] of expert numbers below the block, in hash-routed layers */
    us_placement placement;
    us_mtp mtp;
    const char *mtp_keys;        /* counts of MTP layers: set to 0 when they are dropped */
    const char *mtp_patterns;    /* keys that would rebuild them: removed with them */
    bool lists;                  /* count and top-k may be per-layer lists */
    bool tied;                   /* default of tie_word_embeddings when the key is absent */
    us_backbone backbone;
    const char *loaders;         /* loaders known to skip one of the layouts without an error; NULL = none known */
} us_family;

/** All families, NULL-terminated, in alphabetical order of their names. */
extern const us_family *const us_families[];
/** Family of a model_type value, or NULL. */
const us_family *us_family_find(us_str model_type);
/** The known model_type nearest in spelling; never NULL. */
const char *us_family_nearest(us_str model_type);
/** Does `word` stand in a '|'-separated list? NULL list: no. */
bool us_word_in(us_str word, const char *list);

/* What most tables share. */
#define US_PROJ_GUD {{"gate_proj", US_PROJ_GATE, 0}, {"up_proj", US_PROJ_UP, 0}, {"down_proj", US_PROJ_DOWN, 0}}
#define US_PROJ_W123 {{"w1", US_PROJ_GATE, 0}, {"w3", US_PROJ_UP, 0}, {"w2", US_PROJ_DOWN, 0}}
#define US_STACK_ROWS {{"experts.gate_up_proj", US_PROJ_GATE_UP_ROWS, 0}, {"experts.down_proj", US_PROJ_DOWN, 0}}
#define US_STACK_COLS {{"experts.gate_up_proj", US_PROJ_GATE_UP_COLS, 0}, {"experts.down_proj", US_PROJ_DOWN_IN_OUT, 0}}
#define US_GATE_PLAIN {{"gate.weight", 0, US_ROUTER_WEIGHT}}
#define US_GATE_CORRECTED {{"gate.weight", 0, US_ROUTER_WEIGHT}, {"gate.e_score_correction_bias", 0, US_ROUTER_CORRECTION}}

#endif
