/* Context: notes, progress, cancellation. */
#define _POSIX_C_SOURCE 200809L
#include "base/ctx.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/str.h"

enum { NOTES_MAX = 1000 }; /* a hostile checkpoint must not make us collect without end */

typedef struct note {
    char cls[US_ERR_CLASS];
    char *text;
} note;

struct us_ctx {
    us_pool *pool;
    uint64_t seed;
    note *notes;
    size_t n_notes, cap_notes;
    void (*sink)(void *, const us_progress *);
    void *sink_user;
    us_progress phase;
    atomic_uint_fast64_t done;
    atomic_int_fast64_t last_report_ns;
    int64_t start_ns;
    atomic_bool cancelled;
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

us_status us_ctx_create(int n_threads, uint64_t seed, us_ctx **out, us_err *err) {
    us_ctx *c = us_calloc(1, sizeof *c);
    if (!c) return us_fail_nomem(err, "creating the context");
    us_status s = us_pool_create(n_threads, &c->pool, err);
    if (s != US_OK) {
        us_free(c);
        return s;
    }
    c->seed = seed;
    *out = c;
    return US_OK;
}

void us_ctx_free(us_ctx *c) {
    if (!c) return;
    us_pool_free(c->pool);
    for (size_t i = 0; i < c->n_notes; i++) us_free(c->notes[i].text);
    us_free(c->notes);
    us_free(c);
}

us_pool *us_ctx_pool(us_ctx *c) {
    return c ? c->pool : NULL;
}

uint64_t us_ctx_seed(const us_ctx *c) {
    return c ? c->seed : 0;
}

void us_note(us_ctx *c, const char *cls, const char *fmt, ...) {
    if (!c || c->n_notes >= NOTES_MAX) return;
    char raw[US_ERR_TEXT * 2], line[US_ERR_TEXT * 2];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n >= sizeof raw ? sizeof raw - 1 : (size_t)n;
    us_escape_line(raw, len, line, sizeof line);
    for (size_t i = 0; i < c->n_notes; i++)
        if (strcmp(c->notes[i].text, line) == 0) return;
    if (!us_grow(&c->notes, &c->cap_notes, c->n_notes + 1, sizeof *c->notes)) return;
    note *t = &c->notes[c->n_notes];
    snprintf(t->cls, sizeof t->cls, "%s", cls ? cls : "");
    t->text = us_strdup(line);
    if (t->text) c->n_notes++;
}

int us_ctx_n_notes(const us_ctx *c) {
    return c ? (int)c->n_notes : 0;
}

const char *us_ctx_note(const us_ctx *c, int i) {
    return c->notes[i].text;
}

const char *us_ctx_note_class(const us_ctx *c, int i) {
    return c->notes[i].cls;
}

void us_ctx_on_progress(us_ctx *c, void (*sink)(void *, const us_progress *), void *user) {
    c->sink = sink;
    c->sink_user = user;
}

static void report(us_ctx *c, int64_t t) {
    us_progress p = c->phase;
    p.done = atomic_load(&c->done);
    p.seconds = 1e-9 * (double)(t - c->start_ns);
    c->sink(c->sink_user, &p);
}

void us_progress_begin(us_ctx *c, const char *what, const char *unit, uint64_t total) {
    if (!c || !c->sink) return;
    c->phase = (us_progress){what, unit, 0, total, 0};
    c->start_ns = now_ns();
    atomic_store(&c->done, 0);
    atomic_store(&c->last_report_ns, c->start_ns);
}

void us_progress_add(us_ctx *c, uint64_t n) {
    if (!c || !c->sink || !c->phase.what) return;
    atomic_fetch_add_explicit(&c->done, n, memory_order_relaxed);
    int64_t t = now_ns(), last = atomic_load_explicit(&c->last_report_ns, memory_order_relaxed);
    if (t - last < 100000000) return;
    if (atomic_compare_exchange_strong(&c->last_report_ns, &last, t)) report(c, t);
}

void us_progress_end(us_ctx *c) {
    if (!c || !c->sink || !c->phase.what) return;
    report(c, now_ns());
    c->phase.what = NULL;
}

void us_ctx_cancel(us_ctx *c) {
    atomic_store_explicit(&c->cancelled, true, memory_order_relaxed);
}

us_status us_ctx_check(const us_ctx *c, us_err *err) {
    if (!c || !atomic_load_explicit(&c->cancelled, memory_order_relaxed)) return US_OK;
    return us_fail(err, US_E_CANCELLED, "cancelled", "stopped on request");
}
