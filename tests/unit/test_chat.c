/* Chat templates: limits, the sandbox, errors, pre-processing of messages, memory exhaustion. What templates render is held against the reference in
 * tests/golden/test_fix_chat.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/alloc.h"
#include "support/support.h"
#include "understudy/us_chat.h"

static us_status render(const char *template, const char *request, const us_chat_limits *limits, us_chat_text *t, us_err *err) {
    us_chat *c = NULL;
    memset(t, 0, sizeof *t);
    us_status s = us_chat_parse(template, strlen(template), &c, err);
    if (s == US_OK) s = us_chat_render(c, request, strlen(request), "2024-02-29T00:07:08", limits, t, err);
    us_chat_free(c);
    return s;
}

static void gives_with(const char *template, const char *request, const char *want) {
    us_chat_text t;
    us_err err = {0};
    assert_us_ok(render(template, request, NULL, &t, &err), &err);
    assert_string_equal(t.text, want);
    us_chat_text_free(&t);
}

static void gives(const char *template, const char *want) {
    gives_with(template, "{\"messages\":[]}", want);
}

static void fails(const char *template, const char *kind) {
    us_chat_text t;
    us_err err = {0};
    assert_int_not_equal(render(template, "{\"messages\":[]}", NULL, &t, &err), US_OK);
    if (strcmp(kind, t.kind) != 0) print_error("%s: %s\n", template, err.what);
    assert_string_equal(t.kind, kind);
    assert_true(err.what[0]);
    us_chat_text_free(&t);
}

static void test_language(void **state) {
    (void)state;
    gives("{% for x in [3, 1, 2] | sort %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}", "1:1,2:2,3:3");
    gives("{% set ns = namespace(n=0) %}{% for x in range(5) %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}", "10");
    gives("{% macro f(a, b=2) %}{{ a + b }}{% endmacro %}{{ f(1) }} {{ f(1, b=5) }}", "3 6");
    gives("{% for x in [[1, [2]], 3] recursive %}{{ loop.depth }}{{ loop(x) if x is sequence else x }}{% endfor %}", "12123213");
    gives("{{ 'h\xc3\xa9llo'[1:3] | upper }} {{ 'a,b'.split(',') }} {{ {'k': [1.0, none]} | tojson }}", "\xc3\x89L ['a', 'b'] {\"k\": [1.0, null]}");
    gives("{{ strftime_now('%d %B %Y %a %j %H:%M') }}", "29 February 2024 Thu 060 00:07");
    gives("a  {%- if true -%}  b  {%- endif -%}  c", "abc");
    gives("{{ '%05.1f|%-4s|%+d' % (3.14159, 'x', 7) }}", "003.1|x   |+7");
}

static void test_messages(void **state) {
    (void)state;
    gives_with("{% for m in messages %}[{{ 'content' in m }}{{ m.thinking }}{{ m.reasoning_content }}]{% endfor %}",
               "{\"messages\":[{\"role\":\"a\",\"content\":null,\"reasoning\":\"r\"},{\"thinking\":\"t\"}]}", "[Falserr][Falsett]");
    gives_with("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "{\"messages\":[]}", "True True False");
    gives_with("{{ messages[0].content }}<end>", "{\"messages\":[{\"role\":\"a\",\"content\":\"one, \"}],\"continue_final_message\":true}", "one, ");
    gives_with("{{ messages[0].content | trim }}<end>", "{\"messages\":[{\"role\":\"a\",\"content\":\"one, \"}],\"continue_final_message\":true}", "one,");
    gives_with("{{ x }} {{ y }}", "{\"messages\":[],\"x\":123456789012345678901234567890,\"y\":1e-7}", "123456789012345678901234567890 1e-07");
}

static void test_sandbox(void **state) {
    (void)state;
    fails("{{ [].append(1) }}", "SecurityError");
    fails("{{ messages.clear() }}", "SecurityError");
    fails("{{ ''.__class__.__mro__ }}", "UndefinedError");
    fails("{{ nothing.x }}", "UndefinedError");
    fails("{{ 'a' + 1 }}", "TypeError");
    fails("{{ 1 // 0 }}", "ZeroDivisionError");
    fails("{{ raise_exception('no') }}", "raise_exception");
    fails("{{ range(100001) }}", "OverflowError");
}

/* Work, values, output and depth without end are stopped, in little time and memory. */
static void test_limits(void **state) {
    (void)state;
    fails("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "LimitError");
    fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError");
    fails("{{ 'x' * 1000000000 }}", "LimitError");
    fails("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "LimitError");
    us_chat_text t;
    us_err err = {0};
    us_chat_limits few = {.output_bytes = 100};
    assert_int_not_equal(render("{% for i in range(1000) %}xxxxxxxxxx{% endfor %}", "{\"messages\":[]}", &few, &t, &err), US_OK);
    assert_string_equal(t.kind, "LimitError");
    us_chat_text_free(&t);
    char deep[4096] = "{{ ";
    memset(deep + 3, '(', 1000);
    assert_int_not_equal(render(deep, "{\"messages\":[]}", NULL, &t, &err), US_OK);
}

static void test_syntax_errors(void **state) {
    (void)state;
    static const char *const wrong[] = {"{% if %}", "{% for x in y %}", "{{ a b }}", "{% endif %}", "{{ 'x }}", "{{", "{% unknown %}", "{{ [1, }}", "{% set = 1 %}", "{{ a..b }}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        us_chat *c = NULL;
        us_err err = {0};
        assert_int_not_equal(us_chat_parse(wrong[i], strlen(wrong[i]), &c, &err), US_OK);
        assert_string_equal(err.cls, "template-syntax");
        assert_null(c);
    }
    us_chat_text t;
    us_err err = {0};
    assert_int_not_equal(render("x", "[]", NULL, &t, &err), US_OK);
    assert_string_equal(err.cls, "chat-request");
}

/* Every allocation of parsing and rendering fails once: a clean error each time, nothing left behind. */
static void test_exhaustion(void **state) {
    (void)state;
    static const char template[] = "{% macro f(a) %}<{{ a | upper }}>{% endmacro %}{% for m in messages %}{{ f(m.role) }}{{ m | tojson }}{{ m.items() | list }}{% generation %}x{% endgeneration %}"
                                   "{% set t %}{{ loop.index }}{% endset %}{{ t.split('1') | join('-') }}{% endfor %}";
    static const char request[] = "{\"messages\":[{\"role\":\"a\",\"content\":[1,2.5,\"x\\n\"]},{\"role\":\"b\",\"thinking\":\"t\"}],\"k\":{\"l\":null}}";
    uint64_t live = us_alloc_get_stats().live_blocks, n = 0;
    us_status s = US_E_NOMEM;
    while (s != US_OK) {
        us_chat_text t;
        us_err err = {0};
        us_alloc_fail_at(++n);
        s = render(template, request, NULL, &t, &err);
        us_alloc_fail_at(0);
        assert_true(s == US_OK || (err.cls[0] && err.what[0]));
        us_chat_text_free(&t);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
        assert_true(n < 100000);
    }
    assert_true(n > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_language), cmocka_unit_test(test_messages), cmocka_unit_test(test_sandbox), cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_syntax_errors), cmocka_unit_test(test_exhaustion)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
