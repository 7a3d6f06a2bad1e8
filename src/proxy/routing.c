/**
 * Counting routing dumps and comparing co-activation profiles. See routing.h. Tests: tests/unit/test_routing.c.
 */
#include "proxy/routing.h"

#include <math.h>
#include <string.h>

#include "io/npy.h"

void us_routing_free(us_routing *r) {
    if (!r) return;
    for (size_t b = 0; r->blocks && b < r->n_blocks; b++) {
        us_free(r->blocks[b].count);
        us_free(r->blocks[b].pairs);
    }
    us_free(r->blocks);
    *r = (us_routing){0};
}

us_status us_routing_create(const us_structure *s, bool pairs, us_routing *out, us_err *err) {
    us_routing r = {.n_blocks = s->n_blocks};
    r.blocks = us_calloc(s->n_blocks ? s->n_blocks : 1, sizeof *r.blocks);
    bool ok = r.blocks != NULL;
    for (size_t b = 0; ok && b < s->n_blocks; b++) {
        size_t n = s->blocks[b].n_experts;
        r.blocks[b].n_experts = (uint32_t)n;
        if (s->blocks[b].mtp) continue;
        r.blocks[b].count = us_calloc(n ? n : 1, sizeof(uint64_t));
        if (pairs) r.blocks[b].pairs = us_calloc(n * n + 1, sizeof(uint64_t));
        ok = r.blocks[b].count && (!pairs || r.blocks[b].pairs);
    }
    if (!ok) {
        us_routing_free(&r);
        return us_fail_nomem(err, "routing counts");
    }
    *out = r;
    return US_OK;
}

static us_status bad(us_err *err, const char *what, uint64_t a, uint64_t b) {
    us_status st = us_fail(err, US_E_FORMAT, "routing", "the routing dump %s (%llu, expected %llu)", what, (unsigned long long)a, (unsigned long long)b);
    us_err_todo(err, "give the routed_experts array of a run of this model: [batch, tokens, layers, k]");
    return st;
}

/* Trunk block of array layer l, or SIZE_MAX for a dense layer. */
static size_t block_of(const us_structure *s, size_t trunk, size_t layers, size_t l) {
    if (layers == trunk) return l;
    for (size_t b = 0; b < trunk; b++) {
        if (s->blocks[b].layer == l) return b;
    }
    return SIZE_MAX;
}

static bool is_none(int64_t id, int64_t filler) {
    return id < 0 || id == filler;
}

/* A position without a record: zero or none in every layer. */
static bool empty_position(const int64_t *p, size_t n, int64_t filler) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] && !is_none(p[i], filler)) return false;
    }
    return true;
}

/* A row that cannot be a choice: an id twice (several zeros), or nothing in it. */
static bool filler_row(const int64_t *p, size_t k, int64_t filler) {
    size_t real = 0;
    for (size_t i = 0; i < k; i++) {
        if (is_none(p[i], filler)) continue;
        real++;
        for (size_t j = 0; j < i; j++) {
            if (p[j] == p[i]) return true;
        }
    }
    return real == 0;
}

static us_status add_row(const us_moe_block *b, us_routing_block *c, const int64_t *p, size_t k, int64_t filler, us_err *err) {
    for (size_t i = 0; i < k; i++) {
        if (is_none(p[i], filler)) continue;
        uint64_t id = (uint64_t)p[i];
        if (id >= (uint64_t)b->n_experts + b->tail_rows) {
            us_status st = bad(err, "names an expert that does not exist", id, b->n_experts);
            us_err_where(err, "layer %s", b->key);
            return st;
        }
        if (id >= b->n_experts) continue; /* a zero expert */
        c->count[id]++;
        for (size_t j = 0; c->pairs && j < i; j++) {
            uint64_t other = (uint64_t)p[j];
            if (is_none(p[j], filler) || other >= b->n_experts) continue;
            c->pairs[id * b->n_experts + other]++;
            c->pairs[other * b->n_experts + id]++;
        }
    }
    return US_OK;
}

us_status us_routing_add(us_ctx *ctx, const us_structure *s, const int64_t *ids, size_t positions, size_t layers, size_t k, int64_t filler_id, us_routing *r,
                         us_err *err) {
    size_t trunk = 0;
    while (trunk < s->n_blocks && !s->blocks[trunk].mtp) trunk++;
    if (!layers || (layers != trunk && layers != s->n_layers)) return bad(err, "has another number of layers", layers, trunk);
    if (!k || k > (uint64_t)s->top_k) return bad(err, "has another number of experts per token", k, s->top_k);
    for (size_t t = 0; t < positions; t++) {
        if (t % 65536 == 0) US_TRY(us_ctx_check(ctx, err));
        const int64_t *p = ids + t * layers * k;
        bool none = empty_position(p, layers * k, filler_id);
        for (size_t l = 0; l < layers; l++) {
            size_t b = block_of(s, trunk, layers, l);
            if (b == SIZE_MAX) continue;
            if (none || filler_row(p + l * k, k, filler_id)) {
                r->filler++;
                continue;
            }
            r->tokens++;
            US_TRY(add_row(&s->blocks[b], &r->blocks[b], p + l * k, k, filler_id, err));
        }
    }
    return US_OK;
}

/* Positions at a time that are widened to 64 bits. */
enum { SLICE = 4096 };

typedef struct dump {
    us_dtype dtype;
    int rank;
    const uint64_t *shape;
    const unsigned char *data;
} dump;

static bool element(const dump *d, size_t i, int64_t *out) {
    const unsigned char *p = d->data;
    switch (d->dtype) {
    case US_DTYPE_U8: *out = p[i]; return true;
    case US_DTYPE_I8: *out = (int8_t)p[i]; return true;
    case US_DTYPE_I16: { int16_t v; memcpy(&v, p + i * 2, 2); *out = v; return true; }
    case US_DTYPE_U16: { uint16_t v; memcpy(&v, p + i * 2, 2); *out = v; return true; }
    case US_DTYPE_I32: { int32_t v; memcpy(&v, p + i * 4, 4); *out = v; return true; }
    case US_DTYPE_U32: { uint32_t v; memcpy(&v, p + i * 4, 4); *out = v; return true; }
    case US_DTYPE_I64: memcpy(out, p + i * 8, 8); return true;
    default: return false;
    }
}

static us_status add_dump(us_ctx *ctx, const us_structure *s, const dump *d, us_routing *r, us_err *err) {
    if (d->rank != 3 && d->rank != 4) return bad(err, "has another rank", (uint64_t)d->rank, 4);
    size_t k = (size_t)d->shape[d->rank - 1], layers = (size_t)d->shape[d->rank - 2], positions = 1, row, slice_bytes;
    for (int i = 0; i < d->rank - 2; i++) {
        if (!us_mul_size(positions, (size_t)d->shape[i], &positions)) return bad(err, "is too large", 0, 0);
    }
    int64_t filler = d->dtype == US_DTYPE_U8 ? 255 : d->dtype == US_DTYPE_U16 ? 65535 : d->dtype == US_DTYPE_U32 ? 4294967295 : -1;
    if (!us_mul_size(layers, k, &row) || !us_mul_size(row, SLICE * sizeof(int64_t), &slice_bytes) || layers > 65536 || k > 65536)
        return bad(err, "is too large", layers, s->n_layers);
    int64_t *wide = us_malloc(slice_bytes + 1);
    if (!wide) return us_fail_nomem(err, "reading a routing dump");
    us_status st = US_OK;
    for (size_t t = 0; t < positions && st == US_OK; t += SLICE) {
        size_t n = positions - t < SLICE ? positions - t : SLICE;
        for (size_t i = 0; i < n * row && st == US_OK; i++) {
            if (!element(d, t * row + i, &wide[i])) st = us_fail(err, US_E_FORMAT, "routing", "the routing dump has type %s, not whole numbers", us_dtype_name(d->dtype));
        }
        if (st == US_OK) st = us_routing_add(ctx, s, wide, n, layers, k, filler, r, err);
    }
    us_free(wide);
    return st;
}

static us_status read_npy(us_ctx *ctx, const us_structure *s, const char *path, us_routing *r, us_err *err) {
    us_npy_set set = {0};
    US_TRY(us_npy_open(ctx, path, true, US_ROUTING_MAX, &set, err));
    const us_npy *a = us_npy_find(&set, "routed_experts");
    if (!a && set.n == 1) a = &set.arrays[0];
    us_status st = a ? add_dump(ctx, s, &(dump){a->dtype, a->rank, a->shape, a->data}, r, err)
                     : us_fail(err, US_E_FORMAT, "routing", "the file has no array called routed_experts");
    us_npy_set_free(&set);
    return st;
}

static us_status read_safetensors(us_ctx *ctx, const us_structure *s, const char *path, us_routing *r, us_err *err) {
    us_file f;
    us_st_header h = {0};
    US_TRY(us_file_open(path, &f, err));
    us_status st = us_st_read(&f, 0, &h, err);
    const us_st_tensor *t = NULL;
    for (size_t i = 0; st == US_OK && i < h.n_tensors; i++) {
        if (us_str_ends(h.tensors[i].name, US_LIT("routed_experts")) || h.n_tensors == 1) t = &h.tensors[i];
    }
    if (st == US_OK && !t) st = us_fail(err, US_E_FORMAT, "routing", "the file has no tensor called routed_experts");
    uint64_t bytes = t ? t->end - t->begin : 0;
    if (st == US_OK && bytes > US_ROUTING_MAX) st = us_fail(err, US_E_LIMIT, "limit", "the routing dump is larger than 16 GiB");
    void *data = st == US_OK ? us_malloc((size_t)bytes + 1) : NULL;
    if (st == US_OK && !data) st = us_fail_nomem(err, "reading a routing dump");
    if (st == US_OK) st = us_file_read(&f, h.data_start + t->begin, data, (size_t)bytes, err);
    if (st == US_OK) st = add_dump(ctx, s, &(dump){t->dtype, t->rank, t->shape, data}, r, err);
    us_free(data);
    us_st_header_free(&h);
    us_file_close(&f);
    return st;
}

us_status us_routing_read(us_ctx *ctx, const us_structure *s, const char *const *paths, int n, bool pairs, us_routing *out, us_err *err) {
    us_routing r = {0};
    US_TRY(us_routing_create(s, pairs, &r, err));
    us_status st = US_OK;
    for (int i = 0; i < n && st == US_OK; i++) {
        st = us_str_ends(us_str_z(paths[i]), US_LIT(".safetensors")) ? read_safetensors(ctx, s, paths[i], &r, err) : read_npy(ctx, s, paths[i], &r, err);
        if (st != US_OK && err && !strstr(err->where, paths[i])) us_err_where(err, "%s", paths[i]);
    }
    if (st == US_OK && n && !r.tokens) {
        st = us_fail(err, US_E_FORMAT, "routing", "the routing dumps hold nothing but filler");
        us_err_where(err, "%s", paths[0]);
    }
    if (st != US_OK) {
        us_routing_free(&r);
        return st;
    }
    *out = r;
    return US_OK;
}

/* ---- Jensen-Shannon ---- */

typedef struct js_job {
    const us_routing_block *b;
    double *d;
} js_job;

static double plogp(double p, double m) {
    return p > 0 ? p * log2(p / m) : 0.0;
}

static double js(const us_routing_block *b, size_t i, size_t k) {
    size_t n = b->n_experts;
    const uint64_t *a = b->pairs + i * n, *c = b->pairs + k * n;
    uint64_t sa = 0, sc = 0;
    for (size_t j = 0; j < n; j++) {
        if (j == i || j == k) continue;
        sa += a[j];
        sc += c[j];
    }
    if (!sa || !sc) return sa == sc ? 0.0 : 1.0;
    double sum = 0;
    for (size_t j = 0; j < n; j++) {
        if (j == i || j == k) continue;
        double p = (double)a[j] / (double)sa, q = (double)c[j] / (double)sc, m = 0.5 * (p + q);
        sum += plogp(p, m) + plogp(q, m);
    }
    sum *= 0.5;
    return sum < 0 ? 0.0 : sum > 1 ? 1.0 : sum;
}

static void js_task(void *arg, int64_t at, int thread) {
    (void)thread;
    const js_job *j = arg;
    size_t i = (size_t)at, n = j->b->n_experts;
    j->d[i * n + i] = 0.0;
    for (size_t k = i + 1; k < n; k++) j->d[i * n + k] = j->d[k * n + i] = js(j->b, i, k);
}

void us_routing_js(us_pool *pool, const us_routing_block *b, double *d) {
    js_job j = {b, d};
    us_pool_run(pool, js_task, &j, (int64_t)b->n_experts);
}
