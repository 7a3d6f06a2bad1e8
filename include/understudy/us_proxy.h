/**
 * Making proxies of MoE checkpoints, and proving them.
 *
 * A proxy is the same model with fewer experts in every layer: kept experts are byte-exact copies, router rows are the rows of the kept
 * experts, nothing else changes. Rules: docs/user/make-a-proxy.md.
 */
#ifndef UNDERSTUDY_US_PROXY_H
#define UNDERSTUDY_US_PROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "understudy/us_ctx.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What is wanted. Zero-initialise; strings are borrowed for the call. */
typedef struct us_proxy_request {
    const char *src, *dst;
    const int64_t *sizes;   /* experts to keep; several make a ladder */
    size_t n_sizes;         /* 0: by keep_ratio, or by a list */
    double keep_ratio;      /* > 0: round(ratio * E), moved to the nearest legal size; 0 = not given */
    const char *select;     /* "cluster" (default), "reap-like", "frequency", "router-norm", "first", "random", "list:FILE" */
    const char *const *routing; /* files of routing data */
    int n_routing;
    const char *const *protect; /* "LAYER:EXPERT[,EXPERT]" or "*:EXPERT" */
    int n_protect;
    const char *layers;     /* cut layers: a number, or a list such as "0,1,5-7"; NULL = all */
    bool drop_mtp, dry_run, force, follow_links, headers_only;
} us_proxy_request;

/** What was done or would be done: for people, and for programs (one JSON object, keys in the user guide). */
typedef struct us_report us_report;

/**
 * Make a proxy (or a ladder). Nothing is left at dst unless it is complete. After a kill or a full disk the same request goes on where it stopped.
 * @return US_E_REFUSED with a class of docs/user/errors.md, US_E_IO, US_E_CANCELLED ...
 */
US_API us_status us_proxy_make(us_ctx *ctx, const us_proxy_request *r, us_report **out, us_err *err) US_WARN_UNUSED;

typedef struct us_verify_request {
    const char *src, *dst;  /* checkpoints; or two config.json files, whose keys are compared */
    bool follow_links;
    bool ignore_manifest;   /* find the kept experts by their bytes even where a manifest says them */
} us_verify_request;

/**
 * Prove that dst is a proxy of src: structure, bytes, config, index, other files.
 * @return US_OK; US_E_DIFFERENT with the first difference in err (out is set then too); other codes when something is unreadable.
 */
US_API us_status us_proxy_verify(us_ctx *ctx, const us_verify_request *r, us_report **out, us_err *err) US_WARN_UNUSED;

US_API const char *us_report_text(const us_report *r);
US_API const char *us_report_json(const us_report *r);
US_API void us_report_free(us_report *r);

#ifdef __cplusplus
}
#endif
#endif
