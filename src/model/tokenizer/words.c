/*
 * The hot path of encoding: words of the known patterns found 64 bytes at a time, and their ids from a cache, from the vocabulary, or by merging.
 *
 * A window holds a bit for each of 64 bytes and class (letter, digit, white space ...); the beginnings of all tokens in it are a few operations on such words. It only speaks
 * for ASCII: a token that touches another byte, or that may reach beyond the window, is left to the scanner of scan.c, which is what defines the pattern.
 * Words go in batches, so that the cache lines of a batch are asked for before they are needed. Words that are tokens as a whole need no merging (whole.c).
 * Tests: tests/golden/test_fix_tokenizers.c, tests/unit/test_tokenizer.c.
 */
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "model/tokenizer/internal.h"

/* ---- ids of a word ---- */

typedef struct word {
    const char *p;
    size_t n;
    us_key key;
    us_cache_line *set; /* two lines of one cache line of the processor */
} word;

static inline void make_key(const us_tok_scratch *s, word *w) {
    us_key k = us_key_of(w->p, w->n);
    w->key = k;
    w->set = s->cache + (us_key_hash(k) >> (65 - US_CACHE_BITS)) * 2;
    __builtin_prefetch(w->set);
}

static us_status merged(const us_tokenizer *t, us_tok_scratch *s, const word *w, us_tok_ids *out, us_err *err) {
    int32_t first;
    US_TRY(t->unigram ? us_unigram_word(t, s, w->p, w->n, &first, err) : us_bpe_merge(t, s, w->p, w->n, &first, err));
    for (int32_t i = first; i >= 0; i = s->syms[i].next) {
        US_TRY(us_tok_room(out, 1, err));
        out->ids[out->n++] = s->syms[i].id;
    }
    return US_OK;
}

/* Not in the cache: as a whole from the vocabulary, else by merging. */
static us_status found(const us_tokenizer *t, us_tok_scratch *s, const word *w, us_tok_ids *out, us_err *err) {
    uint32_t id = t->shorts ? us_short_find(t, w->key) : US_TOK_NONE;
    if (id == US_TOK_NONE) return merged(t, s, w, out, err);
    US_TRY(us_tok_room(out, 1, err));
    out->ids[out->n++] = id;
    return US_OK;
}

static void remember(us_tok_scratch *s, const word *w, const uint32_t *ids, size_t n) {
    us_cache_line *line = w->set;
    if (n > 3 && s->pool_n + n > s->pool_cap) { /* ids of long answers are kept in a pool that starts over when it is full */
        memset(s->cache, 0, sizeof *s->cache << US_CACHE_BITS);
        s->pool_n = 0;
        if (n > s->pool_cap) return;
    }
    line[1] = line[0];
    line->key = w->key;
    line->n = (uint32_t)n;
    if (n <= 3) {
        memcpy(line->ids, ids, n * sizeof *ids);
        return;
    }
    memcpy(s->pool + s->pool_n, ids, n * sizeof *ids);
    line->ids[0] = (uint32_t)s->pool_n;
    s->pool_n += n;
}

/* The line of a set that holds the key, or NULL. Which of the two it is cannot be foreseen: no branch. */
static inline const us_cache_line *known(const us_cache_line *set, us_key k) {
    uint64_t first = (set[0].key.lo ^ k.lo) | (set[0].key.hi ^ k.hi), second = (set[1].key.lo ^ k.lo) | (set[1].key.hi ^ k.hi);
    return first == 0 || second == 0 ? set + (first != 0) : NULL;
}

static us_status word_ids(const us_tokenizer *t, us_tok_scratch *s, const word *w, us_tok_ids *out, us_err *err) {
    if (w->n > US_CACHE_WORD) return merged(t, s, w, out, err);
    const us_cache_line *line = known(w->set, w->key);
    if (line) {
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
    US_TRY(found(t, s, w, out, err));
    if (out->n > from) remember(s, w, out->ids + from, out->n - from); /* a word may have no ids at all */
    return US_OK;
}

us_status us_tok_word(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_tok_ids *out, us_err *err) {
    word w = {.p = p, .n = n};
    if (n <= US_CACHE_WORD) make_key(s, &w);
    return word_ids(t, s, &w, out, err);
}

/* ---- windows ---- */

/* A bit for each of the 64 bytes from a token's beginning on. */
typedef struct window {
    uint64_t letter, digit, space, newline, blank, high; /* space: white space; blank: the character ' ' */
    uint64_t apostrophe;
} window;

static void classify(window *w, const unsigned char *q) {
    *w = (window){0};
#if defined(__SSE2__)
    for (int k = 0; k < 4; k++) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(q + 16 * k)), lower = _mm_or_si128(v, _mm_set1_epi8(0x20));
        /* x is one of the m values up to `last` when x + (127 - last) > 127 - m as signed bytes */
#define UP_TO(x, last, m) _mm_cmpgt_epi8(_mm_add_epi8(x, _mm_set1_epi8((char)(127 - (last)))), _mm_set1_epi8((char)(127 - (m))))
#define IS(c) _mm_cmpeq_epi8(v, _mm_set1_epi8(c))
#define BITS(x) ((uint64_t)(uint32_t)_mm_movemask_epi8(x) << (16 * k))
        __m128i blank = IS(' ');
        w->letter |= BITS(UP_TO(lower, 'z', 26));
        w->digit |= BITS(UP_TO(v, '9', 10));
        w->blank |= BITS(blank);
        w->space |= BITS(_mm_or_si128(blank, UP_TO(v, '\r', 5)));
        w->newline |= BITS(_mm_or_si128(IS('\n'), IS('\r')));
        w->apostrophe |= BITS(IS('\''));
        w->high |= BITS(v);
#undef UP_TO
#undef IS
#undef BITS
    }
#else
    for (int k = 0; k < 64; k++) {
        unsigned c = q[k];
        w->letter |= (uint64_t)((c | 32) - 'a' < 26) << k;
        w->digit |= (uint64_t)(c - '0' < 10) << k;
        w->blank |= (uint64_t)(c == ' ') << k;
        w->space |= (uint64_t)(c == ' ' || c - 9 < 5) << k;
        w->newline |= (uint64_t)(c == '\n' || c == '\r') << k;
        w->apostrophe |= (uint64_t)(c == '\'') << k;
        w->high |= (uint64_t)(c >> 7) << k;
    }
#endif
}

/* Bytes behind the end (of which 16 may be read) count as white space that goes on: then nothing special is left to say about the end but that a word ends there. */
static void look(window *w, const unsigned char *p, size_t left) {
    if (left + 16 >= 64) {
        classify(w, p);
    } else {
        unsigned char last[64];
        memset(last, ' ', sizeof last);
        memcpy(last, p, left);
        classify(w, last);
    }
    if (left < 64) {
        uint64_t behind = ~0ull << left;
        w->letter &= ~behind, w->digit &= ~behind, w->newline &= ~behind, w->apostrophe &= ~behind, w->high &= ~behind;
        w->space |= behind, w->blank |= behind;
    }
}

static inline uint64_t below(unsigned bit) { /* bits 0 .. bit-1 */
    return bit < 64 ? (1ull << bit) - 1 : ~0ull;
}

/* Contractions that begin a token move the next beginning; what cannot be seen to its end lowers the limit. */
static uint64_t contractions(const unsigned char *p, uint64_t starts, uint64_t apostrophes, bool fold, unsigned *limit) {
    for (uint64_t from = ~0ull; (starts | 1) & apostrophes & from;) {
        unsigned i = (unsigned)__builtin_ctzll((starts | 1) & apostrophes & from);
        if (i + 3 > *limit) {
            if (i < *limit) *limit = i;
            return starts;
        }
        from = i < 63 ? ~0ull << (i + 1) : 0;
        unsigned a = p[i + 1], b = p[i + 2], len = 0;
        if (fold) a |= a - 'A' < 26u ? 32 : 0, b |= b - 'A' < 26u ? 32 : 0;
        if (a == 's' || a == 't' || a == 'm' || a == 'd') len = 2;
        else if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l')) len = 3;
        if (len) starts = (starts & ~(below(i + len) & ~below(i + 1))) | 1ull << (i + len);
    }
    return starts;
}

/*
 * Where tokens begin, bit 0 aside (which is known to be one). Only bits up to *limit are sure.
 * 's|'t|'re|'ve|'m|'ll|'d| ?L+| ?N+| ?O+|\s+(?!\S)|\s+   with O = [^\s L N]
 */
static uint64_t starts_gpt2(const unsigned char *p, const window *w, unsigned *limit) {
    uint64_t L = w->letter, N = w->digit, S = w->space, O = ~(L | N | S | w->high);
    uint64_t runs = (L & ~(L << 1)) | (N & ~(N << 1)) | (O & ~(O << 1)); /* a run begins, but at the blank before it if there is one */
    uint64_t starts = (runs & ~(w->blank << 1)) | (S & ~(S << 1)) | (S & S << 1 & ~(S >> 1)); /* the last of a run of white space stands alone or joins */
    return contractions(p, starts, w->apostrophe, false, limit);
}

/*
 * (?i:'s|...)|[^\r\n L N]?L+|N (or N{1,3})| ?O+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * The last white space before a letter is always the beginning of a token, so it joins unless it breaks the line; another character joins when it stands alone.
 */
static uint64_t starts_qwen(const unsigned char *p, const window *w, bool three, unsigned *limit) {
    uint64_t L = w->letter, N = w->digit, S = w->space, B = w->newline, O = ~(L | N | S | w->high), U = S & ~B;
    uint64_t other = O & ~(O << 1) & ~(w->blank << 1); /* begins a token */
    uint64_t after = B & O << 1, swallowed = B & ~(B + after); /* line breaks right behind O belong to it */
    uint64_t starts = other | (L & ~(L << 1) & ~(U << 1) & ~(other << 1));
    starts |= (S & ~(S << 1) & ~swallowed) | (S & ~swallowed & swallowed << 1) | (U & S << 1 & ~(S >> 1));
    uint64_t numbers = N;
    if (three) {
        numbers = 0;
        uint64_t in = N & N << 1 & N << 2 & N << 3;
        for (uint64_t at = N & ~(N << 1); at; at = at << 3 & in) numbers |= at;
    }
    starts |= numbers;
    for (uint64_t seeds = U & (B & ~swallowed) << 1 & ~starts; seeds; seeds &= seeds - 1) { /* behind a line break: a beginning unless another one follows in the same run */
        unsigned i = (unsigned)__builtin_ctzll(seeds);
        uint64_t rest = ~U & ~below(i);
        unsigned end = rest ? (unsigned)__builtin_ctzll(rest) : 64;
        if (end == 64 || w->high >> end & 1) {
            if (i - 1 < *limit) *limit = i - 1;
            break;
        }
        if (!(B >> end & 1)) starts |= 1ull << i;
    }
    return contractions(p, starts, w->apostrophe, true, limit);
}

/* ---- a whole text ---- */

enum { BATCH = 192, FULL = BATCH - 64 }; /* a window adds at most 63 words, the scanner one */

typedef struct batch {
    const us_tokenizer *t;
    us_tok_scratch *s;
    us_tok_ids *out;
    us_err *err;
    size_t n;
    word words[BATCH];
} batch;

/* Some new words, into the cache. */
static void merge_together(const batch *b, const word *const *words, size_t n) {
    us_bpe_bytes bytes[US_BPE_TOGETHER];
    uint32_t ids[US_BPE_TOGETHER][US_CACHE_WORD];
    size_t counts[US_BPE_TOGETHER];
    for (size_t i = 0; i < n; i++) bytes[i] = (us_bpe_bytes){(const unsigned char *)words[i]->p, words[i]->n};
    us_bpe_merge_words(b->t, bytes, n, ids, counts);
    for (size_t i = 0; i < n; i++) remember(b->s, words[i], ids[i], counts[i]);
}

/*
 * First see which words are new and ask for their places in the table of whole words; then look them up, and merge those that are none, some at a time: all that is needed
 * lies far away in memory, and comes together. What does not stay in the cache is found one by one after that.
 */
static void learn(batch *b) {
    const us_tokenizer *t = b->t;
    const word *fresh[BATCH], *apart[US_BPE_TOGETHER];
    size_t n = 0, k = 0;
    for (size_t j = 0; j < b->n; j++) {
        const word *w = &b->words[j];
        if (w->n > US_CACHE_WORD || known(w->set, w->key)) continue;
        us_short_prefetch(t, w->key);
        fresh[n++] = w;
    }
    for (size_t j = 0; j < n; j++) {
        const word *w = fresh[j];
        if (known(w->set, w->key)) continue; /* twice in the batch */
        uint32_t id = us_short_find(t, w->key);
        if (id != US_TOK_NONE) remember(b->s, w, &id, 1);
        else apart[k++] = w;
        if (k == US_BPE_TOGETHER) {
            merge_together(b, apart, k);
            k = 0;
        }
    }
    if (k) merge_together(b, apart, k);
}

static us_status flush(batch *b) {
    if (b->t->shorts && b->t->byte_pairs && b->t->all_bytes) learn(b);
    for (size_t j = 0; j < b->n; j++) US_TRY(word_ids(b->t, b->s, &b->words[j], b->out, b->err));
    b->n = 0;
    return US_OK;
}

static inline void add_word(batch *b, const char *p, size_t n) {
    word *w = &b->words[b->n++];
    w->p = p;
    w->n = n;
    if (n <= US_CACHE_WORD) make_key(b->s, w);
}

/* Words that a window shows, from byte i on; returns where the next one begins, i when it shows none. */
static size_t window_words(batch *b, const char *p, size_t i, size_t n) {
    window w;
    const unsigned char *q = (const unsigned char *)p + i;
    look(&w, q, n - i);
    unsigned limit = w.high ? (unsigned)__builtin_ctzll(w.high) : 64;
    limit = limit > 1 ? limit - 2 : 0; /* a beginning is sure when the byte behind it is seen, and plain */
    uint64_t starts = b->t->windows == US_WINDOWS_GPT2 ? starts_gpt2(q, &w, &limit) : starts_qwen(q, &w, b->t->windows == US_WINDOWS_LLAMA3, &limit);
    if (n - i <= limit) starts = (starts & below((unsigned)(n - i))) | 1ull << (n - i);
    starts &= below(limit + 1) & ~1ull;
    size_t from = i;
    for (; starts; starts &= starts - 1) {
        size_t to = i + (size_t)__builtin_ctzll(starts);
        add_word(b, p + from, to - from);
        from = to;
    }
    return from;
}

us_status us_tok_fast_ids(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_tok_ids *out, us_err *err) {
    batch b = {.t = t, .s = s, .out = out, .err = err};
    for (size_t i = 0; i < n;) {
        size_t e = t->windows != US_WINDOWS_NONE ? window_words(&b, p, i, n) : i;
        if (e == i) {
            bool match;
            e = t->fast((const unsigned char *)p, i, n, &match);
            add_word(&b, p + i, e - i);
        }
        i = e;
        if (b.n >= FULL) US_TRY(flush(&b));
    }
    return flush(&b);
}
