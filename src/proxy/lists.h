/** Keep lists for a request: one per size, from the selection or from a file. Not here: how experts are chosen (select.h). Tests: tests/e2e. */
#ifndef US_PROXY_LISTS_H
#define US_PROXY_LISTS_H

#include "proxy/select.h"
#include "understudy/us_proxy.h"

typedef struct us_lists {
    size_t n;
    us_keep *keeps;            /* by size as asked */
    const char *method;        /* name of the method, static */
    const char *file;          /* of list:FILE, borrowed from the request; else NULL */
    const us_merge_tree *tree; /* NULL = none */
    us_selection selection;
} us_lists;

/** sizes[0] = 0: as the list says. */
us_status us_lists_choose(us_ctx *ctx, const us_structure *s, const us_proxy_request *r, const uint32_t *sizes, size_t n, const bool *active, us_lists *out,
                          us_err *err) US_WARN_UNUSED;
void us_lists_free(us_lists *l);

#endif
