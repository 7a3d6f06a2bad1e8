/* Softmax of score tiles and moves of pages: one text, compiled for three instruction sets; contraction is off, so they agree. See attention_text.h. */
#include "kernels/attention_text.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/attention.h"
#include "kernels/exp.h"
#include "kernels/gemm.h"
#include "kernels/targets.h"

#define INLINE static inline __attribute__((always_inline))
#define PLAIN_INF __builtin_inff()

enum { LANES = 16 }; /* partial maxima and sums of a page: slot k belongs to lane k % 16 */

/* The greatest and the sum of a page of numbers, lanes first, then a tree; NaN is passed over by the maximum (and comes through in the sum). */
INLINE float page_max_base(const float *x) {
    float t[LANES];
    for (size_t l = 0; l < LANES; l++) t[l] = x[l] > -PLAIN_INF ? x[l] : -PLAIN_INF;
    for (size_t k = LANES; k < US_KV_PAGE; k += LANES)
        for (size_t l = 0; l < LANES; l++) t[l] = x[k + l] > t[l] ? x[k + l] : t[l];
    for (size_t n = LANES / 2; n; n /= 2)
        for (size_t l = 0; l < n; l++) t[l] = t[l + n] > t[l] ? t[l + n] : t[l];
    return t[0];
}

INLINE float page_sum_base(const float *x) {
    float t[LANES];
    for (size_t l = 0; l < LANES; l++) t[l] = x[l];
    for (size_t k = LANES; k < US_KV_PAGE; k += LANES)
        for (size_t l = 0; l < LANES; l++) t[l] += x[k + l];
    for (size_t n = LANES / 2; n; n /= 2)
        for (size_t l = 0; l < n; l++) t[l] += t[l + n];
    return t[0];
}

#if defined(__x86_64__)
/* By hand, because compilers make scalar code of the above. max(a, b) of the processor is a > b ? a : b. */
#define TREE(op, v)                                                                                                                                   \
    v = _mm_##op##_ps(_mm_movehl_ps(v, v), v);                                                                                                        \
    return _mm_cvtss_f32(_mm_##op##_ss(_mm_shuffle_ps(v, v, 1), v))

INLINE US_TARGET_AVX2 float max8(__m256 a, __m256 b) {
    a = _mm256_max_ps(b, a);
    __m128 v = _mm_max_ps(_mm256_extractf128_ps(a, 1), _mm256_castps256_ps128(a));
    TREE(max, v);
}
INLINE US_TARGET_AVX2 float sum8(__m256 a, __m256 b) {
    a = _mm256_add_ps(b, a);
    __m128 v = _mm_add_ps(_mm256_extractf128_ps(a, 1), _mm256_castps256_ps128(a));
    TREE(add, v);
}
INLINE US_TARGET_AVX2 float page_max_avx2(const float *x) {
    __m256 a = _mm256_set1_ps(-PLAIN_INF), b = a;
    for (size_t k = 0; k < US_KV_PAGE; k += LANES) a = _mm256_max_ps(_mm256_loadu_ps(x + k), a), b = _mm256_max_ps(_mm256_loadu_ps(x + k + 8), b);
    return max8(a, b);
}
INLINE US_TARGET_AVX2 float page_sum_avx2(const float *x) {
    __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    for (size_t k = LANES; k < US_KV_PAGE; k += LANES) a = _mm256_add_ps(a, _mm256_loadu_ps(x + k)), b = _mm256_add_ps(b, _mm256_loadu_ps(x + k + 8));
    return sum8(a, b);
}
INLINE US_TARGET_AVX512 float page_max_avx512(const float *x) {
    __m512 a = _mm512_set1_ps(-PLAIN_INF);
    for (size_t k = 0; k < US_KV_PAGE; k += LANES) a = _mm512_max_ps(_mm512_loadu_ps(x + k), a);
    return max8(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
INLINE US_TARGET_AVX512 float page_sum_avx512(const float *x) {
    __m512 a = _mm512_loadu_ps(x);
    for (size_t k = LANES; k < US_KV_PAGE; k += LANES) a = _mm512_add_ps(a, _mm512_loadu_ps(x + k));
    return sum8(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
#endif

/* Scores from products: scaled, what is hidden at -infinity. */
INLINE void text_scale(float *s, size_t nr, const int32_t *lo, const int32_t *hi, const uint8_t *seen, float scale) {
    for (size_t r = 0; r < nr; r++) {
        float *x = s + r * US_ATTN_LDS;
        int32_t from = lo[r], to = hi[r];
        if (from == 0 && to == US_KV_PAGE) {
            for (int32_t k = 0; k < US_KV_PAGE; k++) x[k] = x[k] * scale;
        } else {
            for (int32_t k = 0; k < US_KV_PAGE; k++) {
                float v = x[k] * scale;
                x[k] = k >= from && k < to ? v : -PLAIN_INF;
            }
        }
        if (seen)
            for (int32_t k = from; k < to; k++) x[k] = seen[k] ? x[k] : -PLAIN_INF;
    }
}

/* top[] comes with the maxima of the page; max[] gets the new running one, turn[] the factor of what is there. Padded to a tile, so that it is one vector. */
INLINE void text_turn(size_t nr, float *restrict top, float *restrict max, float *restrict turn) {
    float old[LANES];
    for (size_t r = 0; r < LANES; r++) old[r] = -PLAIN_INF;
    memcpy(old, max, nr * sizeof *old);
    for (size_t r = 0; r < LANES; r++) {
        top[r] = top[r] > old[r] ? top[r] : old[r];
        turn[r] = us__exp_below(old[r] - (top[r] > -PLAIN_INF ? top[r] : 0.0f));
    }
    memcpy(max, top, nr * sizeof *max);
}

INLINE void text_weigh(float *s, size_t nr, const float *top) {
    for (size_t r = 0; r < nr; r++) {
        float *x = s + r * US_ATTN_LDS, t = top[r] > -PLAIN_INF ? top[r] : 0.0f;
        for (size_t k = 0; k < US_KV_PAGE; k++) x[k] = us__exp_below(x[k] - t);
    }
}

INLINE void text_rescale(size_t nr, const float *turn, float *out, size_t ldo) {
    for (size_t r = 0; r < nr; r++) {
        float *o = out + r * ldo, f = turn[r];
        if (f == 1.0f) continue;
        for (size_t i = 0; i < ldo; i++) o[i] = o[i] * f;
    }
}

INLINE void text_merge(size_t rows, size_t ldo, float *max, float *sum, float *restrict out, const float *max1, const float *sum1, const float *restrict out1) {
    for (size_t r = 0; r < rows; r++, out += ldo, out1 += ldo) {
        if (sum1[r] == 0.0f) continue;
        float top = max1[r] > max[r] ? max1[r] : max[r];
        float a = us__exp_below(max[r] - top), b = us__exp_below(max1[r] - top);
        max[r] = top;
        sum[r] = sum[r] * a + sum1[r] * b;
        for (size_t i = 0; i < ldo; i++) out[i] = out[i] * a + out1[i] * b;
    }
}

INLINE void text_divide(const float *restrict x, float sum, size_t n, float *restrict out) {
    if (sum == 0.0f) {
        memset(out, 0, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++) out[i] = x[i] / sum;
}

/* Columns c0 .. dk-1 of 64 rows become rows of two lane blocks. */
INLINE void columns_base(const float *restrict natural, size_t c0, size_t dk, float *restrict keys) {
    for (size_t c = c0; c < dk; c++)
        for (size_t k = 0; k < US_KV_PAGE; k++) keys[(k / US_GEMM_LANES * dk + c) * US_GEMM_LANES + k % US_GEMM_LANES] = natural[k * dk + c];
}

#if defined(__x86_64__)
/* Eight by eight: rows i and i + 4 share a register from the load on, so that only two rounds of shuffles are left. */
INLINE US_TARGET_AVX2 void square8(const float *from, size_t stride, float *to) {
    __m256 r[8], t[8];
    for (int i = 0; i < 4; i++) {
        const float *a = from + (size_t)i * stride, *b = a + 4 * stride;
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a + 4)), _mm_loadu_ps(b + 4), 1);
    }
    for (int h = 0; h < 8; h += 4) {
        t[0] = _mm256_unpacklo_ps(r[h], r[h + 1]), t[1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
        t[2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]), t[3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
        _mm256_storeu_ps(to + (h + 0) * US_GEMM_LANES, _mm256_shuffle_ps(t[0], t[2], 0x44));
        _mm256_storeu_ps(to + (h + 1) * US_GEMM_LANES, _mm256_shuffle_ps(t[0], t[2], 0xee));
        _mm256_storeu_ps(to + (h + 2) * US_GEMM_LANES, _mm256_shuffle_ps(t[1], t[3], 0x44));
        _mm256_storeu_ps(to + (h + 3) * US_GEMM_LANES, _mm256_shuffle_ps(t[1], t[3], 0xee));
    }
}
/* Two squares side by side use a whole cache line of the source at once: rows may be a power of two apart. */
INLINE US_TARGET_AVX2 void columns_avx2(const float *natural, size_t c0, size_t dk, float *keys) {
    for (; c0 + 16 <= dk; c0 += 16)
        for (size_t k = 0; k < US_KV_PAGE; k += 8)
            for (size_t c = c0; c < c0 + 16; c += 8)
                square8(natural + k * dk + c, dk, keys + (k / US_GEMM_LANES * dk + c) * US_GEMM_LANES + k % US_GEMM_LANES);
    columns_base(natural, c0, dk, keys);
}
INLINE US_TARGET_AVX2 void columns_avx512(const float *natural, size_t c0, size_t dk, float *keys) {
    columns_avx2(natural, c0, dk, keys);
}
#endif

INLINE void text_values(const float *restrict natural, size_t dk, size_t dv, float *restrict values) {
    for (size_t c = 0; c < dv; c += US_GEMM_LANES, values += US_KV_PAGE * US_GEMM_LANES) {
        size_t n = dv - c < US_GEMM_LANES ? dv - c : US_GEMM_LANES;
        for (size_t k = 0; k < US_KV_PAGE; k++) {
            float *to = values + k * US_GEMM_LANES;
            if (n == US_GEMM_LANES) {
                memcpy(to, natural + k * dk + c, US_GEMM_LANES * sizeof *to);
            } else {
                memset(to, 0, US_GEMM_LANES * sizeof *to);
                memcpy(to, natural + k * dk + c, n * sizeof *to);
            }
        }
    }
}

#define PATH(name, target)                                                                                                                            \
    target static void soft_##name(float *s, size_t nr, const int32_t *lo, const int32_t *hi, const uint8_t *seen, float scale, float *max, float *sum,\
                                   float *out, size_t ldo) {                                                                                          \
        float top[LANES] = {0}, turn[LANES];                                                                                                          \
        text_scale(s, nr, lo, hi, seen, scale);                                                                                                       \
        for (size_t r = 0; r < nr; r++) top[r] = page_max_##name(s + r * US_ATTN_LDS);                                                                \
        text_turn(nr, top, max, turn);                                                                                                                \
        text_weigh(s, nr, top);                                                                                                                       \
        for (size_t r = 0; r < nr; r++) sum[r] = sum[r] * turn[r] + page_sum_##name(s + r * US_ATTN_LDS);                                             \
        text_rescale(nr, turn, out, ldo);                                                                                                             \
    }                                                                                                                                                 \
    target static void merge_##name(size_t rows, size_t ldo, float *max, float *sum, float *out, const float *max1, const float *sum1,                \
                                    const float *out1) {                                                                                              \
        text_merge(rows, ldo, max, sum, out, max1, sum1, out1);                                                                                       \
    }                                                                                                                                                 \
    target static void divide_##name(const float *x, float sum, size_t n, float *out) {                                                               \
        text_divide(x, sum, n, out);                                                                                                                  \
    }                                                                                                                                                 \
    target static void latent_##name(const float *natural, size_t dk, size_t dv, float *keys, float *values) {                                        \
        columns_##name(natural, 0, dk, keys);                                                                                                         \
        text_values(natural, dk, dv, values);                                                                                                         \
    }                                                                                                                                                 \
    static const us_attn_text text_##name = {soft_##name, merge_##name, divide_##name, latent_##name};

PATH(base, )
#if defined(__x86_64__)
PATH(avx2, US_TARGET_AVX2)
PATH(avx512, US_TARGET_AVX512)
#endif

const us_attn_text *us__attn_text(us_isa isa) {
#if defined(__x86_64__)
    if (isa == US_ISA_AVX512) return &text_avx512;
    if (isa == US_ISA_AVX2) return &text_avx2;
#endif
    (void)isa;
    return &text_base;
}
