/**
 * Element types: those of the safetensors format, sub-byte ones included, with sizes in bits, and scalar conversions.
 *
 * Conversions are exact where the target can hold the value, else round to nearest even. FP8: OCP e4m3 (no infinity, one NaN),
 * e5m2, e8m0 (a bare power of two). Tests: tests/unit/test_dtype.c against exhaustive tables.
 */
#ifndef US_TENSOR_DTYPE_H
#define US_TENSOR_DTYPE_H

#include <stddef.h>

#include "base/str.h"

#define US_DTYPE_MAP(X)                                                                                                \
    X(BOOL, "BOOL", 8)                                                                                                 \
    X(F4, "F4", 4)                                                                                                     \
    X(F6_E2M3, "F6_E2M3", 6)                                                                                           \
    X(F6_E3M2, "F6_E3M2", 6)                                                                                           \
    X(U8, "U8", 8)                                                                                                     \
    X(I8, "I8", 8)                                                                                                     \
    X(F8_E5M2, "F8_E5M2", 8)                                                                                           \
    X(F8_E4M3, "F8_E4M3", 8)                                                                                           \
    X(F8_E8M0, "F8_E8M0", 8)                                                                                           \
    X(F8_E4M3FNUZ, "F8_E4M3FNUZ", 8)                                                                                   \
    X(F8_E5M2FNUZ, "F8_E5M2FNUZ", 8)                                                                                   \
    X(I16, "I16", 16)                                                                                                  \
    X(U16, "U16", 16)                                                                                                  \
    X(F16, "F16", 16)                                                                                                  \
    X(BF16, "BF16", 16)                                                                                                \
    X(I32, "I32", 32)                                                                                                  \
    X(U32, "U32", 32)                                                                                                  \
    X(F32, "F32", 32)                                                                                                  \
    X(C64, "C64", 64)                                                                                                  \
    X(F64, "F64", 64)                                                                                                  \
    X(I64, "I64", 64)                                                                                                  \
    X(U64, "U64", 64)

typedef enum us_dtype {
#define US_DTYPE_ENUM(name, text, bits) US_DTYPE_##name,
    US_DTYPE_MAP(US_DTYPE_ENUM)
#undef US_DTYPE_ENUM
        US_DTYPE_COUNT
} us_dtype;

/** The format's name, e.g. "BF16". */
const char *us_dtype_name(us_dtype t);
unsigned us_dtype_bits(us_dtype t);
/** false for an unknown name. Case matters. */
bool us_dtype_parse(us_str name, us_dtype *out);

float us_bf16_to_f32(uint16_t x);
uint16_t us_f32_to_bf16(float x);
float us_f16_to_f32(uint16_t x);
uint16_t us_f32_to_f16(float x);
float us_f8e4m3_to_f32(uint8_t x);
uint8_t us_f32_to_f8e4m3(float x); /* beyond 448: saturates to NaN as OCP without saturation; see us_f32_to_f8e4m3_sat */
uint8_t us_f32_to_f8e4m3_sat(float x);
float us_f8e5m2_to_f32(uint8_t x);
float us_f8e8m0_to_f32(uint8_t x);
/** FP4 e2m1 code 0..15. */
float us_f4_to_f32(uint8_t code);

/**
 * Convert n elements of any float or integer type (not sub-byte) at src (unaligned is fine) to f32.
 * false when the type has no such conversion (BOOL and packed types).
 */
bool us_to_f32(us_dtype t, const void *src, size_t n, float *dst);

#endif
