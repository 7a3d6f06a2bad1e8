/* Global functions. */
#include "model/chat/eval.h"
#include "model/chat/text.h"

#include <string.h>

static const char *const globals[] = {"range", "namespace", "dict", "raise_exception", "strftime_now", "cycler", "joiner", "lipsum", "self", NULL};

bool chat_global_known(us_str name) {
    for (const char *const *g = globals; *g; g++)
        if (us_str_eqz(name, *g)) return true;
    return false;
}

static bool range(chat_run *r, const chat_args *a, chat_value *out) {
    int64_t v[3] = {0, 0, 1}, first, n = 0;
    if (a->n_positional < 1 || a->n_positional > 3) return chat_fail(r, "TypeError", "range takes 1 to 3 numbers");
    for (size_t i = 0; i < a->n_positional; i++) {
        if (a->v[i].type != CHAT_INT && a->v[i].type != CHAT_BOOL)
            return chat_fail(r, a->v[i].type == CHAT_UNDEFINED ? "UndefinedError" : "TypeError", "'%s' object cannot be interpreted as an integer", chat_type_name(&a->v[i]));
        v[a->n_positional == 1 ? 1 : i] = a->v[i].type == CHAT_INT ? a->v[i].u.i : a->v[i].u.b;
    }
    if (v[2] == 0) return chat_fail(r, "ValueError", "range() arg 3 must not be zero");
    first = v[0];
    if (v[2] > 0 ? v[1] > v[0] : v[1] < v[0]) {
        uint64_t span = v[2] > 0 ? (uint64_t)v[1] - (uint64_t)v[0] : (uint64_t)v[0] - (uint64_t)v[1], step = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
        if ((span - 1) / step >= 100000) return chat_fail(r, "OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
        n = (int64_t)((span - 1) / step) + 1;
    }
    if (!chat_list_new(r, CHAT_LIST, (size_t)n, out)) return false;
    for (int64_t i = 0; i < n; i++) out->u.list->items[i] = chat_int(first + i * v[2]);
    return true;
}

/* dict(pairs or mapping, a=1, ...) */
static bool mapping(chat_run *r, chat_type type, const chat_args *a, chat_value *out) {
    if (!chat_dict_new(r, type, a->n, out)) return false;
    if (a->n_positional > 1) return chat_fail(r, "TypeError", "expected at most 1 argument, got %zu", a->n_positional);
    if (a->n_positional && a->v[0].type == CHAT_DICT) {
        for (size_t i = 0; i < a->v[0].u.dict->n; i++)
            if (!chat_dict_set(r, out->u.dict, a->v[0].u.dict->keys[i], a->v[0].u.dict->values[i])) return false;
    } else if (a->n_positional) {
        const chat_value *items, *pair;
        size_t n, two;
        if (!chat_iterate(r, &a->v[0], &items, &n)) return false;
        for (size_t i = 0; i < n; i++) {
            if (!chat_iterate(r, &items[i], &pair, &two)) return false;
            if (two != 2) return chat_fail(r, "ValueError", "dictionary update sequence element #%zu has length %zu; 2 is required", i, two);
            if (!chat_dict_set(r, out->u.dict, pair[0], pair[1])) return false;
        }
    }
    for (size_t i = a->n_positional; i < a->n; i++)
        if (!chat_dict_set(r, out->u.dict, chat_str(a->names[i]), a->v[i])) return false;
    return true;
}

static bool strftime_now(chat_run *r, const chat_args *a, chat_value *out) {
    static const char *const months[] = {"January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"};
    static const char *const days[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    if (a->n < 1 || a->v[0].type != CHAT_STR) return chat_fail(r, "TypeError", "strftime_now takes a format");
    const int64_t *t = r->now;
    int y = (int)t[0], mo = (int)t[1], d = (int)t[2], h = (int)t[3], mi = (int)t[4], s = (int)t[5], w = (int)t[6];
    int day = before[mo - 1] + d + (mo > 2 && (y % 4 == 0 && (y % 100 != 0 || y % 400 == 0)));
    us_buf b = {0};
    us_str f = a->v[0].u.s;
    for (size_t i = 0; i < f.n; i++) {
        if (f.p[i] != '%' || i + 1 >= f.n) {
            us_buf_c(&b, f.p[i]);
            continue;
        }
        bool bare = f.p[i + 1] == '-' && i + 2 < f.n; /* no leading zero */
        if (bare) i++;
        int two = bare ? 1 : 2;
        switch (f.p[++i]) {
        case 'Y': us_buf_printf(&b, "%d", y); break;
        case 'y': us_buf_printf(&b, "%0*d", two, y % 100); break;
        case 'm': us_buf_printf(&b, "%0*d", two, mo); break;
        case 'd': us_buf_printf(&b, "%0*d", two, d); break;
        case 'e': us_buf_printf(&b, "%*d", two, d); break;
        case 'H': us_buf_printf(&b, "%0*d", two, h); break;
        case 'I': us_buf_printf(&b, "%0*d", two, h % 12 ? h % 12 : 12); break;
        case 'M': us_buf_printf(&b, "%0*d", two, mi); break;
        case 'S': us_buf_printf(&b, "%0*d", two, s); break;
        case 'j': us_buf_printf(&b, "%0*d", bare ? 1 : 3, day); break;
        case 'p': us_buf_z(&b, h < 12 ? "AM" : "PM"); break;
        case 'B': us_buf_z(&b, months[mo - 1]); break;
        case 'b': case 'h': us_buf_add(&b, months[mo - 1], 3); break;
        case 'A': us_buf_z(&b, days[w]); break;
        case 'a': us_buf_add(&b, days[w], 3); break;
        case 'w': us_buf_printf(&b, "%d", (w + 1) % 7); break;
        case 'u': us_buf_printf(&b, "%d", w + 1); break;
        case 'F': us_buf_printf(&b, "%d-%02d-%02d", y, mo, d); break;
        case 'T': us_buf_printf(&b, "%02d:%02d:%02d", h, mi, s); break;
        case 'R': us_buf_printf(&b, "%02d:%02d", h, mi); break;
        case 'D': us_buf_printf(&b, "%02d/%02d/%02d", mo, d, y % 100); break;
        case 'Z': case 'z': break; /* the clock has no zone, as datetime.now() */
        case 'f': us_buf_z(&b, "000000"); break;
        case 'n': us_buf_c(&b, '\n'); break;
        case 't': us_buf_c(&b, '\t'); break;
        case '%': us_buf_c(&b, '%'); break;
        default: us_buf_c(&b, '%'); us_buf_c(&b, f.p[i]);
        }
    }
    return chat_take(r, &b, true, out);
}

static bool cycler(chat_run *r, chat_type type, const chat_args *a, chat_value *out) {
    static const chat_value comma = {.type = CHAT_STR, .u.s = {", ", 2}};
    chat_cycler *c = chat_alloc(r, sizeof *c);
    if (!c) return false;
    if (type == CHAT_CYCLER && a->n_positional == 0) return chat_fail(r, "RuntimeError", "at least one item has to be provided");
    *c = (chat_cycler){.items = a->n ? a->v : &comma, .n = a->n ? a->n : 1};
    *out = (chat_value){.type = type, .u.cycler = c};
    return true;
}

bool chat_global(chat_run *r, us_str name, const chat_args *a, chat_value *out) {
    if (us_str_eqz(name, "range")) return range(r, a, out);
    if (us_str_eqz(name, "namespace")) return mapping(r, CHAT_NAMESPACE, a, out);
    if (us_str_eqz(name, "dict")) return mapping(r, CHAT_DICT, a, out);
    if (us_str_eqz(name, "strftime_now")) return strftime_now(r, a, out);
    if (us_str_eqz(name, "cycler")) return cycler(r, CHAT_CYCLER, a, out);
    if (us_str_eqz(name, "joiner")) return cycler(r, CHAT_JOINER, a, out);
    if (us_str_eqz(name, "raise_exception")) {
        us_str text = US_LIT("");
        if (a->n && !chat_to_str(r, &a->v[0], &text)) return false;
        return chat_fail(r, "raise_exception", "%.*s", US_STR_ARG(text));
    }
    return chat_fail(r, "TypeError", "%.*s cannot be called here", US_STR_ARG(name));
}
