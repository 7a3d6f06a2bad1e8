/**
 * The context of one job: thread pool, notes for the user, progress, seed, cancellation.
 *
 * The library never prints. Notes (things an accepted input deserves to have said, e.g. "2 stale copies ignored") are
 * collected here in order and once each; the command prints them on standard error after success and drops them after a
 * refusal, so that a refusal is one line. Progress goes to a callback. A context belongs to one thread at a time.
 */
#ifndef US_BASE_CTX_H
#define US_BASE_CTX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "understudy/us_status.h"

typedef struct us_ctx us_ctx;

/** What a long job reports, about ten times a second at most. done/total in `unit` ("B" for bytes); total 0 = unknown. */
typedef struct us_progress {
    const char *what;
    const char *unit;
    uint64_t done, total;
    double seconds; /* since the phase began */
} us_progress;

us_status us_ctx_create(int n_threads, uint64_t seed, us_ctx **out, us_err *err) US_WARN_UNUSED;
void us_ctx_free(us_ctx *c);

us_pool *us_ctx_pool(us_ctx *c);   /* borrowed; NULL for c == NULL */
uint64_t us_ctx_seed(const us_ctx *c);

/** Add a note (one line). c may be NULL. A note that is already there is not repeated. Cls may be NULL. */
void us_note(us_ctx *c, const char *cls, const char *fmt, ...) US_PRINTF(3, 4);
int us_ctx_n_notes(const us_ctx *c);
const char *us_ctx_note(const us_ctx *c, int i);       /* text */
const char *us_ctx_note_class(const us_ctx *c, int i); /* class or "" */

/** Install the progress sink. */
void us_ctx_on_progress(us_ctx *c, void (*sink)(void *user, const us_progress *p), void *user);
/** Begin a phase. what and unit must be literals. */
void us_progress_begin(us_ctx *c, const char *what, const char *unit, uint64_t total);
/** Add to the count of the phase; thread-safe; cheap. */
void us_progress_add(us_ctx *c, uint64_t n);
void us_progress_end(us_ctx *c);

/** Ask the job to stop; async-signal-safe. */
void us_ctx_cancel(us_ctx *c);
/** US_E_CANCELLED once us_ctx_cancel was called. Long loops ask. */
us_status us_ctx_check(const us_ctx *c, us_err *err) US_WARN_UNUSED;

#endif
