/* `understudy chat`: from messages to the text a model is given. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"
#include "io/fs.h"
#include "io/json.h"
#include "understudy/us_chat.h"

enum { REQUEST_MAX = 256 << 20 };

typedef struct job {
    us_cli *cli;
    us_chat *chat;
    char *tools; /* JSON text, or NULL */
    size_t tools_n;
    const char *const *sets;
    int n_sets;
    bool prompt, jsonl;
} job;

static us_status read_input(const char *path, char **text, size_t *n, us_err *err) {
    if (strcmp(path, "-") != 0) return us_fs_read_all(path, REQUEST_MAX, text, n, err);
    us_buf b = {0};
    char chunk[1 << 16];
    size_t k;
    while ((k = fread(chunk, 1, sizeof chunk, stdin)) > 0 && b.n <= REQUEST_MAX) us_buf_add(&b, chunk, k);
    us_status s = us_buf_status(&b, err, "reading messages");
    if (s == US_OK && b.n > REQUEST_MAX) s = us_fail(err, US_E_LIMIT, "limit", "more than %d MiB of messages", REQUEST_MAX >> 20);
    const char *view = us_buf_text(&b);
    *text = s == US_OK && view ? us_strndup(view, b.n) : NULL;
    *n = b.n;
    us_buf_free(&b);
    if (s == US_OK && !*text) s = us_fail_nomem(err, "reading messages");
    return s;
}

static bool is_set(const us_json_doc *d, const char *key) {
    return us_json_get(d, 0, key) != US_JSON_NO;
}

/* NAME=VALUE: the value is JSON, or else text. */
static us_status add_set(us_buf *b, const char *set, us_err *err) {
    us_str all = us_str_z(set);
    size_t eq = us_str_find(all, '=', 0);
    if (eq == 0 || eq >= all.n) return us_fail(err, US_E_INVAL, "set", "--set takes NAME=VALUE, not \"%s\"", set);
    us_str value = us_str_sub(all, eq + 1, all.n);
    us_json_doc d = {0};
    us_err why = {0};
    us_buf_c(b, ',');
    us_buf_json(b, us_str_sub(all, 0, eq));
    us_buf_c(b, ':');
    if (us_json_doc_parse(&d, value, 0, &why) == US_OK) {
        us_buf_str(b, value);
        us_json_doc_free(&d);
    } else us_buf_json(b, value);
    return US_OK;
}

/* What was given, as a request: a bare list of messages, or an object with "messages" and variables of its own. */
static us_status request_of(const job *j, us_str given, us_buf *b, us_err *err) {
    us_json_doc d = {0};
    US_TRY(us_json_doc_parse(&d, given, 0, err));
    us_status s = US_OK;
    us_json_type type = us_json_type_of(&d, 0);
    if (type == US_JSON_ARRAY) {
        us_buf_z(b, "{\"messages\":");
        us_buf_str(b, us_json_raw(&d, 0));
    } else if (type == US_JSON_OBJECT && us_json_count(&d, 0) > 0) {
        us_str raw = us_json_raw(&d, 0);
        us_buf_str(b, us_str_sub(raw, 0, raw.n - 1));
    } else s = us_fail(err, US_E_FORMAT, "chat-request", "neither a list of messages nor an object with \"messages\"");
    if (s == US_OK && j->tools && !is_set(&d, "tools")) {
        us_buf_z(b, ",\"tools\":");
        us_buf_add(b, j->tools, j->tools_n);
    }
    if (s == US_OK && !is_set(&d, "add_generation_prompt")) us_buf_printf(b, ",\"add_generation_prompt\":%s", j->prompt ? "true" : "false");
    for (int i = 0; s == US_OK && i < j->n_sets; i++) s = add_set(b, j->sets[i], err);
    us_buf_c(b, '}');
    us_json_doc_free(&d);
    return s == US_OK ? us_buf_status(b, err, "reading messages") : s;
}

static void put_json(us_cli *c, const us_chat_text *t) {
    us_buf b = {0};
    if (t->message) {
        us_buf_z(&b, "{\"error\": ");
        us_buf_json(&b, us_str_z(t->kind));
        us_buf_z(&b, ", \"message\": ");
        us_buf_json(&b, us_str_z(t->message));
    } else {
        us_buf_z(&b, "{\"rendered\": ");
        us_buf_json(&b, (us_str){t->text, t->n});
        us_buf_z(&b, ", \"generation_spans\": [");
        for (size_t i = 0; i < t->n_spans; i++) us_buf_printf(&b, "%s[%zu, %zu]", i ? ", " : "", t->spans[2 * i], t->spans[2 * i + 1]);
        us_buf_c(&b, ']');
    }
    us_buf_z(&b, "}\n");
    fwrite(b.p, 1, b.n, us_cli_out(c));
    us_buf_free(&b);
}

/* With --jsonl a template that fails is an answer like any other. */
static us_status render(const job *j, us_str given, us_err *err) {
    us_buf request = {0};
    us_chat_text t = {0};
    us_status s = request_of(j, given, &request, err);
    if (s == US_OK) s = us_chat_render(j->chat, request.p, request.n, NULL, NULL, &t, err);
    if (s == US_E_FORMAT && t.message && j->jsonl) s = US_OK;
    if (s == US_OK && (us_cli_json(j->cli) || j->jsonl)) put_json(j->cli, &t);
    else if (s == US_OK) fwrite(t.text, 1, t.n, us_cli_out(j->cli));
    us_chat_text_free(&t);
    us_buf_free(&request);
    return s;
}

static us_status render_lines(const job *j, us_str all, us_err *err) {
    size_t line = 1;
    for (size_t at = 0; at < all.n; line++) {
        size_t end = us_str_find(all, '\n', at);
        if (end > all.n) end = all.n;
        if (end > at && render(j, us_str_sub(all, at, end), err) != US_OK) return us_err_where(err, "line %zu", line);
        US_TRY(us_ctx_check(us_cli_ctx(j->cli), err));
        at = end + 1;
    }
    return US_OK;
}

static us_status run(us_cli *c, us_err *err) {
    job j = {.cli = c, .prompt = !us_cli_flag(c, "no-generation-prompt"), .jsonl = us_cli_flag(c, "jsonl")};
    const char *messages = us_cli_string(c, "messages", "-"), *tools = us_cli_string(c, "tools", NULL);
    char *text = NULL;
    size_t n = 0;
    j.sets = us_cli_strings(c, "set", &j.n_sets);
    us_status s = us_chat_open(us_cli_arg(c, 0), &j.chat, err);
    if (s == US_OK && tools) s = us_fs_read_all(tools, REQUEST_MAX, &j.tools, &j.tools_n, err);
    if (s == US_OK) s = read_input(messages, &text, &n, err);
    if (s == US_OK) s = j.jsonl ? render_lines(&j, (us_str){text, n}, err) : render(&j, (us_str){text, n}, err);
    us_free(text);
    us_free(j.tools);
    us_chat_free(j.chat);
    return s;
}

static const us_option options[] = {
    {"messages", 0, US_OPT_STRING, "FILE", "A list of messages, or an object with \"messages\" and variables; default: standard input.", false},
    {"tools", 0, US_OPT_STRING, "FILE", "A list of tools as JSON.", false},
    {"set", 0, US_OPT_STRING, "NAME=VALUE", "A variable for the template, such as enable_thinking=false; the value is JSON, or else text.", true},
    {"no-generation-prompt", 0, US_OPT_FLAG, NULL, "Do not open the assistant's turn.", false},
    {"jsonl", 0, US_OPT_FLAG, NULL, "One object a line: messages, tools, special_tokens, now, variables; one answer a line, {\"rendered\"} or {\"error\"}.", false},
    {0},
};

const us_command us_cmd_chat = {
    .name = "chat",
    .summary = "render messages with a model's chat template",
    .usage = "CKPT|FILE.jinja [options]",
    .description = "Writes what apply_chat_template of transformers would: the text a model is given for a conversation. The template is chat_template.jinja of the\n"
                   "folder, or chat_template of its tokenizer_config.json, whose special tokens it is given.\n\n"
                   "Templates run in a sandbox with limits on steps, memory, output and depth. --json adds the spans that generation blocks wrote, in code points:\n"
                   "what an assistant mask is made of.",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .run = run,
    .examples = "understudy chat Qwen3-8B --messages chat.json\nunderstudy chat template.jinja --set enable_thinking=false --messages chat.json --json",
};
