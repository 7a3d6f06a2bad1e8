/**
 * The parts of attention that are loops over floats: one text, compiled for every instruction set (attention_text.c). Inside the kernels only; attention.h is
 * what callers use. Tests: tests/unit/test_attention.c.
 */
#ifndef US_KERNELS_ATTENTION_TEXT_H
#define US_KERNELS_ATTENTION_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dispatch.h"

enum { US_ATTN_LDS = 80 }; /* row stride of a tile of scores: a page and a bit, so that rows do not share places of the L1 cache */

typedef struct us_attn_text {
    /**
     * Scores of nr rows against a page become weights in place. Row r sees slots lo[r] .. hi[r]-1 (at least one), of these only the ones with seen != 0 where
     * seen is given; other slots become 0. max, sum and out (row stride ldo) are the rows' running softmax; what they held is rescaled.
     */
    void (*soft)(float *s, size_t nr, const int32_t *lo, const int32_t *hi, const uint8_t *seen, float scale, float *max, float *sum, float *out, size_t ldo);
    /** Running softmax of a span (max1, sum1, out1) into that of the spans before (max, sum, out); rows whose span has no weight stay as they are. */
    void (*merge)(size_t rows, size_t ldo, float *max, float *sum, float *out, const float *max1, const float *sum1, const float *out1);
    /** out[i] = x[i] / sum, or 0 where sum is. */
    void (*divide)(const float *x, float sum, size_t n, float *out);
    /** A latent page in natural order [PAGE][dk]: keys as two lane blocks [dk][32], its first dv channels as lane blocks [PAGE][32]. */
    void (*latent)(const float *natural, size_t dk, size_t dv, float *keys, float *values);
} us_attn_text;

const us_attn_text *us__attn_text(us_isa isa);

#endif
