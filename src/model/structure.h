/**
 * The structure of one checkpoint as its family's table describes it: MoE blocks, the role of every tensor, the constraints on
 * the number of experts, the places in config.json that hold it. What proxy, verify, inspect, and later forward and fault read.
 *
 * Resolving proves that config and tensors agree (fixtures/checkpoints/README.md "Rules of slicing" 1-6 and "What must be refused: Checkpoints";
 * fixtures/hostile/README.md "config.json"; requirements-proxy.md 3, 5, 7, 8). Allocation is bounded by the tensors present, never by a number in
 * the config alone. Tests: tests/unit/test_structure.c, fixtures/hostile/{config,checkpoint}.
 */
#ifndef US_MODEL_STRUCTURE_H
#define US_MODEL_STRUCTURE_H

#include "io/checkpoint.h"
#include "model/family.h"

/** What slicing does with a tensor. */
typedef enum us_role_kind {
    US_ROLE_COPY,        /* kept whole */
    US_ROLE_EXPERT,      /* belongs to one expert: copied under a new number, or dropped */
    US_ROLE_SLICE,       /* has an expert axis: router rows, biases, stacked experts */
    US_ROLE_TOKEN_TABLE, /* [vocab, k] of expert ids (deepseek_v4 tid2eid): rewritten */
    US_ROLE_UNKNOWN,     /* nobody knows it; copied and reported */
} us_role_kind;

/** What the tensor is, for counting and features. */
typedef enum us_part {
    US_PART_OTHER, US_PART_EMBED, US_PART_HEAD, US_PART_ATTENTION, US_PART_NORM, US_PART_DENSE_MLP, US_PART_SHARED_EXPERT,
    US_PART_ROUTED, US_PART_ROUTER, US_PART_MTP, US_PART_VISION, US_PART_LOOKUP,
} us_part;

typedef struct us_role {
    us_role_kind kind;
    us_part part;
    uint32_t block;   /* index into blocks, or UINT32_MAX */
    uint32_t expert;  /* EXPERT: old number */
    uint8_t axis;     /* SLICE: expert axis */
    us_str head;      /* EXPERT: name up to and including "experts." */
    us_str rest;      /* EXPERT: behind the number and its dot, e.g. "gate_proj.weight" */
    const us_expert_tensor *desc; /* SLICE/EXPERT: the table's row (projection, layout), or NULL for quantisation companions */
    const us_router_tensor *router; /* SLICE: the table's row of a router tensor, or NULL */
    bool companion;       /* SLICE: scale or bias beside a stacked tensor */
    bool in_block;        /* below a MoE block and not named by the table */
    bool under_experts;   /* the same, below "experts." */
    bool in_mtp;          /* belongs to a multi-token-prediction layer */
} us_role;

typedef struct us_moe_block {
    char *key;           /* "3", "mtp.0": as in keep lists */
    char *prefix;        /* tensor prefix of the block with trailing dot, e.g. "model.layers.3.mlp." */
    uint32_t layer;      /* number in the tensor names */
    bool mtp;
    bool hash;           /* routed by a token table */
    bool stacked;        /* experts stacked in one tensor a projection */
    uint32_t n_experts;  /* from router rows (zero experts and shared rows not counted) */
    uint32_t tail_rows;  /* extra router rows behind the experts that stay last (zero experts) */
    uint32_t router;     /* tensor index of the router weight, or UINT32_MAX */
    uint32_t bias;       /* tensor index of the correction bias, or UINT32_MAX */
} us_moe_block;

/** A value in config.json that holds the expert count. list_entry >= 0: entry of a per-layer list. */
typedef struct us_count_site {
    us_json_ref value;   /* node of the scalar or of the list entry */
    char *path;          /* e.g. "text_config.num_experts", "num_experts[3]" */
    int32_t layer;       /* list entry's layer, or -1 */
} us_count_site;

typedef struct us_structure {
    const us_checkpoint *ck;     /* borrowed */
    const us_family *family;
    us_json_ref text_config;     /* node of the object with the text model's keys */
    us_moe_block *blocks;        /* by layer, trunk first, then MTP */
    size_t n_blocks;
    us_role *roles;              /* one per ck->tensors */
    us_count_site *count_sites;
    size_t n_count_sites;
    uint32_t n_layers;           /* trunk layers */
    uint32_t n_experts;          /* E of the trunk */
    uint32_t top_k;              /* the largest of a list */
    uint32_t n_group, topk_group;/* 1, 1 when there are none */
    us_group_rule group_rule;
    us_arena arena;
} us_structure;

/** ck must have been opened with its shards. */
us_status us_structure_resolve(us_ctx *ctx, const us_checkpoint *ck, us_structure **out, us_err *err) US_WARN_UNUSED;
void us_structure_free(us_structure *s);

typedef enum us_name_kind {
    US_NAME_OTHER,   /* names no expert */
    US_NAME_EXPERT,  /* an expert of a MoE block of this checkpoint */
    US_NAME_FOREIGN, /* has "experts.<n>" but no block of this checkpoint before it */
} us_name_kind;
/** What a module or tensor name says of experts. EXPERT: *block, *expert (perhaps beyond the count), *rest behind the number with its dot. Outputs may be NULL. */
us_name_kind us_structure_expert_of_name(const us_structure *s, us_str name, uint32_t *block, uint32_t *expert, us_str *rest);

/**
 * May every block keep n experts? US_OK or US_E_REFUSED with class not-positive, above-experts, below-top-k, groups-divide, group-too-small or
 * topk-group (fixtures/checkpoints/README.md, in that order). n is signed because people type negative numbers.
 */
us_status us_structure_check_size(const us_structure *s, int64_t n, us_err *err) US_WARN_UNUSED;
/** The same rules from bare numbers, for the planner. */
us_status us_expert_count_check(uint32_t n_experts, uint32_t top_k, uint32_t n_group, uint32_t topk_group, us_group_rule rule, int64_t n,
                                us_err *err) US_WARN_UNUSED;

#endif
