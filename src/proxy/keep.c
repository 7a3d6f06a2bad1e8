/**
 * Keep lists: creation, validation, the two baselines that look at nothing. Reading list files is in keep_read.c.
 * Tests: tests/e2e/test_proxy.c.
 */
#include "proxy/keep.h"

#include <string.h>

#include "base/rng.h"

us_status us_keep_create(const us_structure *s, uint32_t n, us_keep *out, us_err *err) {
    size_t count;
    if (!us_mul_size(s->n_blocks, n, &count)) return us_fail(err, US_E_LIMIT, "limit", "too many experts to keep");
    uint32_t *ids = us_calloc(count ? count : 1, sizeof *ids);
    if (!ids) return us_fail_nomem(err, "keep lists");
    *out = (us_keep){.n_blocks = s->n_blocks, .n = n, .ids = ids};
    return US_OK;
}

void us_keep_free(us_keep *k) {
    if (!k) return;
    us_free(k->ids);
    *k = (us_keep){0};
}

us_status us_merge_tree_create(const us_structure *s, us_merge_tree *out, us_err *err) {
    us_merge_tree t = {.n_blocks = s->n_blocks};
    t.blocks = us_calloc(s->n_blocks ? s->n_blocks : 1, sizeof *t.blocks);
    if (!t.blocks) return us_fail_nomem(err, "merge tree");
    for (size_t b = 0; b < s->n_blocks; b++) {
        t.blocks[b].merges = us_calloc(s->blocks[b].n_experts ? s->blocks[b].n_experts : 1, sizeof(us_merge));
        if (!t.blocks[b].merges) {
            us_merge_tree_free(&t);
            return us_fail_nomem(err, "merge tree");
        }
    }
    *out = t;
    return US_OK;
}

void us_merge_tree_free(us_merge_tree *t) {
    if (!t) return;
    for (size_t b = 0; t->blocks && b < t->n_blocks; b++) us_free(t->blocks[b].merges);
    us_free(t->blocks);
    *t = (us_merge_tree){0};
}

/* The group of old expert e: groups are equal runs of old numbers. */
static uint32_t group_of(const us_structure *s, const us_moe_block *b, uint32_t e) {
    uint32_t size = b->n_experts / (s->n_group ? s->n_group : 1);
    return size ? e / size : 0;
}

static us_status check_groups(const us_structure *s, size_t block, const uint32_t *ids, uint32_t n, us_err *err) {
    const us_moe_block *b = &s->blocks[block];
    uint32_t groups = s->n_group, each = n / groups;
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t count = 0;
        for (uint32_t j = 0; j < n; j++) count += group_of(s, b, ids[j]) == g;
        if (count == each) continue;
        us_status st = us_fail(err, US_E_REFUSED, "kept-unequal-per-group", "the list keeps %u experts of group %u, %u of each are needed", count, g, each);
        us_err_where(err, "layer %s", b->key);
        us_err_todo(err, "keep the same number of every group of %u", b->n_experts / groups);
        return st;
    }
    for (uint32_t j = 0; j < n; j++) {
        if (group_of(s, b, ids[j]) == j / each) continue;
        us_status st = us_fail(err, US_E_REFUSED, "kept-group-order", "new expert %u must come from old group %u, old expert %u is of group %u", j, j / each, ids[j],
                group_of(s, b, ids[j]));
        us_err_where(err, "layer %s", b->key);
        us_err_todo(err, "list the kept experts group after group");
        return st;
    }
    return US_OK;
}

static us_status check_ids(const us_structure *s, size_t block, const uint32_t *ids, uint32_t n, us_err *err) {
    const us_moe_block *b = &s->blocks[block];
    unsigned char *seen = us_calloc(b->n_experts ? b->n_experts : 1, 1);
    if (!seen) return us_fail_nomem(err, "checking keep lists");
    us_status st = US_OK;
    for (uint32_t j = 0; j < n && st == US_OK; j++) {
        if (ids[j] >= b->n_experts) {
            st = us_fail(err, US_E_REFUSED, "kept-range", "expert %u does not exist, the layer has %u", ids[j], b->n_experts);
        } else if (seen[ids[j]]) {
            st = us_fail(err, US_E_REFUSED, "kept-duplicate", "expert %u is listed twice", ids[j]);
        } else {
            seen[ids[j]] = 1;
        }
        if (st != US_OK) us_err_where(err, "layer %s, entry %u", b->key, j);
    }
    us_free(seen);
    return st;
}

us_status us_keep_validate(const us_structure *s, const us_keep *k, const bool *active, us_err *err) {
    if (k->n_blocks != s->n_blocks) return us_fail(err, US_E_INVAL, NULL, "keep lists of another checkpoint");
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (active && !active[b]) continue;
        US_TRY(check_ids(s, b, us_keep_ids(k, b), k->n, err));
    }
    US_TRY(us_structure_check_size(s, k->n, err));
    if (s->n_group <= 1) return US_OK;
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (active && !active[b]) continue;
        US_TRY(check_groups(s, b, us_keep_ids(k, b), k->n, err));
    }
    return US_OK;
}

static void sort_u32(uint32_t *p, uint32_t n) {
    for (uint32_t gap = n / 2; gap; gap /= 2) { /* Shell sort: lists are short and libc's qsort may allocate */
        for (uint32_t i = gap; i < n; i++) {
            uint32_t v = p[i], j = i;
            for (; j >= gap && p[j - gap] > v; j -= gap) p[j] = p[j - gap];
            p[j] = v;
        }
    }
}

us_status us_keep_first(const us_structure *s, uint32_t n, us_keep *out, us_err *err) {
    us_keep k = {0};
    US_TRY(us_keep_create(s, n, &k, err));
    uint32_t groups = s->n_group ? s->n_group : 1, each = n / groups;
    for (size_t b = 0; b < s->n_blocks; b++) {
        uint32_t size = s->blocks[b].n_experts / groups, j = 0;
        for (uint32_t g = 0; g < groups; g++) {
            for (uint32_t i = 0; i < each; i++) us_keep_ids(&k, b)[j++] = g * size + i;
        }
    }
    *out = k;
    return US_OK;
}

us_status us_keep_random(const us_structure *s, uint64_t seed, uint32_t n, us_keep *out, us_err *err) {
    us_keep k = {0};
    us_status st = US_OK;
    US_TRY(us_keep_create(s, n, &k, err));
    uint32_t groups = s->n_group ? s->n_group : 1, each = n / groups;
    for (size_t b = 0; b < s->n_blocks && st == US_OK; b++) {
        uint32_t size = s->blocks[b].n_experts / groups;
        uint32_t *perm = us_malloc((size ? size : 1) * sizeof *perm);
        if (!perm) {
            st = us_fail_nomem(err, "drawing experts");
            break;
        }
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t *ids = us_keep_ids(&k, b) + (size_t)g * each;
            us_rng_permutation(seed, ((uint64_t)b << 32) | g, size, perm);
            for (uint32_t i = 0; i < each; i++) ids[i] = g * size + perm[i];
            sort_u32(ids, each);
        }
        us_free(perm);
    }
    if (st != US_OK) {
        us_keep_free(&k);
        return st;
    }
    *out = k;
    return US_OK;
}

uint32_t us_keep_new_id(const us_keep *k, size_t block, uint32_t e) {
    const uint32_t *ids = us_keep_ids(k, block);
    for (uint32_t j = 0; j < k->n; j++) {
        if (ids[j] == e) return j;
    }
    return UINT32_MAX;
}
