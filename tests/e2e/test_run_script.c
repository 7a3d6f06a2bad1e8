/* The script `run` on machines that lack something: stand-ins for the package managers note how they are called;
 * nothing is installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/support.h"

static const char *dir; /* a copy of `run`, and bin/ with all programs it may see */

static void program(const char *name, const char *body) {
    const char *path = test_format("%s/bin/%s", dir, name);
    test_write_text(path, test_format("#!/bin/sh\n%s\n", body));
    chmod(path, 0755);
}

/* A machine with user id `uid` whose libraries are there or not. */
static void machine(const char *uid, bool libraries) {
    dir = test_temp_dir();
    test_mkdir(test_format("%s/bin", dir));
    test_copy_tree(test_format("%s/run", test_source()), test_format("%s/run", dir));
    static const char *const real[] = {"sh", "cat", "mkdir", "dirname", "grep", "env", "getconf"};
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        program(real[i], test_format("exec %s/%s \"$@\"",
                                     test_exists(test_format("/usr/bin/%s", real[i])) ? "/usr/bin" : "/bin", real[i]));
    program("id", test_format("echo %s", uid));
    program("cc", "exit 0");
    program("ninja", "exit 0");
    program("cmake", "echo the stand-in of cmake; exit 1");
    program("pkg-config", libraries ? "exit 0" : "exit 1");
}

static void log_calls(const char *name) {
    program(name, test_format("echo %s \"$@\" >>%s/log; test %s = sudo && exec \"$@\"; exit 0", name, dir, name));
}

static test_run run_build(void) {
    const char *path = test_format("PATH=%s/bin", dir);
    /* env -i by its full name: the stand-ins are all that `run` finds */
    return test_run_program(
        (const char *const[]){"/usr/bin/env", "-i", path, "/bin/sh", test_format("%s/run", dir), "build", NULL}, NULL);
}

static const char *calls(void) {
    const char *log = test_format("%s/log", dir);
    return test_exists(log) ? test_read(log, NULL) : "";
}

static void root_on_debian_installs_by_name(void **state) {
    (void)state;
    machine("0", false);
    log_calls("apt-get");
    test_run r = run_build();
    assert_non_null(strstr(r.err, "run: installing by apt-get install: libjansson-dev"));
    assert_non_null(strstr(calls(), "apt-get update"));
    assert_non_null(strstr(calls(), "install -y -q --no-install-recommends libjansson-dev libpcre2-dev libutf8proc-dev "
                                    "libssl-dev zlib1g-dev libsqlite3-dev"));
    assert_non_null(strstr(r.err, "the stand-in of cmake")); /* it went on */
}

static void sudo_is_announced(void **state) {
    (void)state;
    machine("1000", false);
    log_calls("apt-get");
    log_calls("sudo");
    test_run r = run_build();
    assert_non_null(strstr(r.err, "run: installing by sudo apt-get install: libjansson-dev"));
    assert_non_null(strstr(calls(), "sudo apt-get update"));
}

static void without_rights_it_names_and_stops(void **state) {
    (void)state;
    machine("1000", false);
    log_calls("apt-get");
    test_run r = run_build();
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "apt-get install libjansson-dev"));
    assert_string_equal(calls(), "");
}

static void other_systems_get_their_names(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"dnf",
         "dnf install jansson-devel pcre2-devel utf8proc-devel openssl-devel zlib-devel sqlite-devel openblas-devel"},
        {"pacman", "pacman -S jansson pcre2 libutf8proc openssl zlib sqlite openblas"},
        {"brew", "brew install jansson pcre2 utf8proc openssl@3 zlib sqlite openblas"},
    };
    for (size_t i = 0; i < 3; i++) {
        machine("0", false);
        log_calls(rows[i][0]);
        test_run r = run_build();
        assert_int_equal(r.status, 1);
        if (!strstr(r.err, rows[i][1])) fail_msg("%s: %s", rows[i][0], r.err);
        assert_string_equal(calls(), "");
    }
}

static void a_complete_machine_hears_nothing(void **state) {
    (void)state;
    machine("0", true);
    log_calls("apt-get");
    test_run r = run_build();
    assert_string_equal(calls(), "");
    assert_string_equal(r.err, "the stand-in of cmake\nrun: CMake failed\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(root_on_debian_installs_by_name),   cmocka_unit_test(sudo_is_announced),
        cmocka_unit_test(without_rights_it_names_and_stops), cmocka_unit_test(other_systems_get_their_names),
        cmocka_unit_test(a_complete_machine_hears_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
