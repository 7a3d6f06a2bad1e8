/* Shared inside the oracle: weights of the layer at hand and its scratch space. Not for other modules. */
#ifndef US_MODEL_ORACLE_INTERNAL_H
#define US_MODEL_ORACLE_INTERNAL_H

#include "kernels/ref.h"
#include "model/oracle.h"

struct us_oracle {
    us_ctx *ctx;
    const us_structure *st;
    us_recipe r;
    char layers[96];        /* tensor prefix of the layers, e.g. "model.layers." */
    char base[96];          /* what stands before "layers.": "model.", "", "backbone." */
    us_arena step;          /* scratch and weights of the layer at hand */
    const int64_t *ids;     /* of the running sequence */
    const int64_t *positions;
    size_t T;
    uint8_t *index_mask;    /* [T,T] last selection of the sparse-attention indexer, kept across layers */
    const us_oracle_taps *taps;
    us_err *err;
};

/** n doubles of scratch, zeroed; lives until the layer ends. NULL-safe through US_SCRATCH. */
double *us_oracle_scratch(us_oracle *o, size_t n);
#define US_SCRATCH(o, name, n)                                                                                         \
    double *name = us_oracle_scratch(o, n);                                                                            \
    if (!name) return us_fail_nomem((o)->err, "running the oracle")

/**
 * A weight by name ('|' separates spellings, first found wins) with rows*cols elements, as doubles in the step arena. `optional` leaves *w NULL when
 * absent. layer < 0: below `base` or anywhere at the top.
 */
us_status us_oracle_weight(us_oracle *o, int layer, const char *prefix, const char *names, size_t elements, bool optional, const double **w) US_WARN_UNUSED;

us_status us_oracle_gqa(us_oracle *o, uint32_t l, const double *x, double *out) US_WARN_UNUSED;
us_status us_oracle_mla(us_oracle *o, uint32_t l, const char *prefix, const double *x, double *out) US_WARN_UNUSED;
us_status us_oracle_gdn(us_oracle *o, uint32_t l, const double *x, double *out) US_WARN_UNUSED;
us_status us_oracle_kda(us_oracle *o, uint32_t l, const double *x, double *out) US_WARN_UNUSED;
us_status us_oracle_mamba2(us_oracle *o, uint32_t l, const double *x, double *out) US_WARN_UNUSED;
us_status us_oracle_v4(us_oracle *o, uint32_t l, const double *x, double *out) US_WARN_UNUSED;
us_status us_oracle_mlp(us_oracle *o, uint32_t l, const char *prefix, const double *x, double *out) US_WARN_UNUSED;
us_status us_oracle_moe(us_oracle *o, uint32_t l, const double *x, double *out) US_WARN_UNUSED;
/** deepseek_v4's hyper-connections around one part: collapse the streams to x, and fold y back in. */
us_status us_oracle_hc_mix(us_oracle *o, uint32_t l, const char *which, const double *streams, double *x, double *post, double *comb) US_WARN_UNUSED;

#endif
