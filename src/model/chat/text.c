/* Text work of methods and filters. */
#include "model/chat/text.h"

#include <string.h>

bool chat_take(chat_run *r, us_buf *b, bool ok, chat_value *out) {
    ok = ok && chat_str_copy(r, us_buf_view(b), out);
    us_buf_free(b);
    return ok;
}

void chat_encode(uint32_t c, us_buf *out) {
    char t[4];
    us_buf_add(out, t, us_utf8_put(t, c));
}

static bool paired(uint32_t c) { /* blocks where upper and lower case alternate, upper first on an even code point */
    return (c >= 0x100 && c <= 0x137) || (c >= 0x14a && c <= 0x177) || (c >= 0x1e00 && c <= 0x1e95) || (c >= 0x1ea0 && c <= 0x1eff) || (c >= 0x460 && c <= 0x481) ||
           (c >= 0x48a && c <= 0x4bf) || (c >= 0x4d0 && c <= 0x52f);
}

uint32_t chat_upper(uint32_t c) {
    if (c >= 'a' && c <= 'z') return c - 32;
    if (c < 0xb5) return c;
    if (c == 0xb5) return 0x39c;
    if (c >= 0xe0 && c <= 0xfe && c != 0xf7) return c - 32;
    if (c == 0xff) return 0x178;
    if (c == 0x131) return 'I';
    if (paired(c)) return c & ~1u;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return c % 2 ? c : c - 1;
    if (c == 0x3c2) return 0x3a3;
    if (c >= 0x3b1 && c <= 0x3cb) return c - 32;
    if (c >= 0x430 && c <= 0x44f) return c - 32;
    if (c >= 0x450 && c <= 0x45f) return c - 80;
    return c;
}

uint32_t chat_lower(uint32_t c) {
    if (c >= 'A' && c <= 'Z') return c + 32;
    if (c < 0xc0) return c;
    if (c <= 0xde && c != 0xd7) return c + 32;
    if (c == 0x178) return 0xff;
    if (c == 0x130) return c;
    if (paired(c)) return c | 1;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return c % 2 ? c + 1 : c;
    if (c >= 0x391 && c <= 0x3ab && c != 0x3a2) return c + 32;
    if (c >= 0x410 && c <= 0x42f) return c + 32;
    if (c >= 0x400 && c <= 0x40f) return c + 80;
    return c;
}

bool chat_is_alpha(uint32_t c) {
    if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == 0xaa || c == 0xb5 || c == 0xba) return true;
    if (c < 0xc0 || c == 0xd7 || c == 0xf7) return false;
    if (chat_is_space(c) || (c >= 0x2000 && c <= 0x2bff) || (c >= 0x3000 && c <= 0x3004) || (c >= 0x3008 && c <= 0x3020)) return false;
    return !((c >= 0xfe10 && c <= 0xfe6f) || (c >= 0xff00 && c <= 0xff20) || (c >= 0x1f000 && c <= 0x1fbff) || (c >= 0x300 && c <= 0x36f));
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
