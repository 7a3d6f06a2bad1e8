/*
 * The two long members of tokenizer.json, read without a document: model.vocab as an object of numbers and model.merges as a list of strings or pairs. All the rest of the
 * file stays a text, in which the two are empty, for the ordinary strict parser. What does not have exactly this shape is left to that parser as a whole, which then says what is
 * wrong and where; so nothing here reports an error. Tests: as load.c.
 */
#include <string.h>

#include "model/tokenizer/load.h"

typedef struct reader {
    const char *p;
    size_t n, at;
    us_raw_model *raw;
    size_t vocab_cap, merges_cap;
} reader;

static void space(reader *r) {
    while (r->at < r->n && (r->p[r->at] == ' ' || r->p[r->at] == '\n' || r->p[r->at] == '\t' || r->p[r->at] == '\r')) r->at++;
}

static bool take(reader *r, char c) {
    space(r);
    if (r->at >= r->n || r->p[r->at] != c) return false;
    r->at++;
    return true;
}

/* A string; without escapes it is borrowed from the text. */
static bool string(reader *r, us_str *out) {
    space(r);
    size_t begin = r->at;
    if (begin >= r->n || r->p[begin] != '"') return false;
    size_t i = begin + 1;
    while (i < r->n && r->p[i] != '"' && r->p[i] != '\\' && (unsigned char)r->p[i] >= 0x20) i++;
    if (i < r->n && r->p[i] == '"') {
        *out = (us_str){r->p + begin + 1, i - begin - 1};
        r->at = i + 1;
        return true;
    }
    us_json_scan s;
    us_json_token t;
    us_err err = {0};
    us_buf buf = {0};
    us_str text = {0};
    us_json_scan_init(&s, (us_str){r->p, r->n}, 0);
    s.pos = begin;
    bool good = us_json_scan_next(&s, &t, &err) == US_OK && t.type == US_JSON_STRING && us_json_scan_string(&s, &t, &buf, &text, &err) == US_OK;
    char *copy = good ? us_arena_strndup(&r->raw->arena, text.p ? text.p : "", text.n) : NULL;
    us_buf_free(&buf);
    *out = (us_str){copy, text.n};
    r->at = s.pos;
    return copy != NULL;
}

/* Over a value of any kind; only its strings and brackets are looked at. */
static bool skip(reader *r) {
    size_t depth = 0;
    us_str ignored;
    for (;;) {
        space(r);
        if (r->at >= r->n) return false;
        char c = r->p[r->at];
        if (c == '"') {
            if (!string(r, &ignored)) return false;
        } else if (c == '{' || c == '[') {
            depth++;
            r->at++;
        } else if (c == '}' || c == ']') {
            if (!depth) return true;
            depth--;
            r->at++;
        } else if (c == ',' && !depth) {
            return true;
        } else {
            r->at++;
        }
        if (!depth && (c == '"' || c == '}' || c == ']')) return true;
    }
}

static bool number(reader *r, uint32_t *out) {
    space(r);
    size_t begin = r->at;
    uint64_t v = 0;
    while (r->at < r->n && r->p[r->at] >= '0' && r->p[r->at] <= '9' && r->at - begin < 9) v = v * 10 + (uint64_t)(r->p[r->at++] - '0');
    *out = (uint32_t)v;
    return r->at > begin && (r->p[begin] != '0' || r->at == begin + 1) && r->at < r->n && (r->p[r->at] < '0' || r->p[r->at] > '9') && v < US_TOK_ID_MAX;
}

/* Room for about as many entries as the rest of the text can hold, at once and in large pages; more is grown. */
static void *guess(const reader *r, size_t bytes_an_entry, size_t size, size_t *cap) {
    *cap = (r->n - r->at) / bytes_an_entry + 16;
    void *p = us_malloc_large(*cap * size, false);
    if (!p) *cap = 0;
    return p;
}

static bool vocab(reader *r) {
    us_raw_model *m = r->raw;
    if (!take(r, '{') || m->vocab) return false;
    m->vocab = guess(r, 36, sizeof *m->vocab, &r->vocab_cap);
    if (take(r, '}')) return false; /* nothing to gain */
    do {
        if (!us_grow(&m->vocab, &r->vocab_cap, m->n_vocab + 1, sizeof *m->vocab)) return false;
        us_raw_token *t = &m->vocab[m->n_vocab++];
        if (!string(r, &t->text) || !take(r, ':') || !number(r, &t->id)) return false;
    } while (take(r, ','));
    return take(r, '}');
}

static bool merge(reader *r, us_raw_merge *m) {
    space(r);
    if (r->at < r->n && r->p[r->at] == '[') {
        r->at++;
        return string(r, &m->a) && take(r, ',') && string(r, &m->b) && take(r, ']');
    }
    us_str s;
    if (!string(r, &s)) return false;
    const char *cut = memchr(s.p, ' ', s.n);
    if (!cut) return false;
    m->a = (us_str){s.p, (size_t)(cut - s.p)};
    m->b = (us_str){cut + 1, s.n - m->a.n - 1};
    return memchr(m->b.p, ' ', m->b.n) == NULL;
}

static bool merges(reader *r) {
    us_raw_model *m = r->raw;
    if (!take(r, '[') || m->merges) return false;
    if (take(r, ']')) return false;
    m->merges = guess(r, 28, sizeof *m->merges, &r->merges_cap);
    do {
        if (!us_grow(&m->merges, &r->merges_cap, m->n_merges + 1, sizeof *m->merges) || !merge(r, &m->merges[m->n_merges++])) return false;
    } while (take(r, ','));
    return take(r, ']');
}

/* The text without what was read: from the last cut to `begin`, then an empty container. */
static void cut(reader *r, size_t *done, size_t begin, const char *empty) {
    us_buf_add(&r->raw->rest, r->p + *done, begin - *done);
    us_buf_z(&r->raw->rest, empty);
    *done = r->at;
}

static bool model(reader *r, size_t *done) {
    us_str key;
    if (!take(r, '{')) return false;
    do {
        if (!string(r, &key) || !take(r, ':')) return false;
        space(r);
        size_t begin = r->at;
        if (us_str_eqz(key, "vocab")) {
            if (!vocab(r)) return false;
            cut(r, done, begin, "{}");
        } else if (us_str_eqz(key, "merges")) {
            if (!merges(r)) return false;
            cut(r, done, begin, "[]");
        } else if (!skip(r)) return false;
    } while (take(r, ','));
    return take(r, '}');
}

bool us_raw_read(us_str json, us_raw_model *out) {
    reader r = {.p = json.p, .n = json.n, .raw = out};
    us_str key;
    size_t done = 0;
    us_err err = {0};
    *out = (us_raw_model){0};
    bool seen = false, good = us_utf8_valid(json.p, json.n, NULL) && take(&r, '{');
    while (good) {
        good = string(&r, &key) && take(&r, ':');
        bool is_model = good && us_str_eqz(key, "model");
        if (is_model && seen) good = false;
        if (good) good = is_model ? model(&r, &done) : skip(&r);
        seen |= is_model;
        if (!good || !take(&r, ',')) break;
    }
    good = good && out->vocab && out->merges;
    if (good) us_buf_add(&out->rest, json.p + done, json.n - done);
    if (good && us_buf_status(&out->rest, &err, "reading a tokenizer") == US_OK) return true;
    us_raw_free(out);
    return false;
}

void us_raw_free(us_raw_model *m) {
    us_free(m->vocab);
    us_free(m->merges);
    us_buf_free(&m->rest);
    us_arena_free(&m->arena);
    *m = (us_raw_model){0};
}
