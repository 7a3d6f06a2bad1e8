/**
 * Inside of the tokenizer. Stages: added tokens -> normalizer -> pre-tokenizers -> model (BPE or unigram) -> post-processor; see encode.c.
 *
 * Byte-level models keep their vocabulary as raw bytes (the byte alphabet undone), so text needs no mapping on the way in. Pre-tokenizers that
 * run behind ByteLevel see the alphabet; split.c maps for them.
 */
#ifndef US_MODEL_TOKENIZER_INTERNAL_H
#define US_MODEL_TOKENIZER_INTERNAL_H

#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "model/tokenizer/unicode.h"
#include "understudy/us_tokenizer.h"

#define US_TOK_NONE UINT32_MAX

enum {
    US_TOK_FILE_MAX = 256 << 20,
    US_TOK_TEXT_MAX = 1 << 30,
    US_TOK_ID_MAX = 1 << 24,
    US_TOK_STEPS_MAX = 16,
    US_TOK_SHORT = 48,  /* words up to this many symbols are merged by scanning */
};

/* ---- vocabulary: strings in one pool, an open-addressing table on top ---- */

typedef struct us_tv_slot {
    uint32_t hash, id; /* id US_TOK_NONE: empty */
} us_tv_slot;
typedef struct us_vocab {
    char *pool;
    size_t pool_n, pool_cap;
    uint32_t *begin, *len; /* by id; len US_TOK_NONE: no such id */
    size_t n_ids, ids_cap;
    us_tv_slot *slots;
    uint32_t mask;
    size_t n;
    bool same;  /* two ids have one spelling */
    us_map odd; /* byte-level: tokens spelled outside the byte alphabet; text never gives them */
} us_vocab;

uint32_t us_tv_hash(const char *p, size_t n);
us_status us_vocab_add(us_vocab *v, const char *p, size_t n, uint32_t id, us_err *err) US_WARN_UNUSED;
/** Build the table once all are added. When two ids have one spelling, the larger id counts. */
us_status us_vocab_index(us_vocab *v, us_err *err) US_WARN_UNUSED;
uint32_t us_vocab_find(const us_vocab *v, const char *p, size_t n);
static inline us_str us_vocab_str(const us_vocab *v, uint32_t id) {
    return id < v->n_ids && v->len[id] != US_TOK_NONE ? (us_str){v->pool + v->begin[id], v->len[id]} : (us_str){NULL, 0};
}
void us_vocab_free(us_vocab *v);

/* ---- short words as two numbers ---- */

enum { US_CACHE_WORD = 15 };
typedef struct us_key {
    uint64_t lo, hi; /* the bytes, little-endian; the length in the top byte of hi */
} us_key;
/** Key of up to US_CACHE_WORD bytes; 16 bytes are readable. */
static inline us_key us_key_of(const char *p, size_t n) {
    uint64_t a, b;
    memcpy(&a, p, 8);
    memcpy(&b, p + 8, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    a = __builtin_bswap64(a), b = __builtin_bswap64(b);
#endif
    unsigned cut = n < 8 ? (unsigned)(8 - n) * 8 : 0, cut2 = (unsigned)(16 - n) * 8;
    us_key k = {n ? a << cut >> cut : 0, (uint64_t)n << 56};
    if (n > 8) k.hi |= b << cut2 >> cut2;
    return k;
}
static inline uint64_t us_key_hash(us_key k) {
    return (k.lo ^ (k.hi * 0x9E3779B97F4A7C15u)) * 0xff51afd7ed558ccdu;
}
typedef struct us_short_slot {
    us_key key; /* hi 0: empty */
    uint32_t id;
} us_short_slot;

/* ---- merges: (left, right) -> rank and new id ---- */

typedef struct us_merge {
    uint32_t left, right, rank, id; /* left US_TOK_NONE: empty */
} us_merge;
typedef struct us_made {
    uint32_t rank, id; /* rank US_TOK_NONE: no merge */
} us_made;
typedef struct us_merges {
    us_merge *slots;
    uint32_t mask;
    size_t n;
    uint64_t *seen;     /* a bit by hash: 0 = surely no such pair. Small enough to stay in cache, and most questions end here */
    uint32_t seen_mask; /* of the bit number */
} us_merges;
us_status us_merges_init(us_merges *m, size_t n, us_err *err) US_WARN_UNUSED;
/** A pair given twice keeps the later rank, as a map built in file order does. */
void us_merges_put(us_merges *m, us_merge x);
static inline uint32_t us_pair_hash(uint32_t l, uint32_t r) {
    uint64_t h = ((uint64_t)l << 32 | r) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}
static inline const us_merge *us_merges_find(const us_merges *m, uint32_t l, uint32_t r) {
    uint32_t h = us_pair_hash(l, r), bit = (h >> 3 ^ h << 11) & m->seen_mask;
    if (!(m->seen[bit / 64] >> bit % 64 & 1)) return NULL;
    for (uint32_t i = h & m->mask;; i = (i + 1) & m->mask) {
        const us_merge *x = &m->slots[i];
        if (x->left == l && x->right == r) return x;
        if (x->left == US_TOK_NONE) return NULL;
    }
}

static inline void us_merges_prefetch(const us_merges *m, us_merge x) {
    __builtin_prefetch(&m->slots[us_pair_hash(x.left, x.right) & m->mask]);
}

/* ---- pipeline ---- */

/** Patterns whose words are found by windows (words.c). */
typedef enum us_windows { US_WINDOWS_NONE, US_WINDOWS_GPT2, US_WINDOWS_QWEN2, US_WINDOWS_LLAMA3 } us_windows;

typedef enum us_norm_kind { US_NORM_NFC, US_NORM_NFD, US_NORM_NFKC, US_NORM_NFKD, US_NORM_PREPEND, US_NORM_REPLACE, US_NORM_STRIP, US_NORM_CHARSMAP, US_NORM_LOWER } us_norm_kind;
typedef enum us_pre_kind { US_PRE_SPLIT, US_PRE_BYTES, US_PRE_PUNCT, US_PRE_DIGITS, US_PRE_WS, US_PRE_METASPACE } us_pre_kind;
typedef enum us_behavior { US_SPLIT_ISOLATED, US_SPLIT_REMOVED, US_SPLIT_PREVIOUS, US_SPLIT_NEXT, US_SPLIT_CONTIGUOUS } us_behavior;

/** A piece of text: where it ends, and does it match? Text is valid UTF-8 with 16 readable bytes behind its end. */
typedef size_t (*us_scan_fn)(const unsigned char *p, size_t i, size_t n, bool *match);

typedef struct us_pattern {
    us_scan_fn scan;  /* known pattern */
    us_str literal;   /* or a plain string */
    void *re;         /* or PCRE2 code */
    bool covers;      /* every character is part of a match */
} us_pattern;

typedef struct us_norm_step {
    us_norm_kind kind;
    us_pattern pattern;
    us_str text;          /* Prepend, Replace */
    bool left, right;     /* Strip */
    const uint32_t *trie; /* Precompiled */
    size_t trie_n;
} us_norm_step;

typedef struct us_pre_step {
    us_pre_kind kind;
    us_pattern pattern;
    us_behavior behavior;
    bool invert, individual, prefix_space, regex, split;
    int scheme; /* Metaspace: 0 never, 1 first, 2 always */
    us_str text;
} us_pre_step;

typedef struct us_added {
    us_str content, shown, bytes; /* shown: normalized content when it is a normalized token; bytes: what it decodes to behind ByteLevel */
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} us_added;

/** Added tokens of one pass as sorted strings, with filters on the first two bytes. */
typedef struct us_matcher {
    us_str *keys; /* sorted by bytes */
    uint32_t *which;
    size_t n;
    uint32_t first[257]; /* keys by first byte */
    unsigned char any[256], second[256]; /* second: byte that may follow a first; everything when a key has one byte */
    int n_first;
    unsigned char only[4]; /* the first bytes when there are at most 3 */
} us_matcher;

enum { US_TOK_DEC_JOIN, US_TOK_DEC_BYTES, US_TOK_DEC_SP, US_TOK_DEC_METASPACE };

struct us_tokenizer {
    us_arena arena;
    us_vocab vocab;
    us_merges merges;
    bool unigram, byte_level, ignore_merges, byte_fallback, fuse_unk, all_bytes;
    uint32_t unk;
    uint32_t byte_id[256];      /* byte-level: the byte's token; byte fallback: <0xXX> */
    us_made *byte_pairs;        /* [65536] by two bytes of text; byte-level only, else NULL */
    us_short_slot *shorts;      /* byte-level: tokens of up to US_CACHE_WORD bytes that a word of these bytes becomes as a whole, by their key */
    uint32_t shorts_mask;
    bool sp_cut;                /* no merge crosses the beginning of U+2581: words may be merged one by one */
    double *scores, min_score;  /* unigram, by id */
    uint32_t max_piece;         /* longest token in bytes */
    us_norm_step norm[US_TOK_STEPS_MAX];
    int n_norm;
    us_pre_step pre[US_TOK_STEPS_MAX];
    int n_pre;
    us_scan_fn fast;            /* the whole pre-tokenizer is one known pattern and ByteLevel */
    us_windows windows;         /* of that pattern */
    us_added *added;
    size_t n_added;
    uint32_t *added_by_id;      /* id -> index or US_TOK_NONE */
    uint32_t n_ids;
    us_matcher raw, normalized;
    uint32_t prefix[16], suffix[16]; /* TemplateProcessing */
    int n_prefix, n_suffix;
    bool trim, trim_prefix_space;
    int decoder;
    us_str dec_from, dec_to;    /* SP: Replace */
    bool dec_fallback;
    int dec_strip;              /* SP: spaces stripped at the start of the text */
    char dec_strip_char;
    int32_t alphabet[512];      /* code point -> byte or -1 */
};

/** Text under way: bytes, and for each byte the span of the original text it comes from (bytes; NULL: one to one from base). */
typedef struct us_work {
    char *p;
    size_t n, cap;
    uint32_t *from, *to; /* n entries, or unused when `same` */
    size_t map_cap;
    bool same;
    uint32_t base;
} us_work;

typedef struct us_sym {
    uint32_t id, len;
    int32_t prev, next;
} us_sym;
typedef struct us_heap_item {
    uint32_t rank, pos, id;
} us_heap_item;

typedef struct us_cache_line {
    us_key key; /* hi 0: empty */
    uint32_t ids[3];
    uint32_t n;      /* above 3: ids[0] is a place in the pool */
} us_cache_line;
enum { US_CACHE_BITS = 17, US_CACHE_POOL = 1 << 18 };

struct us_tok_scratch {
    us_work a, b, c;
    char *clean;
    size_t clean_cap;
    size_t *cuts, *cuts2; /* pairs begin, end */
    size_t n_cuts, cuts_cap, cuts2_cap;
    us_sym *syms;
    size_t syms_cap;
    us_heap_item *heap;
    size_t heap_n, heap_cap;
    us_cache_line *cache;
    uint32_t *pool;
    size_t pool_n, pool_cap;
    uint32_t *cp_at; /* code points before each byte, for offsets */
    size_t cp_cap;
    double *uni_score;
    uint32_t *uni_from, *uni_id;
    size_t uni_cap, uni_cap2, uni_cap3;
    int32_t *cps, *cps2;
    size_t cps_cap, cps2_cap;
    us_buf tmp;
};

/* normalize.c: apply the steps to w (also spans, unless w->same stays possible). first: the piece begins the original text. */
us_status us_tok_normalize(const us_tokenizer *t, us_tok_scratch *s, us_work *w, bool spans, us_err *err) US_WARN_UNUSED;
us_status us_work_set(us_work *w, const char *p, size_t n, uint32_t base, us_err *err) US_WARN_UNUSED;
/** Make spans explicit. */
us_status us_work_spans(us_work *w, us_err *err) US_WARN_UNUSED;
/** Replace bytes [a, b) by text whose bytes all get span [from, to). Only with spans when !same or when the lengths differ. */
us_status us_work_rebuild_begin(us_work *out, size_t expected, us_err *err) US_WARN_UNUSED;
us_status us_work_push(us_work *out, const char *p, size_t n, const us_work *src, size_t src_at, bool spans, us_err *err) US_WARN_UNUSED;
us_status us_work_push_span(us_work *out, const char *p, size_t n, uint32_t from, uint32_t to, bool spans, us_err *err) US_WARN_UNUSED;
static inline uint32_t us_work_from(const us_work *w, size_t i) {
    return w->same ? w->base + (uint32_t)i : w->from[i];
}
static inline uint32_t us_work_to(const us_work *w, size_t i) {
    return w->same ? w->base + (uint32_t)i + 1 : w->to[i];
}

/* scan.c */
us_scan_fn us_scan_known(us_str pattern, bool *covers);
us_scan_fn us_scan_gpt2(void);

/* split.c: run the pre-tokenizers; leaves the pieces in s->cuts; may replace w's text. */
us_status us_tok_split(const us_tokenizer *t, us_tok_scratch *s, us_work *w, bool spans, us_err *err) US_WARN_UNUSED;
us_status us_pattern_compile(us_pattern *p, us_str regex, us_err *err) US_WARN_UNUSED;
void us_pattern_free(us_pattern *p);
/** Next piece from i: its end and whether it matches. */
us_status us_pattern_next(const us_pattern *p, const char *text, size_t i, size_t n, size_t *end, bool *match, us_err *err) US_WARN_UNUSED;

/* words.c: append the ids of one word, or of a whole normalized text whose pre-tokenizer is t->fast. 16 bytes behind the text are readable. */
us_status us_tok_word(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_tok_ids *out, us_err *err) US_WARN_UNUSED;
us_status us_tok_fast_ids(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_tok_ids *out, us_err *err) US_WARN_UNUSED;
/** Token of a key, or US_TOK_NONE. Only where t->shorts is there. */
static inline uint32_t us_short_find(const us_tokenizer *t, us_key k) {
    for (uint32_t i = (uint32_t)(us_key_hash(k) >> 32) & t->shorts_mask;; i = (i + 1) & t->shorts_mask) {
        const us_short_slot *s = &t->shorts[i];
        if (s->key.lo == k.lo && s->key.hi == k.hi) return s->id;
        if (!s->key.hi) return US_TOK_NONE;
    }
}
static inline void us_short_prefetch(const us_tokenizer *t, us_key k) {
    __builtin_prefetch(&t->shorts[(uint32_t)(us_key_hash(k) >> 32) & t->shorts_mask]);
}
/** Which windows find the words of a scanner. */
us_windows us_scan_windows(us_scan_fn scan);

/* bpe.c */
enum { US_BPE_TOGETHER = 4 };
typedef struct us_bpe_bytes {
    const unsigned char *p;
    size_t n;
} us_bpe_bytes;
/** Ids of up to US_BPE_TOGETHER words of 1 to US_CACHE_WORD bytes, side by side. Only where t->byte_pairs is there and t->all_bytes holds. */
void us_bpe_merge_words(const us_tokenizer *t, const us_bpe_bytes *words, size_t n, uint32_t (*ids)[US_CACHE_WORD], size_t *counts);
/** Merge one word; symbols (id, len) are left in s->syms as a list from 0 by next. *n_syms = 0: nothing. */
us_status us_bpe_merge(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, int32_t *first, us_err *err) US_WARN_UNUSED;
/* unigram.c: same result form. */
us_status us_unigram_word(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, int32_t *first, us_err *err) US_WARN_UNUSED;

/* utf8.c */
/** Length of the well-formed sequence at p, or minus the length of the maximal ill-formed part; 0: a beginning that more bytes could complete. */
int us_utf8_step(const unsigned char *p, size_t n);
void us_utf8_replace(us_buf *out, const char *p, size_t n, size_t *replaced);

/* added.c */
us_status us_matcher_build(us_tokenizer *t, us_matcher *m, bool normalized, us_err *err) US_WARN_UNUSED;
/** Next added token at or after *at: its span and which; false when there is none. `at` is moved behind the match. */
bool us_matcher_next(const us_tokenizer *t, const us_matcher *m, const char *p, size_t n, size_t *at, size_t taken, size_t *begin, size_t *end, const us_added **which);

us_status us_tok_nomem(us_err *err);
static inline us_status us_tok_room(us_tok_ids *o, size_t extra, us_err *err) {
    if (o->cap - o->n >= extra) return US_OK;
    if (!us_grow(&o->ids, &o->cap, o->n + extra, sizeof *o->ids)) return us_tok_nomem(err);
    return US_OK;
}
#endif
