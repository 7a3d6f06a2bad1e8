/* Status codes and error details. Tests: tests/unit/test_base.c. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "understudy/us_status.h"

const char *us_status_name(us_status s) {
    switch (s) {
#define US_STATUS_CASE(name, value, text)                                                                              \
    case US_##name: return #name;
        US_STATUS_MAP(US_STATUS_CASE)
#undef US_STATUS_CASE
    }
    return "E_UNKNOWN";
}

const char *us_status_text(us_status s) {
    switch (s) {
#define US_STATUS_CASE(name, value, text)                                                                              \
    case US_##name: return text;
        US_STATUS_MAP(US_STATUS_CASE)
#undef US_STATUS_CASE
    }
    return "unknown status";
}

/* Formats into dst and escapes what would break "exactly one line": outside names end up in errors. */
static void format_line(char *dst, size_t cap, const char *fmt, va_list ap) US_PRINTF(3, 0);
static void format_line(char *dst, size_t cap, const char *fmt, va_list ap) {
    char raw[US_ERR_TEXT];
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    size_t len = n < 0 ? 0 : (size_t)n;
    if (len >= sizeof raw) len = sizeof raw - 1;
    us_escape_line(raw, len, dst, cap);
}

us_status us_fail(us_err *err, us_status code, const char *cls, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    memset(err, 0, sizeof *err);
    err->code = code;
    if (cls) snprintf(err->cls, sizeof err->cls, "%s", cls);
    va_start(ap, fmt);
    format_line(err->what, sizeof err->what, fmt, ap);
    va_end(ap);
    return code;
}

us_status us_fail_sys(us_err *err, int sys, const char *cls, const char *fmt, ...) {
    if (!err) return US_E_IO;
    va_list ap;
    char text[US_ERR_TEXT];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char buf[128];
    us_status s = us_fail(err, US_E_IO, cls, "%s: %s", text, us_strerror(sys, buf, sizeof buf));
    err->sys = sys;
    return s;
}

us_status us_fail_nomem(us_err *err, const char *doing) {
    return us_fail(err, US_E_NOMEM, "memory", "out of memory while %s", doing);
}

us_status us_err_where(us_err *err, const char *fmt, ...) {
    if (!err) return US_OK;
    char outer[US_ERR_TEXT], inner[US_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    format_line(outer, sizeof outer, fmt, ap);
    va_end(ap);
    memcpy(inner, err->where, sizeof inner);
    size_t n = strlen(outer);
    memcpy(err->where, outer, n + 1);
    if (inner[0] && n + 3 < sizeof err->where) {
        memcpy(err->where + n, ", ", 3);
        us_escape_line(inner, strlen(inner), err->where + n + 2, sizeof err->where - n - 2);
    }
    return err->code;
}

us_status us_err_todo(us_err *err, const char *fmt, ...) {
    if (!err) return US_OK;
    if (err->todo[0]) return err->code;
    va_list ap;
    va_start(ap, fmt);
    format_line(err->todo, sizeof err->todo, fmt, ap);
    va_end(ap);
    return err->code;
}

int us_err_line(const us_err *err, char *out, int cap) {
    int n = snprintf(out, (size_t)cap, "%s%s%s%s%s%s%s%s", err->what[0] ? err->what : us_status_text(err->code),
                     err->cls[0] ? " [" : "", err->cls, err->cls[0] ? "]" : "", err->where[0] ? ": " : "", err->where,
                     err->todo[0] ? ": " : "", err->todo);
    if (n < 0) return 0;
    return n < cap ? n : cap - 1;
}
