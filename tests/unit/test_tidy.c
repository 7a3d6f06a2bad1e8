/*
 * Tidiness of the tree: include direction (ARCHITECTURE.md), banned functions, no printing in the library, header
 * comments, file size, words that do not belong here. A line may say `tidy-allow: NAME reason` in a comment. Every rule
 * has a sample that must fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/str.h"
#include "support/support.h"

/* Folders of src by layer; a file includes its own folder and lower layers only. */
static const struct {
    const char *folder;
    int layer;
} layers[] = {
    {"base", 0},  {"tensor", 1}, {"kernels", 2}, {"io", 3},     {"prune", 4}, {"complete", 4}, {"topk", 4},
    {"range", 4}, {"model", 5},  {"train", 6},   {"fault", 7},  {"rl", 7},    {"proxy", 8},    {"diagnose", 8},
    {"agent", 8}, {"serve", 8},  {"route", 8},   {"report", 9}, {"cli", 10},
};

static const char *const banned[] = {"strcpy", "strcat", "sprintf", "vsprintf",  "atoi",  "atol",    "atof",
                                     "strtok", "gets",   "gmtime",  "localtime", "ctime", "asctime", "alloca",
                                     "rand",   "srand",  "tmpnam",  "mktemp",    NULL};
static const char *const raw_memory[] = {"malloc",  "calloc",   "realloc",        "free",          "strdup",
                                         "strndup", "asprintf", "posix_memalign", "aligned_alloc", NULL};
static const char *const printing[] = {"printf", "puts", "putchar", "perror", "exit", "abort", "_exit", NULL};
/* Split, so that this file is clean by its own rule. */
static const char *const foreign_words[] = {"/wo"
                                            "rk/",
                                            "/ro"
                                            "ot/",
                                            "fa"
                                            "rm-",
                                            NULL};

enum { LINES_MAX = 800 };

static int layer_of(const char *path) {
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        size_t n = strlen(layers[i].folder);
        if (strncmp(path, layers[i].folder, n) == 0 && path[n] == '/') return layers[i].layer;
    }
    return -1;
}

/* A copy in which comments and the insides of strings are blank; line ends stay. */
static char *code_only(const char *text) {
    char *out = (char *)(uintptr_t)test_format("%s", text);
    enum { CODE, LINE, BLOCK, STRING, CHAR } state = CODE;
    for (char *p = out; *p; p++) {
        char c = *p;
        if (state == CODE) {
            if (c == '/' && p[1] == '/')
                state = LINE;
            else if (c == '/' && p[1] == '*')
                state = BLOCK;
            else if (c == '"')
                state = STRING;
            else if (c == '\'')
                state = CHAR;
            if (state == BLOCK) *p++ = ' '; /* so that a slash right behind the star does not end it */
            if (state == LINE || state == BLOCK) *p = ' ';
            continue;
        }
        if ((state == STRING || state == CHAR) && c == '\\' && p[1] && p[1] != '\n') {
            *p++ = ' ';
            *p = ' ';
            continue;
        }
        bool end = (state == LINE && c == '\n') || (state == STRING && c == '"') || (state == CHAR && c == '\'') ||
                   (state == BLOCK && c == '*' && p[1] == '/');
        if (state == BLOCK && end) *p++ = ' ';
        if (end) state = CODE;
        if (*p != '\n' && *p != '"') *p = ' ';
    }
    return out;
}

static bool is_word(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Line of the text that holds position p: its number, and whether it carries an allowance for the name. */
static int line_of(const char *text, size_t p, const char *name, bool *allowed) {
    int line = 1;
    size_t start = 0;
    for (size_t i = 0; i < p; i++)
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    size_t n = strcspn(text + start, "\n");
    const char *row = test_format("%.*s", (int)n, text + start);
    *allowed = strstr(row, test_format("tidy-allow: %s", name)) != NULL;
    return line;
}

static int complain(us_buf *report, const char *path, int line, const char *what, const char *name) {
    us_buf_printf(report, "  %s:%d: %s %s\n", path, line, what, name);
    return 1;
}

/* Calls of the functions of a list: the name as a whole word, '(' behind it, and no '.' or '>' before it (a member). */
static int check_calls(const char *path, const char *text, const char *code, const char *const *names, const char *what,
                       us_buf *report) {
    int bad = 0;
    for (; *names; names++) {
        size_t n = strlen(*names);
        for (const char *p = code; (p = strstr(p, *names)); p += n) {
            const char *behind = p + n;
            while (*behind == ' ') behind++;
            if ((p > code && (is_word(p[-1]) || p[-1] == '.' || p[-1] == '>')) || *behind != '(' || is_word(p[n]))
                continue;
            bool allowed;
            int line = line_of(text, (size_t)(p - code), *names, &allowed);
            if (!allowed) bad += complain(report, path, line, what, *names);
        }
    }
    return bad;
}

static int check_includes(const char *path, const char *text, us_buf *report) {
    int bad = 0, own = layer_of(path + 4), line = 0;
    if (own < 0) return complain(report, path, 1, "lies in no known layer:", path);
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        line++;
        char name[256];
        if (sscanf(p, "#include \"%255[^\"]\"", name) != 1 || strncmp(name, "understudy/", 11) == 0) continue;
        int other = layer_of(name);
        size_t folder = strcspn(name, "/");
        bool same = strncmp(path + 4, name, folder + 1) == 0;
        if (other < 0)
            bad += complain(report, path, line, "an include names its folder from src:", name);
        else if (other > own || (other == own && !same))
            bad += complain(report, path, line, "includes a layer that is not below it:", name);
    }
    return bad;
}

static int check_shape(const char *path, const char *text, us_buf *report) {
    int bad = 0, lines = 0;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    const char *head = text;
    while (strncmp(head, "#define _", 9) == 0)
        head = strchr(head, '\n') ? strchr(head, '\n') + 1 : ""; /* feature-test macros may come first */
    if (strncmp(head, "/*", 2) != 0)
        bad += complain(report, path, 1, "does not begin with a comment that says what the file is", "");
    if (lines > LINES_MAX && !strstr(text, "tidy-allow: long "))
        bad += complain(report, path, lines, "is longer than 800 lines", "");
    if (strstr(text, "TO"
                     "DO:") ||
        strstr(text, "FIX"
                     "ME"))
        bad += complain(report, path, 1, "holds a bare note of work to do", "");
    size_t n = strlen(path);
    if (path[n - 1] == 'h' && !(strstr(text, "#ifndef US_") || strstr(text, "#ifndef UNDERSTUDY_")))
        bad += complain(report, path, 1, "has no include guard US_...", "");
    return bad;
}

static int check_words(const char *path, const char *text, us_buf *report) {
    int bad = 0;
    for (const char *const *w = foreign_words; *w; w++) {
        const char *p = strstr(text, *w);
        bool allowed;
        if (p)
            bad += complain(report, path, line_of(text, (size_t)(p - text), *w, &allowed),
                            "holds a word that does not belong here:", *w);
    }
    return bad;
}

/* All rules for one C file; path is relative to the source tree. */
static int check_c(const char *path, const char *text, us_buf *report) {
    const char *code = code_only(text);
    bool library = strncmp(path, "src/", 4) == 0, command = strncmp(path, "src/cli/", 8) == 0;
    int bad = check_shape(path, text, report);
    bad += check_calls(path, text, code, banned, "calls the banned function", report);
    if (!library) return bad;
    bad += check_includes(path, text, report);
    if (strcmp(path, "src/base/alloc.c") != 0)
        bad += check_calls(path, text, code, raw_memory, "does not go through base/alloc.h:", report);
    if (!command) bad += check_calls(path, text, code, printing, "the library neither prints nor exits:", report);
    return bad;
}

static bool ends_with(const char *name, const char *end) {
    return us_str_ends(us_str_z(name), us_str_z(end));
}

static int check_tree(const char *root, const char *path, us_buf *report) {
    int bad = 0;
    size_t n;
    const char *const *names = test_list(test_format("%s/%s", root, path), &n);
    if (n == 0) {
        bool c = ends_with(path, ".c") || ends_with(path, ".h");
        bool text = c || ends_with(path, ".md") || ends_with(path, ".txt") || ends_with(path, ".cmake") ||
                    ends_with(path, ".sh") || ends_with(path, ".py") || ends_with(path, ".in") ||
                    strcmp(path, "run") == 0 || strcmp(path, ".ci/run") == 0;
        const char *whole = test_format("%s/%s", root, path);
        if (!text || !test_exists(whole)) return 0;
        const char *bytes = test_read(whole, NULL);
        bad += check_words(path, bytes, report);
        return c ? bad + check_c(path, bytes, report) : bad;
    }
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], "corpus") != 0 && strcmp(names[i], "data") != 0)
            bad += check_tree(root, test_format("%s/%s", path, names[i]), report);
    return bad;
}

static void the_tree_is_tidy(void **state) {
    (void)state;
    static const char *const tops[] = {
        "src", "include", "tests",     "bench",           "tools",       "examples",     "docs",          "cmake",
        "run", ".ci",     "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CMakeLists.txt"};
    us_buf report = {0};
    int bad = 0;
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) bad += check_tree(test_source(), tops[i], &report);
    if (bad) print_error("%d violations:\n%s", bad, us_buf_text(&report));
    us_buf_free(&report);
    assert_int_equal(bad, 0);
}

static int violations(const char *path, const char *text) {
    us_buf report = {0};
    int bad = check_c(path, text, &report) + check_words(path, text, &report);
    us_buf_free(&report);
    return bad;
}

#define HEAD "/* A file. */\n"

static void a_clean_sample_passes(void **state) {
    (void)state;
    assert_int_equal(
        violations("src/io/x.c",
                   HEAD "#include \"base/str.h\"\n#include \"io/json.h\"\n#include <stdlib.h>\n"
                        "/* strcpy(a, b) in a comment */ void f(void) { g(\"free(x)\"); us_free(p); t->free(p); }\n"),
        0);
    assert_int_equal(
        violations("src/io/x.c", HEAD "void f(char *p) { free(p); } /* tidy-allow: free from a C library */\n"), 0);
    assert_int_equal(violations("src/base/alloc.c", HEAD "void f(char *p) { free(p); }\n"), 0);
    assert_int_equal(violations("src/cli/cmd_x.c", HEAD "#include \"proxy/x.h\"\nvoid f(void) { printf(\"x\"); }\n"),
                     0);
}

static void each_rule_catches_its_sample(void **state) {
    (void)state;
    static const struct {
        const char *path, *text;
    } samples[] = {
        {"src/io/x.c", "int x;\n"},
        {"src/io/x.h", HEAD "int x;\n"},
        {"src/io/x.c", HEAD "#include \"model/family.h\"\n"},
        {"src/proxy/x.c", HEAD "#include \"cli/cli.h\"\n"},
        {"src/proxy/x.c", HEAD "#include \"diagnose/x.h\"\n"},
        {"src/base/x.c", HEAD "#include \"tensor/dtype.h\"\n"},
        {"src/io/x.c", HEAD "#include \"json.h\"\n"},
        {"src/elsewhere/x.c", HEAD},
        {"tests/unit/test_x.c", HEAD "void f(char *a) { strcpy(a, \"b\"); }\n"},
        {"src/io/x.c", HEAD "int f(char *a) { return atoi (a); }\n"},
        {"src/io/x.c", HEAD "void f(char *p) { free(p); } /* tidy-allow: malloc wrong name */\n"},
        {"src/io/x.c", HEAD "void f(void) { char c = '\"'; printf(\"\\\"\"); }\n"},
        {"src/io/x.c", HEAD "/*/ printf */ void f(void) { exit(1); }\n"},
        {"src/io/x.c", HEAD "/* TO"
                            "DO: later */\n"},
        {"src/io/x.c", HEAD "static const char *p = \"/wo"
                            "rk/x\";\n"},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        if (violations(samples[i].path, samples[i].text) != 1)
            fail_msg("sample %zu: %d violations", i, violations(samples[i].path, samples[i].text));
    us_buf longer = {0};
    us_buf_z(&longer, HEAD);
    for (int i = 0; i < LINES_MAX; i++) us_buf_z(&longer, ";\n");
    assert_int_equal(violations("src/io/x.c", us_buf_text(&longer)), 1);
    us_buf_free(&longer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tree_is_tidy),
        cmocka_unit_test(a_clean_sample_passes),
        cmocka_unit_test(each_rule_catches_its_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
