/* Opening and rendering chat templates: see understudy/us_chat.h. */
#define _GNU_SOURCE
#include "understudy/us_chat.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "io/fs.h"
#include "io/json.h"
#include "model/chat/eval.h"
#include "model/chat/text.h"

enum { TEMPLATE_MAX = 4 << 20, CONFIG_MAX = 64 << 20 };

struct us_chat {
    char *text;
    chat_syntax syntax;
    us_json_doc tokens;    /* parsed from it */
    bool has_tokens;
};

/* ---- opening ---- */

us_status us_chat_parse(const char *text, size_t n, us_chat **out, us_err *err) {
    *out = NULL;
    if (n > TEMPLATE_MAX) return us_fail(err, US_E_FORMAT, "limit", "a template of %zu bytes (at most %d)", n, TEMPLATE_MAX);
    us_chat *c = us_calloc(1, sizeof *c);
    if (!c || !(c->text = us_strndup(text, n))) {
        us_free(c);
        return us_fail_nomem(err, "reading a template");
    }
    us_status s = chat_syntax_parse((us_str){c->text, n}, &c->syntax, err);
    if (s != US_OK) {
        us_chat_free(c);
        return s;
    }
    *out = c;
    return US_OK;
}

void us_chat_free(us_chat *c) {
    if (!c) return;
    chat_syntax_free(&c->syntax);
    if (c->has_tokens) us_json_doc_free(&c->tokens);
    us_free(c->text);
    us_free(c);
}

/* The template in tokenizer_config.json: text, or a list of {name, template}. */
static us_str configured(const us_json_doc *d) {
    us_json_ref t = us_json_get(d, 0, "chat_template");
    if (t == US_JSON_NO || us_json_type_of(d, t) == US_JSON_STRING) return us_json_string(d, t);
    us_str only = {0};
    for (us_json_ref e = us_json_first(d, t); us_json_type_of(d, t) == US_JSON_ARRAY && e != US_JSON_NO; e = us_json_next(d, t, e)) {
        us_str text = us_json_string(d, us_json_get(d, e, "template"));
        if (us_str_eqz(us_json_string(d, us_json_get(d, e, "name")), "default")) return text;
        if (!only.p) only = text;
    }
    return only;
}

static us_status read_config(const char *file, us_json_doc *d, us_err *err) {
    char *text = NULL;
    size_t n = 0;
    US_TRY(us_fs_read_all(file, CONFIG_MAX, &text, &n, err));
    us_status s = us_json_doc_take(d, text, n, US_JSON_INFINITY, err);
    return s == US_OK ? s : us_err_where(err, "%s", file);
}

static us_status read_template(const char *file, us_chat **out, us_err *err) {
    char *text = NULL;
    size_t n = 0;
    us_status s = us_fs_read_all(file, TEMPLATE_MAX, &text, &n, err);
    if (s == US_OK) s = us_chat_parse(text, n, out, err);
    us_free(text);
    return s == US_OK ? s : us_err_where(err, "%s", file);
}

static us_status open_folder(const char *path, us_arena *a, us_chat **out, us_err *err) {
    char *config = us_fs_join(a, path, "tokenizer_config.json"), *jinja = us_fs_join(a, path, "chat_template.jinja");
    if (!config || !jinja) return us_fail_nomem(err, "opening a template");
    us_json_doc d = {0};
    bool has_config = us_fs_kind_of(config) == US_FS_REGULAR;
    us_status s = US_OK;
    if (has_config) US_TRY(read_config(config, &d, err));
    us_str t = has_config ? configured(&d) : (us_str){0};
    if (us_fs_kind_of(jinja) == US_FS_REGULAR) s = read_template(jinja, out, err);
    else if (t.p) {
        s = us_chat_parse(t.p, t.n, out, err);
        if (s != US_OK) us_err_where(err, "%s", config);
    } else {
        s = us_fail(err, US_E_FORMAT, "template-missing", "no chat_template.jinja, and no chat_template in tokenizer_config.json");
        us_err_where(err, "%s", path);
    }
    if (s == US_OK) {
        (*out)->tokens = d;
        (*out)->has_tokens = has_config;
    } else if (has_config) us_json_doc_free(&d);
    return s;
}

us_status us_chat_open(const char *path, us_chat **out, us_err *err) {
    us_arena a = {0};
    *out = NULL;
    if (us_fs_kind_of(path) != US_FS_FOLDER) return read_template(path, out, err);
    us_status s = open_folder(path, &a, out, err);
    us_arena_free(&a);
    return s;
}

/* ---- JSON to values ---- */

static bool from_json(chat_run *r, const us_json_doc *d, us_json_ref at, bool drop_null, chat_value *out) {
    int64_t i;
    double f;
    us_str raw = us_json_raw(d, at);
    if (!chat_step(r, 1)) return false;
    switch (us_json_type_of(d, at)) {
    case US_JSON_NULL: return *out = CHAT_NONE_VALUE, true;
    case US_JSON_TRUE: return *out = chat_bool(true), true;
    case US_JSON_FALSE: return *out = chat_bool(false), true;
    case US_JSON_STRING: return *out = chat_str(us_json_string(d, at)), true;
    case US_JSON_NUMBER:
        if (us_json_i64(d, at, &i)) return *out = chat_int(i), true;
        if (raw.n && !memchr(raw.p, '.', raw.n) && !memchr(raw.p, 'e', raw.n) && !memchr(raw.p, 'E', raw.n)) return *out = (chat_value){.type = CHAT_BIG, .u.s = raw}, true;
        if (!us_json_double(d, at, &f)) return chat_fail(r, "ValueError", "a number that cannot be read");
        return *out = chat_float(f), true;
    case US_JSON_ARRAY: {
        if (!chat_list_new(r, CHAT_LIST, us_json_count(d, at), out)) return false;
        size_t k = 0;
        for (us_json_ref e = us_json_first(d, at); e != US_JSON_NO; e = us_json_next(d, at, e))
            if (!from_json(r, d, e, false, &out->u.list->items[k++])) return false;
        return true;
    }
    default: {
        if (!chat_dict_new(r, CHAT_DICT, us_json_count(d, at), out)) return false;
        chat_dict *x = out->u.dict; /* names are unique: the document was checked */
        for (us_json_ref k = us_json_first(d, at); k != US_JSON_NO;) {
            us_json_ref v = us_json_next(d, at, k);
            if (!drop_null || us_json_type_of(d, v) != US_JSON_NULL) {
                x->keys[x->n] = chat_str(us_json_string(d, k));
                if (!from_json(r, d, v, false, &x->values[x->n])) return false;
                x->n++;
            }
            k = us_json_next(d, at, v);
        }
        return true;
    }
    }
}

/* The three names of reasoning (fixtures/chat/README.md, what happens to messages, 2). */
static bool name_reasoning(chat_run *r, chat_dict *m) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (int i = 0; i < 3; i++) {
        const chat_value *v = chat_dict_getz(m, us_str_z(names[i]));
        if (!v) continue;
        chat_value text = *v;
        if (i && !chat_dict_set(r, m, chat_str(US_LIT("reasoning_content")), text)) return false;
        if (!chat_dict_getz(m, US_LIT("thinking")) && !chat_dict_set(r, m, chat_str(US_LIT("thinking")), text)) return false;
        return true;
    }
    return true;
}

static const us_str tag = {"CONTINUE_FINAL_MESSAGE_TAG ", 27};

static bool append_tag(chat_run *r, chat_value *v) {
    us_buf b = {0};
    us_buf_str(&b, v->u.s);
    us_buf_str(&b, tag);
    return chat_take(r, &b, true, v);
}

static bool tag_last(chat_run *r, chat_list *messages) {
    chat_value *last = messages->n ? &messages->items[messages->n - 1] : NULL;
    if (!last || last->type != CHAT_DICT) return chat_fail(r, "ValueError", "continue_final_message: there is no last message");
    chat_value *content = (chat_value *)chat_dict_getz(last->u.dict, US_LIT("content")); /* the request's own copy */
    if (content && content->type == CHAT_STR) return append_tag(r, content);
    for (size_t i = content && content->type == CHAT_LIST ? content->u.list->n : 0; i-- > 0;) {
        chat_value *part = &content->u.list->items[i];
        chat_value *text = part->type == CHAT_DICT ? (chat_value *)chat_dict_getz(part->u.dict, US_LIT("text")) : NULL;
        if (text && text->type == CHAT_STR) return append_tag(r, text);
    }
    return chat_fail(r, "ValueError", "continue_final_message: the last message has no text content");
}

static bool set_messages(chat_run *r, const us_json_doc *d, us_json_ref at, bool keep_going) {
    chat_value list;
    if (!chat_list_new(r, CHAT_LIST, us_json_count(d, at), &list)) return false;
    size_t k = 0;
    for (us_json_ref e = us_json_first(d, at); e != US_JSON_NO; e = us_json_next(d, at, e)) {
        chat_value *m = &list.u.list->items[k++];
        if (!from_json(r, d, e, true, m)) return false;
        if (m->type == CHAT_DICT && !name_reasoning(r, m->u.dict)) return false;
    }
    if (keep_going && !tag_last(r, list.u.list)) return false;
    return chat_scope_set(r, r->globals, US_LIT("messages"), list);
}

/* bos_token and its like: text, or an added token with its text in "content". */
static bool set_tokens(chat_run *r, const us_json_doc *d, us_json_ref object, bool only_tokens) {
    for (us_json_ref k = us_json_first(d, object); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, object, k);
        us_str name = us_json_string(d, k), text = us_json_string(d, v);
        if (!text.p) text = us_json_string(d, us_json_get(d, v, "content"));
        if (text.p && (!only_tokens || us_str_ends(name, US_LIT("_token"))) && !chat_scope_set(r, r->globals, name, chat_str(text))) return false;
        k = us_json_next(d, object, v);
    }
    return true;
}

static bool set_variables(chat_run *r, const us_chat *c, const us_json_doc *d) {
    us_json_ref messages = us_json_get(d, 0, "messages"), going = us_json_get(d, 0, "continue_final_message"), special = us_json_get(d, 0, "special_tokens");
    bool keep_going = going != US_JSON_NO && us_json_type_of(d, going) == US_JSON_TRUE;
    if (c->has_tokens && !set_tokens(r, &c->tokens, 0, true)) return false;
    if (special != US_JSON_NO && us_json_type_of(d, special) == US_JSON_OBJECT && !set_tokens(r, d, special, false)) return false;
    if (!chat_scope_set(r, r->globals, US_LIT("tools"), CHAT_NONE_VALUE) || !chat_scope_set(r, r->globals, US_LIT("documents"), CHAT_NONE_VALUE)) return false;
    if (!chat_scope_set(r, r->globals, US_LIT("add_generation_prompt"), chat_bool(false))) return false;
    for (us_json_ref k = us_json_first(d, 0); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, 0, k);
        us_str name = us_json_string(d, k);
        chat_value x;
        if (v != messages && v != special && v != going && !us_str_eqz(name, "now") && (!from_json(r, d, v, false, &x) || !chat_scope_set(r, r->globals, name, x))) return false;
        k = us_json_next(d, 0, v);
    }
    return set_messages(r, d, messages, keep_going);
}

/* ---- rendering ---- */

static bool set_clock(chat_run *r, const char *now) {
    int y, mo, d, h, mi, s;
    if (now) {
        if (sscanf(now, "%4d-%2d-%2dT%2d:%2d:%2d", &y, &mo, &d, &h, &mi, &s) != 6 || mo < 1 || mo > 12 || d < 1 || d > 31 || h > 24 || mi > 60 || s > 61 || y < 1)
            return chat_fail(r, "ValueError", "the clock must read YYYY-MM-DDTHH:MM:SS");
    } else {
        time_t t = time(NULL);
        struct tm tm;
        localtime_r(&t, &tm);
        y = tm.tm_year + 1900, mo = tm.tm_mon + 1, d = tm.tm_mday, h = tm.tm_hour, mi = tm.tm_min, s = tm.tm_sec;
    }
    static const int shift[] = {0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4};
    int z = mo < 3 ? y - 1 : y, sunday = (z + z / 4 - z / 100 + z / 400 + shift[mo - 1] + d) % 7; /* Sakamoto: Sunday = 0 */
    const int64_t all[7] = {y, mo, d, h, mi, s, (sunday + 6) % 7};
    memcpy(r->now, all, sizeof all);
    return true;
}

/* Cut at the tag of continue_final_message. */
static bool cut_tag(chat_run *r, us_buf *b) {
    us_str bare = us_str_sub(tag, 0, tag.n - 1), text = us_buf_view(b);
    size_t at = chat_rfind(text, bare);
    if (at == SIZE_MAX) return chat_fail(r, "ValueError", "continue_final_message is set but the last message does not appear in what the template renders");
    bool whole = us_str_starts(us_str_sub(text, at, text.n), tag);
    b->n = whole ? at : chat_strip(us_str_sub(text, 0, at), NULL, 2).n;
    return true;
}

static us_status give(chat_run *r, us_buf *b, us_chat_text *out, us_err *err) {
    out->line = r->line;
    if (r->failed) {
        snprintf(out->kind, sizeof out->kind, "%s", r->kind);
        out->message = us_strndup(r->message.p ? r->message.p : "", r->message.n);
        if (!out->message) return us_fail_nomem(err, "rendering a template");
        if (strcmp(r->kind, "raise_exception") == 0) return us_fail(err, US_E_FORMAT, "template-raised", "the template says: %s (line %u of the template)", out->message, r->line);
        return us_fail(err, US_E_FORMAT, "template", "%s: %s (line %u of the template)", r->kind, out->message, r->line);
    }
    out->spans = us_calloc(r->n_spans + 1, sizeof *out->spans);
    const char *text = us_buf_text(b);
    if (!out->spans || !text) return us_fail_nomem(err, "rendering a template");
    out->n = b->n;
    out->text = us_strndup(text, b->n);
    if (!out->text) return us_fail_nomem(err, "rendering a template");
    size_t points = 0, at = 0, k = 0;
    while (k < r->n_spans) { /* spans are in order and do not overlap */
        size_t target = r->spans[k] < b->n ? r->spans[k] : b->n;
        if (target < at) points = at = 0;
        points += chat_length(us_str_sub(us_buf_view(b), at, target));
        at = target;
        out->spans[k++] = points;
    }
    out->n_spans = r->n_spans / 2;
    return US_OK;
}

us_status us_chat_render(const us_chat *c, const char *request, size_t n, const char *now, const us_chat_limits *limits, us_chat_text *out, us_err *err) {
    us_json_doc d = {0};
    us_buf b = {0};
    memset(out, 0, sizeof *out);
    us_status s = us_json_doc_parse(&d, (us_str){request, n}, US_JSON_INFINITY, err);
    if (s != US_OK) return s;
    us_json_ref messages = us_json_get(&d, 0, "messages");
    if (messages == US_JSON_NO || us_json_type_of(&d, messages) != US_JSON_ARRAY) {
        us_json_doc_free(&d);
        return us_fail(err, US_E_FORMAT, "chat-request", "no \"messages\" array in the request");
    }
    chat_scope globals = {0}, top = {.parent = &globals};
    chat_run r = {.steps_max = limits && limits->steps ? limits->steps : 10000000,
                  .memory_max = limits && limits->memory_bytes ? limits->memory_bytes : 64 << 20,
                  .output_max = limits && limits->output_bytes ? limits->output_bytes : 16 << 20,
                  .globals = &globals, .out = &b, .top = &b};
    int signal = 0;
    us_json_ref going = us_json_get(&d, 0, "continue_final_message");
    us_str clock = us_json_string(&d, us_json_get(&d, 0, "now"));
    char own[24] = "";
    if (clock.n && clock.n < sizeof own) memcpy(own, clock.p, clock.n);
    bool ok = set_clock(&r, clock.p ? own : now) && set_variables(&r, c, &d) && chat_exec(&r, c->syntax.root, &top, &signal);
    if (ok && going != US_JSON_NO && us_json_type_of(&d, going) == US_JSON_TRUE) cut_tag(&r, &b);
    if (!ok && !r.failed) chat_fail(&r, "MemoryError", "out of memory");
    s = give(&r, &b, out, err);
    us_free(r.spans);
    us_buf_free(&b);
    us_arena_free(&r.arena);
    us_json_doc_free(&d);
    return s;
}

void us_chat_text_free(us_chat_text *t) {
    us_free(t->text);
    us_free(t->spans);
    us_free(t->message);
    memset(t, 0, sizeof *t);
}
