/* Filters and tests. */
#include "model/chat/eval.h"
#include "model/chat/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool listed(const char *const *list, us_str name) {
    for (; *list; list++)
        if (us_str_eqz(name, *list)) return true;
    return false;
}

static bool usable(chat_run *r, const chat_value *v) {
    if (v->type != CHAT_UNDEFINED) return true;
    return chat_fail(r, v->safe ? "SecurityError" : "UndefinedError", "%.*s", US_STR_ARG(v->u.s));
}

static bool flag(const chat_args *a, size_t i, const char *name, bool otherwise) {
    const chat_value *v = chat_arg(a, i, name);
    return v ? chat_truth(v) : otherwise;
}

static bool integer(chat_run *r, const chat_args *a, size_t i, const char *name, int64_t otherwise, int64_t *out) {
    const chat_value *v = chat_arg(a, i, name);
    if (!v || v->type == CHAT_NONE) return *out = otherwise, true;
    if (v->type == CHAT_BOOL) return *out = v->u.b, true;
    if (v->type != CHAT_INT) return chat_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer", chat_type_name(v));
    return *out = v->u.i, true;
}

/* ---- attributes of items: 'a.b.0' ---- */

static bool dig(chat_run *r, const chat_value *of, const chat_value *path, chat_value *out) {
    *out = *of;
    if (path->type == CHAT_INT) return chat_item(r, of, path, out);
    if (path->type != CHAT_STR) return chat_fail(r, "TypeError", "an attribute is a text or a number, not '%s'", chat_type_name(path));
    for (size_t at = 0; at <= path->u.s.n;) {
        size_t dot = us_str_find(path->u.s, '.', at);
        if (dot > path->u.s.n) dot = path->u.s.n;
        us_str part = us_str_sub(path->u.s, at, dot);
        uint64_t k = 0;
        chat_value from = *out, key = us_str_to_u64(part, &k) && k < INT64_MAX ? chat_int((int64_t)k) : chat_str(part);
        if (from.type == CHAT_UNDEFINED) return usable(r, &from);
        if (!chat_item(r, &from, &key, out)) return false;
        at = dot + 1;
    }
    return true;
}

/* ---- sorting ---- */

typedef struct keyed {
    chat_value key, value;
} keyed;

static bool folded(chat_run *r, chat_value *v, bool sensitive) {
    return sensitive || v->type != CHAT_STR || chat_recase(r, v->u.s, 'l', v);
}

/* Stable merge sort; comparison may fail. */
static bool merge_sort(chat_run *r, keyed *v, keyed *scratch, size_t n, bool reverse) {
    if (n < 2) return true;
    size_t m = n / 2, i = 0, j = m, k = 0;
    if (!merge_sort(r, v, scratch, m, reverse) || !merge_sort(r, v + m, scratch, n - m, reverse)) return false;
    while (i < m && j < n) {
        int c = 0;
        if (!chat_step(r, 1) || !chat_compare(r, &v[j].key, &v[i].key, "<", &c)) return false;
        scratch[k++] = (reverse ? c > 0 : c < 0) ? v[j++] : v[i++];
    }
    while (i < m) scratch[k++] = v[i++];
    while (j < n) scratch[k++] = v[j++];
    memcpy(v, scratch, n * sizeof *v);
    return true;
}

static keyed *keyed_items(chat_run *r, const chat_value *v, const chat_value *attribute, bool sensitive, size_t *n) {
    const chat_value *items;
    if (!chat_iterate(r, v, &items, n)) return NULL;
    keyed *k = chat_alloc(r, 2 * (*n + 1) * sizeof *k); /* the second half is scratch */
    for (size_t i = 0; k && i < *n; i++) {
        k[i].value = k[i].key = items[i];
        if (attribute && attribute->type != CHAT_NONE && !dig(r, &items[i], attribute, &k[i].key)) return NULL;
        if (!folded(r, &k[i].key, sensitive)) return NULL;
    }
    return k;
}

static bool as_list(chat_run *r, const keyed *k, size_t n, chat_value *out) {
    if (!chat_list_new(r, CHAT_LIST, n, out)) return false;
    for (size_t i = 0; i < n; i++) out->u.list->items[i] = k[i].value;
    return true;
}

static bool sort_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    size_t n;
    keyed *k = keyed_items(r, v, chat_arg(a, 2, "attribute"), flag(a, 1, "case_sensitive", false), &n);
    return k && merge_sort(r, k, k + n + 1, n, flag(a, 0, "reverse", false)) && as_list(r, k, n, out);
}

static bool dictsort_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *by = chat_arg(a, 1, "by");
    if (v->type != CHAT_DICT) return chat_fail(r, "TypeError", "dictsort takes a mapping, not '%s'", chat_type_name(v));
    bool values = by && by->type == CHAT_STR && us_str_eqz(by->u.s, "value");
    size_t n = v->u.dict->n;
    keyed *k = chat_alloc(r, 2 * (n + 1) * sizeof *k);
    for (size_t i = 0; k && i < n; i++) {
        if (!chat_list_new(r, CHAT_TUPLE, 2, &k[i].value)) return false;
        k[i].value.u.list->items[0] = v->u.dict->keys[i];
        k[i].value.u.list->items[1] = v->u.dict->values[i];
        k[i].key = values ? v->u.dict->values[i] : v->u.dict->keys[i];
        if (!folded(r, &k[i].key, flag(a, 0, "case_sensitive", false))) return false;
    }
    return k && merge_sort(r, k, k + n + 1, n, flag(a, 2, "reverse", false)) && as_list(r, k, n, out);
}

static bool unique_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    size_t n, kept = 0;
    keyed *k = keyed_items(r, v, chat_arg(a, 1, "attribute"), flag(a, 0, "case_sensitive", false), &n);
    for (size_t i = 0; k && i < n; i++) {
        bool seen = false;
        for (size_t j = 0; j < kept && !seen; j++) seen = chat_equal(&k[j].key, &k[i].key, 0);
        if (!chat_step(r, 1 + kept)) return false;
        if (!seen) k[kept++] = k[i];
    }
    return k && as_list(r, k, kept, out);
}

static bool extreme_filter(chat_run *r, us_str name, const chat_value *v, const chat_args *a, chat_value *out) {
    size_t n, best = 0;
    keyed *k = keyed_items(r, v, chat_arg(a, 1, "attribute"), flag(a, 0, "case_sensitive", false), &n);
    if (!k) return false;
    for (size_t i = 1; i < n; i++) {
        int c = 0;
        if (!chat_compare(r, &k[i].key, &k[best].key, "<", &c)) return false;
        if (us_str_eqz(name, "min") ? c < 0 : c > 0) best = i;
    }
    *out = n ? k[best].value : chat_undefined(r, "No aggregated item, sequence was empty.");
    return !r->failed;
}

static bool groupby_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *attribute = chat_arg(a, 0, "attribute");
    size_t n, groups = 0;
    if (!attribute) return chat_fail(r, "TypeError", "groupby() misses an attribute");
    keyed *k = keyed_items(r, v, attribute, flag(a, 2, "case_sensitive", false), &n);
    if (!k || !merge_sort(r, k, k + n + 1, n, false)) return false;
    for (size_t i = 0; i < n; i++) groups += i == 0 || !chat_equal(&k[i].key, &k[i - 1].key, 0);
    if (!chat_list_new(r, CHAT_LIST, groups, out)) return false;
    for (size_t i = 0, g = 0, end; i < n; i = end, g++) {
        for (end = i + 1; end < n && chat_equal(&k[end].key, &k[i].key, 0);) end++;
        chat_value *pair = &out->u.list->items[g];
        if (!chat_list_new(r, CHAT_TUPLE, 2, pair) || !dig(r, &k[i].value, attribute, &pair->u.list->items[0]) || !as_list(r, k + i, end - i, &pair->u.list->items[1])) return false;
    }
    return true;
}

/* ---- select, reject, map ---- */

static bool choose(chat_run *r, us_str name, const chat_value *v, const chat_args *a, chat_value *out) {
    bool want = us_str_starts(name, US_LIT("select")), by_attribute = us_str_ends(name, US_LIT("attr"));
    size_t skip = by_attribute ? 1 : 0, n, kept = 0;
    const chat_value *items;
    if (a->n_positional < skip) return chat_fail(r, "TypeError", "%.*s() misses the attribute", US_STR_ARG(name));
    if (!chat_iterate(r, v, &items, &n)) return false;
    chat_value *keep = chat_alloc(r, (n + 1) * sizeof *keep);
    if (!keep) return false;
    us_str test = US_LIT("");
    if (a->n_positional > skip) {
        if (a->v[skip].type != CHAT_STR || !chat_test_known(a->v[skip].u.s)) return chat_fail(r, "TemplateRuntimeError", "%.*s(): no such test", US_STR_ARG(name));
        test = a->v[skip].u.s;
        skip++;
    }
    chat_args rest = {a->v + skip, a->names + skip, a->n - skip, a->n_positional - skip};
    for (size_t i = 0; i < n; i++) {
        chat_value x = items[i];
        bool holds;
        if (!chat_step(r, 1) || (by_attribute && !dig(r, &items[i], &a->v[0], &x))) return false;
        if (test.n == 0) holds = chat_truth(&x);
        else if (!chat_test(r, test, &x, &rest, &holds)) return false;
        if (holds == want) keep[kept++] = items[i];
    }
    if (!chat_list_new(r, CHAT_LIST, kept, out)) return false;
    if (kept) memcpy(out->u.list->items, keep, kept * sizeof *keep);
    return true;
}

static bool map_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *items, *attribute = chat_arg(a, SIZE_MAX, "attribute"), *otherwise = chat_arg(a, SIZE_MAX, "default");
    size_t n;
    if (!chat_iterate(r, v, &items, &n) || !chat_list_new(r, CHAT_LIST, n, out)) return false;
    for (size_t i = 0; i < n; i++) {
        chat_value *x = &out->u.list->items[i];
        if (!chat_step(r, 1)) return false;
        if (attribute) {
            if (!dig(r, &items[i], attribute, x)) return false;
            if (x->type == CHAT_UNDEFINED && otherwise) *x = *otherwise;
            continue;
        }
        if (a->n_positional == 0 || a->v[0].type != CHAT_STR) return chat_fail(r, "FilterArgumentError", "map requires a filter argument");
        us_str f = a->v[0].u.s;
        chat_args rest = {a->v + 1, a->names + 1, a->n - 1, a->n_positional - 1};
        if (!chat_filter_known(f)) return chat_fail(r, "TemplateRuntimeError", "No filter named '%.*s'.", US_STR_ARG(f));
        if (++r->depth > CHAT_DEPTH) return chat_fail(r, "RecursionError", "filters recurse too deep");
        if (!chat_filter(r, f, &items[i], &rest, x)) return false;
        r->depth--;
    }
    return true;
}

/* ---- numbers ---- */

static bool int_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *otherwise = chat_arg(a, 0, "default");
    int64_t base = 10;
    if (!integer(r, a, 1, "base", 10, &base)) return false;
    *out = otherwise ? *otherwise : chat_int(0);
    if (v->type == CHAT_INT || v->type == CHAT_BIG) *out = *v;
    else if (v->type == CHAT_BOOL) *out = chat_int(v->u.b);
    else if (v->type == CHAT_FLOAT && fabs(v->u.f) < 9e18) *out = chat_int((int64_t)v->u.f);
    else if (v->type == CHAT_STR && base >= 2 && base <= 36) {
        char text[400], *end;
        us_str s = chat_strip(v->u.s, NULL, 3);
        if (s.n == 0 || s.n >= sizeof text) return true;
        memcpy(text, s.p, s.n);
        text[s.n] = 0;
        long long i = strtoll(text, &end, (int)base);
        if (*end == 0) return *out = chat_int(i), true;
        double f = strtod(text, &end);
        if (*end == 0 && fabs(f) < 9e18) *out = chat_int((int64_t)f);
    }
    return true;
}

static bool float_filter(const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *otherwise = chat_arg(a, 0, "default");
    *out = otherwise ? *otherwise : chat_float(0);
    if (chat_is_number(v)) *out = chat_float(chat_number(v));
    else if (v->type == CHAT_STR) {
        char text[400], *end;
        us_str s = chat_strip(v->u.s, NULL, 3);
        if (s.n == 0 || s.n >= sizeof text) return true;
        memcpy(text, s.p, s.n);
        text[s.n] = 0;
        double f = strtod(text, &end);
        if (*end == 0) *out = chat_float(f);
    }
    return true;
}

static bool round_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    int64_t digits = 0;
    const chat_value *method = chat_arg(a, 1, "method");
    if (!chat_is_number(v)) return chat_fail(r, "TypeError", "round takes a number, not '%s'", chat_type_name(v));
    if (!integer(r, a, 0, "precision", 0, &digits)) return false;
    bool common = !method || method->type != CHAT_STR || us_str_eqz(method->u.s, "common");
    if (common && v->type == CHAT_INT && digits >= 0) return *out = *v, true;
    double x = chat_number(v), scale = pow(10, (double)digits);
    if (method && method->type == CHAT_STR && us_str_eqz(method->u.s, "ceil")) x = ceil(x * scale) / scale;
    else if (method && method->type == CHAT_STR && us_str_eqz(method->u.s, "floor")) x = floor(x * scale) / scale;
    else if (digits >= 0 && digits <= 20) { /* correctly rounded, halves to even, as the decimal value stands */
        char text[400];
        snprintf(text, sizeof text, "%.*f", (int)digits, x);
        x = strtod(text, NULL);
    } else x = nearbyint(x * scale) / scale;
    return *out = chat_float(x), true;
}

static bool sum_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *items, *attribute = chat_arg(a, 0, "attribute"), *start = chat_arg(a, 1, "start");
    size_t n;
    double f = start ? chat_number(start) : 0;
    int64_t sum = start && start->type == CHAT_INT ? start->u.i : 0;
    bool real = start && start->type == CHAT_FLOAT;
    if (!chat_iterate(r, v, &items, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        chat_value x = items[i];
        if (attribute && attribute->type != CHAT_NONE && !dig(r, &items[i], attribute, &x)) return false;
        if (!usable(r, &x)) return false;
        if (!chat_is_number(&x)) return chat_fail(r, "TypeError", "unsupported operand type(s) for +: 'int' and '%s'", chat_type_name(&x));
        real |= x.type == CHAT_FLOAT;
        f += chat_number(&x);
        if (x.type != CHAT_FLOAT && __builtin_add_overflow(sum, x.type == CHAT_BOOL ? x.u.b : x.u.i, &sum)) return chat_fail(r, "LimitError", "an integer is too large");
    }
    *out = real ? chat_float(f) : chat_int(sum);
    return true;
}

/* ---- text ---- */

static bool join_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *items, *sep = chat_arg(a, 0, "d"), *attribute = chat_arg(a, 1, "attribute");
    size_t n;
    us_buf b = {0};
    bool ok = chat_iterate(r, v, &items, &n);
    for (size_t i = 0; ok && i < n; i++) {
        chat_value x = items[i];
        if (attribute && attribute->type != CHAT_NONE) ok = dig(r, &items[i], attribute, &x);
        if (ok && i && sep) ok = chat_print(r, sep, &b);
        ok = ok && chat_step(r, 1) && chat_print(r, &x, &b) && (b.n <= r->memory_max || chat_fail(r, "LimitError", "a text grew beyond the limit of memory"));
    }
    return chat_take(r, &b, ok, out);
}

static bool indent_filter(chat_run *r, us_str s, const chat_args *a, chat_value *out) {
    const chat_value *width = chat_arg(a, 0, "width");
    bool first = flag(a, 1, "first", false), blank = flag(a, 2, "blank", false);
    us_buf b = {0}, pad = {0};
    if (width && width->type == CHAT_STR) us_buf_str(&pad, width->u.s);
    else {
        int64_t n = 4;
        if (!integer(r, a, 0, "width", 4, &n)) return false;
        if (n > 10000) return chat_fail(r, "LimitError", "an indentation of %lld", (long long)n);
        for (int64_t i = 0; i < n; i++) us_buf_c(&pad, ' ');
    }
    bool ok = true;
    for (size_t at = 0, line = 0; ok && at <= s.n; line++) {
        size_t end = us_str_find(s, '\n', at);
        if (end > s.n) end = s.n;
        us_str text = us_str_sub(s, at, end);
        if (line) us_buf_c(&b, '\n');
        if (line ? blank || text.n : first) us_buf_str(&b, us_buf_view(&pad));
        us_buf_str(&b, text);
        at = end + 1;
        ok = chat_step(r, 1) && (b.n <= r->memory_max || chat_fail(r, "LimitError", "a text grew beyond the limit of memory"));
    }
    us_buf_free(&pad);
    return chat_take(r, &b, ok, out);
}

static bool escape_filter(chat_run *r, us_str s, chat_value *out) {
    us_buf b = {0};
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (c == '&') us_buf_z(&b, "&amp;");
        else if (c == '<') us_buf_z(&b, "&lt;");
        else if (c == '>') us_buf_z(&b, "&gt;");
        else if (c == '"') us_buf_z(&b, "&#34;");
        else if (c == '\'') us_buf_z(&b, "&#39;");
        else us_buf_c(&b, c);
    }
    return chat_take(r, &b, true, out);
}

static bool tojson_filter(chat_run *r, const chat_value *v, const chat_args *a, chat_value *out) {
    chat_json_style style = {.indent = -1, .item_separator = US_LIT(", "), .key_separator = US_LIT(": ")};
    const chat_value *indent = chat_arg(a, 1, "indent"), *separators = chat_arg(a, 2, "separators");
    int64_t n = 0;
    us_buf b = {0};
    style.ascii = flag(a, 0, "ensure_ascii", false);
    style.sort = flag(a, 3, "sort_keys", false);
    if (indent && indent->type != CHAT_NONE) {
        if (!integer(r, a, 1, "indent", 0, &n)) return false;
        style.indent = n < 0 ? 0 : n > 1000 ? 1000 : (int)n;
        style.item_separator = US_LIT(",");
    }
    if (separators && (separators->type == CHAT_TUPLE || separators->type == CHAT_LIST) && separators->u.list->n == 2 && separators->u.list->items[0].type == CHAT_STR &&
        separators->u.list->items[1].type == CHAT_STR) {
        style.item_separator = separators->u.list->items[0].u.s;
        style.key_separator = separators->u.list->items[1].u.s;
    } else if (separators && separators->type != CHAT_NONE) return chat_fail(r, "TypeError", "separators are a pair of texts");
    return chat_take(r, &b, chat_json(r, v, &style, &b, 0), out);
}

static bool string_arg(chat_run *r, const chat_args *a, size_t i, const char *name, us_str otherwise, us_str *out) {
    const chat_value *v = chat_arg(a, i, name);
    if (!v || v->type == CHAT_NONE) return *out = otherwise, true;
    return chat_to_str(r, v, out);
}

static bool wordcount(chat_run *r, us_str s, chat_value *out) {
    int64_t n = 0;
    bool in = false;
    for (size_t at = 0; at < s.n;) {
        uint32_t c = chat_decode(s, &at);
        bool word = c == '_' || chat_is_numeric(c, false) || chat_is_alpha(c);
        n += word && !in;
        in = word;
    }
    (void)r;
    return *out = chat_int(n), true;
}

static bool truncate_filter(chat_run *r, us_str s, const chat_args *a, chat_value *out) {
    int64_t length = 255, leeway = 5;
    us_str end;
    if (!integer(r, a, 0, "length", 255, &length) || !string_arg(r, a, 2, "end", US_LIT("..."), &end) || !integer(r, a, 3, "leeway", 5, &leeway)) return false;
    int64_t have = (int64_t)chat_length(s), keep = length - (int64_t)chat_length(end);
    if (length < 0 || leeway < 0 || keep < 0) return chat_fail(r, "AssertionError", "truncate: the length is shorter than its ending");
    if (have <= length || have - length <= leeway) return *out = chat_str(s), true;
    us_str cut = us_str_sub(s, 0, chat_offset(s, (size_t)keep));
    if (!flag(a, 1, "killwords", false)) {
        size_t space = chat_rfind(cut, US_LIT(" "));
        if (space != SIZE_MAX) cut.n = space;
    }
    us_buf b = {0};
    us_buf_str(&b, cut);
    us_buf_str(&b, end);
    return chat_take(r, &b, true, out);
}

/* ---- sequences ---- */

static bool sequence(chat_run *r, const chat_value *v, chat_value *out) {
    const chat_value *items;
    size_t n;
    if (!chat_iterate(r, v, &items, &n) || !chat_list_new(r, CHAT_LIST, n, out)) return false;
    if (n) memcpy(out->u.list->items, items, n * sizeof *items);
    return true;
}

static bool reverse_filter(chat_run *r, const chat_value *v, chat_value *out) {
    if (!sequence(r, v, out)) return false;
    chat_list *l = out->u.list;
    for (size_t i = 0; i < l->n / 2; i++) {
        chat_value t = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = t;
    }
    if (v->type != CHAT_STR) return true;
    chat_value list = *out;
    chat_args none = {NULL, NULL, 0, 0};
    return join_filter(r, &list, &none, out);
}

static bool end_item(chat_run *r, us_str name, const chat_value *v, chat_value *out) {
    const chat_value *items;
    size_t n;
    if (!chat_iterate(r, v, &items, &n)) return false;
    if (n) *out = us_str_eqz(name, "first") ? items[0] : items[n - 1];
    else *out = chat_undefined(r, "No %.*s item, sequence was empty.", US_STR_ARG(name));
    return !r->failed;
}

static bool items_filter(chat_run *r, const chat_value *v, chat_value *out) {
    chat_args none = {NULL, NULL, 0, 0};
    if (v->type == CHAT_UNDEFINED) return chat_list_new(r, CHAT_LIST, 0, out);
    if (v->type != CHAT_DICT) return chat_fail(r, "TypeError", "Can only get item pairs from a mapping.");
    return chat_method(r, v, US_LIT("items"), &none, out);
}

static bool batch_filter(chat_run *r, us_str name, const chat_value *v, const chat_args *a, chat_value *out) {
    const chat_value *items, *fill = chat_arg(a, 1, "fill_with");
    size_t n;
    int64_t count;
    bool slices = us_str_eqz(name, "slice");
    if (!chat_iterate(r, v, &items, &n) || !integer(r, a, 0, slices ? "slices" : "linecount", 0, &count)) return false;
    if (count < 1 || count > 1 << 20) return chat_fail(r, "ValueError", "%.*s takes a count from 1", US_STR_ARG(name));
    size_t c = (size_t)count, groups = slices ? c : (n + c - 1) / c, at = 0;
    if (!chat_list_new(r, CHAT_LIST, groups, out)) return false;
    for (size_t g = 0; g < groups; g++) {
        size_t take = slices ? n / c + (g < n % c) : n - at < c ? n - at : c;
        size_t full = !fill || fill->type == CHAT_NONE ? take : slices ? n / c + (n % c > 0) : c;
        if (slices && n % c == 0) full = take;
        if (!chat_list_new(r, CHAT_LIST, full, &out->u.list->items[g])) return false;
        for (size_t i = 0; i < full; i++) out->u.list->items[g].u.list->items[i] = i < take ? items[at + i] : *fill;
        at += take;
    }
    return true;
}

static bool length_filter(chat_run *r, const chat_value *v, chat_value *out) {
    switch (v->type) {
    case CHAT_UNDEFINED: return *out = chat_int(0), true;
    case CHAT_STR: return *out = chat_int((int64_t)chat_length(v->u.s)), true;
    case CHAT_LIST: case CHAT_TUPLE: return *out = chat_int((int64_t)v->u.list->n), true;
    case CHAT_DICT: return *out = chat_int((int64_t)v->u.dict->n), true;
    case CHAT_LOOP: return *out = chat_int((int64_t)v->u.loop->length), true;
    default: return chat_fail(r, "TypeError", "object of type '%s' has no len()", chat_type_name(v));
    }
}

static const char *const filters[] = {"abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "forceescape", "format", "groupby", "indent", "int",
    "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum",
    "title", "tojson", "trim", "truncate", "unique", "upper", "wordcount", NULL};

bool chat_filter_known(us_str name) {
    return listed(filters, name);
}

static bool text_filter(chat_run *r, us_str f, const chat_value *v, const chat_args *a, chat_value *out) {
    us_str s, x, y;
    int64_t k = 0;
    if (!chat_to_str(r, v, &s) || !chat_step(r, s.n / 64)) return false;
    if (us_str_eqz(f, "string") || us_str_eqz(f, "safe")) return *out = chat_str(s), true;
    if (us_str_eqz(f, "upper") || us_str_eqz(f, "lower") || us_str_eqz(f, "capitalize")) return chat_recase(r, s, f.p[0], out);
    if (us_str_eqz(f, "title")) return chat_recase(r, s, 'T', out);
    if (us_str_eqz(f, "trim")) {
        const chat_value *set = chat_arg(a, 0, "chars");
        bool given = set && set->type != CHAT_NONE;
        if (given && !chat_to_str(r, set, &x)) return false;
        return *out = chat_str(chat_strip(s, given ? &x : NULL, 3)), true;
    }
    if (us_str_eqz(f, "replace")) {
        if (!chat_arg(a, 0, "old") || !chat_arg(a, 1, "new")) return chat_fail(r, "TypeError", "replace takes old and new");
        return string_arg(r, a, 0, "old", s, &x) && string_arg(r, a, 1, "new", s, &y) && integer(r, a, 2, "count", -1, &k) && chat_replace(r, s, x, y, k, out);
    }
    if (us_str_eqz(f, "indent")) return indent_filter(r, s, a, out);
    if (us_str_eqz(f, "center")) {
        chat_value width = chat_int(80), text = chat_str(s);
        if (!integer(r, a, 0, "width", 80, &width.u.i)) return false;
        chat_args one = {&width, NULL, 1, 1};
        return chat_method(r, &text, f, &one, out);
    }
    if (us_str_eqz(f, "wordcount")) return wordcount(r, s, out);
    if (us_str_eqz(f, "truncate")) return truncate_filter(r, s, a, out);
    if (us_str_eqz(f, "format")) {
        chat_value all;
        if (!chat_list_new(r, CHAT_TUPLE, a->n_positional, &all)) return false;
        for (size_t i = 0; i < a->n_positional; i++) all.u.list->items[i] = a->v[i];
        return chat_percent(r, s, &all, out);
    }
    return escape_filter(r, s, out);
}

static bool abs_filter(chat_run *r, const chat_value *v, chat_value *out) {
    if (!chat_is_number(v)) return chat_fail(r, "TypeError", "bad operand type for abs(): '%s'", chat_type_name(v));
    if (v->type == CHAT_FLOAT) return *out = chat_float(fabs(v->u.f)), true;
    int64_t i = v->type == CHAT_BOOL ? v->u.b : v->u.i;
    if (i == INT64_MIN) return chat_fail(r, "LimitError", "an integer is too large");
    return *out = chat_int(i < 0 ? -i : i), true;
}

bool chat_filter(chat_run *r, us_str f, const chat_value *v, const chat_args *a, chat_value *out) {
    if (!chat_step(r, 1)) return false;
    if (v->type == CHAT_UNDEFINED && v->safe) return usable(r, v);
    if (us_str_eqz(f, "default") || us_str_eqz(f, "d")) {
        const chat_value *otherwise = chat_arg(a, 0, "default_value");
        bool use = v->type == CHAT_UNDEFINED || (flag(a, 1, "boolean", false) && !chat_truth(v));
        return *out = use ? (otherwise ? *otherwise : chat_str(US_LIT(""))) : *v, true;
    }
    if (us_str_eqz(f, "length") || us_str_eqz(f, "count")) return length_filter(r, v, out);
    if (us_str_eqz(f, "items")) return items_filter(r, v, out);
    if (us_str_eqz(f, "join")) return join_filter(r, v, a, out);
    if (us_str_eqz(f, "list")) return sequence(r, v, out);
    if (us_str_eqz(f, "map")) return map_filter(r, v, a, out);
    if (us_str_eqz(f, "sort")) return sort_filter(r, v, a, out);
    if (us_str_eqz(f, "unique")) return unique_filter(r, v, a, out);
    if (us_str_eqz(f, "groupby")) return groupby_filter(r, v, a, out);
    if (us_str_eqz(f, "reverse")) return reverse_filter(r, v, out);
    if (us_str_eqz(f, "sum")) return sum_filter(r, v, a, out);
    if (us_str_eqz(f, "batch") || us_str_eqz(f, "slice")) return batch_filter(r, f, v, a, out);
    if (us_str_eqz(f, "first") || us_str_eqz(f, "last")) return end_item(r, f, v, out);
    if (us_str_eqz(f, "min") || us_str_eqz(f, "max")) return extreme_filter(r, f, v, a, out);
    if (us_str_starts(f, US_LIT("select")) || us_str_starts(f, US_LIT("reject"))) return choose(r, f, v, a, out);
    if (us_str_eqz(f, "int")) return int_filter(r, v, a, out);
    if (us_str_eqz(f, "float")) return float_filter(v, a, out);
    if (us_str_eqz(f, "tojson")) return usable(r, v) && tojson_filter(r, v, a, out);
    if (us_str_eqz(f, "round")) return usable(r, v) && round_filter(r, v, a, out);
    if (us_str_eqz(f, "abs")) return usable(r, v) && abs_filter(r, v, out);
    if (us_str_eqz(f, "dictsort")) return usable(r, v) && dictsort_filter(r, v, a, out);
    if (us_str_eqz(f, "attr")) {
        const chat_value *name = chat_arg(a, 0, "name");
        if (!name || name->type != CHAT_STR) return chat_fail(r, "TypeError", "attr takes a name");
        if (v->type == CHAT_DICT) return *out = chat_undefined(r, "'dict object' has no attribute '%.*s'", US_STR_ARG(name->u.s)), !r->failed;
        return chat_attribute(r, v, name->u.s, false, out);
    }
    return text_filter(r, f, v, a, out);
}

/* ---- tests ---- */

static const char *const tests[] = {"defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "callable", "odd", "even",
    "divisibleby", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">=", "in", "sameas", "lower", "upper", "escaped", "filter", "test", NULL};

bool chat_test_known(us_str name) {
    return listed(tests, name);
}

static bool same(const chat_value *a, const chat_value *b) {
    if (a->type != b->type) return false;
    switch (a->type) {
    case CHAT_NONE: return true;
    case CHAT_LIST: case CHAT_TUPLE: return a->u.list == b->u.list;
    case CHAT_DICT: case CHAT_NAMESPACE: return a->u.dict == b->u.dict;
    default: return chat_equal(a, b, 0);
    }
}

static bool ordered(chat_run *r, us_str t, const chat_value *v, const chat_value *x, bool *out) {
    bool less = t.p[0] == 'l' || t.p[0] == '<', strict = us_str_eqz(t, "lt") || us_str_eqz(t, "gt") || us_str_eqz(t, "<") || us_str_eqz(t, ">") || us_str_ends(t, US_LIT("than"));
    int c = 0;
    if (!chat_compare(r, v, x, less ? (strict ? "<" : "<=") : (strict ? ">" : ">="), &c)) return false;
    *out = less ? (strict ? c < 0 : c <= 0) : (strict ? c > 0 : c >= 0);
    return true;
}

static bool cased(chat_run *r, us_str t, const chat_value *v, bool *out) {
    us_str s;
    chat_value method;
    chat_args none = {NULL, NULL, 0, 0};
    if (!chat_to_str(r, v, &s)) return false;
    chat_value text = chat_str(s);
    if (!chat_method(r, &text, us_str_eqz(t, "lower") ? US_LIT("islower") : US_LIT("isupper"), &none, &method)) return false;
    return *out = method.u.b, true;
}

bool chat_test(chat_run *r, us_str t, const chat_value *v, const chat_args *a, bool *out) {
    const chat_value *x = chat_arg(a, 0, NULL);
    chat_type k = v->type;
    if (!chat_step(r, 1)) return false;
    if (us_str_eqz(t, "defined")) return *out = k != CHAT_UNDEFINED, true;
    if (us_str_eqz(t, "undefined")) return *out = k == CHAT_UNDEFINED, true;
    if (us_str_eqz(t, "none")) return *out = k == CHAT_NONE, true;
    if (us_str_eqz(t, "string")) return *out = k == CHAT_STR, true;
    if (us_str_eqz(t, "number")) return *out = k == CHAT_INT || k == CHAT_BIG || k == CHAT_FLOAT || k == CHAT_BOOL, true;
    if (us_str_eqz(t, "integer")) return *out = k == CHAT_INT || k == CHAT_BIG, true;
    if (us_str_eqz(t, "float")) return *out = k == CHAT_FLOAT, true;
    if (us_str_eqz(t, "boolean")) return *out = k == CHAT_BOOL, true;
    if (us_str_eqz(t, "true")) return *out = k == CHAT_BOOL && v->u.b, true;
    if (us_str_eqz(t, "false")) return *out = k == CHAT_BOOL && !v->u.b, true;
    if (us_str_eqz(t, "mapping")) return *out = k == CHAT_DICT, true;
    if (us_str_eqz(t, "sequence")) return *out = k == CHAT_STR || k == CHAT_LIST || k == CHAT_TUPLE || k == CHAT_DICT || (k == CHAT_UNDEFINED && !v->safe), true;
    if (us_str_eqz(t, "iterable")) return *out = k == CHAT_STR || k == CHAT_LIST || k == CHAT_TUPLE || k == CHAT_DICT || k == CHAT_UNDEFINED || k == CHAT_LOOP, true;
    if (us_str_eqz(t, "callable")) return *out = k == CHAT_CALLABLE || k == CHAT_JOINER || (k == CHAT_LOOP), true;
    if (us_str_eqz(t, "escaped")) return *out = false, true;
    if (us_str_eqz(t, "filter")) return *out = k == CHAT_STR && chat_filter_known(v->u.s), true;
    if (us_str_eqz(t, "test")) return *out = k == CHAT_STR && chat_test_known(v->u.s), true;
    if (us_str_eqz(t, "lower") || us_str_eqz(t, "upper")) return cased(r, t, v, out);
    if (us_str_eqz(t, "odd") || us_str_eqz(t, "even") || us_str_eqz(t, "divisibleby")) {
        int64_t by = 2;
        if (!usable(r, v)) return false;
        if ((k != CHAT_INT && k != CHAT_BOOL) || (t.p[0] == 'd' && (!x || x->type != CHAT_INT))) return chat_fail(r, "TypeError", "test %.*s takes integers", US_STR_ARG(t));
        if (t.p[0] == 'd') by = x->u.i;
        if (by == 0) return chat_fail(r, "ZeroDivisionError", "integer modulo by zero");
        int64_t i = k == CHAT_BOOL ? v->u.b : v->u.i, m = by == -1 ? 0 : i % by;
        return *out = t.p[0] == 'o' ? m != 0 : m == 0, true;
    }
    if (!x) return chat_fail(r, "TypeError", "test %.*s misses an argument", US_STR_ARG(t));
    if (us_str_eqz(t, "eq") || us_str_eqz(t, "equalto") || us_str_eqz(t, "==")) return *out = chat_equal(v, x, 0), true;
    if (us_str_eqz(t, "ne") || us_str_eqz(t, "!=")) return *out = !chat_equal(v, x, 0), true;
    if (us_str_eqz(t, "sameas")) return *out = same(v, x), true;
    if (us_str_eqz(t, "in")) return chat_contains(r, x, v, out);
    return ordered(r, t, v, x, out);
}
