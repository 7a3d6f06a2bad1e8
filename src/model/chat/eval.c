/* Statements and expressions. */
#define _GNU_SOURCE
#include "model/chat/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- scopes ---- */

bool chat_scope_set(chat_run *r, chat_scope *s, us_str name, chat_value v) {
    for (size_t i = 0; i < s->n; i++)
        if (us_str_eq(s->names[i], name)) return s->values[i] = v, true;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 8;
        us_str *names = chat_alloc(r, cap * sizeof *names);
        chat_value *values = chat_alloc(r, cap * sizeof *values);
        if (!names || !values) return false;
        if (s->n) {
            memcpy(names, s->names, s->n * sizeof *names);
            memcpy(values, s->values, s->n * sizeof *values);
        }
        s->names = names;
        s->values = values;
        s->cap = cap;
    }
    s->names[s->n] = name;
    s->values[s->n++] = v;
    return true;
}

static const chat_value *lookup(const chat_scope *s, us_str name) {
    for (; s; s = s->parent)
        for (size_t i = 0; i < s->n; i++)
            if (us_str_eq(s->names[i], name)) return &s->values[i];
    return NULL;
}

static chat_scope *new_scope(chat_run *r, chat_scope *parent) {
    chat_scope *s = chat_alloc(r, sizeof *s);
    if (s) *s = (chat_scope){.parent = parent};
    return s;
}

static bool enter(chat_run *r) {
    if (++r->depth <= CHAT_DEPTH) return chat_step(r, 1);
    return chat_fail(r, "RecursionError", "the template recurses more than %d deep", CHAT_DEPTH);
}

/* Fails when v is undefined and is being used for something. */
static bool defined(chat_run *r, const chat_value *v) {
    if (v->type != CHAT_UNDEFINED) return true;
    return chat_fail(r, v->safe ? "SecurityError" : "UndefinedError", "%.*s", US_STR_ARG(v->u.s));
}

/* ---- lookups ---- */

bool chat_attribute(chat_run *r, const chat_value *of, us_str name, bool key_first, chat_value *out) {
    bool unsafe = false;
    if (!defined(r, of)) return false;
    if (key_first && of->type == CHAT_DICT) {
        const chat_value *v = chat_dict_getz(of->u.dict, name);
        if (v) return *out = *v, true;
    }
    if (name.n && name.p[0] != '_' && chat_has_method(of, name, &unsafe)) {
        if (unsafe) {
            *out = chat_undefined(r, "access to attribute '%.*s' of '%s' object is unsafe.", US_STR_ARG(name), chat_type_name(of));
            out->safe = true;
            return !r->failed;
        }
        chat_callable *c = chat_alloc(r, sizeof *c);
        chat_value *self = chat_alloc(r, sizeof *self);
        if (!c || !self) return false;
        *self = *of;
        *c = (chat_callable){.kind = CHAT_METHOD, .name = name, .self = self};
        *out = (chat_value){.type = CHAT_CALLABLE, .u.call = c};
        return true;
    }
    const chat_value *v = NULL;
    if (of->type == CHAT_DICT || of->type == CHAT_NAMESPACE) v = chat_dict_getz(of->u.dict, name);
    if (v) return *out = *v, true;
    if (of->type == CHAT_CYCLER && us_str_eqz(name, "current")) return *out = of->u.cycler->items[of->u.cycler->pos % of->u.cycler->n], true;
    if (of->type == CHAT_LOOP) {
        const chat_loop *l = of->u.loop;
        if (us_str_eqz(name, "index")) return *out = chat_int((int64_t)l->index0 + 1), true;
        if (us_str_eqz(name, "index0")) return *out = chat_int((int64_t)l->index0), true;
        if (us_str_eqz(name, "revindex")) return *out = chat_int((int64_t)(l->length - l->index0)), true;
        if (us_str_eqz(name, "revindex0")) return *out = chat_int((int64_t)(l->length - l->index0) - 1), true;
        if (us_str_eqz(name, "first")) return *out = chat_bool(l->index0 == 0), true;
        if (us_str_eqz(name, "last")) return *out = chat_bool(l->index0 + 1 == l->length), true;
        if (us_str_eqz(name, "length")) return *out = chat_int((int64_t)l->length), true;
        if (us_str_eqz(name, "depth")) return *out = chat_int((int64_t)l->depth0 + 1), true;
        if (us_str_eqz(name, "depth0")) return *out = chat_int((int64_t)l->depth0), true;
        if (us_str_eqz(name, "previtem") && l->index0 > 0) return *out = l->items[l->index0 - 1], true;
        if (us_str_eqz(name, "nextitem") && l->index0 + 1 < l->length) return *out = l->items[l->index0 + 1], true;
        if (us_str_eqz(name, "previtem") || us_str_eqz(name, "nextitem")) {
            *out = chat_undefined(r, "there is no %s item", us_str_eqz(name, "previtem") ? "previous" : "next");
            return !r->failed;
        }
    }
    if (of->type == CHAT_CYCLER && us_str_eqz(name, "current")) return *out = of->u.cycler->items[of->u.cycler->pos], true;
    if (of->type == CHAT_CALLABLE && of->u.call->kind == CHAT_MACRO && us_str_eqz(name, "name")) return *out = chat_str(of->u.call->name), true;
    *out = chat_undefined(r, "'%s object' has no attribute '%.*s'", chat_type_name(of), US_STR_ARG(name));
    return !r->failed;
}

static bool as_index(const chat_value *v, int64_t *out) {
    if (v->type == CHAT_INT) return *out = v->u.i, true;
    if (v->type == CHAT_BOOL) return *out = v->u.b, true;
    return false;
}

bool chat_item(chat_run *r, const chat_value *of, const chat_value *key, chat_value *out) {
    int64_t i;
    if (!defined(r, of) || !chat_step(r, 1)) return false;
    if (of->type == CHAT_DICT) {
        const chat_value *v = chat_dict_get(r, of->u.dict, key);
        if (r->failed) return false;
        if (v) return *out = *v, true;
    }
    if ((of->type == CHAT_LIST || of->type == CHAT_TUPLE || of->type == CHAT_STR) && as_index(key, &i)) {
        int64_t n = (int64_t)(of->type == CHAT_STR ? chat_length(of->u.s) : of->u.list->n), at = i < 0 ? i + n : i;
        if (of->type == CHAT_STR && !chat_step(r, of->u.s.n / 64)) return false;
        if (at < 0 || at >= n) {
            *out = chat_undefined(r, "%s object has no element %lld", chat_type_name(of), (long long)i);
            return !r->failed;
        }
        if (of->type == CHAT_STR) {
            size_t from = chat_offset(of->u.s, (size_t)at), to = from;
            chat_decode(of->u.s, &to);
            *out = chat_str(us_str_sub(of->u.s, from, to));
        } else {
            *out = of->u.list->items[at];
        }
        return true;
    }
    if (key->type == CHAT_STR) return chat_attribute(r, of, key->u.s, true, out);
    us_str shown = US_LIT("that");
    if (key->type != CHAT_UNDEFINED && !chat_to_str(r, key, &shown)) return false;
    *out = chat_undefined(r, "%s object has no element %.*s", chat_type_name(of), US_STR_ARG(us_str_sub(shown, 0, 80)));
    return !r->failed;
}

/* Python slices over lists, tuples and text. */
static bool slice(chat_run *r, const chat_value *of, const chat_value *from, const chat_value *to, const chat_value *by, chat_value *out) {
    const chat_value *items;
    size_t count;
    int64_t step = 1, start, stop;
    if (!defined(r, of)) return false;
    if (of->type != CHAT_LIST && of->type != CHAT_TUPLE && of->type != CHAT_STR) {
        *out = chat_undefined(r, "'%s' object is not subscriptable", chat_type_name(of));
        return !r->failed;
    }
    if (by && by->type != CHAT_NONE && !as_index(by, &step)) return chat_fail(r, "TypeError", "slice indices must be integers or None");
    if (step == 0) return chat_fail(r, "ValueError", "slice step cannot be zero");
    if (!chat_iterate(r, of, &items, &count)) return false;
    int64_t n = (int64_t)count;
    start = step > 0 ? 0 : n - 1;
    stop = step > 0 ? n : -1;
    const chat_value *bounds[2] = {from, to};
    for (int k = 0; k < 2; k++) {
        int64_t v;
        if (!bounds[k] || bounds[k]->type == CHAT_NONE) continue;
        if (!as_index(bounds[k], &v)) return chat_fail(r, "TypeError", "slice indices must be integers or None");
        if (v < 0) v += n;
        int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
        v = v < low ? low : v > high ? high : v;
        if (k) stop = v;
        else start = v;
    }
    int64_t size = step > 0 ? (stop > start ? (stop - start - 1) / step + 1 : 0) : (start > stop ? (start - stop - 1) / -(step < -n ? -n - 1 : step) + 1 : 0);
    if (!chat_step(r, (uint64_t)size)) return false;
    if (of->type == CHAT_STR) {
        us_buf b = {0};
        for (int64_t i = 0; i < size; i++) us_buf_str(&b, items[start + i * step].u.s);
        bool ok = chat_str_copy(r, us_buf_view(&b), out);
        us_buf_free(&b);
        return ok;
    }
    if (!chat_list_new(r, of->type, (size_t)size, out)) return false;
    for (int64_t i = 0; i < size; i++) out->u.list->items[i] = items[start + i * step];
    return true;
}

static bool item_node(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out) {
    chat_value of, key, parts[3];
    const chat_value *p[3] = {0};
    if (!chat_eval(r, n->a, s, &of)) return false;
    if (n->b->kind != CHAT_X_SLICE) return chat_eval(r, n->b, s, &key) && chat_item(r, &of, &key, out);
    const chat_node *nodes[3] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++) {
        if (!nodes[i]) continue;
        if (!chat_eval(r, nodes[i], s, &parts[i])) return false;
        p[i] = &parts[i];
    }
    return slice(r, &of, p[0], p[1], p[2], out);
}

bool chat_contains(chat_run *r, const chat_value *in, const chat_value *what, bool *out) {
    const chat_value *items;
    size_t n;
    *out = false;
    if (in->type == CHAT_STR) {
        if (!defined(r, what)) return false;
        if (what->type != CHAT_STR) return chat_fail(r, "TypeError", "'in <string>' requires string as left operand, not %s", chat_type_name(what));
        if (!chat_step(r, in->u.s.n / 16 + 1)) return false;
        *out = what->u.s.n == 0 || memmem(in->u.s.p, in->u.s.n, what->u.s.p, what->u.s.n) != NULL;
        return true;
    }
    if (in->type == CHAT_DICT) {
        *out = chat_dict_get(r, in->u.dict, what) != NULL;
        return !r->failed;
    }
    if (chat_is_number(in) || in->type == CHAT_NONE) return chat_fail(r, "TypeError", "argument of type '%s' is not iterable", chat_type_name(in));
    if (!chat_iterate(r, in, &items, &n) || !chat_step(r, n)) return false;
    for (size_t i = 0; i < n && !*out; i++) *out = chat_equal(&items[i], what, 0);
    return true;
}

/* ---- operators ---- */

static bool bad_operands(chat_run *r, us_str op, const chat_value *a, const chat_value *b) {
    if (!defined(r, a) || !defined(r, b)) return false;
    if (a->type == CHAT_STR && us_str_eqz(op, "+")) return chat_fail(r, "TypeError", "can only concatenate str (not \"%s\") to str", chat_type_name(b));
    return chat_fail(r, "TypeError", "unsupported operand type(s) for %.*s: '%s' and '%s'", US_STR_ARG(us_str_eqz(op, "**") ? US_LIT("** or pow()") : op), chat_type_name(a), chat_type_name(b));
}

static bool repeat(chat_run *r, const chat_value *what, int64_t times, chat_value *out) {
    size_t n = what->type == CHAT_STR ? what->u.s.n : what->u.list->n, total;
    if (times < 0) times = 0;
    if (!us_mul_size(n, (size_t)times, &total) || total > r->memory_max) return chat_fail(r, "LimitError", "the template needs more than %zu MB of memory", r->memory_max >> 20);
    if (!chat_step(r, total / 16 + 1)) return false;
    if (what->type != CHAT_STR) {
        if (!chat_list_new(r, what->type, total, out)) return false;
        for (size_t i = 0; i < total; i++) out->u.list->items[i] = what->u.list->items[i % n];
        return true;
    }
    char *p = chat_alloc(r, total + 1);
    if (!p) return false;
    for (size_t i = 0; i < total; i += n) memcpy(p + i, what->u.s.p, n);
    *out = chat_str((us_str){p, total});
    return true;
}

static bool concatenate(chat_run *r, const chat_value *a, const chat_value *b, chat_value *out) {
    if (a->type == CHAT_STR) {
        size_t n = a->u.s.n + b->u.s.n;
        char *p = chat_alloc(r, n + 1);
        if (!p || !chat_step(r, n / 64)) return false;
        if (a->u.s.n) memcpy(p, a->u.s.p, a->u.s.n);
        if (b->u.s.n) memcpy(p + a->u.s.n, b->u.s.p, b->u.s.n);
        *out = chat_str((us_str){p, n});
        return true;
    }
    size_t n = a->u.list->n, m = b->u.list->n;
    if (!chat_step(r, n + m) || !chat_list_new(r, a->type, n + m, out)) return false;
    if (n) memcpy(out->u.list->items, a->u.list->items, n * sizeof(chat_value));
    if (m) memcpy(out->u.list->items + n, b->u.list->items, m * sizeof(chat_value));
    return true;
}

/* base ** exponent beyond 64 bits, as decimal digits. */
static bool big_power(chat_run *r, int64_t base, int64_t exponent, chat_value *out) {
    enum { LIMBS = 1200 }; /* base 1e9: about 10,000 digits */
    uint32_t *limb = chat_alloc(r, LIMBS * sizeof *limb);
    if (!limb) return false;
    size_t n = 1;
    uint64_t m = base < 0 ? 0 - (uint64_t)base : (uint64_t)base;
    limb[0] = 1;
    if (m >= UINT32_MAX) return chat_fail(r, "LimitError", "an integer is too large");
    for (int64_t e = 0; e < exponent; e++) {
        uint64_t carry = 0;
        if (!chat_step(r, n)) return false;
        for (size_t i = 0; i < n; i++) {
            carry += (uint64_t)limb[i] * m;
            limb[i] = (uint32_t)(carry % 1000000000u);
            carry /= 1000000000u;
        }
        if (carry && n == LIMBS) return chat_fail(r, "LimitError", "an integer is too large");
        if (carry) limb[n++] = (uint32_t)carry;
    }
    us_buf b = {0};
    if (base < 0 && exponent % 2) us_buf_c(&b, '-');
    us_buf_printf(&b, "%u", limb[n - 1]);
    for (size_t i = n - 1; i > 0; i--) us_buf_printf(&b, "%09u", limb[i - 1]);
    bool ok = chat_str_copy(r, us_buf_view(&b), out);
    us_buf_free(&b);
    out->type = CHAT_BIG;
    return ok;
}

static bool power(chat_run *r, const chat_value *a, const chat_value *b, chat_value *out) {
    if (a->type == CHAT_FLOAT || b->type == CHAT_FLOAT) return *out = chat_float(pow(chat_number(a), chat_number(b))), true;
    int64_t base = a->type == CHAT_BOOL ? a->u.b : a->u.i, e = b->type == CHAT_BOOL ? b->u.b : b->u.i, v = 1;
    if (e < 0) {
        if (base == 0) return chat_fail(r, "ZeroDivisionError", "0.0 cannot be raised to a negative power");
        return *out = chat_float(pow((double)base, (double)e)), true;
    }
    if (base == 0 || base == 1) return *out = chat_int(e == 0 ? 1 : base), true;
    for (int64_t i = 0; i < e; i++)
        if (i > 63 || __builtin_mul_overflow(v, base, &v)) return big_power(r, base, e, out);
    *out = chat_int(v);
    return true;
}

static bool arithmetic(chat_run *r, us_str op, const chat_value *a, const chat_value *b, chat_value *out) {
    bool real = a->type == CHAT_FLOAT || b->type == CHAT_FLOAT, over = false;
    double x = chat_number(a), y = chat_number(b);
    int64_t i = a->type == CHAT_BOOL ? a->u.b : a->u.i, j = b->type == CHAT_BOOL ? b->u.b : b->u.i, v = 0;
    char c = op.p[0];
    if (op.n == 2 && c == '*') return power(r, a, b, out);
    if (c == '/' || c == '%') {
        if (y == 0) return chat_fail(r, "ZeroDivisionError", op.n == 2 ? "integer division or modulo by zero" : c == '%' ? "integer modulo by zero" : "division by zero");
        if (op.n == 1 && c == '/') return *out = chat_float(x / y), true;
        if (real) {
            double q = floor(x / y);
            return *out = chat_float(c == '%' ? x - q * y : q), true;
        }
        if (i == INT64_MIN && j == -1) return chat_fail(r, "LimitError", "an integer is too large");
        int64_t q = i / j, m = i % j;
        if (m != 0 && (m < 0) != (j < 0)) q--, m += j;
        return *out = chat_int(c == '%' ? m : q), true;
    }
    if (real) return *out = chat_float(c == '+' ? x + y : c == '-' ? x - y : x * y), true;
    over = c == '+' ? __builtin_add_overflow(i, j, &v) : c == '-' ? __builtin_sub_overflow(i, j, &v) : __builtin_mul_overflow(i, j, &v);
    if (over) return chat_fail(r, "LimitError", "an integer is too large");
    *out = chat_int(v);
    return true;
}

static bool binary(chat_run *r, us_str op, const chat_value *a, const chat_value *b, chat_value *out) {
    if (!defined(r, a)) return false;
    if (a->type == CHAT_STR && us_str_eqz(op, "%")) return defined(r, b) && chat_percent(r, a->u.s, b, out);
    if (!defined(r, b)) return false;
    bool sequence = a->type == CHAT_STR || a->type == CHAT_LIST || a->type == CHAT_TUPLE;
    if (us_str_eqz(op, "+") && sequence && a->type == b->type) return concatenate(r, a, b, out);
    if (us_str_eqz(op, "*") && sequence && (b->type == CHAT_INT || b->type == CHAT_BOOL)) return repeat(r, a, b->type == CHAT_INT ? b->u.i : b->u.b, out);
    bool right = b->type == CHAT_STR || b->type == CHAT_LIST || b->type == CHAT_TUPLE;
    if (us_str_eqz(op, "*") && right && (a->type == CHAT_INT || a->type == CHAT_BOOL)) return repeat(r, b, a->type == CHAT_INT ? a->u.i : a->u.b, out);
    if (!chat_is_number(a) || !chat_is_number(b)) return bad_operands(r, op, a, b);
    return arithmetic(r, op, a, b, out);
}

static bool compare_node(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out) {
    chat_value left, right;
    if (!chat_eval(r, n->a, s, &left)) return false;
    *out = chat_bool(true);
    for (size_t i = 0; i < n->n; i++) {
        us_str op = n->names[i];
        bool holds = false;
        int c = 0;
        if (!chat_eval(r, n->list[i], s, &right)) return false;
        if (us_str_eqz(op, "==") || us_str_eqz(op, "!=")) holds = chat_equal(&left, &right, 0) == (op.p[0] == '=');
        else if (us_str_eqz(op, "in") || us_str_eqz(op, "not in")) {
            if (!chat_contains(r, &right, &left, &holds)) return false;
            holds = holds == (op.p[0] == 'i');
        } else {
            char z[3] = {op.p[0], op.n > 1 ? '=' : 0, 0};
            if (!chat_compare(r, &left, &right, z, &c)) return false;
            holds = op.p[0] == '<' ? (op.n > 1 ? c <= 0 : c < 0) : (op.n > 1 ? c >= 0 : c > 0);
        }
        if (!holds) return *out = chat_bool(false), true;
        left = right;
    }
    return true;
}

/* ---- calls ---- */

const chat_value *chat_arg(const chat_args *a, size_t i, const char *name) {
    if (i < a->n_positional) return &a->v[i];
    for (size_t k = a->n_positional; name && k < a->n; k++)
        if (us_str_eqz(a->names[k], name)) return &a->v[k];
    return NULL;
}

static bool arguments(chat_run *r, const chat_node *n, chat_scope *s, chat_args *out) {
    chat_value *v = chat_alloc(r, (n->n + 1) * sizeof *v);
    us_str *names = chat_alloc(r, (n->n + 1) * sizeof *names);
    if (!v || !names) return false;
    *out = (chat_args){v, names, n->n, 0};
    size_t k = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n->n; i++) {
            bool keyword = n->names[i].n > 0;
            if (keyword != (pass == 1)) continue;
            if (!chat_eval(r, n->list[i], s, &v[k])) return false;
            names[k++] = n->names[i];
            if (!keyword) out->n_positional = k;
        }
    return true;
}

/* Run a body with output going to a text. */
static bool capture(chat_run *r, const chat_node *body, chat_scope *s, chat_value *out) {
    us_buf b = {0}, *outer = r->out;
    int signal = 0;
    r->out = &b;
    bool ok = chat_exec(r, body, s, &signal);
    r->out = outer;
    ok = ok && chat_str_copy(r, us_buf_view(&b), out);
    us_buf_free(&b);
    return ok;
}

static bool uses_name(const chat_node *n, const char *name, int depth) {
    if (!n || depth > 2 * CHAT_DEPTH) return false;
    if (n->kind == CHAT_X_NAME && us_str_eqz(n->name, name)) return true;
    const chat_node *parts[] = {n->a, n->b, n->c, n->d, n->filter};
    for (size_t i = 0; i < 5; i++)
        if (uses_name(parts[i], name, depth + 1)) return true;
    for (size_t i = 0; i < n->n; i++)
        if (n->list && uses_name(n->list[i], name, depth + 1)) return true;
    return false;
}

static bool call_macro(chat_run *r, const chat_callable *c, const chat_args *a, chat_value *out) {
    const chat_node *m = c->macro;
    chat_scope *s = new_scope(r, c->scope);
    chat_value rest, extra;
    if (!s || !enter(r)) return false;
    bool takes_rest = uses_name(m->c, "varargs", 0), takes_extra = uses_name(m->c, "kwargs", 0);
    size_t n_rest = a->n_positional > m->n ? a->n_positional - m->n : 0;
    if (n_rest && !takes_rest) return chat_fail(r, "TypeError", "macro '%.*s' takes not more than %zu argument(s)", US_STR_ARG(m->name), m->n);
    if (!chat_list_new(r, CHAT_TUPLE, n_rest, &rest) || !chat_dict_new(r, CHAT_DICT, a->n - a->n_positional, &extra)) return false;
    for (size_t i = 0; i < n_rest; i++) rest.u.list->items[i] = a->v[m->n + i];
    for (size_t i = 0; i < m->n; i++) {
        chat_value v = chat_undefined(r, "parameter '%.*s' was not provided", US_STR_ARG(m->names[i]));
        const chat_value *given = i < a->n_positional ? &a->v[i] : NULL;
        for (size_t k = a->n_positional; !given && k < a->n; k++)
            if (us_str_eq(a->names[k], m->names[i])) given = &a->v[k];
        if (given) v = *given;
        else if (m->list[i] && !chat_eval(r, m->list[i], s, &v)) return false;
        if (!chat_scope_set(r, s, m->names[i], v)) return false;
    }
    for (size_t k = a->n_positional; k < a->n; k++) {
        bool known = us_str_eqz(a->names[k], "caller");
        for (size_t i = 0; i < m->n; i++) known |= us_str_eq(a->names[k], m->names[i]);
        if (known) continue;
        if (!takes_extra) return chat_fail(r, "TypeError", "macro '%.*s' takes no keyword argument '%.*s'", US_STR_ARG(m->name), US_STR_ARG(a->names[k]));
        if (!chat_dict_set(r, extra.u.dict, chat_str(a->names[k]), a->v[k])) return false;
    }
    if (!chat_scope_set(r, s, US_LIT("varargs"), rest) || !chat_scope_set(r, s, US_LIT("kwargs"), extra)) return false;
    const chat_value *caller = chat_arg(a, SIZE_MAX, "caller");
    if (caller && !chat_scope_set(r, s, US_LIT("caller"), *caller)) return false;
    if (!capture(r, m->c, s, out)) return false;
    r->depth--;
    return true;
}

static bool run_loop(chat_run *r, const chat_node *n, chat_scope *s, const chat_value *over, size_t depth0, int *signal);

/* loop(items) of a recursive loop: its body over other items, as text. */
static bool call_loop(chat_run *r, const chat_loop *l, const chat_args *a, chat_value *out) {
    us_buf b = {0}, *outer = r->out;
    int signal = 0;
    if (a->n_positional != 1) return chat_fail(r, "TypeError", "loop() takes the items of the inner loop");
    if (!enter(r)) return false;
    r->out = &b;
    bool ok = run_loop(r, l->recursive, l->scope, &a->v[0], l->depth0 + 1, &signal);
    r->out = outer;
    r->depth--;
    ok = ok && chat_str_copy(r, us_buf_view(&b), out);
    us_buf_free(&b);
    return ok;
}

bool chat_call(chat_run *r, const chat_value *f, const chat_args *a, chat_value *out) {
    if (!defined(r, f) || !chat_step(r, 1)) return false;
    if (f->type == CHAT_JOINER) {
        bool first = f->u.cycler->pos == 0;
        f->u.cycler->pos = 1;
        *out = first ? chat_str(US_LIT("")) : f->u.cycler->items[0];
        return true;
    }
    if (f->type == CHAT_LOOP && f->u.loop->recursive) return call_loop(r, f->u.loop, a, out);
    if (f->type != CHAT_CALLABLE) return chat_fail(r, "TypeError", "'%s' object is not callable", chat_type_name(f));
    const chat_callable *c = f->u.call;
    if (c->kind == CHAT_METHOD) return chat_method(r, c->self, c->name, a, out);
    if (c->kind == CHAT_FUNCTION) return chat_global(r, c->name, a, out);
    return call_macro(r, c, a, out);
}

/* ---- expressions ---- */

static bool name_node(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out) {
    const chat_value *v = lookup(s, n->name);
    if (v) return *out = *v, true;
    if (chat_global_known(n->name)) {
        chat_callable *c = chat_alloc(r, sizeof *c);
        if (!c) return false;
        *c = (chat_callable){.kind = CHAT_FUNCTION, .name = n->name};
        *out = (chat_value){.type = CHAT_CALLABLE, .u.call = c};
        return true;
    }
    *out = chat_undefined(r, "'%.*s' is undefined", US_STR_ARG(n->name));
    return !r->failed;
}

static bool sequence_node(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out) {
    if (n->kind == CHAT_X_DICT) {
        chat_value k, v;
        if (!chat_dict_new(r, CHAT_DICT, n->n / 2, out)) return false;
        for (size_t i = 0; i + 1 < n->n; i += 2)
            if (!chat_eval(r, n->list[i], s, &k) || !chat_eval(r, n->list[i + 1], s, &v) || !chat_dict_set(r, out->u.dict, k, v)) return false;
        return true;
    }
    if (!chat_list_new(r, n->kind == CHAT_X_LIST ? CHAT_LIST : CHAT_TUPLE, n->n, out)) return false;
    for (size_t i = 0; i < n->n; i++)
        if (!chat_eval(r, n->list[i], s, &out->u.list->items[i])) return false;
    return true;
}

static bool concat_node(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out) {
    us_buf b = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < n->n; i++) {
        chat_value v;
        ok = chat_eval(r, n->list[i], s, &v) && chat_print(r, &v, &b);
    }
    ok = ok && chat_str_copy(r, us_buf_view(&b), out);
    us_buf_free(&b);
    return ok;
}

static bool unary_node(chat_run *r, const chat_node *n, const chat_value *v, chat_value *out) {
    if (!defined(r, v)) return false;
    if (!chat_is_number(v)) return chat_fail(r, "TypeError", "bad operand type for unary %s: '%s'", n->kind == CHAT_X_NEG ? "-" : "+", chat_type_name(v));
    if (v->type == CHAT_FLOAT) *out = chat_float(n->kind == CHAT_X_NEG ? -v->u.f : v->u.f);
    else {
        int64_t i = v->type == CHAT_BOOL ? v->u.b : v->u.i;
        if (n->kind == CHAT_X_NEG && i == INT64_MIN) return chat_fail(r, "LimitError", "an integer is too large");
        *out = chat_int(n->kind == CHAT_X_NEG ? -i : i);
    }
    return true;
}

static bool eval_kind(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out) {
    chat_value a, b;
    chat_args args;
    bool holds;
    switch (n->kind) {
    case CHAT_X_CONST: *out = n->value; return true;
    case CHAT_X_NAME: return name_node(r, n, s, out);
    case CHAT_X_LIST: case CHAT_X_TUPLE: case CHAT_X_DICT: return sequence_node(r, n, s, out);
    case CHAT_X_ATTR: return chat_eval(r, n->a, s, &a) && chat_attribute(r, &a, n->name, false, out);
    case CHAT_X_ITEM: return item_node(r, n, s, out);
    case CHAT_X_CALL: return chat_eval(r, n->a, s, &a) && arguments(r, n, s, &args) && chat_call(r, &a, &args, out);
    case CHAT_X_FILTER:
        if (!chat_filter_known(n->name)) return chat_fail(r, "TemplateAssertionError", "No filter named '%.*s'.", US_STR_ARG(n->name));
        return chat_eval(r, n->a, s, &a) && arguments(r, n, s, &args) && chat_filter(r, n->name, &a, &args, out);
    case CHAT_X_TEST:
        if (!chat_test_known(n->name)) return chat_fail(r, "TemplateAssertionError", "No test named '%.*s'.", US_STR_ARG(n->name));
        if (!chat_eval(r, n->a, s, &a) || !arguments(r, n, s, &args) || !chat_test(r, n->name, &a, &args, &holds)) return false;
        *out = chat_bool(holds != n->flag);
        return true;
    case CHAT_X_NOT:
        if (!chat_eval(r, n->a, s, &a)) return false;
        *out = chat_bool(!chat_truth(&a));
        return true;
    case CHAT_X_NEG: case CHAT_X_POS: return chat_eval(r, n->a, s, &a) && unary_node(r, n, &a, out);
    case CHAT_X_BINARY: return chat_eval(r, n->a, s, &a) && chat_eval(r, n->b, s, &b) && binary(r, n->name, &a, &b, out);
    case CHAT_X_COMPARE: return compare_node(r, n, s, out);
    case CHAT_X_AND: case CHAT_X_OR:
        if (!chat_eval(r, n->a, s, out)) return false;
        return chat_truth(out) == (n->kind == CHAT_X_AND) ? chat_eval(r, n->b, s, out) : true;
    case CHAT_X_COND:
        if (!chat_eval(r, n->b, s, &b)) return false;
        if (chat_truth(&b)) return chat_eval(r, n->a, s, out);
        if (n->c) return chat_eval(r, n->c, s, out);
        *out = chat_undefined(r, "the inline if-expression on line %u evaluated to false and no else section was defined.", n->line);
        return !r->failed;
    case CHAT_X_CONCAT: return concat_node(r, n, s, out);
    default: return chat_fail(r, "TypeError", "not an expression");
    }
}

bool chat_eval(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out) {
    if (!enter(r)) {
        if (!r->line) r->line = n->line;
        return false;
    }
    bool ok = eval_kind(r, n, s, out);
    if (!ok && !r->line) r->line = n->line;
    r->depth--;
    return ok;
}

/* ---- statements ---- */

/* Bind a target (name, names, ns.attr) to a value. */
static bool bind(chat_run *r, const chat_node *target, chat_scope *s, const chat_value *v) {
    if (target->kind == CHAT_X_NAME) return chat_scope_set(r, s, target->name, *v);
    if (target->kind == CHAT_X_ATTR) {
        chat_value of;
        if (!chat_eval(r, target->a, s, &of)) return false;
        if (of.type != CHAT_NAMESPACE) return chat_fail(r, "TemplateRuntimeError", "cannot assign attribute on non-namespace object");
        return chat_dict_set(r, of.u.dict, chat_str(target->name), *v);
    }
    const chat_value *items;
    size_t n;
    if (!defined(r, v) || !chat_iterate(r, v, &items, &n)) return false;
    if (n < target->n) return chat_fail(r, "ValueError", "not enough values to unpack (expected %zu, got %zu)", target->n, n);
    if (n > target->n) return chat_fail(r, "ValueError", "too many values to unpack (expected %zu)", target->n);
    for (size_t i = 0; i < n; i++)
        if (!bind(r, target->list[i], s, &items[i])) return false;
    return true;
}

static bool filtered_items(chat_run *r, const chat_node *n, chat_scope *s, const chat_value **items, size_t *count) {
    if (!n->filter) return true;
    chat_value *kept = chat_alloc(r, (*count + 1) * sizeof *kept), holds;
    size_t k = 0;
    if (!kept) return false;
    for (size_t i = 0; i < *count; i++) {
        chat_scope *inner = new_scope(r, s);
        if (!inner || !bind(r, n->a, inner, &(*items)[i]) || !chat_eval(r, n->filter, inner, &holds)) return false;
        if (chat_truth(&holds)) kept[k++] = (*items)[i];
    }
    *items = kept;
    *count = k;
    return true;
}

static bool run_loop(chat_run *r, const chat_node *n, chat_scope *s, const chat_value *over, size_t depth0, int *signal) {
    const chat_value *items;
    size_t count;
    if (!chat_iterate(r, over, &items, &count) || !filtered_items(r, n, s, &items, &count)) return false;
    if (count == 0) return n->d ? chat_exec(r, n->d, s, signal) : true;
    chat_loop *loop = chat_alloc(r, sizeof *loop);
    if (!loop) return false;
    *loop = (chat_loop){.length = count, .items = items, .recursive = n->flag ? n : NULL, .scope = s, .depth0 = depth0};
    for (size_t i = 0; i < count; i++) {
        chat_scope *inner = new_scope(r, s);
        int inside = 0;
        loop->index0 = i;
        if (!inner || !chat_step(r, 1) || !bind(r, n->a, inner, &items[i])) return false;
        if (!chat_scope_set(r, inner, US_LIT("loop"), (chat_value){.type = CHAT_LOOP, .u.loop = loop})) return false;
        if (!chat_exec(r, n->c, inner, &inside)) return false;
        if (inside == 1) break;
    }
    return true;
}

static bool for_statement(chat_run *r, const chat_node *n, chat_scope *s, int *signal) {
    chat_value over;
    return chat_eval(r, n->b, s, &over) && run_loop(r, n, s, &over, 0, signal);
}

/* A chain of filters whose innermost operand is the block's text. */
static bool filter_text(chat_run *r, const chat_node *chain, chat_scope *s, chat_value *text) {
    chat_args args;
    if (chain->kind == CHAT_X_CONST) return true;
    if (!filter_text(r, chain->a, s, text)) return false;
    chat_value in = *text;
    if (!chat_filter_known(chain->name)) return chat_fail(r, "TemplateAssertionError", "No filter named '%.*s'.", US_STR_ARG(chain->name));
    return arguments(r, chain, s, &args) && chat_filter(r, chain->name, &in, &args, text);
}

static chat_value macro_value(chat_run *r, const chat_node *n, chat_scope *s) {
    chat_callable *c = chat_alloc(r, sizeof *c);
    if (!c) return CHAT_NONE_VALUE;
    *c = (chat_callable){.kind = CHAT_MACRO, .name = n->name, .macro = n, .scope = s};
    return (chat_value){.type = CHAT_CALLABLE, .u.call = c};
}

/* {% call f(x) %}body{% endcall %}: f gets caller(), which renders the body. */
static bool call_statement(chat_run *r, const chat_node *n, chat_scope *s) {
    chat_value f, out;
    chat_args a;
    if (!chat_eval(r, n->a->a, s, &f) || !arguments(r, n->a, s, &a)) return false;
    chat_value *v = chat_alloc(r, (a.n + 1) * sizeof *v);
    us_str *names = chat_alloc(r, (a.n + 1) * sizeof *names);
    if (!v || !names) return false;
    if (a.n) {
        memcpy(v, a.v, a.n * sizeof *v);
        memcpy(names, a.names, a.n * sizeof *names);
    }
    v[a.n] = macro_value(r, n, s);
    names[a.n] = US_LIT("caller");
    a = (chat_args){v, names, a.n + 1, a.n_positional};
    return !r->failed && chat_call(r, &f, &a, &out) && chat_print(r, &out, r->out);
}

static bool generation(chat_run *r, const chat_node *n, chat_scope *s) {
    chat_scope *inner = new_scope(r, s);
    int signal = 0;
    size_t from = r->out->n;
    if (!inner || !chat_exec(r, n->c, inner, &signal)) return false;
    if (!us_grow(&r->spans, &r->cap_spans, r->n_spans + 2, sizeof *r->spans)) return chat_fail(r, "MemoryError", "out of memory");
    r->spans[r->n_spans++] = from;
    r->spans[r->n_spans++] = r->out->n;
    return true;
}

static bool exec_kind(chat_run *r, const chat_node *n, chat_scope *s, int *signal) {
    chat_value v;
    chat_scope *inner;
    switch (n->kind) {
    case CHAT_S_SEQ:
        for (size_t i = 0; i < n->n && !*signal; i++)
            if (!chat_exec(r, n->list[i], s, signal)) return false;
        return true;
    case CHAT_S_TEXT: return chat_step(r, 1 + n->value.u.s.n / 64) && chat_print(r, &n->value, r->out);
    case CHAT_S_OUTPUT: return chat_eval(r, n->a, s, &v) && chat_print(r, &v, r->out);
    case CHAT_S_IF:
        if (!chat_eval(r, n->a, s, &v)) return false;
        if (chat_truth(&v)) return chat_exec(r, n->b, s, signal);
        return n->c ? chat_exec(r, n->c, s, signal) : true;
    case CHAT_S_FOR: return for_statement(r, n, s, signal);
    case CHAT_S_SET: return chat_eval(r, n->b, s, &v) && bind(r, n->a, s, &v);
    case CHAT_S_SET_BLOCK:
        inner = new_scope(r, s);
        return inner && capture(r, n->c, inner, &v) && filter_text(r, n->filter, s, &v) && bind(r, n->a, s, &v);
    case CHAT_S_MACRO:
        v = macro_value(r, n, s);
        return !r->failed && chat_scope_set(r, s, n->name, v);
    case CHAT_S_CALL: return call_statement(r, n, s);
    case CHAT_S_FILTER:
        inner = new_scope(r, s);
        return inner && capture(r, n->c, inner, &v) && filter_text(r, n->filter, s, &v) && chat_print(r, &v, r->out);
    case CHAT_S_WITH:
        inner = new_scope(r, s);
        for (size_t i = 0; inner && i < n->n; i++)
            if (!chat_eval(r, n->list[i], s, &v) || !chat_scope_set(r, inner, n->names[i], v)) return false;
        return inner && chat_exec(r, n->c, inner, signal);
    case CHAT_S_BREAK: *signal = 1; return true;
    case CHAT_S_CONTINUE: *signal = 2; return true;
    case CHAT_S_GENERATION: return generation(r, n, s);
    default: return chat_fail(r, "TypeError", "not a statement");
    }
}

bool chat_exec(chat_run *r, const chat_node *n, chat_scope *s, int *signal) {
    bool ok = enter(r) && exec_kind(r, n, s, signal);
    if (!ok && !r->line) r->line = n->line;
    r->depth--;
    return ok;
}
