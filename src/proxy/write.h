/**
 * Carrying out a plan: one folder, shard by shard, each tensor hashed while it is copied; a killed run goes on where it stopped.
 *
 * Every shard that is complete and on the disk has a record in a folder beside it, made after fsync, with the SHA-256 of its tensors. A
 * later run with the same fingerprint reads such a shard back, holds it against the record, and keeps it; a shard without a record is
 * written again. Memory: two buffers a thread, 256 MB in all at most. Not here: naming, resuming and renaming of the folder (proxy.c).
 * Tests: tests/e2e/test_proxy.c, test_fix_checkpoints.c; bench/kill.sh.
 */
#ifndef US_PROXY_WRITE_H
#define US_PROXY_WRITE_H

#include "proxy/stream.h"

/** SHA-256 in hex of every planned tensor, in the plan's order, and of every other file. Owned. */
typedef struct us_hashes {
    char (*tensor)[65];
    size_t n_tensors;
    char (*file)[65]; /* of ck->others */
    size_t n_files;
    uint64_t table_rows_changed;
} us_hashes;

us_status us_hashes_create(const us_plan *p, us_hashes *out, us_err *err) US_WARN_UNUSED;
void us_hashes_free(us_hashes *h);

/**
 * Write everything but the manifest into `folder`; `records` is where records are kept; both exist. fingerprint: of the job, 64 hex digits.
 * Progress in bytes, begun by the caller.
 */
us_status us_write_folder(us_ctx *ctx, const us_plan *p, const char *folder, const char *records, const char *fingerprint, unsigned link_flags, us_hashes *hashes, us_err *err) US_WARN_UNUSED;

/** Is `name` (relative) a file that us_write_folder makes for this plan, the manifest included? */
bool us_write_makes(const us_plan *p, us_str name);
/** Source files that are copied: not those that the plan writes itself. */
bool us_write_copies(const us_fs_entry *e);

#endif
