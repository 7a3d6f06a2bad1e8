#define _GNU_SOURCE
/*
 * Pre-tokenizers: cut the text into words, step by step. Pieces are pairs of byte positions. Patterns that scan.c does not know go to PCRE2 with
 * match limits; they see the end of the stretch as the end of the text. Tests: tests/golden/test_fix_tokenizers.c.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "model/tokenizer/internal.h"

/* ---- patterns ---- */

us_status us_pattern_compile(us_pattern *p, us_str regex, us_err *err) {
    p->scan = us_scan_known(regex, &p->covers);
    if (p->scan) return US_OK;
    char shown[200];
    us_escape_line(regex.p, regex.n, shown, sizeof shown);
    for (size_t i = 0; i + 1 < regex.n; i++)
        if (regex.p[i] == '&' && regex.p[i + 1] == '&') return us_fail(err, US_E_UNSUPPORTED, "regex", "class intersection in the pattern %s", shown);
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)regex.p, regex.n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    if (!re) {
        PCRE2_UCHAR text[160];
        if (pcre2_get_error_message(code, text, sizeof text) < 0) text[0] = 0;
        return us_fail(err, US_E_FORMAT, "regex", "pattern %s: %s at %zu", shown, (char *)text, (size_t)at);
    }
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* slower without, never wrong */
    p->re = re;
    return US_OK;
}

void us_pattern_free(us_pattern *p) {
    pcre2_code_free(p->re);
    p->re = NULL;
}

static us_status re_next(const us_pattern *p, const char *text, size_t i, size_t n, size_t *end, bool *match, us_err *err) {
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    pcre2_match_context *mc = pcre2_match_context_create(NULL);
    if (!md || !mc) {
        pcre2_match_data_free(md);
        pcre2_match_context_free(mc);
        return us_tok_nomem(err);
    }
    pcre2_set_match_limit(mc, 1000000);
    pcre2_set_depth_limit(mc, 10000);
    pcre2_set_heap_limit(mc, 64 * 1024);
    int rc = 0;
    size_t from = i;
    *match = false;
    *end = n;
    while (from < n) {
        rc = pcre2_match(p->re, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, md, mc);
        if (rc < 0) break;
        PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
        if (ov[1] <= ov[0]) { /* an empty match cuts nothing */
            unsigned len;
            if (ov[0] >= n) break;
            (void)us_uc_decode((const unsigned char *)text + ov[0], &len);
            from = ov[0] + len;
            continue;
        }
        *match = ov[0] == i;
        *end = ov[0] == i ? ov[1] : ov[0];
        break;
    }
    pcre2_match_data_free(md);
    pcre2_match_context_free(mc);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) return us_fail(err, US_E_LIMIT, "regex", "the split pattern needs too much work on this text (PCRE2 error %d)", rc);
    return US_OK;
}

us_status us_pattern_next(const us_pattern *p, const char *text, size_t i, size_t n, size_t *end, bool *match, us_err *err) {
    if (p->scan) {
        *end = p->scan((const unsigned char *)text, i, n, match);
        return US_OK;
    }
    if (p->re) return re_next(p, text, i, n, end, match, err);
    *match = p->literal.n && n - i >= p->literal.n && memcmp(text + i, p->literal.p, p->literal.n) == 0;
    if (*match) {
        *end = i + p->literal.n;
        return US_OK;
    }
    const char *q = p->literal.n && n - i > p->literal.n ? memmem(text + i + 1, n - i - 1, p->literal.p, p->literal.n) : NULL;
    *end = q ? (size_t)(q - text) : n;
    return US_OK;
}

/* ---- pieces ---- */

static us_status cut(us_tok_scratch *s, size_t a, size_t b, us_err *err) {
    if (a >= b) return US_OK;
    if (2 * (s->n_cuts + 1) > s->cuts_cap && !us_grow(&s->cuts, &s->cuts_cap, 2 * (s->n_cuts + 1), sizeof *s->cuts)) return us_tok_nomem(err);
    s->cuts[2 * s->n_cuts] = a;
    s->cuts[2 * s->n_cuts + 1] = b;
    s->n_cuts++;
    return US_OK;
}

static size_t class_next(const char *p, size_t i, size_t n, unsigned bits, bool one, bool *match) {
    unsigned len;
    *match = (us_uc_of(us_uc_decode((const unsigned char *)p + i, &len)) & bits) != 0;
    i += len;
    if (*match && one) return i;
    while (i < n && ((us_uc_of(us_uc_decode((const unsigned char *)p + i, &len)) & bits) != 0) == *match) i += len;
    return i;
}

static us_status step_next(const us_pre_step *st, const char *p, size_t i, size_t n, size_t *end, bool *match, us_err *err) {
    switch (st->kind) {
    case US_PRE_PUNCT: *end = class_next(p, i, n, US_UC_PRE_PUNCT, true, match); return US_OK;
    case US_PRE_DIGITS: *end = class_next(p, i, n, US_UC_PRE_DIGIT, true, match); return US_OK;
    case US_PRE_WS: *end = class_next(p, i, n, US_UC_SPACE, true, match); return US_OK;
    default:
        US_TRY(us_pattern_next(&st->pattern, p, i, n, end, match, err));
        if (st->invert) *match = !*match;
        return US_OK;
    }
}

/* One step on one piece [a, b). */
static us_status split_piece(us_tok_scratch *s, const us_pre_step *st, const char *p, size_t a, size_t b, us_err *err) {
    size_t open = a; /* begin of the piece not yet put out */
    bool have = false, last = false;
    for (size_t i = a, e; i < b; i = e) {
        bool m;
        /* the piece is a text of its own: patterns must not look outside */
        size_t rel;
        US_TRY(step_next(st, p + a, i - a, b - a, &rel, &m, err));
        e = a + rel;
        switch (st->behavior) {
        case US_SPLIT_ISOLATED: US_TRY(cut(s, i, e, err)); break;
        case US_SPLIT_REMOVED:
            if (!m) US_TRY(cut(s, i, e, err));
            break;
        case US_SPLIT_CONTIGUOUS:
            if (have && m != last) {
                US_TRY(cut(s, open, i, err));
                open = i;
            }
            break;
        case US_SPLIT_PREVIOUS: /* a match joins what is before it, unless that ends in a match */
            if (have && (!m || last)) {
                US_TRY(cut(s, open, i, err));
                open = i;
            }
            break;
        case US_SPLIT_NEXT: /* a match joins what follows, unless that is a match */
            if (have && (!last || m)) {
                US_TRY(cut(s, open, i, err));
                open = i;
            }
            break;
        }
        have = true;
        last = m;
    }
    if (st->behavior >= US_SPLIT_PREVIOUS) return cut(s, open, b, err);
    return US_OK;
}

static void take_cuts(us_tok_scratch *s, size_t *n) {
    size_t *c = s->cuts, cap = s->cuts_cap;
    *n = s->n_cuts;
    s->cuts = s->cuts2;
    s->cuts_cap = s->cuts2_cap;
    s->cuts2 = c;
    s->cuts2_cap = cap;
    s->n_cuts = 0;
}

static us_status split_all(us_tok_scratch *s, const us_pre_step *st, const char *p, us_err *err) {
    size_t n;
    take_cuts(s, &n);
    for (size_t k = 0; k < n; k++) US_TRY(split_piece(s, st, p, s->cuts2[2 * k], s->cuts2[2 * k + 1], err));
    return US_OK;
}

/* Behind ByteLevel: the step sees one character of the alphabet for each byte. */
static us_status split_mapped(const us_tokenizer *t, us_tok_scratch *s, const us_pre_step *st, const char *p, us_err *err) {
    size_t n;
    take_cuts(s, &n);
    uint32_t cp_of[256] = {0};
    for (uint32_t c = 0; c < 512; c++)
        if (t->alphabet[c] >= 0) cp_of[t->alphabet[c]] = c;
    size_t *old = s->cuts2; /* cut() below only touches cuts */
    for (size_t k = 0; k < n; k++) {
        size_t a = old[2 * k], b = old[2 * k + 1], from = s->n_cuts;
        us_buf_clear(&s->tmp);
        for (size_t i = a; i < b; i++) {
            char u[4];
            us_buf_add(&s->tmp, u, us_utf8_put(u, cp_of[(unsigned char)p[i]]));
        }
        size_t len = s->tmp.n;
        us_buf_add(&s->tmp, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
        US_TRY(us_buf_status(&s->tmp, err, "splitting text"));
        US_TRY(split_piece(s, st, s->tmp.p, 0, len, err));
        size_t at = 0, byte = 0; /* back to places in bytes, in order */
        for (size_t c = 2 * from; c < 2 * s->n_cuts; c++) {
            for (; at < s->cuts[c]; at++) byte += ((unsigned char)s->tmp.p[at] & 0xC0) != 0x80;
            s->cuts[c] = a + byte;
        }
    }
    return US_OK;
}

/* Metaspace and ByteLevel with a prefix space change the text: rebuild it piece by piece. */
static us_status insert_prefix(us_tok_scratch *s, us_work *w, const us_pre_step *st, bool spans, us_err *err) {
    size_t n;
    bool meta = st->kind == US_PRE_METASPACE;
    us_str mark = meta ? st->text : US_LIT(" ");
    take_cuts(s, &n);
    if (spans) US_TRY(us_work_spans(w, err));
    US_TRY(us_work_rebuild_begin(&s->b, w->n + w->n / 2, err));
    for (size_t k = 0; k < n; k++) {
        size_t a = s->cuts2[2 * k], b = s->cuts2[2 * k + 1], begin = s->b.n;
        bool at_start = w->base == 0 && a == 0;
        bool there = (meta && w->p[a] == ' ') || (b - a >= mark.n && memcmp(w->p + a, mark.p, mark.n) == 0);
        bool want = meta ? st->scheme == 2 || (st->scheme == 1 && at_start) : true;
        if (want && !there) US_TRY(us_work_push_span(&s->b, mark.p, mark.n, spans ? w->from[a] : 0, spans ? w->to[a] : 0, spans, err));
        for (size_t i = a; i < b;) {
            size_t e = i;
            while (e < b && !(meta && w->p[e] == ' ')) e++;
            US_TRY(us_work_push(&s->b, w->p + i, e - i, w, i, spans, err));
            if (e < b) {
                US_TRY(us_work_push_span(&s->b, mark.p, mark.n, spans ? w->from[e] : 0, spans ? w->to[e] : 0, spans, err));
                e++;
            }
            i = e;
        }
        US_TRY(cut(s, begin, s->b.n, err));
    }
    us_work x = *w;
    *w = s->b;
    w->base = x.base;
    s->b = x;
    memset(w->p + w->n, 0, 32);
    return US_OK;
}

us_status us_tok_split(const us_tokenizer *t, us_tok_scratch *s, us_work *w, bool spans, us_err *err) {
    s->n_cuts = 0;
    US_TRY(cut(s, 0, w->n, err));
    bool mapped = false;
    for (int i = 0; i < t->n_pre; i++) {
        const us_pre_step *st = &t->pre[i];
        us_pre_step part = {.kind = US_PRE_SPLIT, .behavior = US_SPLIT_ISOLATED};
        if (st->kind == US_PRE_METASPACE || (st->kind == US_PRE_BYTES && st->prefix_space)) {
            US_TRY(insert_prefix(s, w, st, spans, err));
        }
        if (st->kind == US_PRE_METASPACE) {
            if (!st->split) continue;
            part.pattern.literal = st->text;
            part.behavior = US_SPLIT_NEXT;
            US_TRY(split_all(s, &part, w->p, err));
        } else if (st->kind == US_PRE_BYTES) {
            if (st->regex) {
                part.pattern.scan = us_scan_gpt2();
                US_TRY(split_all(s, &part, w->p, err));
            }
            mapped = true;
        } else if (mapped) {
            US_TRY(split_mapped(t, s, st, w->p, err));
        } else {
            US_TRY(split_all(s, st, w->p, err));
        }
    }
    return US_OK;
}
