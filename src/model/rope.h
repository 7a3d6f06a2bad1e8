/**
 * Rotary position tables: frequencies of every published scaling (default, linear, dynamic, llama3, yarn, longrope).
 *
 * Formulas: spec/families-2026.md section 12 "Rotary, all families". Tests: tests/unit/test_rope.c, tests/golden/test_fix_oracle.c.
 */
#ifndef US_MODEL_ROPE_H
#define US_MODEL_ROPE_H

#include "io/json.h"

typedef enum us_rope_kind {
    US_ROPE_DEFAULT, US_ROPE_LINEAR, US_ROPE_DYNAMIC, US_ROPE_LLAMA3, US_ROPE_YARN, US_ROPE_LONGROPE,
} us_rope_kind;

enum { US_ROPE_DIMS_MAX = 1024 };

typedef struct us_rope {
    us_rope_kind kind;
    bool pair;                 /* channels (2i, 2i+1) form a pair; else (i, i + dims/2) */
    uint32_t dims;             /* rotated channels */
    double theta, factor;
    double low_freq, high_freq;        /* llama3 */
    double original_positions;         /* M0; 0 = none */
    double max_positions;              /* M: dynamic */
    double beta_fast, beta_slow;       /* yarn */
    double attention_factor;           /* yarn; 0 = not given */
    double mscale, mscale_all_dim;     /* yarn */
    bool truncate;                     /* yarn */
    double short_mscale, long_mscale;  /* longrope */
    double short_factor[US_ROPE_DIMS_MAX / 2];
} us_rope;

/**
 * Read the rope keys: `params` is the object of rope_parameters (transformers 5) or rope_scaling (released), or US_JSON_NO; theta and dims come from
 * the caller, who knows the many spellings of the rotary width; the keys of params override theta.
 */
us_status us_rope_read(const us_json_doc *d, us_json_ref params, double theta, uint32_t dims, double max_positions, us_rope *out, us_err *err) US_WARN_UNUSED;

/** inv_freq[dims/2] and the multiplier of cos and sin for a sequence of `length` tokens (which matters for dynamic and longrope only). */
void us_rope_table(const us_rope *r, uint64_t length, double *inv_freq, double *multiplier);
/** May the table change with the length of the sequence? Then a cache must be able to rotate its keys again. */
bool us_rope_grows(const us_rope *r);
/** m(a) = 0.1 a ln(factor) + 1, 1 when factor <= 1. DeepSeek multiplies the score scale by m(mscale_all_dim)^2. */
double us_rope_mscale(double factor, double a);

#endif
