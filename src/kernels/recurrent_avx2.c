/* The inner kernels of the recurrent mixers over eight lanes, AVX2 + FMA. See recurrent_kernels.h. Tests: tests/unit/test_recurrent.c. */
#include "kernels/targets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define W 8
#define NV 4
#define TARGET US_TARGET_AVX2
#define TABLE us__rec_avx2
typedef __m256 vf;
#define SMALL static inline __attribute__((always_inline)) TARGET

SMALL __m256i v_mask(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SMALL vf v_set1(float x) {
    return _mm256_set1_ps(x);
}
SMALL vf v_load(const float *p) {
    return _mm256_loadu_ps(p);
}
SMALL void v_store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
SMALL vf v_loadn(const float *p, size_t n) {
    return _mm256_maskload_ps(p, v_mask(n));
}
SMALL void v_storen(float *p, vf v, size_t n) {
    _mm256_maskstore_ps(p, v_mask(n), v);
}
SMALL vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
SMALL vf v_max(vf c, vf x) {
    return _mm256_max_ps(c, x);
}
SMALL vf v_min(vf c, vf x) {
    return _mm256_min_ps(c, x);
}
SMALL vf v_pow2(vf t) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000 - 127)), 23));
}
SMALL vf v_not_below(vf x, float limit, vf r) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), r);
}

#include "kernels/recurrent_body.h"
#endif
