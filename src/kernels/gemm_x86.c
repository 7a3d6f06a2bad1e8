/**
 * Tile kernels for AVX2 + FMA and AVX-512, chosen at run time; function target attributes, so that one binary runs everywhere. See gemm.h.
 *
 * AVX-512: 12 rows x 32 lanes = 24 accumulators, 2 lane vectors, 1 broadcast. AVX2: 16 registers hold 6 rows x 16 lanes. Rows are broadcast from
 * where they lie; at 12 rows a step costs 14 loads for 24 multiply-adds. Tests: tests/unit/test_gemm.c; bench/bench_gemm.c.
 */
#include "kernels/gemm.h"
#include "kernels/targets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))
#define AVX512 US_TARGET_AVX512
#define AVX2 US_TARGET_AVX2

/* ---- AVX-512 ---- */

INLINE AVX512 __m512 wide_f32(const void *p, size_t i) {
    return _mm512_loadu_ps((const float *)p + i);
}
INLINE AVX512 __m512 wide_bf16(const void *p, size_t i) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)p + i))), 16));
}

#define BODY512(NR, load, apart)                                                                                                                             \
    {                                                                                                                                                 \
        __m512 a[NR], b[NR];                                                                                                                          \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            a[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)r * ldc);                                                                \
            b[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)r * ldc + 16);                                                           \
        }                                                                                                                                             \
        for (size_t i = 0; i < k; i++) {                                                                                                              \
            __m512 u = load(lanes, i * US_GEMM_LANES), v = load(lanes, i * US_GEMM_LANES + 16);                                                       \
            UNROLL for (int r = 0; r < NR; r++) {                                                                                                     \
                __m512 s = _mm512_set1_ps(x[(size_t)r * (apart) + i]);                                                                                    \
                a[r] = _mm512_fmadd_ps(s, u, a[r]);                                                                                                   \
                b[r] = _mm512_fmadd_ps(s, v, b[r]);                                                                                                   \
            }                                                                                                                                         \
        }                                                                                                                                             \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            _mm512_storeu_ps(c + (size_t)r * ldc, a[r]);                                                                                              \
            _mm512_storeu_ps(c + (size_t)r * ldc + 16, b[r]);                                                                                         \
        }                                                                                                                                             \
        return;                                                                                                                                       \
    }

#define TILE512(name, load, apart)                                                                                                                           \
    AVX512 void name(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {                          \
        (void)ldx; /* a constant in the apart form */                                                                                                 \
        switch (nr) {                                                                                                                                 \
        case 1: BODY512(1, load, apart)                                                                                                                      \
        case 2: BODY512(2, load, apart)                                                                                                                      \
        case 3: BODY512(3, load, apart)                                                                                                                      \
        case 4: BODY512(4, load, apart)                                                                                                                      \
        case 5: BODY512(5, load, apart)                                                                                                                      \
        case 6: BODY512(6, load, apart)                                                                                                                      \
        case 7: BODY512(7, load, apart)                                                                                                                      \
        case 8: BODY512(8, load, apart)                                                                                                                      \
        case 9: BODY512(9, load, apart)                                                                                                                      \
        case 10: BODY512(10, load, apart)                                                                                                                    \
        case 11: BODY512(11, load, apart)                                                                                                                    \
        case 12: BODY512(12, load, apart)                                                                                                                    \
        default: return;                                                                                                                              \
        }                                                                                                                                             \
    }

TILE512(us__gemm_tile_avx512_f32, wide_f32, ldx)
TILE512(us__gemm_tile_avx512_bf16, wide_bf16, ldx)
TILE512(us__gemm_panel_avx512, wide_f32, US_GEMM_APART)

INLINE AVX512 __m512 wide_i8(const void *p, size_t i) {
    _mm_prefetch((const char *)p + i + 1024, _MM_HINT_T0);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)((const int8_t *)p + i))));
}
TILE512(us__gemm_i8_avx512, wide_i8, ldx)

INLINE AVX512 __m512 even512(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}
INLINE AVX512 __m512 odd512(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)));
}

#define STEP512(NR, i, u, v)                                                                                                                          \
    UNROLL for (int r = 0; r < NR; r++) {                                                                                                             \
        __m512 s = _mm512_set1_ps(x[(size_t)r * ldx + (i)]);                                                                                          \
        a[r] = _mm512_fmadd_ps(s, u, a[r]);                                                                                                           \
        b[r] = _mm512_fmadd_ps(s, v, b[r]);                                                                                                           \
    }

/* Weights stream from memory here: ask for what comes 1 KiB later. */
#define PAIRS512(NR)                                                                                                                                  \
    {                                                                                                                                                 \
        __m512 a[NR], b[NR];                                                                                                                          \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            a[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)r * ldc);                                                                \
            b[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)r * ldc + 16);                                                           \
        }                                                                                                                                             \
        const char *p = lanes;                                                                                                                        \
        for (size_t i = 0; i + 1 < k; i += 2, p += 128) {                                                                                             \
            __m512i u = _mm512_loadu_si512(p), v = _mm512_loadu_si512(p + 64);                                                                        \
            _mm_prefetch(p + 1024, _MM_HINT_T0);                                                                                                      \
            _mm_prefetch(p + 1088, _MM_HINT_T0);                                                                                                      \
            STEP512(NR, i, even512(u), even512(v))                                                                                                    \
            STEP512(NR, i + 1, odd512(u), odd512(v))                                                                                                  \
        }                                                                                                                                             \
        if (k % 2) {                                                                                                                                  \
            __m512i u = _mm512_loadu_si512(p), v = _mm512_loadu_si512(p + 64);                                                                        \
            STEP512(NR, k - 1, even512(u), even512(v))                                                                                                \
        }                                                                                                                                             \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            _mm512_storeu_ps(c + (size_t)r * ldc, a[r]);                                                                                              \
            _mm512_storeu_ps(c + (size_t)r * ldc + 16, b[r]);                                                                                         \
        }                                                                                                                                             \
        return;                                                                                                                                       \
    }

AVX512 void us__gemm_pairs_avx512(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    switch (nr) {
    case 1: PAIRS512(1)
    case 2: PAIRS512(2)
    case 3: PAIRS512(3)
    case 4: PAIRS512(4)
    case 5: PAIRS512(5)
    case 6: PAIRS512(6)
    case 7: PAIRS512(7)
    case 8: PAIRS512(8)
    case 9: PAIRS512(9)
    case 10: PAIRS512(10)
    case 11: PAIRS512(11)
    case 12: PAIRS512(12)
    default: return;
    }
}

AVX512 void us__gemm_widen_avx512(us_dtype type, size_t k, const void *lanes, float *panels) {
    const char *p = lanes;
    for (size_t i = 0; type == US_DTYPE_F32 && i < k * US_GEMM_LANES; i += 16) _mm512_storeu_ps(panels + i, wide_f32(lanes, i));
    for (size_t i = 0; type == US_DTYPE_I8 && i < k * US_GEMM_LANES; i += 16) _mm512_storeu_ps(panels + i, wide_i8(lanes, i));
    for (size_t i = 0; type == US_DTYPE_BF16 && i < k; i += 2, p += 128, panels += 2 * US_GEMM_LANES) {
        __m512i u = _mm512_loadu_si512(p), v = _mm512_loadu_si512(p + 64);
        _mm512_storeu_ps(panels, even512(u));
        _mm512_storeu_ps(panels + 16, even512(v));
        if (i + 1 == k) return;
        _mm512_storeu_ps(panels + 32, odd512(u));
        _mm512_storeu_ps(panels + 48, odd512(v));
    }
}

/* ---- AVX2 ---- */

INLINE AVX2 __m256 half_f32(const void *p, size_t i) {
    return _mm256_loadu_ps((const float *)p + i);
}
INLINE AVX2 __m256 half_bf16(const void *p, size_t i) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i))), 16));
}

/* `width` lanes lie side by side: all of them in packed blocks, 16 in a panel. */
#define BODY256(NR, load, apart, width)                                                                                                                             \
    for (size_t l = 0; l < (width); l += 16) {                                                                                                        \
        __m256 a[NR], b[NR];                                                                                                                          \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            a[r] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + (size_t)r * ldc + l);                                                            \
            b[r] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + (size_t)r * ldc + l + 8);                                                        \
        }                                                                                                                                             \
        for (size_t i = 0; i < k; i++) {                                                                                                              \
            __m256 u = load(lanes, i * (width) + l), v = load(lanes, i * (width) + l + 8);                                                            \
            UNROLL for (int r = 0; r < NR; r++) {                                                                                                     \
                __m256 s = _mm256_broadcast_ss(x + (size_t)r * (apart) + i);                                                                              \
                a[r] = _mm256_fmadd_ps(s, u, a[r]);                                                                                                   \
                b[r] = _mm256_fmadd_ps(s, v, b[r]);                                                                                                   \
            }                                                                                                                                         \
        }                                                                                                                                             \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            _mm256_storeu_ps(c + (size_t)r * ldc + l, a[r]);                                                                                          \
            _mm256_storeu_ps(c + (size_t)r * ldc + l + 8, b[r]);                                                                                      \
        }                                                                                                                                             \
    }                                                                                                                                                 \
    break;

#define TILE256(name, load, apart, width)                                                                                                                           \
    AVX2 void name(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {                            \
        (void)ldx;                                                                                                                                    \
        for (; nr; x += 6 * (apart), c += 6 * ldc) {                                                                                                      \
            switch (nr < 6 ? nr : 6) {                                                                                                                \
            case 1: BODY256(1, load, apart, width)                                                                                                                  \
            case 2: BODY256(2, load, apart, width)                                                                                                                  \
            case 3: BODY256(3, load, apart, width)                                                                                                                  \
            case 4: BODY256(4, load, apart, width)                                                                                                                  \
            case 5: BODY256(5, load, apart, width)                                                                                                                  \
            default: BODY256(6, load, apart, width)                                                                                                                 \
            }                                                                                                                                         \
            if (nr <= 6) return;                                                                                                                      \
            nr -= 6;                                                                                                                                  \
        }                                                                                                                                             \
    }

static us_gemm_tile_fn tile256_f32;
TILE256(tile256_f32, half_f32, ldx, US_GEMM_LANES)
TILE256(us__gemm_tile_avx2_bf16, half_bf16, ldx, US_GEMM_LANES)
TILE256(us__gemm_panel_avx2, half_f32, US_GEMM_APART, 16)

INLINE AVX2 __m256 even256(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}
INLINE AVX2 __m256 odd256(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000u)));
}
INLINE AVX2 __m256i pair256(const char *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

#define STEP256(NR, i, q)                                                                                                                             \
    UNROLL for (int r = 0; r < NR; r++) {                                                                                                             \
        __m256 s = _mm256_broadcast_ss(x + (size_t)r * ldx + (i));                                                                                    \
        UNROLL for (int l = 0; l < 4; l++) a[r][l] = _mm256_fmadd_ps(s, q[l], a[r][l]);                                                               \
    }

/* All 32 lanes of one or two rows at once: weights stream from memory, so each line is touched once. */
#define PAIRS256(NR)                                                                                                                                  \
    {                                                                                                                                                 \
        __m256 a[NR][4];                                                                                                                              \
        UNROLL for (int r = 0; r < NR; r++) UNROLL for (int l = 0; l < 4; l++) a[r][l] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + (size_t)r * ldc + 8 * l); \
        const char *p = lanes;                                                                                                                        \
        for (size_t i = 0; i < k; i += 2, p += 128) {                                                                                                 \
            __m256 q[4];                                                                                                                              \
            _mm_prefetch(p + 1024, _MM_HINT_T0);                                                                                                      \
            _mm_prefetch(p + 1088, _MM_HINT_T0);                                                                                                      \
            UNROLL for (int l = 0; l < 4; l++) q[l] = even256(pair256(p + 32 * l));                                                                   \
            STEP256(NR, i, q)                                                                                                                         \
            if (i + 1 == k) break;                                                                                                                    \
            UNROLL for (int l = 0; l < 4; l++) q[l] = odd256(pair256(p + 32 * l));                                                                    \
            STEP256(NR, i + 1, q)                                                                                                                     \
        }                                                                                                                                             \
        UNROLL for (int r = 0; r < NR; r++) UNROLL for (int l = 0; l < 4; l++) _mm256_storeu_ps(c + (size_t)r * ldc + 8 * l, a[r][l]);                \
    }                                                                                                                                                 \
    break;

/* f32 lanes of one or two rows: as PAIRS256, for the same reason. */
#define WIDE256(NR)                                                                                                                                   \
    {                                                                                                                                                 \
        __m256 a[NR][4], q[4];                                                                                                                        \
        UNROLL for (int r = 0; r < NR; r++) UNROLL for (int l = 0; l < 4; l++) a[r][l] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + (size_t)r * ldc + 8 * l); \
        const float *p = lanes;                                                                                                                       \
        for (size_t i = 0; i < k; i++, p += US_GEMM_LANES) {                                                                                          \
            _mm_prefetch((const char *)(p + 512), _MM_HINT_T0);                                                                                       \
            _mm_prefetch((const char *)(p + 528), _MM_HINT_T0);                                                                                       \
            UNROLL for (int l = 0; l < 4; l++) q[l] = _mm256_loadu_ps(p + 8 * l);                                                                     \
            STEP256(NR, i, q)                                                                                                                         \
        }                                                                                                                                             \
        UNROLL for (int r = 0; r < NR; r++) UNROLL for (int l = 0; l < 4; l++) _mm256_storeu_ps(c + (size_t)r * ldc + 8 * l, a[r][l]);                \
    }                                                                                                                                                 \
    return;

AVX2 void us__gemm_tile_avx2_f32(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    switch (nr) {
    case 1: WIDE256(1)
    case 2: WIDE256(2)
    default: tile256_f32(k, x, ldx, nr, lanes, c, ldc, first);
    }
}

AVX2 void us__gemm_pairs_avx2(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    for (size_t n; nr; nr -= n, x += n * ldx, c += n * ldc) {
        n = nr < 2 ? nr : 2;
        switch (n) {
        case 1: PAIRS256(1)
        default: PAIRS256(2)
        }
    }
}

AVX2 void us__gemm_copy_avx2(const float *from, size_t n, float *to) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(from + i), b = _mm256_loadu_ps(from + i + 8);
        _mm256_storeu_ps(to + i, a);
        _mm256_storeu_ps(to + i + 8, b);
    }
    for (; i < n; i++) to[i] = from[i];
}

INLINE AVX2 __m256 half_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* As PAIRS256: all 32 lanes of one or two rows. */
#define I8_256(NR)                                                                                                                                    \
    {                                                                                                                                                 \
        __m256 a[NR][4], q[4];                                                                                                                        \
        UNROLL for (int r = 0; r < NR; r++) UNROLL for (int l = 0; l < 4; l++) a[r][l] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + (size_t)r * ldc + 8 * l); \
        const int8_t *p = lanes;                                                                                                                      \
        for (size_t i = 0; i < k; i++, p += US_GEMM_LANES) {                                                                                          \
            _mm_prefetch((const char *)p + 1024, _MM_HINT_T0);                                                                                        \
            UNROLL for (int l = 0; l < 4; l++) q[l] = half_i8(p + 8 * l);                                                                             \
            STEP256(NR, i, q)                                                                                                                         \
        }                                                                                                                                             \
        UNROLL for (int r = 0; r < NR; r++) UNROLL for (int l = 0; l < 4; l++) _mm256_storeu_ps(c + (size_t)r * ldc + 8 * l, a[r][l]);                \
    }                                                                                                                                                 \
    break;

AVX2 void us__gemm_i8_avx2(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {
    for (; nr; x += 2 * ldx, c += 2 * ldc) {
        switch (nr) {
        case 1: I8_256(1)
        default: I8_256(2)
        }
        if (nr <= 2) return;
        nr -= 2;
    }
}

/* Lanes 0-15 of all steps, then lanes 16-31. */
AVX2 void us__gemm_widen_avx2(us_dtype type, size_t k, const void *lanes, float *panels) {
    float *half[2] = {panels, panels + 16 * k};
    const char *p = lanes;
    for (size_t i = 0; type == US_DTYPE_F32 && i < k; i++)
        for (size_t l = 0; l < 4; l++) _mm256_storeu_ps(half[l / 2] + 16 * i + l % 2 * 8, half_f32(lanes, i * US_GEMM_LANES + 8 * l));
    for (size_t i = 0; type == US_DTYPE_I8 && i < k; i++)
        for (size_t l = 0; l < 4; l++) _mm256_storeu_ps(half[l / 2] + 16 * i + l % 2 * 8, half_i8((const int8_t *)lanes + i * US_GEMM_LANES + 8 * l));
    for (size_t i = 0; type == US_DTYPE_BF16 && i < k; i += 2, p += 128)
        for (size_t l = 0; l < 4; l++) {
            __m256i pair = pair256(p + 32 * l);
            float *to = half[l / 2] + 16 * i + l % 2 * 8;
            _mm256_storeu_ps(to, even256(pair));
            if (i + 1 < k) _mm256_storeu_ps(to + 16, odd256(pair));
        }
}

/* Eight rows of eight 4-byte elements become columns; rows i and i + 4 share a register from the load on, so that two rounds of shuffles do. */
INLINE AVX2 void turn8(const char *from, size_t stride, float *to) {
    __m256 r[8], t[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const float *a = (const float *)(const void *)(from + (size_t)i * stride), *b = (const float *)(const void *)(from + (size_t)(i + 4) * stride);
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a + 4)), _mm_loadu_ps(b + 4), 1);
    }
    UNROLL for (int h = 0; h < 8; h += 4) {
        t[0] = _mm256_unpacklo_ps(r[h], r[h + 1]), t[1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
        t[2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]), t[3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
        _mm256_storeu_ps(to + (h + 0) * US_GEMM_LANES, _mm256_shuffle_ps(t[0], t[2], 0x44));
        _mm256_storeu_ps(to + (h + 1) * US_GEMM_LANES, _mm256_shuffle_ps(t[0], t[2], 0xee));
        _mm256_storeu_ps(to + (h + 2) * US_GEMM_LANES, _mm256_shuffle_ps(t[1], t[3], 0x44));
        _mm256_storeu_ps(to + (h + 3) * US_GEMM_LANES, _mm256_shuffle_ps(t[1], t[3], 0xee));
    }
}

AVX2 size_t us__gemm_turn_avx2(const void *w, size_t stride, size_t n, void *to) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t l = 0; l < US_GEMM_LANES; l += 8) turn8((const char *)w + l * stride + 4 * i, stride, (float *)to + i * US_GEMM_LANES + l);
    return i;
}
#endif
