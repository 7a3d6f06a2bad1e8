/* config.json: family, text model, strict and lenient readers, placement of MoE layers. */
#include "model/config.h"

#include <string.h>

static us_json_ref find_text(const us_json_doc *d, const us_family *f) {
    char path[96];
    for (const char *at = f->text_path; at && *at;) {
        size_t n = strcspn(at, "|");
        if (n < sizeof path) {
            memcpy(path, at, n);
            path[n] = 0;
            us_json_ref r = us_json_path(d, 0, path);
            if (r != US_JSON_NO && us_json_type_of(d, r) == US_JSON_OBJECT) return r;
        }
        at += n + (at[n] == '|');
    }
    return 0;
}

/* Keys and per-layer lists are searched once a layer; an object or a list of millions of entries is no model's and would only cost time. */
static us_status bounded(const us_json_doc *d, us_json_ref object, us_err *err) {
    enum { MEMBERS_MAX = 4096, LIST_MAX = 16384 };
    bool wide = us_json_count(d, object) > MEMBERS_MAX;
    for (us_json_ref k = us_json_first(d, object); !wide && k != US_JSON_NO; k = us_json_next(d, object, k + 1))
        wide = us_json_type_of(d, k + 1) == US_JSON_ARRAY && us_json_count(d, k + 1) > LIST_MAX;
    if (!wide) return US_OK;
    us_fail(err, US_E_LIMIT, "limit", "config.json has more than %d keys in one object or more than %d entries in one list", MEMBERS_MAX, LIST_MAX);
    return us_err_where(err, "config.json");
}

us_status us_config_open(const us_json_doc *d, us_config *out, us_err *err) {
    if (d->n_nodes == 0) {
        us_fail(err, US_E_FORMAT, "missing", "there is no config.json");
        return US_E_FORMAT;
    }
    us_json_ref type = us_json_get(d, 0, "model_type"), inner = us_json_path(d, 0, "text_config.model_type");
    if (us_json_type_of(d, 0) != US_JSON_OBJECT) return us_fail(err, US_E_FORMAT, "type", "config.json is not a JSON object");
    if (type == US_JSON_NO && inner == US_JSON_NO) return us_fail(err, US_E_FORMAT, "missing", "config.json has no model_type");
    if (type != US_JSON_NO && us_json_type_of(d, type) != US_JSON_STRING)
        return us_fail(err, US_E_FORMAT, "type", "model_type in config.json is not a string");
    const us_family *f = type == US_JSON_NO ? NULL : us_family_find(us_json_string(d, type));
    us_json_ref wrapped = US_JSON_NO; /* a wrapper nobody knows around a text model that is known: its keys lie where its model_type does */
    if (!f && us_json_string(d, inner).p && (f = us_family_find(us_json_string(d, inner)))) wrapped = us_json_get(d, 0, "text_config");
    if (!f) {
        us_str name = us_json_string(d, type == US_JSON_NO ? inner : type);
        us_fail(err, US_E_UNSUPPORTED, "unknown-model-type", "the model_type \"%.*s\" is not known", US_STR_ARG(us_str_sub(name, 0, 80)));
        us_err_where(err, "config.json");
        us_err_todo(err, "the nearest known one is \"%s\"; docs/dev/adding-a-family.md says how to add a family", us_family_nearest(name));
        return US_E_UNSUPPORTED;
    }
    us_json_ref text = wrapped != US_JSON_NO ? wrapped : find_text(d, f);
    US_TRY(bounded(d, 0, err));
    if (text) US_TRY(bounded(d, text, err));
    *out = (us_config){d, text, f};
    return US_OK;
}

us_json_ref us_config_get(const us_config *c, const char *keys) {
    char name[96];
    while (keys && *keys) {
        size_t n = strcspn(keys, "|");
        if (n < sizeof name) {
            memcpy(name, keys, n);
            name[n] = 0;
            us_json_ref r = us_json_get(c->doc, c->text, name);
            if (r == US_JSON_NO || us_json_type_of(c->doc, r) == US_JSON_NULL) r = us_json_get(c->doc, 0, name);
            if (r != US_JSON_NO && us_json_type_of(c->doc, r) != US_JSON_NULL) return r;
        }
        keys += n + (keys[n] == '|');
    }
    return US_JSON_NO;
}

/* Is one of the keys there, even as null? */
static bool present(const us_config *c, const char *keys) {
    char name[96];
    while (keys && *keys) {
        size_t n = strcspn(keys, "|");
        if (n < sizeof name) {
            memcpy(name, keys, n);
            name[n] = 0;
            if (us_json_get(c->doc, c->text, name) != US_JSON_NO || us_json_get(c->doc, 0, name) != US_JSON_NO) return true;
        }
        keys += n + (keys[n] == '|');
    }
    return false;
}

static us_status positive(const us_config *c, us_json_ref r, const char *keys, uint32_t *out, us_err *err) {
    uint64_t v;
    us_str raw = us_json_raw(c->doc, r);
    int n = (int)strcspn(keys, "|");
    bool integer = us_json_type_of(c->doc, r) == US_JSON_NUMBER;
    for (size_t i = 0; integer && i < raw.n; i++) integer = (raw.p[i] >= '0' && raw.p[i] <= '9') || (i == 0 && raw.p[i] == '-' && raw.n > 1);
    if (!integer) {
        us_fail(err, US_E_FORMAT, "type", "%.*s must be an integer, not %.*s", n, keys, US_STR_ARG(us_str_sub(raw, 0, 40)));
        us_err_where(err, "config.json");
        return US_E_FORMAT;
    }
    if (!us_json_text_u64(raw, &v) || v == 0 || v > INT32_MAX) {
        us_fail(err, US_E_FORMAT, "range", "%.*s is %.*s; it must be 1 to 2147483647", n, keys, US_STR_ARG(us_str_sub(raw, 0, 40)));
        us_err_where(err, "config.json");
        return US_E_FORMAT;
    }
    *out = (uint32_t)v;
    return US_OK;
}

us_status us_config_positive(const us_config *c, const char *keys, uint32_t *out, us_err *err) {
    us_json_ref r = us_config_get(c, keys);
    if (r != US_JSON_NO) return positive(c, r, keys, out, err);
    bool null = present(c, keys);
    us_fail(err, US_E_FORMAT, null ? "type" : "missing", null ? "%.*s must be an integer, not null" : "config.json has no %.*s", (int)strcspn(keys, "|"), keys);
    us_err_where(err, "config.json");
    return US_E_FORMAT;
}

us_status us_config_positive_or(const us_config *c, const char *keys, uint32_t def, uint32_t *out, us_err *err) {
    us_json_ref r = us_config_get(c, keys);
    *out = def;
    return r == US_JSON_NO ? US_OK : positive(c, r, keys, out, err);
}

uint32_t us_config_u32(const us_config *c, const char *keys, uint32_t def) {
    uint64_t v;
    us_json_ref r = us_config_get(c, keys);
    if (us_json_type_of(c->doc, r) == US_JSON_ARRAY) r = us_json_first(c->doc, r);
    return us_json_u64(c->doc, r, &v) && v <= INT32_MAX ? (uint32_t)v : def;
}

double us_config_real(const us_config *c, const char *keys, double def) {
    double v;
    return us_json_double(c->doc, us_config_get(c, keys), &v) ? v : def;
}

bool us_config_flag(const us_config *c, const char *keys, bool def) {
    bool v;
    return us_json_bool(c->doc, us_config_get(c, keys), &v) ? v : def;
}

bool us_config_entry_is(const us_config *c, us_json_ref list, uint32_t i, const char *words) {
    us_str s = us_json_string(c->doc, us_json_at(c->doc, list, i));
    return s.p && us_word_in(s, words);
}

int64_t us_config_entry_i64(const us_config *c, us_json_ref list, uint32_t i, int64_t def) {
    int64_t v;
    return us_json_i64(c->doc, us_json_at(c->doc, list, i), &v) ? v : def;
}

bool us_config_listed(const us_config *c, us_json_ref list, int64_t v) {
    int64_t x;
    if (us_json_type_of(c->doc, list) != US_JSON_ARRAY) return false;
    for (us_json_ref e = us_json_first(c->doc, list); e != US_JSON_NO; e = us_json_next(c->doc, list, e))
        if (us_json_i64(c->doc, e, &x) && x == v) return true;
    return false;
}

us_status us_config_layers(const us_config *c, uint32_t *out, us_err *err) {
    us_json_ref pattern = us_config_get(c, "layers_block_type|hybrid_override_pattern");
    if (c->family->placement == US_PLACE_PATTERN && us_config_get(c, "num_hidden_layers") == US_JSON_NO && pattern != US_JSON_NO) {
        bool list = us_json_type_of(c->doc, pattern) == US_JSON_ARRAY;
        size_t n = list ? us_json_count(c->doc, pattern) : us_json_string(c->doc, pattern).n;
        if (n == 0) return us_fail(err, US_E_FORMAT, "range", "the layer pattern in config.json is empty");
        *out = (uint32_t)n;
        return US_OK;
    }
    return us_config_positive(c, "num_hidden_layers|num_layers", out, err);
}

/* ---- placement ---- */

static bool step_is_moe(const us_config *c, uint32_t l) {
    uint32_t step = us_config_u32(c, "decoder_sparse_step", 1);
    return !us_config_listed(c, us_config_get(c, "mlp_only_layers"), l) && step > 0 && (l + 1) % step == 0;
}

static bool first_dense_is_moe(const us_config *c, uint32_t l) {
    us_json_ref freq = us_config_get(c, "moe_layer_freq");
    if (us_json_type_of(c->doc, freq) == US_JSON_ARRAY) return us_config_entry_i64(c, freq, l, 1) == 1;
    uint32_t first = us_config_u32(c, "first_k_dense_replace|num_dense_layers|n_dense_layers", 0), every = us_config_u32(c, "moe_layer_freq", 1);
    return l >= first && (every <= 1 || l % every == 0);
}

static bool pattern_is_moe(const us_config *c, uint32_t l) {
    us_json_ref list = us_config_get(c, "layers_block_type");
    if (us_json_type_of(c->doc, list) == US_JSON_ARRAY) return us_config_entry_is(c, list, l, "moe");
    us_str p = us_json_string(c->doc, us_config_get(c, "hybrid_override_pattern"));
    return l < p.n && p.p[l] == 'E';
}

static bool llama4_is_moe(const us_config *c, uint32_t l) {
    us_json_ref list = us_config_get(c, "moe_layers");
    if (us_json_type_of(c->doc, list) == US_JSON_ARRAY) return us_config_listed(c, list, l);
    uint32_t step = us_config_u32(c, "interleave_moe_layer_step", 1);
    return step > 0 && (l + 1) % step == 0;
}

static bool ernie_is_moe(const us_config *c, uint32_t l) {
    int64_t end = -1;
    us_json_i64(c->doc, us_config_get(c, "moe_layer_end_index"), &end);
    uint32_t start = us_config_u32(c, "moe_layer_start_index", 0), every = us_config_u32(c, "moe_layer_interval", 1);
    return l >= start && (end < 0 || l <= end) && every > 0 && (l + 1) % every == 0;
}

static bool enum_is_moe(const us_config *c, uint32_t l) {
    us_json_ref r = us_config_get(c, "moe_layers_enum");
    if (us_json_type_of(c->doc, r) == US_JSON_ARRAY) return us_config_listed(c, r, l);
    us_str s = us_json_string(c->doc, r);
    for (size_t at = 0; at < s.n;) {
        size_t end = us_str_find(s, ',', at);
        uint64_t v;
        if (us_str_to_u64(us_str_sub(s, at, end), &v) && v == l) return true;
        at = end + 1;
    }
    return s.p == NULL;
}

bool us_config_layer_is_moe(const us_config *c, uint32_t l) {
    us_json_ref types = us_config_get(c, "mlp_layer_types");
    us_placement p = c->family->placement;
    if (p == US_PLACE_NONE) return false;
    if (us_json_type_of(c->doc, types) == US_JSON_ARRAY && p != US_PLACE_PATTERN) return us_config_entry_is(c, types, l, "sparse|moe|hash_moe");
    switch (p) {
    case US_PLACE_STEP: return step_is_moe(c, l);
    case US_PLACE_FIRST_DENSE:
    case US_PLACE_FREQ_LIST: return first_dense_is_moe(c, l);
    case US_PLACE_PATTERN: return pattern_is_moe(c, l);
    case US_PLACE_LLAMA4: return llama4_is_moe(c, l);
    case US_PLACE_ERNIE: return ernie_is_moe(c, l);
    case US_PLACE_ENUM: return enum_is_moe(c, l);
    case US_PLACE_PERIOD: {
        uint32_t period = us_config_u32(c, "expert_layer_period", 1);
        return period > 0 && l % period == us_config_u32(c, "expert_layer_offset", 0);
    }
    default: return true;
    }
}

static us_status integer_list(const us_config *c, const char *key, us_err *err) {
    us_json_ref list = us_config_get(c, key);
    int64_t v;
    bool ok = list == US_JSON_NO || us_json_type_of(c->doc, list) == US_JSON_ARRAY;
    for (us_json_ref e = ok && list != US_JSON_NO ? us_json_first(c->doc, list) : US_JSON_NO; ok && e != US_JSON_NO; e = us_json_next(c->doc, list, e))
        ok = us_json_i64(c->doc, e, &v);
    if (ok) return US_OK;
    us_fail(err, US_E_FORMAT, "type", "%s must be a list of integers", key);
    us_err_where(err, "config.json");
    return US_E_FORMAT;
}

/* A list of one entry a layer may be longer (it then describes MTP layers, or is an upstream slip), never shorter. */
static us_status layer_list(us_ctx *ctx, const us_config *c, const char *key, uint32_t n_layers, us_err *err) {
    us_json_ref list = us_config_get(c, key);
    if (us_json_type_of(c->doc, list) != US_JSON_ARRAY) return US_OK;
    uint32_t n = us_json_count(c->doc, list);
    if (n < n_layers) {
        us_fail(err, US_E_FORMAT, "mismatch", "%s has %u entries for %u layers", key, n, n_layers);
        us_err_where(err, "config.json");
        return US_E_FORMAT;
    }
    if (n > n_layers) us_note(ctx, "note", "config.json: %s has %u entries for %u layers; the %u behind are left as they are", key, n, n_layers, n - n_layers);
    return US_OK;
}

us_status us_config_check_placement(us_ctx *ctx, const us_config *c, uint32_t n_layers, us_err *err) {
    static const char *const lists[] = {"layer_types", "mlp_layer_types", "layers_block_type", "hybrid_layer_pattern", "compress_ratios", "indexer_types"};
    uint32_t v;
    if (c->family->placement == US_PLACE_STEP) {
        US_TRY(us_config_positive_or(c, "decoder_sparse_step", 1, &v, err));
        US_TRY(integer_list(c, "mlp_only_layers", err));
        us_json_ref only = us_config_get(c, "mlp_only_layers");
        for (us_json_ref e = only == US_JSON_NO ? US_JSON_NO : us_json_first(c->doc, only); e != US_JSON_NO; e = us_json_next(c->doc, only, e)) {
            int64_t l = 0;
            us_json_i64(c->doc, e, &l);
            if (l < 0 || l >= n_layers) us_note(ctx, "note", "config.json: mlp_only_layers names layer %lld, which does not exist", (long long)l);
        }
    }
    if (c->family->placement == US_PLACE_LLAMA4) US_TRY(integer_list(c, "moe_layers", err));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) US_TRY(layer_list(ctx, c, lists[i], n_layers, err));
    if (us_json_type_of(c->doc, us_config_get(c, "moe_layer_freq")) == US_JSON_ARRAY) US_TRY(layer_list(ctx, c, "moe_layer_freq", n_layers, err));
    return US_OK;
}

uint32_t us_config_mtp_layers(const us_config *c) {
    if (!c->family->mtp_keys || c->family->mtp == US_MTP_NONE) return 0;
    us_json_ref use = us_config_get(c, "use_mtp");
    bool on;
    if (us_json_bool(c->doc, use, &on) && !on) return 0;
    return us_config_u32(c, c->family->mtp_keys, 0);
}
