/**
 * The matrix product by definition: the f32 chain in plain loops, and the double product that bounds its error. See gemm.h.
 * Tests: tests/unit/test_gemm.c.
 */
#include <math.h>

#include "kernels/gemm.h"

static float widen(us_dtype t, const void *p, size_t i) {
    return t == US_DTYPE_BF16 ? us_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static void tile(us_dtype t, size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    for (size_t r = 0; r < nr; r++) {
        for (size_t l = 0; l < US_GEMM_LANES; l++) {
            float acc = first ? 0.0f : c[r * ldc + l];
            for (size_t i = 0; i < k; i++) acc = fmaf(x[r * ldx + i], widen(t, lanes, i * US_GEMM_LANES + l), acc);
            c[r * ldc + l] = acc;
        }
    }
}

void us__gemm_tile_ref_f32(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    tile(US_DTYPE_F32, k, x, ldx, nr, lanes, c, ldc, first);
}

void us__gemm_tile_ref_bf16(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    tile(US_DTYPE_BF16, k, x, ldx, nr, lanes, c, ldc, first);
}

void us_gemm_ref(size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, double *y, size_t ldy) {
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double acc = 0;
            for (size_t l = 0; l < k; l++) acc += (double)x[i * ldx + l] * (double)widen(wtype, w, j * ldw + l);
            y[i * ldy + j] = acc;
        }
    }
}
