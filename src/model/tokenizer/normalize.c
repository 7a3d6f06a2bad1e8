/*
 * Normalizers, with the span of the original text that each byte comes from, computed as the reference does (a composed character keeps the span of
 * its first part). Composition follows Unicode 9 like the reference. Tests: tests/golden/test_fix_tokenizers.c.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer/internal.h"

us_status us_work_set(us_work *w, const char *p, size_t n, uint32_t base, us_err *err) {
    if (w->cap < n + 32 && !us_grow(&w->p, &w->cap, n + 32, 1)) return us_tok_nomem(err);
    memcpy(w->p, p, n);
    memset(w->p + n, 0, 32);
    w->n = n;
    w->same = true;
    w->base = base;
    return US_OK;
}

static us_status map_room(us_work *w, size_t n, us_err *err) {
    if (n <= w->map_cap) return US_OK;
    size_t a = w->map_cap, b = w->map_cap;
    if (!us_grow(&w->from, &a, n, sizeof *w->from) || !us_grow(&w->to, &b, n, sizeof *w->to)) return us_tok_nomem(err);
    w->map_cap = a < b ? a : b;
    return US_OK;
}

us_status us_work_spans(us_work *w, us_err *err) {
    if (!w->same) return US_OK;
    US_TRY(map_room(w, w->n + 1, err));
    for (size_t i = 0; i < w->n; i++) {
        size_t a = i, b = i + 1; /* whole characters */
        while (a && ((unsigned char)w->p[a] & 0xC0) == 0x80) a--;
        while (b < w->n && ((unsigned char)w->p[b] & 0xC0) == 0x80) b++;
        w->from[i] = w->base + (uint32_t)a;
        w->to[i] = w->base + (uint32_t)b;
    }
    w->same = false;
    return US_OK;
}

us_status us_work_rebuild_begin(us_work *out, size_t expected, us_err *err) {
    if (out->cap < expected + 32 && !us_grow(&out->p, &out->cap, expected + 32, 1)) return us_tok_nomem(err);
    out->n = 0;
    out->same = false;
    out->base = 0;
    return US_OK;
}

static us_status out_room(us_work *out, size_t n, bool spans, us_err *err) {
    if (out->n + n > US_TOK_TEXT_MAX) return us_fail(err, US_E_LIMIT, "limit", "the normalized text passes the limit of %d bytes", US_TOK_TEXT_MAX);
    if (out->cap < out->n + n + 32 && !us_grow(&out->p, &out->cap, out->n + n + 32, 1)) return us_tok_nomem(err);
    return spans ? map_room(out, out->n + n, err) : US_OK;
}

us_status us_work_push(us_work *out, const char *p, size_t n, const us_work *src, size_t at, bool spans, us_err *err) {
    US_TRY(out_room(out, n, spans, err));
    memcpy(out->p + out->n, p, n);
    if (spans && n) {
        memcpy(out->from + out->n, src->from + at, n * sizeof *out->from);
        memcpy(out->to + out->n, src->to + at, n * sizeof *out->to);
    }
    out->n += n;
    return US_OK;
}

us_status us_work_push_span(us_work *out, const char *p, size_t n, uint32_t from, uint32_t to, bool spans, us_err *err) {
    US_TRY(out_room(out, n, spans, err));
    memcpy(out->p + out->n, p, n);
    for (size_t i = 0; spans && i < n; i++) {
        out->from[out->n + i] = from;
        out->to[out->n + i] = to;
    }
    out->n += n;
    return US_OK;
}

static void swap(us_tok_scratch *s, us_work *w) {
    us_work x = *w;
    *w = s->b;
    w->base = x.base;
    s->b = x;
    memset(w->p + w->n, 0, 32);
}

/* ---- a list of characters with their changes (1: inserted, 0: in place of one, -k: in place of 1 + k) makes the new text ---- */

static us_status apply_changes(us_tok_scratch *s, us_work *w, const int32_t *cps, size_t n, bool spans, us_err *err) {
    if (spans) US_TRY(us_work_spans(w, err));
    US_TRY(us_work_rebuild_begin(&s->b, w->n, err));
    size_t at = 0; /* place in the old text */
    for (size_t i = 0; i < n; i++) {
        int32_t change = cps[2 * i + 1];
        char buf[4];
        unsigned k = (unsigned)us_utf8_put(buf, (uint32_t)cps[2 * i]), len;
        uint32_t from = 0, to = 0;
        size_t idx = change > 0 ? at - 1 : at;
        if (spans && idx < w->n) {
            from = w->from[idx];
            to = w->to[idx];
        }
        US_TRY(us_work_push_span(&s->b, buf, k, from, to, spans, err));
        for (int32_t c = change; c <= 0 && at < w->n; c++) {
            (void)us_uc_decode((unsigned char *)w->p + at, &len);
            at += len;
        }
    }
    swap(s, w);
    return US_OK;
}

/* ---- composed and decomposed forms ---- */

static bool in_spans(const us_uc_span *r, unsigned n, uint32_t c) {
    for (unsigned i = 0; i < n; i++)
        if (c >= r[i].first && c <= r[i].last) return true;
    return false;
}

static int combining(uint32_t c) {
    if (c < 0x300) return 0;
    int k = (uint16_t)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
    return k && in_spans(us_uc_nfc_starters, us_uc_n_nfc_starters, c) ? 0 : k;
}

/* Compatibility decompositions that Unicode 9 did not have. */
static bool newer_compat(uint32_t c) {
    static const us_uc_span r[] = {{0x32FF, 0x32FF}, {0xA7F2, 0xA7F4}, {0xAB69, 0xAB69}, {0x10781, 0x107BA}, {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};
    return in_spans(r, sizeof r / sizeof *r, c);
}

static us_status add_cp(int32_t **a, size_t *cap, size_t *n, int32_t cp, int32_t change, us_err *err) {
    if (2 * (*n + 1) > *cap && !us_grow(a, cap, 2 * (*n + 1), sizeof **a)) return us_tok_nomem(err);
    (*a)[2 * *n] = cp;
    (*a)[2 * *n + 1] = change;
    ++*n;
    return US_OK;
}

typedef struct mark {
    int32_t cp, change, class;
    size_t at;
} mark;
static int by_class(const void *a, const void *b) {
    const mark *x = a, *y = b;
    if (x->class != y->class) return x->class < y->class ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Canonical order: sort each run of marks by class, stably. */
static us_status reorder(int32_t *c, size_t n, us_err *err) {
    for (size_t i = 0; i < n;) {
        if (!combining((uint32_t)c[2 * i])) {
            i++;
            continue;
        }
        size_t j = i;
        bool sorted = true;
        for (int last = 0; j < n; j++) {
            int k = combining((uint32_t)c[2 * j]);
            if (!k) break;
            if (k < last) sorted = false;
            last = k;
        }
        if (!sorted) {
            mark *m = us_malloc((j - i) * sizeof *m);
            if (!m) return us_tok_nomem(err);
            for (size_t k = i; k < j; k++) m[k - i] = (mark){c[2 * k], c[2 * k + 1], combining((uint32_t)c[2 * k]), k};
            qsort(m, j - i, sizeof *m, by_class);
            for (size_t k = i; k < j; k++) {
                c[2 * k] = m[k - i].cp;
                c[2 * k + 1] = m[k - i].change;
            }
            us_free(m);
        }
        i = j;
    }
    return US_OK;
}

static int32_t composed(int32_t a, int32_t b) {
    if (b < 0x300 || !(us_uc_of((uint32_t)b) & US_UC_NFC_CHECK)) return -1;
    int32_t pair[4] = {a, b, 0, 0};
    if (utf8proc_normalize_utf32(pair, 2, UTF8PROC_STABLE | UTF8PROC_COMPOSE) != 1) return -1;
    return in_spans(us_uc_nfc_no_composition, us_uc_n_nfc_no_composition, (uint32_t)pair[0]) ? -1 : pair[0];
}

/* Compose in place; returns the new number. */
static size_t compose(int32_t *c, size_t n) {
    size_t out = 0, starter = SIZE_MAX;
    int last = 0; /* class of the last kept mark behind the starter */
    for (size_t i = 0; i < n; i++) {
        int k = combining((uint32_t)c[2 * i]);
        if (starter != SIZE_MAX && (last < k || out == starter + 1)) {
            int32_t x = composed(c[2 * starter], c[2 * i]);
            if (x >= 0) {
                c[2 * starter] = x;
                c[2 * starter + 1] += c[2 * i + 1] - 1;
                continue;
            }
        }
        if (!k) {
            starter = out;
            last = 0;
        } else {
            last = k;
        }
        c[2 * out] = c[2 * i];
        c[2 * out + 1] = c[2 * i + 1];
        out++;
    }
    return out;
}

static us_status form(us_tok_scratch *s, us_work *w, us_norm_kind kind, bool spans, us_err *err) {
    const unsigned char *p = (const unsigned char *)w->p;
    bool compat = kind == US_NORM_NFKC || kind == US_NORM_NFKD, comp = kind == US_NORM_NFC || kind == US_NORM_NFKC;
    size_t i = 0;
    unsigned len;
    if (kind == US_NORM_NFC) {
        while (i < w->n && (p[i] < 0xCC || !(us_uc_of(us_uc_decode(p + i, &len)) & US_UC_NFC_CHECK))) i++;
    } else {
        while (i < w->n && p[i] < 0x80) i++;
    }
    if (i == w->n) return US_OK;
    size_t n = 0;
    for (i = 0; i < w->n; i += len) {
        int32_t cp = (int32_t)us_uc_decode(p + i, &len), buf[32];
        if (cp < 0x80) {
            US_TRY(add_cp(&s->cps, &s->cps_cap, &n, cp, 0, err));
            continue;
        }
        int cls = 0;
        bool with = compat && !newer_compat((uint32_t)cp);
        utf8proc_ssize_t k = utf8proc_decompose_char(cp, buf, 32, with ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE, &cls);
        if (k < 0 || k > 32 || in_spans(us_uc_nfc_no_composition, us_uc_n_nfc_no_composition, (uint32_t)cp)) {
            k = 1;
            buf[0] = cp;
        }
        for (utf8proc_ssize_t j = 0; j < k; j++) US_TRY(add_cp(&s->cps, &s->cps_cap, &n, buf[j], j > 0, err));
    }
    US_TRY(reorder(s->cps, n, err));
    if (comp) n = compose(s->cps, n);
    return apply_changes(s, w, s->cps, n, spans, err);
}

/* ---- the smaller ones ---- */

static us_status prepend(us_tok_scratch *s, us_work *w, us_str text, bool spans, us_err *err) {
    if (w->n == 0) return US_OK;
    if (spans) US_TRY(us_work_spans(w, err));
    US_TRY(us_work_rebuild_begin(&s->b, w->n + text.n, err));
    US_TRY(us_work_push_span(&s->b, text.p, text.n, spans ? w->from[0] : 0, spans ? w->to[0] : 0, spans, err));
    US_TRY(us_work_push(&s->b, w->p, w->n, w, 0, spans, err));
    swap(s, w);
    return US_OK;
}

static us_status replace(us_tok_scratch *s, us_work *w, const us_norm_step *st, bool spans, us_err *err) {
    if (spans) US_TRY(us_work_spans(w, err));
    US_TRY(us_work_rebuild_begin(&s->b, w->n + w->n / 4, err));
    for (size_t i = 0, e; i < w->n; i = e) {
        bool match;
        US_TRY(us_pattern_next(&st->pattern, w->p, i, w->n, &e, &match, err));
        if (match) US_TRY(us_work_push_span(&s->b, st->text.p, st->text.n, spans ? w->from[e - 1] : 0, spans ? w->to[e - 1] : 0, spans, err));
        else US_TRY(us_work_push(&s->b, w->p + i, e - i, w, i, spans, err));
    }
    swap(s, w);
    return US_OK;
}

static us_status strip(us_tok_scratch *s, us_work *w, const us_norm_step *st, bool spans, us_err *err) {
    size_t a = 0, b = w->n;
    unsigned len;
    while (st->left && a < b && (us_uc_of(us_uc_decode((unsigned char *)w->p + a, &len)) & US_UC_SPACE)) a += len;
    while (st->right && b > a) {
        size_t q = b - 1;
        while (q > a && ((unsigned char)w->p[q] & 0xC0) == 0x80) q--;
        if (!(us_uc_of(us_uc_decode((unsigned char *)w->p + q, &len)) & US_UC_SPACE)) break;
        b = q;
    }
    if (a == 0 && b == w->n) return US_OK;
    if (spans) US_TRY(us_work_spans(w, err));
    US_TRY(us_work_rebuild_begin(&s->b, b - a, err));
    US_TRY(us_work_push(&s->b, w->p + a, b - a, w, a, spans, err));
    swap(s, w);
    return US_OK;
}

/* ---- SentencePiece's precompiled map: a double-array trie over replaced strings ---- */

static bool map_lookup(const us_norm_step *st, const unsigned char *p, size_t n, us_str *out) {
#define UNIT(i) ((i) < st->trie_n ? st->trie[i] : 0)
#define OFFSET(u) (((u) >> 10) << (((u) & (1u << 9)) >> 6))
    size_t node = OFFSET(UNIT(0));
    for (size_t i = 0; i < n && p[i]; i++) {
        node ^= p[i];
        uint32_t u = UNIT(node);
        if ((u & (1u << 31 | 0xFF)) != p[i]) return false;
        node ^= OFFSET(u);
        if (u >> 8 & 1) {
            size_t at = UNIT(node) & 0x7fffffffu;
            if (at >= st->text.n) return false;
            const char *z = memchr(st->text.p + at, 0, st->text.n - at);
            *out = (us_str){st->text.p + at, z ? (size_t)(z - st->text.p) - at : st->text.n - at};
            return true;
        }
    }
    return false;
#undef UNIT
#undef OFFSET
}

static us_status put_mapped(us_tok_scratch *s, size_t *n, const unsigned char *p, size_t len, us_str with, us_err *err) {
    int32_t old = 0, made = 0;
    unsigned k;
    for (size_t i = 0; i < len; i += k, old++) (void)us_uc_decode(p + i, &k);
    size_t from = *n;
    for (size_t i = 0; i < with.n; i += k, made++)
        US_TRY(add_cp(&s->cps, &s->cps_cap, n, (int32_t)us_uc_decode((const unsigned char *)with.p + i, &k), 0, err));
    for (int32_t i = 0; i < made - old; i++) s->cps[2 * (*n - 1 - (size_t)i) + 1] = 1;
    if (made < old && *n) {
        s->cps[2 * (*n - 1) + 1] += made - old;
        (void)from;
    }
    return US_OK;
}

static us_status charsmap(us_tok_scratch *s, us_work *w, const us_norm_step *st, bool spans, us_err *err) {
    const unsigned char *p = (const unsigned char *)w->p;
    size_t n = 0;
    bool changed = false;
    for (size_t i = 0; i < w->n;) {
        unsigned len;
        utf8proc_int32_t state = 0, a = (utf8proc_int32_t)us_uc_decode(p + i, &len), b;
        size_t e = i + len;
        while (e < w->n) {
            b = (utf8proc_int32_t)us_uc_decode(p + e, &len);
            if (utf8proc_grapheme_break_stateful(a, b, &state)) break;
            e += len;
            a = b;
        }
        us_str with;
        if (e - i < 6 && map_lookup(st, p + i, e - i, &with)) {
            US_TRY(put_mapped(s, &n, p + i, e - i, with, err));
            changed = true;
            i = e;
            continue;
        }
        for (; i < e; i += len) {
            int32_t c = (int32_t)us_uc_decode(p + i, &len);
            if (map_lookup(st, p + i, len, &with)) {
                US_TRY(put_mapped(s, &n, p + i, len, with, err));
                changed = true;
            } else {
                US_TRY(add_cp(&s->cps, &s->cps_cap, &n, c, 0, err));
            }
        }
    }
    return changed ? apply_changes(s, w, s->cps, n, spans, err) : US_OK;
}

us_status us_tok_normalize(const us_tokenizer *t, us_tok_scratch *s, us_work *w, bool spans, us_err *err) {
    for (int i = 0; i < t->n_norm; i++) {
        const us_norm_step *st = &t->norm[i];
        switch (st->kind) {
        case US_NORM_NFC: case US_NORM_NFD: case US_NORM_NFKC: case US_NORM_NFKD: US_TRY(form(s, w, st->kind, spans, err)); break;
        case US_NORM_PREPEND: US_TRY(prepend(s, w, st->text, spans, err)); break;
        case US_NORM_REPLACE: US_TRY(replace(s, w, st, spans, err)); break;
        case US_NORM_STRIP: US_TRY(strip(s, w, st, spans, err)); break;
        case US_NORM_CHARSMAP: US_TRY(charsmap(s, w, st, spans, err)); break;
        case US_NORM_LOWER: return us_fail(err, US_E_UNSUPPORTED, "unsupported", "the Lowercase normalizer");
        }
    }
    return US_OK;
}
