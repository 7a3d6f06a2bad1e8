/**
 * Average-linkage clustering of the experts of one group, with a cap on cluster size, protected singletons and nested representatives.
 *
 * Lance-Williams update in f64, pairs scanned in one order, ties to the lowest indices: a pure function of its input. Of two experts that would represent
 * a cluster equally well (any two single ones of equal load) the one nearer to the whole group stays, so numbering matters only for true ties. The cap follows the number of
 * clusters: after the merge that leaves c clusters, none may hold more than ceil(cap * n / c) experts, so every size of the one tree keeps the cap
 * and no size depends on which others were asked for. O(n^3) time, O(n^2) memory; n <= 1024 or so.
 * Facts: spec/moe-proxy.md 5.4 steps 3, 4. Tests: tests/unit/test_cluster.c.
 */
#ifndef US_PROXY_CLUSTER_H
#define US_PROXY_CLUSTER_H

#include "proxy/keep.h"

typedef struct us_cluster_input {
    const double *d;        /* distances, row stride `stride`; expert i of the group is row and column first + i */
    size_t stride;
    uint32_t first, n;
    const double *load;     /* by expert number, or NULL = all equal */
    const double *saliency; /* by expert number, or NULL */
    double lambda;          /* weight of log(saliency / mean) in the choice of a representative */
    const bool *protect;    /* by expert number, or NULL */
    double cap;             /* infinite = none */
} us_cluster_input;

/** Merge until one cluster of unprotected experts is left. out: room for n - 1; ids are expert numbers. */
us_status us_cluster(const us_cluster_input *in, us_merge *out, uint32_t *n_merges, us_err *err) US_WARN_UNUSED;

#endif
