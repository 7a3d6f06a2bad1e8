/** Tokens of a template: text, tags, and what stands in tags; white-space control is applied here. Internal to model/chat. */
#ifndef US_MODEL_CHAT_LEXER_H
#define US_MODEL_CHAT_LEXER_H

#include "model/chat/value.h"

typedef enum chat_tok { CHAT_T_TEXT, CHAT_T_BLOCK, CHAT_T_BLOCK_END, CHAT_T_VAR, CHAT_T_VAR_END, CHAT_T_NAME, CHAT_T_STRING, CHAT_T_INT, CHAT_T_FLOAT, CHAT_T_OP, CHAT_T_EOF } chat_tok;

typedef struct chat_token {
    chat_tok type;
    uint32_t line;
    us_str text; /* TEXT and STRING: final bytes; others as written */
} chat_token;

typedef struct chat_tokens {
    chat_token *list; /* ends with EOF; from us_malloc */
    size_t n, cap;
} chat_tokens;

/** Strings are kept in the arena. Class "template-syntax". */
us_status chat_lex(us_str source, us_arena *arena, chat_tokens *out, us_err *err) US_WARN_UNUSED;

#endif
