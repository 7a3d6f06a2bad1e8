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

typedef struct us_family us_family;

#endif
