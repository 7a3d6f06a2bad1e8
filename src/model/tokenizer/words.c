/*
 * The hot path of encoding: words of the known patterns found 64 bytes at a time, and their ids from a cache, from the vocabulary, or by merging.
 *
 * A window holds a bit for each of 64 bytes and class (letter, digit, white space ...); the end of a run is then one count of bits instead of a loop. It only speaks for ASCII: a
 * token that touches another byte, or that may reach beyond the window, is left to the scanner of scan.c, which is what defines the pattern.
 * Words go in batches, so that the cache lines of a batch are asked for before they are needed.
 *
 * A word that is a token as a whole needs no merging where merging its bytes would give that token. That is so when it holds for both halves of the rule that makes it, and no
 * merge across their border comes before the merges that finish the halves: walk the halves' inner edges back, the later rule first, and look for such a merge (`whole`).
 * Tests: tests/golden/test_fix_tokenizers.c, tests/unit/test_tokenizer.c.
 */
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "model/tokenizer/internal.h"

/* ---- ids of a word ---- */

enum { UNKNOWN, WHOLE, NOT_WHOLE };

static bool whole_by_rule(const us_tokenizer *t, uint32_t id) {
    const us_split *s = &t->split[id];
    if (s->rank == US_TOK_NONE) return us_vocab_str(&t->vocab, id).n == 1; /* a byte */
    if (s->rank == US_TOK_MANY || !us_tok_whole(t, s->left) || !us_tok_whole(t, s->right)) return false;
    uint32_t l = s->left, r = s->right;
    for (;;) {
        uint32_t a = t->split[l].rank, b = t->split[r].rank, limit;
        bool al = a != US_TOK_NONE, ar = b != US_TOK_NONE;
        if (!al && !ar) return true;
        if (al && (!ar || a > b)) { /* the left half was finished last: a merge across the border must come before that */
            limit = a;
            l = t->split[l].right;
        } else { /* of equal ranks the one further left comes first, which is the one across the border */
            limit = b + 1;
            r = t->split[r].left;
        }
        const us_merge *m = us_merges_find(&t->merges, l, r);
        if (m && m->rank < limit) return false;
    }
}

bool us_tok_whole(const us_tokenizer *t, uint32_t id) {
    unsigned char known = atomic_load_explicit(&t->whole[id], memory_order_relaxed);
    if (known == UNKNOWN) { /* found out when first asked; every thread comes to the same answer */
        known = whole_by_rule(t, id) ? WHOLE : NOT_WHOLE;
        atomic_store_explicit(&t->whole[id], known, memory_order_relaxed);
    }
    return known == WHOLE;
}

static us_status word_slow(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_tok_ids *out, us_err *err) {
    int32_t first;
    if (t->whole && n <= US_CACHE_WORD) { /* longer ones are rare, and the walk is as deep as the word is long */
        uint32_t id = us_vocab_find(&t->vocab, p, n);
        if (id != US_TOK_NONE && us_tok_whole(t, id)) {
            US_TRY(us_tok_room(out, 1, err));
            out->ids[out->n++] = id;
            return US_OK;
        }
    }
    US_TRY(t->unigram ? us_unigram_word(t, s, p, n, &first, err) : us_bpe_merge(t, s, p, n, &first, err));
    for (int32_t i = first; i >= 0; i = s->syms[i].next) {
        US_TRY(us_tok_room(out, 1, err));
        out->ids[out->n++] = s->syms[i].id;
    }
    return US_OK;
}

typedef struct word {
    const char *p;
    size_t n;
    uint64_t lo, hi;
    us_cache_line *set; /* two lines of one cache line of the processor */
} word;

/* The key of a word of up to US_CACHE_WORD bytes; 16 bytes are readable. */
static inline void make_key(const us_tok_scratch *s, word *w) {
    uint64_t a, b;
    memcpy(&a, w->p, 8);
    memcpy(&b, w->p + 8, 8);
    unsigned cut = w->n < 8 ? (unsigned)(8 - w->n) * 8 : 0, cut2 = w->n > 8 ? (unsigned)(16 - w->n) * 8 : 0;
    w->lo = a << cut >> cut; /* little-endian: the first bytes are the low ones */
    w->hi = (w->n > 8 ? b << cut2 >> cut2 : 0) | (uint64_t)w->n << 56;
    uint64_t h = (w->lo ^ (w->hi * 0x9E3779B97F4A7C15u)) * 0xff51afd7ed558ccdu;
    w->set = s->cache + (h >> (65 - US_CACHE_BITS)) * 2;
    __builtin_prefetch(w->set);
}

static us_status remember(us_tok_scratch *s, const word *w, const uint32_t *ids, size_t n, us_err *err) {
    (void)err;
    us_cache_line *line = w->set;
    if (n > 3 && s->pool_n + n > s->pool_cap) { /* ids of long answers are kept in a pool that starts over when it is full */
        memset(s->cache, 0, sizeof *s->cache << US_CACHE_BITS);
        s->pool_n = 0;
        if (n > s->pool_cap) return US_OK;
    }
    line[1] = line[0];
    line->lo = w->lo;
    line->hi = w->hi;
    line->n = (uint32_t)n;
    if (n <= 3) {
        memcpy(line->ids, ids, n * sizeof *ids);
        return US_OK;
    }
    memcpy(s->pool + s->pool_n, ids, n * sizeof *ids);
    line->ids[0] = (uint32_t)s->pool_n;
    s->pool_n += n;
    return US_OK;
}

static us_status word_ids(const us_tokenizer *t, us_tok_scratch *s, const word *w, us_tok_ids *out, us_err *err) {
    if (w->n > US_CACHE_WORD) return word_slow(t, s, w->p, w->n, out, err);
    const us_cache_line *line = w->set;
    if (line->lo != w->lo || line->hi != w->hi) line++;
    if (line->lo == w->lo && line->hi == w->hi) {
        if (line->n <= 3) {
            US_TRY(us_tok_room(out, 3, err));
            memcpy(out->ids + out->n, line->ids, 3 * sizeof *out->ids);
        } else {
            US_TRY(us_tok_room(out, line->n, err));
            memcpy(out->ids + out->n, s->pool + line->ids[0], line->n * sizeof *out->ids);
        }
        out->n += line->n;
        return US_OK;
    }
    size_t from = out->n;
    US_TRY(word_slow(t, s, w->p, w->n, out, err));
    return remember(s, w, out->ids + from, out->n - from, err);
}

us_status us_tok_word(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_tok_ids *out, us_err *err) {
    word w = {.p = p, .n = n};
    if (n <= US_CACHE_WORD) make_key(s, &w);
    return word_ids(t, s, &w, out, err);
}

/* ---- windows ---- */

typedef struct window {
    const unsigned char *p;
    size_t n, base; /* masks speak for bytes base .. base + 63 */
    uint64_t letter, digit, space, newline, high;
} window;

enum { AHEAD = 32 }; /* bits that a token may rely on */

static void classify(window *w, const unsigned char *q) {
    w->letter = w->digit = w->space = w->newline = w->high = 0;
#if defined(__SSE2__)
    for (int k = 0; k < 4; k++) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(q + 16 * k)), lower = _mm_or_si128(v, _mm_set1_epi8(0x20));
        /* x is one of the m values up to `last` when x + (127 - last) > 127 - m as signed bytes */
#define UP_TO(x, last, m) _mm_cmpgt_epi8(_mm_add_epi8(x, _mm_set1_epi8((char)(127 - (last)))), _mm_set1_epi8((char)(127 - (m))))
#define BITS(x) ((uint64_t)(uint32_t)_mm_movemask_epi8(x) << (16 * k))
        w->letter |= BITS(UP_TO(lower, 'z', 26));
        w->digit |= BITS(UP_TO(v, '9', 10));
        w->space |= BITS(_mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8(' ')), UP_TO(v, '\r', 5)));
        w->newline |= BITS(_mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\r'))));
        w->high |= BITS(v);
#undef UP_TO
#undef BITS
    }
#else
    for (int k = 0; k < 64; k++) {
        unsigned c = q[k];
        w->letter |= (uint64_t)((c | 32) - 'a' < 26) << k;
        w->digit |= (uint64_t)(c - '0' < 10) << k;
        w->space |= (uint64_t)(c == ' ' || c - 9 < 5) << k;
        w->newline |= (uint64_t)(c == '\n' || c == '\r') << k;
        w->high |= (uint64_t)(c >> 7) << k;
    }
#endif
}

/* The masks from byte i on, at least AHEAD of them. */
static inline void look(window *w, size_t i, window *at) {
    if (i < w->base || i - w->base > 64 - AHEAD || w->base == SIZE_MAX) {
        w->base = i;
        if (w->n + 16 - i >= 64) {
            classify(w, w->p + i);
        } else { /* behind the end stand zeros, of which not all may be read */
            unsigned char last[64] = {0};
            memcpy(last, w->p + i, w->n - i);
            classify(w, last);
        }
    }
    unsigned off = (unsigned)(i - w->base);
    *at = (window){.letter = w->letter >> off, .digit = w->digit >> off, .space = w->space >> off, .newline = w->newline >> off, .high = w->high >> off};
}

static inline size_t ones(uint64_t x) {
    return (size_t)__builtin_ctzll(~x); /* x has zeros above: shifted */
}

/* A run of `len` bytes is certain: it ends inside what was looked at, and not at a byte that could belong to it. */
static inline size_t certain(const window *at, size_t len) {
    return len < AHEAD && !(at->high >> len & 1) ? len : 0;
}

static inline uint64_t others(const window *at) {
    return ~(at->letter | at->digit | at->space | at->high);
}

/* White space, with or without the rule for line breaks; left = bytes to the end of the text. */
static inline size_t white(const window *at, size_t left, bool lines) {
    size_t run = certain(at, at->space == UINT64_MAX ? 64 : ones(at->space));
    if (!run) return 0;
    uint64_t breaks = at->newline & ((1ull << run) - 1);
    if (lines && breaks) return 64 - (size_t)__builtin_clzll(breaks);
    return run == left || run == 1 ? run : run - 1;
}

static inline size_t other_run(const window *at, size_t skip, size_t left) {
    uint64_t o = others(at) >> skip;
    size_t len = skip + (o == UINT64_MAX ? 64 : ones(o));
    return len > left ? left : certain(at, len); /* the zeros behind the text are of this class */
}

/* Length of the token at i, or 0: ask the scanner. */
static inline size_t token_gpt2(window *w, size_t i) {
    window at;
    look(w, i, &at);
    unsigned char c = w->p[i];
    if ((at.high & 3) || c == '\'') return 0;
    size_t skip = c == ' ' && i + 1 < w->n && !(at.space & 2);
    if (at.letter >> skip & 1) return certain(&at, skip + ones(at.letter >> skip));
    if (at.digit >> skip & 1) return certain(&at, skip + ones(at.digit >> skip));
    if (!(at.space >> skip & 1)) return other_run(&at, skip, w->n - i);
    return white(&at, w->n - i, false);
}

static inline size_t token_qwen(window *w, size_t i, bool three) {
    window at;
    look(w, i, &at);
    unsigned char c = w->p[i];
    if ((at.high & 3) || c == '\'') return 0;
    if (at.letter & 1) return certain(&at, ones(at.letter));
    if (at.digit & 1) {
        size_t run = ones(at.digit);
        return !three ? 1 : run >= 3 ? 3 : certain(&at, run);
    }
    if (!(at.newline & 1) && (at.letter & 2)) return certain(&at, 1 + ones(at.letter >> 1));
    size_t skip = c == ' ' && i + 1 < w->n;
    if (!((at.space | at.letter | at.digit) >> skip & 1)) {
        size_t len = other_run(&at, skip, w->n - i);
        while (len && i + len < w->n && (w->p[i + len] == '\n' || w->p[i + len] == '\r')) len++;
        return len;
    }
    return white(&at, w->n - i, true);
}

/* ---- a whole text ---- */

enum { BATCH = 32 };

us_status us_tok_fast_ids(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_tok_ids *out, us_err *err) {
    window w = {.p = (const unsigned char *)p, .n = n, .base = SIZE_MAX};
    word words[BATCH];
    bool match;
    for (size_t i = 0; i < n;) {
        size_t k = 0;
        for (; k < BATCH && i < n; k++) {
            size_t len = t->windows == US_WINDOWS_GPT2 ? token_gpt2(&w, i) : t->windows == US_WINDOWS_NONE ? 0 : token_qwen(&w, i, t->windows == US_WINDOWS_LLAMA3);
            if (!len) len = t->fast(w.p, i, n, &match) - i;
            words[k].p = p + i;
            words[k].n = len;
            if (len <= US_CACHE_WORD) make_key(s, &words[k]);
            i += len;
        }
        for (size_t j = 0; j < k; j++) US_TRY(word_ids(t, s, &words[j], out, err));
    }
    return US_OK;
}
