/* Expert activations. One text, compiled for three instruction sets; contraction is off in this file, so they agree bit for bit. See glu.h. */
#include "kernels/glu.h"

#include "kernels/dispatch.h"
#include "kernels/exp.h"
#include "kernels/targets.h"

#define INLINE static inline __attribute__((always_inline))

INLINE float sigmoid(float x) {
    return 1.0f / (1.0f + us__exp(-x));
}

INLINE float tanh_of(float x) {
    return 2.0f * sigmoid(2.0f * x) - 1.0f;
}

INLINE float gelu(float x) {
    return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
}

INLINE float low(float x, float limit) {
    return x > limit ? limit : x;
}

INLINE float clamp(float x, float limit) {
    x = x > limit ? limit : x;
    return x < -limit ? -limit : x;
}

#define LOOP(expr)                                                                                                                                    \
    for (size_t i = 0; i < n; i++) {                                                                                                                  \
        float u = up[i], g = gated ? gate[i] : 0.0f;                                                                                                  \
        (void)g;                                                                                                                                      \
        out[i] = expr;                                                                                                                                \
    }                                                                                                                                                 \
    return

INLINE void apply(us_glu act, float limit, float alpha, size_t n, const float *gate, const float *up, float *out) {
    enum { gated = 1 };
    switch (act) {
    case US_GLU_SILU: LOOP(g * sigmoid(g) * u);
    case US_GLU_CLAMP: LOOP(low(g, limit) * sigmoid(low(g, limit)) * clamp(u, limit));
    case US_GLU_OSS: LOOP((clamp(u, limit) + 1.0f) * low(g, limit) * sigmoid(alpha * low(g, limit)));
    case US_GLU_STEP: LOOP(low(g * sigmoid(g), limit) * clamp(u, limit));
    case US_GLU_GELU: LOOP(gelu(g) * u);
    case US_GLU_RELU: LOOP((g > 0.0f ? g : 0.0f) * u);
    case US_GLU_SITU: LOOP(alpha * tanh_of(g / alpha) * sigmoid(g) * limit * tanh_of(u / limit));
    default: break;
    }
    for (size_t i = 0; i < n; i++) {
        float u = up[i];
        out[i] = act == US_GLU_RELU2 ? (u > 0.0f ? u * u : 0.0f) : act == US_GLU_SILU1 ? u * sigmoid(u) : gelu(u);
    }
}

static void apply_base(us_glu act, float limit, float alpha, size_t n, const float *gate, const float *up, float *out) {
    apply(act, limit, alpha, n, gate, up, out);
}

#if defined(__x86_64__)
US_TARGET_AVX2 static void apply_avx2(us_glu act, float limit, float alpha, size_t n, const float *gate, const float *up, float *out) {
    apply(act, limit, alpha, n, gate, up, out);
}

/* gcc would stay with 256 bits; clang knows no such word here. */
#if defined(__clang__)
#define AVX512 "avx512f,avx512bw,avx512vl,avx512dq"
#else
#define AVX512 "avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"
#endif
__attribute__((target(AVX512))) static void apply_avx512(us_glu act, float limit, float alpha, size_t n, const float *gate,
                                                                                     const float *up, float *out) {
    apply(act, limit, alpha, n, gate, up, out);
}
#endif

void us_glu_apply(us_glu act, float limit, float alpha, size_t n, const float *gate, const float *up, float *out) {
#if defined(__x86_64__)
    us_isa isa = us_isa_active();
    if (isa == US_ISA_AVX512) {
        apply_avx512(act, limit, alpha, n, gate, up, out);
        return;
    }
    if (isa == US_ISA_AVX2) {
        apply_avx2(act, limit, alpha, n, gate, up, out);
        return;
    }
#endif
    apply_base(act, limit, alpha, n, gate, up, out);
}
