/* Vocabulary and merge tables: filled once by load.c, read-only then. Tests: tests/unit/test_tokenizer.c. */
#include <string.h>

#include "model/tokenizer/load.h"

us_status us_tok_nomem(us_err *err) {
    return us_fail_nomem(err, "working on a tokenizer");
}

uint32_t us_tv_hash(const char *p, size_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ n, w;
    while (n >= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    w = 0;
    memcpy(&w, p, n);
    h = (h ^ w) * 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

us_status us_vocab_reserve(us_vocab *v, const us_raw_model *raw, us_err *err) {
    size_t bytes = 1, ids = 0, cap = 0, cap2 = 0;
    for (size_t i = 0; i < raw->n_vocab; i++) {
        bytes += raw->vocab[i].text.n + 1;
        if (raw->vocab[i].id >= ids) ids = (size_t)raw->vocab[i].id + 1;
    }
    if (!us_grow(&v->pool, &v->pool_cap, bytes, 1) || !us_grow(&v->begin, &cap, ids, sizeof *v->begin) || !us_grow(&v->len, &cap2, ids, sizeof *v->len)) return us_tok_nomem(err);
    v->ids_cap = cap < cap2 ? cap : cap2;
    return US_OK;
}

us_status us_vocab_add(us_vocab *v, const char *p, size_t n, uint32_t id, us_err *err) {
    if (id >= US_TOK_ID_MAX) return us_fail(err, US_E_LIMIT, "limit", "token id %u is above the limit of %d", id, US_TOK_ID_MAX);
    if (id >= v->n_ids) {
        size_t cap = v->ids_cap, cap2 = v->ids_cap;
        if (!us_grow(&v->begin, &cap, (size_t)id + 1, sizeof *v->begin)) return us_tok_nomem(err);
        if (!us_grow(&v->len, &cap2, (size_t)id + 1, sizeof *v->len)) return us_tok_nomem(err);
        v->ids_cap = cap < cap2 ? cap : cap2;
        memset(v->len + v->n_ids, 0xff, (id + 1 - v->n_ids) * sizeof *v->len);
        v->n_ids = id + 1;
    }
    if (!us_grow(&v->pool, &v->pool_cap, v->pool_n + n + 1, 1)) return us_tok_nomem(err);
    if (n) memcpy(v->pool + v->pool_n, p, n);
    v->begin[id] = (uint32_t)v->pool_n;
    v->len[id] = (uint32_t)n;
    v->pool_n += n;
    v->n++;
    return US_OK;
}

static void index_one(us_vocab *v, uint32_t id, uint32_t h) {
    if (v->len[id] == US_TOK_NONE) return;
    const char *p = v->pool + v->begin[id];
    if (v->odd.n && us_map_get(&v->odd, (us_str){p, v->len[id]}) == id) return;
    uint32_t i = h & v->mask;
    for (; v->slots[i].id != US_TOK_NONE; i = (i + 1) & v->mask) {
        uint32_t o = v->slots[i].id;
        if (v->slots[i].hash == h && v->len[o] == v->len[id] && memcmp(v->pool + v->begin[o], p, v->len[id]) == 0) {
            v->same = true;
            break;
        }
    }
    v->slots[i] = (us_tv_slot){h, id};
}

us_status us_vocab_index(us_vocab *v, us_err *err) {
    size_t cap = 64;
    while (cap < v->n * 2) cap *= 2;
    v->slots = us_malloc_large(cap * sizeof *v->slots, false);
    if (!v->slots) return us_tok_nomem(err);
    memset(v->slots, 0xff, cap * sizeof *v->slots);
    v->mask = (uint32_t)cap - 1;
    enum { AHEAD = 16 };
    uint32_t hashes[AHEAD]; /* a ring: places are asked for some tokens before they are filled */
    for (uint32_t next = 0; next < v->n_ids + AHEAD; next++) {
        uint32_t *ring = &hashes[next % AHEAD], h = *ring;
        if (next < v->n_ids && v->len[next] != US_TOK_NONE) {
            *ring = us_tv_hash(v->pool + v->begin[next], v->len[next]);
            __builtin_prefetch(&v->slots[*ring & v->mask]);
        }
        if (next >= AHEAD) index_one(v, next - AHEAD, h);
    }
    return US_OK;
}

uint32_t us_vocab_find(const us_vocab *v, const char *p, size_t n) {
    uint32_t h = us_tv_hash(p, n);
    for (uint32_t i = h & v->mask;; i = (i + 1) & v->mask) {
        uint32_t id = v->slots[i].id;
        if (id == US_TOK_NONE) return US_TOK_NONE;
        if (v->slots[i].hash == h && v->len[id] == n && memcmp(v->pool + v->begin[id], p, n) == 0) return id;
    }
}

void us_vocab_free(us_vocab *v) {
    us_free(v->pool);
    us_free(v->begin);
    us_free(v->len);
    us_free(v->slots);
    us_map_free(&v->odd);
    *v = (us_vocab){0};
}

us_status us_merges_init(us_merges *m, size_t n, us_err *err) {
    size_t cap = 64;
    while (cap < n * 2) cap *= 2;
    if (cap > (size_t)1 << 28) return us_fail(err, US_E_LIMIT, "limit", "%zu merges are too many", n);
    m->slots = us_malloc_large(cap * sizeof *m->slots, false);
    if (!m->slots) return us_tok_nomem(err);
    memset(m->slots, 0xff, cap * sizeof *m->slots);
    m->mask = (uint32_t)cap - 1;
    m->seen_mask = (uint32_t)cap * 4 - 1; /* 8 to 16 bits a merge */
    m->seen = us_calloc(cap * 4 / 64, sizeof *m->seen);
    return m->seen ? US_OK : us_tok_nomem(err);
}

void us_merges_put(us_merges *m, us_merge x) {
    uint32_t i = us_pair_hash(x.left, x.right) & m->mask;
    while (m->slots[i].left != US_TOK_NONE && (m->slots[i].left != x.left || m->slots[i].right != x.right)) i = (i + 1) & m->mask;
    if (m->slots[i].left == US_TOK_NONE) m->n++;
    m->slots[i] = x;
    uint32_t h = us_pair_hash(x.left, x.right), bit = (h >> 3 ^ h << 11) & m->seen_mask;
    m->seen[bit / 64] |= (uint64_t)1 << bit % 64;
}
