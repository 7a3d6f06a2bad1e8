/* The matrix product as a property: any shape, stride, type and instruction set gives the chain that defines it, near the double product. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "support/prop.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "kernels/gemm.h"

typedef struct matrices {
    float *x, *w, *y, *want;
    uint16_t *wb;
    double *ref;
    size_t m, n, k, ldx, ldw, ldy;
} matrices;

static bool make(matrices *a, us_prop *p) {
    a->m = 1 + prop_size(p, 60);
    a->n = 1 + prop_size(p, 80);
    a->k = 1 + prop_size(p, 600);
    a->ldx = a->k + prop_size(p, 9);
    a->ldw = a->k + prop_size(p, 9);
    a->ldy = a->n + prop_size(p, 9);
    uint64_t seed = prop_bits(p);
    double spread = prop_bool(p) ? 20.0 : 0.0; /* sizes over many powers of two */
    a->x = us_calloc(a->m * a->ldx, sizeof *a->x);
    a->w = us_calloc(a->n * a->ldw, sizeof *a->w);
    a->wb = us_calloc(a->n * a->ldw, sizeof *a->wb);
    a->y = us_calloc(a->m * a->ldy, sizeof *a->y);
    a->want = us_calloc(a->m * a->ldy, sizeof *a->want);
    a->ref = us_calloc(a->m * a->n, sizeof *a->ref);
    if (!a->x || !a->w || !a->wb || !a->y || !a->want || !a->ref) return false;
    for (size_t i = 0; i < a->m * a->ldx; i++) a->x[i] = (float)(us_rng_normal(seed, 1, i) * exp2(spread * (us_rng_double(seed, 3, i) - 0.5)));
    for (size_t i = 0; i < a->n * a->ldw; i++) a->wb[i] = us_f32_to_bf16(a->w[i] = (float)us_rng_normal(seed, 2, i));
    prop_say(p, "%zu x %zu x %zu, strides %zu %zu %zu, seed %llu", a->m, a->n, a->k, a->ldx, a->ldw, a->ldy, (unsigned long long)seed);
    return true;
}

static void unmake(matrices *a) {
    us_free(a->x);
    us_free(a->w);
    us_free(a->wb);
    us_free(a->y);
    us_free(a->want);
    us_free(a->ref);
}

/* The chain and the sum of magnitudes that bounds its error. */
static bool near_double(const matrices *a, us_dtype t, us_prop *p) {
    const void *w = t == US_DTYPE_F32 ? (const void *)a->w : a->wb;
    us_gemm_ref(a->m, a->n, a->k, a->x, a->ldx, t, w, a->ldw, a->ref, a->n);
    for (size_t i = 0; i < a->m; i++) {
        for (size_t j = 0; j < a->n; j++) {
            double size = 0;
            for (size_t l = 0; l < a->k; l++) {
                double v = t == US_DTYPE_F32 ? (double)a->w[j * a->ldw + l] : (double)us_bf16_to_f32(a->wb[j * a->ldw + l]);
                size += fabs((double)a->x[i * a->ldx + l] * v);
            }
            PROP_CHECK(p, fabs((double)a->want[i * a->ldy + j] - a->ref[i * a->n + j]) <= 0x1p-24 * (double)a->k * size);
        }
    }
    return true;
}

static bool one_type(matrices *a, us_dtype t, us_pool *pool, us_prop *p) {
    const void *w = t == US_DTYPE_F32 ? (const void *)a->w : a->wb;
    us_err err = {0};
    us_isa_force(US_ISA_REF);
    PROP_CHECK(p, us_gemm_nt(NULL, a->m, a->n, a->k, a->x, a->ldx, t, w, a->ldw, a->want, a->ldy, &err) == US_OK);
    if (!near_double(a, t, p)) return false;
    for (int isa = US_ISA_VEC; isa < US_ISA_COUNT; isa++) {
        if (!us_isa_force((us_isa)isa)) continue;
        memset(a->y, 0, a->m * a->ldy * sizeof *a->y);
        PROP_CHECK(p, us_gemm_nt(pool, a->m, a->n, a->k, a->x, a->ldx, t, w, a->ldw, a->y, a->ldy, &err) == US_OK);
        PROP_CHECK(p, memcmp(a->y, a->want, a->m * a->ldy * sizeof *a->y) == 0); /* and nothing written between the rows */
    }
    return true;
}

static bool every_path_agrees(us_prop *p, void *pool) {
    matrices a = {0};
    bool ok = make(&a, p) && one_type(&a, US_DTYPE_F32, pool, p) && one_type(&a, US_DTYPE_BF16, pool, p);
    unmake(&a);
    us_isa_force(US_ISA_COUNT);
    return ok;
}

static void products(void **state) {
    (void)state;
    us_pool *pool = NULL;
    us_err err = {0};
    assert_int_equal(us_pool_create(2, &pool, &err), US_OK);
    prop_run("gemm", every_path_agrees, pool, 60);
    us_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
