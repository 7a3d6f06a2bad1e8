/**
 * Finding out, by bytes alone, which proxy of SRC a folder is: layers, MTP, and for every new expert the old one. For verify without a
 * manifest. Tests: tests/e2e/test_fix_checkpoints.c (every reference is verified without a manifest).
 */
#ifndef US_PROXY_VERIFY_MAP_H
#define US_PROXY_VERIFY_MAP_H

#include "proxy/plan.h"

/** What the manifest says, or what the bytes say. layers: text for us_plan_options, or NULL. */
typedef struct us_found {
    us_keep keep;
    char *layers; /* owned */
    bool drop_mtp;
    bool by_manifest;
} us_found;

/** US_E_DIFFERENT with a class (router, expert, layers ...) when no answer fits. */
us_status us_found_by_bytes(us_ctx *ctx, const us_structure *s, const us_checkpoint *dst, us_found *out, us_err *err) US_WARN_UNUSED;
us_status us_found_by_manifest(const us_structure *s, const char *path, us_found *out, us_err *err) US_WARN_UNUSED;
void us_found_free(us_found *f);

#endif
