/** What the two halves of the parser share: the tokens at hand, nodes, lists of nodes, and expressions. Internal to model/chat. */
#ifndef US_MODEL_CHAT_PARSER_H
#define US_MODEL_CHAT_PARSER_H

#include "model/chat/lexer.h"
#include "model/chat/syntax.h"

typedef struct parser {
    chat_tokens t;
    size_t at;
    int depth, loops;
    chat_syntax *out;
    us_err *err;
} parser;

/** Nodes, and a name for each, that become the list of a node. */
typedef struct gather {
    chat_node **list;
    us_str *names;
    size_t n, cap, cap_names;
} gather;

const chat_token *parse_now(const parser *p);
bool parse_is_op(const parser *p, const char *op);
bool parse_is_name(const parser *p, const char *name);
bool parse_take_op(parser *p, const char *op);
bool parse_take_name(parser *p, const char *name);
us_status parse_fault(parser *p, const char *what) US_WARN_UNUSED;
us_status parse_node(parser *p, chat_kind kind, chat_node **out) US_WARN_UNUSED;
us_status parse_gather_add(parser *p, gather *g, chat_node *n, us_str name) US_WARN_UNUSED;
us_status parse_gather_finish(parser *p, gather *g, chat_node *into, us_status s) US_WARN_UNUSED;
us_status parse_enter(parser *p) US_WARN_UNUSED;
us_status parse_tuple_until(parser *p, const char *close, bool conditional, chat_node **out) US_WARN_UNUSED;
us_status parse_one_filter(parser *p, chat_node **io) US_WARN_UNUSED;
us_status parse_expression(parser *p, bool conditional, chat_node **out) US_WARN_UNUSED;

#endif
