/**
 * Reading config.json: the text model's object wherever it lies, keys under any of their spellings, strict integers.
 *
 * A key list is '|'-separated; the first that is there and not null counts. Keys are looked up in the text model's object, then at the top.
 * Error classes: "missing", "type", "range", "mismatch", "unknown-model-type". Tests: fixtures/hostile/config through test_fix_structure.c.
 */
#ifndef US_MODEL_CONFIG_H
#define US_MODEL_CONFIG_H

#include "base/ctx.h"
#include "io/json.h"
#include "model/family.h"

typedef struct us_config {
    const us_json_doc *doc; /* borrowed */
    us_json_ref text;       /* object of the text model; 0 = the top */
    const us_family *family;
} us_config;

/** Find the family and the text model's object. An unknown model_type is refused with the nearest known one named. */
us_status us_config_open(const us_json_doc *doc, us_config *out, us_err *err) US_WARN_UNUSED;

us_json_ref us_config_get(const us_config *c, const char *keys);
/** A positive integer (at most 2^31-1); class missing, type or range. */
us_status us_config_positive(const us_config *c, const char *keys, uint32_t *out, us_err *err) US_WARN_UNUSED;
/** The same where absence (or null) is fine. */
us_status us_config_positive_or(const us_config *c, const char *keys, uint32_t def, uint32_t *out, us_err *err) US_WARN_UNUSED;
/** Lenient readers: def when absent or of another type. A list gives its first entry. */
uint32_t us_config_u32(const us_config *c, const char *keys, uint32_t def);
double us_config_real(const us_config *c, const char *keys, double def);
bool us_config_flag(const us_config *c, const char *keys, bool def);
/** Entry i of a list of strings is one of the '|'-separated words. */
bool us_config_entry_is(const us_config *c, us_json_ref list, uint32_t i, const char *words);
/** Entry i of a list as an integer, or def. */
int64_t us_config_entry_i64(const us_config *c, us_json_ref list, uint32_t i, int64_t def);
/** Does a list of integers hold v? */
bool us_config_listed(const us_config *c, us_json_ref list, int64_t v);

/** Number of trunk layers. */
us_status us_config_layers(const us_config *c, uint32_t *out, us_err *err) US_WARN_UNUSED;
/** MoE-ness of trunk layer l by the family's placement rule; keys are checked once by us_config_check_placement. */
bool us_config_layer_is_moe(const us_config *c, uint32_t l);
us_status us_config_check_placement(us_ctx *ctx, const us_config *c, uint32_t n_layers, us_err *err) US_WARN_UNUSED;
/** MTP layers the config names; 0 when none. */
uint32_t us_config_mtp_layers(const us_config *c);

#endif
