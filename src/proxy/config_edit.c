/**
 * config.json and hf_quant_config.json of a proxy: text edits, every byte that is not a changed value stays (rules 7 and 8).
 *
 * Two passes: counts first (a number becomes a number, so the nodes of the document stay where they were), then layer lists and
 * quantisation lists. Tests: fixtures/checkpoints, cases P14, P24, P28, T04.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/plan_internal.h"

us_status us__edit_add(us_edit_list *l, const us_json_doc *d, us_json_ref value, us_str with, us_err *err) {
    if (!us_grow(&l->edits, &l->cap, l->n + 1, sizeof *l->edits)) return us_fail_nomem(err, "editing a configuration");
    l->edits[l->n++] = (us_json_edit){d->nodes[value].begin, d->nodes[value].end, with};
    return US_OK;
}

us_status us__edit_remove(us_edit_list *l, const us_json_doc *d, us_json_ref object, us_json_ref value, us_err *err) {
    us_json_ref key = US_JSON_NO, before = US_JSON_NO;
    for (us_json_ref k = us_json_first(d, object); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, object, k);
        if (v == value) {
            key = k;
            break;
        }
        before = v;
        k = us_json_next(d, object, v);
    }
    if (key == US_JSON_NO) return us_fail(err, US_E_INVAL, NULL, "no such member");
    us_json_ref after = us_json_next(d, object, value);
    size_t begin, end;
    if (after != US_JSON_NO) { /* through the comma and white space, up to the next key */
        begin = d->nodes[key].begin;
        end = d->nodes[after].begin;
    } else { /* from the end of the member before, its comma too */
        begin = before != US_JSON_NO ? d->nodes[before].end : d->nodes[key].begin;
        end = d->nodes[value].end;
    }
    if (!us_grow(&l->edits, &l->cap, l->n + 1, sizeof *l->edits)) return us_fail_nomem(err, "editing a configuration");
    l->edits[l->n++] = (us_json_edit){begin, end, {"", 0}};
    return US_OK;
}

/* Pass 1: the counts. */
static us_status edit_counts(us_plan *p, us_buf *out, us_err *err) {
    const us_json_doc *d = &p->s->ck->config;
    char text[16];
    int len = snprintf(text, sizeof text, "%u", p->keep->n);
    us_str with = {us_arena_strndup(&p->arena, text, (size_t)len), (size_t)len};
    us_edit_list l = {0};
    us_status st = with.p ? US_OK : us_fail_nomem(err, "editing a configuration");
    for (size_t i = 0; i < p->s->n_count_sites && st == US_OK; i++) {
        const us_count_site *c = &p->s->count_sites[i];
        us_str old = us_json_raw(d, c->value);
        if (us_str_eq(old, with)) continue;
        st = us__edit_add(&l, d, c->value, with, err);
        if (st == US_OK) st = us_plan_note_edit(p, "config.json", us_str_z(c->path), old, with, err);
    }
    if (st == US_OK) st = us_json_apply(d->text, l.edits, l.n, out, err);
    us_free(l.edits);
    return st;
}

/* The object that holds the text model's keys, in a document with the same nodes. */
static us_status edit_lists(us_ctx *ctx, us_plan *p, const us_json_doc *d, us_module *modules, size_t n_modules, us_edit_list *l, us_err *err) {
    us_json_ref text = p->s->text_config, top = us_json_get(d, 0, "quantization_config"), inner = US_JSON_NO;
    if (text != US_JSON_NO && text != 0) inner = us_json_get(d, text, "quantization_config");
    if (top != US_JSON_NO) US_TRY(us__quant_edits(p, d, top, "config.json", "quantization_config", modules, n_modules, l, err));
    if (inner != US_JSON_NO && inner != top)
        US_TRY(us__quant_edits(p, d, inner, "config.json", "text_config.quantization_config", modules, n_modules, l, err));
    us_layer_edit *e = NULL;
    size_t n = 0;
    US_TRY(us_layer_edits(ctx, p->s, &p->cut, d, &p->arena, &e, &n, err));
    for (size_t i = 0; i < n; i++) {
        us_str old = us_json_raw(d, e[i].value), with = e[i].with ? us_str_z(e[i].with) : (us_str){0};
        if (e[i].with) US_TRY(us__edit_add(l, d, e[i].value, with, err));
        else US_TRY(us__edit_remove(l, d, e[i].object, e[i].value, err));
        US_TRY(us_plan_note_edit(p, "config.json", us_str_z(e[i].path), old, with, err));
    }
    return US_OK;
}

static bool has_quantisation(const us_checkpoint *ck, us_json_ref text) {
    return ck->hf_quant.n_nodes || us_json_get(&ck->config, 0, "quantization_config") != US_JSON_NO ||
           (text != US_JSON_NO && us_json_get(&ck->config, text, "quantization_config") != US_JSON_NO);
}

us_status us__plan_config(us_ctx *ctx, us_plan *p, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    us_status s;
    us_buf counted = {0};
    us_json_doc d = {0};
    us_edit_list l = {0}, lq = {0};
    us_module *modules = NULL;
    size_t n_modules = 0;
    if (has_quantisation(ck, p->s->text_config)) US_GO(us__plan_modules(p, &modules, &n_modules, err));
    US_GO(edit_counts(p, &counted, err));
    US_GO(us_json_doc_parse(&d, us_buf_view(&counted), US_JSON_INFINITY, err));
    US_GO(edit_lists(ctx, p, &d, modules, n_modules, &l, err));
    US_GO(us_json_apply(d.text, l.edits, l.n, &p->config, err));
    if (ck->hf_quant.n_nodes) {
        us_json_ref q = us_json_get(&ck->hf_quant, 0, "quantization");
        if (q != US_JSON_NO) US_GO(us__quant_edits(p, &ck->hf_quant, q, "hf_quant_config.json", "quantization", modules, n_modules, &lq, err));
        US_GO(us_json_apply(ck->hf_quant.text, lq.edits, lq.n, &p->hf_quant, err));
    }
done:
    us_free(l.edits);
    us_free(lq.edits);
    us_json_doc_free(&d);
    us_buf_free(&counted);
    return s;
}
