/* How the command behaves as a program: exit statuses, one line on failure, help for every command, man pages and
 * completion that load. */
#define _XOPEN_SOURCE 700
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/support.h"

#define RUN(...) test_understudy((const char *const[]){__VA_ARGS__, NULL})

static void usage_errors_are_status_2(void **state) {
    (void)state;
    test_run r = test_understudy((const char *const[]){NULL});
    test_assert_refused(&r, 2, "usage");
    r = RUN("hlep");
    test_assert_refused(&r, 2, "usage");
    assert_non_null(strstr(r.err, "did you mean 'help'?"));
    r = RUN("help", "nothing");
    test_assert_refused(&r, 2, "usage");
    r = RUN("completion", "powershell");
    test_assert_refused(&r, 2, "usage");
    r = RUN("completion", "bash", "--threads", "many");
    test_assert_refused(&r, 2, "usage");
    r = RUN("he\nlp\x1b[0m");
    test_assert_refused(&r, 2, "usage"); /* still one line */
}

static void version_and_help_are_status_0(void **state) {
    (void)state;
    test_run r = RUN("--version");
    test_assert_done(&r);
    assert_true(strncmp(r.out, "understudy ", 11) == 0);
    test_run a = RUN("--help"), b = RUN("help");
    test_assert_done(&a);
    assert_string_equal(a.out, b.out);
    assert_string_equal(a.err, "");
}

/* Calls f for every command that `help` lists. */
static void each_command(void (*f)(const char *name)) {
    test_run r = RUN("help");
    const char *p = strstr(r.out, "\nCommands:\n");
    assert_non_null(p);
    int n = 0;
    for (p = strchr(p + 1, '\n') + 1; *p == ' '; p = strchr(p, '\n') + 1) {
        size_t len = strcspn(p + 2, " ");
        if (len) {
            f(test_format("%.*s", (int)len, p + 2));
            n++;
        }
    }
    assert_true(n >= 3);
}

static void check_help(const char *name) {
    test_run a = RUN(name, "--help"), b = RUN("help", name), m = RUN("man", name);
    test_assert_done(&a);
    test_assert_done(&m);
    assert_string_equal(a.out, b.out);
    assert_true(strncmp(a.out, test_format("Usage: understudy %s ", name), 18 + strlen(name)) == 0);
    assert_true(strncmp(m.out, ".TH UNDERSTUDY-", 15) == 0);
    for (const char *line = a.out; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strcspn(line, "\n") > 130) fail_msg("help of %s has a line of %zu letters", name, strcspn(line, "\n"));
}

static void every_command_explains_itself(void **state) {
    (void)state;
    each_command(check_help);
}

static void shells_take_the_completion(void **state) {
    (void)state;
    const char *dir = test_temp_dir();
    static const char *const shells[] = {"bash", "zsh", "fish"};
    for (size_t i = 0; i < 3; i++) {
        test_run r = RUN("completion", shells[i]);
        test_assert_done(&r);
        const char *file = test_format("%s/%s", dir, shells[i]);
        test_write(file, r.out, r.n_out);
        test_run have =
            test_run_program((const char *const[]){"sh", "-c", test_format("command -v %s", shells[i]), NULL}, NULL);
        if (have.status != 0) continue; /* the text was made; nobody here to read it */
        r = test_run_program((const char *const[]){shells[i], "-n", file, NULL}, NULL);
        test_assert_done(&r);
        assert_string_equal(r.err, "");
    }
    const char *script =
        test_format(". %s/bash; COMP_WORDS=(understudy com); COMP_CWORD=1; _understudy; echo ${COMPREPLY[@]};"
                    "COMP_WORDS=(understudy man --thr); COMP_CWORD=2; _understudy; echo ${COMPREPLY[@]}",
                    dir);
    test_run have = test_run_program((const char *const[]){"sh", "-c", "command -v bash", NULL}, NULL);
    if (have.status != 0) return;
    test_run r = test_run_program((const char *const[]){"bash", "-c", script, NULL}, NULL);
    assert_non_null(strstr(r.out, "completion"));
    assert_non_null(strstr(r.out, "\n--threads\n"));
}

static void lost_output_is_noticed(void **state) {
    (void)state;
    const char *command = getenv("US_COMMAND");
    assert_non_null(command);
    test_run r = test_run_program((const char *const[]){"sh", "-c", "\"$0\" help >/dev/full", command, NULL}, NULL);
    test_assert_refused(&r, 1, "output");
    r = test_run_program((const char *const[]){"sh", "-c", "\"$0\" help >&-", command, NULL}, NULL);
    test_assert_refused(&r, 1, "output");
    r = test_run_program((const char *const[]){"sh", "-c", "\"$0\" help | true", command, NULL}, NULL);
    assert_string_equal(r.err, ""); /* a reader that leaves is not worth a message */
}

/* Standard error of a run as a terminal sees it. */
static const char *on_terminal(const char *setting) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) skip();
    const char *slave = test_format("%s", ptsname(master)), *command = getenv("US_COMMAND");
    int keep = open(slave, O_RDWR | O_NOCTTY); /* what is written stays readable after the program's end */
    assert_true(keep >= 0);
    test_run r = test_run_program(
        (const char *const[]){"sh", "-c",
                              test_format("%s \"$0\" inspect %s/data/demo 2>%s", setting, test_source(), slave),
                              command, NULL},
        NULL);
    test_assert_done(&r);
    char *text = (char *)(uintptr_t)test_format("%4096s", "");
    fcntl(master, F_SETFL, O_NONBLOCK);
    ssize_t n = read(master, text, 4095);
    text[n > 0 ? n : 0] = 0;
    close(keep);
    close(master);
    return text;
}

static void progress_is_for_terminals(void **state) {
    (void)state;
    const char *plain = on_terminal("TERM=xterm NO_COLOR=1"), *color = on_terminal("unset NO_COLOR; TERM=xterm"),
               *dumb = on_terminal("TERM=dumb");
    assert_non_null(strstr(plain, "100%"));
    assert_null(strstr(plain, "\033[32m"));
    assert_non_null(strstr(color, "\033[32m"));
    assert_string_equal(plain + strlen(plain) - 4, "\r\033[K"); /* wiped at the end */
    assert_string_equal(dumb, "");
    test_run r = RUN("inspect", test_format("%s/data/demo", test_source()));
    test_assert_done(&r);
    assert_string_equal(r.err, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_errors_are_status_2),     cmocka_unit_test(version_and_help_are_status_0),
        cmocka_unit_test(every_command_explains_itself), cmocka_unit_test(shells_take_the_completion),
        cmocka_unit_test(lost_output_is_noticed),        cmocka_unit_test(progress_is_for_terminals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
