/**
 * The inside of the context (understudy/us_ctx.h): what the library itself does with it. Tests: tests/unit/test_base.c.
 *
 * Notes are printed by the command on standard error after success and dropped after a refusal, so that a refusal is
 * one line.
 */
#ifndef US_BASE_CTX_H
#define US_BASE_CTX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "understudy/us_ctx.h"

us_pool *us_ctx_pool(us_ctx *c); /* borrowed; NULL for c == NULL */
uint64_t us_ctx_seed(const us_ctx *c);

/** Add a note (one line). c may be NULL. A note that is already there is not repeated. Cls may be NULL. */
void us_note(us_ctx *c, const char *cls, const char *fmt, ...) US_PRINTF(3, 4);

/** Begin a phase. what and unit must be literals. */
void us_progress_begin(us_ctx *c, const char *what, const char *unit, uint64_t total);
/** Add to the count of the phase; thread-safe; cheap. */
void us_progress_add(us_ctx *c, uint64_t n);
void us_progress_end(us_ctx *c);

/** US_E_CANCELLED once us_ctx_cancel was called. Long loops ask. */
us_status us_ctx_check(const us_ctx *c, us_err *err) US_WARN_UNUSED;

#endif
