/**
 * What a cut of layers or MTP heads changes in config.json: layer counts, per-layer lists and patterns, lists of layer numbers, MTP keys.
 *
 * Keys are those of spec/families-2026.md sections 5 to 7 and case P24. A key that describes layers by a period cannot describe every
 * cut; then the cut is refused by name. Tests: tests/e2e/test_proxy.c, test_fix_models.c.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/layers.h"

static const char *const COUNT_KEYS[] = {"num_hidden_layers", "num_layers", "n_layer", "n_layers", NULL};
/* One entry a layer. */
static const char *const LIST_KEYS[] = {"layer_types",       "mlp_layer_types",  "layers_block_type", "no_rope_layers",       "compress_ratios",
                                        "num_experts",       "num_local_experts", "moe_topk",         "moe_intermediate_size", "num_shared_expert",
                                        "hybrid_layer_pattern", "moe_layer_freq", "attn_type_list",   "attention_types",      "rope_layers",
                                        "intermediate_size", "num_key_value_heads", "num_attention_heads", "sliding_window_pattern", "expert_layers",
                                        "block_types",       "use_rope_layers",  "is_moe_layer",      NULL};
/* One character a layer. */
static const char *const PATTERN_KEYS[] = {"hybrid_override_pattern", NULL};
/* Numbers of layers; base 1 is noted. */
static const char *const NUMBER_KEYS[] = {"mlp_only_layers", "moe_layers", "full_attn_idxs", "attn_layer_indices", "full_attention_layers", NULL};
/* How many leading layers are something. */
static const char *const LEADING_KEYS[] = {"first_k_dense_replace", "num_hash_layers", "max_window_layers", "num_dense_layers", "first_num_dense_layers", NULL};
static const char *const PERIOD_KEYS[] = {"full_attention_interval", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq",
                                          "moe_layer_interval", "sliding_window_pattern", "attn_layer_period", "expert_layer_period",
                                          "no_rope_layer_interval", "global_attn_every_n_layers", NULL};
static const char *const MTP_COUNT_KEYS[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_layers", NULL};
static const char *const MTP_GONE_KEYS[] = {"mtp_hybrid_override_pattern", "mtp_layers_block_type", NULL};

typedef struct work {
    us_ctx *ctx;
    const us_structure *s;
    const us_layer_cut *c;
    const us_json_doc *d;
    us_arena *arena;
    us_json_ref object;
    const char *prefix;
    us_layer_edit *edits;
    size_t n, cap;
} work;

/* with NULL: remove the member */
static us_status add(work *w, const char *key, us_json_ref value, const us_buf *with, us_err *err) {
    char path[160];
    size_t cap = w->cap;
    if (with && us_str_eq(us_json_raw(w->d, value), us_buf_view(with))) return us_buf_status(with, err, "cutting layers");
    snprintf(path, sizeof path, "%s%s", w->prefix, key);
    if (w->n == cap) { /* grows in the arena: the old array is left to it */
        size_t more = cap ? 2 * cap : 16;
        us_layer_edit *e = us_arena_alloc(w->arena, more * sizeof *e);
        if (!e) return us_fail_nomem(err, "cutting layers");
        if (w->n) memcpy(e, w->edits, w->n * sizeof *e);
        w->edits = e;
        w->cap = more;
    }
    us_layer_edit e = {.object = w->object, .value = value, .path = us_arena_strndup(w->arena, path, strlen(path))};
    if (with) e.with = us_arena_strndup(w->arena, with->p, with->n);
    if (!e.path || (with && !e.with)) return us_fail_nomem(err, "cutting layers");
    w->edits[w->n++] = e;
    return with ? us_buf_status(with, err, "cutting layers") : US_OK;
}

static us_status set_number(work *w, const char *key, us_json_ref v, uint64_t n, us_err *err) {
    us_buf b = {0};
    us_buf_printf(&b, "%llu", (unsigned long long)n);
    us_status st = us_buf_status(&b, err, "cutting layers");
    if (st == US_OK) st = add(w, key, v, &b, err);
    us_buf_free(&b);
    return st;
}

/* Raw entries of an array with the separators of the source. */
static void put(us_buf *b, const us_json_doc *d, us_json_ref array, us_str raw, bool *first) {
    const us_json_node *n = &d->nodes[array];
    us_json_ref a = us_json_first(d, array);
    if (*first) us_buf_str(b, us_str_sub(d->text, n->begin, d->nodes[a].begin));
    else {
        us_json_ref c = us_json_next(d, array, a);
        if (c != US_JSON_NO) us_buf_str(b, us_str_sub(d->text, d->nodes[a].end, d->nodes[c].begin));
        else us_buf_z(b, ", ");
    }
    us_buf_str(b, raw);
    *first = false;
}

static void finish(us_buf *b, const us_json_doc *d, us_json_ref array, bool first) {
    us_json_ref last = US_JSON_NO;
    if (first) {
        us_buf_z(b, "[]");
        return;
    }
    for (us_json_ref r = us_json_first(d, array); r != US_JSON_NO; r = us_json_next(d, array, r)) last = r;
    us_buf_str(b, us_str_sub(d->text, d->nodes[last].end, d->nodes[array].end));
}

/* A list with one entry a layer, perhaps with a tail (MTP layers, or an upstream slip: case T04). */
static us_status cut_list(work *w, const char *key, us_json_ref v, us_err *err) {
    uint32_t count = us_json_count(w->d, v), i = 0, n_old = w->c->n_old;
    bool drop_tail = w->c->drop_mtp && strcmp(key, "compress_ratios") == 0;
    if (count < n_old) return US_OK; /* a list of something else */
    if (count > n_old && !drop_tail)
        us_note(w->ctx, "note-list-longer", "%s%s has %u entries for %u layers; the further ones stay as they are", w->prefix, key, count, n_old);
    us_buf b = {0};
    bool first = true;
    for (us_json_ref r = us_json_first(w->d, v); r != US_JSON_NO; r = us_json_next(w->d, v, r), i++) {
        bool keep = i < n_old ? w->c->to_new[i] != US_LAYER_GONE : !drop_tail;
        if (keep) put(&b, w->d, v, us_json_raw(w->d, r), &first);
    }
    finish(&b, w->d, v, first);
    us_status st = us_buf_status(&b, err, "cutting layers");
    if (st == US_OK) st = add(w, key, v, &b, err);
    us_buf_free(&b);
    return st;
}

static us_status cut_pattern(work *w, const char *key, us_json_ref v, us_err *err) {
    us_str s = us_json_string(w->d, v);
    us_buf b = {0}, raw = {0};
    if (s.n < w->c->n_old) return US_OK;
    for (uint32_t i = 0; i < s.n; i++) {
        if (i >= w->c->n_old || w->c->to_new[i] != US_LAYER_GONE) us_buf_c(&b, s.p[i]);
    }
    us_buf_json(&raw, us_buf_view(&b));
    raw.failed |= b.failed;
    us_status st = us_buf_status(&raw, err, "cutting layers");
    if (st == US_OK) st = add(w, key, v, &raw, err);
    us_buf_free(&b);
    us_buf_free(&raw);
    return st;
}

/* A list of layer numbers, counted from `base`. */
static us_status cut_numbers(work *w, const char *key, us_json_ref v, uint32_t base, us_err *err) {
    us_buf b = {0}, num = {0};
    bool first = true;
    for (us_json_ref r = us_json_first(w->d, v); r != US_JSON_NO; r = us_json_next(w->d, v, r)) {
        uint64_t l;
        if (!us_json_u64(w->d, r, &l) || l < base || l - base >= w->c->n_old) continue;
        uint32_t to = w->c->to_new[l - base];
        if (to == US_LAYER_GONE) continue;
        us_buf_clear(&num);
        us_buf_printf(&num, "%u", to + base);
        put(&b, w->d, v, us_buf_view(&num), &first);
    }
    if (us_json_count(w->d, v)) finish(&b, w->d, v, first);
    else us_buf_str(&b, us_json_raw(w->d, v));
    b.failed |= num.failed;
    us_status st = us_buf_status(&b, err, "cutting layers");
    if (st == US_OK) st = add(w, key, v, &b, err);
    us_buf_free(&b);
    us_buf_free(&num);
    return st;
}

/* The first n layers are something: how many of them stay. */
static us_status cut_leading(work *w, const char *key, us_json_ref v, us_err *err) {
    uint64_t n, stay = 0;
    if (!us_json_u64(w->d, v, &n)) return US_OK;
    if (n >= w->c->n_old) return US_OK;
    for (uint32_t i = 0; i < w->c->n_new; i++) stay += w->c->kept[i] < n;
    return set_number(w, key, v, stay, err);
}

/* A kept layer must fall on the same place of the period. */
static us_status check_period(const work *w, const char *key, us_json_ref v, us_err *err) {
    uint64_t p;
    if (!us_json_u64(w->d, v, &p) || p <= 1) return US_OK;
    for (uint32_t i = 0; i < w->c->n_new; i++) {
        if (w->c->kept[i] % p == i % p) continue;
        us_status st = us_fail(err, US_E_REFUSED, "layers-period", "layer %u would become layer %u, but the kinds of layers repeat every %llu",
                               w->c->kept[i], i, (unsigned long long)p);
        us_err_where(err, "%s%s", w->prefix, key);
        us_err_todo(err, "keep the first layers, or move layers by whole periods");
        return st;
    }
    return US_OK;
}

/* moe_layer_start_index, moe_layer_end_index: a run of layers; -1 = to the end. */
static us_status cut_run(work *w, us_err *err) {
    us_json_ref a = us_json_get(w->d, w->object, "moe_layer_start_index"), b = us_json_get(w->d, w->object, "moe_layer_end_index");
    int64_t v;
    if (us_json_i64(w->d, a, &v) && v >= 0) {
        uint64_t before = 0;
        for (uint32_t i = 0; i < w->c->n_new; i++) before += w->c->kept[i] < v;
        US_TRY(set_number(w, "moe_layer_start_index", a, before, err));
    }
    if (us_json_i64(w->d, b, &v) && v >= 0) {
        uint64_t upto = 0;
        for (uint32_t i = 0; i < w->c->n_new; i++) upto += w->c->kept[i] <= v;
        US_TRY(set_number(w, "moe_layer_end_index", b, upto ? upto - 1 : 0, err));
    }
    return US_OK;
}

static us_status cut_object(work *w, us_err *err) {
    const us_json_doc *d = w->d;
    us_json_ref v;
    for (int i = 0; PERIOD_KEYS[i]; i++) {
        if ((v = us_json_get(d, w->object, PERIOD_KEYS[i])) != US_JSON_NO) US_TRY(check_period(w, PERIOD_KEYS[i], v, err));
    }
    for (int i = 0; COUNT_KEYS[i]; i++) {
        uint64_t n;
        if (us_json_u64(d, v = us_json_get(d, w->object, COUNT_KEYS[i]), &n) && n == w->c->n_old)
            US_TRY(set_number(w, COUNT_KEYS[i], v, w->c->n_new, err));
    }
    for (int i = 0; LIST_KEYS[i]; i++) {
        v = us_json_get(d, w->object, LIST_KEYS[i]);
        if (us_json_type_of(d, v) == US_JSON_ARRAY) US_TRY(cut_list(w, LIST_KEYS[i], v, err));
    }
    for (int i = 0; PATTERN_KEYS[i]; i++) {
        v = us_json_get(d, w->object, PATTERN_KEYS[i]);
        if (us_json_type_of(d, v) == US_JSON_STRING) US_TRY(cut_pattern(w, PATTERN_KEYS[i], v, err));
    }
    for (int i = 0; NUMBER_KEYS[i]; i++) {
        v = us_json_get(d, w->object, NUMBER_KEYS[i]);
        if (us_json_type_of(d, v) == US_JSON_ARRAY) US_TRY(cut_numbers(w, NUMBER_KEYS[i], v, 0, err));
    }
    for (int i = 0; LEADING_KEYS[i]; i++) {
        if ((v = us_json_get(d, w->object, LEADING_KEYS[i])) != US_JSON_NO) US_TRY(cut_leading(w, LEADING_KEYS[i], v, err));
    }
    us_json_ref linear = us_json_get(d, w->object, "linear_attn_config"), object = w->object; /* kimi_linear counts from one */
    if (us_json_type_of(d, linear) == US_JSON_OBJECT) {
        static const char *const keys[] = {"kda_layers", "full_attn_layers", NULL};
        w->object = linear;
        for (int i = 0; keys[i]; i++) {
            v = us_json_get(d, linear, keys[i]);
            if (us_json_type_of(d, v) == US_JSON_ARRAY) US_TRY(cut_numbers(w, keys[i], v, 1, err));
        }
        w->object = object;
    }
    return cut_run(w, err);
}

static bool listed(us_str word, const char *const *list) {
    for (int i = 0; list[i]; i++) {
        if (us_str_eqz(word, list[i])) return true;
    }
    return false;
}

/* The keys of the family's table, and those that any family is known to use. */
static us_status drop_mtp(work *w, us_err *err) {
    const us_json_doc *d = w->d;
    us_json_ref v;
    uint64_t n;
    for (us_json_ref k = us_json_first(d, w->object); k != US_JSON_NO; k = us_json_next(d, w->object, v)) {
        us_str name = us_json_string(d, k);
        char key[128];
        v = us_json_next(d, w->object, k);
        if (name.n >= sizeof key) continue;
        snprintf(key, sizeof key, "%.*s", US_STR_ARG(name));
        if (listed(name, MTP_GONE_KEYS) || us_word_in(name, w->s->family->mtp_patterns)) US_TRY(add(w, key, v, NULL, err));
        else if ((listed(name, MTP_COUNT_KEYS) || us_word_in(name, w->s->family->mtp_keys)) && us_json_u64(d, v, &n) && n)
            US_TRY(set_number(w, key, v, 0, err));
    }
    bool use;
    if (us_json_bool(d, v = us_json_get(d, w->object, "use_mtp"), &use) && use) {
        us_buf b = {0};
        us_buf_z(&b, "false");
        us_status st = us_buf_status(&b, err, "cutting layers");
        if (st == US_OK) st = add(w, "use_mtp", v, &b, err);
        us_buf_free(&b);
        US_TRY(st);
    }
    v = us_json_get(d, w->object, "compress_ratios"); /* the tail entry belongs to the MTP layer */
    if (!w->c->cut && us_json_type_of(d, v) == US_JSON_ARRAY && us_json_count(d, v) > w->c->n_old) US_TRY(cut_list(w, "compress_ratios", v, err));
    return US_OK;
}

us_status us_layer_edits(us_ctx *ctx, const us_structure *s, const us_layer_cut *c, const us_json_doc *d, us_arena *arena, us_layer_edit **out,
                         size_t *n, us_err *err) {
    work w = {.ctx = ctx, .s = s, .c = c, .d = d, .arena = arena};
    us_json_ref objects[2] = {0, s->text_config};
    for (int i = 0; i < 2; i++) {
        if (objects[i] == US_JSON_NO || (i && objects[1] == 0)) continue;
        w.object = objects[i];
        w.prefix = i ? "text_config." : "";
        if (c->cut) US_TRY(cut_object(&w, err));
        if (c->drop_mtp) US_TRY(drop_mtp(&w, err));
    }
    *out = w.edits;
    *n = w.n;
    return US_OK;
}
