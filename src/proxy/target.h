/**
 * The destination of a proxy: what stands there, the work folder beside it, and putting the finished folder in its place.
 *
 * Work happens in DST.understudy-partial: `state.json` (fingerprint of the job), `done/` (records of finished shards), `out/` (the result,
 * renamed to DST at the end). One process at a time works there (a lock on the folder). --force deletes files that a manifest names and nothing else.
 * Tests: tests/e2e/test_proxy.c.
 */
#ifndef US_PROXY_TARGET_H
#define US_PROXY_TARGET_H

#include "base/ctx.h"
#include "io/json.h"

#define US_PARTIAL_SUFFIX ".understudy-partial"

typedef enum us_target_kind {
    US_TARGET_NONE,    /* nothing, or an empty folder */
    US_TARGET_OURS,    /* a finished proxy or ladder */
    US_TARGET_FOREIGN, /* a folder with other things */
} us_target_kind;

typedef struct us_target {
    char *dst, *partial, *out, *done, *state; /* paths */
    us_target_kind kind;
    us_str *ours;  /* files of the finished proxy there, relative to dst, manifests last */
    size_t n_ours;
    char fingerprint[65]; /* of the finished proxy there, or "" */
    int lock;      /* descriptor of the partial folder while it is ours, or -1 */
    bool partial_exists;
    us_arena arena;
} us_target;

/** Look, touch nothing. Refuses DST that is, holds or lies in SRC (class "destination"), or is a file. */
us_status us_target_open(const char *src, const char *dst, us_target *out, us_err *err) US_WARN_UNUSED;
/** A finished or foreign destination without force: refused, class "exists". With force: only files of ours would be replaced. */
us_status us_target_check(const us_target *t, bool force, us_err *err) US_WARN_UNUSED;
/** Did this very job end already, and was killed before it removed its work folder? */
bool us_target_finished(const us_target *t, const char *fingerprint);
/** Make or take over the work folder. A work folder of another job is refused (class "partial"), or removed with force. */
us_status us_target_begin(us_target *t, const char *fingerprint, bool force, us_err *err) US_WARN_UNUSED;
/** Remove what does not belong into the result, put it in its place, remove the work folder. */
us_status us_target_finish(us_target *t, bool (*belongs)(void *user, us_str name), void *user, us_err *err) US_WARN_UNUSED;
/** Remove the work folder of a job that ended. What cannot be removed stays: the result is complete, and the same command tries again. */
void us_target_clean(us_target *t);
void us_target_close(us_target *t);

#endif
