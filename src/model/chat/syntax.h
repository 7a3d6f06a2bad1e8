/**
 * Syntax of templates: source text -> tree. Parsed once; the tree and its constants live in the arena of the syntax object.
 *
 * The grammar is Jinja's with loop controls and generation blocks, trim_blocks and lstrip_blocks on (fixtures/chat/README.md "The environment"). An unknown
 * construct is an error that names it and its line. Internal to model/chat. Tests: as value.h.
 */
#ifndef US_MODEL_CHAT_SYNTAX_H
#define US_MODEL_CHAT_SYNTAX_H

#include "model/chat/value.h"

typedef enum chat_kind {
    /* expressions */
    CHAT_X_CONST, CHAT_X_NAME, CHAT_X_LIST, CHAT_X_TUPLE, CHAT_X_DICT, CHAT_X_ATTR, CHAT_X_ITEM, CHAT_X_SLICE, CHAT_X_CALL, CHAT_X_FILTER, CHAT_X_TEST, CHAT_X_NOT,
    CHAT_X_NEG, CHAT_X_POS, CHAT_X_BINARY, CHAT_X_COMPARE, CHAT_X_AND, CHAT_X_OR, CHAT_X_COND, CHAT_X_CONCAT,
    /* statements */
    CHAT_S_SEQ, CHAT_S_TEXT, CHAT_S_OUTPUT, CHAT_S_IF, CHAT_S_FOR, CHAT_S_SET, CHAT_S_SET_BLOCK, CHAT_S_MACRO, CHAT_S_CALL, CHAT_S_FILTER, CHAT_S_WITH, CHAT_S_BREAK,
    CHAT_S_CONTINUE, CHAT_S_GENERATION,
} chat_kind;

typedef struct chat_node {
    chat_kind kind;
    uint32_t line;
    us_str name;              /* NAME, ATTR, FILTER, TEST, MACRO; BINARY: operator; COMPARE: operators in `names` */
    chat_value value;         /* CONST; TEXT: the text */
    struct chat_node *a, *b, *c, *d; /* operands; IF: a condition, b body, c rest; FOR: a target, b iterable, c body, d else */
    struct chat_node *filter; /* FOR: the loop's if; SET_BLOCK, FILTER: a chain of filters over CHAT_X_CONST "" */
    struct chat_node **list;  /* items, arguments, statements, values */
    us_str *names;            /* keyword of each argument ("" = positional), parameters, with's names, operators */
    size_t n, n_names;
    bool flag;                /* TEST: negated; FOR: recursive; CALL etc.: has keywords */
} chat_node;

typedef struct chat_syntax {
    us_arena arena;
    chat_node *root;
    bool has_generation;
} chat_syntax;

/** Class "template-syntax" with the line; "limit" for texts above 4 MB or nested beyond 200. */
us_status chat_syntax_parse(us_str source, chat_syntax *out, us_err *err) US_WARN_UNUSED;
void chat_syntax_free(chat_syntax *s);

#endif
