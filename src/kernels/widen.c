/* Widening, one text for three instruction sets; bit moves and an exact scaling, so all agree. See widen.h. */
#include "kernels/widen.h"

#include <stdint.h>
#include <string.h>

#include "kernels/dispatch.h"
#include "kernels/targets.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void bf16(const unsigned char *src, size_t n, float *dst) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, 2);
        uint32_t w = (uint32_t)h << 16;
        memcpy(dst + i, &w, 4);
    }
}

/* The fields moved into place stand for the value times 2^-112; the product is exact. Infinity and NaN get the full exponent. */
INLINE void f16(const unsigned char *src, size_t n, float *dst) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, 2);
        uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16, w;
        float v;
        memcpy(&v, &magnitude, 4);
        v *= 0x1p112f;
        memcpy(&w, &v, 4);
        w = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : w;
        w |= sign;
        memcpy(dst + i, &w, 4);
    }
}

#if defined(__x86_64__)
US_TARGET_AVX512 static void bf16_avx512(const void *s, size_t n, float *d) {
    bf16(s, n, d);
}
US_TARGET_AVX2 static void bf16_avx2(const void *s, size_t n, float *d) {
    bf16(s, n, d);
}
US_TARGET_AVX512 static void f16_avx512(const void *s, size_t n, float *d) {
    f16(s, n, d);
}
US_TARGET_AVX2 static void f16_avx2(const void *s, size_t n, float *d) {
    f16(s, n, d);
}
#endif

void us_widen_bf16(const void *src, size_t n, float *dst) {
#if defined(__x86_64__)
    us_isa isa = us_isa_active();
    if (isa == US_ISA_AVX512) {
        bf16_avx512(src, n, dst);
        return;
    }
    if (isa == US_ISA_AVX2) {
        bf16_avx2(src, n, dst);
        return;
    }
#endif
    bf16(src, n, dst);
}

void us_widen_f16(const void *src, size_t n, float *dst) {
#if defined(__x86_64__)
    us_isa isa = us_isa_active();
    if (isa == US_ISA_AVX512) {
        f16_avx512(src, n, dst);
        return;
    }
    if (isa == US_ISA_AVX2) {
        f16_avx2(src, n, dst);
        return;
    }
#endif
    f16(src, n, dst);
}
