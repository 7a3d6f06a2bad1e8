/* Methods of text, lists, dicts, loops and cyclers; and text % arguments. */
#include "model/chat/eval.h"
#include "model/chat/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const text_methods[] = {"split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "startswith", "endswith", "upper", "lower", "title", "capitalize", "swapcase",
    "replace", "find", "rfind", "index", "rindex", "count", "join", "format", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower", "isnumeric", "isdecimal", "removeprefix",
    "removesuffix", "partition", "rpartition", "ljust", "rjust", "center", "zfill", NULL};
static const char *const list_methods[] = {"index", "count", NULL};
static const char *const list_unsafe[] = {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear", NULL};
static const char *const dict_methods[] = {"get", "items", "keys", "values", "copy", NULL};
static const char *const dict_unsafe[] = {"update", "pop", "popitem", "setdefault", "clear", NULL};
static const char *const loop_methods[] = {"cycle", "changed", NULL};
static const char *const cycler_methods[] = {"next", "reset", NULL};

static bool listed(const char *const *list, us_str name) {
    for (; list && *list; list++)
        if (us_str_eqz(name, *list)) return true;
    return false;
}

bool chat_has_method(const chat_value *v, us_str name, bool *unsafe) {
    *unsafe = (v->type == CHAT_LIST && listed(list_unsafe, name)) || (v->type == CHAT_DICT && listed(dict_unsafe, name));
    if (*unsafe) return true;
    switch (v->type) {
    case CHAT_STR: return listed(text_methods, name);
    case CHAT_LIST: case CHAT_TUPLE: return listed(list_methods, name);
    case CHAT_DICT: return listed(dict_methods, name);
    case CHAT_LOOP: return listed(loop_methods, name);
    case CHAT_CYCLER: return listed(cycler_methods, name);
    default: return false;
    }
}

/* ---- arguments ---- */

static bool too_few(chat_run *r, us_str name) {
    return chat_fail(r, "TypeError", "%.*s() misses an argument", US_STR_ARG(name));
}

static bool text_arg(chat_run *r, const chat_args *a, size_t i, us_str method, us_str *out) {
    const chat_value *v = chat_arg(a, i, NULL);
    if (!v) return too_few(r, method);
    if (v->type == CHAT_UNDEFINED) return chat_fail(r, "UndefinedError", "%.*s", US_STR_ARG(v->u.s));
    if (v->type != CHAT_STR) return chat_fail(r, "TypeError", "%.*s() takes text, not '%s'", US_STR_ARG(method), chat_type_name(v));
    return *out = v->u.s, true;
}

static bool int_arg(chat_run *r, const chat_args *a, size_t i, const char *name, int64_t otherwise, int64_t *out) {
    const chat_value *v = chat_arg(a, i, name);
    if (!v || v->type == CHAT_NONE) return *out = otherwise, true;
    if (v->type != CHAT_INT && v->type != CHAT_BOOL) return chat_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer", chat_type_name(v));
    return *out = v->type == CHAT_INT ? v->u.i : v->u.b, true;
}

/* ---- splitting ---- */

typedef struct parts {
    us_str *list;
    size_t n, cap;
} parts;

static bool add_part(chat_run *r, parts *p, us_str s) {
    if (!chat_step(r, 1)) return false;
    if (!us_grow(&p->list, &p->cap, p->n + 1, sizeof *p->list)) return chat_fail(r, "MemoryError", "out of memory");
    p->list[p->n++] = s;
    return true;
}

static bool parts_value(chat_run *r, parts *p, bool ok, bool reverse, chat_type type, chat_value *out) {
    ok = ok && chat_list_new(r, type, p->n, out);
    for (size_t i = 0; ok && i < p->n; i++) out->u.list->items[i] = chat_str(p->list[reverse ? p->n - 1 - i : i]);
    us_free(p->list);
    return ok;
}

static bool split_space(chat_run *r, us_str s, int64_t max, bool right, chat_value *out) {
    parts p = {0};
    bool ok = true;
    s = chat_strip(s, NULL, right ? 2 : 1);
    while (ok && s.n) {
        if (max >= 0 && (int64_t)p.n == max) {
            ok = add_part(r, &p, chat_strip(s, NULL, right ? 1 : 2));
            break;
        }
        size_t from = 0, to = s.n;
        if (!right) {
            for (size_t at = 0; at < s.n; to = at) {
                size_t before = at;
                if (chat_is_space(chat_decode(s, &at))) {
                    to = before;
                    break;
                }
            }
            ok = add_part(r, &p, us_str_sub(s, 0, to));
            s = chat_strip(us_str_sub(s, to, s.n), NULL, 1);
        } else {
            for (size_t at = 0; at < s.n;) {
                bool space = chat_is_space(chat_decode(s, &at));
                if (space) from = at;
            }
            ok = add_part(r, &p, us_str_sub(s, from, s.n));
            s = chat_strip(us_str_sub(s, 0, from), NULL, 2);
        }
    }
    return parts_value(r, &p, ok, right, CHAT_LIST, out);
}

static bool split(chat_run *r, us_str s, const chat_args *a, bool right, chat_value *out) {
    const chat_value *sep = chat_arg(a, 0, "sep");
    int64_t max = -1;
    if (!int_arg(r, a, 1, "maxsplit", -1, &max)) return false;
    if (!sep || sep->type == CHAT_NONE) return split_space(r, s, max, right, out);
    if (sep->type != CHAT_STR) return chat_fail(r, "TypeError", "must be str or None, not %s", chat_type_name(sep));
    if (sep->u.s.n == 0) return chat_fail(r, "ValueError", "empty separator");
    parts p = {0};
    bool ok = true;
    size_t from = 0, to = s.n;
    while (ok && (max < 0 || (int64_t)p.n < max)) {
        size_t hit = right ? chat_rfind(us_str_sub(s, 0, to), sep->u.s) : chat_find(s, sep->u.s, from);
        if (hit == SIZE_MAX) break;
        ok = add_part(r, &p, right ? us_str_sub(s, hit + sep->u.s.n, to) : us_str_sub(s, from, hit));
        if (right) to = hit;
        else from = hit + sep->u.s.n;
    }
    ok = ok && add_part(r, &p, us_str_sub(s, from, to));
    return parts_value(r, &p, ok, right, CHAT_LIST, out);
}

static bool is_line_end(uint32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static bool splitlines(chat_run *r, us_str s, bool keep, chat_value *out) {
    parts p = {0};
    bool ok = true;
    size_t from = 0;
    for (size_t at = 0; ok && at < s.n;) {
        size_t end = at;
        uint32_t c = chat_decode(s, &at);
        if (!is_line_end(c)) continue;
        if (c == '\r' && at < s.n && s.p[at] == '\n') at++;
        ok = add_part(r, &p, us_str_sub(s, from, keep ? at : end));
        from = at;
    }
    if (ok && from < s.n) ok = add_part(r, &p, us_str_sub(s, from, s.n));
    return parts_value(r, &p, ok, false, CHAT_LIST, out);
}

static bool partition(chat_run *r, us_str s, us_str sep, bool right, chat_value *out) {
    if (sep.n == 0) return chat_fail(r, "ValueError", "empty separator");
    size_t hit = right ? chat_rfind(s, sep) : chat_find(s, sep, 0);
    us_str none = US_LIT("");
    if (!chat_list_new(r, CHAT_TUPLE, 3, out)) return false;
    chat_value *v = out->u.list->items;
    v[0] = chat_str(hit == SIZE_MAX ? (right ? none : s) : us_str_sub(s, 0, hit));
    v[1] = chat_str(hit == SIZE_MAX ? none : sep);
    v[2] = chat_str(hit == SIZE_MAX ? (right ? s : none) : us_str_sub(s, hit + sep.n, s.n));
    return true;
}

/* ---- formatting ---- */

static void put_int(us_buf *b, char sign, const chat_value *v) {
    double f = v->type == CHAT_FLOAT ? trunc(v->u.f) : 0;
    int64_t i = v->type == CHAT_BOOL ? v->u.b : v->type == CHAT_INT ? v->u.i : 0;
    if (sign && f >= 0 && i >= 0) us_buf_c(b, sign);
    if (v->type == CHAT_FLOAT) us_buf_printf(b, "%.0f", f);
    else us_buf_printf(b, "%lld", (long long)i);
}

/* 'format' % args: %s %r %d %i %f %e %g %x %o %c %%, with flags, width and precision. */
bool chat_percent(chat_run *r, us_str f, const chat_value *args, chat_value *out) {
    us_buf b = {0}, one = {0};
    const chat_value *items = args->type == CHAT_TUPLE ? args->u.list->items : args;
    size_t n = args->type == CHAT_TUPLE ? args->u.list->n : 1, used = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < f.n; i++) {
        if (f.p[i] != '%') {
            us_buf_c(&b, f.p[i]);
            continue;
        }
        const chat_value *v = NULL;
        if (++i < f.n && f.p[i] == '(') {
            size_t close = us_str_find(f, ')', i);
            if (close >= f.n || args->type != CHAT_DICT) {
                ok = chat_fail(r, "TypeError", "format requires a mapping");
                break;
            }
            v = chat_dict_getz(args->u.dict, us_str_sub(f, i + 1, close));
            if (!v) ok = chat_fail(r, "KeyError", "'%.*s'", US_STR_ARG(us_str_sub(f, i + 1, close)));
            n = used = 1;
            i = close + 1;
        }
        bool left = false, zero = false, plus = false, blank = false;
        int width = 0, precision = -1;
        for (; i < f.n && strchr("-0+ #", f.p[i]); i++) left |= f.p[i] == '-', zero |= f.p[i] == '0', plus |= f.p[i] == '+', blank |= f.p[i] == ' ';
        for (; i < f.n && f.p[i] >= '0' && f.p[i] <= '9' && width < 100000; i++) width = width * 10 + f.p[i] - '0';
        if (i < f.n && f.p[i] == '.')
            for (precision = 0, i++; i < f.n && f.p[i] >= '0' && f.p[i] <= '9' && precision < 1000; i++) precision = precision * 10 + f.p[i] - '0';
        if (i >= f.n) ok = ok && chat_fail(r, "ValueError", "incomplete format");
        if (!ok) break;
        char c = f.p[i];
        us_buf_clear(&one);
        if (c == '%') us_buf_c(&one, '%');
        else {
            if (!v && used >= n) {
                ok = chat_fail(r, "TypeError", "not enough arguments for format string");
                break;
            }
            if (!v) v = &items[used++];
            bool number = chat_is_number(v);
            if (c == 's') ok = chat_print(r, v, &one);
            else if (c == 'r') ok = chat_repr(r, v, &one, 0);
            else if (c == 'c' && v->type == CHAT_STR) us_buf_str(&one, v->u.s);
            else if (!number && v->type != CHAT_BIG) ok = chat_fail(r, "TypeError", "%%%c format: a real number is required, not %s", c, chat_type_name(v));
            else if (c == 'd' || c == 'i' || c == 'u') {
                if (v->type == CHAT_BIG) us_buf_str(&one, v->u.s);
                else put_int(&one, plus ? '+' : blank ? ' ' : 0, v);
            } else if (c == 'x' || c == 'X' || c == 'o') {
                int64_t x = v->type == CHAT_BOOL ? v->u.b : v->type == CHAT_INT ? v->u.i : 0;
                uint64_t m = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
                if (x < 0) us_buf_c(&one, '-');
                if (c == 'x') us_buf_printf(&one, "%llx", (unsigned long long)m);
                else if (c == 'X') us_buf_printf(&one, "%llX", (unsigned long long)m);
                else us_buf_printf(&one, "%llo", (unsigned long long)m);
            } else if (c && strchr("feEgGF", c)) {
                char text[1400];
                int digits = precision < 0 ? 6 : precision;
                double x = chat_number(v);
                if (!signbit(x) && (plus || blank)) us_buf_c(&one, plus ? '+' : ' ');
                if (c == 'f' || c == 'F') snprintf(text, sizeof text, "%.*f", digits, x);
                else if (c == 'e') snprintf(text, sizeof text, "%.*e", digits, x);
                else if (c == 'E') snprintf(text, sizeof text, "%.*E", digits, x);
                else if (c == 'g') snprintf(text, sizeof text, "%.*g", digits, x);
                else snprintf(text, sizeof text, "%.*G", digits, x);
                us_buf_z(&one, text);
            } else ok = chat_fail(r, "ValueError", "unsupported format character '%c'", c);
        }
        us_str t = us_buf_view(&one);
        if ((c == 's' || c == 'r') && precision >= 0 && chat_length(t) > (size_t)precision) t.n = chat_offset(t, (size_t)precision);
        size_t have = chat_length(t), pad = (size_t)width > have ? (size_t)width - have : 0;
        bool zeros = zero && !left && c != 's' && c != 'r';
        size_t sign = zeros && t.n && (t.p[0] == '-' || t.p[0] == '+') ? 1 : 0;
        us_buf_add(&b, t.p, sign);
        for (size_t k = 0; k < pad && !left; k++) us_buf_c(&b, zeros ? '0' : ' ');
        us_buf_add(&b, t.p + sign, t.n - sign);
        for (size_t k = 0; k < pad && left; k++) us_buf_c(&b, ' ');
    }
    if (ok && used < n && args->type != CHAT_DICT && (args->type == CHAT_TUPLE || !(args->type == CHAT_LIST))) ok = chat_fail(r, "TypeError", "not all arguments converted during string formatting");
    us_buf_free(&one);
    return chat_take(r, &b, ok, out);
}

/* 'x {} {0} {name}'.format(...); format specifications are not taken. */
static bool brace_format(chat_run *r, us_str f, const chat_args *a, chat_value *out) {
    us_buf b = {0};
    size_t next = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < f.n; i++) {
        if ((f.p[i] == '{' || f.p[i] == '}') && i + 1 < f.n && f.p[i + 1] == f.p[i]) us_buf_c(&b, f.p[i++]);
        else if (f.p[i] == '}') ok = chat_fail(r, "ValueError", "Single '}' encountered in format string");
        else if (f.p[i] != '{') us_buf_c(&b, f.p[i]);
        else {
            size_t close = us_str_find(f, '}', i);
            if (close >= f.n) {
                ok = chat_fail(r, "ValueError", "expected '}' before end of string");
                break;
            }
            us_str field = us_str_sub(f, i + 1, close);
            const chat_value *v = NULL;
            uint64_t k = 0;
            if (field.n == 0) v = next < a->n_positional ? &a->v[next] : NULL, next++;
            else if (us_str_to_u64(field, &k)) v = k < a->n_positional ? &a->v[k] : NULL;
            else
                for (size_t q = a->n_positional; q < a->n; q++)
                    if (us_str_eq(a->names[q], field)) v = &a->v[q];
            ok = v ? chat_print(r, v, &b) : chat_fail(r, "IndexError", "format(): no argument for {%.*s} (fields are numbers or names)", US_STR_ARG(field));
            i = close;
        }
    }
    return chat_take(r, &b, ok, out);
}

/* ---- text ---- */

static bool all_of(us_str s, char what) {
    bool cased = false;
    for (size_t at = 0; at < s.n;) {
        uint32_t c = chat_decode(s, &at);
        bool up = chat_lower(c) != c, low = chat_upper(c) != c || c == 0xdf;
        if ((what == 'd' || what == '#') && !chat_is_numeric(c, what == 'd')) return false;
        if (what == 'a' && !chat_is_alpha(c)) return false;
        if (what == 'n' && !chat_is_numeric(c, false) && !chat_is_alpha(c)) return false;
        if (what == 's' && !chat_is_space(c)) return false;
        if (what == 'U' && low) return false;
        if (what == 'L' && up) return false;
        cased |= up || low;
    }
    return what == 'U' || what == 'L' ? cased : s.n > 0;
}

static bool has_affix(chat_run *r, us_str s, const chat_args *a, bool end, us_str name, chat_value *out) {
    const chat_value *v = chat_arg(a, 0, NULL);
    us_str x;
    bool holds = false;
    if (v && v->type == CHAT_TUPLE) {
        for (size_t i = 0; i < v->u.list->n; i++) {
            const chat_value *e = &v->u.list->items[i];
            if (e->type != CHAT_STR) return chat_fail(r, "TypeError", "tuple for %.*s must only contain str, not %s", US_STR_ARG(name), chat_type_name(e));
            holds |= end ? us_str_ends(s, e->u.s) : us_str_starts(s, e->u.s);
        }
    } else if (!text_arg(r, a, 0, name, &x)) return false;
    else holds = end ? us_str_ends(s, x) : us_str_starts(s, x);
    *out = chat_bool(holds);
    return true;
}

static bool where(chat_run *r, us_str s, const chat_args *a, us_str name, chat_value *out) {
    us_str x;
    int64_t from = 0;
    size_t length = chat_length(s);
    bool right = name.p[0] == 'r';
    if (!text_arg(r, a, 0, name, &x) || !int_arg(r, a, 1, NULL, 0, &from)) return false;
    if (from < 0) from = from + (int64_t)length < 0 ? 0 : from + (int64_t)length;
    size_t hit = SIZE_MAX, start = (size_t)from > length ? SIZE_MAX : chat_offset(s, (size_t)from);
    if (start != SIZE_MAX) hit = right ? chat_rfind(s, x) : chat_find(s, x, start);
    if (hit != SIZE_MAX && hit < start) hit = SIZE_MAX;
    if (hit == SIZE_MAX && us_str_ends(name, US_LIT("index"))) return chat_fail(r, "ValueError", "substring not found");
    *out = chat_int(hit == SIZE_MAX ? -1 : (int64_t)chat_length(us_str_sub(s, 0, hit)));
    return true;
}

static bool justify(chat_run *r, us_str s, const chat_args *a, us_str name, chat_value *out) {
    us_str fill = US_LIT(" ");
    int64_t width = 0;
    us_buf b = {0};
    if (!chat_arg(a, 0, NULL)) return too_few(r, name);
    if (!int_arg(r, a, 0, NULL, 0, &width) || (chat_arg(a, 1, NULL) && !text_arg(r, a, 1, name, &fill))) return false;
    bool zeros = us_str_eqz(name, "zfill");
    if (zeros) fill = US_LIT("0");
    int64_t have = (int64_t)chat_length(s), pad = width > have ? width - have : 0;
    if (pad > 1 << 20) return chat_fail(r, "LimitError", "a width of %lld", (long long)width);
    int64_t left = us_str_eqz(name, "ljust") ? 0 : us_str_eqz(name, "center") ? pad / 2 + (pad & width & 1) : pad;
    size_t sign = zeros && s.n && (s.p[0] == '-' || s.p[0] == '+') ? 1 : 0;
    us_buf_add(&b, s.p, sign);
    for (int64_t i = 0; i < left; i++) us_buf_str(&b, fill);
    us_buf_add(&b, s.p + sign, s.n - sign);
    for (int64_t i = left; i < pad; i++) us_buf_str(&b, fill);
    return chat_take(r, &b, true, out);
}

static bool join(chat_run *r, us_str sep, const chat_args *a, chat_value *out) {
    const chat_value *items, *v = chat_arg(a, 0, NULL);
    size_t n;
    us_buf b = {0};
    bool ok = true;
    if (!v) return too_few(r, US_LIT("join"));
    if (!chat_iterate(r, v, &items, &n)) return false;
    for (size_t i = 0; ok && i < n; i++) {
        if (items[i].type != CHAT_STR) ok = chat_fail(r, "TypeError", "sequence item %zu: expected str instance, %s found", i, chat_type_name(&items[i]));
        if (i) us_buf_str(&b, sep);
        if (ok) us_buf_str(&b, items[i].u.s);
        ok = ok && chat_step(r, 1 + (sep.n + items[i].u.s.n) / 64) && (b.n <= r->memory_max || chat_fail(r, "LimitError", "a text grew beyond the limit of memory"));
    }
    return chat_take(r, &b, ok, out);
}

static bool text_method(chat_run *r, us_str s, us_str m, const chat_args *a, chat_value *out) {
    us_str x, y;
    int64_t k = 0;
    if (us_str_eqz(m, "split") || us_str_eqz(m, "rsplit")) return split(r, s, a, m.p[0] == 'r', out);
    if (us_str_eqz(m, "splitlines")) return splitlines(r, s, chat_arg(a, 0, "keepends") && chat_truth(chat_arg(a, 0, "keepends")), out);
    if (us_str_ends(m, US_LIT("strip"))) {
        const chat_value *v = chat_arg(a, 0, NULL);
        bool set = v && v->type != CHAT_NONE;
        if (set && !text_arg(r, a, 0, m, &x)) return false;
        *out = chat_str(chat_strip(s, set ? &x : NULL, m.p[0] == 'l' ? 1 : m.p[0] == 'r' ? 2 : 3));
        return true;
    }
    if (us_str_eqz(m, "startswith") || us_str_eqz(m, "endswith")) return has_affix(r, s, a, m.p[0] == 'e', m, out);
    if (us_str_eqz(m, "upper") || us_str_eqz(m, "lower") || us_str_eqz(m, "title") || us_str_eqz(m, "capitalize") || us_str_eqz(m, "swapcase")) return chat_recase(r, s, m.p[0], out);
    if (us_str_eqz(m, "replace")) return text_arg(r, a, 0, m, &x) && text_arg(r, a, 1, m, &y) && int_arg(r, a, 2, "count", -1, &k) && chat_replace(r, s, x, y, k, out);
    if (us_str_eqz(m, "find") || us_str_eqz(m, "rfind") || us_str_eqz(m, "index") || us_str_eqz(m, "rindex")) return where(r, s, a, m, out);
    if (us_str_eqz(m, "count")) {
        if (!text_arg(r, a, 0, m, &x)) return false;
        k = x.n ? 0 : (int64_t)chat_length(s) + 1;
        for (size_t at = x.n ? chat_find(s, x, 0) : SIZE_MAX; at != SIZE_MAX; at = chat_find(s, x, at + x.n)) k++;
        return *out = chat_int(k), true;
    }
    if (us_str_eqz(m, "join")) return join(r, s, a, out);
    if (us_str_eqz(m, "format")) return brace_format(r, s, a, out);
    if (us_str_eqz(m, "isdigit") || us_str_eqz(m, "isdecimal")) return *out = chat_bool(all_of(s, 'd')), true;
    if (us_str_eqz(m, "isnumeric")) return *out = chat_bool(all_of(s, '#')), true;
    if (us_str_eqz(m, "isalpha")) return *out = chat_bool(all_of(s, 'a')), true;
    if (us_str_eqz(m, "isalnum")) return *out = chat_bool(all_of(s, 'n')), true;
    if (us_str_eqz(m, "isspace")) return *out = chat_bool(all_of(s, 's')), true;
    if (us_str_eqz(m, "isupper")) return *out = chat_bool(all_of(s, 'U')), true;
    if (us_str_eqz(m, "islower")) return *out = chat_bool(all_of(s, 'L')), true;
    if (us_str_eqz(m, "removeprefix")) return text_arg(r, a, 0, m, &x) && (*out = chat_str(us_str_starts(s, x) ? us_str_sub(s, x.n, s.n) : s), true);
    if (us_str_eqz(m, "removesuffix")) return text_arg(r, a, 0, m, &x) && (*out = chat_str(us_str_ends(s, x) ? us_str_sub(s, 0, s.n - x.n) : s), true);
    if (us_str_ends(m, US_LIT("partition"))) return text_arg(r, a, 0, m, &x) && partition(r, s, x, m.p[0] == 'r', out);
    return justify(r, s, a, m, out);
}

/* ---- the rest ---- */

static bool dict_method(chat_run *r, const chat_value *self, us_str m, const chat_args *a, chat_value *out) {
    const chat_dict *d = self->u.dict;
    if (us_str_eqz(m, "copy")) return *out = *self, true; /* nothing changes a dict */
    if (us_str_eqz(m, "get")) {
        const chat_value *key = chat_arg(a, 0, NULL), *otherwise = chat_arg(a, 1, NULL);
        if (!key) return too_few(r, m);
        const chat_value *v = chat_dict_get(r, d, key);
        *out = v ? *v : otherwise ? *otherwise : CHAT_NONE_VALUE;
        return !r->failed;
    }
    if (!chat_list_new(r, CHAT_LIST, d->n, out)) return false;
    for (size_t i = 0; i < d->n; i++) {
        chat_value *v = &out->u.list->items[i];
        if (m.p[0] == 'k') *v = d->keys[i];
        else if (m.p[0] == 'v') *v = d->values[i];
        else {
            if (!chat_list_new(r, CHAT_TUPLE, 2, v)) return false;
            v->u.list->items[0] = d->keys[i];
            v->u.list->items[1] = d->values[i];
        }
    }
    return true;
}

static bool list_method(chat_run *r, const chat_list *l, us_str m, const chat_args *a, chat_value *out) {
    const chat_value *x = chat_arg(a, 0, NULL);
    int64_t count = 0;
    if (!x) return too_few(r, m);
    for (size_t i = 0; i < l->n; i++) {
        if (!chat_equal(&l->items[i], x, 0)) continue;
        if (m.p[0] == 'i') return *out = chat_int((int64_t)i), true;
        count++;
    }
    if (m.p[0] == 'i') return chat_fail(r, "ValueError", "value is not in list");
    return *out = chat_int(count), true;
}

static bool loop_method(chat_run *r, chat_loop *l, us_str m, const chat_args *a, chat_value *out) {
    if (us_str_eqz(m, "cycle")) {
        if (a->n_positional == 0) return chat_fail(r, "TypeError", "no items for cycling given");
        return *out = a->v[l->index0 % a->n_positional], true;
    }
    chat_value now;
    if (!chat_list_new(r, CHAT_TUPLE, a->n_positional, &now)) return false;
    for (size_t i = 0; i < a->n_positional; i++) now.u.list->items[i] = a->v[i];
    bool same = l->changed && chat_equal(l->changed, &now, 0);
    if (!same) {
        l->changed = chat_alloc(r, sizeof *l->changed);
        if (!l->changed) return false;
        *l->changed = now;
    }
    return *out = chat_bool(!same), true;
}

bool chat_method(chat_run *r, const chat_value *self, us_str name, const chat_args *a, chat_value *out) {
    if (!chat_step(r, 1)) return false;
    switch (self->type) {
    case CHAT_STR: return chat_step(r, self->u.s.n / 64) && text_method(r, self->u.s, name, a, out);
    case CHAT_DICT: return dict_method(r, self, name, a, out);
    case CHAT_LIST: case CHAT_TUPLE: return list_method(r, self->u.list, name, a, out);
    case CHAT_LOOP: return loop_method(r, self->u.loop, name, a, out);
    case CHAT_CYCLER:
        if (name.p[0] == 'r') self->u.cycler->pos = 0, *out = CHAT_NONE_VALUE;
        else *out = self->u.cycler->items[self->u.cycler->pos % self->u.cycler->n], self->u.cycler->pos++;
        return true;
    default: return chat_fail(r, "TypeError", "'%s' object has no method %.*s", chat_type_name(self), US_STR_ARG(name));
    }
}
