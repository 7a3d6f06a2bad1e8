/* The inner kernels of the recurrent mixers over sixteen lanes, AVX-512. See recurrent_kernels.h. Tests: tests/unit/test_recurrent.c. */
#include "kernels/targets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define W 16
#define NV 4
#define TARGET US_TARGET_AVX512
#define TABLE us__rec_avx512
typedef __m512 vf;
#define SMALL static inline __attribute__((always_inline)) TARGET

SMALL vf v_set1(float x) {
    return _mm512_set1_ps(x);
}
SMALL vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
SMALL void v_store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
SMALL vf v_loadn(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
SMALL void v_storen(float *p, vf v, size_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
SMALL vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
SMALL vf v_max(vf c, vf x) {
    return _mm512_max_ps(c, x);
}
SMALL vf v_min(vf c, vf x) {
    return _mm512_min_ps(c, x);
}
SMALL vf v_pow2(vf t) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(0x4b400000 - 127)), 23));
}
SMALL vf v_not_below(vf x, float limit, vf r) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), r);
}

#include "kernels/recurrent_body.h"
#endif
