/*
 * Which short tokens a word of their bytes becomes as a whole, found once while loading, so that such words are looked up instead of merged.
 *
 * With ignore_merges: all. Else those that merging their bytes gives. That is so when it holds for both halves of the one rule that makes the token, and no merge across their border
 * comes before the merges that finish the halves: walk the halves' inner edges back, the later rule first, and look for such a merge. Rules are in order of rank, so
 * what is asked is known already. Tests: tests/unit/test_tokenizer.c (every token of every vocabulary against merging).
 */
#include <string.h>

#include "model/tokenizer/load.h"

us_status us_whole_init(us_whole *w, const us_tokenizer *t, us_err *err) {
    size_t n = t->vocab.n_ids + 1;
    *w = (us_whole){.n = n};
    if (!t->byte_level || t->ignore_merges) return US_OK;
    w->made = us_malloc_large(n * sizeof *w->made, false);
    w->whole = us_calloc(n, 1);
    if (!w->made || !w->whole) return us_tok_nomem(err);
    memset(w->made, 0xff, n * sizeof *w->made);
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] != US_TOK_NONE) w->whole[t->byte_id[b]] = 1;
    return US_OK;
}

void us_whole_free(us_whole *w) {
    us_free(w->made);
    us_free(w->whole);
}

static bool crossed(const us_whole *w, const us_tokenizer *t, uint32_t l, uint32_t r) {
    for (;;) {
        uint32_t a = w->made[l].rank, b = w->made[r].rank, limit;
        bool al = a != US_TOK_NONE, ar = b != US_TOK_NONE;
        if (!al && !ar) return false;
        if (al && (!ar || a > b)) { /* the left half was finished last: a merge across the border must come before that */
            limit = a;
            l = w->made[l].right;
        } else { /* of equal ranks the one further left comes first, which is the one across the border */
            limit = b + 1;
            r = w->made[r].left;
        }
        const us_merge *m = us_merges_find(&t->merges, l, r);
        if (m && m->rank < limit) return true;
    }
}

void us_whole_merge(us_whole *w, const us_tokenizer *t, us_merge m, bool again) {
    if (!w->made || w->off) return;
    if (again || w->made[m.id].rank != US_TOK_NONE || w->whole[m.id]) { /* the pair had another rank before, or the token another rule: whoever asked then asked too early */
        w->off = true;
        return;
    }
    w->made[m.id] = (us_rule){m.left, m.right, m.rank};
    if (t->vocab.len[m.id] <= US_CACHE_WORD) w->whole[m.id] = w->whole[m.left] && w->whole[m.right] && !crossed(w, t, m.left, m.right);
}

enum { AHEAD = 16 };

us_status us_shorts_build(us_tokenizer *t, us_err *err) {
    size_t cap = 64;
    if (!t->byte_level) return US_OK;
    while (cap < t->vocab.n + t->vocab.n / 2) cap *= 2;
    t->shorts = us_malloc_large(cap * sizeof *t->shorts, true);
    if (!t->shorts) return us_tok_nomem(err);
    t->shorts_mask = (uint32_t)cap - 1;
    us_key keys[AHEAD]; /* a ring: places are asked for some tokens before they are filled */
    for (uint32_t id = 0; id < t->vocab.n_ids + AHEAD; id++) {
        us_key *k = &keys[id % AHEAD];
        if (id >= AHEAD && k->hi) {
            uint32_t i = (uint32_t)(us_key_hash(*k) >> 32) & t->shorts_mask;
            while (t->shorts[i].key.hi) i = (i + 1) & t->shorts_mask;
            t->shorts[i] = (us_short_slot){*k, id - AHEAD};
        }
        us_str v = us_vocab_str(&t->vocab, id);
        char bytes[16] = {0};
        k->hi = 0;
        if (!v.p || !v.n || v.n > US_CACHE_WORD) continue;
        if (t->vocab.odd.n && us_vocab_find(&t->vocab, v.p, v.n) != id) continue; /* spelled outside the byte alphabet */
        memcpy(bytes, v.p, v.n);
        *k = us_key_of(bytes, v.n);
        us_short_prefetch(t, *k);
    }
    return US_OK;
}

/* From here on the table answers "does a word of these bytes become this token?". */
void us_whole_finish(us_whole *w, us_tokenizer *t) {
    for (uint32_t i = 0; t->shorts && !t->ignore_merges && i <= t->shorts_mask; i++)
        if (t->shorts[i].key.hi && (w->off || !w->whole[t->shorts[i].id])) t->shorts[i].id = US_TOK_NONE;
}
