#define _GNU_SOURCE
/** Destinations. Header: target.h. */
#include "proxy/target.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/fs.h"
#include "proxy/manifest.h"

enum { MANIFEST_MAX = 1 << 28 };

/* ---- looking ---- */

/* Absolute path with links resolved as far as it exists. */
static us_status resolve(const char *path, char out[PATH_MAX], us_err *err) {
    char head[PATH_MAX], real[PATH_MAX];
    if (!path[0] || strlen(path) >= sizeof head - 2) return us_fail(err, US_E_INVAL, "path", "a path is empty or too long");
    snprintf(head, sizeof head, "%s%s", path[0] == '/' ? "" : "./", path);
    size_t n = strlen(head);
    while (n > 1 && head[n - 1] == '/') head[--n] = 0;
    char tail[PATH_MAX] = "";
    while (!realpath(head, real)) {
        char *slash = strrchr(head, '/'), more[PATH_MAX];
        if (errno != ENOENT && errno != ENOTDIR) return us_fail_sys(err, errno, "unreadable", "cannot follow the path");
        if (!slash) return us_fail(err, US_E_INVAL, "path", "a path cannot be resolved");
        const char *last = slash + 1;
        if (strcmp(last, "..") == 0 || strlen(last) + strlen(tail) + 2 >= sizeof more) return us_fail(err, US_E_INVAL, "path", "a path cannot be resolved");
        if (strcmp(last, ".") != 0 && *last) {
            snprintf(more, sizeof more, "/%s", last);
            strncat(more, tail, sizeof more - strlen(more) - 1);
            memcpy(tail, more, sizeof tail);
        }
        if (slash == head) snprintf(head, sizeof head, "/");
        else *slash = 0;
    }
    if (snprintf(out, PATH_MAX, "%s%s", strcmp(real, "/") == 0 ? "" : real, tail) >= PATH_MAX) return us_fail(err, US_E_INVAL, "path", "a path is too long");
    return US_OK;
}

static bool inside(const char *inner, const char *outer) {
    size_t n = strlen(outer);
    return strncmp(inner, outer, n) == 0 && (inner[n] == '/' || inner[n] == 0);
}

static us_status refuse_place(us_err *err, const char *what, const char *dst) {
    us_status st = us_fail(err, US_E_REFUSED, "destination", "%s", what);
    us_err_where(err, "%s", dst);
    us_err_todo(err, "name another destination");
    return st;
}

static us_status check_places(const char *src, const char *dst, us_err *err) {
    char s[PATH_MAX], d[PATH_MAX], p[PATH_MAX];
    us_status st = resolve(src, s, err);
    if (st != US_OK) return us_err_where(err, "%s", src), st;
    st = resolve(dst, d, err);
    if (st != US_OK) return us_err_where(err, "%s", dst), st;
    if (snprintf(p, sizeof p, "%s" US_PARTIAL_SUFFIX, d) >= (int)sizeof p) return refuse_place(err, "the destination's path is too long", dst);
    if (strcmp(s, d) == 0) return refuse_place(err, "source and destination are the same", dst);
    if (inside(d, s)) return refuse_place(err, "the destination lies inside the source", dst);
    if (inside(s, d) || inside(s, p)) return refuse_place(err, "the source lies inside the destination", dst);
    return US_OK;
}

/* Files that one manifest names, behind `prefix`; the manifest itself is added by the caller. */
static us_status manifest_files(us_target *t, const char *folder, const char *prefix, char fingerprint[65], us_str **list, size_t *n, size_t *cap,
                                us_err *err) {
    us_buf path = {0};
    us_json_doc doc = {0};
    char *text = NULL;
    size_t len = 0, k = 0;
    us_str *names = NULL;
    us_buf_printf(&path, "%s/" US_MANIFEST_NAME, folder);
    us_buf_text(&path);
    us_status st = us_buf_status(&path, err, "looking at the destination");
    if (st == US_OK && (us_fs_read_all(path.p, MANIFEST_MAX, &text, &len, NULL) != US_OK || us_json_doc_take(&doc, text, len, 0, NULL) != US_OK ||
                        !us_str_eqz(us_json_string(&doc, us_json_get(&doc, 0, "format")), US_MANIFEST_FORMAT)))
        st = us_fail(err, US_E_FORMAT, "manifest", "no manifest of ours");
    if (st == US_OK) {
        us_str f = us_json_string(&doc, us_json_get(&doc, 0, "fingerprint"));
        snprintf(fingerprint, 65, "%.*s", US_STR_ARG(f));
        st = us_manifest_files(&doc, &t->arena, &names, &k, err);
    }
    for (size_t i = 0; i < k && st == US_OK; i++) {
        us_buf full = {0};
        us_buf_z(&full, prefix);
        us_buf_str(&full, names[i]);
        if (!us_grow(list, cap, *n + 1, sizeof **list) || full.failed) st = us_fail_nomem(err, "looking at the destination");
        else {
            (*list)[*n] = (us_str){us_arena_strndup(&t->arena, full.p, full.n), full.n};
            if (!(*list)[(*n)++].p) st = us_fail_nomem(err, "looking at the destination");
        }
        us_buf_free(&full);
    }
    us_json_doc_free(&doc);
    us_buf_free(&path);
    return st;
}

static us_status add_own(us_target *t, us_str **list, size_t *n, size_t *cap, const char *prefix, const char *name, us_err *err) {
    char text[PATH_MAX];
    int len = snprintf(text, sizeof text, "%s%s", prefix, name);
    if (len >= (int)sizeof text || !us_grow(list, cap, *n + 1, sizeof **list)) return us_fail_nomem(err, "looking at the destination");
    (*list)[*n] = (us_str){us_arena_strndup(&t->arena, text, (size_t)len), (size_t)len};
    return (*list)[(*n)++].p ? US_OK : us_fail_nomem(err, "looking at the destination");
}

/* A ladder: {"rungs": ["e64", "e32"]} */
static us_status ladder_files(us_target *t, us_str **list, size_t *n, size_t *cap, bool *ours, us_err *err) {
    us_buf path = {0}, folder = {0}, prefix = {0};
    us_json_doc doc = {0};
    char *text = NULL, ignored[65];
    size_t len = 0;
    *ours = false;
    us_buf_printf(&path, "%s/" US_LADDER_NAME, t->dst);
    us_buf_text(&path);
    us_status st = us_buf_status(&path, err, "looking at the destination");
    if (st != US_OK || !us_fs_exists(path.p) || us_fs_read_all(path.p, MANIFEST_MAX, &text, &len, NULL) != US_OK ||
        us_json_doc_take(&doc, text, len, 0, NULL) != US_OK)
        goto done;
    us_json_ref rungs = us_json_get(&doc, 0, "rungs");
    us_str f = us_json_string(&doc, us_json_get(&doc, 0, "fingerprint"));
    *ours = us_json_type_of(&doc, rungs) == US_JSON_ARRAY && us_str_eqz(us_json_string(&doc, us_json_get(&doc, 0, "format")), "understudy-ladder");
    if (!*ours) goto done;
    snprintf(t->fingerprint, sizeof t->fingerprint, "%.*s", US_STR_ARG(f));
    for (us_json_ref r = us_json_first(&doc, rungs); r != US_JSON_NO && st == US_OK; r = us_json_next(&doc, rungs, r)) {
        us_str name = us_json_string(&doc, r);
        if (!name.n || us_str_find(name, '/', 0) < name.n || us_str_eqz(name, "..") || us_str_eqz(name, ".")) continue;
        us_buf_clear(&folder);
        us_buf_clear(&prefix);
        us_buf_printf(&folder, "%s/%.*s", t->dst, US_STR_ARG(name));
        us_buf_printf(&prefix, "%.*s/", US_STR_ARG(name));
        if (manifest_files(t, us_buf_text(&folder), us_buf_text(&prefix), ignored, list, n, cap, NULL) != US_OK) continue; /* that rung is foreign */
        st = add_own(t, list, n, cap, us_buf_text(&prefix), US_MANIFEST_NAME, err);
    }
    if (st == US_OK) st = add_own(t, list, n, cap, "", US_LADDER_NAME, err);
done:
    us_json_doc_free(&doc);
    us_buf_free(&path);
    us_buf_free(&folder);
    us_buf_free(&prefix);
    return st;
}

static us_status look(us_target *t, us_err *err) {
    us_fs_entry *e = NULL;
    size_t n = 0, cap = 0;
    bool ours = false;
    us_fs_kind kind = us_fs_kind_of(t->dst);
    t->kind = US_TARGET_NONE;
    if (kind == US_FS_NONE) return US_OK;
    if (kind != US_FS_FOLDER) return refuse_place(err, "the destination is no folder", t->dst);
    us_arena scratch = {0};
    us_status st = us_fs_walk(t->dst, US_FS_FOLLOW_LINKS, NULL, &scratch, &e, &n, err);
    us_arena_free(&scratch);
    if (st != US_OK || !n) return st;
    t->kind = US_TARGET_FOREIGN;
    US_TRY(ladder_files(t, &t->ours, &t->n_ours, &cap, &ours, err));
    if (!ours && manifest_files(t, t->dst, "", t->fingerprint, &t->ours, &t->n_ours, &cap, NULL) == US_OK) {
        ours = true;
        US_TRY(add_own(t, &t->ours, &t->n_ours, &cap, "", US_MANIFEST_NAME, err));
    }
    if (ours) t->kind = US_TARGET_OURS;
    return US_OK;
}

us_status us_target_open(const char *src, const char *dst, us_target *out, us_err *err) {
    us_target t = {.lock = -1};
    US_TRY(check_places(src, dst, err));
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/') n--;
    char partial[PATH_MAX];
    snprintf(partial, sizeof partial, "%.*s" US_PARTIAL_SUFFIX, (int)n, dst);
    t.dst = us_arena_strndup(&t.arena, dst, n);
    t.partial = us_arena_strndup(&t.arena, partial, strlen(partial));
    us_status st = t.dst && t.partial ? US_OK : us_fail_nomem(err, "looking at the destination");
    if (st == US_OK) {
        t.out = us_fs_join(&t.arena, t.partial, "out");
        t.done = us_fs_join(&t.arena, t.partial, "done");
        t.state = us_fs_join(&t.arena, t.partial, "state.json");
        if (!t.out || !t.done || !t.state) st = us_fail_nomem(err, "looking at the destination");
    }
    if (st == US_OK) st = look(&t, err);
    t.partial_exists = st == US_OK && us_fs_kind_of(t.partial) != US_FS_NONE;
    if (st != US_OK) us_target_close(&t);
    else *out = t;
    return st;
}

void us_target_close(us_target *t) {
    if (t->lock >= 0) (void)close(t->lock);
    us_free(t->ours);
    us_arena_free(&t->arena);
    *t = (us_target){.lock = -1};
}

us_status us_target_check(const us_target *t, bool force, us_err *err) {
    if (t->kind == US_TARGET_NONE || force) return US_OK;
    us_status st = us_fail(err, US_E_REFUSED, "exists", t->kind == US_TARGET_OURS ? "the destination holds a finished proxy" : "the destination is not empty");
    us_err_where(err, "%s", t->dst);
    us_err_todo(err, "name another destination, or --force, which deletes only what this tool wrote");
    return st;
}

/* ---- the work folder ---- */

static bool read_fingerprint(const char *path, char out[65]) {
    char *text = NULL;
    size_t n = 0;
    us_json_doc d = {0};
    out[0] = 0;
    if (us_fs_read_all(path, 4096, &text, &n, NULL) != US_OK) return false;
    if (us_json_doc_take(&d, text, n, 0, NULL) != US_OK) return false;
    us_str f = us_json_string(&d, us_json_get(&d, 0, "fingerprint"));
    snprintf(out, 65, "%.*s", US_STR_ARG(f));
    us_json_doc_free(&d);
    return out[0] != 0;
}

bool us_target_finished(const us_target *t, const char *fingerprint) {
    char have[65];
    if (!t->partial_exists || t->kind != US_TARGET_OURS || strcmp(t->fingerprint, fingerprint) != 0 || us_fs_kind_of(t->out) != US_FS_NONE) return false;
    if (read_fingerprint(t->state, have)) return strcmp(have, fingerprint) == 0;
    us_arena a = {0}; /* the state goes last but the folder itself */
    us_fs_entry *e = NULL;
    size_t n = 0;
    bool empty = us_fs_walk(t->partial, 0, NULL, &a, &e, &n, NULL) == US_OK && n == 0;
    us_arena_free(&a);
    return empty;
}

static us_status take_lock(us_target *t, us_err *err) {
    t->lock = open(t->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    us_status st = US_OK;
    if (t->lock < 0) st = us_fail_sys(err, errno, "unwritable", "cannot open the work folder");
    else if (flock(t->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        st = us_fail(err, US_E_REFUSED, "busy", "another process works there");
        us_err_todo(err, "wait for it to end");
    }
    if (st != US_OK) us_err_where(err, "%s", t->partial);
    return st;
}

/* Is the folder without a state empty, or did the run that made it die before the state was there? */
static us_status check_fresh(const us_target *t, us_err *err) {
    us_arena a = {0};
    us_fs_entry *e = NULL;
    size_t n = 0;
    us_status st = us_fs_walk(t->partial, 0, NULL, &a, &e, &n, err);
    for (size_t i = 0; i < n && st == US_OK; i++) {
        if (strncmp(e[i].name, "state.json", 10) == 0) continue;
        st = us_fail(err, US_E_REFUSED, "partial", "the work folder holds files that this tool did not write");
        us_err_where(err, "%s", t->partial);
        us_err_todo(err, "move them away");
    }
    us_arena_free(&a);
    return st;
}

static us_status write_state(const us_target *t, const char *fingerprint, us_err *err) {
    us_buf b = {0};
    us_buf_printf(&b, "{\"tool\": \"understudy %s\", \"fingerprint\": \"%s\"}\n", US_VERSION, fingerprint);
    us_status st = us_buf_status(&b, err, "beginning");
    if (st == US_OK) st = us_fs_write_atomic(t->state, us_buf_view(&b), err);
    us_buf_free(&b);
    return st;
}

us_status us_target_begin(us_target *t, const char *fingerprint, bool force, us_err *err) {
    char have[65];
    US_TRY(us_fs_mkdirs(t->partial, err));
    US_TRY(take_lock(t, err));
    bool stated = read_fingerprint(t->state, have);
    if (stated && strcmp(have, fingerprint) != 0) {
        if (!force) {
            us_status st = us_fail(err, US_E_REFUSED, "partial", "an interrupted run with other arguments, or of another source, stands there");
            us_err_where(err, "%s", t->partial);
            us_err_todo(err, "run that command again, remove the folder, or --force");
            return st;
        }
        US_TRY(us_fs_remove_tree(t->out, err));
        US_TRY(us_fs_remove_tree(t->done, err));
        stated = false;
    }
    if (!stated) {
        if (!have[0]) US_TRY(check_fresh(t, err));
        US_TRY(write_state(t, fingerprint, err));
    }
    US_TRY(us_fs_mkdirs(t->out, err));
    return us_fs_mkdirs(t->done, err);
}

void us_target_clean(us_target *t) {
    (void)!us_fs_remove_tree(t->done, NULL);
    (void)!us_fs_remove_tree(t->out, NULL);
    (void)!us_fs_remove_tree(t->partial, NULL);
}

/* ---- putting it in its place ---- */

/* Join without links in between: a component of ours that has become a link is not followed. */
static bool safe_below(const char *root, us_str name, char out[PATH_MAX]) {
    struct stat s;
    if (!name.n || name.p[0] == '/' || name.n + strlen(root) + 2 > PATH_MAX) return false;
    for (size_t from = 0; from <= name.n;) {
        size_t end = us_str_find(name, '/', from);
        us_str c = us_str_sub(name, from, end);
        if (!c.n || us_str_eqz(c, ".") || us_str_eqz(c, "..")) return false;
        snprintf(out, PATH_MAX, "%s/%.*s", root, (int)end, name.p);
        if (end < name.n && (lstat(out, &s) != 0 || !S_ISDIR(s.st_mode))) return false;
        from = end + 1;
    }
    return true;
}

/* Folders that became empty go too, inside out, up to root. */
static void remove_empty_parents(const char *root, const char *path) {
    char p[PATH_MAX];
    snprintf(p, sizeof p, "%s", path);
    for (char *slash = strrchr(p, '/'); slash && (size_t)(slash - p) > strlen(root); slash = strrchr(p, '/')) {
        *slash = 0;
        if (rmdir(p) != 0) return;
    }
}

static us_status delete_ours(const us_target *t, us_err *err) {
    for (size_t i = 0; i < t->n_ours; i++) {
        char path[PATH_MAX];
        if (!safe_below(t->dst, t->ours[i], path)) continue;
        if (unlink(path) != 0 && errno != ENOENT) {
            us_status st = us_fail_sys(err, errno, "unwritable", "cannot delete the file");
            us_err_where(err, "%s", path);
            return st;
        }
        remove_empty_parents(t->dst, path);
    }
    return US_OK;
}

static us_status sweep(const us_target *t, bool (*belongs)(void *, us_str), void *user, us_arena *a, us_fs_entry **e, size_t *n, us_err *err) {
    US_TRY(us_fs_walk(t->out, 0, NULL, a, e, n, err));
    size_t k = 0;
    for (size_t i = 0; i < *n; i++) {
        char path[PATH_MAX];
        if (belongs(user, us_str_z((*e)[i].name))) {
            (*e)[k++] = (*e)[i];
            continue;
        }
        if (!safe_below(t->out, us_str_z((*e)[i].name), path)) continue;
        if (unlink(path) != 0) return us_fail_sys(err, errno, "unwritable", "cannot delete a file that a killed run left");
        remove_empty_parents(t->out, path);
    }
    *n = k;
    return US_OK;
}

/* Beside foreign files: one file after the other, manifests last, none of theirs is touched. */
static us_status move_files(const us_target *t, const us_fs_entry *e, size_t n, us_err *err) {
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            char to[PATH_MAX], from[PATH_MAX];
            bool manifest = us_str_ends(us_str_z(e[i].name), US_LIT("understudy.json")) || us_str_ends(us_str_z(e[i].name), US_LIT(US_LADDER_NAME));
            if (manifest != (pass == 1)) continue;
            if (snprintf(to, sizeof to, "%s/%s", t->dst, e[i].name) >= (int)sizeof to || snprintf(from, sizeof from, "%s/%s", t->out, e[i].name) >= (int)sizeof from)
                return us_fail(err, US_E_INVAL, "path", "a path is too long");
            char *slash = strrchr(to, '/');
            *slash = 0;
            US_TRY(us_fs_mkdirs(to, err));
            *slash = '/';
            US_TRY(us_fs_rename(from, to, err));
        }
    }
    return US_OK;
}

static us_status check_clash(const us_target *t, const us_fs_entry *e, size_t n, us_err *err) {
    for (size_t i = 0; i < n; i++) {
        char to[PATH_MAX];
        struct stat s;
        if (snprintf(to, sizeof to, "%s/%s", t->dst, e[i].name) >= (int)sizeof to || lstat(to, &s) != 0) continue;
        bool ours = false;
        for (size_t k = 0; k < t->n_ours && !ours; k++) ours = us_str_eqz(t->ours[k], e[i].name);
        if (ours) continue;
        us_status st = us_fail(err, US_E_REFUSED, "exists", "the file would be replaced, and this tool did not write it");
        us_err_where(err, "%s", to);
        us_err_todo(err, "move it away, or name another destination; the work done so far is kept");
        return st;
    }
    return US_OK;
}

us_status us_target_finish(us_target *t, bool (*belongs)(void *, us_str), void *user, us_err *err) {
    us_arena a = {0};
    us_fs_entry *e = NULL;
    size_t n = 0;
    us_status st = sweep(t, belongs, user, &a, &e, &n, err);
    if (st == US_OK) st = check_clash(t, e, n, err);
    if (st == US_OK) st = us_fs_sync_dir(t->out, err);
    if (st == US_OK) st = delete_ours(t, err);
    if (st == US_OK) {
        (void)rmdir(t->dst); /* an empty folder gives way; one with foreign files stays */
        if (us_fs_kind_of(t->dst) == US_FS_FOLDER) st = move_files(t, e, n, err);
        else st = us_fs_rename(t->out, t->dst, err);
    }
    us_arena_free(&a);
    if (st == US_OK) {
        char parent[PATH_MAX];
        snprintf(parent, sizeof parent, "%s", t->dst);
        char *slash = strrchr(parent, '/');
        if (slash && slash != parent) *slash = 0;
        st = us_fs_sync_dir(slash ? (slash == parent ? "/" : parent) : ".", err);
    }
    if (st == US_OK) us_target_clean(t);
    return st;
}
