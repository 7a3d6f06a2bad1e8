/* Average linkage with caps. See cluster.h. Tests: tests/unit/test_cluster.c. */
#include "proxy/cluster.h"

#include <math.h>
#include <string.h>

typedef struct clusters {
    const us_cluster_input *in;
    double *d;       /* between clusters; n x n, upper and lower kept equal */
    uint32_t *slot;  /* live clusters in ascending order of their slot */
    uint32_t *rep;   /* by slot */
    uint32_t *size;
    uint32_t *next;  /* members as a chain from the slot; UINT32_MAX ends */
    uint32_t *last;
    double *spread;  /* of every expert: summed distance to all of the group */
    uint32_t live, n_protected;
} clusters;

static double member_cost(const clusters *c, uint32_t rep, uint32_t slot, bool by_load, double *weight) {
    const us_cluster_input *in = c->in;
    double sum = 0;
    for (uint32_t m = slot; m != UINT32_MAX; m = c->next[m]) {
        double p = by_load ? in->load[in->first + m] : 1.0;
        *weight += p;
        sum += p * in->d[(in->first + rep) * in->stride + in->first + m];
    }
    return sum;
}

/* Load-weighted mean distance of the members of both clusters from `rep`; less for a salient one. */
static double rep_cost(const clusters *c, uint32_t rep, uint32_t a, uint32_t b) {
    const us_cluster_input *in = c->in;
    double weight = 0, sum = 0;
    if (in->load) sum = member_cost(c, rep, a, true, &weight) + member_cost(c, rep, b, true, &weight);
    if (!(weight > 0)) {
        weight = 0;
        sum = member_cost(c, rep, a, false, &weight) + member_cost(c, rep, b, false, &weight);
    }
    double cost = sum / weight;
    if (in->saliency && in->lambda > 0) { /* the mean of the cluster is the same for both candidates, so it drops out */
        double s = in->saliency[in->first + rep];
        cost -= in->lambda * log(s > 1e-300 ? s : 1e-300);
    }
    return cost;
}

/* Should `rep` of cost ca stand for both clusters rather than `other`? Two single experts of one load cost the same: the one nearer to the whole group. */
static bool rep_wins(const clusters *c, uint32_t rep, double ca, uint32_t other, double cb) {
    if (ca != cb) return ca < cb;
    if (c->spread[rep] != c->spread[other]) return c->spread[rep] < c->spread[other];
    return rep < other;
}

/* Nearest pair whose union is at most `most` experts; false when there is none. */
static bool nearest(const clusters *c, uint32_t most, uint32_t *pa, uint32_t *pb) {
    double best = (double)INFINITY;
    bool found = false;
    for (uint32_t i = 0; i < c->live; i++) {
        uint32_t a = c->slot[i];
        const double *row = c->d + (size_t)a * c->in->n;
        for (uint32_t j = i + 1; j < c->live; j++) {
            uint32_t b = c->slot[j];
            if ((found && !(row[b] < best)) || c->size[a] + c->size[b] > most) continue;
            best = row[b];
            *pa = i;
            *pb = j;
            found = true;
        }
    }
    return found;
}

/* Cluster at place j joins the one at place i (i < j); slots are those of the lowest members. */
static us_merge merge(clusters *c, uint32_t i, uint32_t j) {
    uint32_t a = c->slot[i], b = c->slot[j], n = c->in->n;
    us_merge m = {.distance = c->d[(size_t)a * n + b]};
    double ca = rep_cost(c, c->rep[a], a, b), cb = rep_cost(c, c->rep[b], a, b);
    bool keep_a = rep_wins(c, c->rep[a], ca, c->rep[b], cb);
    m.a = c->in->first + (keep_a ? c->rep[a] : c->rep[b]);
    m.b = c->in->first + (keep_a ? c->rep[b] : c->rep[a]);
    c->rep[a] = m.a - c->in->first;
    double sa = c->size[a], sb = c->size[b];
    for (uint32_t k = 0; k < c->live; k++) {
        uint32_t o = c->slot[k];
        if (o == a || o == b) continue;
        double v = (sa * c->d[(size_t)a * n + o] + sb * c->d[(size_t)b * n + o]) / (sa + sb);
        c->d[(size_t)a * n + o] = c->d[(size_t)o * n + a] = v;
    }
    c->size[a] += c->size[b];
    c->next[c->last[a]] = b;
    c->last[a] = c->last[b];
    memmove(c->slot + j, c->slot + j + 1, (c->live - j - 1) * sizeof *c->slot);
    c->live--;
    return m;
}

static void start(clusters *c) {
    const us_cluster_input *in = c->in;
    for (uint32_t i = 0; i < in->n; i++) {
        c->spread[i] = 0;
        for (uint32_t j = 0; j < in->n; j++) c->spread[i] += c->d[(size_t)i * in->n + j] = in->d[(in->first + i) * in->stride + in->first + j];
        c->rep[i] = c->last[i] = i;
        c->size[i] = 1;
        c->next[i] = UINT32_MAX;
        if (in->protect && in->protect[in->first + i]) c->n_protected++;
        else c->slot[c->live++] = i;
    }
}

us_status us_cluster(const us_cluster_input *in, us_merge *out, uint32_t *n_merges, us_err *err) {
    size_t n = in->n ? in->n : 1, cells, bytes;
    if (!us_mul_size(n, n, &cells) || !us_mul_size(cells, sizeof(double), &bytes)) return us_fail(err, US_E_LIMIT, "limit", "too many experts to cluster");
    clusters c = {.in = in, .d = us_malloc(bytes), .spread = us_malloc(n * sizeof(double))};
    uint32_t *space = us_calloc(n, 5 * sizeof *space);
    if (!c.d || !c.spread || !space) {
        us_free(c.d);
        us_free(c.spread);
        us_free(space);
        return us_fail_nomem(err, "clustering experts");
    }
    c.slot = space, c.rep = space + n, c.size = space + 2 * n, c.next = space + 3 * n, c.last = space + 4 * n;
    start(&c);
    uint32_t done = 0;
    while (c.live > 1) {
        double limit = ceil(in->cap * (double)in->n / (double)(c.live + c.n_protected - 1));
        uint32_t i = 0, j = 1, most = limit < (double)in->n ? (uint32_t)limit : in->n;
        if (!nearest(&c, most, &i, &j)) nearest(&c, in->n, &i, &j); /* protected experts can leave no pair under the cap */
        out[done++] = merge(&c, i, j);
    }
    *n_merges = done;
    us_free(c.d);
    us_free(c.spread);
    us_free(space);
    return US_OK;
}
