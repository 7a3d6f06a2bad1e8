/* Strict JSON scanner, compact document, text edits. */
#define _GNU_SOURCE
#include "io/json.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- scanner ---- */

/* What may come next. */
enum { WANT_VALUE, WANT_VALUE_OR_END, WANT_KEY, WANT_KEY_OR_END, WANT_COMMA_OR_END, WANT_COLON, WANT_NOTHING };

void us_json_scan_init(us_json_scan *s, us_str text, unsigned flags) {
    s->text = text.p;
    s->len = text.n;
    s->pos = 0;
    s->flags = flags;
    s->depth = 0;
    s->state = WANT_VALUE;
}

static us_status bad(const us_json_scan *s, us_err *err, const char *cls, const char *why) {
    us_fail(err, US_E_FORMAT, cls, "%s", why);
    us_err_where(err, "byte %zu", s->pos);
    if (err) err->offset = s->pos;
    return US_E_FORMAT;
}

static void skip_space(us_json_scan *s) {
    while (s->pos < s->len) {
        char c = s->text[s->pos];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
        s->pos++;
    }
}

static int hex4(const char *p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* At an opening quote; moves behind the closing one. */
static us_status scan_string(us_json_scan *s, us_json_token *t, us_err *err) {
    t->begin = s->pos++;
    t->escaped = false;
    t->type = US_JSON_STRING;
    for (;;) {
        if (s->pos >= s->len) return bad(s, err, "json", "the text ends inside a string");
        unsigned char c = (unsigned char)s->text[s->pos];
        if (c == '"') break;
        if (c < 0x20) return bad(s, err, "json", "a raw control character in a string");
        if (c != '\\') {
            s->pos++;
            continue;
        }
        t->escaped = true;
        char e = s->pos + 1 < s->len ? s->text[s->pos + 1] : 0;
        if (e != 'u') {
            if (!e || !strchr("\"\\/bfnrt", e)) return bad(s, err, "json", "an unknown escape in a string");
            s->pos += 2;
            continue;
        }
        int u = s->pos + 6 <= s->len ? hex4(s->text + s->pos + 2) : -1;
        if (u < 0) return bad(s, err, "json", "a broken \\u escape");
        if (u >= 0xdc00 && u < 0xe000) return bad(s, err, "json", "a lone surrogate in a \\u escape");
        if (u >= 0xd800 && u < 0xdc00) {
            const char *q = s->text + s->pos + 6;
            int lo = s->pos + 12 <= s->len && q[0] == '\\' && q[1] == 'u' ? hex4(q + 2) : -1;
            if (lo < 0xdc00 || lo > 0xdfff) return bad(s, err, "json", "a lone surrogate in a \\u escape");
            s->pos += 6;
        }
        s->pos += 6;
    }
    t->end = ++s->pos;
    return US_OK;
}

static bool digit(const us_json_scan *s) {
    return s->pos < s->len && s->text[s->pos] >= '0' && s->text[s->pos] <= '9';
}

static bool literal(us_json_scan *s, const char *word) {
    size_t n = strlen(word);
    if (s->len - s->pos < n || memcmp(s->text + s->pos, word, n) != 0) return false;
    s->pos += n;
    return true;
}

static us_status scan_number(us_json_scan *s, us_json_token *t, us_err *err) {
    t->begin = s->pos;
    t->type = US_JSON_NUMBER;
    if (s->flags & US_JSON_INFINITY && (literal(s, "Infinity") || literal(s, "-Infinity") || literal(s, "NaN"))) {
        t->end = s->pos;
        return US_OK;
    }
    if (s->text[s->pos] == '-') s->pos++;
    if (!digit(s)) return bad(s, err, "json", "a value is expected");
    if (s->text[s->pos] == '0') s->pos++;
    else
        while (digit(s)) s->pos++;
    if (s->pos < s->len && s->text[s->pos] == '.') {
        s->pos++;
        if (!digit(s)) return bad(s, err, "json", "a digit must follow the decimal point");
        while (digit(s)) s->pos++;
    }
    if (s->pos < s->len && (s->text[s->pos] == 'e' || s->text[s->pos] == 'E')) {
        s->pos++;
        if (s->pos < s->len && (s->text[s->pos] == '+' || s->text[s->pos] == '-')) s->pos++;
        if (!digit(s)) return bad(s, err, "json", "a digit must follow the exponent");
        while (digit(s)) s->pos++;
    }
    t->end = s->pos;
    return US_OK;
}

static void after_value(us_json_scan *s) {
    s->state = s->depth ? WANT_COMMA_OR_END : WANT_NOTHING;
}

static us_status scan_value(us_json_scan *s, us_json_token *t, us_err *err) {
    char c = s->text[s->pos];
    t->event = US_JSON_EV_VALUE;
    t->escaped = false;
    if (c == '{' || c == '[') {
        if (s->depth >= US_JSON_DEPTH) return bad(s, err, "depth", "nested too deeply (limit 256)");
        s->in_object[s->depth++] = c == '{';
        *t = (us_json_token){US_JSON_EV_BEGIN, c == '{' ? US_JSON_OBJECT : US_JSON_ARRAY, false, s->pos, s->pos + 1};
        s->pos++;
        s->state = c == '{' ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
        return US_OK;
    }
    if (c == '"') {
        US_TRY(scan_string(s, t, err));
    } else if (c == 't' || c == 'f' || c == 'n') {
        t->begin = s->pos;
        t->type = c == 't' ? US_JSON_TRUE : c == 'f' ? US_JSON_FALSE : US_JSON_NULL;
        if (!literal(s, c == 't' ? "true" : c == 'f' ? "false" : "null")) return bad(s, err, "json", "a value is expected");
        t->end = s->pos;
    } else {
        US_TRY(scan_number(s, t, err));
    }
    after_value(s);
    return US_OK;
}

static us_status scan_end(us_json_scan *s, us_json_token *t) {
    bool object = s->in_object[--s->depth];
    *t = (us_json_token){US_JSON_EV_END, object ? US_JSON_OBJECT : US_JSON_ARRAY, false, s->pos, s->pos + 1};
    s->pos++;
    after_value(s);
    return US_OK;
}

us_status us_json_scan_next(us_json_scan *s, us_json_token *t, us_err *err) {
    skip_space(s);
    if (s->state == WANT_NOTHING) {
        if (s->pos < s->len) return bad(s, err, "trailing", "something follows the JSON value");
        *t = (us_json_token){US_JSON_EV_DONE, US_JSON_NULL, false, s->pos, s->pos};
        return US_OK;
    }
    if (s->pos >= s->len) return bad(s, err, "json", "the text ends too early");
    char c = s->text[s->pos];
    if (s->state == WANT_COMMA_OR_END) {
        bool object = s->in_object[s->depth - 1];
        if (c == (object ? '}' : ']')) return scan_end(s, t);
        if (c != ',') return bad(s, err, "json", object ? "',' or '}' is expected" : "',' or ']' is expected");
        s->pos++;
        skip_space(s);
        s->state = object ? WANT_KEY : WANT_VALUE;
        if (s->pos >= s->len) return bad(s, err, "json", "the text ends too early");
        c = s->text[s->pos];
    }
    if (s->state == WANT_KEY_OR_END && c == '}') return scan_end(s, t);
    if (s->state == WANT_VALUE_OR_END && c == ']') return scan_end(s, t);
    if (s->state == WANT_KEY || s->state == WANT_KEY_OR_END) {
        if (c != '"') return bad(s, err, "json", "a key in quotes is expected");
        US_TRY(scan_string(s, t, err));
        t->event = US_JSON_EV_KEY;
        skip_space(s);
        if (s->pos >= s->len || s->text[s->pos] != ':') return bad(s, err, "json", "':' is expected");
        s->pos++;
        s->state = WANT_VALUE;
        return US_OK;
    }
    return scan_value(s, t, err);
}

/* Resolve the escapes of a checked string body; out has room for n bytes (escapes never grow). */
static size_t unescape(const char *p, size_t n, char *out) {
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        if (p[i] != '\\') {
            out[o++] = p[i++];
            continue;
        }
        char e = p[i + 1];
        if (e != 'u') {
            out[o++] = e == 'b' ? '\b' : e == 'f' ? '\f' : e == 'n' ? '\n' : e == 'r' ? '\r' : e == 't' ? '\t' : e;
            i += 2;
            continue;
        }
        unsigned u = (unsigned)hex4(p + i + 2);
        i += 6;
        if (u >= 0xd800 && u < 0xdc00) {
            u = 0x10000 + ((u - 0xd800) << 10) + ((unsigned)hex4(p + i + 2) - 0xdc00);
            i += 6;
        }
        o += us_utf8_put(out + o, u);
    }
    return o;
}

us_status us_json_scan_string(const us_json_scan *s, const us_json_token *t, us_buf *buf, us_str *out, us_err *err) {
    us_str body = {s->text + t->begin + 1, t->end - t->begin - 2};
    if (!t->escaped) {
        *out = body;
        return US_OK;
    }
    us_buf_clear(buf);
    if (!us_buf_reserve(buf, body.n)) return us_fail_nomem(err, "reading a JSON string");
    buf->n = unescape(body.p, body.n, buf->p);
    *out = us_buf_view(buf);
    return US_OK;
}

bool us_json_text_u64(us_str raw, uint64_t *out) {
    return us_str_to_u64(raw, out);
}

/* ---- document ---- */

enum { TYPE_MASK = 7, ESCAPED = 8, SHIFT = 4, FIELD_MAX = (1 << 28) - 1 };

static us_status count_nodes(us_str text, unsigned flags, uint64_t *n_nodes, uint64_t *n_escaped, us_err *err) {
    us_json_scan s;
    us_json_token t;
    us_json_scan_init(&s, text, flags);
    do {
        US_TRY(us_json_scan_next(&s, &t, err));
        if (t.event != US_JSON_EV_END && t.event != US_JSON_EV_DONE) ++*n_nodes;
        if (t.escaped) ++*n_escaped;
    } while (t.event != US_JSON_EV_DONE);
    return US_OK;
}

static us_str string_at(const us_json_doc *d, const us_json_node *n) {
    if (n->bits & ESCAPED) return d->decoded[n->bits >> SHIFT];
    return (us_str){d->text.p + n->begin + 1, n->end - n->begin - 2};
}

/* Sorting key indices needs the document; qsort_r is GNU but so are we (glibc and musl have it). */
static int compare_keys(const void *a, const void *b, void *doc) {
    const us_json_doc *d = doc;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    int c = us_str_cmp(string_at(d, &d->nodes[i]), string_at(d, &d->nodes[j]));
    return c ? c : (i > j) - (i < j);
}

static us_status check_duplicates(us_json_doc *d, us_err *err) {
    uint32_t *keys = NULL;
    size_t cap = 0;
    us_status status = US_OK;
    for (uint32_t o = 0; o < d->n_nodes && status == US_OK; o++) {
        const us_json_node *object = &d->nodes[o];
        if ((object->bits & TYPE_MASK) != US_JSON_OBJECT || object->bits >> SHIFT < 2) continue;
        size_t n = object->bits >> SHIFT;
        if (n > cap) {
            uint32_t *bigger = us_realloc(keys, n * sizeof *keys);
            if (!bigger) {
                status = us_fail_nomem(err, "reading JSON");
                break;
            }
            keys = bigger;
            cap = n;
        }
        uint32_t r = o + 1;
        for (size_t k = 0; k < n; k++) {
            keys[k] = r;
            r = d->nodes[r + 1].next;
        }
        qsort_r(keys, n, sizeof *keys, compare_keys, d);
        for (size_t k = 1; k < n && status == US_OK; k++) {
            us_str a = string_at(d, &d->nodes[keys[k - 1]]), b = string_at(d, &d->nodes[keys[k]]);
            if (!us_str_eq(a, b)) continue;
            status = us_fail(err, US_E_FORMAT, "duplicate-key", "the key \"%.*s\" stands twice in an object", US_STR_ARG(b));
            us_err_where(err, "byte %u", d->nodes[keys[k]].begin);
            if (err) err->offset = d->nodes[keys[k]].begin;
        }
    }
    us_free(keys);
    return status;
}

static us_status fill_nodes(us_json_doc *d, unsigned flags, us_err *err) {
    us_json_scan s;
    us_json_token t;
    uint32_t stack[US_JSON_DEPTH + 1], n = 0, n_decoded = 0;
    int depth = 0;
    us_json_scan_init(&s, d->text, flags);
    for (;;) {
        US_TRY(us_json_scan_next(&s, &t, err));
        if (t.event == US_JSON_EV_DONE) return US_OK;
        if (t.event == US_JSON_EV_END) {
            us_json_node *c = &d->nodes[stack[--depth]];
            c->end = (uint32_t)t.end;
            c->next = n;
            continue;
        }
        bool counts = t.event == US_JSON_EV_KEY || (depth && (d->nodes[stack[depth - 1]].bits & TYPE_MASK) == US_JSON_ARRAY);
        if (depth && counts) d->nodes[stack[depth - 1]].bits += 1u << SHIFT;
        us_json_node *node = &d->nodes[n];
        *node = (us_json_node){(uint32_t)t.begin, (uint32_t)t.end, n + 1, (uint32_t)t.type};
        if (t.escaped) {
            size_t len = t.end - t.begin - 2;
            char *text = us_arena_alloc(&d->arena, len);
            if (!text) return us_fail_nomem(err, "reading JSON");
            d->decoded[n_decoded] = (us_str){text, unescape(d->text.p + t.begin + 1, len, text)};
            node->bits |= ESCAPED | n_decoded++ << SHIFT;
        }
        if (t.event == US_JSON_EV_BEGIN) stack[depth++] = n;
        n++;
    }
}

us_status us_json_doc_parse(us_json_doc *d, us_str text, unsigned flags, us_err *err) {
    *d = (us_json_doc){.text = text};
    size_t bad_at;
    if (text.n >= UINT32_MAX) return us_fail(err, US_E_LIMIT, "limit", "a JSON text of %zu bytes is too large", text.n);
    if (!us_utf8_valid(text.p, text.n, &bad_at)) {
        us_fail(err, US_E_FORMAT, "utf8", "not valid UTF-8");
        us_err_where(err, "byte %zu", bad_at);
        if (err) err->offset = bad_at;
        return US_E_FORMAT;
    }
    uint64_t n = 0, n_escaped = 0;
    US_TRY(count_nodes(text, flags, &n, &n_escaped, err));
    if (n > FIELD_MAX) return us_fail(err, US_E_LIMIT, "limit", "a JSON text with %llu values is too large", (unsigned long long)n);
    d->nodes = us_malloc(n * sizeof *d->nodes);
    d->decoded = n_escaped ? us_malloc(n_escaped * sizeof *d->decoded) : NULL;
    us_status s = US_OK;
    if (!d->nodes || (n_escaped && !d->decoded)) s = us_fail_nomem(err, "reading JSON");
    if (s == US_OK) s = fill_nodes(d, flags, err);
    d->n_nodes = (uint32_t)n;
    if (s == US_OK) s = check_duplicates(d, err);
    if (s != US_OK) us_json_doc_free(d);
    return s;
}

us_status us_json_doc_take(us_json_doc *d, char *text, size_t len, unsigned flags, us_err *err) {
    us_status s = us_json_doc_parse(d, (us_str){text, len}, flags, err);
    if (s == US_OK) d->owned = text;
    else us_free(text);
    return s;
}

void us_json_doc_free(us_json_doc *d) {
    us_free(d->nodes);
    us_free(d->decoded);
    us_arena_free(&d->arena);
    us_free(d->owned);
    *d = (us_json_doc){0};
}

us_json_type us_json_type_of(const us_json_doc *d, us_json_ref r) {
    return r == US_JSON_NO ? US_JSON_NULL : (us_json_type)(d->nodes[r].bits & TYPE_MASK);
}

us_str us_json_raw(const us_json_doc *d, us_json_ref r) {
    if (r == US_JSON_NO) return (us_str){0};
    return us_str_sub(d->text, d->nodes[r].begin, d->nodes[r].end);
}

us_str us_json_string(const us_json_doc *d, us_json_ref r) {
    if (r == US_JSON_NO || us_json_type_of(d, r) != US_JSON_STRING) return (us_str){0};
    return string_at(d, &d->nodes[r]);
}

static bool container(const us_json_doc *d, us_json_ref r) {
    return r != US_JSON_NO && (d->nodes[r].bits & TYPE_MASK) >= US_JSON_ARRAY;
}

uint32_t us_json_count(const us_json_doc *d, us_json_ref r) {
    return container(d, r) ? d->nodes[r].bits >> SHIFT : 0;
}

us_json_ref us_json_get(const us_json_doc *d, us_json_ref object, const char *key) {
    if (object == US_JSON_NO || us_json_type_of(d, object) != US_JSON_OBJECT) return US_JSON_NO;
    us_str k = us_str_z(key);
    for (us_json_ref r = us_json_first(d, object); r != US_JSON_NO; r = us_json_next(d, object, r + 1))
        if (us_str_eq(string_at(d, &d->nodes[r]), k)) return r + 1;
    return US_JSON_NO;
}

us_json_ref us_json_path(const us_json_doc *d, us_json_ref from, const char *path) {
    char name[256];
    while (from != US_JSON_NO && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof name) return US_JSON_NO;
        memcpy(name, path, n);
        name[n] = 0;
        from = us_json_get(d, from, name);
        path += n + (path[n] == '.');
    }
    return from;
}

us_json_ref us_json_first(const us_json_doc *d, us_json_ref r) {
    return us_json_count(d, r) ? r + 1 : US_JSON_NO;
}

us_json_ref us_json_next(const us_json_doc *d, us_json_ref parent, us_json_ref r) {
    uint32_t next = d->nodes[r].next;
    return next < d->nodes[parent].next ? next : US_JSON_NO;
}

us_json_ref us_json_at(const us_json_doc *d, us_json_ref array, uint32_t i) {
    if (array == US_JSON_NO || us_json_type_of(d, array) != US_JSON_ARRAY) return US_JSON_NO;
    us_json_ref r = us_json_first(d, array);
    while (r != US_JSON_NO && i--) r = us_json_next(d, array, r);
    return r;
}

bool us_json_u64(const us_json_doc *d, us_json_ref r, uint64_t *out) {
    return r != US_JSON_NO && us_json_type_of(d, r) == US_JSON_NUMBER && us_json_text_u64(us_json_raw(d, r), out);
}

bool us_json_i64(const us_json_doc *d, us_json_ref r, int64_t *out) {
    uint64_t v;
    if (r == US_JSON_NO || us_json_type_of(d, r) != US_JSON_NUMBER) return false;
    us_str raw = us_json_raw(d, r);
    bool minus = raw.n && raw.p[0] == '-';
    if (!us_json_text_u64(us_str_sub(raw, minus, raw.n), &v)) return false;
    if (v > (uint64_t)INT64_MAX + minus) return false;
    *out = minus ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

bool us_json_double(const us_json_doc *d, us_json_ref r, double *out) {
    if (r == US_JSON_NO || us_json_type_of(d, r) != US_JSON_NUMBER) return false;
    us_str raw = us_json_raw(d, r);
    if (us_str_eqz(raw, "NaN")) return *out = (double)NAN, true;
    if (us_str_eqz(raw, "Infinity")) return *out = (double)INFINITY, true;
    if (us_str_eqz(raw, "-Infinity")) return *out = -(double)INFINITY, true;
    char small[64], *z = small;
    if (raw.n >= sizeof small && !(z = us_malloc(raw.n + 1))) return false;
    memcpy(z, raw.p, raw.n);
    z[raw.n] = 0;
    static locale_t c_locale; /* a lost race only makes one locale too many */
    if (!c_locale) c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *out = strtod_l(z, NULL, c_locale);
    if (z != small) us_free(z);
    return true;
}

bool us_json_bool(const us_json_doc *d, us_json_ref r, bool *out) {
    us_json_type t = us_json_type_of(d, r);
    if (r == US_JSON_NO || (t != US_JSON_TRUE && t != US_JSON_FALSE)) return false;
    *out = t == US_JSON_TRUE;
    return true;
}

/* ---- edits ---- */

static int by_begin(const void *a, const void *b) {
    const us_json_edit *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

us_status us_json_apply(us_str text, us_json_edit *edits, size_t n, us_buf *out, us_err *err) {
    if (n) qsort(edits, n, sizeof *edits, by_begin);
    size_t pos = 0;
    for (size_t i = 0; i < n; i++) {
        if (edits[i].begin < pos || edits[i].end < edits[i].begin || edits[i].end > text.n)
            return us_fail(err, US_E_INVAL, "edit", "overlapping edits of a JSON text");
        us_buf_str(out, us_str_sub(text, pos, edits[i].begin));
        us_buf_str(out, edits[i].with);
        pos = edits[i].end;
    }
    us_buf_str(out, us_str_sub(text, pos, text.n));
    return us_buf_status(out, err, "editing JSON");
}
