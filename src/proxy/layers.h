/**
 * Cutting layers and MTP heads: which layers stay, how names are renumbered, which per-layer lists of config.json are cut.
 *
 * A true cut: tensors, lists, MTP index move together (cases T02, T04, T10; requirements 10, 26; the table of case P24). Widths, heads and
 * latent sizes are never cut: kernels are compiled for them. Tests: tests/e2e/test_proxy.c, test_fix_cases.c, test_fix_models.c.
 */
#ifndef US_PROXY_LAYERS_H
#define US_PROXY_LAYERS_H

#include "model/structure.h"

#define US_LAYER_GONE UINT32_MAX

typedef struct us_layer_cut {
    bool cut;          /* fewer trunk layers than the source has */
    bool drop_mtp;
    uint32_t n_old, n_new; /* trunk layers */
    uint32_t *to_new;  /* n_old entries: new number or US_LAYER_GONE */
    uint32_t *kept;    /* n_new entries: old numbers, ascending */
    us_str base;       /* "model.layers." of the trunk, in the structure's memory */
} us_layer_cut;

/** layers: NULL (all), "N" (the first N), or numbers and ranges "0,1,5-7" (then they must be ascending). */
us_status us_layer_cut_create(const us_structure *s, const char *layers, bool drop_mtp, us_layer_cut *out, us_err *err) US_WARN_UNUSED;
void us_layer_cut_free(us_layer_cut *c);

/** Does a tensor belong to an MTP head? */
bool us_layer_is_mtp(const us_structure *s, const us_layer_cut *c, uint32_t tensor);
/**
 * Name of a tensor (or module) after the cut: appended to out. false: it is gone. Names that belong to no trunk layer stay.
 */
bool us_layer_rename(const us_layer_cut *c, us_str name, us_buf *out);
/** The layer number behind the trunk's base; false when the name has none. */
bool us_layer_number(const us_layer_cut *c, us_str name, uint32_t *layer, size_t *digits_begin, size_t *digits_end);

/** One replacement in config.json. */
typedef struct us_layer_edit {
    us_json_ref object, value; /* member replaced: the object it stands in, its value */
    char *with;        /* raw JSON, in the arena; NULL: the member is removed */
    char *path;
} us_layer_edit;

/**
 * The edits that a cut needs in config.json (per-layer lists, layer counts, MTP keys). Warnings become notes. d: a document with the
 * nodes of the source's config.json (counts may already be changed in it).
 */
us_status us_layer_edits(us_ctx *ctx, const us_structure *s, const us_layer_cut *c, const us_json_doc *d, us_arena *arena, us_layer_edit **out, size_t *n,
                         us_err *err) US_WARN_UNUSED;

#endif
