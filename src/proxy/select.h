/**
 * Expert selection: which experts of every MoE block a proxy keeps, for one size or a nested ladder of sizes.
 *
 * One merge tree per block gives every size: clusters are merged pair by pair, and a merged cluster is represented by one of the two old
 * representatives, so the experts of a smaller proxy are a subset of those of a larger one. A tree depends on the checkpoint and the options,
 * never on the sizes asked for. Features: functional sketches of the experts (sketch.h), router directions, routing dumps (routing.h).
 * Same result for any number of threads and any instruction set (docs/dev/numerics.md).
 *
 * Not here: the type of keep lists and reading them (keep.h), writing a proxy. Facts: spec/moe-proxy.md 5.2, 5.4; user guide:
 * docs/user/select-experts.md. Tests: tests/unit/test_select.c, tests/prop/test_planted.c, tests/prop/test_fix_select.c.
 */
#ifndef US_PROXY_SELECT_H
#define US_PROXY_SELECT_H

#include "proxy/keep.h"

typedef enum us_select_method {
    US_SELECT_CLUSTER,     /* average-linkage clustering, one representative a cluster */
    US_SELECT_REAP_LIKE,   /* highest gate x output norm on probe inputs (x load, with routing dumps) */
    US_SELECT_FREQUENCY,   /* most often chosen; needs routing dumps */
    US_SELECT_ROUTER_NORM, /* largest router rows */
    US_SELECT_FIRST,       /* the first of every group */
    US_SELECT_RANDOM,      /* a seeded draw */
    US_SELECT_LIST,        /* a file (us_keep_read) */
} us_select_method;

enum { US_SKETCH_DIMS = 256, US_SKETCH_PROBES_MAX = 256 };

/** Zero-initialise for the defaults; fields that are 0 or NULL mean what their comment says. */
typedef struct us_select_options {
    us_select_method method;
    const char *list;            /* LIST: the file */
    const char *const *routing;  /* routing dumps (.npy, .npz, .safetensors), n_routing of them */
    int n_routing;
    const char *const *protect;  /* "KEY:E[,E...]" (KEY as in keep lists, or "*"), or "auto" */
    int n_protect;
    bool weights_given;          /* weight_* are set; else .5, .3, .2. Renormalised over the features that are there */
    double weight_sketch, weight_router, weight_coactivation;
    double saliency_weight;      /* lambda of the representative rule; 0 = off */
    uint64_t seed;
    uint32_t sketch_dims;        /* 0 = US_SKETCH_DIMS; a multiple of 32, at most 4096 */
    uint32_t probes;             /* 0 = one per expert, at most US_SKETCH_PROBES_MAX */
    double cap;                  /* a cluster may hold ceil(cap * E / clusters) experts; 0 = 2, infinite = no cap */
    const bool *active;          /* one flag a block: blocks that are written; NULL = all. The others get empty statistics and zero lists */
} us_select_options;

/** What was measured about one block; arrays of n_experts, NULL when the source was not there. */
typedef struct us_select_block {
    uint32_t n_experts;
    double *load;       /* share of all choices, sums to 1; from routing dumps */
    double *saliency;   /* gate x output norm (reap-like), arbitrary unit; with sketches */
    double *peak;       /* largest absolute output on the probes; with sketches */
    double *score;      /* what the ranking methods ranked by */
    bool *protect;      /* kept whatever the clusters say; NULL = none */
    double *distance;   /* E x E; only for hash-routed blocks (us_select_nearest) */
    bool has_sketch, has_router, has_routing;
    uint32_t n_probes;
    const char *why_no_sketch; /* NULL, or why there is no sketch */
} us_select_block;

typedef struct us_selection {
    size_t n_sizes;
    us_keep *keeps;          /* one per size, in the order asked for; ids ascending inside a group */
    us_merge_tree tree;      /* of the cluster method, else all lists are empty */
    us_select_block *blocks;
    size_t n_blocks;
    uint64_t tokens;         /* rows of the routing dumps that counted */
    uint64_t filler;         /* rows that were skipped */
    uint64_t bytes_read;     /* expert bytes read for sketches */
    double flops;            /* arithmetic done for sketches */
} us_selection;

/**
 * Choose experts for every size. s and its checkpoint are only read.
 *
 * @param[in] sizes  E' values; every one is checked (us_structure_check_size).
 * @return US_OK; the class of an illegal size; "routing" and its kin for a bad dump; "protect" for a bad --protect; "select" when the method
 *         lacks its data.
 * @determinism a pure function of checkpoint, options and dumps; independent of threads and instruction set.
 */
us_status us_select(us_ctx *ctx, const us_structure *s, const us_select_options *opt, const uint32_t *sizes, size_t n_sizes, us_selection *out,
                    us_err *err) US_WARN_UNUSED;
void us_selection_free(us_selection *s);

/**
 * What was measured, as a JSON object for the manifest of one size: per block its sources, loads, the share of choices that kept experts took
 * (kept_load), the largest load in means, saliencies, protected experts. active as in the options.
 */
void us_selection_json(us_buf *b, const us_selection *s, const us_structure *st, const us_keep *keep, const bool *active);
/** One line about loads for people; nothing without routing dumps. */
void us_selection_text(us_buf *b, const us_selection *s, const us_structure *st, const us_keep *keep, const bool *active);

/** Name of a method as typed, e.g. "reap-like"; and back ("list:FILE" is LIST, *file points behind the colon). false = unknown. */
const char *us_select_method_name(us_select_method m);
bool us_select_method_parse(const char *text, us_select_method *out, const char **file);

/**
 * Distances of all pairs of experts of one block, E x E doubles, by the weights of opt (routing dumps are read again when given). For lists that
 * do not come from us_select but need a nearest map.
 */
us_status us_select_distances(us_ctx *ctx, const us_structure *s, const us_select_options *opt, size_t block, double *d, us_err *err) US_WARN_UNUSED;

/**
 * Kept experts by distance from old expert e: ranked[j] is the *old* id of the j-th nearest of ids[0..n), ties to the lowest old id. A kept e comes
 * first itself. This is how the token table of a hash-routed block is rewritten. d: E x E distances.
 */
void us_select_nearest(const double *d, uint32_t n_experts, const uint32_t *ids, uint32_t n, uint32_t e, uint32_t *ranked);

#endif
