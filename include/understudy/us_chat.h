/**
 * Chat templates: from messages to the text a model was trained on, as `apply_chat_template` of transformers renders it.
 *
 * The template language is Jinja as models use it, in a sandbox: no file, no network, no clock but the one handed over, no change of values, and limits on
 * steps, memory, output and depth. A template is parsed once and may be rendered by many threads.
 */
#ifndef US_CHAT_H
#define US_CHAT_H

#include <stddef.h>

#include "understudy/us_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A parsed template with the special tokens it is given as variables (bos_token, eos_token ...). */
typedef struct us_chat us_chat;

/**
 * Read a template: a .jinja file, or a checkpoint folder (chat_template.jinja, else chat_template of tokenizer_config.json; of several the one named
 * "default"). *out is freed with us_chat_free. Class "template-missing"; "template-syntax" with the line; "limit" above 4 MB.
 */
US_API us_status us_chat_open(const char *path, us_chat **out, us_err *err) US_WARN_UNUSED;
/** From text of n bytes, which is copied; no special tokens. */
US_API us_status us_chat_parse(const char *text, size_t n, us_chat **out, us_err *err) US_WARN_UNUSED;
US_API void us_chat_free(us_chat *chat);

/** Limits of one rendering; 0 means the value given here. */
typedef struct us_chat_limits {
    uint64_t steps;        /**< 10 million: evaluated nodes, loop passes, and work on texts by 64 bytes */
    uint64_t memory_bytes; /**< 64 MiB of values */
    uint64_t output_bytes; /**< 16 MiB */
} us_chat_limits;

typedef struct us_chat_text {
    char *text; /**< n bytes of UTF-8 and a NUL */
    size_t n;
    size_t *spans; /**< n_spans pairs [start, end) in code points of text: what generation blocks wrote */
    size_t n_spans;
    uint32_t line;    /**< after a failure: the line of the template, 0 if unknown */
    char kind[32];    /**< after a failure: "raise_exception", "TypeError", "UndefinedError", "SecurityError", "LimitError" ... */
    char *message;    /**< after a failure: what the template or the interpreter said */
} us_chat_text;

/**
 * Render one conversation.
 *
 * request: a JSON object with "messages" (an array), and as the template uses them "tools", "documents" (arrays or null), "add_generation_prompt",
 * "continue_final_message" (booleans), "special_tokens" (an object of variables), "now" (the clock, instead of the argument), and any further variable. Members of messages that are null are dropped,
 * and the names of reasoning are copied to each other as transformers does.
 * now: "YYYY-MM-DDTHH:MM:SS" for strftime_now, or NULL for local time.
 * out: filled also on failure; us_chat_text_free. Classes: "template-raised" (raise_exception: err says its text), "template" (all else), "chat-request".
 */
US_API us_status us_chat_render(const us_chat *chat, const char *request, size_t n, const char *now, const us_chat_limits *limits, us_chat_text *out, us_err *err) US_WARN_UNUSED;
US_API void us_chat_text_free(us_chat_text *t);

#ifdef __cplusplus
}
#endif

#endif
