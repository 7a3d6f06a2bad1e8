/**
 * The lists of module names in quantisation metadata: which modules are stored in another form than the rest.
 *
 * Arrays under ignore, modules_to_not_convert, ignored_layers, exclude_modules, exclude of quantization_config (top or text_config) and of quantization in
 * hf_quant_config.json, and targets of every entry of config_groups. Entries are exact names, `re:` patterns (anchored at the start), or globs over the
 * whole name. Rules: fixtures/checkpoints/README.md 8. Patterns run with a match limit (class "regex"). Read-only and thread-safe after open, except that
 * matching uses scratch inside: one thread at a time. Tests: tests/unit/test_quant_list.c, fixtures.
 */
#ifndef US_MODEL_QUANT_LISTS_H
#define US_MODEL_QUANT_LISTS_H

#include "io/checkpoint.h"
#include "model/quant_list.h"

typedef struct us_quant_entry {
    us_str text;        /* as written, escapes resolved */
    us_quant_pattern *pattern; /* NULL: an exact name */
} us_quant_entry;

typedef struct us_quant_list {
    const us_json_doc *doc; /* config or hf_quant_config.json */
    us_json_ref list;
    char *path;             /* for messages, e.g. "quantization_config.ignore" */
    us_quant_entry *entries;
    uint32_t n;
} us_quant_list;

typedef struct us_quant_lists {
    us_quant_list *lists;
    size_t n;
    us_quant_list dynamic;  /* keys of GPTQ's `dynamic` object; list == US_JSON_NO when there is none */
    us_map names;           /* exact entries of all lists */
    us_arena arena;
} us_quant_lists;

us_status us_quant_lists_open(us_ctx *ctx, const us_checkpoint *ck, us_quant_lists *out, us_err *err) US_WARN_UNUSED;
void us_quant_lists_close(us_quant_lists *q);
/** Is the module, or something it lies in, selected by any list? */
us_status us_quant_selected(const us_quant_lists *q, us_str module, bool *out, us_err *err) US_WARN_UNUSED;

#endif
