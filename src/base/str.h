/**
 * Byte strings with a length, a growable buffer, and the few text helpers everything needs.
 *
 * us_str borrows; us_buf owns. A us_buf keeps a sticky failure flag: append as often as you like and look once at the
 * end (us_buf_status), so that callers read top to bottom. Tests: tests/unit/test_base.c.
 */
#ifndef US_BASE_STR_H
#define US_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "understudy/us_status.h"

/** A borrowed run of bytes, not terminated. */
typedef struct us_str {
    const char *p;
    size_t n;
} us_str;

/** printf helper: printf("%.*s", US_STR_ARG(s)). Lengths above 2^31-1 are cut. */
#define US_STR_ARG(s) (int)((s).n > 0x7fffffff ? 0x7fffffff : (s).n), (s).p
#define US_LIT(text)  ((us_str){("" text), sizeof(text) - 1})

us_str us_str_z(const char *z);
bool us_str_eq(us_str a, us_str b);
bool us_str_eqz(us_str a, const char *z);
/** Byte order, shorter first on a common prefix: <0, 0, >0. */
int us_str_cmp(us_str a, us_str b);
bool us_str_starts(us_str a, us_str prefix);
bool us_str_ends(us_str a, us_str suffix);
us_str us_str_sub(us_str a, size_t from, size_t to);
/** Index of the first byte c at or after `from`, or a.n. */
size_t us_str_find(us_str a, char c, size_t from);
/** Unsigned decimal, whole string, no sign, no leading zero (but "0"), at most 2^64-1. */
bool us_str_to_u64(us_str a, uint64_t *out);
/** FNV-1a folded with a final avalanche; for tables, not for adversaries who know the seed. */
uint64_t us_str_hash(us_str a, uint64_t seed);

/** Copy text as one printable line: control bytes and invalid UTF-8 become \xNN. Always terminates dst; cuts with
 * "...". */
void us_escape_line(const char *src, size_t n, char *dst, size_t cap);
/** strerror that is safe in threads. */
const char *us_strerror(int sys, char *buf, size_t cap);
/** Strict UTF-8 (no surrogates, no overlong forms, at most U+10FFFF). On failure *bad = offset of the first bad byte
 * (may be NULL). */
bool us_utf8_valid(const char *p, size_t n, size_t *bad);
/** Code point u (at most 0x10ffff) as UTF-8 in o, which has room for 4 bytes; returns how many. */
size_t us_utf8_put(char *o, uint32_t u);

/** Growable bytes. Zero-initialise. */
typedef struct us_buf {
    char *p;
    size_t n, cap;
    bool failed; /* an allocation failed; contents are cut, us_buf_status says so */
} us_buf;

void us_buf_free(us_buf *b);
void us_buf_clear(us_buf *b);
bool us_buf_reserve(us_buf *b, size_t extra);
void us_buf_add(us_buf *b, const void *p, size_t n);
void us_buf_str(us_buf *b, us_str s);
void us_buf_z(us_buf *b, const char *z);
void us_buf_c(us_buf *b, char c);
void us_buf_printf(us_buf *b, const char *fmt, ...) US_PRINTF(2, 3);
/** Append s as a JSON string with quotes; bytes that are not UTF-8 become U+FFFD. */
void us_buf_json(us_buf *b, us_str s);
/** Terminate with NUL (not counted in n) and return the text; "" when allocation failed. */
const char *us_buf_text(us_buf *b);
us_status us_buf_status(const us_buf *b, us_err *err, const char *doing) US_WARN_UNUSED;
static inline us_str us_buf_view(const us_buf *b) {
    return (us_str){b->p ? b->p : "", b->n};
}

/** "61.1 GB", "512 B": powers of 1000, three digits. Returns out. */
const char *us_format_bytes(uint64_t n, char out[24]);
/** "235 B", "3.42 M", "512": counts in powers of 1000. Returns out. */
const char *us_format_count(uint64_t n, char out[24]);

#endif
