/*
 * Number formats against an independent reference: values by the defining formula in double, rounding by search among
 * all values of the format (nearest, ties to the even code), over every code and over all midpoints.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/alloc.h"
#include "base/rng.h"
#include "tensor/dtype.h"

/* Value of a code with e exponent and m mantissa bits. kind 'i': IEEE specials; 'f': OCP e4m3 (one NaN, no infinity).
 */
static double by_formula(unsigned code, int e, int m, char kind) {
    int bias = (1 << (e - 1)) - 1;
    unsigned exponent = code >> m & ((1u << e) - 1), mantissa = code & ((1u << m) - 1), top = (1u << e) - 1;
    double sign = code >> (e + m) & 1 ? -1 : 1;
    if (kind == 'i' && exponent == top) return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (kind == 'f' && exponent == top && mantissa == (1u << m) - 1) return (double)NAN;
    if (exponent == 0) return sign * ldexp((double)mantissa, 1 - bias - m);
    return sign * ldexp(1 + ldexp((double)mantissa, -m), (int)exponent - bias);
}

static void same(double wanted, float got, const char *type, unsigned code) {
    bool equal = isnan(wanted) ? isnan(got) : (double)got == wanted && !signbit(got) == !signbit(wanted);
    if (!equal) fail_msg("%s code 0x%x: %.17g, wanted %.17g", type, code, (double)got, wanted);
}

static void every_code_has_its_value(void **state) {
    (void)state;
    for (unsigned c = 0; c < 65536; c++) {
        same(by_formula(c, 5, 10, 'i'), us_f16_to_f32((uint16_t)c), "f16", c);
        same(by_formula(c, 8, 7, 'i'), us_bf16_to_f32((uint16_t)c), "bf16", c);
    }
    for (unsigned c = 0; c < 256; c++) {
        same(by_formula(c, 4, 3, 'f'), us_f8e4m3_to_f32((uint8_t)c), "e4m3", c);
        same(by_formula(c, 5, 2, 'i'), us_f8e5m2_to_f32((uint8_t)c), "e5m2", c);
        same(c == 255 ? (double)NAN : ldexp(1, (int)c - 127), us_f8e8m0_to_f32((uint8_t)c), "e8m0", c);
    }
    for (unsigned c = 0; c < 16; c++) same(by_formula(c, 2, 1, '-'), us_f4_to_f32((uint8_t)c), "f4", c);
}

typedef struct format {
    const char *name;
    int e, m;
    char kind;
    unsigned largest; /* code of the largest finite value */
    unsigned beyond;  /* code that values past it round to */
    unsigned (*encode)(float);
} format;

static unsigned encode_f16(float x) {
    return us_f32_to_f16(x);
}
static unsigned encode_bf16(float x) {
    return us_f32_to_bf16(x);
}
static unsigned encode_e4m3(float x) {
    return us_f32_to_f8e4m3(x);
}
static unsigned encode_e4m3_sat(float x) {
    return us_f32_to_f8e4m3_sat(x);
}

static const format formats[] = {
    {"f16", 5, 10, 'i', 0x7bff, 0x7c00, encode_f16},
    {"bf16", 8, 7, 'i', 0x7f7f, 0x7f80, encode_bf16},
    {"e4m3", 4, 3, 'f', 0x7e, 0x7f, encode_e4m3},
    {"e4m3 saturating", 4, 3, 'f', 0x7e, 0x7e, encode_e4m3_sat},
};

static void expect(const format *f, double x, unsigned code) {
    unsigned sign = 1u << (f->e + f->m);
    unsigned got = f->encode((float)x), minus = f->encode(-(float)x);
    if (got != code || minus != (code | sign))
        fail_msg("%s: %.17g becomes 0x%x and 0x%x, wanted 0x%x", f->name, x, got, minus, code);
}

/* All codes back to themselves, all midpoints to the even neighbour, a little beside them to the nearer one. */
static void rounding_is_to_nearest_even(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const format *f = &formats[i];
        for (unsigned c = 0; c <= f->largest; c++) {
            double low = by_formula(c, f->e, f->m, '-'),
                   high = by_formula(c + 1, f->e, f->m, '-'); /* past the largest: as if it went on */
            unsigned up = c == f->largest ? f->beyond : c + 1;
            double middle = low + (high - low) / 2;
            expect(f, low, c);
            if ((double)(float)middle != middle) continue; /* subnormal bf16: half of the smallest f32 is no f32 */
            bool even_is_low = c == f->largest ? f->kind == 'f' : (c & 1) == 0;
            expect(f, middle, even_is_low ? c : up);
            double below = (double)nextafterf((float)middle, 0), above = (double)nextafterf((float)middle, INFINITY);
            if (below > low) expect(f, below, c);
            if (above < high) expect(f, above, up);
        }
        expect(f, (double)INFINITY, f->beyond);
    }
}

static void nan_stays_nan(void **state) {
    (void)state;
    for (uint32_t i = 1; i < 1u << 23; i = i * 3 + 1) {
        uint32_t bits = 0x7f800000u | (i & 0x7fffff);
        float x;
        memcpy(&x, &bits, 4);
        assert_true(isnan(us_f16_to_f32(us_f32_to_f16(x))) && isnan(us_bf16_to_f32(us_f32_to_bf16(x))));
        assert_true(isnan(us_f8e4m3_to_f32(us_f32_to_f8e4m3(x))) && isnan(us_f8e4m3_to_f32(us_f32_to_f8e4m3_sat(x))));
    }
}

/* Random f32 bits against the search for the nearest code. */
static void random_values_find_the_nearest_code(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const format *f = &formats[i];
        for (uint64_t k = 0; k < 20000; k++) {
            uint32_t bits = (uint32_t)us_rng_u64(1, i, k) & 0x7fffffff;
            float x;
            memcpy(&x, &bits, 4);
            if (!isfinite(x)) continue;
            unsigned low = 0, high = f->largest;
            while (low < high) { /* largest code whose value is <= x */
                unsigned middle = (low + high + 1) / 2;
                if (by_formula(middle, f->e, f->m, '-') <= (double)x)
                    low = middle;
                else
                    high = middle - 1;
            }
            double a = by_formula(low, f->e, f->m, '-'), b = by_formula(low + 1, f->e, f->m, '-');
            unsigned up = low == f->largest ? f->beyond : low + 1;
            double to_low = (double)x - a, to_high = b - (double)x; /* exact: neighbours in a coarser format */
            if (to_low == to_high) continue;                        /* midpoints are tested above */
            expect(f, (double)x, to_low < to_high ? low : up);
        }
    }
}

static void names_and_sizes(void **state) {
    (void)state;
    for (int t = 0; t < US_DTYPE_COUNT; t++) {
        us_dtype back;
        assert_true(us_dtype_parse(us_str_z(us_dtype_name((us_dtype)t)), &back));
        assert_int_equal(back, t);
        assert_true(us_dtype_bits((us_dtype)t) >= 4 && us_dtype_bits((us_dtype)t) <= 64);
    }
    us_dtype t;
    assert_false(us_dtype_parse(us_str_z("bf16"), &t));
    assert_false(us_dtype_parse(us_str_z(""), &t));
    assert_int_equal(us_dtype_bits(US_DTYPE_F4), 4);
    assert_int_equal(us_dtype_bits(US_DTYPE_C64), 64);
}

static void arrays_convert_unaligned(void **state) {
    (void)state;
    unsigned char raw[64];
    float out[4];
    int64_t big[2] = {-3, (int64_t)1 << 40};
    memcpy(raw + 1, big, sizeof big);
    assert_true(us_to_f32(US_DTYPE_I64, raw + 1, 2, out));
    assert_true(out[0] == -3.0f && out[1] == 1099511627776.0f);
    int8_t small[4] = {-128, -1, 0, 127};
    assert_true(us_to_f32(US_DTYPE_I8, small, 4, out));
    assert_true(out[0] == -128.0f && out[3] == 127.0f);
    uint16_t bf[2] = {0x3f80, 0xc000};
    memcpy(raw + 1, bf, 4);
    assert_true(us_to_f32(US_DTYPE_BF16, raw + 1, 2, out));
    assert_true(out[0] == 1.0f && out[1] == -2.0f);
    assert_false(us_to_f32(US_DTYPE_F4, raw, 2, out));
    assert_false(us_to_f32(US_DTYPE_BOOL, raw, 2, out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(random_values_find_the_nearest_code),
        cmocka_unit_test(names_and_sizes),
        cmocka_unit_test(arrays_convert_unaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
