/* Test data, temporary folders, files, and running the command. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/str.h"
#include "support/support.h"

/* Not from the counted allocator: tests compare its counters. Freed by the end of the process. */
static char *keep(size_t n) {
    static struct block { struct block *next; } * blocks;
    struct block *b = malloc(sizeof *b + n + 1);
    if (!b) abort();
    b->next = blocks; /* reachable, so that leak checkers stay quiet */
    blocks = b;
    return (char *)(b + 1);
}

static const char *from_environment(const char *name) {
    const char *z = getenv(name);
    if (!z || !*z) fail_msg("%s is not set: run tests by ctest or ./run test", name);
    return z;
}

const char *test_data(void) {
    return from_environment("US_TEST_DATA");
}

const char *test_source(void) {
    return from_environment("US_SOURCE");
}

const char *test_fixtures(const char *sub) {
    const char *root = getenv("US_FIXTURES");
    if (!root || !*root || !test_exists(root)) {
        const char *ci = getenv("CI");
        if (ci && *ci) fail_msg("CI is set and there are no reference fixtures at US_FIXTURES='%s'", root ? root : "");
        print_message("no reference fixtures at '%s'\n", root ? root : "");
        skip();
    }
    const char *path = *sub ? test_format("%s/%s", root, sub) : root;
    return test_exists(path) ? path : NULL;
}

const char *test_format(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    assert_true(n >= 0);
    char *p = keep((size_t)n);
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

/* ---- files ---- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)ftw;
    if (type == FTW_DNR) chmod(path, 0700);
    return remove(path) != 0 && errno != ENOENT ? -1 : 0;
}

void test_remove_tree(const char *path) {
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *temp_root;
static pid_t temp_owner;

static void remove_temp(void) {
    if (getpid() == temp_owner) test_remove_tree(temp_root);
}

const char *test_temp_dir(void) {
    static int counter;
    if (!temp_root || temp_owner != getpid()) {
        const char *base = getenv("TMPDIR");
        char *root = keep(4096);
        snprintf(root, 4096, "%s/understudy-test-XXXXXX", base && *base ? base : "/tmp");
        if (!mkdtemp(root)) fail_msg("no temporary folder %s: %s", root, strerror(errno));
        temp_root = root;
        temp_owner = getpid();
        atexit(remove_temp);
    }
    const char *path = test_format("%s/%d", temp_root, counter++);
    test_mkdir(path);
    return path;
}

bool test_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *const *test_list(const char *folder, size_t *n) {
    size_t count = 0, cap = 0;
    const char **names = NULL;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (!us_grow(&names, &cap, count + 1, sizeof *names)) fail_msg("out of memory");
        names[count++] = test_format("%s", e->d_name);
    }
    if (d) closedir(d);
    if (count) qsort(names, count, sizeof *names, by_bytes);
    const char **kept = (const char **)(void *)keep((count + 1) * sizeof *kept);
    if (count) memcpy(kept, names, count * sizeof *kept);
    kept[count] = NULL;
    us_free(names);
    if (n) *n = count;
    return kept;
}

const char *test_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool has_all(const char *folder, const char *needs) {
    for (size_t n; *needs; needs += n + strspn(needs + n, " ")) {
        n = strcspn(needs, " ");
        if (!test_exists(test_format("%s/%.*s", folder, (int)n, needs))) return false;
    }
    return true;
}

const char *const *test_folders(const char *sub, const char *needs) {
    const char *root = test_fixtures(sub);
    size_t n = 0, kept = 0;
    const char *const *names = root ? test_list(root, &n) : NULL;
    const char **folders = (const char **)(void *)keep((n + 1) * sizeof *folders);
    for (size_t i = 0; i < n; i++) {
        folders[kept] = test_format("%s/%s", root, names[i]);
        if (has_all(folders[kept], needs)) kept++;
    }
    folders[kept] = NULL;
    return folders;
}

static const char *read_fd(int fd, size_t *n, const char *path) {
    struct stat st;
    if (fstat(fd, &st) != 0) fail_msg("%s: %s", path, strerror(errno));
    size_t size = (size_t)st.st_size, got = 0;
    char *p = keep(size);
    while (got < size) {
        ssize_t r = pread(fd, p + got, size - got, (off_t)got);
        if (r <= 0) fail_msg("%s: cannot read", path);
        got += (size_t)r;
    }
    p[size] = 0;
    if (n) *n = size;
    return p;
}

const char *test_read(const char *path, size_t *n) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail_msg("%s: %s", path, strerror(errno));
    const char *p = read_fd(fd, n, path);
    close(fd);
    return p;
}

void test_write(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || (n && fwrite(bytes, 1, n, f) != n) || fclose(f) != 0) fail_msg("%s: %s", path, strerror(errno));
}

void test_write_text(const char *path, const char *text) {
    test_write(path, text, strlen(text));
}

void test_mkdir(const char *path) {
    char *p = keep(strlen(path));
    memcpy(p, path, strlen(path) + 1);
    for (char *q = p + 1;; q++) {
        if (*q != '/' && *q) continue;
        char c = *q;
        *q = 0;
        if (mkdir(p, 0777) != 0 && errno != EEXIST) fail_msg("%s: %s", p, strerror(errno));
        *q = c;
        if (!c) return;
    }
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

void test_copy_tree(const char *from, const char *to) {
    if (!is_folder(from)) {
        size_t n;
        const char *bytes = test_read(from, &n);
        test_write(to, bytes, n);
        return;
    }
    test_mkdir(to);
    for (const char *const *name = test_list(from, NULL); *name; name++)
        test_copy_tree(test_format("%s/%s", from, *name), test_format("%s/%s", to, *name));
}

const char *test_tree_difference(const char *a, const char *b) {
    if (!test_exists(a) || !test_exists(b)) return test_format("%s is missing", test_exists(a) ? b : a);
    if (is_folder(a) != is_folder(b)) return test_format("%s and %s are of different kinds", a, b);
    if (!is_folder(a)) {
        size_t n, m;
        const char *p = test_read(a, &n), *q = test_read(b, &m);
        size_t i = 0;
        while (i < n && i < m && p[i] == q[i]) i++;
        return n == m && i == n ? NULL
                                : test_format("%s (%zu bytes) and %s (%zu bytes) differ at byte %zu", a, n, b, m, i);
    }
    size_t n, m;
    const char *const *x = test_list(a, &n), *const *y = test_list(b, &m);
    for (size_t i = 0; i < n || i < m; i++) {
        if (i >= m || (i < n && strcmp(x[i], y[i]) < 0)) return test_format("%s/%s is not in %s", a, x[i], b);
        if (i >= n || strcmp(x[i], y[i]) > 0) return test_format("%s/%s is not in %s", b, y[i], a);
        const char *d = test_tree_difference(test_format("%s/%s", a, x[i]), test_format("%s/%s", b, y[i]));
        if (d) return d;
    }
    return NULL;
}

/* ---- running programs ---- */

static int unlinked_file(void) {
    char path[] = "/tmp/understudy-test-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) fail_msg("no temporary file: %s", strerror(errno));
    unlink(path);
    return fd;
}

/* In the child: only async-signal-safe calls matter less here, as the parent has one thread. */
static void become(const char *const *argv, const test_run_options *o, int out, int err) {
    int in = open(o->input ? o->input : "/dev/null", O_RDONLY);
    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    if (o->folder && chdir(o->folder) != 0) _exit(126);
    for (const char *const *e = o->env; e && *e; e++) putenv((char *)(uintptr_t)*e);
    if (o->file_bytes_max) {
        struct rlimit limit = {o->file_bytes_max, o->file_bytes_max};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    alarm(o->seconds ? o->seconds : 60);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

test_run test_run_program(const char *const *argv, const test_run_options *options) {
    test_run_options none = {0};
    int out = unlinked_file(), err = unlinked_file();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) fail_msg("fork: %s", strerror(errno));
    if (pid == 0) become(argv, options ? options : &none, out, err);
    int status = 0;
    struct rusage usage;
    while (wait4(pid, &status, 0, &usage) < 0)
        if (errno != EINTR) fail_msg("wait4: %s", strerror(errno));
    test_run r = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                  .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
    r.peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
    r.out = read_fd(out, &r.n_out, "standard output");
    r.err = read_fd(err, &r.n_err, "standard error");
    close(out);
    close(err);
    return r;
}

test_run test_understudy_with(const char *const *arguments, const test_run_options *options) {
    size_t n = 0;
    while (arguments[n]) n++;
    const char **argv = (const char **)(void *)keep((n + 2) * sizeof *argv);
    argv[0] = from_environment("US_COMMAND");
    memcpy(argv + 1, arguments, (n + 1) * sizeof *argv);
    return test_run_program(argv, options);
}

test_run test_understudy(const char *const *arguments) {
    return test_understudy_with(arguments, NULL);
}

void test_assert_refused(const test_run *r, int status, const char *cls) {
    const char *end = strchr(r->err, '\n');
    bool one_line = strncmp(r->err, "understudy: ", 12) == 0 && end && end[1] == 0;
    bool named = !cls || strstr(r->err, test_format("[%s]", cls));
    if (r->status != status || !one_line || !named || r->n_out)
        fail_msg("wanted status %d and one line with [%s]; got status %d, signal %d, %zu bytes of output, and: %s",
                 status, cls ? cls : "any", r->status, r->signal, r->n_out, r->err);
}

void test_assert_done(const test_run *r) {
    if (r->status != 0) fail_msg("wanted status 0; got status %d, signal %d, and: %s", r->status, r->signal, r->err);
}

void test_assert_ok(us_status s, const us_err *err, const char *file, int line) {
    if (s == US_OK) return;
    char text[4 * US_ERR_TEXT] = "";
    if (err) us_err_line(err, text, sizeof text);
    fail_msg("%s:%d: %s: %s", file, line, us_status_name(s), text);
}

static bool is_stored_link(const char *name, const char *text, size_t n) {
    if (n == 0 || n > 255) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || strchr("{}\"<>|*?:", text[i])) return false;
    size_t len = strlen(name);
    bool shard = len > 12 && strcmp(name + len - 12, ".safetensors") == 0;
    return shard || !strchr(name, '.') || strncmp(text, "../", 3) == 0;
}

void test_restore_links(const char *folder) {
    const char *const *names = test_list(folder, NULL);
    for (size_t i = 0; names[i]; i++) {
        const char *path = test_format("%s/%s", folder, names[i]);
        struct stat st;
        if (lstat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode)) test_restore_links(path);
        if (!S_ISREG(st.st_mode) || st.st_size > 255) continue;
        size_t n;
        const char *text = test_read(path, &n);
        if (!is_stored_link(names[i], text, n)) continue;
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink(text, path), 0);
    }
}
