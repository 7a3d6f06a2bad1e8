/* Byte strings, growable buffer, text helpers. */
#define _POSIX_C_SOURCE 200809L
#include "base/str.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

us_str us_str_z(const char *z) {
    return (us_str){z, strlen(z)};
}

bool us_str_eq(us_str a, us_str b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool us_str_eqz(us_str a, const char *z) {
    return us_str_eq(a, us_str_z(z));
}

int us_str_cmp(us_str a, us_str b) {
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;
    if (c) return c;
    return a.n < b.n ? -1 : a.n > b.n;
}

bool us_str_starts(us_str a, us_str prefix) {
    return a.n >= prefix.n && us_str_eq((us_str){a.p, prefix.n}, prefix);
}

bool us_str_ends(us_str a, us_str suffix) {
    return a.n >= suffix.n && us_str_eq((us_str){a.p + (a.n - suffix.n), suffix.n}, suffix);
}

us_str us_str_sub(us_str a, size_t from, size_t to) {
    if (to > a.n) to = a.n;
    if (from > to) from = to;
    if (!a.p) return a; /* an absent string stays absent */
    return (us_str){a.p + from, to - from};
}

size_t us_str_find(us_str a, char c, size_t from) {
    if (from >= a.n) return a.n;
    const char *q = memchr(a.p + from, c, a.n - from);
    return q ? (size_t)(q - a.p) : a.n;
}

bool us_str_to_u64(us_str a, uint64_t *out) {
    if (a.n == 0 || a.n > 20 || (a.n > 1 && a.p[0] == '0')) return false;
    uint64_t v = 0;
    for (size_t i = 0; i < a.n; i++) {
        unsigned d = (unsigned)(unsigned char)a.p[i] - '0';
        if (d > 9 || v > (UINT64_MAX - d) / 10) return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

uint64_t us_str_hash(us_str a, uint64_t seed) {
    uint64_t h = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
    for (size_t i = 0; i < a.n; i++) h = (h ^ (unsigned char)a.p[i]) * 0x100000001b3u;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    return h;
}

/* Length of the valid UTF-8 sequence at p (n bytes left), 0 if invalid. */
static size_t utf8_len(const unsigned char *p, size_t n) {
    unsigned c = p[0];
    if (c < 0x80) return 1;
    if (c < 0xc2) return 0;
    size_t len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (len == 0 || n < len) return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (c == 0xe0 && p[1] < 0xa0) return 0;
    if (c == 0xed && p[1] > 0x9f) return 0;
    if (c == 0xf0 && p[1] < 0x90) return 0;
    if (c == 0xf4 && p[1] > 0x8f) return 0;
    return len;
}

bool us_utf8_valid(const char *p, size_t n, size_t *bad) {
    const unsigned char *u = (const unsigned char *)p;
    size_t i = 0;
    while (i < n) {
        while (i + 8 <= n) { /* eight ASCII bytes at once */
            uint64_t w;
            memcpy(&w, u + i, 8);
            if (w & 0x8080808080808080u) break;
            i += 8;
        }
        if (i >= n) break;
        size_t len = utf8_len(u + i, n - i);
        if (len == 0) {
            if (bad) *bad = i;
            return false;
        }
        i += len;
    }
    return true;
}

void us_escape_line(const char *src, size_t n, char *dst, size_t cap) {
    const unsigned char *u = (const unsigned char *)src;
    size_t o = 0;
    if (cap == 0) return;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_len(u + i, n - i);
        bool control = len == 0 || u[i] < 0x20 || u[i] == 0x7f || (len == 2 && u[i] == 0xc2 && u[i + 1] < 0xa0);
        size_t need = control ? 4 * (len ? len : 1) : len;
        if (o + need + 4 > cap) { /* room for "..." and NUL */
            size_t dots = cap - 1 - o < 3 ? cap - 1 - o : 3;
            memset(dst + o, '.', dots);
            o += dots;
            break;
        }
        size_t take = len ? len : 1;
        for (size_t k = 0; k < take; k++) {
            if (control)
                o += (size_t)snprintf(dst + o, 5, "\\x%02x", u[i + k]);
            else
                dst[o++] = (char)u[i + k];
        }
        i += take;
    }
    dst[o] = 0;
}

const char *us_strerror(int sys, char *buf, size_t cap) {
    if (strerror_r(sys, buf, cap) != 0) snprintf(buf, cap, "error %d", sys);
    return buf;
}

size_t us_utf8_put(char *o, uint32_t u) {
    if (u < 0x80) {
        o[0] = (char)u;
        return 1;
    }
    if (u < 0x800) {
        o[0] = (char)(0xc0 | u >> 6);
        o[1] = (char)(0x80 | (u & 63));
        return 2;
    }
    if (u < 0x10000) {
        o[0] = (char)(0xe0 | u >> 12);
        o[1] = (char)(0x80 | (u >> 6 & 63));
        o[2] = (char)(0x80 | (u & 63));
        return 3;
    }
    o[0] = (char)(0xf0 | u >> 18);
    o[1] = (char)(0x80 | (u >> 12 & 63));
    o[2] = (char)(0x80 | (u >> 6 & 63));
    o[3] = (char)(0x80 | (u & 63));
    return 4;
}

void us_buf_free(us_buf *b) {
    us_free(b->p);
    *b = (us_buf){0};
}

void us_buf_clear(us_buf *b) {
    b->n = 0;
    b->failed = false;
}

bool us_buf_reserve(us_buf *b, size_t extra) {
    if (b->failed) return false;
    if (extra <= b->cap - b->n) return true;
    size_t want = b->n + extra;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    if (want < extra) {
        b->failed = true;
        return false;
    }
    while (cap < want) cap = cap > SIZE_MAX / 2 ? want : cap * 2;
    char *p = us_realloc(b->p, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void us_buf_add(us_buf *b, const void *p, size_t n) {
    if (n == 0 || !us_buf_reserve(b, n)) return;
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void us_buf_str(us_buf *b, us_str s) {
    us_buf_add(b, s.p, s.n);
}

void us_buf_z(us_buf *b, const char *z) {
    us_buf_add(b, z, strlen(z));
}

void us_buf_c(us_buf *b, char c) {
    us_buf_add(b, &c, 1);
}

void us_buf_printf(us_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && us_buf_reserve(b, (size_t)n + 1)) {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void us_buf_json(us_buf *b, us_str s) {
    const unsigned char *u = (const unsigned char *)s.p;
    us_buf_c(b, '"');
    size_t start = 0, i = 0;
    while (i < s.n) {
        size_t len = utf8_len(u + i, s.n - i);
        unsigned c = u[i];
        if (len >= 1 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
            i += len;
            continue;
        }
        us_buf_add(b, s.p + start, i - start);
        if (len == 0)
            us_buf_z(b, "\xef\xbf\xbd");
        else if (c == '"')
            us_buf_z(b, "\\\"");
        else if (c == '\\')
            us_buf_z(b, "\\\\");
        else if (c == '\n')
            us_buf_z(b, "\\n");
        else if (c == '\r')
            us_buf_z(b, "\\r");
        else if (c == '\t')
            us_buf_z(b, "\\t");
        else
            us_buf_printf(b, "\\u%04x", c);
        start = ++i;
    }
    us_buf_add(b, s.p + start, i - start);
    us_buf_c(b, '"');
}

const char *us_buf_text(us_buf *b) {
    if (!us_buf_reserve(b, 1)) return "";
    b->p[b->n] = 0;
    return b->p;
}

us_status us_buf_status(const us_buf *b, us_err *err, const char *doing) {
    return b->failed ? us_fail_nomem(err, doing) : US_OK;
}

static const char *format_scaled(uint64_t n, const char *const *units, char out[24]) {
    double v = (double)n;
    int u = 0;
    while (v >= 999.5 && u < 5) {
        v /= 1000;
        u++;
    }
    int digits = u == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    snprintf(out, 24, "%.*f%s%s", digits, v, units[u][0] ? " " : "", units[u]);
    return out;
}

const char *us_format_bytes(uint64_t n, char out[24]) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    return format_scaled(n, units, out);
}

const char *us_format_count(uint64_t n, char out[24]) {
    static const char *const units[] = {"", "k", "M", "B", "T", "P"};
    return format_scaled(n, units, out);
}
