/**
 * fixtures/hostile index and checkpoint through the command that their README names: `proxy DIR DST --experts 2 --select first --dry-run`.
 * A refusal is one line with one of the listed classes and exit status 1; nothing is ever written; memory stays small.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "support/proxy.h"

static bool class_listed(const us_json_doc *d, us_json_ref list, const char *text) {
    if (!us_json_count(d, list)) return true;
    for (us_json_ref c = us_json_first(d, list); c != US_JSON_NO; c = us_json_next(d, list, c)) {
        if (strstr(text, test_format("[%.*s]", US_STR_ARG(us_json_string(d, c))))) return true;
    }
    return false;
}

static int one(const char *root, const us_json_doc *d, us_json_ref x, const char *dst) {
    const char *folder = test_format("%s/%s", root, test_json_string(d, x, "folder")), *expect = test_json_string(d, x, "expect");
    if (!test_exists(folder)) return 0;
    test_run r = test_understudy((const char *[]){"proxy", folder, dst, "--experts", "2", "--select", "first", "--dry-run", NULL});
    bool accepted = r.status == 0, wrong = false;
    if (strcmp(expect, "accept") == 0) wrong = !accepted;
    else if (strcmp(expect, "reject") == 0) wrong = accepted;
    if (!accepted) {
        const char *end = strchr(r.err, '\n');
        wrong |= r.status != 1 || r.n_out || strncmp(r.err, "understudy: ", 12) != 0 || !end || end[1] || !class_listed(d, us_json_get(d, x, "class"), r.err);
    }
    wrong |= r.peak_bytes > ((uint64_t)64 << 20) + (12u << 20) || test_exists(dst) || test_exists(test_format("%s.understudy-partial", dst));
    if (wrong) print_error("%s: %s expected, status %d: %s\n", folder, expect, r.status, r.err);
    return wrong;
}

static void each(const char *set) {
    const char *fixtures = test_fixtures(set), *temp = test_temp_dir();
    if (!fixtures || !test_exists(test_format("%s/expect.json", fixtures))) return;
    const char *root = test_format("%s/set", temp);
    test_copy_tree(fixtures, root);
    test_restore_links(root);
    us_json_doc d = test_json(test_format("%s/expect.json", root));
    us_json_ref files = us_json_get(&d, 0, "files");
    int wrong = 0, n = 0;
    for (us_json_ref x = us_json_first(&d, files); x != US_JSON_NO; x = us_json_next(&d, files, x), n++)
        wrong += one(root, &d, x, test_format("%s/dst", temp));
    us_json_doc_free(&d);
    print_message("%s: %d cases\n", set, n);
    assert_int_equal(wrong, 0);
}

static void hostile_indexes(void **state) {
    (void)state;
    each("hostile/index");
}

static void hostile_checkpoints(void **state) {
    (void)state;
    each("hostile/checkpoint");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hostile_indexes), cmocka_unit_test(hostile_checkpoints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
