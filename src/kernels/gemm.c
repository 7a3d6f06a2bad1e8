/* Packing and the loops around the tile kernels. Blocks are fixed, so the work split never changes a sum. See gemm.h. */
#include "kernels/gemm.h"

#include <string.h>

#include "base/alloc.h"

enum { ROW_BLOCK = 96 }; /* rows of x per task: they share each lane chunk while it is in L1 */

us_gemm_tile_fn *us_gemm_tile(us_isa isa, us_dtype lanes) {
    bool b = lanes == US_DTYPE_BF16;
    switch (isa) {
    case US_ISA_REF: return b ? us__gemm_tile_ref_bf16 : us__gemm_tile_ref_f32;
#if defined(__x86_64__)
    case US_ISA_AVX2: return b ? us__gemm_tile_avx2_bf16 : us__gemm_tile_avx2_f32;
    case US_ISA_AVX512: return b ? us__gemm_tile_avx512_bf16 : us__gemm_tile_avx512_f32;
#endif
    default: return b ? us__gemm_tile_vec_bf16 : us__gemm_tile_vec_f32;
    }
}

size_t us_gemm_packed_bytes(us_dtype type, size_t n, size_t k) {
    size_t blocks = n / US_GEMM_LANES + (n % US_GEMM_LANES != 0), bytes;
    size_t size = type == US_DTYPE_F32 ? 4 : type == US_DTYPE_BF16 ? 2 : 0;
    if (!us_mul_size(blocks, US_GEMM_LANES * size, &bytes) || !us_mul_size(bytes, k, &bytes)) return 0;
    return bytes;
}

/* Element (n, k) of the source lies at n*sn + k*sk. */
static void pack(us_dtype type, const void *w, size_t sn, size_t sk, size_t n, size_t k, void *packed) {
    for (size_t b = 0; b * US_GEMM_LANES < n; b++) {
        size_t left = n - b * US_GEMM_LANES, lanes = left < US_GEMM_LANES ? left : US_GEMM_LANES;
        for (size_t i = 0; i < k; i++) {
            size_t to = (b * k + i) * US_GEMM_LANES, from = b * US_GEMM_LANES * sn + i * sk;
            if (type == US_DTYPE_F32) {
                float *d = (float *)packed + to;
                const float *s = (const float *)w + from;
                for (size_t l = 0; l < US_GEMM_LANES; l++) d[l] = l < lanes ? s[l * sn] : 0.0f;
            } else {
                uint16_t *d = (uint16_t *)packed + to;
                const uint16_t *s = (const uint16_t *)w + from;
                for (size_t l = 0; l < US_GEMM_LANES; l++) d[l] = l < lanes ? s[l * sn] : 0;
            }
        }
    }
}

void us_gemm_pack_nt(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, void *packed) {
    pack(type, w, ldw, 1, n, k, packed);
}

void us_gemm_pack_nn(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, void *packed) {
    pack(type, w, 1, ldw, n, k, packed);
}

typedef struct gemm_job {
    us_gemm_tile_fn *tile;
    const us_gemm_packed *w;
    const float *x;
    float *y;
    size_t m, ldx, ldy, lane_blocks, blocks_per_task, row_tasks;
} gemm_job;

/* Tiles of one lane block under one chunk of k, for the rows r0 .. r1. A block that is cut at the edge goes through a small buffer. */
static void column(const gemm_job *j, size_t b, size_t k0, size_t kc, size_t r0, size_t r1) {
    size_t size = j->w->type == US_DTYPE_BF16 ? 2 : 4, n0 = b * US_GEMM_LANES;
    const char *lanes = (const char *)j->w->data + (b * j->w->k + k0) * US_GEMM_LANES * size;
    size_t width = j->w->n - n0 < US_GEMM_LANES ? j->w->n - n0 : US_GEMM_LANES;
    for (size_t r = r0; r < r1; r += US_GEMM_ROWS) {
        size_t nr = r1 - r < US_GEMM_ROWS ? r1 - r : US_GEMM_ROWS;
        const float *x = j->x + r * j->ldx + k0;
        float *c = j->y + r * j->ldy + n0;
        if (width == US_GEMM_LANES) {
            j->tile(kc, x, j->ldx, nr, lanes, c, j->ldy, k0 == 0);
            continue;
        }
        float edge[US_GEMM_ROWS * US_GEMM_LANES];
        memset(edge, 0, sizeof edge);
        for (size_t i = 0; i < nr && k0; i++) memcpy(edge + i * US_GEMM_LANES, c + i * j->ldy, width * sizeof *c);
        j->tile(kc, x, j->ldx, nr, lanes, edge, US_GEMM_LANES, k0 == 0);
        for (size_t i = 0; i < nr; i++) memcpy(c + i * j->ldy, edge + i * US_GEMM_LANES, width * sizeof *c);
    }
}

static void gemm_task(void *arg, int64_t i, int thread) {
    (void)thread;
    const gemm_job *j = arg;
    size_t rows = (size_t)i % j->row_tasks, cols = (size_t)i / j->row_tasks;
    size_t r0 = rows * ROW_BLOCK, r1 = j->m - r0 < ROW_BLOCK ? j->m : r0 + ROW_BLOCK;
    size_t b0 = cols * j->blocks_per_task, b1 = j->lane_blocks - b0 < j->blocks_per_task ? j->lane_blocks : b0 + j->blocks_per_task;
    for (size_t k0 = 0; k0 < j->w->k; k0 += US_GEMM_DEPTH) {
        size_t kc = j->w->k - k0 < US_GEMM_DEPTH ? j->w->k - k0 : US_GEMM_DEPTH;
        for (size_t b = b0; b < b1; b++) column(j, b, k0, kc, r0, r1);
    }
}

void us_gemm(us_pool *pool, size_t m, const float *x, size_t ldx, const us_gemm_packed *w, float *y, size_t ldy) {
    if (!m || !w->n) return;
    if (!w->k) {
        for (size_t i = 0; i < m; i++) memset(y + i * ldy, 0, w->n * sizeof *y);
        return;
    }
    gemm_job j = {.tile = us_gemm_tile(us_isa_active(), w->type), .w = w, .x = x, .y = y, .m = m, .ldx = ldx, .ldy = ldy};
    j.lane_blocks = (w->n + US_GEMM_LANES - 1) / US_GEMM_LANES;
    j.blocks_per_task = 4;
    j.row_tasks = (m + ROW_BLOCK - 1) / ROW_BLOCK;
    size_t col_tasks = (j.lane_blocks + j.blocks_per_task - 1) / j.blocks_per_task;
    us_pool_run(pool, gemm_task, &j, (int64_t)(col_tasks * j.row_tasks));
}

static us_status unpacked(us_pool *pool, bool nn, size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, float *y,
                          size_t ldy, us_err *err) {
    if (wtype != US_DTYPE_F32 && wtype != US_DTYPE_BF16) return us_fail(err, US_E_UNSUPPORTED, NULL, "matrix product with %s weights", us_dtype_name(wtype));
    size_t bytes = us_gemm_packed_bytes(wtype, n, k);
    void *packed = bytes || !n || !k ? us_malloc_aligned(bytes ? bytes : 1) : NULL;
    if (!packed) return us_fail_nomem(err, "packing a matrix");
    if (nn) us_gemm_pack_nn(wtype, w, ldw, n, k, packed);
    else us_gemm_pack_nt(wtype, w, ldw, n, k, packed);
    us_gemm(pool, m, x, ldx, &(us_gemm_packed){n, k, wtype, packed}, y, ldy);
    us_free(packed);
    return US_OK;
}

us_status us_gemm_nt(us_pool *pool, size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, float *y, size_t ldy,
                     us_err *err) {
    return unpacked(pool, false, m, n, k, x, ldx, wtype, w, ldw, y, ldy, err);
}

us_status us_gemm_nn(us_pool *pool, size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, float *y, size_t ldy,
                     us_err *err) {
    return unpacked(pool, true, m, n, k, x, ldx, wtype, w, ldw, y, ldy, err);
}
