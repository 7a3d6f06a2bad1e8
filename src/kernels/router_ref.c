/* Reference router: see router.h. */
#include "kernels/router.h"

#include <math.h>

#include "kernels/ref.h"

#define NEG_INF (-(double)INFINITY)

static void sort_by_number(uint32_t *expert, double *weight, size_t k) {
    for (size_t i = 1; i < k; i++)
        for (size_t j = i; j > 0 && expert[j - 1] > expert[j]; j--) {
            uint32_t e = expert[j];
            double w = weight[j];
            expert[j] = expert[j - 1];
            weight[j] = weight[j - 1];
            expert[j - 1] = e;
            weight[j - 1] = w;
        }
}

/* Hide all but the topk_group best groups of score c; a group is scored by its best expert or by the sum of its two best. */
static void mask_groups(const us_router *r, double *c, bool two_best, double hidden) {
    uint32_t G = r->n_group, size = r->n_rows / G, keep[256];
    double score[256] = {0};
    for (uint32_t g = 0; g < G; g++) {
        uint32_t best[2];
        us_ref_topk(c + (size_t)g * size, size, two_best ? 2 : 1, best);
        score[g] = c[g * size + best[0]] + (two_best ? c[g * size + best[1]] : 0);
    }
    us_ref_topk(score, G, r->topk_group, keep);
    for (uint32_t g = 0; g < G; g++) {
        bool kept = false;
        for (uint32_t i = 0; i < r->topk_group; i++) kept |= keep[i] == g;
        for (uint32_t i = 0; i < size && !kept; i++) c[g * size + i] = hidden;
    }
}

/* phimoe: two rounds of arg max, each over the logits within a relative band of the largest (spec 12, phimoe). */
static void sparse_mixer(const us_router *r, double *z, double *s, uint32_t *expert, double *weight) {
    for (uint32_t round = 0; round < r->top_k; round++) {
        uint32_t best;
        us_ref_topk(z, r->n_rows, 1, &best);
        for (uint32_t i = 0; i < r->n_rows; i++) {
            double divisor = fabs(z[i]) > z[best] ? fabs(z[i]) : z[best];
            s[i] = isinf(z[i]) || (z[best] - z[i]) / divisor > 2 * r->jitter ? NEG_INF : z[i];
        }
        us_ref_softmax(s, r->n_rows);
        expert[round] = best;
        weight[round] = s[best];
        z[best] = NEG_INF;
    }
}

/* Weights of the chosen from scores s: optional normalisation, then scaling. */
static void take(const double *s, const uint32_t *expert, size_t k, bool normalise, double eps, double floor, double scaling, double *weight) {
    double sum = eps;
    for (size_t i = 0; i < k; i++) sum += s[expert[i]];
    if (sum < floor) sum = floor;
    for (size_t i = 0; i < k; i++) weight[i] = s[expert[i]] / (normalise ? sum : 1) * scaling;
}

bool us_router_ref(const us_router *r, const double *logits, const double *bias, const int64_t *table, double *scratch, uint32_t *expert, double *weight) {
    uint32_t n = r->n_rows, k = r->top_k;
    double *s = scratch, *c = scratch + n;
    bool grouped = r->n_group > 1 && r->n_group <= 256;
    for (uint32_t i = 0; i < n; i++) s[i] = logits[i];
    switch (r->math) {
    case US_ROUTER_SM: case US_ROUTER_SM_PLUS: case US_ROUTER_SM0: case US_ROUTER_DS2: case US_ROUTER_ERN: case US_ROUTER_LCF:
        us_ref_softmax(s, n);
        break;
    case US_ROUTER_DS3: case US_ROUTER_DS3_0: case US_ROUTER_SB: case US_ROUTER_SBX: case US_ROUTER_SBE: case US_ROUTER_FLI:
        for (uint32_t i = 0; i < n; i++) s[i] = us_ref_sigmoid(s[i]);
        break;
    case US_ROUTER_V4:
        for (uint32_t i = 0; i < n; i++) s[i] = sqrt(us_ref_softplus(s[i]));
        break;
    case US_ROUTER_TKS: case US_ROUTER_L4: break;
    case US_ROUTER_PHI:
        sparse_mixer(r, s, c, expert, weight);
        sort_by_number(expert, weight, k);
        return true;
    default: return false;
    }
    for (uint32_t i = 0; i < n; i++) c[i] = s[i] + (bias ? bias[i] : 0);
    if (grouped && r->math == US_ROUTER_DS2) mask_groups(r, c, false, 0);
    if (grouped && r->math == US_ROUTER_DS3) mask_groups(r, c, true, NEG_INF);
    if (grouped && r->math == US_ROUTER_DS3_0) mask_groups(r, c, true, 0);
    if (table)
        for (uint32_t i = 0; i < k; i++) expert[i] = (uint32_t)table[i];
    else us_ref_topk(c, n, k, expert);

    switch (r->math) {
    case US_ROUTER_SM: take(s, expert, k, r->norm_topk, 0, 0, 1, weight); break;
    case US_ROUTER_SM_PLUS: take(s, expert, k, true, 0, 0, 1, weight); break;
    case US_ROUTER_SM0: take(s, expert, k, false, 0, 0, 1, weight); break;
    case US_ROUTER_DS2: case US_ROUTER_LCF: take(s, expert, k, false, 0, 0, r->scaling, weight); break;
    case US_ROUTER_DS3: case US_ROUTER_DS3_0: take(s, expert, k, r->norm_topk, 1e-20, 0, r->scaling, weight); break;
    case US_ROUTER_V4: take(s, expert, k, true, 1e-20, 0, r->scaling, weight); break;
    case US_ROUTER_SB: case US_ROUTER_SBX: case US_ROUTER_FLI: take(s, expert, k, true, 0, 0, 1, weight); break;
    case US_ROUTER_SBE: take(s, expert, k, true, 1e-20, 0, r->scaling, weight); break;
    case US_ROUTER_ERN: take(s, expert, k, true, 0, r->norm_min, 1, weight); break;
    case US_ROUTER_L4:
        for (uint32_t i = 0; i < k; i++) weight[i] = us_ref_sigmoid(s[expert[i]]);
        break;
    default: /* TKS: softmax over the chosen logits only */
        for (uint32_t i = 0; i < k; i++) weight[i] = s[expert[i]];
        us_ref_softmax(weight, k);
    }
    sort_by_number(expert, weight, k);
    return true;
}
