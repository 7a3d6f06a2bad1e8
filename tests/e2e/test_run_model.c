/* The commands that run a model, on the small one that ships: generate, perplexity, route-stats; and what they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/support.h"

static const char *demo;

static const char *run(const char *const *args) {
    test_run r = test_understudy(args);
    test_assert_done(&r);
    return r.out;
}
#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})
#define REFUSED(status, cls, ...)                                                                                                                     \
    do {                                                                                                                                              \
        test_run r = test_understudy((const char *const[]){__VA_ARGS__, NULL});                                                                       \
        test_assert_refused(&r, status, cls);                                                                                                         \
    } while (0)

static void generate_repeats_itself(void **state) {
    (void)state;
    const char *a = RUN("generate", demo, "--prompt", "understudy", "--max-new", "12", "--seed", "7", "--threads", "1");
    assert_true(strlen(a) > 1);
    assert_string_equal(a, RUN("generate", demo, "--prompt", "understudy", "--max-new", "12", "--seed", "7", "--threads", "3"));
    assert_string_not_equal(a, RUN("generate", demo, "--prompt", "understudy", "--max-new", "12", "--seed", "8"));
    const char *j = RUN("generate", demo, "--prompt", "understudy", "--max-new", "3", "--seed", "7", "--json", "--top-logprobs", "2");
    assert_non_null(strstr(j, "\"finish\""));
    assert_non_null(strstr(j, "\"top\": [{"));
    const char *many = RUN("generate", demo, "-p", "one", "-p", "two", "--max-new", "2", "--json");
    assert_int_equal(many[0], '[');
}

/* What was streamed is what the answer says: the same text by --json's ids and `tokenize --decode`. */
static void prompt_from_standard_input(void **state) {
    (void)state;
    const char *file = test_format("%s/p.txt", test_temp_dir());
    test_write_text(file, "abc");
    test_run r = test_understudy_with((const char *const[]){"generate", demo, "--max-new", "5", "--greedy", NULL}, &(test_run_options){.input = file});
    test_assert_done(&r);
    assert_string_equal(r.out, RUN("generate", demo, "--prompt", "abc", "--max-new", "5", "--greedy"));
    assert_string_equal(r.out, RUN("generate", demo, "--prompt-file", file, "--max-new", "5", "--temperature", "0"));
}

static void perplexity_of_files(void **state) {
    (void)state;
    const char *dir = test_temp_dir(), *file = test_format("%s/t.txt", dir), *lines = test_format("%s/t.jsonl", dir);
    test_write_text(file, "the quick brown fox jumps over the lazy dog\n");
    test_write_text(lines, "{\"text\": \"the quick brown fox jumps over the lazy dog\\n\"}\n");
    assert_non_null(strstr(RUN("perplexity", demo, file), "perplexity"));
    const char *a = RUN("perplexity", demo, file, "--json", "--dtype", "f32"), *b = RUN("perplexity", demo, lines, "--jsonl", "--json", "--dtype", "f32");
    assert_string_equal(a, b);
    REFUSED(2, "usage", "perplexity", demo, file, "--window", "1");
    REFUSED(2, "usage", "perplexity", demo, file, "--window", "8", "--stride", "9");
    test_write_text(lines, "{\"txt\": 1}\n");
    REFUSED(1, "line", "perplexity", demo, lines, "--jsonl");
}

static void route_stats_feed_proxy(void **state) {
    (void)state;
    const char *dir = test_temp_dir(), *file = test_format("%s/t.txt", dir), *dump = test_format("%s/r.npz", dir), *svg = test_format("%s/r.svg", dir);
    test_write_text(file, "the quick brown fox jumps over the lazy dog, and goes on with it for a while\n");
    assert_non_null(strstr(RUN("route-stats", demo, file, "--out", dump, "--svg", svg), "balance"));
    assert_non_null(strstr(test_read(svg, NULL), "</svg>"));
    const char *a = RUN("route-stats", demo, file, "--json", "--threads", "1"), *b = RUN("route-stats", demo, file, "--json", "--stream", "--threads", "2");
    assert_string_equal(a, b);
    RUN("proxy", demo, test_format("%s/small", dir), "--experts", "8", "--routing", dump);
    RUN("verify", demo, test_format("%s/small", dir));
}

static void refusals(void **state) {
    (void)state;
    const char *dir = test_temp_dir(), *ids = test_format("%s/ids.json", dir), *bare = test_format("%s/bare", dir);
    test_write_text(ids, "[[1, 2, 99999999]]");
    REFUSED(1, "token-range", "generate", demo, "--ids", ids);
    REFUSED(1, "token-range", "route-stats", demo, "--ids", ids);
    REFUSED(2, "usage", "generate", demo, "--ids", ids, "--prompt", "x");
    REFUSED(2, "usage", "generate", demo, "--prompt", "x", "--dtype", "f64");
    REFUSED(1, "range", "generate", demo, "--prompt", "x", "--top-p", "1.5");
    test_write_text(ids, "[]");
    REFUSED(1, "empty", "route-stats", demo, "--ids", ids);
    test_copy_tree(demo, bare);
    test_remove_tree(test_format("%s/tokenizer.json", bare));
    REFUSED(1, "tokenizer-missing", "generate", bare, "--prompt", "x");
    test_write_text(ids, "[[1, 2]]");
    assert_non_null(strstr(RUN("generate", bare, "--ids", ids, "--max-new", "1"), "1 2 "));
}

static int set_up(void **state) {
    (void)state;
    demo = test_format("%s/data/demo", test_source());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_repeats_itself), cmocka_unit_test(prompt_from_standard_input), cmocka_unit_test(perplexity_of_files),
        cmocka_unit_test(route_stats_feed_proxy),  cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
