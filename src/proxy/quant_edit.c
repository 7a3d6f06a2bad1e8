/**
 * Quantisation lists (rule 8 of fixtures/checkpoints/README.md): entries that name experts are renumbered or dropped, patterns that
 * would answer differently are replaced by the names they matched, everything else keeps its bytes.
 *
 * Tests: fixtures/checkpoints (kimi-k2-int4, nvfp4-modelopt, fp8-ct-static, awq-int4), tests/e2e/test_fix_cases.c.
 */
#include <stdlib.h>
#include <string.h>

#include "model/quant_list.h"
#include "proxy/plan_internal.h"

typedef struct lists_work {
    us_plan *p;
    const us_json_doc *d;
    const us_module *modules;
    size_t n_modules;
    const char *file;
    us_edit_list *out;
} lists_work;

/* ---- modules ---- */

static int cmp_module(const void *a, const void *b) {
    const us_module *x = a, *y = b;
    int c = us_str_cmp(x->old_name, y->old_name);
    if (c) return c;
    if (!x->new_name.p != !y->new_name.p) return x->new_name.p ? -1 : 1; /* one that stays first */
    return x->new_name.p ? us_str_cmp(x->new_name, y->new_name) : 0;
}

static us_str module_of(us_str tensor) {
    size_t n = tensor.n;
    while (n && tensor.p[n - 1] != '.') n--;
    return (us_str){tensor.p, n ? n - 1 : 0};
}

us_status us__plan_modules(us_plan *p, us_module **out, size_t *n, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    us_module *m = us_arena_calloc(&p->arena, ck->n_tensors ? ck->n_tensors : 1, sizeof *m);
    if (!m) return us_fail_nomem(err, "editing quantisation lists");
    for (size_t i = 0; i < ck->n_tensors; i++) m[i].old_name = module_of(ck->tensors[i].name);
    for (size_t i = 0; i < p->n_tensors; i++) m[p->tensors[i].src].new_name = module_of(p->tensors[i].name);
    qsort(m, ck->n_tensors, sizeof *m, cmp_module);
    size_t k = 0;
    for (size_t i = 0; i < ck->n_tensors; i++) {
        if (!m[i].old_name.n || (k && us_str_eq(m[k - 1].old_name, m[i].old_name))) continue;
        m[k++] = m[i];
    }
    *out = m;
    *n = k;
    return US_OK;
}

/* ---- exact names ---- */

typedef enum exact { EXACT_OTHER, EXACT_RENAMED, EXACT_GONE } exact;

/* Rule 8b, 8c. *name: the new one. */
static us_status exact_entry(lists_work *w, us_str s, us_buf *name, exact *what, us_err *err) {
    us_plan *p = w->p;
    uint32_t block, expert;
    us_str rest;
    us_name_kind kind = us_structure_expert_of_name(p->s, s, &block, &expert, &rest);
    *what = EXACT_OTHER;
    us_buf_clear(name);
    if (kind == US_NAME_EXPERT) {
        uint32_t id = p->active[block] && expert < p->s->blocks[block].n_experts ? us_keep_new_id(p->keep, block, expert) : UINT32_MAX;
        size_t digits = 0, end = s.n - rest.n; /* rest starts with its dot */
        while (end > digits && s.p[end - 1 - digits] >= '0' && s.p[end - 1 - digits] <= '9') digits++;
        *what = id == UINT32_MAX ? EXACT_GONE : EXACT_RENAMED;
        us_buf_str(name, us_str_sub(s, 0, end - digits));
        us_buf_printf(name, "%u", id);
        us_buf_str(name, us_str_sub(s, end, s.n));
    } else if (kind == US_NAME_FOREIGN) {
        us_status st = us_fail(err, US_E_REFUSED, "cannot-renumber", "an entry names an expert of no MoE layer of this checkpoint, so it cannot be renumbered");
        us_err_where(err, "%s, \"%.*s\"", w->file, US_STR_ARG(s));
        return st;
    }
    if (*what != EXACT_GONE && p->cut.cut) {
        us_buf renamed = {0};
        us_str now = *what == EXACT_RENAMED ? us_buf_view(name) : s;
        bool stays = us_layer_rename(&p->cut, now, &renamed);
        if (!stays) *what = EXACT_GONE;
        else if (!us_str_eq(us_buf_view(&renamed), now)) {
            us_buf_clear(name);
            us_buf_str(name, us_buf_view(&renamed));
            *what = EXACT_RENAMED;
        }
        name->failed |= renamed.failed;
        us_buf_free(&renamed);
    }
    return us_buf_status(name, err, "editing quantisation lists");
}

/* ---- patterns ---- */

/* Rule 8a: does the pattern give every module that stays the same answer as before? */
static us_status pattern_same(lists_work *w, us_quant_pattern *pat, us_str text, bool *same, us_err *err) {
    *same = true;
    for (size_t i = 0; i < w->n_modules && *same; i++) {
        const us_module *m = &w->modules[i];
        bool before, after;
        if (!m->new_name.p || us_str_eq(m->old_name, m->new_name)) continue;
        us_status st = us_quant_pattern_match(pat, m->old_name, &before, err);
        if (st == US_OK) st = us_quant_pattern_match(pat, m->new_name, &after, err);
        if (st != US_OK) {
            us_err_where(err, "%s, \"%.*s\"", w->file, US_STR_ARG(text));
            return st;
        }
        *same = before == after;
    }
    return US_OK;
}

/* ---- one list ---- */

typedef struct new_list {
    us_str *items; /* raw JSON */
    size_t n, cap;
    us_map seen;   /* decoded text of the items */
    bool changed;
} new_list;

static us_status push(lists_work *w, new_list *l, us_str raw, us_str text, bool keyed, us_err *err) {
    uint32_t old = US_MAP_NONE;
    if (keyed) {
        us_str key = {us_arena_strndup(&w->p->arena, text.p, text.n), text.n};
        if (!key.p || !us_map_put(&l->seen, key, 0, &old)) return us_fail_nomem(err, "editing quantisation lists");
        if (old != US_MAP_NONE) {
            l->changed = true;
            return US_OK;
        }
    }
    if (!us_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items)) return us_fail_nomem(err, "editing quantisation lists");
    l->items[l->n++] = raw;
    return US_OK;
}

static us_status push_text(lists_work *w, new_list *l, us_str text, us_err *err) {
    us_buf b = {0};
    us_buf_json(&b, text);
    us_status st = us_buf_status(&b, err, "editing quantisation lists");
    us_str raw = {0};
    if (st == US_OK) {
        raw = (us_str){us_arena_strndup(&w->p->arena, b.p, b.n), b.n};
        if (!raw.p) st = us_fail_nomem(err, "editing quantisation lists");
    }
    us_buf_free(&b);
    l->changed = true;
    return st == US_OK ? push(w, l, raw, text, true, err) : st;
}

static int cmp_str(const void *a, const void *b) {
    return us_str_cmp(*(const us_str *)a, *(const us_str *)b);
}

/* The pattern's matches under their old names become new names, in byte order. */
static us_status expand(lists_work *w, us_quant_pattern *pat, new_list *l, us_err *err) {
    us_str *names = us_malloc((w->n_modules ? w->n_modules : 1) * sizeof *names);
    if (!names) return us_fail_nomem(err, "editing quantisation lists");
    size_t n = 0;
    us_status st = US_OK;
    for (size_t i = 0; i < w->n_modules && st == US_OK; i++) {
        bool hit = false;
        if (!w->modules[i].new_name.p) continue;
        st = us_quant_pattern_match(pat, w->modules[i].old_name, &hit, err);
        if (st == US_OK && hit) names[n++] = w->modules[i].new_name;
    }
    qsort(names, n, sizeof *names, cmp_str);
    for (size_t i = 0; i < n && st == US_OK; i++) st = push_text(w, l, names[i], err);
    us_free(names);
    l->changed = true;
    return st;
}

static us_status one_entry(lists_work *w, us_json_ref r, new_list *l, us_buf *name, us_err *err) {
    us_str raw = us_json_raw(w->d, r), s = us_json_string(w->d, r);
    if (us_json_type_of(w->d, r) != US_JSON_STRING) return push(w, l, raw, s, false, err);
    if (us_quant_is_pattern(s)) {
        us_quant_pattern *pat = NULL;
        bool same = true;
        us_status st = us_quant_pattern_create(s, &pat, err);
        if (st == US_OK) st = pattern_same(w, pat, s, &same, err);
        else us_err_where(err, "%s, \"%.*s\"", w->file, US_STR_ARG(s));
        if (st == US_OK) st = same ? push(w, l, raw, s, true, err) : expand(w, pat, l, err);
        us_quant_pattern_free(pat);
        return st;
    }
    exact what;
    US_TRY(exact_entry(w, s, name, &what, err));
    if (what == EXACT_GONE) {
        l->changed = true;
        return US_OK;
    }
    if (what == EXACT_RENAMED && !us_str_eq(us_buf_view(name), s)) return push_text(w, l, us_buf_view(name), err);
    return push(w, l, raw, s, true, err);
}

/* The new array in the manner of the old one: its white space before, between and behind the entries. */
static us_status write_list(lists_work *w, us_json_ref array, const new_list *l, us_str *out, us_err *err) {
    const us_json_doc *d = w->d;
    us_json_ref first = us_json_first(d, array), last = first, second = us_json_next(d, array, first);
    for (us_json_ref r = first; r != US_JSON_NO; r = us_json_next(d, array, r)) last = r;
    us_buf b = {0};
    us_str lead = us_str_sub(d->text, d->nodes[array].begin + 1, d->nodes[first].begin);
    us_buf_c(&b, '[');
    for (size_t i = 0; i < l->n; i++) {
        if (i == 0) us_buf_str(&b, lead);
        else if (second != US_JSON_NO) us_buf_str(&b, us_str_sub(d->text, d->nodes[first].end, d->nodes[second].begin));
        else {
            us_buf_c(&b, ',');
            us_buf_str(&b, lead.n ? lead : US_LIT(" "));
        }
        us_buf_str(&b, l->items[i]);
    }
    if (l->n) us_buf_str(&b, us_str_sub(d->text, d->nodes[last].end, d->nodes[array].end - 1));
    us_buf_c(&b, ']');
    us_status st = us_buf_status(&b, err, "editing quantisation lists");
    if (st == US_OK) {
        *out = (us_str){us_arena_strndup(&w->p->arena, b.p, b.n), b.n};
        if (!out->p) st = us_fail_nomem(err, "editing quantisation lists");
    }
    us_buf_free(&b);
    return st;
}

static us_status wrong_type(const lists_work *w, const char *path, const char *what, us_err *err) {
    us_status st = us_fail(err, US_E_FORMAT, "type", "%s", what);
    us_err_where(err, "%s, %s", w->file, path);
    return st;
}

static us_status edit_array(lists_work *w, us_json_ref array, const char *path, us_err *err) {
    new_list l = {0};
    us_buf name = {0};
    us_status st = US_OK;
    us_str with = {0};
    if (us_json_type_of(w->d, array) == US_JSON_NULL) return US_OK;
    if (us_json_type_of(w->d, array) != US_JSON_ARRAY) return wrong_type(w, path, "a quantisation list is no array", err);
    if (!us_json_count(w->d, array)) return US_OK;
    for (us_json_ref r = us_json_first(w->d, array); r != US_JSON_NO && st == US_OK; r = us_json_next(w->d, array, r))
        st = one_entry(w, r, &l, &name, err);
    if (st == US_OK && l.changed) {
        st = write_list(w, array, &l, &with, err);
        if (st == US_OK) st = us__edit_add(w->out, w->d, array, with, err);
        if (st == US_OK) st = us_plan_note_edit(w->p, w->file, us_str_z(path), us_json_raw(w->d, array), with, err);
    }
    us_free(l.items);
    us_map_free(&l.seen);
    us_buf_free(&name);
    return st;
}

/* ---- dictionaries ---- */

/* `quantized_layers` of mixed-precision releases: one member an expert projection; keys are renamed, members of dropped experts go. */
static us_status edit_named(lists_work *w, us_json_ref object, const char *path, us_err *err) {
    us_buf b = {0}, name = {0};
    us_status st = US_OK;
    bool changed = false, first = true;
    us_buf_c(&b, '{');
    for (us_json_ref k = us_json_first(w->d, object); k != US_JSON_NO && st == US_OK;) {
        us_json_ref v = us_json_next(w->d, object, k), next = us_json_next(w->d, object, v);
        us_str s = us_json_string(w->d, k);
        exact what = EXACT_OTHER;
        if (!us_quant_is_pattern(s)) st = exact_entry(w, s, &name, &what, err);
        if (st == US_OK && what != EXACT_GONE) {
            us_buf_z(&b, first ? "" : ", ");
            if (what == EXACT_RENAMED) us_buf_json(&b, us_buf_view(&name));
            else us_buf_str(&b, us_json_raw(w->d, k));
            us_buf_z(&b, ": ");
            us_buf_str(&b, us_json_raw(w->d, v));
            first = false;
        }
        changed |= what == EXACT_GONE || (what == EXACT_RENAMED && !us_str_eq(us_buf_view(&name), s));
        k = next;
    }
    us_buf_c(&b, '}');
    if (st == US_OK) st = us_buf_status(&b, err, "editing quantisation lists");
    if (st == US_OK && changed) {
        us_str with = {us_arena_strndup(&w->p->arena, b.p, b.n), b.n};
        st = with.p ? us__edit_add(w->out, w->d, object, with, err) : us_fail_nomem(err, "editing quantisation lists");
        if (st == US_OK) st = us_plan_note_edit(w->p, w->file, us_str_z(path), us_json_raw(w->d, object), with, err);
    }
    us_buf_free(&b);
    us_buf_free(&name);
    return st;
}

/* `dynamic` of GPTQ: keys are patterns ("+:" and "-:" in front are no part of them); a key that would answer differently is refused. */
static us_status check_dynamic(lists_work *w, us_json_ref object, us_err *err) {
    us_buf b = {0};
    us_status st = US_OK;
    if (us_json_type_of(w->d, object) != US_JSON_OBJECT) return US_OK;
    for (us_json_ref k = us_json_first(w->d, object); k != US_JSON_NO && st == US_OK;) {
        us_str s = us_json_string(w->d, k), body = s;
        us_quant_pattern *pat = NULL;
        bool same = true;
        if (us_str_starts(s, US_LIT("+:")) || us_str_starts(s, US_LIT("-:"))) body = us_str_sub(s, 2, s.n);
        us_buf_clear(&b);
        us_buf_z(&b, "re:");
        us_buf_str(&b, body);
        st = us_buf_status(&b, err, "editing quantisation lists");
        if (st == US_OK) st = us_quant_pattern_create(us_buf_view(&b), &pat, err);
        if (st == US_OK) st = pattern_same(w, pat, s, &same, err);
        us_quant_pattern_free(pat);
        if (st == US_OK && !same) {
            st = us_fail(err, US_E_REFUSED, "cannot-renumber", "a pattern would select other experts after renumbering");
            us_err_where(err, "%s, dynamic, \"%.*s\"", w->file, US_STR_ARG(s));
        }
        k = us_json_next(w->d, object, us_json_next(w->d, object, k));
    }
    us_buf_free(&b);
    return st;
}

us_status us__quant_edits(us_plan *p, const us_json_doc *d, us_json_ref object, const char *file, const char *path, const us_module *modules, size_t n_modules,
                          us_edit_list *out, us_err *err) {
    static const char *const keys[] = {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude", NULL};
    lists_work w = {.p = p, .d = d, .modules = modules, .n_modules = n_modules, .file = file, .out = out};
    us_buf at = {0};
    us_status st = US_OK;
    if (us_json_type_of(d, object) == US_JSON_NULL) return US_OK;
    if (us_json_type_of(d, object) != US_JSON_OBJECT) return wrong_type(&w, path, "is no object", err);
    for (int i = 0; keys[i] && st == US_OK; i++) {
        us_json_ref v = us_json_get(d, object, keys[i]);
        us_buf_clear(&at);
        us_buf_printf(&at, "%s.%s", path, keys[i]);
        if (v != US_JSON_NO) st = edit_array(&w, v, us_buf_text(&at), err);
    }
    us_json_ref groups = us_json_get(d, object, "config_groups");
    if (us_json_type_of(d, groups) == US_JSON_OBJECT) {
        for (us_json_ref k = us_json_first(d, groups); k != US_JSON_NO && st == US_OK;) {
            us_json_ref v = us_json_next(d, groups, k), t = us_json_get(d, v, "targets");
            us_buf_clear(&at);
            us_buf_printf(&at, "%s.config_groups.%.*s.targets", path, US_STR_ARG(us_json_string(d, k)));
            if (t != US_JSON_NO) st = edit_array(&w, t, us_buf_text(&at), err);
            k = us_json_next(d, groups, v);
        }
    }
    us_json_ref named = us_json_get(d, object, "quantized_layers");
    us_buf_clear(&at);
    us_buf_printf(&at, "%s.quantized_layers", path);
    if (st == US_OK && us_json_type_of(d, named) == US_JSON_OBJECT) st = edit_named(&w, named, us_buf_text(&at), err);
    if (st == US_OK) st = check_dynamic(&w, us_json_get(d, object, "dynamic"), err);
    us_buf_free(&at);
    return st;
}
