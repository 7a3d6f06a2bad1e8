/**
 * Router mathematics of every family: logits of one token -> chosen experts and their weights. Double reference.
 *
 * Codes and formulas: spec/families-2026.md section 2 (table) and 12. Ties go to the lowest index. Tests: tests/unit/test_router.c.
 */
#ifndef US_KERNELS_ROUTER_H
#define US_KERNELS_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Router mathematics: the codes of spec/families-2026.md section 2. */
typedef enum us_router_math {
    US_ROUTER_SM, US_ROUTER_SM_PLUS, US_ROUTER_SM0, US_ROUTER_DS2, US_ROUTER_DS3, US_ROUTER_DS3_0, US_ROUTER_V4, US_ROUTER_SB,
    US_ROUTER_SBX, US_ROUTER_SBE, US_ROUTER_TKS, US_ROUTER_L4, US_ROUTER_ERN, US_ROUTER_LCF, US_ROUTER_PHI, US_ROUTER_GM4,
    US_ROUTER_INK, US_ROUTER_KOL, US_ROUTER_FLI, US_ROUTER_M4, US_ROUTER_ZAY, US_ROUTER_MOGE, US_ROUTER_OTHER,
} us_router_math;

typedef struct us_router {
    us_router_math math;
    uint32_t n_rows;     /* router rows: E, plus zero experts for LCF */
    uint32_t top_k;
    uint32_t n_group, topk_group; /* 1, 1 = no groups */
    bool norm_topk;      /* SM, DS3: renormalise */
    double scaling;      /* routed_scaling_factor, 1 when absent */
    double jitter;       /* PHI: router_jitter_noise */
    double norm_min;     /* ERN: moe_norm_min */
} us_router;

/**
 * Choose for one token. logits[n_rows] (bias of a linear router included); bias[n_rows] correction bias or NULL; table: K given expert ids (hash
 * routing) or NULL. scratch: 2 * n_rows doubles. Out: expert[K] ascending by number, weight[K] beside it: what the expert's output (L4: input) is
 * multiplied with. false when the family's mathematics has no reference here.
 */
bool us_router_ref(const us_router *r, const double *logits, const double *bias, const int64_t *table, double *scratch, uint32_t *expert, double *weight);

#endif
