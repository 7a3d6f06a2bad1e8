/**
 * Values of the template interpreter: what Jinja templates see of Python. Immutable but for namespaces, cyclers and joiners; all memory comes from the
 * render's arena, which is limited, and dies with it. Text is UTF-8; lengths, indices and slices count code points.
 *
 * Internal to model/chat. Tests: tests/unit/test_chat.c, tests/golden/test_fix_chat.c.
 */
#ifndef US_MODEL_CHAT_VALUE_H
#define US_MODEL_CHAT_VALUE_H

#include "base/alloc.h"
#include "base/str.h"

typedef enum chat_type {
    CHAT_UNDEFINED, CHAT_NONE, CHAT_BOOL, CHAT_INT, CHAT_BIG /* an integer beyond 64 bits: its decimal text */, CHAT_FLOAT, CHAT_STR, CHAT_LIST, CHAT_TUPLE, CHAT_DICT,
    CHAT_NAMESPACE, CHAT_CALLABLE, CHAT_LOOP, CHAT_CYCLER, CHAT_JOINER,
} chat_type;

typedef struct chat_value chat_value;

typedef struct chat_list {
    chat_value *items;
    size_t n;
} chat_list;

typedef struct chat_dict {
    chat_value *keys, *values;
    size_t n, cap;
} chat_dict;

/** Something that can be called: a global function, a bound method, a macro, or the body of a call block. */
typedef struct chat_callable {
    enum { CHAT_FUNCTION, CHAT_METHOD, CHAT_MACRO } kind;
    us_str name;
    const chat_value *self;        /* METHOD */
    const struct chat_node *macro; /* MACRO */
    struct chat_scope *scope;      /* MACRO: where it was defined */
    const chat_value *caller;      /* MACRO: caller() of a call block */
} chat_callable;

typedef struct chat_loop {
    size_t index0, length;
    const chat_value *items;
    const struct chat_node *recursive; /* NULL unless the loop says so */
    struct chat_scope *scope;
    size_t depth0;
    chat_value *changed; /* what loop.changed saw last, or NULL */
} chat_loop;

typedef struct chat_cycler {
    const chat_value *items;
    size_t n, pos;
} chat_cycler;

struct chat_value {
    chat_type type;
    bool safe;     /* UNDEFINED: access was denied by the sandbox */
    union {
        bool b;
        int64_t i;
        double f;
        us_str s;          /* STR; BIG: digits with sign; UNDEFINED: what to say when it is used */
        chat_list *list;   /* LIST, TUPLE */
        chat_dict *dict;   /* DICT, NAMESPACE */
        chat_callable *call;
        chat_loop *loop;
        chat_cycler *cycler; /* CYCLER, JOINER (items[0] = separator, pos = used) */
    } u;
};

enum { CHAT_DEPTH = 200 };

/** State of one rendering. */
typedef struct chat_run {
    us_arena arena;
    size_t used, memory_max;
    uint64_t steps, steps_max;
    size_t output_max;
    int depth;
    bool failed;
    const char *kind;     /* of the error: "TypeError", "UndefinedError", "raise_exception", "SecurityError", "ValueError", "LimitError" ... */
    us_str message;
    uint32_t line;        /* of the statement or expression that failed */
    struct chat_scope *globals;
    us_buf *out;          /* where output goes now */
    us_buf *top;          /* the final output */
    size_t *spans;        /* byte offsets of generation blocks in the output they were streamed to: pairs */
    size_t n_spans, cap_spans;
    int64_t now[7];       /* year month day hour minute second weekday (Monday = 0) */
} chat_run;

/** Record an error; returns false so that callers can return it. */
bool chat_fail(chat_run *r, const char *kind, const char *fmt, ...) US_PRINTF(3, 4);
/** n bytes from the arena, within the limit; NULL after chat_fail. */
void *chat_alloc(chat_run *r, size_t n);
/** Count n steps of work; false when there were too many. */
bool chat_step(chat_run *r, uint64_t n);

#define CHAT_NONE_VALUE ((chat_value){.type = CHAT_NONE})
chat_value chat_bool(bool b);
chat_value chat_int(int64_t i);
chat_value chat_float(double f);
chat_value chat_str(us_str s); /* borrows */
bool chat_str_copy(chat_run *r, us_str s, chat_value *out);
bool chat_list_new(chat_run *r, chat_type type, size_t n, chat_value *out); /* n undefined items */
bool chat_dict_new(chat_run *r, chat_type type, size_t cap, chat_value *out);
bool chat_dict_set(chat_run *r, chat_dict *d, chat_value key, chat_value value);
const chat_value *chat_dict_get(chat_run *r, const chat_dict *d, const chat_value *key);
const chat_value *chat_dict_getz(const chat_dict *d, us_str key);
chat_value chat_undefined(chat_run *r, const char *fmt, ...) US_PRINTF(2, 3);

bool chat_truth(const chat_value *v);
/** Python ==; undefined equals undefined. */
bool chat_equal(const chat_value *a, const chat_value *b, int depth);
/** <0, 0, >0 into *out; TypeError when the two have no order. */
bool chat_compare(chat_run *r, const chat_value *a, const chat_value *b, const char *op, int *out);
const char *chat_type_name(const chat_value *v); /* "str", "int", "NoneType" ... */
bool chat_is_number(const chat_value *v);        /* bool, int, float */
double chat_number(const chat_value *v);

/** str(v) appended; undefined prints nothing. */
bool chat_print(chat_run *r, const chat_value *v, us_buf *out);
/** repr(v) appended. */
bool chat_repr(chat_run *r, const chat_value *v, us_buf *out, int depth);
void chat_print_float(double f, us_buf *out);
typedef struct chat_json_style {
    bool ascii, sort;
    int indent; /* -1: one line */
    us_str item_separator, key_separator;
} chat_json_style;
bool chat_json(chat_run *r, const chat_value *v, const chat_json_style *style, us_buf *out, int depth);
/** The printed form as a value. */
bool chat_to_str(chat_run *r, const chat_value *v, us_str *out);
/** Items that iteration yields: list and tuple items, dict keys, characters of text; undefined yields none. TypeError otherwise. */
bool chat_iterate(chat_run *r, const chat_value *v, const chat_value **items, size_t *n);

/* ---- text by code points ---- */
size_t chat_length(us_str s);
/** Byte offset of code point `index` (0 ... length). */
size_t chat_offset(us_str s, size_t index);
/** Decode one code point at *at; moves on. Invalid bytes count as one. */
uint32_t chat_decode(us_str s, size_t *at);
bool chat_is_space(uint32_t c); /* str.isspace */

#endif
