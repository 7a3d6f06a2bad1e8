/* Every text of fixtures/hostile/json: accepted or refused as its line says, by the document and by the bare scanner,
 * and read back the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include <openssl/evp.h>

#include "io/json.h"
#include "support/support.h"

/* The bytes behind a base64 text; a block of their own, so that sanitizers see a read beyond the end. */
static char *decode(us_str b64, size_t *n) {
    char *out = us_malloc(b64.n / 4 * 3 + 1);
    assert_non_null(out);
    int got = b64.n ? EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)b64.p, (int)b64.n) : 0;
    assert_true(got >= 0);
    *n = (size_t)got;
    for (size_t i = b64.n; i > 0 && b64.p[i - 1] == '='; i--) --*n;
    char *exact = us_malloc(*n);
    assert_non_null(exact);
    if (*n) memcpy(exact, out, *n);
    us_free(out);
    return exact;
}

static us_status scan(us_str text, us_err *err) {
    us_json_scan s;
    us_json_token t;
    if (!us_utf8_valid(text.p, text.n, NULL)) return us_fail(err, US_E_FORMAT, "utf8", "not UTF-8");
    us_json_scan_init(&s, text, 0);
    do US_TRY(us_json_scan_next(&s, &t, err));
    while (t.event != US_JSON_EV_DONE);
    return US_OK;
}

/* 1 when the answer to one line is wrong. */
static int judge(us_str line) {
    us_json_doc c, d;
    us_err err = {0}, scan_err = {0};
    assert_us_ok(us_json_doc_parse(&c, line, 0, &err), &err);
    us_str id = us_json_string(&c, us_json_get(&c, 0, "id")), expect = us_json_string(&c, us_json_get(&c, 0, "expect"));
    size_t n;
    char *bytes = decode(us_json_string(&c, us_json_get(&c, 0, "b64")), &n);
    us_status s = us_json_doc_parse(&d, (us_str){bytes, n}, 0, &err);
    us_status t = scan((us_str){bytes, n}, &scan_err);
    bool right = us_str_eqz(expect, "either") || us_str_eqz(expect, s == US_OK ? "accept" : "reject");
    /* Only duplicate keys are the document's own business. */
    if (s != t && strcmp(err.cls, "duplicate-key") != 0) right = false;
    if (s != US_OK && (!err.cls[0] || !err.what[0] || err.offset > n)) right = false;
    if (!right)
        print_error("%.*s: expected %.*s, document %s [%s], scanner %s\n", US_STR_ARG(id), US_STR_ARG(expect),
                    us_status_name(s), err.cls, us_status_name(t));
    if (s == US_OK) us_json_doc_free(&d);
    us_free(bytes);
    us_json_doc_free(&c);
    return !right;
}

static void texts(void **state) {
    (void)state;
    const char *root = test_fixtures("hostile/json");
    if (!root || !test_exists(test_format("%s/cases.jsonl", root))) return;
    size_t n;
    const char *p = test_read(test_format("%s/cases.jsonl", root), &n);
    us_str all = {p, n};
    int wrong = 0, cases = 0;
    for (size_t at = 0; at < n;) {
        size_t end = us_str_find(all, '\n', at);
        if (end > at) {
            wrong += judge(us_str_sub(all, at, end));
            cases++;
        }
        at = end + 1;
    }
    print_message("hostile/json: %d cases\n", cases);
    assert_true(cases > 0);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
