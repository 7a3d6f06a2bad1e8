/* Expert activations and widening: against double formulas, and the same bits on every instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "base/rng.h"
#include "kernels/dispatch.h"
#include "kernels/fold.h"
#include "kernels/glu.h"
#include "kernels/widen.h"
#include "tensor/dtype.h"

enum { N = 4099 };

static double sigma(double x) {
    return 1.0 / (1.0 + exp(-x));
}
static double lim(double x, double l) {
    return fmin(x, l);
}
static double clip(double x, double l) {
    return fmax(-l, fmin(x, l));
}
static double gelu(double x) {
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double formula(us_glu act, double limit, double alpha, double g, double u) {
    switch (act) {
    case US_GLU_SILU: return g * sigma(g) * u;
    case US_GLU_CLAMP: return lim(g, limit) * sigma(lim(g, limit)) * clip(u, limit);
    case US_GLU_OSS: return (clip(u, limit) + 1) * lim(g, limit) * sigma(alpha * lim(g, limit));
    case US_GLU_STEP: return lim(g * sigma(g), limit) * clip(u, limit);
    case US_GLU_GELU: return gelu(g) * u;
    case US_GLU_RELU: return fmax(g, 0) * u;
    case US_GLU_SITU: return alpha * tanh(g / alpha) * sigma(g) * limit * tanh(u / limit);
    case US_GLU_RELU2: return u > 0 ? u * u : 0;
    case US_GLU_SILU1: return u * sigma(u);
    default: return gelu(u);
    }
}

static void activations_follow_their_formulas(void **state) {
    (void)state;
    static float gate[N], up[N], want[N], out[N];
    for (size_t i = 0; i < N; i++) {
        gate[i] = (float)(4 * us_rng_normal(1, 1, i));
        up[i] = (float)(4 * us_rng_normal(1, 2, i));
    }
    gate[0] = -200, gate[1] = 200, gate[2] = 0, up[3] = 0;
    for (int act = US_GLU_SILU; act <= US_GLU_GELU1; act++) {
        float limit = act == US_GLU_SITU ? 25.0f : 3.0f, alpha = act == US_GLU_SITU ? 4.0f : 1.702f;
        us_isa_force(US_ISA_REF);
        us_glu_apply((us_glu)act, limit, alpha, N, gate, up, want);
        for (size_t i = 0; i < N; i++) {
            double f = formula((us_glu)act, (double)limit, (double)alpha, (double)gate[i], (double)up[i]);
            double size = fabs(f) + 0.01 * fabs((double)up[i]) + (act == US_GLU_SITU ? 10.0 : 0.0) + 1e-3;
            if (fabs((double)want[i] - f) > 2e-6 * size) print_message("act %d: gate %g up %g: %g, expected %g\n", act, (double)gate[i], (double)up[i], (double)want[i], f);
            assert_true(fabs((double)want[i] - f) <= 2e-6 * size);
        }
        for (int isa = US_ISA_VEC; isa < US_ISA_COUNT; isa++) {
            if (!us_isa_force((us_isa)isa)) continue;
            us_glu_apply((us_glu)act, limit, alpha, N, gate, up, out);
            assert_memory_equal(out, want, sizeof out);
        }
        memcpy(out, up, sizeof out); /* in place */
        us_glu_apply((us_glu)act, limit, alpha, N, gate, out, out);
        assert_memory_equal(out, want, sizeof out);
    }
    us_isa_force(US_ISA_COUNT);
}

static void widening_is_exact_for_every_number(void **state) {
    (void)state;
    static uint16_t all[65536 + 1];
    static float out[65536];
    unsigned char *odd = (unsigned char *)all + 1; /* no alignment is assumed */
    for (uint32_t i = 0; i < 65536; i++) memcpy(odd + 2 * i, &(uint16_t){(uint16_t)i}, 2);
    for (int isa = 0; isa < US_ISA_COUNT; isa++) {
        if (!us_isa_force((us_isa)isa)) continue;
        us_widen_bf16(odd, 65536, out);
        for (uint32_t i = 0; i < 65536; i++) {
            float want = us_bf16_to_f32((uint16_t)i);
            assert_memory_equal(&out[i], &want, 4);
        }
        us_widen_f16(odd, 65536, out);
        for (uint32_t i = 0; i < 65536; i++) {
            float want = us_f16_to_f32((uint16_t)i);
            if (isnan(want)) assert_true(isnan(out[i]));
            else assert_memory_equal(&out[i], &want, 4);
        }
    }
    us_isa_force(US_ISA_COUNT);
}

static void folding_is_the_same_everywhere(void **state) {
    (void)state;
    float y[US_FOLD_LANES], want[3][US_FOLD_LANES] = {{0}}, got[3][US_FOLD_LANES];
    for (uint32_t row = 0; row < 50; row++) {
        uint32_t signs = (uint32_t)us_rng_u64(3, 0, row);
        for (uint32_t l = 0; l < US_FOLD_LANES; l++) {
            y[l] = (float)us_rng_normal(4, row, l);
            want[0][l] += signs >> l & 1 ? -y[l] : y[l];
            want[1][l] += y[l] * y[l];
            want[2][l] = fmaxf(want[2][l], fabsf(y[l]));
        }
    }
    for (int isa = 0; isa < US_ISA_COUNT; isa++) {
        if (!us_isa_force((us_isa)isa)) continue;
        memset(got, 0, sizeof got);
        for (uint32_t row = 0; row < 50; row++) {
            for (uint32_t l = 0; l < US_FOLD_LANES; l++) y[l] = (float)us_rng_normal(4, row, l);
            us_fold(y, (uint32_t)us_rng_u64(3, 0, row), got[0], got[1], got[2]);
        }
        assert_memory_equal(got, want, sizeof got);
    }
    us_isa_force(US_ISA_COUNT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_follow_their_formulas),
        cmocka_unit_test(widening_is_exact_for_every_number),
        cmocka_unit_test(folding_is_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
