/* Philox4x32-10 and what is drawn from it. */
#define _DEFAULT_SOURCE
#include "base/rng.h"

#include <math.h>

void us_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t us_rng_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t w[4];
    us_philox(seed, stream, index, w);
    return (uint64_t)w[1] << 32 | w[0];
}

double us_rng_double(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(us_rng_u64(seed, stream, index) >> 11) * 0x1p-53;
}

double us_rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t w[4];
    us_philox(seed, stream, index, w);
    double u = ((double)(((uint64_t)w[1] << 32 | w[0]) >> 11) + 1.0) * 0x1p-53; /* (0, 1] */
    double v = (double)(((uint64_t)w[3] << 32 | w[2]) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

uint64_t us_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
    uint64_t x = us_rng_u64(seed, stream, index), xl = (uint32_t)x, xh = x >> 32, nl = (uint32_t)n, nh = n >> 32;
    uint64_t mid = xh * nl + (xl * nl >> 32), low = xl * nh + (uint32_t)mid; /* high half of the 128-bit product */
    return xh * nh + (mid >> 32) + (low >> 32);
}

void us_rng_permutation(uint64_t seed, uint64_t stream, uint32_t n, uint32_t *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)us_rng_below(seed, stream, i, i), t = out[i - 1];
        out[i - 1] = out[j];
        out[j] = t;
    }
}
