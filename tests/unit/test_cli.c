/* The command's frame with a table of its own: parsing, help, man, progress line. How the program ends is in
 * tests/e2e/test_command.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "cli/frame.h"
#include "support/prop.h"

static const us_option options[] = {
    {"experts", 'e', US_OPT_STRING, "N[,N...]", "Sizes.", false},
    {"ratio", 'r', US_OPT_DOUBLE, "R", "Share.", false},
    {"layers", 'n', US_OPT_INT, "N", "Layers.", false},
    {"keep", 'k', US_OPT_STRING, "NAME", "Keep it; may be given several times.", true},
    {"force", 'f', US_OPT_FLAG, NULL, "Overwrite.", false},
    {"verbose", 'v', US_OPT_FLAG, NULL, ".starts with a dot and has a back\\slash", false},
    {NULL, 0, US_OPT_FLAG, NULL, NULL, false},
};

static us_status run_nothing(us_cli *cli, us_err *err) {
    (void)cli, (void)err;
    return US_OK;
}

static const us_command proxy = {
    "proxy",     "Make a proxy.",           "SRC DST", "First paragraph.\n\n.Second paragraph.", options, 1, 2,
    run_nothing, "  understudy proxy a b\n"};
static const us_command plain = {"plan", "Plan.", "FILE", NULL, NULL, 0, -1, run_nothing, NULL};
const us_command *const us_commands[] = {&plain, &proxy, NULL};

enum { WORDS_MAX = 16 };

/* Parse words ended by NULL. */
static us_status parse(us_cli *c, const us_command *cmd, us_err *err, const char *const *w) {
    static char *copy[WORDS_MAX];
    int n = 0;
    for (; w[n]; n++) copy[n] = (char *)(uintptr_t)w[n];
    *err = (us_err){0};
    return us_cli_parse(c, cmd, n, copy, err);
}
#define PARSE(c, err, ...) parse(c, &proxy, err, (const char *const[]){__VA_ARGS__, NULL})

static void all_spellings_of_options(void **state) {
    (void)state;
    us_cli c;
    us_err err;
    assert_int_equal(PARSE(&c, &err, "a", "--experts", "-3", "-r0.5", "-n", "7", "--json", "-fv", "b", "--keep=x",
                           "--keep", "y", "-k=z"),
                     US_OK);
    assert_int_equal(us_cli_n_args(&c), 2);
    assert_string_equal(us_cli_arg(&c, 0), "a");
    assert_string_equal(us_cli_arg(&c, 1), "b");
    assert_null(us_cli_arg(&c, 2));
    assert_string_equal(us_cli_string(&c, "experts", NULL),
                        "-3"); /* a negative size is a value, refused later with its class */
    assert_true(us_cli_double(&c, "ratio", 0) == 0.5);
    assert_int_equal(us_cli_int(&c, "layers", 0), 7);
    assert_true(us_cli_json(&c) && us_cli_flag(&c, "force") && us_cli_flag(&c, "verbose"));
    assert_false(us_cli_flag(&c, "quiet"));
    int n;
    const char *const *k = us_cli_strings(&c, "keep", &n);
    assert_int_equal(n, 3);
    assert_string_equal(k[0], "x");
    assert_string_equal(k[1], "y");
    assert_string_equal(k[2], "=z");
    us_cli_strings(&c, "none", &n);
    assert_int_equal(n, 0);
    us_cli_close(&c);
}

static void flags_can_be_taken_back_and_words_protected(void **state) {
    (void)state;
    us_cli c;
    us_err err;
    assert_int_equal(PARSE(&c, &err, "--force", "--no-force", "--", "--json", "-"), US_OK);
    assert_false(us_cli_flag(&c, "force") || us_cli_json(&c));
    assert_string_equal(us_cli_arg(&c, 0), "--json");
    assert_string_equal(us_cli_arg(&c, 1), "-");
    us_cli_close(&c);
    assert_int_equal(PARSE(&c, &err, "--help", "--nonsense"), US_OK);
    assert_true(c.help);
    us_cli_close(&c);
}

static void wrong_usage_is_named(void **state) {
    (void)state;
    static const struct {
        const char *words[4];
        const char *what;
    } rows[] = {
        {{"a", "--expert", "3"}, "no option '--expert'"},
        {{"a", "-x"}, "no option '-x'"},
        {{"a", "--force=yes"}, "takes no value"},
        {{"a", "--layers", "7x"}, "whole number, not '7x'"},
        {{"a", "--layers", "9223372036854775808"}, "whole number"},
        {{"a", "--layers="}, "whole number, not ''"},
        {{"a", "--ratio", "nan"}, "takes a number"},
        {{"a", "--ratio", "0x1"}, "takes a number"},
        {{"a", "--ratio", "1e999"}, "takes a number"},
        {{"a", "--layers"}, "needs a value"},
        {{"a", "--experts", "--json"}, "looks like an option"},
        {{"a", "-n1", "-n2"}, "given twice"},
        {{"a", "--no-layers"}, "no option '--no-layers'"},
        {{"--json"}, "arguments are missing"},
        {{"a", "b", "c"}, "'c' is one argument too many"},
        {{"a", "--threads", "5000"}, "0 to 4096"},
        {{"a", "--seed=-1"}, "not negative"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        us_cli c;
        us_err err;
        us_status s = parse(&c, &proxy, &err, rows[i].words);
        if (s != US_E_INVAL || strcmp(err.cls, "usage") != 0 || !strstr(err.what, rows[i].what) || !err.todo[0])
            fail_msg("row %zu: %s [%s] %s", i, err.what, err.cls, err.todo);
        us_cli_close(&c);
    }
}

static void near_names_are_offered(void **state) {
    (void)state;
    assert_string_equal(us_cli_nearest_command("porxy"), "proxy");
    assert_string_equal(us_cli_nearest_command("plna"), "plan");
    assert_null(us_cli_nearest_command("zzzzzz"));
    assert_string_equal(us_cli_nearest_option(&proxy, "expert"), "experts");
    assert_string_equal(us_cli_nearest_option(&proxy, "sed"), "seed");
    assert_null(us_cli_nearest_option(&proxy, "an-option-of-another-program-altogether"));
}

/* Whatever the words are: parsing ends, and answers OK or wrong usage in one line. */
static bool parsing_any_words_ends(us_prop *p, void *arg) {
    (void)arg;
    static const char *const pieces[] = {"a",      "-",   "--",    "=",    "e", "n",  "experts",
                                         "layers", "no-", "force", "json", "7", "\n", "help"};
    char text[8][64];
    char *words[8];
    size_t n = prop_size(p, 8);
    for (size_t i = 0; i < n; i++) {
        text[i][0] = 0;
        for (size_t k = prop_size(p, 5); k > 0; k--) {
            const char *piece = prop_word(p, pieces, sizeof pieces / sizeof *pieces);
            size_t len = strlen(text[i]);
            snprintf(text[i] + len, sizeof text[i] - len, "%s", piece);
        }
        words[i] = text[i];
        prop_say(p, "word '%s'", text[i]);
    }
    us_cli c;
    us_err err = {0};
    us_status s = us_cli_parse(&c, &proxy, (int)n, words, &err);
    bool args_fit = c.n_args <= (int)n;
    us_cli_close(&c);
    PROP_CHECK(p, s == US_OK || (s == US_E_INVAL && strcmp(err.cls, "usage") == 0 && !strchr(err.what, '\n')));
    PROP_CHECK(p, args_fit);
    return true;
}

static void any_words_parse_or_are_refused(void **state) {
    (void)state;
    prop_run("words", parsing_any_words_ends, NULL, 3000);
}

static void help_names_every_option(void **state) {
    (void)state;
    us_buf b = {0};
    us_help_text(&b, &proxy);
    const char *text = us_buf_text(&b);
    for (const us_option *o = options; o->name; o++) {
        char want[64];
        snprintf(want, sizeof want, "-%c, --%s", o->letter, o->name);
        assert_non_null(strstr(text, want));
    }
    assert_non_null(strstr(text, "--threads N"));
    assert_non_null(strstr(text, "First paragraph.\n\n.Second paragraph.\n"));
    assert_non_null(strstr(text, "  understudy proxy a b\n"));
    us_buf_clear(&b);
    us_help_text(&b, NULL);
    assert_non_null(strstr(us_buf_text(&b), "  proxy         Make a proxy.\n"));
    us_buf_free(&b);
}

static void man_pages_escape_roff(void **state) {
    (void)state;
    us_buf b = {0};
    us_man_text(&b, &proxy);
    const char *text = us_buf_text(&b);
    assert_non_null(strstr(text, "\n\\&.Second paragraph.\n"));
    assert_non_null(strstr(text, "\n\\&.starts with a dot and has a back\\eslash\n"));
    assert_non_null(strstr(text, "\\fB\\-e\\fR, \\fB\\-\\-experts\\fR \\fIN[,N...]\\fR\n"));
    us_buf_free(&b);
}

static void completion_knows_every_option(void **state) {
    (void)state;
    static void (*const makers[])(us_buf *) = {us_complete_bash, us_complete_zsh, us_complete_fish};
    for (size_t i = 0; i < 3; i++) {
        us_buf b = {0};
        makers[i](&b);
        for (const us_option *o = options; o->name; o++) assert_non_null(strstr(us_buf_text(&b), o->name));
        assert_non_null(strstr(us_buf_text(&b), "plan"));
        us_buf_free(&b);
    }
}

static void the_progress_line_fits(void **state) {
    (void)state;
    char line[512];
    us_progress p = {"writing", "B", 250000000, 1000000000, 5};
    us_progress_line(&p, 100, false, line, sizeof line);
    assert_string_equal(line, "writing [########......................]  25%  250 MB of 1.00 GB  50.0 MB/s  0:15 left");
    us_progress_line(&p, 60, false, line, sizeof line);
    assert_string_equal(line, "writing  25%  250 MB of 1.00 GB  50.0 MB/s  0:15 left");
    us_progress_line(&p, 100, true, line, sizeof line);
    assert_non_null(strstr(line, "\033[32m"));
    for (int width = 0; width < 120; width++) {
        us_progress_line(&p, width, false, line, sizeof line);
        assert_true((int)strlen(line) <= (width ? width - 1 : 0));
    }
    p = (us_progress){"reading", "tensors", 12, 0, 2};
    us_progress_line(&p, 80, false, line, sizeof line);
    assert_string_equal(line, "reading 12 tensors  6/s");
    p = (us_progress){"reading", "tensors", 20, 10, 0};
    us_progress_line(&p, 80, false, line, sizeof line); /* more done than promised, no time passed */
    assert_non_null(strstr(line, "100%"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_spellings_of_options),       cmocka_unit_test(flags_can_be_taken_back_and_words_protected),
        cmocka_unit_test(wrong_usage_is_named),           cmocka_unit_test(near_names_are_offered),
        cmocka_unit_test(any_words_parse_or_are_refused), cmocka_unit_test(help_names_every_option),
        cmocka_unit_test(man_pages_escape_roff),          cmocka_unit_test(completion_knows_every_option),
        cmocka_unit_test(the_progress_line_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
