/**
 * Matrix products y[M,N] = x[M,K] w[N,K]^T on the shapes of spec/engineering.md A.3: own f32, bf16-weight and int8-weight kernels beside OpenBLAS and, where the
 * build found it, oneDNN; one thread and two. Then products with one row whose weights come from memory, and grouped experts. Weights are packed in
 * advance (oneDNN's too); OpenBLAS has no such form. OpenBLAS chooses its kernels by model number and may choose badly (OPENBLAS_CORETYPE overrules it).
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "bench.h"
#include "kernels/gemm.h"
#include "kernels/peaks.h"

#if defined(US_HAVE_DNNL)
#include "dnnl_peer.h"
#endif

enum { THREADS = 2, SHAPES = 4, MATRICES = 24, EXPERTS = 64, EXPERT_N = 768, EXPERT_K = 2048, EXPERT_ROWS_MAX = 32 };

static us_pool *pool;

typedef struct product {
    size_t m, n, k;
    float *x, *w, *y;
    us_gemm_packed f32, bf16;
#if defined(US_HAVE_DNNL)
    dnnl_peer *peer_f32, *peer_bf16;
#endif
} product;

static void *memory(size_t n) {
    void *p = us_malloc_large(n, false);
    if (!p) exit(1);
    return p;
}

static void fill(float *x, size_t n, uint64_t stream) {
    for (size_t i = 0; i < n; i++) x[i] = (float)us_rng_double(1, stream, i) - 0.5f;
}

/* w[n,k] packed in one of the types. */
static us_gemm_packed packed(us_dtype type, const float *w, size_t n, size_t k) {
    void *to = memory(us_gemm_packed_bytes(type, n, k));
    us_gemm_packed p = {n, k, type, to, NULL};
    if (type == US_DTYPE_I8) {
        float *scale = memory(n * sizeof *scale);
        us_gemm_quantise_i8(US_DTYPE_F32, w, k, n, k, to, scale);
        p.scale = scale;
    } else if (type == US_DTYPE_BF16) {
        uint16_t *h = memory(n * k * sizeof *h);
        for (size_t i = 0; i < n * k; i++) h[i] = us_f32_to_bf16(w[i]);
        us_gemm_pack_nt(type, h, k, n, k, to);
        us_free(h);
    } else {
        us_gemm_pack_nt(type, w, k, n, k, to);
    }
    return p;
}

static product make(size_t m, size_t n, size_t k) {
    product p = {.m = m, .n = n, .k = k, .x = memory(m * k * 4), .w = memory(n * k * 4), .y = memory(m * n * 4)};
    fill(p.x, m * k, 1);
    fill(p.w, n * k, 2);
    p.f32 = packed(US_DTYPE_F32, p.w, n, k);
    p.bf16 = packed(US_DTYPE_BF16, p.w, n, k);
#if defined(US_HAVE_DNNL)
    p.peer_f32 = dnnl_peer_matmul(m, n, k, p.x, p.w, p.y, false);
    p.peer_bf16 = dnnl_peer_matmul(m, n, k, p.x, p.w, p.y, true);
#endif
    return p;
}

static void own(const product *p, us_pool *with, const us_gemm_packed *w) {
    us_gemm(with, p->m, p->x, p->k, w, p->y, p->n);
    bench_keep(p->y);
}
static void own_f32_1(void *arg) { own(arg, NULL, &((product *)arg)->f32); }
static void own_f32_2(void *arg) { own(arg, pool, &((product *)arg)->f32); }
static void own_bf16_1(void *arg) { own(arg, NULL, &((product *)arg)->bf16); }
static void own_bf16_2(void *arg) { own(arg, pool, &((product *)arg)->bf16); }

static void blas(const product *p, int threads) {
    openblas_set_num_threads(threads);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->m, (int)p->n, (int)p->k, 1.0f, p->x, (int)p->k, p->w, (int)p->k, 0.0f, p->y, (int)p->n);
    bench_keep(p->y);
}
static void blas_1(void *arg) { blas(arg, 1); }
static void blas_2(void *arg) { blas(arg, THREADS); }

#if defined(US_HAVE_DNNL)
static void dnnl_f32_1(void *arg) { dnnl_peer_run(((product *)arg)->peer_f32, 1); }
static void dnnl_f32_2(void *arg) { dnnl_peer_run(((product *)arg)->peer_f32, THREADS); }
static void dnnl_bf16_1(void *arg) { dnnl_peer_run(((product *)arg)->peer_bf16, 1); }
static void dnnl_bf16_2(void *arg) { dnnl_peer_run(((product *)arg)->peer_bf16, THREADS); }
#endif

static void products(us_bench *b) {
    static const size_t shapes[SHAPES][3] = {{4096, 2048, 2048}, {512, 2048, 768}, {64, 768, 2048}, {8, 768, 2048}};
    static const struct {
        const char *what;
        void (*fn[THREADS])(void *);
    } ways[] = {
        {"own f32", {own_f32_1, own_f32_2}}, {"own bf16 weights", {own_bf16_1, own_bf16_2}}, {"OpenBLAS f32", {blas_1, blas_2}},
#if defined(US_HAVE_DNNL)
        {"oneDNN f32, packed", {dnnl_f32_1, dnnl_f32_2}}, {"oneDNN bf16, packed", {dnnl_bf16_1, dnnl_bf16_2}},
#endif
    };
    enum { WAYS = sizeof ways / sizeof *ways };
    static char names[SHAPES * WAYS * THREADS][64];
    static product p[SHAPES];
    for (int i = 0, c = 0; i < SHAPES; i++) {
        p[i] = make(shapes[i][0], shapes[i][1], shapes[i][2]);
        double flop = 2.0 * (double)p[i].m * (double)p[i].n * (double)p[i].k;
        for (int k = 0; k < WAYS; k++) {
#if defined(US_HAVE_DNNL)
            if (ways[k].fn[0] == dnnl_bf16_1 && !p[i].peer_bf16) continue;
#endif
            for (int t = 0; t < THREADS; t++, c++) {
                snprintf(names[c], sizeof names[c], "%s %zux%zux%zu, %d thread%s", ways[k].what, p[i].m, p[i].n, p[i].k, t + 1, t ? "s" : "");
                bench_case(b, &(bench_spec){.name = names[c], .unit = "flop", .work = flop, .fn = ways[k].fn[t], .arg = &p[i], .threads = t + 1});
            }
        }
    }
}

/* ---- one row: MATRICES of 2048 x 2048 in turn, so that weights come from memory ---- */

typedef struct rows_of_one {
    float *x, *y, *w[MATRICES];
    us_gemm_packed f32[MATRICES], bf16[MATRICES], i8[MATRICES];
} rows_of_one;

enum { ONE = 2048 };

static void each(const us_gemm_packed *w, const rows_of_one *r) {
    for (int i = 0; i < MATRICES; i++) us_gemm(pool, 1, r->x, ONE, &w[i], r->y, ONE);
    bench_keep(r->y);
}
static void one_f32(void *arg) { each(((rows_of_one *)arg)->f32, arg); }
static void one_bf16(void *arg) { each(((rows_of_one *)arg)->bf16, arg); }
static void one_i8(void *arg) { each(((rows_of_one *)arg)->i8, arg); }
static void one_blas(void *arg) {
    const rows_of_one *r = arg;
    openblas_set_num_threads(THREADS);
    for (int i = 0; i < MATRICES; i++) cblas_sgemv(CblasRowMajor, CblasNoTrans, ONE, ONE, 1.0f, r->w[i], ONE, r->x, 1, 0.0f, r->y, 1);
    bench_keep(r->y);
}

typedef struct reading {
    const char *at;
    size_t bytes, part;
} reading;

static void read_part(void *arg, int64_t i, int thread) {
    (void)thread;
    const reading *r = arg;
    us_peaks_read(r->at + (size_t)i * r->part, r->part);
}
/* The yardstick of the rows above: every byte read once by as many threads. */
static void read_all(void *arg) {
    reading *r = arg;
    us_pool_run(pool, read_part, r, (int64_t)(r->bytes / r->part));
}

static void single_rows(us_bench *b) {
    static rows_of_one r;
    static reading plain;
    r.x = memory(ONE * sizeof *r.x);
    r.y = memory(ONE * sizeof *r.y);
    fill(r.x, ONE, 3);
    for (int i = 0; i < MATRICES; i++) {
        r.w[i] = memory((size_t)ONE * ONE * sizeof(float));
        fill(r.w[i], (size_t)ONE * ONE, 4 + (uint64_t)i);
        r.f32[i] = packed(US_DTYPE_F32, r.w[i], ONE, ONE);
        r.bf16[i] = packed(US_DTYPE_BF16, r.w[i], ONE, ONE);
        r.i8[i] = packed(US_DTYPE_I8, r.w[i], ONE, ONE);
    }
    plain = (reading){memory(256 << 20), 256 << 20, 1 << 20};
    memset((void *)(uintptr_t)plain.at, 1, plain.bytes);
    double weights = (double)MATRICES * ONE * ONE;
    bench_case(b, &(bench_spec){.name = "reading memory, 2 threads", .unit = "B", .work = (double)plain.bytes, .fn = read_all, .arg = &plain, .threads = THREADS});
    bench_case(b, &(bench_spec){.name = "own f32, one row from memory, 2 threads", .unit = "B", .work = 4 * weights, .fn = one_f32, .arg = &r, .threads = THREADS});
    bench_case(b, &(bench_spec){.name = "own bf16 weights, one row, 2 threads", .unit = "B", .work = 2 * weights, .fn = one_bf16, .arg = &r, .threads = THREADS});
    bench_case(b, &(bench_spec){.name = "own int8 weights, one row, 2 threads", .unit = "B", .work = weights, .fn = one_i8, .arg = &r, .threads = THREADS});
    bench_case(b, &(bench_spec){.name = "OpenBLAS sgemv, 2 threads", .unit = "B", .work = 4 * weights, .fn = one_blas, .arg = &r, .threads = THREADS});
}

/* ---- grouped experts: 1 to 32 rows each ---- */

typedef struct group {
    float *x, *y, *w[EXPERTS];
    us_gemm_packed bf16[EXPERTS];
    size_t rows[EXPERTS], first[EXPERTS], total;
} group;

static void one_expert(void *arg, int64_t i, int thread) {
    (void)thread;
    const group *g = arg;
    us_gemm(NULL, g->rows[i], g->x + g->first[i] * EXPERT_K, EXPERT_K, &g->bf16[i], g->y + g->first[i] * EXPERT_N, EXPERT_N);
}
static void experts(void *arg) {
    us_pool_run(pool, one_expert, arg, EXPERTS);
    bench_keep(((group *)arg)->y);
}
static void experts_blas(void *arg) {
    const group *g = arg;
    openblas_set_num_threads(THREADS);
    for (int i = 0; i < EXPERTS; i++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)g->rows[i], EXPERT_N, EXPERT_K, 1.0f, g->x + g->first[i] * EXPERT_K, EXPERT_K, g->w[i], EXPERT_K, 0.0f,
                    g->y + g->first[i] * EXPERT_N, EXPERT_N);
    bench_keep(g->y);
}

static void grouped(us_bench *b) {
    static group g;
    for (int i = 0; i < EXPERTS; i++) {
        g.rows[i] = 1 + (size_t)us_rng_below(1, 7, (uint64_t)i, EXPERT_ROWS_MAX);
        g.first[i] = g.total;
        g.total += g.rows[i];
        g.w[i] = memory((size_t)EXPERT_N * EXPERT_K * sizeof(float));
        fill(g.w[i], (size_t)EXPERT_N * EXPERT_K, 100 + (uint64_t)i);
        g.bf16[i] = packed(US_DTYPE_BF16, g.w[i], EXPERT_N, EXPERT_K);
    }
    g.x = memory(g.total * EXPERT_K * sizeof *g.x);
    g.y = memory(g.total * EXPERT_N * sizeof *g.y);
    fill(g.x, g.total * EXPERT_K, 8);
    double flop = 2.0 * (double)g.total * EXPERT_N * EXPERT_K;
    bench_case(b, &(bench_spec){.name = "own bf16 weights, 64 experts, 2 threads", .unit = "flop", .work = flop, .fn = experts, .arg = &g, .threads = THREADS});
    bench_case(b, &(bench_spec){.name = "OpenBLAS f32, 64 experts in turn, 2 threads", .unit = "flop", .work = flop, .fn = experts_blas, .arg = &g, .threads = THREADS});
}

int main(int argc, char **argv) {
    us_bench *b = bench_open(argc, argv, "kernels");
    us_err err = {0};
    if (us_pool_create(THREADS, &pool, &err) != US_OK) return 1;
    products(b);
    single_rows(b);
    grouped(b);
    return bench_close(b);
}
