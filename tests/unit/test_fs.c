/* Files: kinds, ranges, names, links, walks, atomic writes; SHA-256 against the vectors of FIPS 180-4. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/fs.h"
#include "io/sha256.h"
#include "support/support.h"

static void refused(const char *path, const char *cls) {
    us_file f = {0};
    us_err err = {0};
    assert_int_not_equal(us_file_open(path, &f, &err), US_OK);
    assert_string_equal(err.cls, cls);
    assert_non_null(strstr(err.where, path));
    assert_null(f.path);
}

static void only_regular_files_are_opened(void **state) {
    (void)state;
    const char *dir = test_temp_dir(), *fifo = test_format("%s/fifo", dir), *sock = test_format("%s/sock", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    refused(fifo, "not-a-file"); /* and does not hang */
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true(strlen(sock) < sizeof a.sun_path);
    memcpy(a.sun_path, sock, strlen(sock) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof a), 0);
    refused(sock, "not-a-file");
    close(fd);
    refused(dir, "not-a-file");
    refused("/dev/null", "not-a-file");
    refused(test_format("%s/none", dir), "unreadable");
}

static void ranges_are_exact(void **state) {
    (void)state;
    const char *path = test_format("%s/f", test_temp_dir());
    test_write(path, "abcdefgh", 8);
    us_file f = {0};
    us_err err = {0};
    char b[9] = {0};
    assert_us_ok(us_file_open(path, &f, &err), &err);
    assert_int_equal(f.size, 8);
    assert_us_ok(us_file_read(&f, 2, b, 3, &err), &err);
    assert_memory_equal(b, "cde", 3);
    assert_us_ok(us_file_read(&f, 8, b, 0, &err), &err);
    assert_int_equal(us_file_read(&f, 6, b, 3, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "truncated");
    assert_int_equal(us_file_read(&f, UINT64_MAX, b, 1, &err), US_E_FORMAT);
    assert_int_equal(truncate(path, 4), 0); /* cut while it is open */
    assert_int_equal(us_file_read(&f, 2, b, 4, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "truncated");
    us_file_close(&f);
    us_file_close(&f); /* twice is fine */
}

static void whole_files_have_a_limit(void **state) {
    (void)state;
    const char *path = test_format("%s/f", test_temp_dir());
    char *text;
    size_t n;
    us_err err = {0};
    test_write(path, "12345", 5);
    assert_us_ok(us_fs_read_all(path, 5, &text, &n, &err), &err);
    assert_int_equal(n, 5);
    assert_string_equal(text, "12345");
    us_free(text);
    assert_int_equal(us_fs_read_all(path, 4, &text, &n, &err), US_E_LIMIT);
    assert_string_equal(err.cls, "limit");
}

static us_status beneath(const char *root, const char *name, unsigned flags, us_err *err) {
    us_file f = {0};
    us_status s = us_fs_open_beneath(root, us_str_z(name), flags, &f, err);
    us_file_close(&f);
    return s;
}

static void assert_beneath(const char *root, const char *name, const char *cls) {
    us_err err = {0};
    us_status s = beneath(root, name, 0, &err);
    if (strcmp(err.cls, cls ? cls : "") != 0)
        fail_msg("%s: got %s [%s] %s", name, us_status_name(s), err.cls, err.what);
    assert_int_equal(s == US_OK, cls == NULL);
}

static void names_are_judged_as_text(void **state) {
    (void)state;
    const char *dir = test_temp_dir();
    test_write_text(test_format("%s/f", dir), "x");
    test_mkdir(test_format("%s/sub", dir));
    test_write_text(test_format("%s/sub/g", dir), "x");
    assert_beneath(dir, "f", NULL);
    assert_beneath(dir, "sub/g", NULL);
    static const char *const bad[] = {"",      "/etc/passwd", "../f",        "sub/../f", "./f",  "sub//g",
                                      "sub/",  "a\\b",        "C:/f",        "http://f", "a\nb", "a\x7f",
                                      "a\x01", "a\xc2\x80",   "a\xc2\x9f/b", ".."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_beneath(dir, bad[i], "path");
    us_err err = {0};
    us_file f = {0};
    assert_int_equal(us_fs_open_beneath(dir, (us_str){"f\0g", 3}, 0, &f, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "path");
    char longest[257];
    memset(longest, 'a', sizeof longest);
    longest[256] = 0;
    assert_beneath(dir, longest, "path");
    assert_beneath(dir, longest + 1, "missing"); /* 255 bytes are a legal name */
    assert_beneath(dir, "a\xc2\xa0", "missing");
}

static void link_to(const char *target, const char *path) {
    assert_int_equal(symlink(target, path), 0);
}

static void links_stay_inside(void **state) {
    (void)state;
    const char *top = test_temp_dir(), *dir = test_format("%s/ck", top);
    test_mkdir(test_format("%s/sub", dir));
    test_mkdir(test_format("%s/ck-other", top));
    test_write_text(test_format("%s/sub/f", dir), "x");
    test_write_text(test_format("%s/out", top), "x");
    test_write_text(test_format("%s/ck-other/f", top), "x");
    test_mkdir(test_format("%s/-other", dir)); /* what ck-other/f would be if the root were taken as a mere prefix */
    test_write_text(test_format("%s/-other/f", dir), "x");
    link_to("sub/f", test_format("%s/in", dir));
    link_to("in", test_format("%s/two-hops", dir));
    link_to(test_format("%s/sub/f", dir), test_format("%s/absolute", dir));
    link_to("../sub/../sub/f", test_format("%s/sub/dots", dir));
    link_to("../out", test_format("%s/leaves", dir));
    link_to("leaves", test_format("%s/leaves-later", dir));
    link_to("../ck-other/f", test_format("%s/same-prefix", dir)); /* a folder whose name begins like the root's */
    link_to("../ck/sub/f", test_format("%s/returns", dir));
    link_to("..", test_format("%s/up", dir));
    link_to("self", test_format("%s/self", dir));
    link_to("pong", test_format("%s/ping", dir));
    link_to("ping", test_format("%s/pong", dir));
    link_to("nothing", test_format("%s/dangling", dir));
    link_to("sub", test_format("%s/folder", dir));
    static const char *const good[] = {"in", "two-hops", "absolute", "sub/dots", "folder/f", "folder/dots", "returns"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_beneath(dir, good[i], NULL);
    static const char *const bad[] = {"leaves", "leaves-later", "same-prefix", "up/out", "self", "ping", "dangling"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_beneath(dir, bad[i], "link");
    us_err err = {0};
    assert_us_ok(beneath(dir, "leaves", US_FS_FOLLOW_LINKS, &err), &err);
    assert_us_ok(beneath(dir, "up/out", US_FS_FOLLOW_LINKS, &err), &err);
    assert_int_equal(beneath(dir, "../out", US_FS_FOLLOW_LINKS, &err), US_E_FORMAT); /* names stay names */
    assert_string_equal(err.cls, "path");
}

static void snapshots_reach_their_blobs(void **state) {
    (void)state;
    const char *top = test_temp_dir(), *snap = test_format("%s/m/snapshots/abc", top);
    test_mkdir(snap);
    test_mkdir(test_format("%s/m/blobs", top));
    test_mkdir(test_format("%s/m/other", top));
    test_write_text(test_format("%s/m/blobs/b1", top), "x");
    test_write_text(test_format("%s/m/other/b1", top), "x");
    test_write_text(test_format("%s/m/secret", top), "x");
    link_to("../../blobs/b1", test_format("%s/good", snap));
    link_to("../../other/b1", test_format("%s/other", snap));
    link_to("../secret", test_format("%s/m/blobs/b2", top));
    link_to("../../blobs/b2", test_format("%s/through", snap));
    assert_beneath(snap, "good", NULL);
    assert_beneath(test_format("%s/", snap), "good", NULL);
    assert_beneath(snap, "other", "link");
    assert_beneath(snap, "through", "link");
    /* The same folder under another name is no snapshot. */
    assert_int_equal(rename(test_format("%s/m/snapshots", top), test_format("%s/m/folders", top)), 0);
    assert_beneath(test_format("%s/m/folders/abc", top), "good", "link");
}

static void walks_are_sorted_and_bounded(void **state) {
    (void)state;
    const char *dir = test_temp_dir();
    static const char *const folders[] = {"b/c", "empty", ".git", "b/.git"};
    for (size_t i = 0; i < 4; i++) test_mkdir(test_format("%s/%s", dir, folders[i]));
    static const char *const files[] = {"z", "a", "b/x", "b/c/y", ".hidden", ".git/no", "b/.git/yes"};
    for (size_t i = 0; i < 7; i++) test_write_text(test_format("%s/%s", dir, files[i]), "12");
    link_to("b/c", test_format("%s/linked", dir));
    static const char *const skip[] = {".git", NULL};
    static const char *const want[] = {".hidden", "a", "b/.git/yes", "b/c/y", "b/x", "linked/y", "z"};
    us_arena arena = {0};
    us_fs_entry *list;
    size_t n;
    us_err err = {0};
    assert_us_ok(us_fs_walk(dir, 0, skip, &arena, &list, &n, &err), &err);
    assert_int_equal(n, 7);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(list[i].name, want[i]);
        assert_int_equal(list[i].kind, US_FS_REGULAR);
        assert_int_equal(list[i].size, 2);
    }
    /* Two folders that hold themselves would be 2^32 paths. */
    link_to(".", test_format("%s/loop1", dir));
    link_to(".", test_format("%s/loop2", dir));
    assert_int_equal(us_fs_walk(dir, 0, skip, &arena, &list, &n, &err), US_E_LIMIT);
    assert_string_equal(err.cls, "limit");
    assert_int_equal(us_fs_walk(test_format("%s/none", dir), 0, NULL, &arena, &list, &n, &err), US_E_IO);
    us_arena_free(&arena);
}

static void folders_without_permission_are_refused(void **state) {
    (void)state;
    const char *top = test_temp_dir(), *dir = test_format("%s/locked", top);
    test_mkdir(dir);
    assert_int_equal(chmod(top, 0755), 0);
    assert_int_equal(chmod(dir, 0), 0);
    bool root = geteuid() == 0; /* who may read all */
    if (root) assert_int_equal(seteuid(65534), 0);
    us_arena arena = {0};
    us_fs_entry *list;
    size_t n;
    us_err err = {0};
    us_status s = us_fs_walk(dir, 0, NULL, &arena, &list, &n, &err);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(dir, 0700), 0);
    us_arena_free(&arena);
    assert_int_equal(s, US_E_IO);
    assert_string_equal(err.cls, "unreadable");
}

static void trees_go_without_what_links_lead_to(void **state) {
    (void)state;
    const char *top = test_temp_dir(), *dir = test_format("%s/tree", top);
    us_err err = {0};
    assert_us_ok(us_fs_mkdirs(test_format("%s/a/b", dir), &err), &err);
    assert_us_ok(us_fs_mkdirs(test_format("%s/a/b", dir), &err), &err);
    test_mkdir(test_format("%s/kept", top));
    test_write_text(test_format("%s/kept/f", top), "x");
    test_write_text(test_format("%s/a/b/f", dir), "x");
    link_to("../kept", test_format("%s/link", dir));
    assert_us_ok(us_fs_remove_tree(dir, &err), &err);
    assert_false(us_fs_exists(dir));
    assert_true(test_exists(test_format("%s/kept/f", top)));
    assert_us_ok(us_fs_remove_tree(dir, &err), &err);
    link_to("kept", test_format("%s/direct", top));
    assert_us_ok(us_fs_remove_tree(test_format("%s/direct", top), &err), &err);
    assert_true(test_exists(test_format("%s/kept/f", top)));
    assert_int_equal(us_fs_mkdirs(test_format("%s/kept/f/x", top), &err), US_E_IO);
}

static void a_failed_write_leaves_the_old_file(void **state) {
    (void)state;
    const char *dir = test_temp_dir(), *path = test_format("%s/f", dir);
    us_err err = {0};
    size_t n;
    assert_us_ok(us_fs_write_atomic(path, US_LIT("old"), &err), &err);
    struct rlimit was, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 1000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    static char big[5000];
    memset(big, 'n', sizeof big);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    us_status s = us_fs_write_atomic(path, (us_str){big, sizeof big}, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(s, US_E_IO);
    assert_string_equal(err.cls, "unwritable");
    assert_string_equal(test_read(path, NULL), "old");
    test_list(dir, &n);
    assert_int_equal(n, 1); /* no temporary file is left */
    assert_us_ok(us_fs_write_atomic(path, (us_str){big, sizeof big}, &err), &err);
    test_read(path, &n);
    assert_int_equal(n, sizeof big);
    assert_int_equal(us_fs_write_atomic(test_format("%s/none/f", dir), US_LIT("x"), &err), US_E_IO);
}

static void digests_are_the_published_ones(void **state) {
    (void)state;
    us_sha256 *h;
    us_err err = {0};
    char hex[65];
    assert_us_ok(us_sha256_create(&h, &err), &err);
    us_sha256_hex(h, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    us_sha256_reset(h);
    us_sha256_add(h, "abc", 3);
    us_sha256_hex(h, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    us_sha256_reset(h);
    static char a[1000];
    memset(a, 'a', sizeof a);
    for (int i = 0; i < 1000; i++) us_sha256_add(h, a, sizeof a);
    us_sha256_hex(h, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    us_sha256_free(h);
    us_sha256_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_regular_files_are_opened),
        cmocka_unit_test(ranges_are_exact),
        cmocka_unit_test(whole_files_have_a_limit),
        cmocka_unit_test(names_are_judged_as_text),
        cmocka_unit_test(links_stay_inside),
        cmocka_unit_test(snapshots_reach_their_blobs),
        cmocka_unit_test(walks_are_sorted_and_bounded),
        cmocka_unit_test(folders_without_permission_are_refused),
        cmocka_unit_test(trees_go_without_what_links_lead_to),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
        cmocka_unit_test(digests_are_the_published_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
