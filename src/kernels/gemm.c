/* Packing and the loops around the tile kernels. Blocks are fixed, so the work split never changes a sum. See gemm.h. */
#include "kernels/gemm.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

enum {
    ROW_BLOCK = 192,    /* rows of x per task at most: copied once for all of its columns, and lanes are widened once for all of them */
    COLUMN_BLOCKS = 16, /* lane blocks per task of many rows at most; each chunk of one stays in L1 under all row tiles */
    FEW_BLOCKS = 2,     /* per task of few rows, which are bound by memory */
    TASKS_A_THREAD = 8, /* wanted, so that the last ones end together */
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

us_gemm_tile_fn *us_gemm_i8_tile(us_isa isa) {
#if defined(__x86_64__)
    if (isa == US_ISA_AVX2) return us__gemm_i8_avx2;
    if (isa == US_ISA_AVX512) return us__gemm_i8_avx512;
#endif
    (void)isa;
    return NULL;
}

static void panel_vec(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    (void)ldx;
    us__gemm_tile_vec_f32(k, x, US_GEMM_APART, nr, lanes, c, ldc, first);
}

static void panel_ref(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    (void)ldx;
    us__gemm_tile_ref_f32(k, x, US_GEMM_APART, nr, lanes, c, ldc, first);
}

us_gemm_tile_fn *us_gemm_panel_tile(us_isa isa) {
#if defined(__x86_64__)
    if (isa == US_ISA_AVX2) return us__gemm_panel_avx2;
    if (isa == US_ISA_AVX512) return us__gemm_panel_avx512;
#endif
    return isa == US_ISA_REF ? panel_ref : panel_vec;
}

size_t us_gemm_panel(us_isa isa) {
    return isa == US_ISA_AVX2 ? US_GEMM_LANES / 2 : US_GEMM_LANES;
}

void us_gemm_widen(us_isa isa, us_dtype type, size_t k, const void *lanes, float *panels) {
#if defined(__x86_64__)
    if (isa == US_ISA_AVX512) {
        us__gemm_widen_avx512(type, k, lanes, panels);
        return;
    }
    if (isa == US_ISA_AVX2) {
        us__gemm_widen_avx2(type, k, lanes, panels);
        return;
    }
#endif
    (void)isa;
    const uint16_t *p = lanes;
    const int8_t *q = lanes;
    if (type == US_DTYPE_F32) memcpy(panels, lanes, k * US_GEMM_LANES * sizeof *panels);
    for (size_t i = 0; type == US_DTYPE_BF16 && i < k; i++)
        for (size_t l = 0; l < US_GEMM_LANES; l++) panels[i * US_GEMM_LANES + l] = us_bf16_to_f32(p[i / 2 * 2 * US_GEMM_LANES + 2 * l + i % 2]);
    for (size_t i = 0; type == US_DTYPE_I8 && i < k * US_GEMM_LANES; i++) panels[i] = q[i];
}

static size_t lane_bytes(us_dtype type) {
    return type == US_DTYPE_F32 ? 4 : type == US_DTYPE_BF16 ? 2 : type == US_DTYPE_I8 ? 1 : 0;
}

/* Steps of a packed block: bf16 in whole pairs. */
static size_t packed_depth(us_dtype type, size_t k) {
    return type == US_DTYPE_BF16 ? k + k % 2 : k;
}

size_t us_gemm_packed_bytes(us_dtype type, size_t n, size_t k) {
    size_t blocks = n / US_GEMM_LANES + (n % US_GEMM_LANES != 0), bytes;
    size_t size = lane_bytes(type);
    if (k == SIZE_MAX || !us_mul_size(blocks, US_GEMM_LANES * size, &bytes) || !us_mul_size(bytes, packed_depth(type, k), &bytes)) return 0;
    return bytes;
}

/* Elements of 4 bytes (f32, or pairs of bf16) of a whole block that lie side by side in their rows: a transposition. Returns how many steps were done. */
static size_t turn(const void *w, size_t stride, size_t n, void *packed) {
#if defined(__x86_64__)
    if (us_isa_active() >= US_ISA_AVX2) return us__gemm_turn_avx2(w, stride, n, packed);
#endif
    (void)w, (void)stride, (void)n, (void)packed;
    return 0;
}

/* Element (n, k) of the source lies at n*sn + k*sk. */
static void pack_f32(const float *w, size_t sn, size_t sk, size_t n, size_t k, float *packed) {
    for (size_t b = 0; b * US_GEMM_LANES < n; b++) {
        size_t left = n - b * US_GEMM_LANES, lanes = left < US_GEMM_LANES ? left : US_GEMM_LANES;
        size_t done = lanes == US_GEMM_LANES && sk == 1 ? turn(w + b * US_GEMM_LANES * sn, sn * sizeof *w, k, packed + b * k * US_GEMM_LANES) : 0;
        for (size_t i = done; i < k; i++) {
            float *d = packed + (b * k + i) * US_GEMM_LANES;
            const float *s = w + b * US_GEMM_LANES * sn + i * sk;
            for (size_t l = 0; l < US_GEMM_LANES; l++) d[l] = l < lanes ? s[l * sn] : 0.0f;
        }
    }
}

static void pack_bf16(const uint16_t *w, size_t sn, size_t sk, size_t n, size_t k, uint16_t *packed) {
    for (size_t b = 0; b * US_GEMM_LANES < n; b++) {
        size_t left = n - b * US_GEMM_LANES, lanes = left < US_GEMM_LANES ? left : US_GEMM_LANES;
        size_t done = lanes == US_GEMM_LANES && sk == 1 ? turn(w + b * US_GEMM_LANES * sn, sn * sizeof *w, k / 2, packed + b * (k + k % 2) * US_GEMM_LANES) : 0;
        for (size_t i = 2 * done; i < k; i += 2) {
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

static float element(us_dtype type, const void *w, size_t i) {
    return type == US_DTYPE_F32 ? ((const float *)w)[i] : us_bf16_to_f32(((const uint16_t *)w)[i]);
}

void us_gemm_quantise_i8(us_dtype type, const void *w, size_t ldw, size_t n, size_t k, int8_t *packed, float *scale) {
    memset(packed, 0, us_gemm_packed_bytes(US_DTYPE_I8, n, k));
    for (size_t r = 0; r < n; r++) {
        float most = 0;
        for (size_t i = 0; i < k; i++) most = fmaxf(most, fabsf(element(type, w, r * ldw + i)));
        scale[r] = most / 127.0f;
        int8_t *d = packed + r / US_GEMM_LANES * k * US_GEMM_LANES + r % US_GEMM_LANES;
        for (size_t i = 0; scale[r] > 0 && i < k; i++) {
            float q = rintf(element(type, w, r * ldw + i) / scale[r]); /* at most 127 and a rounding; less exact where scale is denormal */
            d[i * US_GEMM_LANES] = (int8_t)fminf(fmaxf(q, -127.0f), 127.0f);
        }
    }
}

typedef struct gemm_job {
    us_isa isa;
    us_gemm_tile_fn *tile;
    const us_gemm_packed *w;
    const float *x;
    float *y;
    size_t m, ldx, ldy, lane_blocks, blocks_per_task, row_block, row_tasks;
} gemm_job;

static const char *lanes_at(const us_gemm_packed *w, size_t block, size_t k0) {
    return (const char *)w->data + (block * packed_depth(w->type, w->k) + k0) * US_GEMM_LANES * lane_bytes(w->type);
}

/* One tile into y, `lanes` of it from column n0 on; one that is cut at the edge goes through a small buffer. */
static void put_tile(const gemm_job *j, size_t n0, size_t lanes, bool first, size_t kc, const float *x, size_t ldx, size_t r, size_t nr, const void *w) {
    float *c = j->y + r * j->ldy + n0;
    if (n0 + lanes <= j->w->n) {
        j->tile(kc, x, ldx, nr, w, c, j->ldy, first);
        return;
    }
    size_t width = j->w->n > n0 ? j->w->n - n0 : 0;
    float edge[US_GEMM_ROWS * US_GEMM_LANES];
    memset(edge, 0, sizeof edge);
    for (size_t i = 0; i < nr && !first && width; i++) memcpy(edge + i * lanes, c + i * j->ldy, width * sizeof *c);
    if (width) j->tile(kc, x, ldx, nr, w, edge, lanes, first);
    for (size_t i = 0; i < nr && width; i++) memcpy(c + i * j->ldy, edge + i * lanes, width * sizeof *c);
}

/* The scales of block b over finished rows [r0, r1). */
static void apply_scale(const gemm_job *j, size_t b, size_t r0, size_t r1) {
    size_t n0 = b * US_GEMM_LANES, n1 = j->w->n - n0 < US_GEMM_LANES ? j->w->n : n0 + US_GEMM_LANES;
    if (j->w->type != US_DTYPE_I8) return;
    for (size_t r = r0; r < r1; r++)
        for (size_t n = n0; n < n1; n++) j->y[r * j->ldy + n] *= j->w->scale[n];
}

/* At most US_GEMM_ROWS rows: all of k at once, x and the lanes where they lie. */
static void few_rows(void *arg, int64_t i, int thread) {
    (void)thread;
    const gemm_job *j = arg;
    size_t b0 = (size_t)i * j->blocks_per_task, b1 = j->lane_blocks - b0 < j->blocks_per_task ? j->lane_blocks : b0 + j->blocks_per_task;
    for (size_t b = b0; b < b1; b++) {
        put_tile(j, b * US_GEMM_LANES, US_GEMM_LANES, true, j->w->k, j->x, j->ldx, 0, j->m, lanes_at(j->w, b, 0));
        apply_scale(j, b, 0, j->m);
    }
}

static void copy_row(us_isa isa, const float *from, size_t n, float *to) {
#if defined(__x86_64__)
    if (isa >= US_ISA_AVX2) {
        us__gemm_copy_avx2(from, n, to); /* compilers make a slow string move of it */
        return;
    }
#endif
    (void)isa;
    memcpy(to, from, n * sizeof *to);
}

/* A block of rows under a group of lane blocks, in chunks of k: the rows copied apart, the lanes widened, then tiles. */
static void many_rows(void *arg, int64_t i, int thread) {
    (void)thread;
    const gemm_job *j = arg;
    _Alignas(64) float rows[ROW_BLOCK * US_GEMM_APART], wide[US_GEMM_CHUNK * US_GEMM_LANES];
    size_t panel = us_gemm_panel(j->isa);
    size_t r0 = (size_t)i % j->row_tasks * j->row_block, r1 = j->m - r0 < j->row_block ? j->m : r0 + j->row_block;
    size_t b0 = (size_t)i / j->row_tasks * j->blocks_per_task, b1 = j->lane_blocks - b0 < j->blocks_per_task ? j->lane_blocks : b0 + j->blocks_per_task;
    size_t chunks = (j->w->k + US_GEMM_CHUNK - 1) / US_GEMM_CHUNK, even = (j->w->k + chunks - 1) / chunks, chunk = even + even % 2; /* whole pairs */
    for (size_t k0 = 0; k0 < j->w->k; k0 += chunk) {
        size_t kc = j->w->k - k0 < chunk ? j->w->k - k0 : chunk;
        size_t share = chunk * US_GEMM_LANES * lane_bytes(j->w->type) / ((r1 - r0 + US_GEMM_ROWS - 1) / US_GEMM_ROWS) / 64 * 64 + 64; /* of the next block, per tile */
        for (size_t r = r0; r < r1; r++) copy_row(j->isa, j->x + r * j->ldx + k0, kc, rows + (r - r0) * US_GEMM_APART);
        for (size_t b = b0; b < b1; b++) {
            us_gemm_widen(j->isa, j->w->type, kc, lanes_at(j->w, b, k0), wide);
            const char *next = b + 1 < b1 ? lanes_at(j->w, b + 1, k0) : lanes_at(j->w, b0, k0 + kc); /* may lie behind the end: a hint only */
            for (size_t p = 0; p < US_GEMM_LANES; p += panel)
                for (size_t r = r0; r < r1; r += US_GEMM_ROWS) {
                    for (size_t line = 0; p == 0 && line < share; line += 64) __builtin_prefetch(next + (r - r0) / US_GEMM_ROWS * share + line, 0, 2);
                    put_tile(j, b * US_GEMM_LANES + p, panel, k0 == 0, kc, rows + (r - r0) * US_GEMM_APART, US_GEMM_APART, r, r1 - r < US_GEMM_ROWS ? r1 - r : US_GEMM_ROWS,
                             wide + p * kc);
                }
            if (k0 + kc == j->w->k) apply_scale(j, b, r0, r1);
        }
    }
}

/* How many rows and lane blocks a task takes: as many as fit, fewer while there would be too few tasks for the threads. Returns the number of tasks. */
static size_t cut(gemm_job *j, size_t threads) {
    size_t rows = ROW_BLOCK, blocks = COLUMN_BLOCKS;
    for (;;) {
        j->row_tasks = (j->m + rows - 1) / rows;
        size_t even = (j->m + j->row_tasks - 1) / j->row_tasks, tasks = j->row_tasks * ((j->lane_blocks + blocks - 1) / blocks);
        j->row_block = (even + US_GEMM_ROWS - 1) / US_GEMM_ROWS * US_GEMM_ROWS; /* at most ROW_BLOCK, a multiple of the tile */
        j->row_tasks = (j->m + j->row_block - 1) / j->row_block;
        j->blocks_per_task = blocks;
        if (threads == 1 || tasks >= threads * TASKS_A_THREAD || (rows == ROW_BLOCK / 2 && blocks == COLUMN_BLOCKS / 8))
            return j->row_tasks * ((j->lane_blocks + blocks - 1) / blocks);
        if (rows == ROW_BLOCK) rows /= 2;
        else blocks /= 2;
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
    j.tile = w->type == US_DTYPE_BF16 ? us_gemm_pair_tile(j.isa) : w->type == US_DTYPE_I8 ? us_gemm_i8_tile(j.isa) : us_gemm_tile(j.isa, US_DTYPE_F32);
    bool few = m <= US_GEMM_ROWS && j.tile;
    if (few) {
        j.blocks_per_task = FEW_BLOCKS;
        us_pool_run(pool, few_rows, &j, (int64_t)((j.lane_blocks + FEW_BLOCKS - 1) / FEW_BLOCKS));
        return;
    }
    j.tile = us_gemm_panel_tile(j.isa);
    us_pool_run(pool, many_rows, &j, (int64_t)cut(&j, pool ? (size_t)us_pool_threads(pool) : 1));
}

static us_status unpacked(us_pool *pool, bool nn, size_t m, size_t n, size_t k, const float *x, size_t ldx, us_dtype wtype, const void *w, size_t ldw, float *y,
                          size_t ldy, us_err *err) {
    if (wtype != US_DTYPE_F32 && wtype != US_DTYPE_BF16) return us_fail(err, US_E_UNSUPPORTED, NULL, "matrix product with %s weights", us_dtype_name(wtype));
    size_t bytes = us_gemm_packed_bytes(wtype, n, k);
    void *packed = bytes || !n || !k ? us_malloc_aligned(bytes ? bytes : 1) : NULL;
    if (!packed) return us_fail_nomem(err, "packing a matrix");
    if (nn) us_gemm_pack_nn(wtype, w, ldw, n, k, packed);
    else us_gemm_pack_nt(wtype, w, ldw, n, k, packed);
    us_gemm(pool, m, x, ldx, &(us_gemm_packed){n, k, wtype, packed, NULL}, y, ldy);
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
