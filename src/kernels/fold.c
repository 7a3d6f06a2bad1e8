/* One text for three instruction sets; contraction is off in this file. See fold.h. */
#include "kernels/fold.h"

#include <string.h>

#include "kernels/dispatch.h"
#include "kernels/targets.h"

static inline __attribute__((always_inline)) void fold(const float *restrict y, uint32_t signs, float *restrict sum, float *restrict square, float *restrict peak) {
    for (uint32_t l = 0; l < US_FOLD_LANES; l++) {
        uint32_t bits, flip = (signs >> l) << 31;
        memcpy(&bits, y + l, 4);
        uint32_t flipped = bits ^ flip, absolute = bits & 0x7fffffffu;
        float v, a;
        memcpy(&v, &flipped, 4);
        memcpy(&a, &absolute, 4);
        sum[l] += v;
        square[l] += y[l] * y[l];
        peak[l] = a > peak[l] ? a : peak[l];
    }
}

#if defined(__x86_64__)
US_TARGET_AVX512 static void fold_avx512(const float *y, uint32_t signs, float *sum, float *square, float *peak) {
    fold(y, signs, sum, square, peak);
}
US_TARGET_AVX2 static void fold_avx2(const float *y, uint32_t signs, float *sum, float *square, float *peak) {
    fold(y, signs, sum, square, peak);
}
#endif

void us_fold(const float *y, uint32_t signs, float *sum, float *square, float *peak) {
#if defined(__x86_64__)
    us_isa isa = us_isa_active();
    if (isa == US_ISA_AVX512) {
        fold_avx512(y, signs, sum, square, peak);
        return;
    }
    if (isa == US_ISA_AVX2) {
        fold_avx2(y, signs, sum, square, peak);
        return;
    }
#endif
    fold(y, signs, sum, square, peak);
}
