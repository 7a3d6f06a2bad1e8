/* Router mathematics: hand-worked values, ties, groups, and the exactness of slicing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/rng.h"
#include "kernels/ref.h"
#include "kernels/router.h"

#define NEAR(a, b) assert_true(fabs((a) - (b)) < 1e-12)

static void softmax_families_renormalise_or_not(void **state) {
    (void)state;
    double z[4] = {log(1.0), log(4.0), log(2.0), log(3.0)}, scratch[8], w[2]; /* softmax .1 .4 .2 .3 */
    uint32_t e[2];
    us_router r = {.math = US_ROUTER_SM, .n_rows = 4, .top_k = 2, .n_group = 1, .topk_group = 1, .norm_topk = false, .scaling = 1};
    assert_true(us_router_ref(&r, z, NULL, NULL, scratch, e, w));
    assert_int_equal(e[0], 1);
    assert_int_equal(e[1], 3);
    NEAR(w[0], 0.4);
    NEAR(w[1], 0.3);
    r.norm_topk = true;
    assert_true(us_router_ref(&r, z, NULL, NULL, scratch, e, w));
    NEAR(w[0], 4.0 / 7);
    r.math = US_ROUTER_TKS;
    assert_true(us_router_ref(&r, z, NULL, NULL, scratch, e, w));
    NEAR(w[0], 4.0 / 7);
}

static void bias_selects_but_does_not_weigh(void **state) {
    (void)state;
    double z[4] = {0, 0, 0, 0}, bias[4] = {0, 0.3, 0, 0.4}, scratch[8], w[2];
    uint32_t e[2];
    us_router r = {.math = US_ROUTER_DS3, .n_rows = 4, .top_k = 2, .n_group = 1, .topk_group = 1, .norm_topk = true, .scaling = 2.5};
    assert_true(us_router_ref(&r, z, bias, NULL, scratch, e, w));
    assert_int_equal(e[0], 1);
    assert_int_equal(e[1], 3);
    NEAR(w[0], 1.25);
    NEAR(w[1], 1.25);
}

static void ties_go_to_the_lowest_index(void **state) {
    (void)state;
    double x[6] = {1, 3, 3, 2, 3, (double)NAN};
    uint32_t e[4];
    us_ref_topk(x, 6, 4, e);
    const uint32_t want[4] = {1, 2, 4, 3};
    assert_memory_equal(e, want, sizeof want);
}

static void groups_are_scored_by_sum_of_two_or_by_the_best(void **state) {
    (void)state;
    /* Group 0 has the single best expert, group 1 the best pair. */
    double z[4] = {5, -5, 2, 2}, scratch[8], w[2];
    uint32_t e[2];
    us_router r = {.math = US_ROUTER_DS3, .n_rows = 4, .top_k = 2, .n_group = 2, .topk_group = 1, .norm_topk = true, .scaling = 1};
    assert_true(us_router_ref(&r, z, NULL, NULL, scratch, e, w));
    assert_int_equal(e[0], 2);
    assert_int_equal(e[1], 3);
    r.math = US_ROUTER_DS2;
    assert_true(us_router_ref(&r, z, NULL, NULL, scratch, e, w));
    assert_int_equal(e[0], 0);
}

static void sparse_mixer_drops_what_is_outside_the_band(void **state) {
    (void)state;
    double z[3] = {1.0, 0.99, 0.5}, scratch[6], w[2];
    uint32_t e[2];
    us_router r = {.math = US_ROUTER_PHI, .n_rows = 3, .top_k = 2, .n_group = 1, .topk_group = 1, .jitter = 0.01, .scaling = 1};
    assert_true(us_router_ref(&r, z, NULL, NULL, scratch, e, w));
    assert_int_equal(e[0], 0);
    assert_int_equal(e[1], 1);
    NEAR(w[0], 1 / (1 + exp(-0.01)));
    NEAR(w[1], 1.0); /* the second round sees only itself in the band */
}

static void table_gives_the_experts(void **state) {
    (void)state;
    double z[3] = {0, 1, 2}, scratch[6], w[2];
    int64_t table[2] = {2, 0};
    uint32_t e[2];
    us_router r = {.math = US_ROUTER_V4, .n_rows = 3, .top_k = 2, .n_group = 1, .topk_group = 1, .scaling = 1.5};
    assert_true(us_router_ref(&r, z, NULL, table, scratch, e, w));
    assert_int_equal(e[0], 0);
    assert_int_equal(e[1], 2);
    double a = sqrt(log(2.0)), b = sqrt(log1p(exp(2.0)));
    NEAR(w[0], 1.5 * a / (a + b));
}

/* Slicing router rows must equal masking the dropped experts by minus infinity: the exactness every proxy rests on. */
static void slicing_equals_masking(void **state) {
    (void)state;
    enum { E = 16, KEEP = 8, K = 3 };
    static const us_router_math kinds[] = {US_ROUTER_SM, US_ROUTER_SM_PLUS, US_ROUTER_TKS, US_ROUTER_DS3, US_ROUTER_SB, US_ROUTER_V4};
    for (size_t m = 0; m < sizeof kinds / sizeof *kinds; m++)
        for (uint64_t trial = 0; trial < 50; trial++) {
            double full[E], bias[E], cut[KEEP], cut_bias[KEEP], scratch[2 * E], wf[K], wc[K];
            uint32_t ef[K], ec[K], perm[E];
            us_rng_permutation(7, m * 1000 + trial, E, perm);
            bool softmax = kinds[m] == US_ROUTER_SM || kinds[m] == US_ROUTER_SM_PLUS || kinds[m] == US_ROUTER_TKS;
            for (uint32_t i = 0; i < E; i++) {
                full[i] = us_rng_normal(1, m * 1000 + trial, i);
                bias[i] = us_rng_normal(2, m * 1000 + trial, i) * 0.1;
            }
            for (uint32_t i = 0; i < KEEP; i++) {
                cut[i] = full[perm[i]];
                cut_bias[i] = bias[perm[i]];
            }
            for (uint32_t i = KEEP; i < E; i++) {
                if (softmax) full[perm[i]] = -(double)INFINITY;
                else bias[perm[i]] = -(double)INFINITY;
            }
            us_router r = {.math = kinds[m], .n_rows = E, .top_k = K, .n_group = 1, .topk_group = 1, .norm_topk = true, .scaling = 1};
            assert_true(us_router_ref(&r, full, softmax ? NULL : bias, NULL, scratch, ef, wf));
            r.n_rows = KEEP;
            assert_true(us_router_ref(&r, cut, softmax ? NULL : cut_bias, NULL, scratch, ec, wc));
            for (int i = 0; i < K; i++) {
                bool found = false;
                for (int j = 0; j < K; j++)
                    if (perm[ec[j]] == ef[i]) {
                        found = true;
                        NEAR(wc[j], wf[i]);
                    }
                assert_true(found);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_families_renormalise_or_not),
        cmocka_unit_test(bias_selects_but_does_not_weigh),
        cmocka_unit_test(ties_go_to_the_lowest_index),
        cmocka_unit_test(groups_are_scored_by_sum_of_two_or_by_the_best),
        cmocka_unit_test(sparse_mixer_drops_what_is_outside_the_band),
        cmocka_unit_test(table_gives_the_experts),
        cmocka_unit_test(slicing_equals_masking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
