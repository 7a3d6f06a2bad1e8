/*
 * The documents keep their word: code blocks marked ```sh test in README.md and docs/user are run, and links between
 * documents lead somewhere. A block runs in its own empty folder, in which `demo` is a copy of data/demo and `configs`
 * of data/configs, with the command in PATH; blocks of one file share the folder and run in order.
 */
#define _POSIX_C_SOURCE 200809L
#include <libgen.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/support.h"

static int n_blocks;

static const char *command_folder(void) {
    const char *command = getenv("US_COMMAND");
    assert_non_null(command);
    return dirname((char *)(uintptr_t)test_format("%s", command));
}

/* Runs the blocks of a text; returns the number run. The first that fails is reported with its text. */
static int run_blocks(const char *file, const char *text, bool *failed) {
    static const char mark[] = "\n```sh test\n";
    const char *dir = NULL;
    int n = 0;
    *failed = false;
    for (const char *p = text; (p = strstr(p, mark)); n++) {
        p += sizeof mark - 1;
        const char *end = strstr(p, "\n```");
        if (!end) fail_msg("%s: a code block does not end", file);
        if (!dir) {
            dir = test_temp_dir();
            test_copy_tree(test_format("%s/data/demo", test_source()), test_format("%s/demo", dir));
            test_copy_tree(test_format("%s/data/configs", test_source()), test_format("%s/configs", dir));
        }
        const char *script = test_format("set -e\n%.*s\n", (int)(end - p), p);
        const char *env[] = {test_format("PATH=%s:%s", command_folder(), getenv("PATH") ? getenv("PATH") : ""), NULL};
        test_run r = test_run_program((const char *const[]){"sh", "-c", script, NULL},
                                      &(test_run_options){.folder = dir, .env = env});
        if (r.status != 0) {
            print_message("%s, block %d: status %d\n%s\n%s", file, n + 1, r.status, script, r.err);
            *failed = true;
            return n + 1;
        }
        p = end;
    }
    return n;
}

/* Relative links of a Markdown text must name a file of the tree. */
static int broken_links(const char *root, const char *path, const char *text) {
    int bad = 0;
    const char *folder = dirname((char *)(uintptr_t)test_format("%s/%s", root, path));
    for (const char *p = text; (p = strstr(p, "](")); p += 2) {
        size_t n = strcspn(p + 2, ")#\n ");
        const char *target = test_format("%.*s", (int)n, p + 2);
        if (n == 0 || strstr(target, "://") || strncmp(target, "mailto:", 7) == 0) continue;
        if (test_exists(test_format("%s/%s", folder, target))) continue;
        print_message("%s: the link to %s leads nowhere\n", path, target);
        bad++;
    }
    return bad;
}

static int n_bad;

static void check_file(const char *path, bool run) {
    const char *text = test_read(test_format("%s/%s", test_source(), path), NULL);
    bool failed = false;
    if (run) n_blocks += run_blocks(path, text, &failed);
    n_bad += failed + broken_links(test_source(), path, text);
}

static void check_folder(const char *folder, bool run) {
    for (const char *const *name = test_list(test_format("%s/%s", test_source(), folder), NULL); *name; name++) {
        size_t n = strlen(*name);
        if (n > 3 && strcmp(*name + n - 3, ".md") == 0) check_file(test_format("%s/%s", folder, *name), run);
    }
}

/* Every guide can be found from the index of its folder. */
static void guides_are_listed(const char *folder) {
    const char *index = test_read(test_format("%s/%s/README.md", test_source(), folder), NULL);
    for (const char *const *name = test_list(test_format("%s/%s", test_source(), folder), NULL); *name; name++) {
        if (strcmp(*name, "README.md") == 0 || strstr(index, test_format("](%s)", *name))) continue;
        print_message("%s/README.md does not name %s\n", folder, *name);
        n_bad++;
    }
}

static void documents_keep_their_word(void **state) {
    (void)state;
    static const char *const single[] = {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) check_file(single[i], true);
    check_folder("docs/user", true);
    check_folder("docs/dev", false);
    check_folder("docs/adr", false);
    guides_are_listed("docs/user");
    guides_are_listed("docs/adr");
    assert_int_equal(n_bad, 0);
    assert_true(n_blocks > 0);
}

static void a_false_document_is_caught(void **state) {
    (void)state;
    bool failed;
    assert_int_equal(run_blocks("x", "\n```sh test\ntrue\n```\n\n```sh test\nfalse\ntrue\n```\n", &failed), 2);
    assert_true(failed);
    assert_int_equal(run_blocks("x", "\n```sh\nfalse\n```\n", &failed), 0);
    assert_false(failed);
    assert_int_equal(
        broken_links(test_source(), "docs/x.md", "[a](nowhere.md) [b](https://example.org/x) [c](../README.md#what)"),
        1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_keep_their_word),
        cmocka_unit_test(a_false_document_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
