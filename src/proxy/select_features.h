/* Features of the blocks during one selection: shared by select.c and select_features.c only. */
#ifndef US_PROXY_SELECT_FEATURES_H
#define US_PROXY_SELECT_FEATURES_H

#include "proxy/routing.h"
#include "proxy/select.h"
#include "proxy/sketch.h"

typedef struct us__features {
    us_ctx *ctx;
    const us_structure *s;
    const us_select_options *opt;
    us_sketch *sketches; /* by block; phi NULL = none */
    const char **why;
    us_routing routing;  /* n_blocks 0 = none */
} us__features;

us_status us__features_create(us_ctx *ctx, const us_structure *s, const us_select_options *opt, us__features *out, us_err *err) US_WARN_UNUSED;
void us__features_free(us__features *f);
us_status us__features_sketch(us__features *f, size_t block, us_err *err) US_WARN_UNUSED;
/* Distances by the weights of the options over what there is; into d, E x E. `used` gets which sources there were. */
us_status us__features_distance(const us__features *f, size_t block, double *d, us_select_block *used, us_err *err) US_WARN_UNUSED;
/* Gate x output norm on the probes, E values. Needs a sketch. */
us_status us__features_saliency(const us__features *f, size_t block, double *out, us_err *err) US_WARN_UNUSED;
/* Length of every router row. false in *known when the router cannot be read. */
us_status us__features_router_norm(const us__features *f, size_t block, double *out, bool *known, us_err *err) US_WARN_UNUSED;

#endif
