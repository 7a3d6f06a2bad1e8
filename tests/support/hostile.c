/* Cases of fixtures/hostile: see hostile.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/alloc.h"
#include "io/json.h"
#include "support/hostile.h"

/* Judge one answer: returns 1 when it is wrong, after saying why. */
static int judge(const us_json_doc *d, us_json_ref entry, const char *name, us_status s, const us_err *err) {
    us_str expect = us_json_string(d, us_json_get(d, entry, "expect"));
    us_json_ref classes = us_json_get(d, entry, "class");
    bool may_accept = !us_str_eqz(expect, "reject"), may_refuse = !us_str_eqz(expect, "accept");
    if (s == US_OK ? may_accept : may_refuse) {
        bool listed = s == US_OK || us_json_count(d, classes) == 0;
        for (us_json_ref c = us_json_first(d, classes); c != US_JSON_NO; c = us_json_next(d, classes, c))
            listed |= us_str_eqz(us_json_string(d, c), err->cls);
        if (listed) return 0;
    }
    print_error("%s: expected %.*s %.*s, got %s [%s] %s\n", name, US_STR_ARG(expect), US_STR_ARG(us_json_raw(d, classes)), us_status_name(s), err->cls,
                err->what);
    return 1;
}

void hostile_each(const char *folder, us_status (*open)(const char *path, us_err *err)) {
    const char *root = test_fixtures(folder);
    if (!root || !test_exists(test_format("%s/expect.json", root))) return;
    us_json_doc d;
    us_err err = {0};
    int wrong = 0, cases = 0;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/expect.json", root), NULL)), 0, &err), &err);
    us_json_ref files = us_json_get(&d, 0, "files");
    for (us_json_ref f = us_json_first(&d, files); f != US_JSON_NO; f = us_json_next(&d, files, f)) {
        us_str name = us_json_string(&d, us_json_get(&d, f, "file"));
        if (!name.p) name = us_json_string(&d, us_json_get(&d, f, "folder"));
        const char *path = test_format("%s/%.*s", root, US_STR_ARG(name));
        if (!test_exists(path)) continue;
        us_err e = {0};
        us_alloc_stats before = us_alloc_get_stats();
        us_status s = open(path, &e);
        wrong += judge(&d, f, path, s, &e);
        assert_int_equal(us_alloc_get_stats().live_blocks, before.live_blocks);
        cases++;
    }
    us_json_doc_free(&d);
    print_message("%s: %d cases\n", folder, cases);
    assert_int_equal(wrong, 0);
}
