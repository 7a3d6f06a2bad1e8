/**
 * The context of one job: threads, seed, notes, progress, cancellation.
 *
 * The library never prints. Notes (things an accepted input deserves to have said, e.g. "2 stale copies ignored") are
 * collected in order and once each; progress goes to a callback. A context belongs to one thread at a time;
 * us_ctx_cancel may be called from anywhere.
 */
#ifndef UNDERSTUDY_US_CTX_H
#define UNDERSTUDY_US_CTX_H

#include "understudy/us_status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct us_ctx us_ctx;

/** What a long job reports, about ten times a second at most. done/total in `unit` ("B" for bytes); total 0 = unknown.
 */
typedef struct us_progress {
    const char *what;
    const char *unit;
    uint64_t done, total;
    double seconds; /* since the phase began */
} us_progress;

/** n_threads 0 = as many as the process may run on. Same seed, same results, for any number of threads. */
US_API us_status us_ctx_create(int n_threads, uint64_t seed, us_ctx **out, us_err *err) US_WARN_UNUSED;
/** NULL is fine. */
US_API void us_ctx_free(us_ctx *c);

US_API int us_ctx_n_notes(const us_ctx *c);
/** Text and class of note i ("" when it has none); they live as long as the context. */
US_API const char *us_ctx_note(const us_ctx *c, int i);
US_API const char *us_ctx_note_class(const us_ctx *c, int i);

/** Install the progress sink; it may be called from the pool's threads, one at a time. */
US_API void us_ctx_on_progress(us_ctx *c, void (*sink)(void *user, const us_progress *p), void *user);
/** Ask the job to stop; async-signal-safe. The running call then returns US_E_CANCELLED. */
US_API void us_ctx_cancel(us_ctx *c);

#ifdef __cplusplus
}
#endif
#endif
