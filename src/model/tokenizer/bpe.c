/*
 * Byte-pair encoding of one word: lowest rank first, leftmost first among equals, one merge at a time. Short words are merged by scanning
 * an array, long ones with a heap (n log n). What stands in front of it (cache, whole words) is in words.c.
 * Tests: tests/golden/test_fix_tokenizers.c, tests/unit/test_tokenizer.c.
 */
#include <string.h>

#include "model/tokenizer/internal.h"

/* ---- first symbols ---- */

static us_status push(us_tok_scratch *s, size_t *n, uint32_t id, size_t len, us_err *err) {
    if (*n >= s->syms_cap && !us_grow(&s->syms, &s->syms_cap, *n + 1, sizeof *s->syms)) return us_tok_nomem(err);
    s->syms[(*n)++] = (us_sym){id, (uint32_t)len, 0, 0};
    return US_OK;
}

typedef struct unk_state {
    bool pending;
    size_t len;
} unk_state;

static us_status unknown(const us_tokenizer *t, us_tok_scratch *s, size_t *n, unk_state *u, size_t len, us_err *err) {
    if (t->unk == US_TOK_NONE) return US_OK; /* dropped, as the reference does */
    if (u->pending && !t->fuse_unk) US_TRY(push(s, n, t->unk, u->len, err));
    u->len = u->pending && t->fuse_unk ? u->len + len : len;
    u->pending = true;
    return US_OK;
}

/* Symbols of a word: bytes, or characters with byte fallback or the unknown token. */
static us_status first_symbols(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t len, size_t *n, us_err *err) {
    unk_state u = {0};
    *n = 0;
    if (t->all_bytes) { /* every byte is a token */
        if (len > s->syms_cap && !us_grow(&s->syms, &s->syms_cap, len, sizeof *s->syms)) return us_tok_nomem(err);
        for (; *n < len; ++*n) s->syms[*n] = (us_sym){t->byte_id[(unsigned char)p[*n]], 1, 0, 0};
        return US_OK;
    }
    for (size_t i = 0; i < len;) {
        unsigned k = 1;
        uint32_t id;
        if (t->byte_level) {
            id = t->byte_id[(unsigned char)p[i]];
        } else {
            (void)us_uc_decode((const unsigned char *)p + i, &k);
            id = us_vocab_find(&t->vocab, p + i, k);
        }
        bool fallback = id == US_TOK_NONE && t->byte_fallback && !t->byte_level;
        for (unsigned b = 0; fallback && b < k; b++) fallback = t->byte_id[(unsigned char)p[i + b]] != US_TOK_NONE;
        if (id != US_TOK_NONE) {
            if (u.pending) US_TRY(push(s, n, t->unk, u.len, err));
            u.pending = false;
            US_TRY(push(s, n, id, k, err));
        } else if (fallback) {
            for (unsigned b = 0; b < k; b++) US_TRY(push(s, n, t->byte_id[(unsigned char)p[i + b]], 1, err));
        } else {
            US_TRY(unknown(t, s, n, &u, k, err));
        }
        i += k;
    }
    if (u.pending) US_TRY(push(s, n, t->unk, u.len, err));
    return US_OK;
}

/* ---- merging by scan ---- */

static inline us_made pair(const us_tokenizer *t, uint32_t l, uint32_t r) {
    const us_merge *m = us_merges_find(&t->merges, l, r);
    return m ? (us_made){m->rank, m->id} : (us_made){US_TOK_NONE, 0};
}

/* The least of n keys, four at a time side by side; keys behind n, up to a multiple of four, are UINT64_MAX. */
static inline uint64_t least(const uint64_t *key, size_t n) {
    uint64_t a = key[0], b = key[1], c = key[2], d = key[3];
    for (size_t i = 4; i < n; i += 4) {
        a = key[i] < a ? key[i] : a;
        b = key[i + 1] < b ? key[i + 1] : b;
        c = key[i + 2] < c ? key[i + 2] : c;
        d = key[i + 3] < d ? key[i + 3] : d;
    }
    a = b < a ? b : a;
    c = d < c ? d : c;
    return c < a ? c : a;
}

/* A word being merged. Symbols stay where they are; the ranks of pairs lie side by side with their places below, so that the least is found without a branch. */
typedef struct merging {
    uint64_t key[US_TOK_SHORT + 4];
    uint32_t made[US_TOK_SHORT], id[US_TOK_SHORT];
    unsigned char next[US_TOK_SHORT + 1], prev[US_TOK_SHORT + 1];
    size_t n, at;
} merging;

static inline void set_pair(merging *w, size_t i, us_made m) {
    w->key[i] = (uint64_t)m.rank << 8 | i;
    w->made[i] = m.id;
}

static void link_all(merging *w, size_t n) {
    w->n = n;
    for (size_t i = 0; i < n; i++) {
        w->next[i] = (unsigned char)(i + 1);
        w->prev[i] = (unsigned char)(i ? i - 1 : n);
    }
    for (size_t i = 0; i < 4; i++) w->key[n + i] = UINT64_MAX;
}

static void begin_bytes(const us_tokenizer *t, merging *w, const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        w->id[i] = t->byte_id[p[i]];
        set_pair(w, i, i + 1 < n ? t->byte_pairs[p[i] << 8 | p[i + 1]] : (us_made){US_TOK_NONE, 0});
    }
    link_all(w, n);
}

/* Join the pair of the least rank, and ask for what the two new pairs need; false when no pair is left. */
static inline bool join(const us_tokenizer *t, merging *w) {
    uint64_t best = least(w->key, w->n);
    if (best >> 8 >= US_TOK_NONE) return false;
    size_t a = w->at = best & 255, b = w->next[a], c = w->next[b], z = w->prev[a];
    w->id[a] = w->made[a];
    w->key[b] = UINT64_MAX;
    w->next[a] = (unsigned char)c;
    if (c < w->n) {
        w->prev[c] = (unsigned char)a;
        us_merges_prefetch(&t->merges, (us_merge){.left = w->id[a], .right = w->id[c]});
    }
    if (z < w->n) us_merges_prefetch(&t->merges, (us_merge){.left = w->id[z], .right = w->id[a]});
    return true;
}

static inline void rank_anew(const us_tokenizer *t, merging *w) {
    size_t a = w->at, c = w->next[a], z = w->prev[a];
    set_pair(w, a, c < w->n ? pair(t, w->id[a], w->id[c]) : (us_made){US_TOK_NONE, 0});
    if (z < w->n) set_pair(w, z, pair(t, w->id[z], w->id[a]));
}

/* bytes: the word, when its symbols are its bytes one by one; else NULL. */
static void merge_short(const us_tokenizer *t, const unsigned char *bytes, us_sym *y, size_t *count) {
    merging w;
    size_t n = *count, k = 0;
    if (bytes) {
        begin_bytes(t, &w, bytes, n);
    } else {
        for (size_t i = 0; i < n; i++) {
            w.id[i] = y[i].id;
            set_pair(&w, i, i + 1 < n ? pair(t, y[i].id, y[i + 1].id) : (us_made){US_TOK_NONE, 0});
        }
        link_all(&w, n);
    }
    while (join(t, &w)) rank_anew(t, &w);
    for (size_t i = 0; i < n; k++) {
        uint32_t len = 0;
        for (size_t j = i; j < w.next[i]; j++) len += y[j].len;
        y[k] = (us_sym){w.id[i], len, 0, 0};
        i = w.next[i];
    }
    *count = k;
}

void us_bpe_merge_words(const us_tokenizer *t, const us_bpe_bytes *words, size_t n, uint32_t (*ids)[US_CACHE_WORD], size_t *counts) {
    merging w[US_BPE_TOGETHER];
    bool on[US_BPE_TOGETHER];
    for (size_t i = 0; i < n; i++) begin_bytes(t, &w[i], words[i].p, words[i].n);
    for (bool any = true; any;) { /* a step of every word: while one waits for memory the others go on */
        any = false;
        for (size_t i = 0; i < n; i++) any |= on[i] = join(t, &w[i]);
        for (size_t i = 0; i < n; i++)
            if (on[i]) rank_anew(t, &w[i]);
    }
    for (size_t i = 0; i < n; i++) {
        counts[i] = 0;
        for (size_t j = 0; j < w[i].n; j = w[i].next[j]) ids[i][counts[i]++] = w[i].id[j];
    }
}

/* ---- merging with a heap: symbols are a linked list ---- */

static inline bool before(us_heap_item a, us_heap_item b) {
    return a.rank < b.rank || (a.rank == b.rank && a.pos < b.pos);
}

static us_status heap_push(us_tok_scratch *s, us_heap_item x, us_err *err) {
    if (s->heap_n >= s->heap_cap && !us_grow(&s->heap, &s->heap_cap, s->heap_n + 1, sizeof *s->heap)) return us_tok_nomem(err);
    size_t i = s->heap_n++;
    while (i && before(x, s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = x;
    return US_OK;
}

static us_heap_item heap_pop(us_tok_scratch *s) {
    us_heap_item top = s->heap[0], x = s->heap[--s->heap_n];
    size_t i = 0, n = s->heap_n;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) break;
        if (c + 1 < n && before(s->heap[c + 1], s->heap[c])) c++;
        if (!before(s->heap[c], x)) break;
        s->heap[i] = s->heap[c];
        i = c;
    }
    if (n) s->heap[i] = x;
    return top;
}

static us_status offer(const us_tokenizer *t, us_tok_scratch *s, int32_t at, us_err *err) {
    if (at < 0 || s->syms[at].next < 0) return US_OK;
    const us_merge *m = us_merges_find(&t->merges, s->syms[at].id, s->syms[s->syms[at].next].id);
    return m ? heap_push(s, (us_heap_item){m->rank, (uint32_t)at, m->id}, err) : US_OK;
}

static us_status merge_long(const us_tokenizer *t, us_tok_scratch *s, us_err *err) {
    us_sym *y = s->syms;
    s->heap_n = 0;
    for (int32_t i = 0; i >= 0; i = y[i].next) US_TRY(offer(t, s, i, err));
    while (s->heap_n) {
        us_heap_item x = heap_pop(s);
        us_sym *a = &y[x.pos];
        if (a->len == 0 || a->next < 0) continue;
        us_sym *b = &y[a->next];
        const us_merge *m = us_merges_find(&t->merges, a->id, b->id);
        if (!m || m->id != x.id) continue; /* one of the two has changed since */
        a->id = x.id;
        a->len += b->len;
        b->len = 0;
        a->next = b->next;
        if (a->next >= 0) y[a->next].prev = (int32_t)x.pos;
        US_TRY(offer(t, s, a->prev, err));
        US_TRY(offer(t, s, (int32_t)x.pos, err));
    }
    return US_OK;
}

us_status us_bpe_merge(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t len, int32_t *first, us_err *err) {
    size_t n = 0;
    *first = -1;
    if (t->ignore_merges) {
        uint32_t id = us_vocab_find(&t->vocab, p, len);
        if (id != US_TOK_NONE) {
            US_TRY(push(s, &n, id, len, err));
            s->syms[0].next = -1;
            *first = 0;
            return US_OK;
        }
    }
    US_TRY(first_symbols(t, s, p, len, &n, err));
    if (n == 0) return US_OK;
    if (n <= US_TOK_SHORT) merge_short(t, t->byte_pairs && n == len ? (const unsigned char *)p : NULL, s->syms, &n);
    for (size_t i = 0; i < n; i++) {
        s->syms[i].prev = (int32_t)i - 1;
        s->syms[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    if (n > US_TOK_SHORT) US_TRY(merge_long(t, s, err));
    *first = 0;
    return US_OK;
}
