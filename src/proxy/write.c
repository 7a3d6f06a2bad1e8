#define _GNU_SOURCE
/** Carrying out a plan. Header: write.h. */
#include "proxy/write.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/sha256.h"

enum { PAGE = 4096, DIRECT_MIN = 1 << 20, BUFFER_MAX = 4 << 20, BUFFER_MIN = 256 << 10, BUFFERS_TOTAL = 256 << 20 };

us_status us_hashes_create(const us_plan *p, us_hashes *out, us_err *err) {
    us_hashes h = {.n_tensors = p->n_tensors, .n_files = p->s->ck->n_others};
    h.tensor = us_calloc(h.n_tensors ? h.n_tensors : 1, sizeof *h.tensor);
    h.file = us_calloc(h.n_files ? h.n_files : 1, sizeof *h.file);
    if (!h.tensor || !h.file) {
        us_hashes_free(&h);
        return us_fail_nomem(err, "hashing tensors");
    }
    *out = h;
    return US_OK;
}

void us_hashes_free(us_hashes *h) {
    us_free(h->tensor);
    us_free(h->file);
    *h = (us_hashes){0};
}

/* ---- one shard, its tensors in parallel ---- */

typedef struct worker {
    us_stream stream;
    us_sha256 *sha;
    uint64_t at;      /* place in the file of the next bytes */
    us_err err;
    int64_t failed;   /* number of the tensor in the shard, or -1 */
} worker;

/* The end of a shard, while the next one is being written: waiting for the disk costs no time of the copy. */
typedef struct finishing {
    pthread_t thread;
    bool running;
    int fd;
    uint64_t length;
    us_buf folder, record, name;
    const char *fingerprint;
    char (*hex)[65];
    size_t n;
    us_status st;
    us_err err;
} finishing;

typedef struct shard_job {
    us_ctx *ctx;
    const us_plan *p;
    const us_plan_shard *shard;
    int fd;               /* written; -1: nothing is written, the shard is only read back */
    int direct;           /* the same file past the page cache, or -1 */
    const us_file *back;  /* the shard that is read back, or NULL */
    uint64_t data_start;
    char (*hex)[65];      /* of the shard's tensors */
    us_pool *pool;        /* twice as many threads as the job has: half of them wait for the disk */
    worker *workers;
    int n_workers;
    atomic_bool stop;
    finishing last;       /* the shard before this one */
} shard_job;

static us_status no_space(us_err *err, int sys) {
    us_status st = us_fail_sys(err, sys, sys == ENOSPC || sys == EFBIG || sys == EDQUOT ? "no-space" : "unwritable", "writing failed");
    us_err_todo(err, "make room, then run the same command again: it goes on where it stopped");
    return st;
}

static us_status write_at(int fd, uint64_t at, const unsigned char *p, size_t n, us_err *err) {
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            return no_space(err, k < 0 ? errno : EIO);
        }
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return US_OK;
}

typedef struct sink_arg {
    shard_job *job;
    worker *w;
} sink_arg;

/*
 * Large pieces go past the page cache: the bytes are not read again here, and copying and evicting them would cost more than hashing does.
 * Whole pages only; the ends of a piece, and all of small tensors, go through the cache, where neighbours share pages. Memory and file place have
 * the same phase (us_stream_run).
 */
static us_status write_piece(const shard_job *j, uint64_t at, const unsigned char *p, size_t n, us_err *err) {
    size_t lead = (size_t)((PAGE - at % PAGE) % PAGE);
    if (j->direct < 0 || n < DIRECT_MIN + lead || ((uintptr_t)p + lead) % PAGE) {
        US_TRY(write_at(j->fd, at, p, n, err));
        /* start writing back now: it overlaps with reading, and fsync at the end finds little to do */
        if (n >= 1 << 20) (void)sync_file_range(j->fd, (off_t)at, (off_t)n, SYNC_FILE_RANGE_WRITE);
        return US_OK;
    }
    size_t body = (n - lead) / PAGE * PAGE;
    if (lead) US_TRY(write_at(j->fd, at, p, lead, err));
    if (write_at(j->direct, at + lead, p + lead, body, NULL) != US_OK) US_TRY(write_at(j->fd, at + lead, p + lead, body, err));
    return lead + body < n ? write_at(j->fd, at + lead + body, p + lead + body, n - lead - body, err) : US_OK;
}

static us_status sink(void *user, const void *data, size_t n, us_err *err) {
    sink_arg *a = user;
    US_TRY(us_ctx_check(a->job->ctx, err));
    us_sha256_add(a->w->sha, data, n);
    US_TRY(write_piece(a->job, a->w->at, data, n, err));
    a->w->at += n;
    us_progress_add(a->job->ctx, n);
    return US_OK;
}

static us_status read_back(shard_job *j, worker *w, const us_plan_tensor *t, us_err *err) {
    for (uint64_t done = 0; done < t->bytes;) {
        US_TRY(us_ctx_check(j->ctx, err));
        size_t n = t->bytes - done < w->stream.buffer_bytes ? (size_t)(t->bytes - done) : w->stream.buffer_bytes;
        US_TRY(us_file_read(j->back, j->data_start + t->begin + done, w->stream.buffer, n, err));
        us_sha256_add(w->sha, w->stream.buffer, n);
        us_progress_add(j->ctx, n);
        done += n;
    }
    return US_OK;
}

static void one_tensor(void *arg, int64_t i, int thread) {
    shard_job *j = arg;
    worker *w = &j->workers[thread];
    const us_plan_tensor *t = &j->p->tensors[j->shard->first + (size_t)i];
    if (atomic_load_explicit(&j->stop, memory_order_relaxed)) return;
    us_sha256_reset(w->sha);
    w->at = j->data_start + t->begin;
    sink_arg a = {j, w};
    us_status st = j->back ? read_back(j, w, t, &w->err) : us_stream_run(&w->stream, t, (size_t)(w->at % PAGE), sink, &a, &w->err);
    if (st == US_OK) {
        us_sha256_hex(w->sha, j->hex[i]);
        return;
    }
    w->failed = i;
    atomic_store_explicit(&j->stop, true, memory_order_relaxed);
}

/* Run the job; the failure of the first tensor is the one that is told. */
static us_status run_job(shard_job *j, us_err *err) {
    worker *worst = NULL;
    atomic_init(&j->stop, false);
    for (int i = 0; i < j->n_workers; i++) j->workers[i].failed = -1;
    us_pool_run(j->pool, one_tensor, j, (int64_t)j->shard->n);
    for (int i = 0; i < j->n_workers; i++) {
        worker *w = &j->workers[i];
        if (w->failed >= 0 && (!worst || w->failed < worst->failed)) worst = w;
    }
    if (!worst) return US_OK;
    if (err) *err = worst->err;
    return worst->err.code;
}

/* ---- records of finished shards ---- */

/* First line: fingerprint and length of the file; then a hash a line. */
static us_status write_record(const char *path, const char *fingerprint, uint64_t length, char (*hex)[65], size_t n, us_err *err) {
    us_buf b = {0};
    us_buf_printf(&b, "%s %llu\n", fingerprint, (unsigned long long)length);
    for (size_t i = 0; i < n; i++) {
        us_buf_add(&b, hex[i], 64);
        us_buf_c(&b, '\n');
    }
    us_status st = us_buf_status(&b, err, "keeping a record");
    if (st == US_OK) st = us_fs_write_atomic(path, us_buf_view(&b), err);
    us_buf_free(&b);
    return st;
}

/* Does a record say that the shard is complete? Then *text holds it. */
static bool read_record(const char *path, const char *fingerprint, uint64_t length, size_t n, char **text) {
    us_buf head = {0};
    size_t have = 0;
    *text = NULL;
    us_buf_printf(&head, "%s %llu\n", fingerprint, (unsigned long long)length);
    size_t want = head.n + 65 * n;
    bool ok = !head.failed && us_fs_exists(path) && us_fs_read_all(path, want + 1, text, &have, NULL) == US_OK && have == want &&
              memcmp(*text, head.p, head.n) == 0;
    if (ok) memmove(*text, *text + head.n, 65 * n);
    us_buf_free(&head);
    if (!ok) {
        us_free(*text);
        *text = NULL;
    }
    return ok;
}

/* Keep a shard of an earlier run if every tensor in it still has its recorded hash. */
static us_status try_resume(shard_job *j, const char *path, const char *record, const char *fingerprint, const us_buf *header, bool *kept, us_err *err) {
    uint64_t length = header->n + j->shard->data_bytes;
    us_file f = {0};
    char *text = NULL;
    *kept = false;
    if (!read_record(record, fingerprint, length, j->shard->n, &text)) return US_OK;
    us_status st = US_OK;
    char *head = us_malloc(header->n);
    if (!head) st = us_fail_nomem(err, "resuming");
    else if (us_file_open(path, &f, NULL) == US_OK && f.size == length && us_file_read(&f, 0, head, header->n, NULL) == US_OK &&
             memcmp(head, header->p, header->n) == 0) {
        j->back = &f;
        st = run_job(j, err);
        *kept = st == US_OK;
        for (size_t i = 0; i < j->shard->n && *kept; i++) *kept = memcmp(text + 65 * i, j->hex[i], 64) == 0;
        if (st != US_OK && st != US_E_CANCELLED && st != US_E_NOMEM) st = US_OK; /* unreadable: write it again */
        j->back = NULL;
    }
    us_file_close(&f);
    us_free(head);
    us_free(text);
    return st;
}

/* To the disk, then the record: in this order, so that a record never lies. */
static void *finish_shard(void *arg) {
    finishing *f = arg;
    f->st = US_OK;
    if (ftruncate(f->fd, (off_t)f->length) != 0) f->st = us_fail_sys(&f->err, errno, "unwritable", "writing failed");
    if (f->st == US_OK && fsync(f->fd) != 0) f->st = us_fail_sys(&f->err, errno, errno == ENOSPC ? "no-space" : "unwritable", "writing failed");
    if (close(f->fd) != 0 && f->st == US_OK) f->st = us_fail_sys(&f->err, errno, "unwritable", "writing failed");
    if (f->st == US_OK) f->st = us_fs_sync_dir(f->folder.p, &f->err);
    if (f->st == US_OK) f->st = write_record(f->record.p, f->fingerprint, f->length, f->hex, f->n, &f->err);
    if (f->st != US_OK) us_err_where(&f->err, "%s", f->name.p);
    return NULL;
}

/* Wait for the shard before. */
static us_status finished(finishing *f, us_err *err) {
    if (!f->running) return US_OK;
    if (pthread_join(f->thread, NULL) != 0) return us_fail(err, US_E_IO, NULL, "a thread cannot be joined");
    f->running = false;
    if (f->st != US_OK && err) *err = f->err;
    return f->st;
}

static void free_finishing(finishing *f) {
    us_buf_free(&f->folder);
    us_buf_free(&f->record);
    us_buf_free(&f->name);
}

/* Hand an open, written shard over. */
static us_status start_finish(shard_job *j, int fd, uint64_t length, const char *folder, const char *record, const char *fingerprint, us_err *err) {
    finishing *f = &j->last;
    us_status st = finished(f, err);
    us_buf *text[3] = {&f->folder, &f->record, &f->name};
    const char *from[3] = {folder, record, j->shard->name};
    for (int i = 0; i < 3 && st == US_OK; i++) {
        us_buf_clear(text[i]);
        us_buf_z(text[i], from[i]);
        us_buf_text(text[i]);
        st = us_buf_status(text[i], err, "writing a shard");
    }
    if (st != US_OK) {
        (void)close(fd);
        return st;
    }
    f->fd = fd;
    f->length = length;
    f->fingerprint = fingerprint;
    f->hex = j->hex;
    f->n = j->shard->n;
    f->running = pthread_create(&f->thread, NULL, finish_shard, f) == 0;
    if (f->running) return US_OK;
    finish_shard(f); /* no thread to be had: wait here */
    if (f->st != US_OK && err) *err = f->err;
    return f->st;
}

static us_status write_shard(shard_job *j, const char *path, const us_buf *header, int *out, us_err *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) return us_fail_sys(err, errno, "unwritable", "cannot write the file");
    /* Tensors are written side by side, so the file would grow in pieces; allocated whole, it lies in one, and writers past the cache need not
       wait for each other's growth of it. A full disk says so at once. */
    us_status st = US_OK;
    if (fallocate(fd, 0, 0, (off_t)(header->n + j->shard->data_bytes)) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) st = no_space(err, errno);
    if (st == US_OK) st = write_at(fd, 0, (const unsigned char *)header->p, header->n, err);
    j->fd = fd;
    j->direct = j->shard->data_bytes >= DIRECT_MIN ? open(path, O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (st == US_OK) st = run_job(j, err);
    if (j->direct >= 0) (void)close(j->direct);
    j->fd = j->direct = -1;
    if (st == US_OK) *out = fd;
    else (void)close(fd);
    return st;
}

static us_status one_shard(shard_job *j, const char *folder, const char *records, const char *fingerprint, us_err *err) {
    us_buf header = {0}, path = {0}, record = {0};
    bool kept = false;
    int fd = -1;
    us_status st = us_plan_shard_header(j->p, (size_t)(j->shard - j->p->shards), &header, err);
    us_buf_printf(&path, "%s/%s", folder, j->shard->name);
    us_buf_printf(&record, "%s/%s", records, j->shard->name);
    us_buf_text(&path);
    us_buf_text(&record);
    if (st == US_OK) st = us_buf_status(&path, err, "writing a shard");
    if (st == US_OK) st = us_buf_status(&record, err, "writing a shard");
    j->data_start = header.n;
    if (st == US_OK) st = try_resume(j, path.p, record.p, fingerprint, &header, &kept, err);
    if (st == US_OK && !kept) {
        (void)unlink(record.p);
        st = write_shard(j, path.p, &header, &fd, err);
        if (st != US_OK) us_err_where(err, "%s", j->shard->name);
        else st = start_finish(j, fd, header.n + j->shard->data_bytes, folder, record.p, fingerprint, err);
    }
    us_buf_free(&header);
    us_buf_free(&path);
    us_buf_free(&record);
    return st;
}

/* ---- other files ---- */

bool us_write_copies(const us_fs_entry *e) {
    static const char *const own[] = {"config.json", "model.safetensors.index.json", "hf_quant_config.json", NULL};
    for (int i = 0; own[i]; i++) {
        if (strcmp(e->name, own[i]) == 0) return false;
    }
    return e->kind == US_FS_REGULAR && strncmp(e->name, "understudy", 10) != 0 && strncmp(e->name, ".understudy", 11) != 0;
}

static us_status copy_file(const us_plan *p, const us_fs_entry *e, const char *folder, unsigned flags, worker *w, char hex[65], us_err *err) {
    us_file in = {0};
    us_buf path = {0};
    int fd = -1;
    US_TRY(us_fs_open_beneath(p->s->ck->path, us_str_z(e->name), flags, &in, err));
    us_buf_printf(&path, "%s/%s", folder, e->name);
    us_status st = us_buf_status(&path, err, "copying files");
    char *slash = st == US_OK ? strrchr((char *)(uintptr_t)us_buf_text(&path), '/') : NULL;
    if (slash && (size_t)(slash - path.p) > strlen(folder)) {
        *slash = 0;
        st = us_fs_mkdirs(path.p, err);
        *slash = '/';
    }
    if (st == US_OK) {
        fd = open(path.p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0) st = us_fail_sys(err, errno, "unwritable", "cannot write the file");
    }
    us_sha256_reset(w->sha);
    for (uint64_t at = 0; st == US_OK && at < in.size;) {
        size_t n = in.size - at < w->stream.buffer_bytes ? (size_t)(in.size - at) : w->stream.buffer_bytes;
        st = us_file_read(&in, at, w->stream.buffer, n, err);
        if (st == US_OK) us_sha256_add(w->sha, w->stream.buffer, n);
        if (st == US_OK) st = write_at(fd, at, w->stream.buffer, n, err);
        at += n;
    }
    if (st == US_OK && fsync(fd) != 0) st = us_fail_sys(err, errno, "unwritable", "writing failed");
    if (fd >= 0 && close(fd) != 0 && st == US_OK) st = us_fail_sys(err, errno, "unwritable", "writing failed");
    if (st == US_OK) us_sha256_hex(w->sha, hex);
    else us_err_where(err, "%s", e->name);
    us_file_close(&in);
    us_buf_free(&path);
    return st;
}

static us_status write_text(const char *folder, const char *name, const us_buf *text, us_err *err) {
    us_buf path = {0};
    us_buf_printf(&path, "%s/%s", folder, name);
    us_buf_text(&path);
    us_status st = us_buf_status(&path, err, "writing files");
    if (st == US_OK) st = us_fs_write_atomic(path.p, us_buf_view(text), err);
    us_buf_free(&path);
    return st;
}

static us_status small_files(const us_plan *p, const char *folder, unsigned flags, worker *w, us_hashes *h, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    for (size_t i = 0; i < ck->n_others; i++) {
        if (us_write_copies(&ck->others[i])) US_TRY(copy_file(p, &ck->others[i], folder, flags, w, h->file[i], err));
    }
    if (ck->config.n_nodes) US_TRY(write_text(folder, "config.json", &p->config, err));
    if (ck->hf_quant.n_nodes) US_TRY(write_text(folder, "hf_quant_config.json", &p->hf_quant, err));
    if (ck->index.n_nodes) US_TRY(write_text(folder, "model.safetensors.index.json", &p->index, err));
    return us_fs_sync_dir(folder, err);
}

bool us_write_makes(const us_plan *p, us_str name) {
    const us_checkpoint *ck = p->s->ck;
    if (us_str_eqz(name, "understudy.json")) return true;
    if (us_str_eqz(name, "config.json")) return ck->config.n_nodes != 0;
    if (us_str_eqz(name, "hf_quant_config.json")) return ck->hf_quant.n_nodes != 0;
    if (us_str_eqz(name, "model.safetensors.index.json")) return ck->index.n_nodes != 0;
    for (size_t i = 0; i < p->n_shards; i++) {
        if (us_str_eqz(name, p->shards[i].name)) return true;
    }
    for (size_t i = 0; i < ck->n_others; i++) {
        if (us_write_copies(&ck->others[i]) && us_str_eqz(name, ck->others[i].name)) return true;
    }
    return false;
}

/* ---- the folder ---- */

static void free_workers(worker *w, int n) {
    for (int i = 0; w && i < n; i++) {
        us_stream_free(&w[i].stream);
        us_sha256_free(w[i].sha);
    }
    us_free(w);
}

static us_status create_workers(us_pool *pool, const us_plan *p, const us_table_map *tables, worker **out, int *n, us_err *err) {
    int threads = us_pool_threads(pool);
    size_t bytes = (size_t)BUFFERS_TOTAL / (2 * (size_t)threads);
    if (bytes > BUFFER_MAX) bytes = BUFFER_MAX;
    if (bytes < BUFFER_MIN) bytes = BUFFER_MIN;
    worker *w = us_calloc((size_t)threads, sizeof *w);
    if (!w) return us_fail_nomem(err, "copying tensors");
    us_status st = US_OK;
    for (int i = 0; i < threads && st == US_OK; i++) {
        st = us_stream_create(p, tables, bytes, &w[i].stream, err);
        if (st == US_OK) st = us_sha256_create(&w[i].sha, err);
    }
    if (st != US_OK) {
        free_workers(w, threads);
        return st;
    }
    *out = w;
    *n = threads;
    return US_OK;
}

static us_status count_only(void *user, const void *data, size_t n, us_err *err) {
    (void)user, (void)data, (void)n, (void)err;
    return US_OK;
}

/* Rows of token tables that change, counted apart from writing so that a resumed run tells the same number. */
static us_status count_table_rows(us_stream *s, us_hashes *h, us_err *err) {
    uint64_t before = s->rows_changed;
    for (size_t i = 0; i < s->p->n_tensors; i++) {
        if (s->p->tensors[i].action == US_PLAN_TABLE) US_TRY(us_stream_run(s, &s->p->tensors[i], 0, count_only, NULL, err));
    }
    h->table_rows_changed = s->rows_changed - before;
    return US_OK;
}

us_status us_write_folder(us_ctx *ctx, const us_plan *p, const char *folder, const char *records, const char *fingerprint, unsigned link_flags,
                          us_hashes *h, us_err *err) {
    us_table_map tables = {0};
    shard_job j = {.ctx = ctx, .p = p, .fd = -1, .direct = -1};
    us_status st = us_table_map_create(ctx, p, &tables, err);
    if (st == US_OK) st = us_pool_create(2 * us_pool_threads(us_ctx_pool(ctx)), &j.pool, err);
    if (st == US_OK) st = create_workers(j.pool, p, &tables, &j.workers, &j.n_workers, err);
    if (st == US_OK) st = count_table_rows(&j.workers[0].stream, h, err);
    for (size_t i = 0; i < p->n_shards && st == US_OK; i++) {
        j.shard = &p->shards[i];
        j.hex = h->tensor + j.shard->first;
        st = one_shard(&j, folder, records, fingerprint, err);
    }
    us_status last = finished(&j.last, st == US_OK ? err : NULL); /* the first failure is the one that is told */
    if (st == US_OK) st = last;
    free_finishing(&j.last);
    if (st == US_OK) st = small_files(p, folder, link_flags, &j.workers[0], h, err);
    free_workers(j.workers, j.n_workers);
    us_pool_free(j.pool);
    us_table_map_free(&tables);
    return st;
}
