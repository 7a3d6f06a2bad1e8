/**
 * understudy.json: what a proxy is, where it comes from, and how to make it again. The same bytes for the same source and arguments:
 * no times, no paths, no machine. Its `layers` reads back as a keep list. Keys: docs/user/make-a-proxy.md. Tests: fixtures/checkpoints.
 */
#ifndef US_PROXY_MANIFEST_H
#define US_PROXY_MANIFEST_H

#include "proxy/select.h"
#include "proxy/write.h"

#define US_MANIFEST_NAME "understudy.json"
#define US_LADDER_NAME "understudy-ladder.json"
#define US_MANIFEST_FORMAT "understudy-proxy"

/** What the user asked for, without paths. */
typedef struct us_manifest_arguments {
    const char *select;      /* "cluster", "first", "list" ... */
    const char *list_sha256; /* of the list file, or NULL */
    const char *routing_sha256;
    const char *layers;      /* as given, or NULL */
    uint64_t seed;
    bool drop_mtp;
    const char *const *protect;
    int n_protect;
    const us_selection *selection; /* what was measured, or NULL */
} us_manifest_arguments;

/** hashes NULL: without SHA-256 (used for the fingerprint and --dry-run). tree may be NULL. */
us_status us_manifest_write(const us_plan *p, const us_manifest_arguments *a, const us_merge_tree *tree, const char *fingerprint, const us_hashes *hashes,
                            us_buf *out, us_err *err) US_WARN_UNUSED;

/** SHA-256 in hex of everything that decides the bytes of the proxy. */
us_status us_manifest_fingerprint(const us_plan *const *plans, size_t n, const us_manifest_arguments *a, const us_merge_tree *tree, char out[65],
                                  us_err *err) US_WARN_UNUSED;

/** The file names that a manifest says were written. Parsed text stays in *doc. */
us_status us_manifest_files(const us_json_doc *doc, us_arena *arena, us_str **out, size_t *n, us_err *err) US_WARN_UNUSED;

#endif
