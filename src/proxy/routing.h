/**
 * Routing-replay dumps: which experts a run really chose, counted per MoE block - exact loads and co-activation.
 *
 * Reads `routed_experts` arrays [batch, tokens, layers, k] (or [tokens, layers, k]) of whole numbers from .npy, .npz and .safetensors. `layers` counts
 * either all trunk layers or the MoE layers only. Filler is skipped, or expert 0 would be over-counted: positions that are zero in every layer (padding
 * and the last token of a response, which has no record), rows of several equal ids, negative ids and the largest value of an unsigned type.
 *
 * Dumps are outside data: an id that no expert has is refused, nothing is allocated beyond the file's own arrays (at most US_ROUTING_MAX bytes) and E x E counts.
 * Not here: what to do with the counts (cluster.h, select.h). Facts: spec/moe-proxy.md 5.4. Tests: tests/unit/test_routing.c.
 */
#ifndef US_PROXY_ROUTING_H
#define US_PROXY_ROUTING_H

#include "base/ctx.h"
#include "model/structure.h"

#define US_ROUTING_MAX ((uint64_t)16 << 30)

typedef struct us_routing_block {
    uint32_t n_experts;
    uint64_t *count;   /* n_experts: how often chosen; NULL = no dump covers the block (MTP) */
    uint64_t *pairs;   /* n_experts x n_experts: chosen together; diagonal 0 */
} us_routing_block;

typedef struct us_routing {
    us_routing_block *blocks;
    size_t n_blocks;
    uint64_t tokens; /* rows counted, over all blocks */
    uint64_t filler; /* rows skipped */
} us_routing;

/**
 * Count all files together. pairs = false leaves co-activation out.
 * @return US_E_FORMAT with class "routing" (no such array, shape, type, id out of range), or what reading the file gives.
 */
us_status us_routing_read(us_ctx *ctx, const us_structure *s, const char *const *paths, int n, bool pairs, us_routing *out, us_err *err) US_WARN_UNUSED;
/** Count one array in memory: element i is ids[i]; shape is [.., layers, k]. filler_id: a value that means "none", e.g. 255, or -1. Also the fuzz entry. */
us_status us_routing_add(us_ctx *ctx, const us_structure *s, const int64_t *ids, size_t positions, size_t layers, size_t k, int64_t filler_id, us_routing *r,
                         us_err *err) US_WARN_UNUSED;
us_status us_routing_create(const us_structure *s, bool pairs, us_routing *out, us_err *err) US_WARN_UNUSED;
void us_routing_free(us_routing *r);

/**
 * Jensen-Shannon distances (base 2, 0 to 1) between the co-activation profiles of all pairs, n x n; the two experts themselves are left out of the
 * comparison. An expert without choices is at distance 1 from one with, and 0 from another without.
 */
void us_routing_js(us_pool *pool, const us_routing_block *b, double *d);

#endif
