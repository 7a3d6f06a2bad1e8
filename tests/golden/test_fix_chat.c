/* Chat templates against what the reference library renders: every folder and every case of fixtures/chat, and its constructs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/json.h"
#include "support/support.h"
#include "understudy/us_chat.h"

typedef struct tally {
    int cases, wrong;
} tally;

/* The members of a case that are the request; what the reference answered is left out. */
static void request_of(const us_json_doc *d, us_buf *b) {
    static const char *const answers[] = {"name", "now", "rendered", "generation_spans", "error", "message", "null_kept", "template"};
    char sep = '{';
    for (us_json_ref k = us_json_first(d, 0); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, 0, k);
        bool skip = false;
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) skip |= us_str_eqz(us_json_string(d, k), answers[i]);
        if (!skip) {
            us_buf_c(b, sep);
            us_buf_str(b, us_json_raw(d, k));
            us_buf_c(b, ':');
            us_buf_str(b, us_json_raw(d, v));
            sep = ',';
        }
        k = us_json_next(d, 0, v);
    }
    us_buf_z(b, sep == '{' ? "{}" : "}");
}

static bool same_spans(const us_json_doc *d, const us_chat_text *t) {
    us_json_ref spans = us_json_get(d, 0, "generation_spans");
    if (spans == US_JSON_NO) return t->n_spans == 0 || us_json_get(d, 0, "continue_final_message") != US_JSON_NO; /* not recorded for those */
    if (us_json_count(d, spans) != t->n_spans) return false;
    for (size_t i = 0; i < t->n_spans; i++) {
        us_json_ref pair = us_json_at(d, spans, (uint32_t)i);
        uint64_t a = 0, b = 0;
        if (!us_json_u64(d, us_json_at(d, pair, 0), &a) || !us_json_u64(d, us_json_at(d, pair, 1), &b)) return false;
        if (a != t->spans[2 * i] || b != t->spans[2 * i + 1]) return false;
    }
    return true;
}

static void check(const us_chat *chat, const us_json_doc *d, const char *request, size_t n, const char *where, tally *sum) {
    us_chat_text t;
    us_err err = {0};
    us_str now = us_json_string(d, us_json_get(d, 0, "now"));
    char clock[32] = "2025-06-15T09:05:07";
    if (now.n && now.n < sizeof clock) snprintf(clock, sizeof clock, "%.*s", US_STR_ARG(now));
    us_status s = us_chat_render(chat, request, n, clock, NULL, &t, &err);
    us_str want = us_json_string(d, us_json_get(d, 0, "rendered")), error = us_json_string(d, us_json_get(d, 0, "error")), message = us_json_string(d, us_json_get(d, 0, "message"));
    bool ok;
    if (want.p) ok = s == US_OK && us_str_eq((us_str){t.text, t.n}, want) && same_spans(d, &t);
    else ok = s != US_OK && us_str_eqz(error, t.kind) && (!us_str_eqz(error, "raise_exception") || us_str_eqz(message, t.message));
    sum->cases++;
    if (!ok) {
        sum->wrong++;
        us_str name = us_json_string(d, us_json_get(d, 0, us_json_get(d, 0, "template") != US_JSON_NO ? "template" : "name"));
        print_error("%s: %.*s\n  want %.*s%.*s\n  have %s %s\n", where, US_STR_ARG(name), US_STR_ARG(want), US_STR_ARG(error), s == US_OK ? t.text : t.kind, s == US_OK ? "" : err.what);
    }
    us_chat_text_free(&t);
}

static void each_line(const char *path, void (*f)(const us_json_doc *, void *), void *arg) {
    size_t n;
    const char *text = test_read(path, &n);
    us_err err = {0};
    for (size_t at = 0; at < n;) {
        size_t end = us_str_find((us_str){text, n}, '\n', at);
        if (end > n) end = n;
        us_json_doc d = {0};
        if (end > at) {
            assert_us_ok(us_json_doc_parse(&d, (us_str){text + at, end - at}, 0, &err), &err);
            f(&d, arg);
            us_json_doc_free(&d);
        }
        at = end + 1;
    }
}

typedef struct family {
    us_chat *chat;
    const char *name;
    tally *sum;
} family;

static void one_case(const us_json_doc *d, void *arg) {
    family *f = arg;
    us_buf b = {0};
    request_of(d, &b);
    check(f->chat, d, us_buf_text(&b), b.n, f->name, f->sum);
    us_buf_free(&b);
}

static void test_families(void **state) {
    (void)state;
    tally sum = {0};
    int families = 0;
    for (const char *const *folder = test_folders("chat", "chat_template.jinja cases.jsonl"); *folder; folder++, families++) {
        us_err err = {0};
        family f = {.name = test_name(*folder), .sum = &sum};
        assert_us_ok(us_chat_open(test_format("%s/chat_template.jinja", *folder), &f.chat, &err), &err);
        each_line(test_format("%s/cases.jsonl", *folder), one_case, &f);
        us_chat_free(f.chat);
    }
    print_message("%d cases of %d templates, %d wrong\n", sum.cases, families, sum.wrong);
    assert_int_equal(sum.wrong, 0);
}

static void one_construct(const us_json_doc *d, void *arg) {
    tally *sum = arg;
    static const char request[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"},"
                                  "{\"role\":\"user\",\"content\":\"bye\"}],\"special_tokens\":{\"bos_token\":\"<s>\"},\"tools\":null,\"add_generation_prompt\":true}";
    us_str text = us_json_string(d, us_json_get(d, 0, "template"));
    us_chat *chat;
    us_err err = {0};
    us_status s = us_chat_parse(text.p, text.n, &chat, &err);
    if (s != US_OK) {
        sum->cases++;
        sum->wrong++; /* the reference parses every one of them */
        print_error("%.*s\n  %s\n", US_STR_ARG(text), err.what);
        return;
    }
    check(chat, d, request, sizeof request - 1, "constructs", sum);
    us_chat_free(chat);
}

static void test_constructs(void **state) {
    (void)state;
    tally sum = {0};
    const char *root = test_fixtures("chat"), *path = test_format("%s/constructs.jsonl", root ? root : "");
    if (!root || !test_exists(path)) return;
    each_line(path, one_construct, &sum);
    print_message("%d constructs, %d wrong\n", sum.cases, sum.wrong);
    assert_int_equal(sum.wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_constructs), cmocka_unit_test(test_families)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
