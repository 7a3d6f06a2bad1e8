/* Shared by sketch.c and sketch_probes.c only. */
#ifndef US_PROXY_SKETCH_INTERNAL_H
#define US_PROXY_SKETCH_INTERNAL_H

#include "kernels/gemm.h"
#include "proxy/sketch.h"

/* Below this a distance is rounding of f32 features: two experts that differ in nothing but the order of their neurons are a tie, at zero. */
#define US_DISTANCE_NOISE 1e-9

typedef struct us__probes {
    uint32_t n;
    size_t blocks;    /* of US_GEMM_LANES probes */
    float *packed;    /* as us_gemm_pack_nt */
    uint32_t *expert; /* whose router row each probe is */
} us__probes;

/* Probes of a block for experts of input width `in`. */
us_status us__sketch_probes(const us_structure *s, size_t block, uint64_t seed, uint32_t most, size_t in, us__probes *out, const char **why,
                            us_err *err) US_WARN_UNUSED;

#endif
