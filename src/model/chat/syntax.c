/* Parser of statements: tokens to a tree. */
#include "model/chat/parser.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCE_MAX = 4 << 20 };

/* ---- statements ---- */

static us_status body(parser *p, const char *ends, chat_node **out);

static us_status block_end(parser *p) {
    if (parse_now(p)->type != CHAT_T_BLOCK_END) return parse_fault(p, "the end of the tag is expected");
    p->at++;
    return US_OK;
}

/* A name, or names in a tuple; or ns.attr where allowed. */
static us_status target(parser *p, bool attribute, chat_node **out) {
    gather g = {0};
    chat_node *n = NULL, *item = NULL;
    bool comma = false;
    us_status s = parse_enter(p);
    if (s == US_OK) s = parse_node(p, CHAT_X_TUPLE, &n);
    while (s == US_OK) {
        if (parse_take_op(p, "(")) {
            s = target(p, false, &item);
            if (s == US_OK && !parse_take_op(p, ")")) s = parse_fault(p, "\")\" is expected");
        } else if (parse_now(p)->type != CHAT_T_NAME) {
            s = parse_fault(p, "a name is expected");
        } else {
            s = parse_node(p, CHAT_X_NAME, &item);
            if (s == US_OK) item->name = parse_now(p)->text;
            p->at++;
            if (s == US_OK && attribute && parse_take_op(p, ".")) {
                chat_node *of = item;
                s = parse_node(p, CHAT_X_ATTR, &item);
                if (s == US_OK && parse_now(p)->type != CHAT_T_NAME) s = parse_fault(p, "an attribute's name is expected");
                if (s == US_OK) {
                    item->a = of;
                    item->name = parse_now(p)->text;
                    p->at++;
                }
            }
        }
        if (s == US_OK) s = parse_gather_add(p, &g, item, US_LIT(""));
        if (s != US_OK || !parse_take_op(p, ",")) break;
        comma = true;
        if (parse_is_name(p, "in") || parse_is_op(p, "=") || parse_is_op(p, ")")) break;
    }
    if (!n) return s;
    US_TRY(parse_gather_finish(p, &g, n, s));
    *out = comma ? n : item;
    p->depth--;
    return US_OK;
}

static us_status if_statement(parser *p, chat_node **out) {
    chat_node *n;
    US_TRY(parse_enter(p));
    US_TRY(parse_node(p, CHAT_S_IF, &n));
    US_TRY(parse_tuple_until(p, NULL, true, &n->a));
    US_TRY(block_end(p));
    US_TRY(body(p, "elif else endif", &n->b));
    if (parse_take_name(p, "elif")) {
        US_TRY(if_statement(p, &n->c));
    } else if (parse_take_name(p, "else")) {
        US_TRY(block_end(p));
        US_TRY(body(p, "endif", &n->c));
        p->at++;
        US_TRY(block_end(p));
    } else {
        p->at++;
        US_TRY(block_end(p));
    }
    p->depth--;
    *out = n;
    return US_OK;
}

static us_status for_statement(parser *p, chat_node **out) {
    chat_node *n;
    US_TRY(parse_node(p, CHAT_S_FOR, &n));
    US_TRY(target(p, false, &n->a));
    if (!parse_take_name(p, "in")) return parse_fault(p, "\"in\" is expected");
    US_TRY(parse_tuple_until(p, NULL, false, &n->b));
    if (parse_take_name(p, "if")) US_TRY(parse_expression(p, true, &n->filter));
    n->flag = parse_take_name(p, "recursive");
    US_TRY(block_end(p));
    p->loops++;
    US_TRY(body(p, "else endfor", &n->c));
    p->loops--;
    if (parse_take_name(p, "else")) {
        US_TRY(block_end(p));
        US_TRY(body(p, "endfor", &n->d));
    }
    p->at++;
    US_TRY(block_end(p));
    *out = n;
    return US_OK;
}

/* | filter | filter ... over the block's text. */
static us_status filter_chain(parser *p, chat_node **out) {
    US_TRY(parse_node(p, CHAT_X_CONST, out));
    (*out)->value = chat_str(US_LIT(""));
    while (parse_take_op(p, "|")) US_TRY(parse_one_filter(p, out));
    return US_OK;
}

static us_status set_statement(parser *p, chat_node **out) {
    chat_node *n;
    US_TRY(parse_node(p, CHAT_S_SET, &n));
    US_TRY(target(p, true, &n->a));
    if (parse_take_op(p, "=")) {
        US_TRY(parse_tuple_until(p, NULL, true, &n->b));
        *out = n;
        return block_end(p);
    }
    n->kind = CHAT_S_SET_BLOCK;
    US_TRY(filter_chain(p, &n->filter));
    US_TRY(block_end(p));
    US_TRY(body(p, "endset", &n->c));
    p->at++;
    *out = n;
    return block_end(p);
}

/* (a, b=default, ...) */
static us_status parameters(parser *p, chat_node *n) {
    gather g = {0};
    us_status s = US_OK;
    if (!parse_take_op(p, "(")) return parse_fault(p, "\"(\" is expected");
    while (s == US_OK && !parse_is_op(p, ")")) {
        chat_node *def = NULL;
        us_str name = parse_now(p)->text;
        if (parse_now(p)->type != CHAT_T_NAME) s = parse_fault(p, "a parameter's name is expected");
        else p->at++;
        if (s == US_OK && parse_take_op(p, "=")) s = parse_expression(p, true, &def);
        if (s == US_OK) s = parse_gather_add(p, &g, def, name);
        if (s == US_OK && !parse_is_op(p, ")") && !parse_take_op(p, ",")) s = parse_fault(p, "\",\" or \")\" is expected");
    }
    s = parse_gather_finish(p, &g, n, s);
    if (s == US_OK) p->at++;
    return s;
}

static us_status macro_statement(parser *p, chat_node **out) {
    chat_node *n;
    int loops = p->loops;
    US_TRY(parse_node(p, CHAT_S_MACRO, &n));
    if (parse_now(p)->type != CHAT_T_NAME) return parse_fault(p, "the macro's name is expected");
    n->name = parse_now(p)->text;
    p->at++;
    US_TRY(parameters(p, n));
    US_TRY(block_end(p));
    p->loops = 0;
    US_TRY(body(p, "endmacro", &n->c));
    p->loops = loops;
    p->at++;
    if (parse_now(p)->type == CHAT_T_NAME) p->at++;
    *out = n;
    return block_end(p);
}

static us_status call_statement(parser *p, chat_node **out) {
    chat_node *n;
    US_TRY(parse_node(p, CHAT_S_CALL, &n));
    n->name = US_LIT("caller");
    if (parse_is_op(p, "(")) US_TRY(parameters(p, n));
    US_TRY(parse_expression(p, true, &n->a));
    if (n->a->kind != CHAT_X_CALL) return parse_fault(p, "a call is expected");
    US_TRY(block_end(p));
    US_TRY(body(p, "endcall", &n->c));
    p->at++;
    *out = n;
    return block_end(p);
}

static us_status filter_statement(parser *p, chat_node **out) {
    chat_node *n;
    US_TRY(parse_node(p, CHAT_S_FILTER, &n));
    US_TRY(parse_node(p, CHAT_X_CONST, &n->filter));
    n->filter->value = chat_str(US_LIT(""));
    US_TRY(parse_one_filter(p, &n->filter));
    while (parse_take_op(p, "|")) US_TRY(parse_one_filter(p, &n->filter));
    US_TRY(block_end(p));
    US_TRY(body(p, "endfilter", &n->c));
    p->at++;
    *out = n;
    return block_end(p);
}

static us_status with_statement(parser *p, chat_node **out) {
    gather g = {0};
    chat_node *n, *value;
    us_status s = parse_node(p, CHAT_S_WITH, &n);
    while (s == US_OK && parse_now(p)->type == CHAT_T_NAME) {
        us_str name = parse_now(p)->text;
        p->at++;
        if (!parse_take_op(p, "=")) s = parse_fault(p, "\"=\" is expected");
        if (s == US_OK) s = parse_expression(p, true, &value);
        if (s == US_OK) s = parse_gather_add(p, &g, value, name);
        if (s == US_OK && !parse_take_op(p, ",")) break;
    }
    US_TRY(parse_gather_finish(p, &g, n, s));
    US_TRY(block_end(p));
    US_TRY(body(p, "endwith", &n->c));
    p->at++;
    *out = n;
    return block_end(p);
}

/* {% generation %} and {% block name %}: a body and its end. */
static us_status plain_block(parser *p, chat_kind kind, const char *end, bool named, chat_node **out) {
    chat_node *n;
    US_TRY(parse_node(p, kind, &n));
    if (named && parse_now(p)->type == CHAT_T_NAME) p->at++;
    US_TRY(block_end(p));
    US_TRY(body(p, end, &n->c));
    p->at++;
    if (named && parse_now(p)->type == CHAT_T_NAME) p->at++;
    *out = n;
    return block_end(p);
}

static us_status statement(parser *p, chat_node **out) {
    if (parse_now(p)->type != CHAT_T_NAME) return parse_fault(p, "a statement's name is expected");
    if (parse_take_name(p, "if")) return if_statement(p, out);
    if (parse_take_name(p, "for")) return for_statement(p, out);
    if (parse_take_name(p, "set")) return set_statement(p, out);
    if (parse_take_name(p, "macro")) return macro_statement(p, out);
    if (parse_take_name(p, "call")) return call_statement(p, out);
    if (parse_take_name(p, "filter")) return filter_statement(p, out);
    if (parse_take_name(p, "with")) return with_statement(p, out);
    if (parse_take_name(p, "generation")) {
        p->out->has_generation = true;
        return plain_block(p, CHAT_S_GENERATION, "endgeneration", false, out);
    }
    if (parse_take_name(p, "block")) return plain_block(p, CHAT_S_WITH, "endblock", true, out);
    if (parse_is_name(p, "break") || parse_is_name(p, "continue")) {
        if (p->loops == 0) return parse_fault(p, "a statement that may stand outside a loop is expected");
        US_TRY(parse_node(p, parse_is_name(p, "break") ? CHAT_S_BREAK : CHAT_S_CONTINUE, out));
        p->at++;
        return block_end(p);
    }
    return parse_fault(p, "a statement that templates may use is expected");
}

/* Statements until a tag that begins with one of the words in `ends` (its name is the token at hand then); NULL = until the end of the text. */
static us_status body(parser *p, const char *ends, chat_node **out) {
    gather g = {0};
    chat_node *seq = NULL, *n = NULL;
    us_status s = parse_enter(p);
    if (s == US_OK) s = parse_node(p, CHAT_S_SEQ, &seq);
    while (s == US_OK) {
        const chat_token *t = parse_now(p);
        if (t->type == CHAT_T_EOF) {
            if (ends) s = parse_fault(p, "the end of a block is expected");
            break;
        }
        if (t->type == CHAT_T_TEXT) {
            s = parse_node(p, CHAT_S_TEXT, &n);
            if (s == US_OK) n->value = chat_str(t->text);
            p->at++;
        } else if (t->type == CHAT_T_VAR) {
            p->at++;
            s = parse_node(p, CHAT_S_OUTPUT, &n);
            if (s == US_OK) s = parse_tuple_until(p, NULL, true, &n->a);
            if (s == US_OK && parse_now(p)->type != CHAT_T_VAR_END) s = parse_fault(p, "the end of the expression is expected");
            p->at++;
        } else {
            p->at++;
            bool end = false;
            for (const char *at = ends; at && *at && parse_now(p)->type == CHAT_T_NAME && !end;) {
                size_t k = strcspn(at, " ");
                end = us_str_eq(parse_now(p)->text, (us_str){at, k});
                at += k + (at[k] == ' ');
            }
            if (end) break;
            s = statement(p, &n);
        }
        if (s == US_OK) s = parse_gather_add(p, &g, n, US_LIT(""));
    }
    if (!seq) return s;
    US_TRY(parse_gather_finish(p, &g, seq, s));
    p->depth--;
    *out = seq;
    return US_OK;
}

/* CRLF and CR become LF; one newline at the very end goes. */
static us_status normalise(us_str source, us_arena *a, us_str *out, us_err *err) {
    char *o = us_arena_alloc(a, source.n + 1);
    size_t n = 0;
    if (!o) return us_fail_nomem(err, "reading a template");
    for (size_t i = 0; i < source.n; i++) {
        if (source.p[i] != '\r') o[n++] = source.p[i];
        else {
            o[n++] = '\n';
            if (i + 1 < source.n && source.p[i + 1] == '\n') i++;
        }
    }
    if (n && o[n - 1] == '\n') n--;
    *out = (us_str){o, n};
    return US_OK;
}

us_status chat_syntax_parse(us_str source, chat_syntax *out, us_err *err) {
    chat_syntax s = {0};
    parser p = {.out = &s, .err = err};
    us_str text;
    size_t bad;
    us_status st;
    if (source.n > SOURCE_MAX) return us_fail(err, US_E_LIMIT, "limit", "a template of %zu bytes is above the limit of 4 MB", source.n);
    if (!us_utf8_valid(source.p, source.n, &bad)) {
        us_fail(err, US_E_FORMAT, "template-syntax", "the template is not valid UTF-8");
        us_err_where(err, "byte %zu", bad);
        return US_E_FORMAT;
    }
    st = normalise(source, &s.arena, &text, err);
    if (st == US_OK) st = chat_lex(text, &s.arena, &p.t, err);
    if (st == US_OK) st = body(&p, NULL, &s.root);
    us_free(p.t.list);
    if (st == US_OK) *out = s;
    else us_arena_free(&s.arena);
    return st;
}

void chat_syntax_free(chat_syntax *s) {
    us_arena_free(&s->arena);
    s->root = NULL;
}
