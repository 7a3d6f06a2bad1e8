/**
 * Weights of a checkpoint as numbers: any stored form -> f64, exactly as the format defines. For the oracle; slow and plain.
 *
 * "name" is the logical matrix ("....weight"): when it is stored packed (weight_packed + weight_scale, _blocks + _scales, FP8 with a block scale) it is
 * dequantised. Tests: tests/unit/test_weights.c, fixtures/models (dequantised.NAME).
 */
#ifndef US_MODEL_WEIGHTS_H
#define US_MODEL_WEIGHTS_H

#include "io/checkpoint.h"

/** The tensor that stores a logical weight (itself or its packed form), or NULL. */
const us_ck_tensor *us_weight_find(const us_checkpoint *ck, const char *name);
/** Logical elements of a weight, 0 when it is not there. */
size_t us_weight_elements(const us_checkpoint *ck, const char *name);
/** All elements as doubles in the arena. `elements` must match (class "shape"); NaN or infinite weights are refused by name (class "nonfinite"). */
us_status us_weight_f64(const us_checkpoint *ck, const char *name, size_t elements, us_arena *arena, const double **out, us_err *err) US_WARN_UNUSED;
/** Slice e of a stacked tensor of E experts (plain, or MXFP4 blocks with scales beside it). *n = its elements. */
us_status us_weight_expert_f64(const us_checkpoint *ck, const us_ck_tensor *t, size_t e, size_t E, us_arena *arena, const double **out, size_t *n,
                               us_err *err) US_WARN_UNUSED;
/** What stands before "layers.<n>" in the tensor names: "model.", "", "backbone." ... US_E_FORMAT, class "tensor-missing". */
us_status us_weight_prefix(const us_checkpoint *ck, char *out, size_t size, us_err *err) US_WARN_UNUSED;
/** Is this the `_blocks` half of an MXFP4 pair? */
bool us_weight_is_packed_blocks(const us_ck_tensor *t);

#endif
