/* Element types and scalar conversions. */
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
} types[US_DTYPE_COUNT] = {
#define US_DTYPE_ROW(id, text, bits) {text, bits},
    US_DTYPE_MAP(US_DTYPE_ROW)
#undef US_DTYPE_ROW
};

const char *us_dtype_name(us_dtype t) {
    return types[t].name;
}

unsigned us_dtype_bits(us_dtype t) {
    return types[t].bits;
}

bool us_dtype_parse(us_str name, us_dtype *out) {
    for (int i = 0; i < US_DTYPE_COUNT; i++)
        if (us_str_eqz(name, types[i].name)) {
            *out = (us_dtype)i;
            return true;
        }
    return false;
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint32_t to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

float us_bf16_to_f32(uint16_t x) {
    return from_bits((uint32_t)x << 16);
}

uint16_t us_f32_to_bf16(float x) {
    uint32_t u = to_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Value of a small float: sign, e exponent bits, m mantissa bits, IEEE-like with subnormals; specials handled by the callers. */
static float small_float(unsigned sign, unsigned e, unsigned m, int mbits, int bias) {
    float v = e ? ldexpf((float)((1u << mbits) + m), (int)e - bias - mbits) : ldexpf((float)m, 1 - bias - mbits);
    return sign ? -v : v;
}

float us_f16_to_f32(uint16_t x) {
    unsigned s = x >> 15, e = x >> 10 & 31, m = x & 1023;
    if (e == 31) return from_bits((uint32_t)s << 31 | 0x7f800000u | (uint32_t)m << 13);
    return small_float(s, e, m, 10, 15);
}

/* Round |x| to a float with mbits of mantissa and the given bias; returns exponent+mantissa bits, which may overflow. */
static uint32_t round_small(float ax, int mbits, int bias) {
    int ex;
    float fr = frexpf(ax, &ex); /* ax = fr * 2^ex, fr in [0.5, 1) */
    if (fr == 0) return 0;
    int e = ex - 1 + bias;
    float scaled = ldexpf(ax, e >= 1 ? mbits - (ex - 1) : bias - 1 + mbits);
    float r = nearbyintf(scaled);
    if (e < 1) return (uint32_t)r; /* subnormal; may carry into exponent 1, which is right */
    return ((uint32_t)(e - 1) << mbits) + (uint32_t)r;
}

uint16_t us_f32_to_f16(float x) {
    uint32_t u = to_bits(x);
    uint16_t s = (uint16_t)(u >> 16 & 0x8000);
    float ax = fabsf(x);
    if (isnan(x)) return (uint16_t)(s | 0x7e00 | (u >> 13 & 0x1ff));
    if (ax >= 65520.0f) return (uint16_t)(s | 0x7c00);
    return (uint16_t)(s | round_small(ax, 10, 15));
}

float us_f8e4m3_to_f32(uint8_t x) {
    if ((x & 0x7f) == 0x7f) return from_bits((uint32_t)(x & 0x80) << 24 | 0x7fc00000u);
    return small_float(x >> 7, x >> 3 & 15, x & 7, 3, 7);
}

uint8_t us_f32_to_f8e4m3(float x) {
    uint8_t s = (uint8_t)(to_bits(x) >> 24 & 0x80);
    float ax = fabsf(x);
    if (isnan(x) || ax > 464.0f) return (uint8_t)(s | 0x7f);
    return (uint8_t)(s | round_small(ax, 3, 7));
}

uint8_t us_f32_to_f8e4m3_sat(float x) {
    uint8_t s = (uint8_t)(to_bits(x) >> 24 & 0x80);
    if (!isnan(x) && fabsf(x) > 448.0f) return (uint8_t)(s | 0x7e);
    return us_f32_to_f8e4m3(x);
}

float us_f8e5m2_to_f32(uint8_t x) {
    unsigned e = x >> 2 & 31, m = x & 3;
    if (e == 31) return from_bits((uint32_t)(x & 0x80) << 24 | 0x7f800000u | (uint32_t)m << 21);
    return small_float(x >> 7, e, m, 2, 15);
}

float us_f8e8m0_to_f32(uint8_t x) {
    if (x == 255) return from_bits(0x7fc00000u);
    return ldexpf(1.0f, (int)x - 127);
}

float us_f4_to_f32(uint8_t code) {
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float r = v[code & 7];
    return code & 8 ? -r : r;
}

#define CONVERT_LOOP(type, expr)                                                                                       \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        type x;                                                                                                        \
        memcpy(&x, p + i * sizeof x, sizeof x);                                                                        \
        dst[i] = (expr);                                                                                               \
    }                                                                                                                  \
    return true

bool us_to_f32(us_dtype t, const void *src, size_t n, float *dst) {
    const unsigned char *p = src;
    switch (t) {
    case US_DTYPE_F32: memcpy(dst, src, n * 4); return true;
    case US_DTYPE_BF16: CONVERT_LOOP(uint16_t, us_bf16_to_f32(x));
    case US_DTYPE_F16: CONVERT_LOOP(uint16_t, us_f16_to_f32(x));
    case US_DTYPE_F64: CONVERT_LOOP(double, (float)x);
    case US_DTYPE_F8_E4M3: CONVERT_LOOP(uint8_t, us_f8e4m3_to_f32(x));
    case US_DTYPE_F8_E5M2: CONVERT_LOOP(uint8_t, us_f8e5m2_to_f32(x));
    case US_DTYPE_F8_E8M0: CONVERT_LOOP(uint8_t, us_f8e8m0_to_f32(x));
    case US_DTYPE_I8: CONVERT_LOOP(int8_t, (float)x);
    case US_DTYPE_U8: CONVERT_LOOP(uint8_t, (float)x);
    case US_DTYPE_I16: CONVERT_LOOP(int16_t, (float)x);
    case US_DTYPE_U16: CONVERT_LOOP(uint16_t, (float)x);
    case US_DTYPE_I32: CONVERT_LOOP(int32_t, (float)x);
    case US_DTYPE_U32: CONVERT_LOOP(uint32_t, (float)x);
    case US_DTYPE_I64: CONVERT_LOOP(int64_t, (float)x);
    case US_DTYPE_U64: CONVERT_LOOP(uint64_t, (float)x);
    default: return false;
    }
}
