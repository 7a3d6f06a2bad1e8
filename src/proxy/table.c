/** Nearest kept experts for token tables, by what experts do. Header: stream.h. Tests: tests/unit/test_table.c, tests/e2e/test_fix_cases.c. */
#include <string.h>

#include "proxy/select.h"
#include "proxy/stream.h"

/*
 * Distances by function and router rows with the default options, whatever the selection was: so verify finds the same map without the manifest.
 * What cannot be compared at all leaves zeros, and nearness is the number.
 */
static us_status distances(us_ctx *ctx, const us_plan *p, size_t block, double *d, us_err *err) {
    static const us_select_options options = {0};
    us_err reason = {0};
    us_status st = us_select_distances(ctx, p->s, &options, block, d, &reason);
    if (st == US_E_UNSUPPORTED) {
        memset(d, 0, (size_t)p->s->blocks[block].n_experts * p->s->blocks[block].n_experts * sizeof *d);
        return US_OK;
    }
    if (st != US_OK && err) *err = reason;
    return st;
}

static us_status rank_block(us_ctx *ctx, const us_plan *p, size_t block, us_table_map *m, us_err *err) {
    size_t experts = p->s->blocks[block].n_experts, n = p->keep->n, count, cells;
    const uint32_t *ids = us_keep_ids(p->keep, block);
    if (!us_mul_size(experts, n, &count) || !us_mul_size(experts, experts, &cells)) return us_fail(err, US_E_LIMIT, "limit", "too many experts");
    double *d = us_calloc(cells ? cells : 1, sizeof *d);
    uint32_t *rank = us_malloc((count ? count : 1) * sizeof *rank), *new_id = us_calloc(experts ? experts : 1, sizeof *new_id);
    us_status st = d && rank && new_id ? distances(ctx, p, block, d, err) : us_fail_nomem(err, "mapping a token table");
    if (st == US_OK) {
        for (uint32_t j = 0; j < n; j++) new_id[ids[j]] = j;
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t *row = rank + (size_t)e * n;
            us_select_nearest(d, (uint32_t)experts, ids, (uint32_t)n, e, row);
            for (size_t j = 0; j < n; j++) row[j] = new_id[row[j]];
        }
        m->rank[block] = rank;
        rank = NULL;
    }
    us_free(d);
    us_free(rank);
    us_free(new_id);
    return st;
}

us_status us_table_map_create(us_ctx *ctx, const us_plan *p, us_table_map *out, us_err *err) {
    us_table_map m = {.n_blocks = p->s->n_blocks};
    us_ctx *own = NULL; /* a context of its own: the caller's progress counts other bytes */
    m.rank = us_calloc(m.n_blocks ? m.n_blocks : 1, sizeof *m.rank);
    if (!m.rank) return us_fail_nomem(err, "mapping token tables");
    us_status st = US_OK;
    for (size_t i = 0; i < p->n_tensors && st == US_OK; i++) {
        const us_plan_tensor *t = &p->tensors[i];
        if (t->action != US_PLAN_TABLE || m.rank[t->block]) continue;
        if (!own) st = us_ctx_create(us_pool_threads(us_ctx_pool(ctx)), 0, &own, err);
        if (st == US_OK) st = us_ctx_check(ctx, err);
        if (st == US_OK) st = rank_block(own, p, t->block, &m, err);
    }
    us_ctx_free(own);
    if (st != US_OK) us_table_map_free(&m);
    else *out = m;
    return st;
}

void us_table_map_free(us_table_map *m) {
    if (!m) return;
    for (size_t b = 0; m->rank && b < m->n_blocks; b++) us_free(m->rank[b]);
    us_free(m->rank);
    *m = (us_table_map){0};
}
