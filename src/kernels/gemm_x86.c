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

#define BODY512(NR, load)                                                                                                                             \
    {                                                                                                                                                 \
        __m512 a[NR], b[NR];                                                                                                                          \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            a[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)r * ldc);                                                                \
            b[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)r * ldc + 16);                                                           \
        }                                                                                                                                             \
        for (size_t i = 0; i < k; i++) {                                                                                                              \
            __m512 u = load(lanes, i * US_GEMM_LANES), v = load(lanes, i * US_GEMM_LANES + 16);                                                       \
            UNROLL for (int r = 0; r < NR; r++) {                                                                                                     \
                __m512 s = _mm512_set1_ps(x[(size_t)r * ldx + i]);                                                                                    \
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

#define TILE512(name, load)                                                                                                                           \
    AVX512 void name(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {                          \
        switch (nr) {                                                                                                                                 \
        case 1: BODY512(1, load)                                                                                                                      \
        case 2: BODY512(2, load)                                                                                                                      \
        case 3: BODY512(3, load)                                                                                                                      \
        case 4: BODY512(4, load)                                                                                                                      \
        case 5: BODY512(5, load)                                                                                                                      \
        case 6: BODY512(6, load)                                                                                                                      \
        case 7: BODY512(7, load)                                                                                                                      \
        case 8: BODY512(8, load)                                                                                                                      \
        case 9: BODY512(9, load)                                                                                                                      \
        case 10: BODY512(10, load)                                                                                                                    \
        case 11: BODY512(11, load)                                                                                                                    \
        case 12: BODY512(12, load)                                                                                                                    \
        default: return;                                                                                                                              \
        }                                                                                                                                             \
    }

TILE512(us__gemm_tile_avx512_f32, wide_f32)
TILE512(us__gemm_tile_avx512_bf16, wide_bf16)

/* ---- AVX2 ---- */

INLINE AVX2 __m256 half_f32(const void *p, size_t i) {
    return _mm256_loadu_ps((const float *)p + i);
}
INLINE AVX2 __m256 half_bf16(const void *p, size_t i) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i))), 16));
}

#define BODY256(NR, load)                                                                                                                             \
    for (size_t l = 0; l < US_GEMM_LANES; l += 16) {                                                                                                  \
        __m256 a[NR], b[NR];                                                                                                                          \
        UNROLL for (int r = 0; r < NR; r++) {                                                                                                         \
            a[r] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + (size_t)r * ldc + l);                                                            \
            b[r] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + (size_t)r * ldc + l + 8);                                                        \
        }                                                                                                                                             \
        for (size_t i = 0; i < k; i++) {                                                                                                              \
            __m256 u = load(lanes, i * US_GEMM_LANES + l), v = load(lanes, i * US_GEMM_LANES + l + 8);                                                \
            UNROLL for (int r = 0; r < NR; r++) {                                                                                                     \
                __m256 s = _mm256_broadcast_ss(x + (size_t)r * ldx + i);                                                                              \
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

#define TILE256(name, load)                                                                                                                           \
    AVX2 void name(size_t k, const float *x, size_t ldx, size_t nr, const void *lanes, float *c, size_t ldc, bool first) {                            \
        for (; nr; x += 6 * ldx, c += 6 * ldc) {                                                                                                      \
            switch (nr < 6 ? nr : 6) {                                                                                                                \
            case 1: BODY256(1, load)                                                                                                                  \
            case 2: BODY256(2, load)                                                                                                                  \
            case 3: BODY256(3, load)                                                                                                                  \
            case 4: BODY256(4, load)                                                                                                                  \
            case 5: BODY256(5, load)                                                                                                                  \
            default: BODY256(6, load)                                                                                                                 \
            }                                                                                                                                         \
            if (nr <= 6) return;                                                                                                                      \
            nr -= 6;                                                                                                                                  \
        }                                                                                                                                             \
    }

TILE256(us__gemm_tile_avx2_f32, half_f32)
TILE256(us__gemm_tile_avx2_bf16, half_bf16)
#endif
