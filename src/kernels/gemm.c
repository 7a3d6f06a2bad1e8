/* Packing and the loops around the tile kernels. Blocks are fixed, so the work split never changes a sum. See gemm.h. */
#include "kernels/gemm.h"

#include <string.h>

#include "base/alloc.h"

enum {
    ROW_BLOCK = 96,    /* rows of x per task: copied once for all of its columns */
    COLUMN_BLOCKS = 8, /* lane blocks per task of many rows; each chunk of one stays in L1 under all row tiles */
    FEW_BLOCKS = 2,    /* per task of few rows, which are bound by memory */
};

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

us_gemm_tile_fn *us_gemm_pair_tile(us_isa isa) {
#if defined(__x86_64__)
    if (isa == US_ISA_AVX2) return us__gemm_pairs_avx2;
    if (isa == US_ISA_AVX512) return us__gemm_pairs_avx512;
#endif
    (void)isa;
    return NULL; /* widen, then the f32 tile */
}

static void tile_apart_vec(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    (void)ldx;
    us__gemm_tile_vec_f32(k, x, US_GEMM_APART, nr, lanes, c, ldc, first);
}

static void tile_apart_ref(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    (void)ldx;
    us__gemm_tile_ref_f32(k, x, US_GEMM_APART, nr, lanes, c, ldc, first);
}

us_gemm_tile_fn *us_gemm_apart_tile(us_isa isa) {
#if defined(__x86_64__)
    if (isa == US_ISA_AVX2) return us__gemm_apart_avx2;
    if (isa == US_ISA_AVX512) return us__gemm_apart_avx512;
#endif
    return isa == US_ISA_REF ? tile_apart_ref : tile_apart_vec;
}

void us_gemm_widen_pairs(us_isa isa, size_t k, const void *pairs, float *lanes) {
#if defined(__x86_64__)
    if (isa == US_ISA_AVX512) {
        us__gemm_widen_avx512(k, pairs, lanes);
        return;
    }
    if (isa == US_ISA_AVX2) {
        us__gemm_widen_avx2(k, pairs, lanes);
        return;
    }
#endif
    (void)isa;
    const uint16_t *p = pairs;
    for (size_t i = 0; i < k; i++)
        for (size_t l = 0; l < US_GEMM_LANES; l++) lanes[i * US_GEMM_LANES + l] = us_bf16_to_f32(p[i / 2 * 2 * US_GEMM_LANES + 2 * l + i % 2]);
}

/* Steps of a packed block: bf16 in whole pairs. */
static size_t packed_depth(us_dtype type, size_t k) {
    return type == US_DTYPE_BF16 ? k + k % 2 : k;
}

size_t us_gemm_packed_bytes(us_dtype type, size_t n, size_t k) {
    size_t blocks = n / US_GEMM_LANES + (n % US_GEMM_LANES != 0), bytes;
    size_t size = type == US_DTYPE_F32 ? 4 : type == US_DTYPE_BF16 ? 2 : 0;
    if (k == SIZE_MAX || !us_mul_size(blocks, US_GEMM_LANES * size, &bytes) || !us_mul_size(bytes, packed_depth(type, k), &bytes)) return 0;
    return bytes;
}

/* Element (n, k) of the source lies at n*sn + k*sk. */
static void pack_f32(const float *w, size_t sn, size_t sk, size_t n, size_t k, float *packed) {
    for (size_t b = 0; b * US_GEMM_LANES < n; b++) {
        size_t left = n - b * US_GEMM_LANES, lanes = left < US_GEMM_LANES ? left : US_GEMM_LANES;
        for (size_t i = 0; i < k; i++) {
            float *d = packed + (b * k + i) * US_GEMM_LANES;
            const float *s = w + b * US_GEMM_LANES * sn + i * sk;
            for (size_t l = 0; l < US_GEMM_LANES; l++) d[l] = l < lanes ? s[l * sn] : 0.0f;
        }
    }
}

static void pack_bf16(const uint16_t *w, size_t sn, size_t sk, size_t n, size_t k, uint16_t *packed) {
    for (size_t b = 0; b * US_GEMM_LANES < n; b++) {
        size_t left = n - b * US_GEMM_LANES, lanes = left < US_GEMM_LANES ? left : US_GEMM_LANES;
        for (size_t i = 0; i < k; i += 2) {
            uint16_t *d = packed + (b * (k + k % 2) + i) * US_GEMM_LANES;
            const uint16_t *s = w + b * US_GEMM_LANES * sn + i * sk;
            for (size_t l = 0; l < US_GEMM_LANES; l++) {
                d[2 * l] = l < lanes ? s[l * sn] : 0;
                d[2 * l + 1] = l < lanes && i + 1 < k ? s[l * sn + sk] : 0;
            }
        }
    }
}

static void pack(us_dtype type, const void *w, size_t sn, size_t sk, size_t n, size_t k, void *packed) {
    if (type == US_DTYPE_F32) pack_f32(w, sn, sk, n, k, packed);
    else pack_bf16(w, sn, sk, n, k, packed);
}

void us_gemm_pack_nt(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, void *packed) {
    pack(type, w, ldw, 1, n, k, packed);
}

void us_gemm_pack_nn(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, void *packed) {
    pack(type, w, 1, ldw, n, k, packed);
}

typedef struct gemm_job {
    us_isa isa;
    us_gemm_tile_fn *tile;
    const us_gemm_packed *w;
    const float *x;
    float *y;
    size_t m, ldx, ldy, lane_blocks, blocks_per_task, row_tasks;
} gemm_job;

static const char *lanes_at(const us_gemm_packed *w, size_t block, size_t k0) {
    size_t size = w->type == US_DTYPE_BF16 ? 2 : 4;
    return (const char *)w->data + (block * packed_depth(w->type, w->k) + k0) * US_GEMM_LANES * size;
}

/* One tile into y; a block that is cut at the edge goes through a small buffer. */
static void put_tile(const gemm_job *j, size_t b, size_t k0, size_t kc, const float *x, size_t ldx, size_t r, size_t nr, const void *lanes) {
    size_t n0 = b * US_GEMM_LANES, width = j->w->n - n0 < US_GEMM_LANES ? j->w->n - n0 : US_GEMM_LANES;
    float *c = j->y + r * j->ldy + n0;
    if (width == US_GEMM_LANES) {
        j->tile(kc, x, ldx, nr, lanes, c, j->ldy, k0 == 0);
        return;
    }
    float edge[US_GEMM_ROWS * US_GEMM_LANES];
    memset(edge, 0, sizeof edge);
    for (size_t i = 0; i < nr && k0; i++) memcpy(edge + i * US_GEMM_LANES, c + i * j->ldy, width * sizeof *c);
    j->tile(kc, x, ldx, nr, lanes, edge, US_GEMM_LANES, k0 == 0);
    for (size_t i = 0; i < nr; i++) memcpy(c + i * j->ldy, edge + i * US_GEMM_LANES, width * sizeof *c);
}

/* At most US_GEMM_ROWS rows: all of k at once, x and the lanes where they lie. */
static void few_rows(void *arg, int64_t i, int thread) {
    (void)thread;
    const gemm_job *j = arg;
    size_t b0 = (size_t)i * j->blocks_per_task, b1 = j->lane_blocks - b0 < j->blocks_per_task ? j->lane_blocks : b0 + j->blocks_per_task;
    for (size_t b = b0; b < b1; b++) put_tile(j, b, 0, j->w->k, j->x, j->ldx, 0, j->m, lanes_at(j->w, b, 0));
}

/* A block of rows under a group of lane blocks, in chunks of k: the rows copied apart, bf16 lanes widened, then tiles. */
static void many_rows(void *arg, int64_t i, int thread) {
    (void)thread;
    const gemm_job *j = arg;
    _Alignas(64) float rows[ROW_BLOCK * US_GEMM_APART], wide[US_GEMM_CHUNK * US_GEMM_LANES];
    size_t r0 = (size_t)i % j->row_tasks * ROW_BLOCK, r1 = j->m - r0 < ROW_BLOCK ? j->m : r0 + ROW_BLOCK;
    size_t b0 = (size_t)i / j->row_tasks * j->blocks_per_task, b1 = j->lane_blocks - b0 < j->blocks_per_task ? j->lane_blocks : b0 + j->blocks_per_task;
    for (size_t k0 = 0; k0 < j->w->k; k0 += US_GEMM_CHUNK) {
        size_t kc = j->w->k - k0 < US_GEMM_CHUNK ? j->w->k - k0 : US_GEMM_CHUNK;
        for (size_t r = r0; r < r1; r++) memcpy(rows + (r - r0) * US_GEMM_APART, j->x + r * j->ldx + k0, kc * sizeof *rows);
        for (size_t b = b0; b < b1; b++) {
            const void *lanes = lanes_at(j->w, b, k0);
            if (j->w->type == US_DTYPE_BF16) {
                us_gemm_widen_pairs(j->isa, kc, lanes, wide);
                lanes = wide;
            }
            for (size_t r = r0; r < r1; r += US_GEMM_ROWS)
                put_tile(j, b, k0, kc, rows + (r - r0) * US_GEMM_APART, US_GEMM_APART, r, r1 - r < US_GEMM_ROWS ? r1 - r : US_GEMM_ROWS, lanes);
        }
    }
}

void us_gemm(us_pool *pool, size_t m, const float *x, size_t ldx, const us_gemm_packed *w, float *y, size_t ldy) {
    if (!m || !w->n) return;
    if (!w->k) {
        for (size_t i = 0; i < m; i++) memset(y + i * ldy, 0, w->n * sizeof *y);
        return;
    }
    gemm_job j = {.isa = us_isa_active(), .w = w, .x = x, .y = y, .m = m, .ldx = ldx, .ldy = ldy};
    j.lane_blocks = (w->n + US_GEMM_LANES - 1) / US_GEMM_LANES;
    j.tile = w->type == US_DTYPE_BF16 ? us_gemm_pair_tile(j.isa) : us_gemm_tile(j.isa, US_DTYPE_F32);
    bool few = m <= US_GEMM_ROWS && j.tile;
    j.blocks_per_task = few ? FEW_BLOCKS : COLUMN_BLOCKS;
    j.row_tasks = few ? 1 : (m + ROW_BLOCK - 1) / ROW_BLOCK;
    if (!few) j.tile = us_gemm_apart_tile(j.isa);
    size_t col_tasks = (j.lane_blocks + j.blocks_per_task - 1) / j.blocks_per_task;
    us_pool_run(pool, few ? few_rows : many_rows, &j, (int64_t)(col_tasks * j.row_tasks));
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
