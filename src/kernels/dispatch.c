/* Instruction sets by cpuid feature bits. */
#define _POSIX_C_SOURCE 200809L
#include "kernels/dispatch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[US_ISA_COUNT] = {"ref", "vec", "avx2", "avx512"};
static atomic_int active = -1;

const char *us_isa_name(us_isa isa) {
    return isa >= 0 && isa < US_ISA_COUNT ? names[isa] : "?";
}

bool us_isa_available(us_isa isa) {
    if (isa == US_ISA_REF || isa == US_ISA_VEC) return true;
#if defined(__x86_64__)
    /* The builtin looks at cpuid and at xgetbv, so a system that does not save the wide registers counts as without. */
    if (isa == US_ISA_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == US_ISA_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
#endif
    return false;
}

static us_isa automatic(void) {
    const char *forced = getenv("US_ISA");
    for (int i = 0; forced && i < US_ISA_COUNT; i++) {
        if (strcmp(forced, names[i]) == 0 && us_isa_available((us_isa)i)) return (us_isa)i;
    }
    for (int i = US_ISA_COUNT - 1; i > US_ISA_VEC; i--) {
        if (us_isa_available((us_isa)i)) return (us_isa)i;
    }
    return US_ISA_VEC;
}

us_isa us_isa_active(void) {
    int a = atomic_load_explicit(&active, memory_order_relaxed);
    if (a >= 0) return (us_isa)a;
    us_isa isa = automatic(); /* threads that race here find the same */
    atomic_store_explicit(&active, (int)isa, memory_order_relaxed);
    return isa;
}

bool us_isa_force(us_isa isa) {
    if (isa == US_ISA_COUNT) {
        atomic_store_explicit(&active, -1, memory_order_relaxed);
        return true;
    }
    if (!us_isa_available(isa)) return false;
    atomic_store_explicit(&active, (int)isa, memory_order_relaxed);
    return true;
}
