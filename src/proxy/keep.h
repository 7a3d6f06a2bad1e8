/**
 * Keep lists: for every MoE block the old numbers of the experts that stay, in their new order; and the merge tree they come from.
 *
 * The common currency between selection (select.h makes them), lists that a user brings, the plan that writes a proxy, the manifest and
 * verify. All blocks keep one and the same number, because a config has one count (rule 2 of fixtures/checkpoints/README.md).
 * Not here: how experts are chosen by features (select.h). Tests: tests/e2e/test_proxy.c, test_fix_checkpoints.c, test_fix_cases.c.
 */
#ifndef US_PROXY_KEEP_H
#define US_PROXY_KEEP_H

#include "model/structure.h"

/** Lists of one size. Zero-initialise; us_keep_free releases. */
typedef struct us_keep {
    size_t n_blocks; /* as in the structure, same order */
    uint32_t n;      /* experts kept in every block */
    uint32_t *ids;   /* n_blocks * n: new expert j of block b is the old expert ids[b * n + j] */
} us_keep;

static inline uint32_t *us_keep_ids(const us_keep *k, size_t block) {
    return k->ids + block * k->n;
}

/** One merge: the clusters represented by old experts a and b become one, represented by a. */
typedef struct us_merge {
    uint32_t a, b;
    double distance;
} us_merge;

/** Merges of every block in the order they were made; a block of E experts has at most E - 1. Zero-initialise. */
typedef struct us_merge_tree {
    size_t n_blocks;
    struct us_merge_list {
        us_merge *merges;
        uint32_t n;
    } *blocks;
} us_merge_tree;

/** Room for n ids in each block of s, ids zero. */
us_status us_keep_create(const us_structure *s, uint32_t n, us_keep *out, us_err *err) US_WARN_UNUSED;
void us_keep_free(us_keep *k);
us_status us_merge_tree_create(const us_structure *s, us_merge_tree *out, us_err *err) US_WARN_UNUSED;
void us_merge_tree_free(us_merge_tree *t);

/**
 * Are the lists ones that slicing may use? Checks size (us_structure_check_size), range, duplicates, groups.
 * active (one flag a block; NULL = all): blocks that are not written are not looked at.
 * US_E_REFUSED with class kept-range, kept-duplicate, kept-unequal-per-group, kept-group-order, or the class of the size.
 */
us_status us_keep_validate(const us_structure *s, const us_keep *k, const bool *active, us_err *err) US_WARN_UNUSED;

/** Baseline: the first n / n_group experts of every group, ascending. n must be legal. */
us_status us_keep_first(const us_structure *s, uint32_t n, us_keep *out, us_err *err) US_WARN_UNUSED;
/** Baseline: a seeded draw, equally from every group, ascending. Smaller sizes are subsets of larger ones. n must be legal. */
us_status us_keep_random(const us_structure *s, uint64_t seed, uint32_t n, us_keep *out, us_err *err) US_WARN_UNUSED;

/**
 * Read a list file: {"layers": {"3": [0, 5]}} (also a manifest), {"3": [0, 5]}, {"layers": [3], "keep": [[0, 5]]}, or ranked JSON lines
 * {"3": [5, 0, 2, 1]} (several lines, or a name that ends in .jsonl), of which the first `size` (of every group) are kept, ascending.
 * size: what the user asked for, 0 = as the lists say; the lists must have it. Lists are validated.
 * @return also kept-type, kept-empty, kept-lengths-differ, kept-missing-layer, kept-unknown-layer, kept-duplicate.
 */
us_status us_keep_read(const us_structure *s, const char *path, int64_t size, const bool *active, us_keep *out, us_err *err) US_WARN_UNUSED;
/** As us_keep_read from memory; jsonl: treat even one line as a ranking. Also the fuzz entry. */
us_status us_keep_parse(const us_structure *s, us_str text, bool jsonl, int64_t size, const bool *active, us_keep *out, us_err *err) US_WARN_UNUSED;

/** Is old expert e of block b kept? Its new number, or UINT32_MAX. Linear in n. */
uint32_t us_keep_new_id(const us_keep *k, size_t block, uint32_t e);

#endif
