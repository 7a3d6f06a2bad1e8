/**
 * f32 matrix products y[M,N] = x[M,K] w[N,K]^T with packed f32 and bf16 weights against OpenBLAS, one thread, on the shapes of spec/engineering.md A.3.
 * OpenBLAS chooses its kernels by model number and may choose badly (OPENBLAS_CORETYPE in the environment overrules it).
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "bench.h"
#include "kernels/gemm.h"

typedef struct product {
    size_t m, n, k;
    float *x, *w, *y;
    us_gemm_packed f32, bf16;
} product;

static void *memory(size_t n) {
    void *p = us_malloc_aligned(n);
    if (!p) exit(1);
    return p;
}

static product make(size_t m, size_t n, size_t k) {
    product p = {.m = m, .n = n, .k = k, .x = memory(m * k * 4), .w = memory(n * k * 4), .y = memory(m * n * 4)};
    uint16_t *h = memory(n * k * 2);
    void *a = memory(us_gemm_packed_bytes(US_DTYPE_F32, n, k)), *b = memory(us_gemm_packed_bytes(US_DTYPE_BF16, n, k));
    for (size_t i = 0; i < m * k; i++) p.x[i] = (float)us_rng_double(1, 1, i) - 0.5f;
    for (size_t i = 0; i < n * k; i++) h[i] = us_f32_to_bf16(p.w[i] = (float)us_rng_double(1, 2, i) - 0.5f);
    us_gemm_pack_nt(US_DTYPE_F32, p.w, k, n, k, a);
    us_gemm_pack_nt(US_DTYPE_BF16, h, k, n, k, b);
    us_free(h);
    p.f32 = (us_gemm_packed){n, k, US_DTYPE_F32, a};
    p.bf16 = (us_gemm_packed){n, k, US_DTYPE_BF16, b};
    return p;
}

static void own_f32(void *arg) {
    product *p = arg;
    us_gemm(NULL, p->m, p->x, p->k, &p->f32, p->y, p->n);
    bench_keep(p->y);
}

static void own_bf16(void *arg) {
    product *p = arg;
    us_gemm(NULL, p->m, p->x, p->k, &p->bf16, p->y, p->n);
    bench_keep(p->y);
}

static void blas(void *arg) {
    product *p = arg;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->m, (int)p->n, (int)p->k, 1.0f, p->x, (int)p->k, p->w, (int)p->k, 0.0f, p->y, (int)p->n);
    bench_keep(p->y);
}

int main(int argc, char **argv) {
    us_bench *b = bench_open(argc, argv, "gemm");
    static const size_t shapes[][3] = {{512, 2048, 768}, {64, 768, 2048}, {8, 768, 2048}};
    static char names[9][64];
    static product p[3];
    openblas_set_num_threads(1);
    for (int i = 0, c = 0; i < 3; i++) {
        p[i] = make(shapes[i][0], shapes[i][1], shapes[i][2]);
        double flop = 2.0 * (double)p[i].m * (double)p[i].n * (double)p[i].k;
        static void (*const fn[3])(void *) = {own_f32, own_bf16, blas};
        static const char *const what[3] = {"own f32", "own bf16 weights", "OpenBLAS f32"};
        for (int k = 0; k < 3; k++, c++) {
            snprintf(names[c], sizeof names[c], "%s %zux%zux%zu", what[k], p[i].m, p[i].n, p[i].k);
            bench_case(b, &(bench_spec){.name = names[c], .unit = "flop", .work = flop, .fn = fn[k], .arg = &p[i]});
        }
    }
    return bench_close(b);
}
