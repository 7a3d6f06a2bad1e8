/* Function attributes for the instruction sets of dispatch.h: code for them may live in a binary that runs everywhere. */
#ifndef US_KERNELS_TARGETS_H
#define US_KERNELS_TARGETS_H

#if defined(__x86_64__)
#define US_TARGET_AVX2 __attribute__((target("avx2,fma")))
#if defined(__clang__)
#define US_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#else /* gcc vectorises loops with half the register otherwise */
#define US_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#endif

#endif
