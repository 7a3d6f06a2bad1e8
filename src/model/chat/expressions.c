/* Parser of expressions: recursive descent with a depth limit. */
#include "model/chat/parser.h"

#include <stdlib.h>
#include <string.h>

const chat_token *parse_now(const parser *p) {
    return &p->t.list[p->at];
}

bool parse_is_op(const parser *p, const char *op) {
    return parse_now(p)->type == CHAT_T_OP && us_str_eqz(parse_now(p)->text, op);
}

bool parse_is_name(const parser *p, const char *name) {
    return parse_now(p)->type == CHAT_T_NAME && us_str_eqz(parse_now(p)->text, name);
}

bool parse_take_op(parser *p, const char *op) {
    if (!parse_is_op(p, op)) return false;
    p->at++;
    return true;
}

bool parse_take_name(parser *p, const char *name) {
    if (!parse_is_name(p, name)) return false;
    p->at++;
    return true;
}

us_status parse_fault(parser *p, const char *what) {
    us_str t = parse_now(p)->type == CHAT_T_EOF ? US_LIT("the end") : parse_now(p)->type == CHAT_T_TEXT ? US_LIT("text") : us_str_sub(parse_now(p)->text, 0, 60);
    us_fail(p->err, US_E_FORMAT, "template-syntax", "%s, not \"%.*s\"", what, US_STR_ARG(t));
    us_err_where(p->err, "line %u", parse_now(p)->line);
    return US_E_FORMAT;
}

us_status parse_node(parser *p, chat_kind kind, chat_node **out) {
    chat_node *n = us_arena_calloc(&p->out->arena, 1, sizeof *n);
    *out = NULL;
    if (!n) return us_fail_nomem(p->err, "reading a template");
    n->kind = kind;
    n->line = parse_now(p)->line;
    *out = n;
    return US_OK;
}

/* A growing list of nodes with names beside them, copied to the arena when done. */

us_status parse_gather_add(parser *p, gather *g, chat_node *n, us_str name) {
    if (!us_grow(&g->list, &g->cap, g->n + 1, sizeof *g->list) || !us_grow(&g->names, &g->cap_names, g->n + 1, sizeof *g->names))
        return us_fail_nomem(p->err, "reading a template");
    g->list[g->n] = n;
    g->names[g->n++] = name;
    return US_OK;
}

us_status parse_gather_finish(parser *p, gather *g, chat_node *into, us_status s) {
    if (s == US_OK) {
        into->list = us_arena_alloc(&p->out->arena, (g->n + 1) * sizeof(chat_node *));
        into->names = us_arena_alloc(&p->out->arena, (g->n + 1) * sizeof *into->names);
        if (!into->list || !into->names) s = us_fail_nomem(p->err, "reading a template");
        else if (g->n) {
            memcpy(into->list, g->list, g->n * sizeof(chat_node *));
            memcpy(into->names, g->names, g->n * sizeof *into->names);
        }
        into->n = into->n_names = g->n;
    }
    us_free(g->list);
    us_free(g->names);
    return s;
}

/* ---- expressions ---- */

us_status parse_expression(parser *p, bool conditional, chat_node **out);
static us_status unary(parser *p, bool filters, chat_node **out);

us_status parse_enter(parser *p) {
    if (++p->depth <= CHAT_DEPTH) return US_OK;
    us_fail(p->err, US_E_LIMIT, "limit", "the template is nested more than %d deep", CHAT_DEPTH);
    us_err_where(p->err, "line %u", parse_now(p)->line);
    return US_E_LIMIT;
}

/* Integer text with underscores and prefixes; beyond 64 bits it stays decimal text. */
static us_status integer(parser *p, chat_node *n) {
    us_buf b = {0};
    us_str t = parse_now(p)->text;
    for (size_t i = 0; i < t.n; i++)
        if (t.p[i] != '_') us_buf_c(&b, t.p[i]);
    us_status s = us_buf_status(&b, p->err, "reading a template");
    const char *z = us_buf_text(&b);
    int base = 10;
    if (z[0] == '0' && z[1]) base = (z[1] | 32) == 'x' ? 16 : (z[1] | 32) == 'o' ? 8 : (z[1] | 32) == 'b' ? 2 : 10;
    unsigned long long v = 0;
    bool overflow = false;
    for (const char *c = z + (base == 10 ? 0 : 2); *c; c++) {
        unsigned d = *c <= '9' ? (unsigned)(*c - '0') : (unsigned)((*c | 32) - 'a' + 10);
        overflow |= __builtin_mul_overflow(v, (unsigned long long)base, &v) || __builtin_add_overflow(v, d, &v);
    }
    if (!overflow && v <= INT64_MAX) n->value = chat_int((int64_t)v);
    else {
        char *copy = us_arena_strndup(&p->out->arena, z, strlen(z));
        if (!copy) s = us_fail_nomem(p->err, "reading a template");
        n->value = (chat_value){.type = CHAT_BIG, .u.s = {copy ? copy : "", copy ? strlen(copy) : 0}};
    }
    us_buf_free(&b);
    p->at++;
    return s;
}

static us_status real(parser *p, chat_node *n) {
    char text[64];
    size_t k = 0;
    us_str t = parse_now(p)->text;
    for (size_t i = 0; i < t.n && k + 1 < sizeof text; i++)
        if (t.p[i] != '_') text[k++] = t.p[i];
    text[k] = 0;
    n->value = chat_float(strtod(text, NULL));
    p->at++;
    return US_OK;
}

static us_status strings(parser *p, chat_node *n) {
    us_str s = parse_now(p)->text;
    p->at++;
    while (parse_now(p)->type == CHAT_T_STRING) { /* 'a' 'b' is one text */
        us_str t = parse_now(p)->text;
        char *joined = us_arena_alloc(&p->out->arena, s.n + t.n + 1);
        if (!joined) return us_fail_nomem(p->err, "reading a template");
        if (s.n) memcpy(joined, s.p, s.n);
        if (t.n) memcpy(joined + s.n, t.p, t.n);
        s = (us_str){joined, s.n + t.n};
        p->at++;
    }
    n->value = chat_str(s);
    return US_OK;
}

/* Comma-separated expressions up to `close`; a tuple when there is a comma (or nothing), else the expression itself. */
us_status parse_tuple_until(parser *p, const char *close, bool conditional, chat_node **out) {
    gather g = {0};
    chat_node *first = NULL, *n;
    bool comma = false;
    us_status s = parse_node(p, CHAT_X_TUPLE, &n);
    while (s == US_OK && !(close && parse_is_op(p, close)) && parse_now(p)->type != CHAT_T_BLOCK_END && parse_now(p)->type != CHAT_T_VAR_END) {
        s = parse_expression(p, conditional, &first);
        if (s == US_OK) s = parse_gather_add(p, &g, first, US_LIT(""));
        if (s != US_OK || !parse_take_op(p, ",")) break;
        comma = true;
    }
    size_t count = g.n;
    s = parse_gather_finish(p, &g, n, s);
    if (s == US_OK && count == 0 && !close) s = parse_fault(p, "an expression is expected");
    if (s == US_OK) *out = count == 1 && !comma ? first : n;
    return s;
}

static us_status list_literal(parser *p, chat_node **out) {
    gather g = {0};
    chat_node *n, *item;
    us_status s = parse_node(p, CHAT_X_LIST, &n);
    p->at++;
    while (s == US_OK && !parse_is_op(p, "]")) {
        s = parse_expression(p, true, &item);
        if (s == US_OK) s = parse_gather_add(p, &g, item, US_LIT(""));
        if (s == US_OK && !parse_is_op(p, "]") && !parse_take_op(p, ",")) s = parse_fault(p, "\",\" or \"]\" is expected");
    }
    s = parse_gather_finish(p, &g, n, s);
    if (s != US_OK) return s;
    p->at++;
    *out = n;
    return US_OK;
}

static us_status dict_literal(parser *p, chat_node **out) {
    gather g = {0};
    chat_node *n, *key, *value;
    us_status s = parse_node(p, CHAT_X_DICT, &n);
    p->at++;
    while (s == US_OK && !parse_is_op(p, "}")) {
        s = parse_expression(p, true, &key);
        if (s == US_OK && !parse_take_op(p, ":")) s = parse_fault(p, "\":\" is expected");
        if (s == US_OK) s = parse_expression(p, true, &value);
        if (s == US_OK) s = parse_gather_add(p, &g, key, US_LIT(""));
        if (s == US_OK) s = parse_gather_add(p, &g, value, US_LIT(""));
        if (s == US_OK && !parse_is_op(p, "}") && !parse_take_op(p, ",")) s = parse_fault(p, "\",\" or \"}\" is expected");
    }
    s = parse_gather_finish(p, &g, n, s);
    if (s != US_OK) return s;
    p->at++;
    *out = n;
    return US_OK;
}

static us_status primary(parser *p, chat_node **out) {
    const chat_token *t = parse_now(p);
    chat_node *n;
    if (t->type == CHAT_T_OP && us_str_eqz(t->text, "(")) {
        p->at++;
        US_TRY(parse_tuple_until(p, ")", true, out));
        return parse_take_op(p, ")") ? US_OK : parse_fault(p, "\")\" is expected");
    }
    if (parse_is_op(p, "[")) return list_literal(p, out);
    if (parse_is_op(p, "{")) return dict_literal(p, out);
    US_TRY(parse_node(p, CHAT_X_CONST, &n));
    *out = n;
    if (t->type == CHAT_T_STRING) return strings(p, n);
    if (t->type == CHAT_T_INT) return integer(p, n);
    if (t->type == CHAT_T_FLOAT) return real(p, n);
    if (t->type != CHAT_T_NAME) return parse_fault(p, "an expression is expected");
    p->at++;
    if (us_str_eqz(t->text, "true") || us_str_eqz(t->text, "True")) n->value = chat_bool(true);
    else if (us_str_eqz(t->text, "false") || us_str_eqz(t->text, "False")) n->value = chat_bool(false);
    else if (us_str_eqz(t->text, "none") || us_str_eqz(t->text, "None")) n->value = CHAT_NONE_VALUE;
    else {
        n->kind = CHAT_X_NAME;
        n->name = t->text;
    }
    return US_OK;
}

/* ( [name =] expression, ... ) into n. */
static us_status arguments(parser *p, chat_node *n) {
    gather g = {0};
    us_status s = US_OK;
    p->at++;
    while (s == US_OK && !parse_is_op(p, ")")) {
        us_str name = US_LIT("");
        chat_node *value;
        if (parse_is_op(p, "*") || parse_is_op(p, "**")) s = parse_fault(p, "starred arguments are not supported: an argument is expected");
        if (s == US_OK && parse_now(p)->type == CHAT_T_NAME && p->t.list[p->at + 1].type == CHAT_T_OP && us_str_eqz(p->t.list[p->at + 1].text, "=")) {
            name = parse_now(p)->text;
            p->at += 2;
        }
        if (s == US_OK) s = parse_expression(p, true, &value);
        if (s == US_OK) s = parse_gather_add(p, &g, value, name);
        if (s == US_OK && !parse_is_op(p, ")") && !parse_take_op(p, ",")) s = parse_fault(p, "\",\" or \")\" is expected");
    }
    s = parse_gather_finish(p, &g, n, s);
    if (s == US_OK) p->at++;
    return s;
}

static us_status subscript(parser *p, chat_node *of, chat_node **out) {
    chat_node *n, *slice;
    US_TRY(parse_node(p, CHAT_X_ITEM, &n));
    US_TRY(parse_node(p, CHAT_X_SLICE, &slice));
    n->a = of;
    p->at++;
    if (!parse_is_op(p, ":")) {
        US_TRY(parse_tuple_until(p, NULL, true, &n->b));
        if (!parse_is_op(p, ":")) {
            *out = n;
            return parse_take_op(p, "]") ? US_OK : parse_fault(p, "\"]\" is expected");
        }
        slice->a = n->b;
    }
    p->at++;
    if (!parse_is_op(p, "]") && !parse_is_op(p, ":")) US_TRY(parse_expression(p, true, &slice->b));
    if (parse_take_op(p, ":") && !parse_is_op(p, "]")) US_TRY(parse_expression(p, true, &slice->c));
    n->b = slice;
    *out = n;
    return parse_take_op(p, "]") ? US_OK : parse_fault(p, "\"]\" is expected");
}

static us_status postfix(parser *p, chat_node **io) {
    for (int chain = 0;; chain++) {
        chat_node *n;
        if (chain > 10000) return parse_fault(p, "too long a chain");
        if (parse_is_op(p, ".")) {
            p->at++;
            if (parse_now(p)->type == CHAT_T_INT) { /* a.0 */
                US_TRY(parse_node(p, CHAT_X_ITEM, &n));
                n->a = *io;
                US_TRY(parse_node(p, CHAT_X_CONST, &n->b));
                US_TRY(integer(p, n->b));
            } else {
                if (parse_now(p)->type != CHAT_T_NAME) return parse_fault(p, "an attribute's name is expected");
                US_TRY(parse_node(p, CHAT_X_ATTR, &n));
                n->a = *io;
                n->name = parse_now(p)->text;
                p->at++;
            }
        } else if (parse_is_op(p, "[")) {
            US_TRY(subscript(p, *io, &n));
        } else if (parse_is_op(p, "(")) {
            US_TRY(parse_node(p, CHAT_X_CALL, &n));
            n->a = *io;
            US_TRY(arguments(p, n));
        } else {
            return US_OK;
        }
        *io = n;
    }
}

static us_status dotted_name(parser *p, us_str *out) {
    if (parse_now(p)->type != CHAT_T_NAME) return parse_fault(p, "a name is expected");
    *out = parse_now(p)->text;
    p->at++;
    while (parse_is_op(p, ".") && p->t.list[p->at + 1].type == CHAT_T_NAME) { /* names like a.b are one text in the source */
        us_str last = p->t.list[p->at + 1].text;
        *out = (us_str){out->p, (size_t)(last.p + last.n - out->p)};
        p->at += 2;
    }
    return US_OK;
}

us_status parse_one_filter(parser *p, chat_node **io) {
    chat_node *n;
    US_TRY(parse_node(p, CHAT_X_FILTER, &n));
    n->a = *io;
    US_TRY(dotted_name(p, &n->name));
    if (parse_is_op(p, "(")) US_TRY(arguments(p, n));
    *io = n;
    return US_OK;
}

static us_status one_test(parser *p, chat_node **io) {
    chat_node *n, *argument;
    US_TRY(parse_node(p, CHAT_X_TEST, &n));
    n->a = *io;
    n->flag = parse_take_name(p, "not");
    US_TRY(dotted_name(p, &n->name));
    if (parse_is_op(p, "(")) {
        US_TRY(arguments(p, n));
    } else {
        chat_tok t = parse_now(p)->type;
        bool starts = t == CHAT_T_STRING || t == CHAT_T_INT || t == CHAT_T_FLOAT || parse_is_op(p, "[") || parse_is_op(p, "{") ||
                      (t == CHAT_T_NAME && !parse_is_name(p, "else") && !parse_is_name(p, "or") && !parse_is_name(p, "and") && !parse_is_name(p, "if") && !parse_is_name(p, "is") && !parse_is_name(p, "not") &&
                       !parse_is_name(p, "in"));
        if (starts) {
            gather g = {0};
            us_status s = primary(p, &argument);
            if (s == US_OK) s = postfix(p, &argument);
            if (s == US_OK) s = parse_gather_add(p, &g, argument, US_LIT(""));
            US_TRY(parse_gather_finish(p, &g, n, s));
        }
    }
    *io = n;
    return US_OK;
}

static us_status filters_and_tests(parser *p, chat_node **io) {
    for (int chain = 0; chain < 10000; chain++) {
        if (parse_take_op(p, "|")) US_TRY(parse_one_filter(p, io));
        else if (parse_take_name(p, "is")) US_TRY(one_test(p, io));
        else if (parse_is_op(p, "(")) US_TRY(postfix(p, io));
        else return US_OK;
    }
    return parse_fault(p, "too long a chain");
}

static us_status unary(parser *p, bool filters, chat_node **out) {
    US_TRY(parse_enter(p));
    if (parse_is_op(p, "-") || parse_is_op(p, "+")) {
        chat_node *n;
        US_TRY(parse_node(p, parse_is_op(p, "-") ? CHAT_X_NEG : CHAT_X_POS, &n));
        p->at++;
        US_TRY(unary(p, false, &n->a));
        *out = n;
    } else {
        US_TRY(primary(p, out));
    }
    US_TRY(postfix(p, out));
    if (filters) US_TRY(filters_and_tests(p, out));
    p->depth--;
    return US_OK;
}

/* Left-associative level: operands by `next`, operators from a '|'-separated list. */
static us_status binary(parser *p, const char *ops, us_status (*next)(parser *, chat_node **), chat_node **out) {
    US_TRY(next(p, out));
    for (;;) {
        const char *at = ops;
        bool found = false;
        while (parse_now(p)->type == CHAT_T_OP && *at && !found) {
            size_t n = strcspn(at, " ");
            found = us_str_eq(parse_now(p)->text, (us_str){at, n});
            at += n + (at[n] == ' ');
        }
        if (!found) return US_OK;
        chat_node *n;
        US_TRY(parse_node(p, CHAT_X_BINARY, &n));
        n->name = parse_now(p)->text;
        n->a = *out;
        p->at++;
        US_TRY(next(p, &n->b));
        *out = n;
    }
}

static us_status unary_level(parser *p, chat_node **out) {
    return unary(p, true, out);
}

static us_status power(parser *p, chat_node **out) {
    return binary(p, "**", unary_level, out);
}

static us_status product(parser *p, chat_node **out) {
    return binary(p, "* / // %", power, out);
}

static us_status concat(parser *p, chat_node **out) {
    chat_node *n, *item;
    US_TRY(product(p, out));
    if (!parse_is_op(p, "~")) return US_OK;
    gather g = {0};
    us_status s = parse_node(p, CHAT_X_CONCAT, &n);
    if (s == US_OK) s = parse_gather_add(p, &g, *out, US_LIT(""));
    while (s == US_OK && parse_take_op(p, "~")) {
        s = product(p, &item);
        if (s == US_OK) s = parse_gather_add(p, &g, item, US_LIT(""));
    }
    US_TRY(parse_gather_finish(p, &g, n, s));
    *out = n;
    return US_OK;
}

static us_status sum(parser *p, chat_node **out) {
    return binary(p, "+ -", concat, out);
}

static us_status compare(parser *p, chat_node **out) {
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};
    gather g = {0};
    chat_node *n, *item;
    US_TRY(sum(p, out));
    us_status s = parse_node(p, CHAT_X_COMPARE, &n);
    n->a = *out;
    while (s == US_OK) {
        us_str op = {0};
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            if (parse_is_op(p, ops[i])) op = us_str_z(ops[i]);
        if (parse_is_name(p, "in")) op = US_LIT("in");
        if (parse_is_name(p, "not") && p->t.list[p->at + 1].type == CHAT_T_NAME && us_str_eqz(p->t.list[p->at + 1].text, "in")) {
            op = US_LIT("not in");
            p->at++;
        }
        if (!op.p) break;
        p->at++;
        s = sum(p, &item);
        if (s == US_OK) s = parse_gather_add(p, &g, item, op);
    }
    size_t count = g.n;
    US_TRY(parse_gather_finish(p, &g, n, s));
    if (count) *out = n;
    return US_OK;
}

static us_status negation(parser *p, chat_node **out) {
    if (!parse_is_name(p, "not")) return compare(p, out);
    chat_node *n;
    US_TRY(parse_enter(p));
    US_TRY(parse_node(p, CHAT_X_NOT, &n));
    p->at++;
    US_TRY(negation(p, &n->a));
    p->depth--;
    *out = n;
    return US_OK;
}

static us_status logic(parser *p, const char *word, chat_kind kind, us_status (*next)(parser *, chat_node **), chat_node **out) {
    US_TRY(next(p, out));
    while (parse_take_name(p, word)) {
        chat_node *n;
        US_TRY(parse_node(p, kind, &n));
        n->a = *out;
        US_TRY(next(p, &n->b));
        *out = n;
    }
    return US_OK;
}

static us_status conjunction(parser *p, chat_node **out) {
    return logic(p, "and", CHAT_X_AND, negation, out);
}

us_status parse_expression(parser *p, bool conditional, chat_node **out) {
    US_TRY(parse_enter(p));
    US_TRY(logic(p, "or", CHAT_X_OR, conjunction, out));
    while (conditional && parse_take_name(p, "if")) {
        chat_node *n;
        US_TRY(parse_node(p, CHAT_X_COND, &n));
        n->a = *out;
        US_TRY(logic(p, "or", CHAT_X_OR, conjunction, &n->b));
        if (parse_take_name(p, "else")) US_TRY(parse_expression(p, true, &n->c));
        *out = n;
    }
    p->depth--;
    return US_OK;
}
