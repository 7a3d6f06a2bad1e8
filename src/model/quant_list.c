/** Patterns of quantisation lists, by PCRE2 under limits. Header: quant_list.h. Tests: tests/unit/test_quant_list.c. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/quant_list.h"

#include <pcre2.h>

#include "base/alloc.h"

enum { MATCH_LIMIT = 1000000, DEPTH_LIMIT = 2000, HEAP_LIMIT_KIB = 4096 };

struct us_quant_pattern {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_code *code;
    pcre2_match_data *data;
};

static void *take(PCRE2_SIZE n, void *user) {
    (void)user;
    return us_malloc(n);
}

static void give(void *p, void *user) {
    (void)user;
    us_free(p);
}

bool us_quant_is_pattern(us_str s) {
    if (us_str_starts(s, US_LIT("re:"))) return true;
    return us_str_find(s, '*', 0) < s.n || us_str_find(s, '?', 0) < s.n;
}

static bool plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (unsigned char)c >= 0x80;
}

/* A bracket class of a glob from s.p[*i] == '['; false when it is not closed (then the bracket is a plain character). */
static bool glob_class(us_str s, size_t *i, us_buf *out) {
    size_t from = *i + 1, end = from;
    if (end < s.n && (s.p[end] == '!' || s.p[end] == '^')) end++;
    if (end < s.n && s.p[end] == ']') end++;
    while (end < s.n && s.p[end] != ']') end++;
    if (end >= s.n) return false;
    us_buf_c(out, '[');
    if (s.p[from] == '!') {
        us_buf_c(out, '^');
        from++;
    } else if (s.p[from] == '^') {
        us_buf_z(out, "\\^");
        from++;
    }
    for (; from < end; from++) {
        if (s.p[from] == '\\' || s.p[from] == '[' || s.p[from] == ']') us_buf_c(out, '\\');
        us_buf_c(out, s.p[from]);
    }
    us_buf_c(out, ']');
    *i = end;
    return true;
}

/* A glob as an expression over the whole name. */
static void glob_to_regex(us_str s, us_buf *out) {
    us_buf_z(out, "(?s)");
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (c == '*') {
            while (i + 1 < s.n && s.p[i + 1] == '*') i++; /* runs of stars only cost time */
            us_buf_z(out, ".*");
        } else if (c == '?') {
            us_buf_c(out, '.');
        } else if (c == '[' && glob_class(s, &i, out)) {
            continue;
        } else {
            if (!plain(c)) us_buf_c(out, '\\');
            us_buf_c(out, c);
        }
    }
    us_buf_z(out, "\\z");
}

static us_status compile(us_quant_pattern *p, us_str expression, us_err *err) {
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *cc = pcre2_compile_context_create(p->general);
    if (!cc) return us_fail_nomem(err, "compiling a pattern");
    pcre2_set_parens_nest_limit(cc, 100);
    p->code = pcre2_compile((PCRE2_SPTR)expression.p, expression.n, PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (p->code) return US_OK;
    if (code == PCRE2_ERROR_NOMEMORY || code == 121 /* out of memory while compiling */) return us_fail_nomem(err, "compiling a pattern");
    PCRE2_UCHAR text[128] = {0};
    pcre2_get_error_message(code, text, sizeof text);
    us_status st = us_fail(err, US_E_REFUSED, "regex", "a pattern is no regular expression: %s", (const char *)text);
    us_err_todo(err, "correct the pattern at its character %zu", (size_t)at);
    return st;
}

us_status us_quant_pattern_create(us_str entry, us_quant_pattern **out, us_err *err) {
    us_buf expression = {0};
    us_status st = US_OK;
    if (entry.n > US_QUANT_PATTERN_MAX) return us_fail(err, US_E_REFUSED, "limit", "a pattern of %zu bytes is too long", entry.n);
    us_quant_pattern *p = us_calloc(1, sizeof *p);
    if (!p) return us_fail_nomem(err, "compiling a pattern");
    if (us_str_starts(entry, US_LIT("re:"))) us_buf_str(&expression, us_str_sub(entry, 3, entry.n));
    else glob_to_regex(entry, &expression);
    st = us_buf_status(&expression, err, "compiling a pattern");
    if (st == US_OK) {
        p->general = pcre2_general_context_create(take, give, NULL);
        if (p->general) p->context = pcre2_match_context_create(p->general);
        if (!p->context) st = us_fail_nomem(err, "compiling a pattern");
    }
    if (st == US_OK) {
        pcre2_set_match_limit(p->context, MATCH_LIMIT);
        pcre2_set_depth_limit(p->context, DEPTH_LIMIT);
        pcre2_set_heap_limit(p->context, HEAP_LIMIT_KIB);
        st = compile(p, us_buf_view(&expression), err);
    }
    if (st == US_OK) {
        p->data = pcre2_match_data_create_from_pattern(p->code, p->general);
        if (!p->data) st = us_fail_nomem(err, "compiling a pattern");
    }
    us_buf_free(&expression);
    if (st == US_OK) *out = p;
    else us_quant_pattern_free(p);
    return st;
}

void us_quant_pattern_free(us_quant_pattern *p) {
    if (!p) return;
    pcre2_match_data_free(p->data);
    pcre2_code_free(p->code);
    pcre2_match_context_free(p->context);
    pcre2_general_context_free(p->general);
    us_free(p);
}

us_status us_quant_pattern_match(us_quant_pattern *p, us_str name, bool *out, us_err *err) {
    int rc = pcre2_match(p->code, (PCRE2_SPTR)name.p, name.n, 0, PCRE2_NO_UTF_CHECK, p->data, p->context);
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) {
        *out = rc >= 0;
        return US_OK;
    }
    if (rc == PCRE2_ERROR_NOMEMORY) return us_fail_nomem(err, "matching a pattern");
    us_status st = us_fail(err, US_E_LIMIT, "regex", "a pattern takes too long to match");
    us_err_todo(err, "simplify the pattern in the quantisation list");
    return st;
}
