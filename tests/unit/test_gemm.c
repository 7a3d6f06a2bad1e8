/* The matrix product: one defined result on every path, and its error against double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "kernels/gemm.h"

typedef struct problem {
    size_t m, n, k, ldx, ldw;
    float *x, *w;
    uint16_t *wb;
} problem;

static problem make(size_t m, size_t n, size_t k, uint64_t seed) {
    problem p = {.m = m, .n = n, .k = k, .ldx = k + 3, .ldw = k + 1};
    p.x = us_calloc(m * p.ldx + 1, sizeof *p.x);
    p.w = us_calloc(n * p.ldw + 1, sizeof *p.w);
    p.wb = us_calloc(n * p.ldw + 1, sizeof *p.wb);
    assert_true(p.x && p.w && p.wb);
    for (size_t i = 0; i < m * p.ldx; i++) p.x[i] = (float)us_rng_normal(seed, 1, i);
    for (size_t i = 0; i < n * p.ldw; i++) {
        p.wb[i] = us_f32_to_bf16((float)us_rng_normal(seed, 2, i));
        p.w[i] = i % 7 ? us_bf16_to_f32(p.wb[i]) : us_bf16_to_f32(p.wb[i]) * 1.1f;
    }
    return p;
}

static void unmake(problem *p) {
    us_free(p->x);
    us_free(p->w);
    us_free(p->wb);
}

static float *product(const problem *p, us_pool *pool, us_dtype t, size_t m) {
    float *y = us_malloc((m * p->n + 1) * sizeof *y);
    assert_non_null(y);
    for (size_t i = 0; i < m * p->n; i++) y[i] = NAN; /* every output must be written */
    us_err err = {0};
    assert_int_equal(us_gemm_nt(pool, m, p->n, p->k, p->x, p->ldx, t, t == US_DTYPE_F32 ? (void *)p->w : p->wb, p->ldw, y, p->n, &err), US_OK);
    return y;
}

static void chain(const problem *p, us_dtype t, float *y) {
    for (size_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < p->n; j++) {
            float c = 0;
            for (size_t k = 0; k < p->k; k++) {
                float w = t == US_DTYPE_F32 ? p->w[j * p->ldw + k] : us_bf16_to_f32(p->wb[j * p->ldw + k]);
                c = fmaf(p->x[i * p->ldx + k], w, c);
            }
            y[i * p->n + j] = c;
        }
    }
}

static void every_path_gives_the_defined_bits(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1}, {1, 32, 7}, {5, 33, 64}, {12, 96, 300}, {13, 31, 257}, {49, 70, 512}, {97, 130, 77}, {3, 5, 0}, {390, 45, 530}, {12, 20, 515}};
    us_pool *pool = NULL;
    us_err err = {0};
    assert_int_equal(us_pool_create(3, &pool, &err), US_OK);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        problem p = make(shapes[s][0], shapes[s][1], shapes[s][2], s);
        float *want = us_malloc((p.m * p.n + 1) * sizeof *want);
        assert_non_null(want);
        for (int t = 0; t < 2; t++) {
            us_dtype type = t ? US_DTYPE_BF16 : US_DTYPE_F32;
            chain(&p, type, want);
            for (int isa = 0; isa < US_ISA_COUNT; isa++) {
                if (!us_isa_force((us_isa)isa)) continue;
                for (int threads = 0; threads < 2; threads++) {
                    float *y = product(&p, threads ? pool : NULL, type, p.m);
                    assert_memory_equal(y, want, p.m * p.n * sizeof *y);
                    us_free(y);
                }
            }
        }
        us_free(want);
        unmake(&p);
    }
    us_isa_force(US_ISA_COUNT);
    us_pool_free(pool);
}

/* Values that round twice in naive emulations of fma, and the edges of the exponent range. */
static void portable_fma_rounds_once(void **state) {
    (void)state;
    float lanes[US_GEMM_LANES], c[US_GEMM_LANES], want[US_GEMM_LANES];
    for (uint64_t trial = 0; trial < 40000; trial++) {
        float x = 0;
        for (size_t l = 0; l < US_GEMM_LANES; l++) {
            uint32_t w[4];
            us_philox(5, trial, l, w);
            if (trial & 1) { /* near a tie: c is a power of two times odd, the product is far below its last bit */
                lanes[l] = ldexpf(1.0f + (float)(w[0] & 3) * 0x1p-23f, -(int)(24 + w[1] % 30));
                c[l] = ldexpf(1.0f + (float)(w[2] & 0xff) * 0x1p-23f, (int)(w[3] % 3)) * (w[3] & 16 ? -1.0f : 1.0f);
                x = trial & 2 ? 1.0f + 0x1p-12f : -1.0f + 0x1p-24f;
            } else { /* any bits, denormals and infinities too */
                memcpy(&lanes[l], &w[0], 4);
                memcpy(&c[l], &w[1], 4);
                if (!l) memcpy(&x, &w[2], 4);
            }
        }
        for (size_t l = 0; l < US_GEMM_LANES; l++) want[l] = fmaf(x, lanes[l], c[l]);
        us__gemm_tile_vec_f32(1, &x, 1, 1, lanes, c, US_GEMM_LANES, false);
        for (size_t l = 0; l < US_GEMM_LANES; l++) {
            if (isnan(want[l])) assert_true(isnan(c[l]));
            else assert_memory_equal(&c[l], &want[l], 4);
        }
    }
}

static void rows_do_not_depend_on_the_batch(void **state) {
    (void)state;
    problem p = make(60, 45, 700, 9);
    float *all = product(&p, NULL, US_DTYPE_F32, 60);
    for (size_t m = 1; m < 60; m = m * 2 + 1) {
        float *some = product(&p, NULL, US_DTYPE_F32, m);
        assert_memory_equal(all, some, m * p.n * sizeof *all);
        us_free(some);
    }
    us_free(all);
    unmake(&p);
}

static void error_is_within_the_bound(void **state) {
    (void)state;
    problem p = make(20, 40, 2048, 3);
    float *y = product(&p, NULL, US_DTYPE_F32, p.m);
    double *ref = us_malloc(p.m * p.n * sizeof *ref), worst = 0;
    assert_non_null(ref);
    us_gemm_ref(p.m, p.n, p.k, p.x, p.ldx, US_DTYPE_F32, p.w, p.ldw, ref, p.n);
    for (size_t i = 0; i < p.m * p.n; i++) worst = fmax(worst, fabs((double)y[i] - ref[i]));
    /* Terms are of unit size, so the partial sums are sqrt(k); each step rounds by 2^-24 of that, and rounding errors add as a random walk. */
    double bound = 4.0 * 0x1p-24 * (double)p.k;
    assert_true(worst > 0 && worst < bound);
    us_free(ref);
    us_free(y);
    unmake(&p);
}

static void nn_equals_nt_of_the_transpose(void **state) {
    (void)state;
    problem p = make(14, 37, 53, 4);
    float *wt = us_malloc(p.n * p.k * sizeof *wt), *y = us_malloc(p.m * p.n * sizeof *y), *want = product(&p, NULL, US_DTYPE_F32, p.m);
    assert_true(wt && y);
    for (size_t i = 0; i < p.n; i++) {
        for (size_t j = 0; j < p.k; j++) wt[j * p.n + i] = p.w[i * p.ldw + j];
    }
    us_err err = {0};
    assert_int_equal(us_gemm_nn(NULL, p.m, p.n, p.k, p.x, p.ldx, US_DTYPE_F32, wt, p.n, y, p.n, &err), US_OK);
    assert_memory_equal(y, want, p.m * p.n * sizeof *y);
    assert_int_equal(us_gemm_nn(NULL, 1, 1, 1, p.x, 1, US_DTYPE_F16, wt, 1, y, 1, &err), US_E_UNSUPPORTED);
    us_free(wt);
    us_free(y);
    us_free(want);
    unmake(&p);
}

/* Every path: the chain over the integers, times the scale; and the quantisation is the nearest one. */
static void int8_weights(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{1, 32, 64}, {2, 5, 7}, {3, 33, 300}, {12, 64, 129}, {13, 40, 515}, {200, 70, 77}, {4, 3, 0}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        problem p = make(shapes[s][0], shapes[s][1], shapes[s][2], 20 + s);
        if (p.k) memset(p.w + (p.n - 1) * p.ldw, 0, p.k * sizeof *p.w); /* a row of zeros */
        int8_t *packed = us_malloc_aligned(us_gemm_packed_bytes(US_DTYPE_I8, p.n, p.k) + 1);
        float *scale = us_malloc(p.n * sizeof *scale), *y = us_malloc(p.m * p.n * sizeof *y), *want = us_malloc(p.m * p.n * sizeof *want);
        assert_true(packed && scale && y && want);
        us_gemm_quantise_i8(US_DTYPE_F32, p.w, p.ldw, p.n, p.k, packed, scale);
        for (size_t j = 0; j < p.n; j++) {
            const int8_t *q = packed + j / US_GEMM_LANES * p.k * US_GEMM_LANES + j % US_GEMM_LANES;
            for (size_t k = 0; k < p.k; k++)
                assert_true(fabs((double)q[k * US_GEMM_LANES] * (double)scale[j] - (double)p.w[j * p.ldw + k]) <= 0.50001 * (double)scale[j]);
            for (size_t i = 0; i < p.m; i++) {
                float c = 0;
                for (size_t k = 0; k < p.k; k++) c = fmaf(p.x[i * p.ldx + k], (float)q[k * US_GEMM_LANES], c);
                want[i * p.n + j] = p.k ? c * scale[j] : 0;
            }
        }
        us_gemm_packed w = {p.n, p.k, US_DTYPE_I8, packed, scale};
        for (int isa = 0; isa < US_ISA_COUNT; isa++) {
            if (!us_isa_force((us_isa)isa)) continue;
            for (size_t i = 0; i < p.m * p.n; i++) y[i] = NAN;
            us_gemm(NULL, p.m, p.x, p.ldx, &w, y, p.n);
            for (size_t i = 0; i < p.m * p.n; i++) assert_true(y[i] == want[i]); /* a zero may have either sign */
        }
        us_isa_force(US_ISA_COUNT);
        us_free(packed);
        us_free(scale);
        us_free(y);
        us_free(want);
        unmake(&p);
    }
}

static void isa_can_be_forced(void **state) {
    (void)state;
    assert_true(us_isa_force(US_ISA_REF));
    assert_int_equal(us_isa_active(), US_ISA_REF);
    us_isa_force(US_ISA_COUNT);
    assert_true(us_isa_available(us_isa_active()));
    assert_string_equal(us_isa_name(US_ISA_AVX512), "avx512");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_path_gives_the_defined_bits), cmocka_unit_test(portable_fma_rounds_once), cmocka_unit_test(rows_do_not_depend_on_the_batch),
        cmocka_unit_test(error_is_within_the_bound),         cmocka_unit_test(nn_equals_nt_of_the_transpose), cmocka_unit_test(isa_can_be_forced),
        cmocka_unit_test(int8_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
