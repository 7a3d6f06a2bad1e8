/** Nearest kept experts for token tables, by router rows. Header: stream.h. Tests: tests/e2e/test_fix_cases.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/stream.h"

/* Router rows as f32, each of length 1; NULL rows when the type cannot be read (then nearness is the number). */
static us_status unit_rows(const us_plan *p, const us_moe_block *b, float **out, uint64_t *width, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    *out = NULL;
    *width = 0;
    if (b->router == UINT32_MAX) return US_OK;
    const us_ck_tensor *t = &ck->tensors[b->router];
    if (t->rank != 2 || t->shape[0] < b->n_experts || us_dtype_bits(t->dtype) < 8) return US_OK;
    size_t bytes = (size_t)t->bytes, n = 0;
    if (!us_mul_size((size_t)t->shape[0], (size_t)t->shape[1], &n) || n > (size_t)1 << 28) return US_OK;
    void *raw = us_malloc(bytes ? bytes : 1);
    float *rows = us_malloc((n ? n : 1) * sizeof *rows);
    us_status st = raw && rows ? us_ck_read(ck, t, 0, raw, bytes, err) : us_fail_nomem(err, "reading a router");
    bool ok = st == US_OK && us_to_f32(t->dtype, raw, n, rows);
    us_free(raw);
    for (uint64_t e = 0; ok && e < b->n_experts; e++) {
        float *r = rows + e * t->shape[1];
        double sum = 0;
        for (uint64_t i = 0; i < t->shape[1]; i++) sum += (double)r[i] * (double)r[i];
        double scale = sum > 0 ? 1 / sqrt(sum) : 0;
        for (uint64_t i = 0; i < t->shape[1]; i++) r[i] = (float)((double)r[i] * scale);
    }
    if (!ok) {
        us_free(rows);
        return st;
    }
    *out = rows;
    *width = t->shape[1];
    return US_OK;
}

typedef struct near {
    double cosine;
    uint32_t id;
} near;

static int cmp_near(const void *a, const void *b) {
    const near *x = a, *y = b;
    if (x->cosine > y->cosine) return -1;
    if (x->cosine < y->cosine) return 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static us_status rank_block(const us_plan *p, size_t block, us_table_map *m, us_err *err) {
    const us_moe_block *b = &p->s->blocks[block];
    uint32_t n = p->keep->n;
    const uint32_t *ids = us_keep_ids(p->keep, block);
    float *rows = NULL;
    uint64_t width = 0;
    size_t count;
    if (!us_mul_size(b->n_experts, n, &count)) return us_fail(err, US_E_LIMIT, "limit", "too many experts");
    us_status st = unit_rows(p, b, &rows, &width, err);
    if (st != US_OK) return st;
    uint32_t *rank = us_malloc((count ? count : 1) * sizeof *rank);
    near *c = us_malloc((n ? n : 1) * sizeof *c);
    if (!rank || !c) st = us_fail_nomem(err, "mapping a token table");
    for (uint32_t e = 0; st == US_OK && e < b->n_experts; e++) {
        for (uint32_t j = 0; j < n; j++) {
            double dot = 0;
            for (uint64_t i = 0; rows && i < width; i++) dot += (double)rows[e * width + i] * (double)rows[ids[j] * width + i];
            if (!(dot >= -2 && dot <= 2)) dot = -2; /* not a number in the weights */
            c[j] = (near){ids[j] == e ? 4 : dot, j};
        }
        qsort(c, n, sizeof *c, cmp_near);
        for (uint32_t j = 0; j < n; j++) rank[(size_t)e * n + j] = c[j].id;
    }
    us_free(rows);
    us_free(c);
    if (st == US_OK) m->rank[block] = rank;
    else us_free(rank);
    return st;
}

us_status us_table_map_create(const us_plan *p, us_table_map *out, us_err *err) {
    us_table_map m = {.n_blocks = p->s->n_blocks};
    m.rank = us_calloc(m.n_blocks ? m.n_blocks : 1, sizeof *m.rank);
    if (!m.rank) return us_fail_nomem(err, "mapping token tables");
    us_status st = US_OK;
    for (size_t i = 0; i < p->n_tensors && st == US_OK; i++) {
        const us_plan_tensor *t = &p->tensors[i];
        if (t->action == US_PLAN_TABLE && !m.rank[t->block]) st = rank_block(p, t->block, &m, err);
    }
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
