/**
 * Which instruction set the kernels use: found from feature bits (never from model numbers), or forced by the environment variable US_ISA or by a test.
 *
 * Not here: the kernels. Tests: tests/unit/test_gemm.c runs every one that the machine has.
 */
#ifndef US_KERNELS_DISPATCH_H
#define US_KERNELS_DISPATCH_H

#include <stdbool.h>

typedef enum us_isa {
    US_ISA_REF,    /* plain loops that define the result, slow */
    US_ISA_VEC,    /* portable vector extensions */
    US_ISA_AVX2,   /* AVX2 + FMA */
    US_ISA_AVX512, /* AVX-512 F, BW, VL, DQ */
    US_ISA_COUNT
} us_isa;

/** May this machine (processor and kernel) run it? */
bool us_isa_available(us_isa isa);
/** The one in use: forced, else US_ISA, else the best available. */
us_isa us_isa_active(void);
/** Force one (tests, benchmarks); US_ISA_COUNT = back to automatic. false when not available (nothing changes). Not while kernels run. */
bool us_isa_force(us_isa isa);
/** "ref", "vec", "avx2", "avx512". */
const char *us_isa_name(us_isa isa);

#endif
