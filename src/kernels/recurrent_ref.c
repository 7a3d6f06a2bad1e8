/* The inner kernels of the recurrent mixers over single floats: the definition of their bits. See recurrent_kernels.h. Tests: tests/unit/test_recurrent.c. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define W 1
#define NV 4
#define TARGET
#define TABLE us__rec_ref
typedef float vf;

static inline vf v_set1(float x) {
    return x;
}
static inline vf v_load(const float *p) {
    return *p;
}
static inline void v_store(float *p, vf v) {
    *p = v;
}
static inline vf v_loadn(const float *p, size_t n) {
    return n ? *p : 0.0f;
}
static inline void v_storen(float *p, vf v, size_t n) {
    if (n) *p = v;
}
static inline vf v_fma(vf a, vf b, vf c) {
    return fmaf(a, b, c);
}
static inline vf v_max(vf c, vf x) {
    return c > x ? c : x;
}
static inline vf v_min(vf c, vf x) {
    return c < x ? c : x;
}
static inline vf v_pow2(vf t) {
    uint32_t bits;
    memcpy(&bits, &t, 4);
    bits = (bits - 0x4b400000u + 127u) << 23;
    memcpy(&t, &bits, 4);
    return t;
}
static inline vf v_not_below(vf x, float limit, vf r) {
    return x < limit ? 0.0f : r;
}

#include "kernels/recurrent_body.h"
