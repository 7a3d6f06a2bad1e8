/* What `cmake --install` leaves: the command runs, its pages are there, and a stranger's program builds by pkg-config
 * and by CMake. */
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

static const char *prefix; /* installed once for all tests */

static int install(void **state) {
    (void)state;
    const char *build = getenv("US_BUILD");
    if (!build) return -1;
    prefix = test_format("%s/usr", test_temp_dir());
    test_run r = test_run_program((const char *const[]){"cmake", "--install", build, "--prefix", prefix, NULL}, NULL);
    if (r.status != 0) fprintf(stderr, "%s%s", r.out, r.err);
    return r.status;
}

/* Sanitized builds install a library that needs their runtime: nobody ships one. */
static void leave_when_sanitized(void) {
    const char *sanitize = getenv("US_SANITIZE");
    if (sanitize && *sanitize) skip();
}

static test_run shell(const char *script) {
    test_run r =
        test_run_program((const char *const[]){"sh", "-ec", script, NULL}, &(test_run_options){.seconds = 120});
    if (r.status != 0) print_error("%s\n%s%s", script, r.out, r.err);
    return r;
}

static void the_installed_command_runs(void **state) {
    (void)state;
    leave_when_sanitized();
    test_run r = shell(test_format("%s/bin/understudy --version", prefix));
    test_assert_done(&r);
    r = shell(test_format(
        "cd %s; test -s share/man/man1/understudy.1; test -s share/man/man1/understudy-inspect.1;"
        "test -s share/bash-completion/completions/understudy; test -s share/zsh/site-functions/_understudy",
        prefix));
    test_assert_done(&r);
}

static const char *use(const char *program) {
    return test_format("%s %s/data/demo %s-out", program, test_source(), program);
}

static void a_program_builds_by_pkg_config(void **state) {
    (void)state;
    leave_when_sanitized();
    const char *program = test_format("%s/by_pkg_config", test_temp_dir());
    test_run r = shell(test_format(
        "pc=$(dirname $(find %s -name understudy.pc)); export PKG_CONFIG_PATH=$pc\n"
        "cc -std=c11 -Wall -Wextra -Werror %s/examples/make_proxy.c $(pkg-config --cflags --libs understudy) -o %s\n%s",
        prefix, test_source(), program, use(program)));
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "verified\n"));
}

static void a_program_builds_by_cmake(void **state) {
    (void)state;
    leave_when_sanitized();
    const char *dir = test_temp_dir();
    test_write_text(
        test_format("%s/CMakeLists.txt", dir),
        test_format(
            "cmake_minimum_required(VERSION 3.22)\nproject(stranger LANGUAGES C)\nfind_package(understudy REQUIRED)\n"
            "add_executable(by_cmake %s/examples/make_proxy.c)\ntarget_link_libraries(by_cmake PRIVATE "
            "understudy::understudy)\n",
            test_source()));
    test_run r = shell(
        test_format("cd %s; cmake -G Ninja -S . -B b -DCMAKE_PREFIX_PATH=%s >/dev/null; cmake --build b >/dev/null\n%s",
                    dir, prefix, use(test_format("%s/b/by_cmake", dir))));
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "verified\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_installed_command_runs),
        cmocka_unit_test(a_program_builds_by_pkg_config),
        cmocka_unit_test(a_program_builds_by_cmake),
    };
    return cmocka_run_group_tests(tests, install, NULL);
}
