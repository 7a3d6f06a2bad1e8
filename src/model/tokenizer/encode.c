/*
 * Encoding: added tokens are cut out first, each stretch between them is normalized, cut at normalized added tokens, pre-tokenized and
 * given to the model; then the post-processor. Offsets are byte places until the end, when they become code points.
 * Tests: tests/golden/test_fix_tokenizers.c, tests/unit/test_tokenizer.c.
 */
#include <string.h>

#include "model/tokenizer/internal.h"

int us_utf8_step(const unsigned char *p, size_t n) {
    unsigned c = p[0], need, low = 0x80, high = 0xBF;
    if (c < 0x80) return 1;
    if (c < 0xC2 || c > 0xF4) return -1;
    need = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
    for (unsigned i = 1; i <= need; i++) {
        if (i == n) return 0;
        if (p[i] < low || p[i] > high) return -(int)i;
        low = 0x80;
        high = 0xBF;
    }
    return (int)need + 1;
}

void us_utf8_replace(us_buf *out, const char *p, size_t n, size_t *replaced) {
    for (size_t i = 0; i < n;) {
        int k = us_utf8_step((const unsigned char *)p + i, n - i);
        if (k > 0) {
            us_buf_add(out, p + i, (size_t)k);
            i += (size_t)k;
        } else {
            us_buf_z(out, "\xEF\xBF\xBD");
            i += k ? (size_t)-k : n - i;
            ++*replaced;
        }
    }
}

void us_tok_ids_free(us_tok_ids *o) {
    us_free(o->ids);
    us_free(o->offsets);
    *o = (us_tok_ids){0};
}

us_status us_tok_scratch_create(const us_tokenizer *t, us_tok_scratch **out, us_err *err) {
    (void)t;
    us_tok_scratch *s = us_calloc(1, sizeof *s);
    if (!s) return us_tok_nomem(err);
    s->cache = us_malloc_large(sizeof *s->cache << US_CACHE_BITS, true);
    s->pool_cap = US_CACHE_POOL;
    s->pool = us_malloc(s->pool_cap * sizeof *s->pool);
    if (!s->cache || !s->pool) {
        us_tok_scratch_free(s);
        return us_tok_nomem(err);
    }
    *out = s;
    return US_OK;
}

static void work_free(us_work *w) {
    us_free(w->p);
    us_free(w->from);
    us_free(w->to);
}

void us_tok_scratch_free(us_tok_scratch *s) {
    if (!s) return;
    work_free(&s->a);
    work_free(&s->b);
    work_free(&s->c);
    us_free(s->cuts);
    us_free(s->cuts2);
    us_free(s->syms);
    us_free(s->heap);
    us_free(s->cache);
    us_free(s->pool);
    us_free(s->cp_at);
    us_free(s->uni_score);
    us_free(s->uni_from);
    us_free(s->uni_id);
    us_free(s->cps);
    us_free(s->cps2);
    us_buf_free(&s->tmp);
    us_free(s->clean);
    us_free(s);
}

/* One id with the bytes [from, to) of the text. */
static us_status emit(us_tok_ids *o, uint32_t id, uint32_t from, uint32_t to, bool spans, us_err *err) {
    US_TRY(us_tok_room(o, 1, err));
    if (spans) {
        if (o->offsets_cap < 2 * (o->n + 1) && !us_grow(&o->offsets, &o->offsets_cap, 2 * (o->n + 1), sizeof *o->offsets)) return us_tok_nomem(err);
        o->offsets[2 * o->n] = from;
        o->offsets[2 * o->n + 1] = to;
    }
    o->ids[o->n++] = id;
    return US_OK;
}

/* The model on one word [a, b) of w, with the spans of its tokens. */
static us_status word_with_spans(const us_tokenizer *t, us_tok_scratch *s, const us_work *w, size_t a, size_t b, us_tok_ids *o, us_err *err) {
    int32_t first;
    US_TRY(t->unigram ? us_unigram_word(t, s, w->p + a, b - a, &first, err) : us_bpe_merge(t, s, w->p + a, b - a, &first, err));
    size_t at = a;
    for (int32_t i = first; i >= 0; i = s->syms[i].next) {
        size_t end = at + (s->syms[i].len ? s->syms[i].len : 1);
        uint32_t from = us_work_from(w, at), to = us_work_to(w, (end > b ? b : end) - 1);
        US_TRY(emit(o, s->syms[i].id, from, to < from ? from : to, true, err));
        at += s->syms[i].len;
    }
    return US_OK;
}

/* Words of one pre-token; cut before every U+2581 where no merge can cross it. */
static us_status pre_token(const us_tokenizer *t, us_tok_scratch *s, const us_work *w, size_t a, size_t b, bool spans, us_tok_ids *o, us_err *err) {
    while (a < b) {
        size_t e = b;
        if (t->sp_cut) {
            e = a + 1;
            for (;;) { /* the next mark behind another character */
                const char *q = e < b ? memchr(w->p + e, 0xE2, b - e) : NULL;
                if (!q) {
                    e = b;
                    break;
                }
                e = (size_t)(q - w->p);
                if (b - e >= 3 && memcmp(q, "\xE2\x96\x81", 3) == 0 && !(e - a >= 3 && memcmp(q - 3, "\xE2\x96\x81", 3) == 0)) break;
                e++;
            }
        }
        US_TRY(spans ? word_with_spans(t, s, w, a, e, o, err) : us_tok_word(t, s, w->p + a, e - a, o, err));
        a = e;
    }
    return US_OK;
}

/* Pre-tokenizers and model on normalized text. */
static us_status text_ids(const us_tokenizer *t, us_tok_scratch *s, us_work *w, bool spans, us_tok_ids *o, us_err *err) {
    if (w->n == 0) return US_OK;
    if (t->fast && !spans) return us_tok_fast_ids(t, s, w->p, w->n, o, err);
    US_TRY(us_tok_split(t, s, w, spans, err));
    for (size_t k = 0; k < s->n_cuts; k++) US_TRY(pre_token(t, s, w, s->cuts[2 * k], s->cuts[2 * k + 1], spans, o, err));
    return US_OK;
}

/* Leading and trailing spaces of an added token do not count in its offsets when the post-processor trims. */
static void count_spaces(const char *p, size_t n, uint32_t *lead, uint32_t *trail) {
    uint32_t run = 0, chars = 0;
    unsigned k;
    bool leading = true;
    *lead = 0;
    for (size_t i = 0; i < n; i += k, chars++) {
        uint32_t c = us_uc_decode((const unsigned char *)p + i, &k);
        bool space = c == 0x120 || (us_uc_of(c) & US_UC_SPACE);
        if (!space) leading = false;
        if (leading) ++*lead;
        run = space ? run + 1 : 0;
    }
    *trail = run;
}

/* A place in the post-processing: offsets are code points by then. */
static void trim(const us_tokenizer *t, uint32_t *off, size_t index, uint32_t lead, uint32_t trail) {
    if (lead) {
        if (t->trim_prefix_space && (index == 0 || off[0] == 0)) lead--;
        off[0] = off[0] + lead < off[1] ? off[0] + lead : off[1];
    }
    if (trail && off[1] >= trail) off[1] = off[1] - trail > off[0] ? off[1] - trail : off[0];
}


static us_status added(const us_tokenizer *t, const us_added *a, uint32_t from, uint32_t to, bool spans, us_tok_ids *o, us_err *err) {
    (void)t;
    return emit(o, a->id, from, to, spans, err);
}

/* A stretch without raw added tokens. */
static us_status stretch(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, uint32_t base, bool spans, us_tok_ids *o, us_err *err) {
    if (n == 0) return US_OK;
    us_work *w = &s->a;
    US_TRY(us_work_set(w, p, n, base, err));
    US_TRY(us_tok_normalize(t, s, w, spans, err));
    if (t->normalized.n == 0) return text_ids(t, s, w, spans, o, err);
    size_t at = 0, taken = 0, b = 0, e = 0;
    const us_added *a = NULL;
    bool more = us_matcher_next(t, &t->normalized, w->p, w->n, &at, 0, &b, &e, &a);
    if (!more) return text_ids(t, s, w, spans, o, err);
    us_work whole = *w; /* the slices are worked on in s->a; keep the whole apart */
    s->a = s->c;
    us_status st = US_OK;
    if (spans) st = us_work_spans(&whole, err);
    while (st == US_OK) {
        size_t stop = more ? b : whole.n;
        if (stop > taken) {
            st = us_work_set(&s->a, whole.p + taken, stop - taken, base + (uint32_t)taken, err);
            if (st == US_OK && spans) {
                st = us_work_rebuild_begin(&s->a, 0, err);
                if (st == US_OK) st = us_work_push(&s->a, whole.p + taken, stop - taken, &whole, taken, true, err);
                if (st == US_OK) memset(s->a.p + s->a.n, 0, 32);
                s->a.base = base + (uint32_t)taken;
            }
            if (st == US_OK) st = text_ids(t, s, &s->a, spans, o, err);
        }
        if (st != US_OK || !more) break;
        uint32_t from = spans ? whole.from[b] : 0, to = spans ? whole.to[e - 1] : 0;
        st = added(t, a, from, to, spans, o, err);
        taken = e;
        more = us_matcher_next(t, &t->normalized, whole.p, whole.n, &at, taken, &b, &e, &a);
    }
    s->c = s->a;
    s->a = whole;
    return st;
}

/* Byte places to code points; then trimming. */
static us_status finish_offsets(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, size_t from, us_tok_ids *o, us_err *err) {
    if (n + 1 > s->cp_cap && !us_grow(&s->cp_at, &s->cp_cap, n + 1, sizeof *s->cp_at)) return us_tok_nomem(err);
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += ((unsigned char)p[i] & 0xC0) != 0x80;
        s->cp_at[i] = count - 1;
    }
    s->cp_at[n] = count;
    for (size_t k = from; k < o->n; k++) {
        uint32_t *off = o->offsets + 2 * k, a = off[0], b = off[1];
        off[0] = s->cp_at[a];
        off[1] = b > a ? s->cp_at[b - 1] + 1 : off[0];
        if (!t->trim) continue;
        uint32_t lead = 0, trail = 0, id = o->ids[k];
        if (id < t->n_ids && t->added_by_id[id] != US_TOK_NONE) {
            count_spaces(p + a, b - a, &lead, &trail);
        } else {
            us_str v = us_vocab_str(&t->vocab, id);
            while (lead < v.n && v.p[lead] == ' ') lead++;
            while (trail < v.n && v.p[v.n - 1 - trail] == ' ') trail++;
        }
        trim(t, off, k - from, lead, trail);
    }
    return US_OK;
}

static us_status specials(const uint32_t *ids, int n, bool spans, us_tok_ids *o, us_err *err) {
    for (int i = 0; i < n; i++) US_TRY(emit(o, ids[i], 0, 0, spans, err));
    return US_OK;
}

static us_status encode_valid(const us_tokenizer *t, us_tok_scratch *s, const char *text, size_t n, unsigned flags, us_tok_ids *o, us_err *err) {
    bool spans = (flags & US_TOK_OFFSETS) != 0;
    if (!(flags & US_TOK_NO_SPECIAL)) US_TRY(specials(t->prefix, t->n_prefix, spans, o, err));
    size_t first = o->n, at = 0, taken = 0, b, e;
    const us_added *a;
    while (t->raw.n && us_matcher_next(t, &t->raw, text, n, &at, taken, &b, &e, &a)) {
        if (b > taken) US_TRY(stretch(t, s, text + taken, b - taken, (uint32_t)taken, spans, o, err));
        US_TRY(added(t, a, (uint32_t)b, (uint32_t)e, spans, o, err));
        taken = e;
    }
    if (taken < n) US_TRY(stretch(t, s, text + taken, n - taken, (uint32_t)taken, spans, o, err));
    if (spans) US_TRY(finish_offsets(t, s, text, n, first, o, err));
    if (!(flags & US_TOK_NO_SPECIAL)) US_TRY(specials(t->suffix, t->n_suffix, spans, o, err));
    return US_OK;
}

us_status us_tokenizer_encode(const us_tokenizer *t, us_tok_scratch *s, const char *text, size_t n, unsigned flags, us_tok_ids *o, us_err *err) {
    if (!(flags & US_TOK_APPEND)) {
        o->n = 0;
        o->replaced = 0;
    }
    if (n > US_TOK_TEXT_MAX) return us_fail(err, US_E_LIMIT, "limit", "a text of %zu bytes passes the limit of %d", n, US_TOK_TEXT_MAX);
    if (us_utf8_valid(text, n, NULL)) return encode_valid(t, s, text, n, flags, o, err);
    us_buf clean = {0};
    us_utf8_replace(&clean, text, n, &o->replaced);
    us_status st = us_buf_status(&clean, err, "replacing ill-formed text");
    if (st == US_OK) st = encode_valid(t, s, clean.p, clean.n, flags, o, err);
    us_buf_free(&clean);
    return st;
}
