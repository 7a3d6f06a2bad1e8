/**
 * Files as this project uses them: read whole with a limit, read ranges, list folders, write atomically.
 *
 * Every path that comes from a checkpoint goes through us_fs_open_beneath, which knows the link rules of
 * fixtures/hostile/README.md. Only regular files are opened (no FIFO, socket, device, folder): class "not-a-file".
 * Tests: tests/unit/test_fs.c.
 */
#ifndef US_IO_FS_H
#define US_IO_FS_H

#include "base/alloc.h"
#include "base/str.h"

/** An open regular file for reading. Zero-initialise; fd 0 with path NULL = closed. */
typedef struct us_file {
    int fd;
    uint64_t size; /* when opened */
    char *path;    /* as given, owned */
} us_file;

us_status us_file_open(const char *path, us_file *out, us_err *err) US_WARN_UNUSED;
void us_file_close(us_file *f);
/** Exactly n bytes at offset; a short file is US_E_FORMAT, class "truncated". Handles EINTR and the 0x7ffff000 limit of one call. */
us_status us_file_read(const us_file *f, uint64_t offset, void *dst, size_t n, us_err *err) US_WARN_UNUSED;
/** Whole file, at most max bytes (class "limit"); *out from us_malloc, NUL-terminated behind the content. */
us_status us_fs_read_all(const char *path, size_t max, char **out, size_t *n, us_err *err) US_WARN_UNUSED;

enum { US_FS_FOLLOW_LINKS = 1 };
/**
 * Open `name` (relative, '/' between components) below folder `root`. The name is checked lexically (class "path": empty, "."
 * or ".." components, absolute, backslash, colon, control characters, components above 255 bytes). Links may end inside root or,
 * when root is .../snapshots/<rev>, in the sibling .../blobs, through every hop and folder (class "link"), unless
 * flags & US_FS_FOLLOW_LINKS.
 */
us_status us_fs_open_beneath(const char *root, us_str name, unsigned flags, us_file *out, us_err *err) US_WARN_UNUSED;

typedef enum us_fs_kind { US_FS_NONE, US_FS_REGULAR, US_FS_FOLDER, US_FS_OTHER } us_fs_kind;
/** What a path leads to, links followed. */
us_fs_kind us_fs_kind_of(const char *path);
bool us_fs_exists(const char *path);

typedef struct us_fs_entry {
    char *name; /* relative to the folder walked, '/' between components */
    us_fs_kind kind;
    bool is_link;
    uint64_t size;
} us_fs_entry;
/** All files below root, recursively, sorted by name in byte order; folders themselves are not listed, linked folders are followed
 *  under the same link rules. Depth and number are limited (class "limit"). `skip` names top-level folders not entered (NULL-terminated, may be NULL). */
us_status us_fs_walk(const char *root, unsigned flags, const char *const *skip, us_arena *arena, us_fs_entry **out, size_t *n,
                     us_err *err) US_WARN_UNUSED;

/** "a/b" joined in the arena; NULL when out of memory. */
char *us_fs_join(us_arena *a, const char *folder, const char *name);
us_status us_fs_mkdirs(const char *path, us_err *err) US_WARN_UNUSED;
/** Remove a tree; refuses to follow links. A path that is not there is fine. */
us_status us_fs_remove_tree(const char *path, us_err *err) US_WARN_UNUSED;
us_status us_fs_rename(const char *from, const char *to, us_err *err) US_WARN_UNUSED;
/** fsync a folder so that renames in it last. */
us_status us_fs_sync_dir(const char *path, us_err *err) US_WARN_UNUSED;
/** Bytes an unprivileged writer may still write on the file system of path. */
us_status us_fs_free_bytes(const char *path, uint64_t *out, us_err *err) US_WARN_UNUSED;
/** Write a whole file: temp file beside it, fsync, rename. */
us_status us_fs_write_atomic(const char *path, us_str bytes, us_err *err) US_WARN_UNUSED;

#endif
