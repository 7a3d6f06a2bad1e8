/** Evaluation: scopes, statements, expressions; and what it calls on values: methods, filters, tests, global functions. Internal to model/chat. */
#ifndef US_MODEL_CHAT_EVAL_H
#define US_MODEL_CHAT_EVAL_H

#include "model/chat/syntax.h"

typedef struct chat_scope {
    struct chat_scope *parent;
    us_str *names;
    chat_value *values;
    size_t n, cap;
} chat_scope;

/** Arguments of a call: positional, then keywords. */
typedef struct chat_args {
    const chat_value *v;
    const us_str *names; /* "" = positional */
    size_t n, n_positional;
} chat_args;

bool chat_scope_set(chat_run *r, chat_scope *s, us_str name, chat_value v);
/** Argument i, or keyword `name`; NULL when absent. */
const chat_value *chat_arg(const chat_args *a, size_t i, const char *name);

bool chat_exec(chat_run *r, const chat_node *n, chat_scope *s, int *signal); /* signal: 0, 1 break, 2 continue */
bool chat_eval(chat_run *r, const chat_node *n, chat_scope *s, chat_value *out);
bool chat_call(chat_run *r, const chat_value *f, const chat_args *a, chat_value *out);
bool chat_attribute(chat_run *r, const chat_value *of, us_str name, bool key_first, chat_value *out);
bool chat_item(chat_run *r, const chat_value *of, const chat_value *key, chat_value *out);
bool chat_contains(chat_run *r, const chat_value *in, const chat_value *what, bool *out);

/* methods.c */
bool chat_has_method(const chat_value *v, us_str name, bool *unsafe);
bool chat_method(chat_run *r, const chat_value *self, us_str name, const chat_args *a, chat_value *out);
bool chat_percent(chat_run *r, us_str format, const chat_value *args, chat_value *out); /* 'format' % args */
/* filters.c */
bool chat_filter(chat_run *r, us_str name, const chat_value *v, const chat_args *a, chat_value *out);
bool chat_filter_known(us_str name);
bool chat_test(chat_run *r, us_str name, const chat_value *v, const chat_args *a, bool *out);
bool chat_test_known(us_str name);
/* globals.c */
bool chat_global_known(us_str name);
bool chat_global(chat_run *r, us_str name, const chat_args *a, chat_value *out);

#endif
