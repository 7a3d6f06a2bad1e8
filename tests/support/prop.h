/**
 * Property tests: a generator draws a case from a seeded tape of choices, the property judges it; a failing tape is
 * shrunk and shown.
 *
 *     static bool reverse_twice_is_identity(us_prop *p, void *arg) {
 *         size_t n = prop_size(p, 100);
 *         ...
 *         prop_say(p, "n = %zu", n);
 *         PROP_CHECK(p, same(a, b));
 *         return true;
 *     }
 *     prop_run("reverse_twice", reverse_twice_is_identity, NULL, 200);
 *
 * Shrinking works on the tape, not on the case: choices are left out and made smaller, and the property is run again on
 * what comes out of them. So every draw must shrink towards 0, and a property needs no shrinker of its own. A property
 * must be a pure function of its draws and must free what it allocates. US_PROP_SEED and US_PROP_CASES in the
 * environment change the seed and multiply the cases. Tests: tests/unit/test_prop.c.
 */
#ifndef US_TESTS_PROP_H
#define US_TESTS_PROP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "understudy/us_status.h"

typedef struct us_prop us_prop;

/** Uniform in [0, n); n = 0 gives 0. Shrinks towards 0. */
uint64_t prop_below(us_prop *p, uint64_t n);
/** Uniform in [lo, hi]. Shrinks towards lo. */
int64_t prop_range(us_prop *p, int64_t lo, int64_t hi);
/** 0 ... max, small ones more often, 0 and max now and then. Shrinks towards 0. */
size_t prop_size(us_prop *p, size_t max);
/** Shrinks towards false. */
bool prop_bool(us_prop *p);
/** [0, 1). */
double prop_unit(us_prop *p);
/** Any 64 bits, special values (0, 1, powers of two, all ones) more often. */
uint64_t prop_bits(us_prop *p);
/** One of n words. Shrinks towards the first. */
const char *prop_word(us_prop *p, const char *const *words, size_t n);
void prop_bytes(us_prop *p, void *out, size_t n);

/** Describe the case; kept for the smallest failing one. One call a line. */
void prop_say(us_prop *p, const char *fmt, ...) US_PRINTF(2, 3);
/** Says what is wrong and returns false, for the property to return. */
bool prop_wrong(us_prop *p, const char *fmt, ...) US_PRINTF(2, 3);
#define PROP_CHECK(p, condition)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) return prop_wrong(p, "%s:%d: %s", __FILE__, __LINE__, #condition);                           \
    } while (0)

typedef struct prop_report {
    bool failed;
    uint64_t seed;    /* of the run */
    int i_case;       /* the first case that failed */
    int n_shrinks;    /* smaller failing cases found on the way */
    size_t n_choices; /* draws of the smallest failing case */
    char text[2048];  /* its description and what is wrong */
} prop_report;

/** Run without failing the test: for tests of this helper. */
void prop_try(bool (*property)(us_prop *, void *), void *arg, int cases, uint64_t seed, prop_report *out);
/** Run; on failure prints seed and shrunk case and fails the cmocka test. */
void prop_run(const char *name, bool (*property)(us_prop *, void *), void *arg, int cases);

#endif
