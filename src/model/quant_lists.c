/* Reading and matching the module lists of quantisation metadata. */
#include "model/quant_lists.h"

#include <stdio.h>
#include <string.h>

static us_status type_fault(us_err *err, const char *path, const char *what) {
    us_fail(err, US_E_FORMAT, "type", "%s must be %s", path, what);
    us_err_where(err, "quantisation metadata");
    return US_E_FORMAT;
}

static us_status add_entry(us_quant_lists *q, us_quant_list *l, us_str text, bool dynamic, us_err *err) {
    us_quant_entry *e = &l->entries[l->n++];
    *e = (us_quant_entry){.text = text};
    if (dynamic) { /* "+:pattern", "-:pattern" or a bare pattern: a regular expression */
        us_buf re = {0};
        bool sign = us_str_starts(text, US_LIT("+:")) || us_str_starts(text, US_LIT("-:"));
        us_buf_z(&re, "re:");
        us_buf_str(&re, us_str_sub(text, sign ? 2 : 0, text.n));
        us_status s = us_buf_status(&re, err, "reading quantisation lists");
        if (s == US_OK) s = us_quant_pattern_create(us_buf_view(&re), &e->pattern, err);
        us_buf_free(&re);
        return s;
    }
    if (us_quant_is_pattern(text)) return us_quant_pattern_create(text, &e->pattern, err);
    return us_map_put(&q->names, text, 0, NULL) ? US_OK : us_fail_nomem(err, "reading quantisation lists");
}

static us_status read_list(us_quant_lists *q, const us_json_doc *d, us_json_ref r, const char *path, us_err *err) {
    if (r == US_JSON_NO || us_json_type_of(d, r) == US_JSON_NULL) return US_OK;
    if (us_json_type_of(d, r) != US_JSON_ARRAY) return type_fault(err, path, "a list of strings");
    us_quant_list *bigger = us_arena_alloc(&q->arena, (q->n + 1) * sizeof *bigger); /* a handful of lists: copying is fine */
    us_quant_list l = {d, r, us_arena_strndup(&q->arena, path, strlen(path)), NULL, 0};
    l.entries = us_arena_calloc(&q->arena, us_json_count(d, r) + 1, sizeof *l.entries);
    if (!bigger || !l.path || !l.entries) return us_fail_nomem(err, "reading quantisation lists");
    if (q->n) memcpy(bigger, q->lists, q->n * sizeof *bigger);
    us_status s = US_OK;
    for (us_json_ref e = us_json_first(d, r); s == US_OK && e != US_JSON_NO; e = us_json_next(d, r, e)) {
        us_str text = us_json_string(d, e);
        s = text.p ? add_entry(q, &l, text, false, err) : type_fault(err, path, "a list of strings");
    }
    bigger[q->n] = l; /* also on failure, so that close releases what was compiled */
    q->lists = bigger;
    q->n++;
    return s;
}

static us_status read_dynamic(us_quant_lists *q, const us_json_doc *d, us_json_ref r, us_err *err) {
    if (r == US_JSON_NO || us_json_type_of(d, r) != US_JSON_OBJECT) return US_OK;
    us_quant_list *l = &q->dynamic;
    l->doc = d;
    l->list = r;
    l->path = us_arena_strndup(&q->arena, "dynamic", 7);
    l->entries = us_arena_calloc(&q->arena, us_json_count(d, r) + 1, sizeof *l->entries);
    if (!l->path || !l->entries) return us_fail_nomem(err, "reading quantisation lists");
    for (us_json_ref k = us_json_first(d, r); k != US_JSON_NO; k = us_json_next(d, r, k + 1)) US_TRY(add_entry(q, l, us_json_string(d, k), true, err));
    return US_OK;
}

static us_status read_object(us_quant_lists *q, const us_json_doc *d, us_json_ref o, const char *where, us_err *err) {
    static const char *const keys[] = {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude"};
    char path[160];
    if (o == US_JSON_NO || us_json_type_of(d, o) == US_JSON_NULL) return US_OK;
    if (us_json_type_of(d, o) != US_JSON_OBJECT) return type_fault(err, where, "an object");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(path, sizeof path, "%s.%s", where, keys[i]);
        US_TRY(read_list(q, d, us_json_get(d, o, keys[i]), path, err));
    }
    us_json_ref groups = us_json_get(d, o, "config_groups");
    if (groups != US_JSON_NO && us_json_type_of(d, groups) != US_JSON_NULL) {
        snprintf(path, sizeof path, "%s.config_groups", where);
        if (us_json_type_of(d, groups) != US_JSON_OBJECT) return type_fault(err, path, "an object");
        for (us_json_ref k = us_json_first(d, groups); k != US_JSON_NO; k = us_json_next(d, groups, k + 1)) {
            us_str name = us_str_sub(us_json_string(d, k), 0, 40);
            snprintf(path, sizeof path, "%s.config_groups.%.*s.targets", where, US_STR_ARG(name));
            US_TRY(read_list(q, d, us_json_get(d, k + 1, "targets"), path, err));
        }
    }
    return read_dynamic(q, d, us_json_get(d, o, "dynamic"), err);
}

static void note_method(us_ctx *ctx, const us_json_doc *d, us_json_ref o) {
    us_str m = us_json_string(d, us_json_get(d, o, "quant_method"));
    static const char known[] = "fp8|compressed-tensors|mxfp4|gptq|awq|modelopt|modelopt_fp4|nvfp4|fbgemm_fp8|bitsandbytes|finegrained_fp8|quark|mxfp8|int8|"
                                "auto-round|w8a8_fp8|w8a8_int8|gptq_marlin|awq_marlin|fp4|hqq|quanto|torchao|aqlm|eetq|higgs|vptq|spqr|bitnet|ascend";
    if (m.p)
        for (const char *at = known; *at;) {
            size_t n = strcspn(at, "|");
            if (us_str_eq(m, (us_str){at, n})) return;
            at += n + (at[n] == '|');
        }
    if (m.p) us_note(ctx, "note", "the quantisation method \"%.*s\" is not known; bytes are copied whatever they mean", US_STR_ARG(us_str_sub(m, 0, 60)));
}

us_status us_quant_lists_open(us_ctx *ctx, const us_checkpoint *ck, us_quant_lists *out, us_err *err) {
    us_quant_lists q = {.dynamic = {.list = US_JSON_NO}};
    us_status s = US_OK;
    const us_json_doc *d = &ck->config;
    if (d->n_nodes) {
        us_json_ref top = us_json_get(d, 0, "quantization_config"), text = us_json_path(d, 0, "text_config.quantization_config");
        US_GO(read_object(&q, d, top, "quantization_config", err));
        US_GO(read_object(&q, d, text, "text_config.quantization_config", err));
        if (top != US_JSON_NO && us_json_type_of(d, top) == US_JSON_OBJECT) note_method(ctx, d, top);
    }
    if (ck->hf_quant.n_nodes) US_GO(read_object(&q, &ck->hf_quant, us_json_get(&ck->hf_quant, 0, "quantization"), "hf_quant_config.json quantization", err));
done:
    if (s == US_OK) *out = q;
    else us_quant_lists_close(&q);
    return s;
}

static void free_codes(us_quant_list *l) {
    for (uint32_t i = 0; i < l->n; i++)
        us_quant_pattern_free(l->entries[i].pattern);
}

void us_quant_lists_close(us_quant_lists *q) {
    for (size_t i = 0; i < q->n; i++) free_codes(&q->lists[i]);
    free_codes(&q->dynamic);
    us_map_free(&q->names);
    us_arena_free(&q->arena);
    memset(q, 0, sizeof *q);
    q->dynamic.list = US_JSON_NO;
}

us_status us_quant_selected(const us_quant_lists *q, us_str module, bool *out, us_err *err) {
    *out = false;
    for (size_t n = module.n; n > 0; n--) /* the module and everything it lies in */
        if ((n == module.n || module.p[n] == '.') && us_map_get(&q->names, us_str_sub(module, 0, n)) != US_MAP_NONE) {
            *out = true;
            return US_OK;
        }
    for (size_t i = 0; i < q->n; i++)
        for (uint32_t k = 0; k < q->lists[i].n; k++) {
            if (!q->lists[i].entries[k].pattern) continue;
            US_TRY(us_quant_pattern_match(q->lists[i].entries[k].pattern, module, out, err));
            if (*out) return US_OK;
        }
    return US_OK;
}
