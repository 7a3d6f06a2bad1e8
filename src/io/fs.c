/* Files: whole and by range, link rules, folder walks, atomic writes. See fs.h. Tests: tests/unit/test_fs.c. */
#define _GNU_SOURCE
#include "io/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { READ_MAX = 0x7ffff000, LINKS_MAX = 40, WALK_DEPTH = 32, WALK_FILES = 1000000, COMPONENT_MAX = 255 };

/* ---- reading ---- */

us_status us_file_open(const char *path, us_file *out, us_err *err) {
    /* Looked at first: opening a device may do something, a socket cannot be opened at all. */
    us_fs_kind kind = us_fs_kind_of(path);
    if (kind == US_FS_OTHER || kind == US_FS_FOLDER) {
        us_fail(err, US_E_FORMAT, "not-a-file", "not a regular file");
        us_err_where(err, "%s", path);
        return US_E_FORMAT;
    }
    /* O_NONBLOCK: should it have become a FIFO meanwhile, opening must not hang; it has no effect on regular files. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        us_fail_sys(err, errno, "unreadable", "cannot open the file");
        us_err_where(err, "%s", path);
        return US_E_IO;
    }
    struct stat st;
    us_status s = US_OK;
    if (fstat(fd, &st) != 0) s = us_fail_sys(err, errno, "unreadable", "cannot read the file's size");
    else if (!S_ISREG(st.st_mode)) s = us_fail(err, US_E_FORMAT, "not-a-file", "not a regular file");
    char *copy = s == US_OK ? us_strdup(path) : NULL;
    if (s == US_OK && !copy) s = us_fail_nomem(err, "opening a file");
    if (s != US_OK) {
        close(fd);
        us_err_where(err, "%s", path);
        return s;
    }
    *out = (us_file){fd, (uint64_t)st.st_size, copy};
    return US_OK;
}

void us_file_close(us_file *f) {
    if (f->path) close(f->fd);
    us_free(f->path);
    *f = (us_file){0};
}

us_status us_file_read(const us_file *f, uint64_t offset, void *dst, size_t n, us_err *err) {
    char *p = dst;
    while (n > 0) {
        ssize_t got = offset > INT64_MAX ? 0 : pread(f->fd, p, n < READ_MAX ? n : READ_MAX, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (got < 0) us_fail_sys(err, errno, "unreadable", "reading failed");
            else us_fail(err, US_E_FORMAT, "truncated", "the file ends %zu bytes too early", n);
            us_err_where(err, "%s, byte %llu", f->path, (unsigned long long)offset);
            return got < 0 ? US_E_IO : US_E_FORMAT;
        }
        p += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return US_OK;
}

us_status us_fs_read_all(const char *path, size_t max, char **out, size_t *n, us_err *err) {
    us_file f = {0};
    US_TRY(us_file_open(path, &f, err));
    us_status s = US_OK;
    char *text = NULL;
    if (f.size > max) {
        s = us_fail(err, US_E_LIMIT, "limit", "the file has %llu bytes, at most %zu are read", (unsigned long long)f.size, max);
        us_err_where(err, "%s", path);
    } else if (!(text = us_malloc_large((size_t)f.size + 1, false))) {
        s = us_fail_nomem(err, "reading a file");
    } else {
        s = us_file_read(&f, 0, text, (size_t)f.size, err);
    }
    if (s == US_OK) {
        text[f.size] = 0;
        *out = text;
        *n = (size_t)f.size;
    } else {
        us_free(text);
    }
    us_file_close(&f);
    return s;
}

/* ---- names and links ---- */

static const char *name_fault(us_str name) {
    if (name.n == 0) return "it is empty";
    if (name.p[0] == '/') return "it is absolute";
    for (size_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        bool c1 = c == 0xc2 && i + 1 < name.n && (unsigned char)name.p[i + 1] < 0xa0; /* U+0080 to U+009F */
        if (c < 0x20 || c == 0x7f || c1) return "it has a control character";
        if (c == '\\') return "it has a backslash";
        if (c == ':') return "it has a colon";
    }
    for (size_t at = 0; at <= name.n;) {
        size_t end = us_str_find(name, '/', at);
        us_str c = us_str_sub(name, at, end);
        if (c.n == 0) return "it has an empty component";
        if (us_str_eqz(c, ".") || us_str_eqz(c, "..")) return "it has a component \".\" or \"..\"";
        if (c.n > COMPONENT_MAX) return "it has a component of more than 255 bytes";
        at = end + 1;
    }
    return NULL;
}

/* The folders a name may lead into: the root itself, and blobs beside snapshots. All canonical, without a trailing slash. */
typedef struct roots {
    char root[PATH_MAX], blobs[PATH_MAX];
} roots;

static us_status find_roots(const char *root, roots *r, us_err *err) {
    if (!realpath(root, r->root)) {
        us_fail_sys(err, errno, "unreadable", "cannot open the folder");
        us_err_where(err, "%s", root);
        return US_E_IO;
    }
    r->blobs[0] = 0;
    char up[PATH_MAX];
    struct stat st;
    snprintf(up, sizeof up, "%s", r->root);
    char *slash = strrchr(up, '/');
    if (!slash) return US_OK;
    *slash = 0;
    slash = strrchr(up, '/');
    if (!slash || strcmp(slash, "/snapshots") != 0) return US_OK;
    *slash = 0;
    if (snprintf(r->blobs, sizeof r->blobs, "%s/blobs", up) >= (int)sizeof r->blobs || lstat(r->blobs, &st) != 0 || !S_ISDIR(st.st_mode)) r->blobs[0] = 0;
    return US_OK;
}

/* The part of path below folder, or NULL when it is not below it. "" when equal. */
static const char *below(const char *path, const char *folder) {
    size_t n = strlen(folder);
    if (n == 0 || strncmp(path, folder, n) != 0) return NULL;
    return path[n] == '/' ? path + n + 1 : path[n] == 0 ? path + n : NULL;
}

/* Resolve "." and ".." as text; the result is absolute. false when too long. */
static bool normalise(const char *folder, const char *target, char out[PATH_MAX]) {
    char joined[PATH_MAX * 2];
    int n = snprintf(joined, sizeof joined, "%s/%s", target[0] == '/' ? "" : folder, target);
    if (n < 0 || n >= (int)sizeof joined) return false;
    size_t o = 0;
    for (char *save = NULL, *c = strtok_r(joined, "/", &save); c; c = strtok_r(NULL, "/", &save)) {
        if (strcmp(c, ".") == 0) continue;
        if (strcmp(c, "..") == 0) {
            while (o > 0 && out[--o] != '/') {
            }
            continue;
        }
        size_t len = strlen(c);
        if (o + len + 2 > PATH_MAX) return false;
        out[o++] = '/';
        memcpy(out + o, c, len);
        o += len;
    }
    out[o] = 0;
    return true;
}

static us_status link_fault(us_err *err, const char *cls, const char *path, const char *why) {
    us_fail(err, US_E_FORMAT, cls, "%s", why);
    us_err_where(err, "%s", path);
    if (strcmp(cls, "link") == 0) us_err_todo(err, "copy the file into the folder, or allow it with --follow-links");
    return US_E_FORMAT;
}

/*
 * Walk `rest` below `cur` component by component; every link on the way must lead into one of the roots (hop by hop). out gets the final path, which
 * is no link.
 */
static us_status resolve(const roots *r, const char *rest_of_name, char out[PATH_MAX], us_err *err) {
    char rest[PATH_MAX * 2], target[PATH_MAX], norm[PATH_MAX];
    snprintf(rest, sizeof rest, "%s", rest_of_name);
    snprintf(out, PATH_MAX, "%s", r->root);
    int links = 0;
    while (rest[0]) {
        size_t n = strcspn(rest, "/"), at = strlen(out);
        if (at + n + 2 > PATH_MAX) return link_fault(err, "path", out, "the path is too long");
        out[at] = '/';
        memcpy(out + at + 1, rest, n);
        out[at + 1 + n] = 0;
        memmove(rest, rest + n + (rest[n] == '/'), strlen(rest + n + (rest[n] == '/')) + 1);
        struct stat st;
        if (lstat(out, &st) != 0) {
            bool gone = errno == ENOENT || errno == ENOTDIR;
            us_fail_sys(err, errno, gone ? (links ? "link" : "missing") : "unreadable", links ? "the link leads to nothing" : "cannot open the file");
            us_err_where(err, "%s", links ? rest_of_name : out);
            return US_E_IO;
        }
        if (!S_ISLNK(st.st_mode)) continue;
        if (++links > LINKS_MAX) return link_fault(err, "link", out, "the links go in a circle");
        ssize_t len = readlink(out, target, sizeof target - 1);
        if (len < 0) return us_fail_sys(err, errno, "unreadable", "cannot read the link \"%s\"", out);
        target[len] = 0;
        char link[PATH_MAX];
        memcpy(link, out, strlen(out) + 1);
        out[at] = 0;
        if (!normalise(out, target, norm)) return link_fault(err, "link", out, "the link's target is too long");
        const char *in_root = below(norm, r->root), *in_blobs = r->blobs[0] ? below(norm, r->blobs) : NULL;
        if (!in_root && !in_blobs) {
            us_fail(err, US_E_FORMAT, "link", "the link leads out of the folder, to \"%s\"", norm);
            us_err_where(err, "%s", link);
            us_err_todo(err, "copy the file into the folder, or allow it with --follow-links");
            return US_E_FORMAT;
        }
        size_t old = strlen(rest), pre = strlen(in_root ? in_root : in_blobs);
        if (old + pre + 2 > sizeof rest) return link_fault(err, "link", out, "the path is too long");
        memmove(rest + pre + (old > 0), rest, old + 1);
        memcpy(rest, in_root ? in_root : in_blobs, pre);
        if (old > 0) rest[pre] = '/';
        snprintf(out, PATH_MAX, "%s", in_root ? r->root : r->blobs);
    }
    return US_OK;
}

us_status us_fs_open_beneath(const char *root, us_str name, unsigned flags, us_file *out, us_err *err) {
    const char *fault = name_fault(name);
    if (fault) {
        us_fail(err, US_E_FORMAT, "path", "a file name cannot be used: %s", fault);
        us_err_where(err, "%.*s", US_STR_ARG(name));
        return US_E_FORMAT;
    }
    char path[PATH_MAX], text[PATH_MAX];
    if (name.n + strlen(root) + 2 > sizeof path) return us_fail(err, US_E_FORMAT, "path", "a file name is too long");
    memcpy(text, name.p, name.n);
    text[name.n] = 0;
    if (flags & US_FS_FOLLOW_LINKS) {
        us_buf joined = {0};
        us_buf_printf(&joined, "%s/%s", root, text);
        us_status s = us_buf_status(&joined, err, "opening a file");
        if (s == US_OK) s = us_file_open(us_buf_text(&joined), out, err);
        us_buf_free(&joined);
        return s;
    } else {
        roots r;
        US_TRY(find_roots(root, &r, err));
        US_TRY(resolve(&r, text, path, err));
        return us_file_open(path, out, err);
    }
}

us_fs_kind us_fs_kind_of(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return US_FS_NONE;
    return S_ISREG(st.st_mode) ? US_FS_REGULAR : S_ISDIR(st.st_mode) ? US_FS_FOLDER : US_FS_OTHER;
}

bool us_fs_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

char *us_fs_join(us_arena *a, const char *folder, const char *name) {
    size_t n = strlen(folder), m = strlen(name);
    char *p = us_arena_alloc(a, n + m + 2);
    if (!p) return NULL;
    memcpy(p, folder, n);
    if (n > 0 && folder[n - 1] != '/') p[n++] = '/';
    memcpy(p + n, name, m + 1);
    return p;
}

/* ---- walking ---- */

typedef struct walk {
    const char *root;
    const roots *r;
    unsigned flags;
    const char *const *skip;
    us_arena *arena;
    us_fs_entry *list;
    size_t n, cap;
    us_err *err;
} walk;

static bool skipped(const walk *w, const char *name) {
    for (const char *const *s = w->skip; s && *s; s++)
        if (strcmp(*s, name) == 0) return true;
    return false;
}

static us_status walk_folder(walk *w, const char *rel, int depth);

static us_status visit(walk *w, const char *rel, const char *name, int depth) {
    char path[PATH_MAX], child[PATH_MAX];
    struct stat st, lst;
    if (snprintf(child, sizeof child, "%s%s%s", rel, rel[0] ? "/" : "", name) >= (int)sizeof child ||
        snprintf(path, sizeof path, "%s/%s", w->root, child) >= (int)sizeof path)
        return us_fail(w->err, US_E_LIMIT, "limit", "a path below the folder is too long");
    if (lstat(path, &lst) != 0) return us_fail_sys(w->err, errno, "unreadable", "cannot look at \"%s\"", path);
    bool link = S_ISLNK(lst.st_mode);
    if (link && !(w->flags & US_FS_FOLLOW_LINKS)) US_TRY(resolve(w->r, child, path, w->err));
    if (stat(path, &st) != 0) {
        us_fail_sys(w->err, errno, "link", "cannot look at what the link leads to");
        us_err_where(w->err, "%s", child);
        return US_E_IO;
    }
    if (S_ISDIR(st.st_mode)) return walk_folder(w, child, depth + 1);
    if (w->n >= WALK_FILES) return us_fail(w->err, US_E_LIMIT, "limit", "more than %d files below the folder", WALK_FILES);
    if (!us_grow(&w->list, &w->cap, w->n + 1, sizeof *w->list)) return us_fail_nomem(w->err, "listing a folder");
    char *copy = us_arena_strndup(w->arena, child, strlen(child));
    if (!copy) return us_fail_nomem(w->err, "listing a folder");
    w->list[w->n++] = (us_fs_entry){copy, S_ISREG(st.st_mode) ? US_FS_REGULAR : US_FS_OTHER, link, (uint64_t)st.st_size};
    return US_OK;
}

static us_status walk_folder(walk *w, const char *rel, int depth) {
    char path[PATH_MAX];
    if (depth > WALK_DEPTH) return us_fail(w->err, US_E_LIMIT, "limit", "folders are nested more than %d deep", WALK_DEPTH);
    if (snprintf(path, sizeof path, "%s%s%s", w->root, rel[0] ? "/" : "", rel) >= (int)sizeof path)
        return us_fail(w->err, US_E_LIMIT, "limit", "a path below the folder is too long");
    DIR *d = opendir(path);
    if (!d) {
        us_fail_sys(w->err, errno, "unreadable", "cannot list the folder");
        us_err_where(w->err, "%s", path);
        return US_E_IO;
    }
    us_status s = US_OK;
    for (struct dirent *e; s == US_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (depth == 0 && skipped(w, e->d_name)) continue;
        s = visit(w, rel, e->d_name, depth);
    }
    closedir(d);
    return s;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const us_fs_entry *)a)->name, ((const us_fs_entry *)b)->name);
}

us_status us_fs_walk(const char *root, unsigned flags, const char *const *skip, us_arena *arena, us_fs_entry **out, size_t *n, us_err *err) {
    roots r;
    US_TRY(find_roots(root, &r, err));
    walk w = {root, &r, flags, skip, arena, NULL, 0, 0, err};
    us_status s = walk_folder(&w, "", 0);
    us_fs_entry *list = NULL;
    if (s == US_OK) {
        if (w.n > 0) qsort(w.list, w.n, sizeof *w.list, by_name);
        list = us_arena_alloc(arena, (w.n + 1) * sizeof *list);
        if (!list) s = us_fail_nomem(err, "listing a folder");
        else if (w.n > 0) memcpy(list, w.list, w.n * sizeof *list);
    }
    us_free(w.list);
    if (s != US_OK) return s;
    *out = list;
    *n = w.n;
    return US_OK;
}

/* ---- writing ---- */

us_status us_fs_mkdirs(const char *path, us_err *err) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof part) return us_fail(err, US_E_INVAL, "path", "a path is too long");
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            int sys = errno;
            if (us_fs_kind_of(part) == US_FS_FOLDER) continue; /* e.g. EROFS on an existing parent */
            us_fail_sys(err, sys, "unwritable", "cannot make the folder");
            us_err_where(err, "%s", part);
            return US_E_IO;
        }
    }
    if (us_fs_kind_of(path) == US_FS_FOLDER) return US_OK;
    us_fail(err, US_E_IO, "unwritable", "there is something that is no folder");
    return us_err_where(err, "%s", path), US_E_IO;
}

static us_status remove_at(int dir, const char *name, int depth, us_err *err) {
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT) return US_OK;
    if (errno != EISDIR && errno != EPERM) return us_fail_sys(err, errno, "unwritable", "cannot remove \"%s\"", name);
    if (depth > WALK_DEPTH) return us_fail(err, US_E_LIMIT, "limit", "folders are nested more than %d deep", WALK_DEPTH);
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return us_fail_sys(err, errno, "unwritable", "cannot remove \"%s\"", name);
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return us_fail_nomem(err, "removing a folder");
    }
    us_status s = US_OK;
    for (struct dirent *e; s == US_OK && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) s = remove_at(fd, e->d_name, depth + 1, err);
    closedir(d);
    if (s == US_OK && unlinkat(dir, name, AT_REMOVEDIR) != 0) s = us_fail_sys(err, errno, "unwritable", "cannot remove the folder \"%s\"", name);
    return s;
}

us_status us_fs_remove_tree(const char *path, us_err *err) {
    us_status s = remove_at(AT_FDCWD, path, 0, err);
    if (s != US_OK) us_err_where(err, "%s", path);
    return s;
}

us_status us_fs_rename(const char *from, const char *to, us_err *err) {
    if (rename(from, to) == 0) return US_OK;
    us_fail_sys(err, errno, "unwritable", "cannot rename \"%s\"", from);
    us_err_where(err, "%s", to);
    return US_E_IO;
}

us_status us_fs_sync_dir(const char *path, us_err *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int sys = fd < 0 ? errno : 0;
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL && errno != EROFS) sys = errno;
    if (fd >= 0) close(fd);
    if (!sys) return US_OK;
    us_fail_sys(err, sys, "unwritable", "cannot sync the folder");
    us_err_where(err, "%s", path);
    return US_E_IO;
}

us_status us_fs_free_bytes(const char *path, uint64_t *out, us_err *err) {
    struct statvfs v;
    if (statvfs(path, &v) != 0) {
        us_fail_sys(err, errno, "unreadable", "cannot tell the free space");
        us_err_where(err, "%s", path);
        return US_E_IO;
    }
    *out = (uint64_t)v.f_bavail * (uint64_t)v.f_frsize;
    return US_OK;
}

static us_status write_all(int fd, us_str bytes, us_err *err) {
    for (size_t at = 0; at < bytes.n;) {
        size_t k = bytes.n - at;
        ssize_t put = write(fd, bytes.p + at, k < READ_MAX ? k : READ_MAX);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return us_fail_sys(err, put < 0 ? errno : ENOSPC, "unwritable", "writing failed");
        at += (size_t)put;
    }
    return fsync(fd) == 0 ? US_OK : us_fail_sys(err, errno, "unwritable", "writing failed");
}

us_status us_fs_write_atomic(const char *path, us_str bytes, us_err *err) {
    char temp[PATH_MAX], folder[PATH_MAX];
    if (snprintf(temp, sizeof temp, "%s.understudy-%ld", path, (long)getpid()) >= (int)sizeof temp) return us_fail(err, US_E_INVAL, "path", "a path is too long");
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    us_status s = fd < 0 ? us_fail_sys(err, errno, "unwritable", "cannot write the file") : write_all(fd, bytes, err);
    if (fd >= 0 && close(fd) != 0 && s == US_OK) s = us_fail_sys(err, errno, "unwritable", "writing failed");
    if (s == US_OK && rename(temp, path) != 0) s = us_fail_sys(err, errno, "unwritable", "cannot put the file in its place");
    if (s != US_OK) {
        if (fd >= 0) unlink(temp);
        us_err_where(err, "%s", path);
        return s;
    }
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash && slash != folder) *slash = 0;
    return us_fs_sync_dir(slash ? (slash == folder ? "/" : folder) : ".", err);
}
