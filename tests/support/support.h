/**
 * What tests share: where test data lie, temporary folders, files, and running the command.
 *
 * Strings that are returned live until the process ends (one arena). Helpers fail the running cmocka test when they
 * cannot do their work, so callers check nothing. Include the cmocka block before this header.
 */
#ifndef US_TESTS_SUPPORT_H
#define US_TESTS_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "understudy/us_status.h"

/** tests/data of this source tree (US_TEST_DATA), and the source tree itself (US_SOURCE). */
const char *test_data(void);
const char *test_source(void);
/**
 * Folder `sub` of the reference fixtures (US_FIXTURES; sub "" = the folder itself), or NULL when there is no such
 * folder in a set that is there: then nothing is tested. When there is no set at all, the test is skipped, or failed
 * where CI is set.
 */
const char *test_fixtures(const char *sub);

/** A formatted string. */
const char *test_format(const char *fmt, ...) US_PRINTF(1, 2);
/** A new empty folder, removed with all in it when the process ends. */
const char *test_temp_dir(void);
bool test_exists(const char *path);
/** Names in a folder (without . and ..), sorted by bytes, ended by NULL; *n may be NULL. A missing folder is empty. */
const char *const *test_list(const char *folder, size_t *n);
/** Folders of the reference fixtures `sub` that have every file of `needs` ("config.json model.safetensors"), as whole paths sorted by name, ended by NULL.
 * As test_fixtures where there is no set. */
const char *const *test_folders(const char *sub, const char *needs);
/** What stands behind the last '/' of a path. */
const char *test_name(const char *path);
/** Whole file, with a 0 behind its end; *n may be NULL. */
const char *test_read(const char *path, size_t *n);
void test_write(const char *path, const void *bytes, size_t n);
void test_write_text(const char *path, const char *text);
/** mkdir -p. */
void test_mkdir(const char *path);
/** Copy a folder with all below it; links are followed. */
void test_copy_tree(const char *from, const char *to);
void test_remove_tree(const char *path);
/**
 * Some transports store a link as a small text file that holds its target. Turn such files below folder (a copy!) back
 * into links: files of up to 255 bytes whose whole text is one path without white space, and which are named
 * *.safetensors, have no dot in their name, or point upwards.
 */
void test_restore_links(const char *folder);
/** The first difference between two trees (names, kinds, bytes) as a text, or NULL when they are equal. Links are
 * followed. */
const char *test_tree_difference(const char *a, const char *b);

/** How a program ended. */
typedef struct test_run {
    int status;      /* exit status, or -1 when killed by a signal */
    int signal;      /* that signal, or 0 */
    const char *out; /* standard output, with a 0 behind its end */
    const char *err;
    size_t n_out, n_err;
    uint64_t peak_bytes; /* resident, as the kernel counts it; never below that of the test itself when it started the
                            program */
} test_run;

typedef struct test_run_options {
    const char *folder;      /* working folder; NULL = here */
    const char *input;       /* file for standard input; NULL = empty */
    const char *const *env;  /* "NAME=value" to add, ended by NULL; may be NULL */
    unsigned seconds;        /* killed by SIGALRM after so long; 0 = 60 */
    uint64_t file_bytes_max; /* RLIMIT_FSIZE with SIGXFSZ ignored: writes beyond fail; 0 = none */
} test_run_options;

/** Run argv[0] (looked up in PATH) with argv, ended by NULL. options may be NULL. */
test_run test_run_program(const char *const *argv, const test_run_options *options);
/** Run the understudy command of this build (US_COMMAND) with arguments, ended by NULL, e.g. test_understudy((const
 * char *[]){"help", NULL}). */
test_run test_understudy(const char *const *arguments);
test_run test_understudy_with(const char *const *arguments, const test_run_options *options);
/** The run was a refusal as promised: status, empty standard output, one line "understudy: ... [cls]...\n" on standard
 * error. cls NULL = any. */
void test_assert_refused(const test_run *r, int status, const char *cls);
/** Exit status 0; else shows standard error. */
void test_assert_done(const test_run *r);

/** Fails the test with the error's line unless s is US_OK. */
void test_assert_ok(us_status s, const us_err *err, const char *file, int line);
#define assert_us_ok(call, err) test_assert_ok(call, err, __FILE__, __LINE__)

#endif
