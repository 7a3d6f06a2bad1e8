/** Parts of the plan that live in files of their own: the edited texts. Not for other folders. Tests: with plan.h. */
#ifndef US_PROXY_PLAN_INTERNAL_H
#define US_PROXY_PLAN_INTERNAL_H

#include "proxy/plan.h"

/** Fill p->config and p->hf_quant. */
us_status us__plan_config(us_ctx *ctx, us_plan *p, us_err *err) US_WARN_UNUSED;
/** Fill p->index where the source has one. */
us_status us__plan_index(us_ctx *ctx, us_plan *p, us_err *err) US_WARN_UNUSED;

/** A module (tensor name without its last component) before and after. */
typedef struct us_module {
    us_str old_name, new_name; /* new_name.p NULL: dropped */
} us_module;

/** All modules of the checkpoint, sorted by old name, each once. In arena of p. */
us_status us__plan_modules(us_plan *p, us_module **out, size_t *n, us_err *err) US_WARN_UNUSED;

/** Text edits that have been collected for one document. */
typedef struct us_edit_list {
    us_json_edit *edits;
    size_t n, cap;
} us_edit_list;

us_status us__edit_add(us_edit_list *l, const us_json_doc *d, us_json_ref value, us_str with, us_err *err) US_WARN_UNUSED;
/** Remove a member (key and value) of an object with its comma. */
us_status us__edit_remove(us_edit_list *l, const us_json_doc *d, us_json_ref object, us_json_ref value, us_err *err) US_WARN_UNUSED;

/** Edits of the quantisation lists below `object` (quantization_config, or `quantization` of hf_quant_config.json). */
us_status us__quant_edits(us_plan *p, const us_json_doc *d, us_json_ref object, const char *file, const char *path, const us_module *modules, size_t n_modules,
                          us_edit_list *out, us_err *err) US_WARN_UNUSED;

#endif
