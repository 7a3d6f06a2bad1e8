/* Text work of methods and filters. */
#include "model/chat/text.h"

#include <string.h>
#include <utf8proc.h>

bool chat_take(chat_run *r, us_buf *b, bool ok, chat_value *out) {
    ok = ok && chat_str_copy(r, us_buf_view(b), out);
    us_buf_free(b);
    return ok;
}

void chat_encode(uint32_t c, us_buf *out) {
    char t[4];
    us_buf_add(out, t, us_utf8_put(t, c));
}

bool chat_is_alpha(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool chat_is_numeric(uint32_t c, bool decimal) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || (!decimal && (k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO));
}

uint32_t chat_upper(uint32_t c) {
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
}

uint32_t chat_lower(uint32_t c) {
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

bool chat_recase(chat_run *r, us_str s, char mode, chat_value *out) {
    us_buf b = {0};
    bool start = true;
    for (size_t at = 0; at < s.n;) {
        uint32_t c = chat_decode(s, &at);
        bool up = mode == 'u' || ((mode == 'c' || mode == 't' || mode == 'T') && start) || (mode == 's' && chat_upper(c) != c);
        if (up && c == 0xdf) us_buf_z(&b, mode == 'u' || mode == 's' ? "SS" : "Ss");
        else chat_encode(up ? chat_upper(c) : mode == 's' && chat_lower(c) == c ? c : chat_lower(c), &b);
        if (mode == 't') start = !chat_is_alpha(c);
        else if (mode == 'T') start = chat_is_space(c) || (c < 0x80 && c && strchr("-([{<", (int)c) != NULL);
        else start = false;
    }
    return chat_take(r, &b, chat_step(r, s.n / 16), out);
}

static bool in_set(uint32_t c, const us_str *set) {
    if (!set) return chat_is_space(c);
    for (size_t at = 0; at < set->n;)
        if (chat_decode(*set, &at) == c) return true;
    return false;
}

us_str chat_strip(us_str s, const us_str *set, int sides) {
    size_t from = 0, to = s.n;
    while ((sides & 1) && from < to) {
        size_t at = from;
        if (!in_set(chat_decode(s, &at), set)) break;
        from = at;
    }
    while ((sides & 2) && to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)s.p[at] & 0xc0) == 0x80) at--;
        size_t after = at;
        if (!in_set(chat_decode(s, &after), set)) break;
        to = at;
    }
    return (us_str){s.p + from, to - from};
}

size_t chat_find(us_str s, us_str needle, size_t from) {
    if (from > s.n || needle.n > s.n - from) return SIZE_MAX;
    if (needle.n == 0) return from;
    for (size_t i = from; i + needle.n <= s.n; i++) {
        const char *p = memchr(s.p + i, needle.p[0], s.n - needle.n - i + 1);
        if (!p) return SIZE_MAX;
        i = (size_t)(p - s.p);
        if (memcmp(p, needle.p, needle.n) == 0) return i;
    }
    return SIZE_MAX;
}

size_t chat_rfind(us_str s, us_str needle) {
    if (needle.n > s.n) return SIZE_MAX;
    for (size_t i = s.n - needle.n + 1; i-- > 0;)
        if (needle.n == 0 || memcmp(s.p + i, needle.p, needle.n) == 0) return i;
    return SIZE_MAX;
}

bool chat_replace(chat_run *r, us_str s, us_str old, us_str with, int64_t max, chat_value *out) {
    us_buf b = {0};
    size_t at = 0;
    bool ok = true;
    for (int64_t k = 0; ok && (max < 0 || k < max); k++) {
        size_t hit = chat_find(s, old, at);
        if (hit == SIZE_MAX) break;
        if (old.n == 0) { /* before every character and at the end */
            us_buf_str(&b, with);
            if (at >= s.n) {
                at = s.n + 1;
                break;
            }
            size_t next = at;
            chat_decode(s, &next);
            us_buf_add(&b, s.p + at, next - at);
            at = next;
        } else {
            us_buf_add(&b, s.p + at, hit - at);
            us_buf_str(&b, with);
            at = hit + old.n;
        }
        ok = chat_step(r, 1) && (b.n <= r->memory_max || chat_fail(r, "LimitError", "a text grew beyond the limit of memory"));
    }
    if (at < s.n) us_buf_add(&b, s.p + at, s.n - at);
    return chat_take(r, &b, ok, out);
}
