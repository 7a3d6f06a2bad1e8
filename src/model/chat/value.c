/* Values: construction, comparison, printing. See value.h. */
#include "model/chat/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool chat_fail(chat_run *r, const char *kind, const char *fmt, ...) {
    if (r->failed) return false;
    r->failed = true;
    r->kind = kind;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    char *copy = us_arena_strndup(&r->arena, text, len);
    r->message = copy ? (us_str){copy, len} : US_LIT("out of memory");
    return false;
}

void *chat_alloc(chat_run *r, size_t n) {
    if (n > r->memory_max || r->used > r->memory_max - n) {
        chat_fail(r, "LimitError", "the template needs more than %zu MB of memory", r->memory_max >> 20);
        return NULL;
    }
    r->used += n + 16;
    void *p = us_arena_alloc(&r->arena, n);
    if (!p) chat_fail(r, "MemoryError", "out of memory");
    return p;
}

bool chat_step(chat_run *r, uint64_t n) {
    r->steps += n;
    if (r->steps <= r->steps_max) return true;
    return chat_fail(r, "LimitError", "the template takes more than %llu steps", (unsigned long long)r->steps_max);
}

chat_value chat_bool(bool b) {
    return (chat_value){.type = CHAT_BOOL, .u.b = b};
}

chat_value chat_int(int64_t i) {
    return (chat_value){.type = CHAT_INT, .u.i = i};
}

chat_value chat_float(double f) {
    return (chat_value){.type = CHAT_FLOAT, .u.f = f};
}

chat_value chat_str(us_str s) {
    return (chat_value){.type = CHAT_STR, .u.s = s.p ? s : US_LIT("")};
}

bool chat_str_copy(chat_run *r, us_str s, chat_value *out) {
    char *p = chat_alloc(r, s.n + 1);
    if (!p) return false;
    if (s.n) memcpy(p, s.p, s.n);
    p[s.n] = 0;
    *out = chat_str((us_str){p, s.n});
    return true;
}

bool chat_list_new(chat_run *r, chat_type type, size_t n, chat_value *out) {
    chat_list *l = chat_alloc(r, sizeof *l);
    size_t bytes;
    if (!l || !us_mul_size(n, sizeof *l->items, &bytes)) return false;
    l->items = chat_alloc(r, bytes);
    if (!l->items) return false;
    memset(l->items, 0, bytes);
    for (size_t i = 0; i < n; i++) l->items[i].u.s = US_LIT("undefined");
    l->n = n;
    *out = (chat_value){.type = type, .u.list = l};
    return true;
}

bool chat_dict_new(chat_run *r, chat_type type, size_t cap, chat_value *out) {
    chat_dict *d = chat_alloc(r, sizeof *d);
    if (!d) return false;
    *d = (chat_dict){.cap = cap};
    d->keys = chat_alloc(r, cap * sizeof *d->keys);
    d->values = chat_alloc(r, cap * sizeof *d->values);
    if (!d->keys || !d->values) return false;
    *out = (chat_value){.type = type, .u.dict = d};
    return true;
}

static size_t find_key(const chat_dict *d, const chat_value *key) {
    for (size_t i = 0; i < d->n; i++)
        if (chat_equal(&d->keys[i], key, 0)) return i;
    return d->n;
}

bool chat_dict_set(chat_run *r, chat_dict *d, chat_value key, chat_value value) {
    if (!chat_step(r, 1 + d->n / 16)) return false;
    if (key.type == CHAT_LIST || key.type == CHAT_DICT) return chat_fail(r, "TypeError", "unhashable type: '%s'", chat_type_name(&key));
    size_t i = find_key(d, &key);
    if (i == d->n && d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        chat_value *k = chat_alloc(r, cap * sizeof *k), *v = chat_alloc(r, cap * sizeof *v);
        if (!k || !v) return false;
        memcpy(k, d->keys, d->n * sizeof *k);
        memcpy(v, d->values, d->n * sizeof *v);
        d->keys = k;
        d->values = v;
        d->cap = cap;
    }
    if (i == d->n) d->keys[d->n++] = key;
    d->values[i] = value;
    return true;
}

const chat_value *chat_dict_get(chat_run *r, const chat_dict *d, const chat_value *key) {
    if (!chat_step(r, 1 + d->n / 16)) return NULL;
    size_t i = find_key(d, key);
    return i < d->n ? &d->values[i] : NULL;
}

const chat_value *chat_dict_getz(const chat_dict *d, us_str key) {
    for (size_t i = 0; i < d->n; i++)
        if (d->keys[i].type == CHAT_STR && us_str_eq(d->keys[i].u.s, key)) return &d->values[i];
    return NULL;
}

chat_value chat_undefined(chat_run *r, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    char *copy = chat_alloc(r, len + 1);
    if (copy) memcpy(copy, text, len + 1);
    return (chat_value){.type = CHAT_UNDEFINED, .u.s = copy ? (us_str){copy, len} : US_LIT("undefined")};
}

/* ---- questions ---- */

bool chat_truth(const chat_value *v) {
    switch (v->type) {
    case CHAT_UNDEFINED: case CHAT_NONE: return false;
    case CHAT_BOOL: return v->u.b;
    case CHAT_INT: return v->u.i != 0;
    case CHAT_FLOAT: return v->u.f != 0;
    case CHAT_STR: return v->u.s.n > 0;
    case CHAT_LIST: case CHAT_TUPLE: return v->u.list->n > 0;
    case CHAT_DICT: return v->u.dict->n > 0;
    default: return true;
    }
}

bool chat_is_number(const chat_value *v) {
    return v->type == CHAT_BOOL || v->type == CHAT_INT || v->type == CHAT_FLOAT;
}

double chat_number(const chat_value *v) {
    return v->type == CHAT_FLOAT ? v->u.f : v->type == CHAT_BOOL ? v->u.b : (double)v->u.i;
}

static int64_t integer(const chat_value *v) {
    return v->type == CHAT_BOOL ? v->u.b : v->u.i;
}

bool chat_equal(const chat_value *a, const chat_value *b, int depth) {
    if (depth > CHAT_DEPTH) return false;
    if (chat_is_number(a) && chat_is_number(b)) {
        if (a->type == CHAT_FLOAT || b->type == CHAT_FLOAT) return chat_number(a) == chat_number(b);
        return integer(a) == integer(b);
    }
    if (a->type != b->type) return false;
    switch (a->type) {
    case CHAT_UNDEFINED: case CHAT_NONE: return true;
    case CHAT_STR: case CHAT_BIG: return us_str_eq(a->u.s, b->u.s);
    case CHAT_LIST: case CHAT_TUPLE:
        if (a->u.list->n != b->u.list->n) return false;
        for (size_t i = 0; i < a->u.list->n; i++)
            if (!chat_equal(&a->u.list->items[i], &b->u.list->items[i], depth + 1)) return false;
        return true;
    case CHAT_DICT:
        if (a->u.dict->n != b->u.dict->n) return false;
        for (size_t i = 0; i < a->u.dict->n; i++) {
            size_t j = find_key(b->u.dict, &a->u.dict->keys[i]);
            if (j == b->u.dict->n || !chat_equal(&a->u.dict->values[i], &b->u.dict->values[j], depth + 1)) return false;
        }
        return true;
    default: return memcmp(&a->u, &b->u, sizeof(void *)) == 0;
    }
}

bool chat_compare(chat_run *r, const chat_value *a, const chat_value *b, const char *op, int *out) {
    if (a->type == CHAT_UNDEFINED || b->type == CHAT_UNDEFINED) {
        const chat_value *u = a->type == CHAT_UNDEFINED ? a : b;
        return chat_fail(r, u->safe ? "SecurityError" : "UndefinedError", "%.*s", US_STR_ARG(u->u.s));
    }
    if (chat_is_number(a) && chat_is_number(b)) {
        if (a->type != CHAT_FLOAT && b->type != CHAT_FLOAT) *out = (integer(a) > integer(b)) - (integer(a) < integer(b));
        else *out = (chat_number(a) > chat_number(b)) - (chat_number(a) < chat_number(b));
        return true;
    }
    if (a->type == CHAT_STR && b->type == CHAT_STR) {
        *out = us_str_cmp(a->u.s, b->u.s); /* UTF-8 sorts as its code points */
        return true;
    }
    if (a->type == b->type && (a->type == CHAT_LIST || a->type == CHAT_TUPLE)) {
        size_t n = a->u.list->n < b->u.list->n ? a->u.list->n : b->u.list->n;
        for (size_t i = 0; i < n; i++) {
            if (!chat_step(r, 1)) return false;
            if (chat_equal(&a->u.list->items[i], &b->u.list->items[i], 0)) continue;
            return chat_compare(r, &a->u.list->items[i], &b->u.list->items[i], op, out);
        }
        *out = (a->u.list->n > b->u.list->n) - (a->u.list->n < b->u.list->n);
        return true;
    }
    return chat_fail(r, "TypeError", "'%s' not supported between instances of '%s' and '%s'", op, chat_type_name(a), chat_type_name(b));
}

const char *chat_type_name(const chat_value *v) {
    static const char *const names[] = {"Undefined", "NoneType", "bool", "int", "int", "float", "str", "list", "tuple", "dict", "Namespace", "function", "LoopContext", "Cycler", "Joiner"};
    return names[v->type];
}

/* ---- text ---- */

uint32_t chat_decode(us_str s, size_t *at) {
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s.p + *at, (utf8proc_ssize_t)(s.n - *at), &c);
    if (n <= 0) return (unsigned char)s.p[(*at)++];
    *at += (size_t)n;
    return (uint32_t)c;
}

size_t chat_length(us_str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

size_t chat_offset(us_str s, size_t index) {
    size_t i = 0;
    while (i < s.n && index > 0) {
        i++;
        while (i < s.n && ((unsigned char)s.p[i] & 0xc0) == 0x80) i++;
        index--;
    }
    return i;
}

bool chat_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* ---- printing ---- */

/* The shortest digits that read back as the same double, laid out as Python does. */
void chat_print_float(double f, us_buf *out) {
    char text[40];
    if (isnan(f)) {
        us_buf_z(out, "nan");
        return;
    }
    if (isinf(f)) {
        us_buf_z(out, f < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, f);
        if (strtod(text, NULL) == f) break;
    }
    char *e = strchr(text, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10), negative = text[0] == '-';
    char digits[32];
    int n = 0;
    for (char *p = text + negative; p < e; p++)
        if (*p != '.') digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0') n--;
    if (negative) us_buf_c(out, '-');
    if (exponent < -4 || exponent >= 16) {
        us_buf_c(out, digits[0]);
        if (n > 1) {
            us_buf_c(out, '.');
            us_buf_add(out, digits + 1, (size_t)n - 1);
        }
        us_buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
        return;
    }
    if (exponent < 0) {
        us_buf_z(out, "0.");
        for (int i = -1; i > exponent; i--) us_buf_c(out, '0');
        us_buf_add(out, digits, (size_t)n);
        return;
    }
    for (int i = 0; i <= exponent; i++) us_buf_c(out, i < n ? digits[i] : '0');
    us_buf_c(out, '.');
    if (n > exponent + 1) us_buf_add(out, digits + exponent + 1, (size_t)(n - exponent - 1));
    else us_buf_c(out, '0');
}

/* str.isprintable for one code point. */
static bool printable(uint32_t c) {
    if (c == ' ') return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN: case UTF8PROC_CATEGORY_ZS: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP: case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CS: case UTF8PROC_CATEGORY_CO: return false;
    default: return true;
    }
}

static void repr_str(us_str s, us_buf *out) {
    bool single = us_str_find(s, '\'', 0) < s.n, dbl = us_str_find(s, '"', 0) < s.n;
    char quote = single && !dbl ? '"' : '\'';
    us_buf_c(out, quote);
    for (size_t at = 0; at < s.n;) {
        size_t start = at;
        uint32_t c = chat_decode(s, &at);
        if (c == (unsigned char)quote || c == '\\') us_buf_c(out, '\\'), us_buf_c(out, (char)c);
        else if (c == '\n') us_buf_z(out, "\\n");
        else if (c == '\r') us_buf_z(out, "\\r");
        else if (c == '\t') us_buf_z(out, "\\t");
        else if (printable(c)) us_buf_add(out, s.p + start, at - start);
        else if (c < 0x100) us_buf_printf(out, "\\x%02x", c);
        else if (c < 0x10000) us_buf_printf(out, "\\u%04x", c);
        else us_buf_printf(out, "\\U%08x", c);
    }
    us_buf_c(out, quote);
}

static bool within_output(chat_run *r, const us_buf *out) {
    if (out->failed) return chat_fail(r, "MemoryError", "out of memory");
    if (out->n <= r->output_max) return true;
    return chat_fail(r, "LimitError", "the template makes more than %zu MB of text", r->output_max >> 20);
}

bool chat_repr(chat_run *r, const chat_value *v, us_buf *out, int depth) {
    if (depth > CHAT_DEPTH) return chat_fail(r, "RecursionError", "a value is nested too deeply to be printed");
    if (!chat_step(r, 1) || !within_output(r, out)) return false;
    switch (v->type) {
    case CHAT_STR: repr_str(v->u.s, out); return true;
    case CHAT_UNDEFINED: us_buf_z(out, "Undefined"); return true;
    case CHAT_LIST: case CHAT_TUPLE:
        us_buf_c(out, v->type == CHAT_LIST ? '[' : '(');
        for (size_t i = 0; i < v->u.list->n; i++) {
            if (i) us_buf_z(out, ", ");
            if (!chat_repr(r, &v->u.list->items[i], out, depth + 1)) return false;
        }
        if (v->type == CHAT_TUPLE && v->u.list->n == 1) us_buf_c(out, ',');
        us_buf_c(out, v->type == CHAT_LIST ? ']' : ')');
        return true;
    case CHAT_DICT:
        us_buf_c(out, '{');
        for (size_t i = 0; i < v->u.dict->n; i++) {
            if (i) us_buf_z(out, ", ");
            if (!chat_repr(r, &v->u.dict->keys[i], out, depth + 1)) return false;
            us_buf_z(out, ": ");
            if (!chat_repr(r, &v->u.dict->values[i], out, depth + 1)) return false;
        }
        us_buf_c(out, '}');
        return true;
    default: return chat_print(r, v, out);
    }
}

bool chat_print(chat_run *r, const chat_value *v, us_buf *out) {
    switch (v->type) {
    case CHAT_UNDEFINED:
        if (v->safe) return chat_fail(r, "SecurityError", "%.*s", US_STR_ARG(v->u.s));
        return true;
    case CHAT_NONE: us_buf_z(out, "None"); break;
    case CHAT_BOOL: us_buf_z(out, v->u.b ? "True" : "False"); break;
    case CHAT_INT: us_buf_printf(out, "%lld", (long long)v->u.i); break;
    case CHAT_FLOAT: chat_print_float(v->u.f, out); break;
    case CHAT_STR: case CHAT_BIG: us_buf_str(out, v->u.s); break;
    case CHAT_LIST: case CHAT_TUPLE: case CHAT_DICT: return chat_repr(r, v, out, 0);
    case CHAT_NAMESPACE: us_buf_z(out, "<Namespace>"); break;
    default: us_buf_printf(out, "<%s>", chat_type_name(v)); break;
    }
    return within_output(r, out);
}

bool chat_to_str(chat_run *r, const chat_value *v, us_str *out) {
    chat_value copy;
    us_buf b = {0};
    if (v->type == CHAT_STR) return *out = v->u.s, true;
    bool ok = chat_print(r, v, &b) && chat_str_copy(r, us_buf_view(&b), &copy);
    us_buf_free(&b);
    if (ok) *out = copy.u.s;
    return ok;
}

static void json_str(us_str s, bool ascii, us_buf *out) {
    us_buf_c(out, '"');
    for (size_t at = 0; at < s.n;) {
        size_t start = at;
        uint32_t c = chat_decode(s, &at);
        if (c == '"' || c == '\\') us_buf_c(out, '\\'), us_buf_c(out, (char)c);
        else if (c == '\n') us_buf_z(out, "\\n");
        else if (c == '\r') us_buf_z(out, "\\r");
        else if (c == '\t') us_buf_z(out, "\\t");
        else if (c == '\b') us_buf_z(out, "\\b");
        else if (c == '\f') us_buf_z(out, "\\f");
        else if (c < 0x20 || (ascii && c == 0x7f && false)) us_buf_printf(out, "\\u%04x", c);
        else if (ascii && c > 0xffff) us_buf_printf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
        else if (ascii && c > 0x7e) us_buf_printf(out, c == 0x7f ? "\x7f" : "\\u%04x", c);
        else us_buf_add(out, s.p + start, at - start);
    }
    us_buf_c(out, '"');
}

static void new_line(const chat_json_style *st, int depth, us_buf *out) {
    if (st->indent < 0) return;
    us_buf_c(out, '\n');
    for (int i = 0; i < st->indent * depth; i++) us_buf_c(out, ' ');
}

static bool json_key(chat_run *r, const chat_value *k, us_str *out) {
    if (k->type == CHAT_STR) return *out = k->u.s, true;
    if (k->type == CHAT_BOOL) return *out = k->u.b ? US_LIT("true") : US_LIT("false"), true;
    if (k->type == CHAT_NONE) return *out = US_LIT("null"), true;
    if (chat_is_number(k) || k->type == CHAT_BIG) return chat_to_str(r, k, out);
    return chat_fail(r, "TypeError", "keys must be str, int, float, bool or None, not %s", chat_type_name(k));
}

/* Order of keys for sort_keys: selection by the smallest not yet taken; dictionaries in templates are small. */
static bool key_order(chat_run *r, const chat_dict *d, bool sort, size_t **order) {
    *order = chat_alloc(r, (d->n + 1) * sizeof **order);
    if (!*order || !chat_step(r, sort ? d->n * d->n / 16 + 1 : 1)) return false;
    for (size_t i = 0; i < d->n; i++) (*order)[i] = i;
    for (size_t i = 1; sort && i < d->n; i++)
        for (size_t j = i; j > 0; j--) {
            int c;
            if (!chat_compare(r, &d->keys[(*order)[j - 1]], &d->keys[(*order)[j]], "<", &c)) return false;
            if (c <= 0) break;
            size_t t = (*order)[j];
            (*order)[j] = (*order)[j - 1];
            (*order)[j - 1] = t;
        }
    return true;
}

bool chat_json(chat_run *r, const chat_value *v, const chat_json_style *st, us_buf *out, int depth) {
    size_t *order;
    if (depth > CHAT_DEPTH) return chat_fail(r, "RecursionError", "a value is nested too deeply for tojson");
    if (!chat_step(r, 1) || !within_output(r, out)) return false;
    switch (v->type) {
    case CHAT_NONE: us_buf_z(out, "null"); return true;
    case CHAT_BOOL: us_buf_z(out, v->u.b ? "true" : "false"); return true;
    case CHAT_FLOAT:
        if (isnan(v->u.f)) us_buf_z(out, "NaN");
        else if (isinf(v->u.f)) us_buf_z(out, v->u.f < 0 ? "-Infinity" : "Infinity");
        else chat_print_float(v->u.f, out);
        return true;
    case CHAT_INT: case CHAT_BIG: return chat_print(r, v, out);
    case CHAT_STR: json_str(v->u.s, st->ascii, out); return true;
    case CHAT_LIST: case CHAT_TUPLE:
        us_buf_c(out, '[');
        for (size_t i = 0; i < v->u.list->n; i++) {
            if (i) us_buf_str(out, st->item_separator);
            new_line(st, depth + 1, out);
            if (!chat_json(r, &v->u.list->items[i], st, out, depth + 1)) return false;
        }
        if (v->u.list->n) new_line(st, depth, out);
        us_buf_c(out, ']');
        return true;
    case CHAT_DICT:
        if (!key_order(r, v->u.dict, st->sort, &order)) return false;
        us_buf_c(out, '{');
        for (size_t i = 0; i < v->u.dict->n; i++) {
            us_str k;
            if (!json_key(r, &v->u.dict->keys[order[i]], &k)) return false;
            if (i) us_buf_str(out, st->item_separator);
            new_line(st, depth + 1, out);
            json_str(k, st->ascii, out);
            us_buf_str(out, st->key_separator);
            if (!chat_json(r, &v->u.dict->values[order[i]], st, out, depth + 1)) return false;
        }
        if (v->u.dict->n) new_line(st, depth, out);
        us_buf_c(out, '}');
        return true;
    default: return chat_fail(r, "TypeError", "Object of type %s is not JSON serializable", chat_type_name(v));
    }
}

bool chat_iterate(chat_run *r, const chat_value *v, const chat_value **items, size_t *n) {
    *items = NULL;
    *n = 0;
    switch (v->type) {
    case CHAT_UNDEFINED:
        if (v->safe) return chat_fail(r, "SecurityError", "%.*s", US_STR_ARG(v->u.s));
        return true;
    case CHAT_LIST: case CHAT_TUPLE:
        *items = v->u.list->items;
        *n = v->u.list->n;
        return true;
    case CHAT_DICT:
        *items = v->u.dict->keys;
        *n = v->u.dict->n;
        return true;
    case CHAT_STR: {
        size_t count = chat_length(v->u.s), at = 0;
        if (!chat_step(r, count)) return false;
        chat_value *list = chat_alloc(r, (count + 1) * sizeof *list);
        if (!list) return false;
        for (size_t i = 0; i < count; i++) {
            size_t start = at;
            chat_decode(v->u.s, &at);
            list[i] = chat_str(us_str_sub(v->u.s, start, at));
        }
        *items = list;
        *n = count;
        return true;
    }
    default: return chat_fail(r, "TypeError", "'%s' object is not iterable", chat_type_name(v));
    }
}
