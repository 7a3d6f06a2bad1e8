/* Reference operators: hand-worked values and identities. */
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

#define NEAR(a, b) assert_true(fabs((a) - (b)) < 1e-12)

static void norms(void **state) {
    (void)state;
    double x[2] = {3, 4}, w[2] = {1, 2}, b[2] = {0, 1}, y[2];
    us_ref_rmsnorm(x, w, 0, 0, 1, 2, y);
    NEAR(y[0], 3 / sqrt(12.5));
    NEAR(y[1], 8 / sqrt(12.5));
    us_ref_rmsnorm(x, w, 1, 0, 1, 2, y);
    NEAR(y[1], 12 / sqrt(12.5));
    us_ref_layernorm(x, w, b, 0, 1, 2, y);
    NEAR(y[0], -1);
    NEAR(y[1], 3);
    us_ref_l2norm(x, 0, 1, 2);
    NEAR(x[0], 0.6);
}

static void rope_rotates_and_rotates_back(void **state) {
    (void)state;
    double x[4] = {1, 2, 3, 4}, keep[4], f[2] = {1, 0.5};
    int64_t at[1] = {3};
    memcpy(keep, x, sizeof x);
    us_ref_rope(x, 1, 1, 4, 0, 4, f, 1, false, 1, at);
    NEAR(x[0], cos(3.0) - 3 * sin(3.0));
    NEAR(x[2], 3 * cos(3.0) + sin(3.0));
    us_ref_rope(x, 1, 1, 4, 0, 4, f, 1, false, -1, at);
    for (int i = 0; i < 4; i++) NEAR(x[i], keep[i]);
    us_ref_rope(x, 1, 1, 4, 0, 4, f, 1, true, 1, at);
    NEAR(x[0], cos(3.0) - 2 * sin(3.0));
    NEAR(x[2], 3 * cos(1.5) - 4 * sin(1.5));
}

/* With equal keys the output is the mean of the visible values: window, chunk and sink change which and how many. */
static void attention_sees_what_the_mask_lets_it_see(void **state) {
    (void)state;
    double q[4] = {0}, k[4] = {0}, v[4] = {1, 2, 4, 8}, s[4], y[4], sink[1] = {0};
    us_ref_mask all = {0}, window = {.window = 2}, chunk = {.chunk = 2};
    us_ref_attention(q, k, v, 4, 1, 1, 1, 1, 1, &all, NULL, s, y);
    NEAR(y[3], 15.0 / 4);
    us_ref_attention(q, k, v, 4, 1, 1, 1, 1, 1, &window, NULL, s, y);
    NEAR(y[3], 6);
    us_ref_attention(q, k, v, 4, 1, 1, 1, 1, 1, &chunk, NULL, s, y);
    NEAR(y[2], 4);
    us_ref_attention(q, k, v, 4, 1, 1, 1, 1, 1, &all, sink, s, y);
    NEAR(y[3], 3);
}

/* beta = 1, no decay, unit keys: the state replaces what it held under that key. */
static void delta_rule_overwrites(void **state) {
    (void)state;
    double k[4] = {1, 0, 1, 0}, v[2] = {5, 7}, g[2] = {0, 0}, beta[2] = {1, 1}, S[2], y[2];
    us_ref_delta_rule(k, k, v, g, false, beta, 2, 1, 1, 2, 1, S, y);
    NEAR(y[0], 5);
    NEAR(y[1], 7);
    double decay[2] = {0, log(0.5)}, half[2] = {1, 0};
    us_ref_delta_rule(k, k, v, decay, false, half, 2, 1, 1, 2, 1, S, y);
    NEAR(y[1], 2.5);
    double per[4] = {0, 0, log(0.5), 0};
    us_ref_delta_rule(k, k, v, per, true, half, 2, 1, 1, 2, 1, S, y);
    NEAR(y[1], 2.5);
}

static void mamba_decays_and_adds(void **state) {
    (void)state;
    double x[2] = {2, 0}, B[2] = {1, 1}, C[2] = {1, 1}, dt[2] = {1, 1}, A[1] = {-1}, D[1] = {3}, h[1], y[2];
    us_ref_mamba2(x, B, C, dt, A, D, 2, 1, 1, 1, 1, h, y);
    NEAR(y[0], 2 + 6);
    NEAR(y[1], 2 * exp(-1.0));
}

static void convolution_is_causal(void **state) {
    (void)state;
    double x[3] = {1, 10, 100}, w[2] = {0.5, 2}, y[3];
    us_ref_conv1d(x, w, NULL, 3, 1, 2, false, y);
    NEAR(y[0], 2);
    NEAR(y[1], 20.5);
    NEAR(y[2], 205);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),          cmocka_unit_test(rope_rotates_and_rotates_back), cmocka_unit_test(attention_sees_what_the_mask_lets_it_see),
        cmocka_unit_test(delta_rule_overwrites), cmocka_unit_test(mamba_decays_and_adds),  cmocka_unit_test(convolution_is_causal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
