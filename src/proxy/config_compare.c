/** Comparing configurations. Header: config_compare.h. Recursion is bounded by the depth limit of documents (US_JSON_DEPTH). */
#include "proxy/config_compare.h"

#include <string.h>

us_key_kind us_config_key_kind(us_str key) {
    static const char *const sizes[] = {"hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "num_hidden_layers",
                                        "num_layers", "n_layer", "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
                                        "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts", "num_nextn_predict_layers",
                                        "mtp_num_hidden_layers", "ffn_hidden_size", "expert_ffn_hidden_size", "d_model", "n_embd", NULL};
    static const char *const top_k[] = {"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k_experts", NULL};
    for (int i = 0; sizes[i]; i++) {
        if (us_str_eqz(key, sizes[i])) return US_KEY_SIZE;
    }
    for (int i = 0; top_k[i]; i++) {
        if (us_str_eqz(key, top_k[i])) return US_KEY_TOP_K;
    }
    return US_KEY_BEHAVIOUR;
}

/* 1 and 1.0 are different, 1.0 and 1.00 are not, 9007199254740993 keeps every digit. */
static bool same_number(const us_json_doc *a, us_json_ref x, const us_json_doc *b, us_json_ref y) {
    us_str p = us_json_raw(a, x), q = us_json_raw(b, y);
    if (us_str_eq(p, q)) return true;
    bool real_p = false, real_q = false;
    for (size_t i = 0; i < p.n; i++) real_p |= p.p[i] == '.' || p.p[i] == 'e' || p.p[i] == 'E' || p.p[i] == 'I' || p.p[i] == 'N';
    for (size_t i = 0; i < q.n; i++) real_q |= q.p[i] == '.' || q.p[i] == 'e' || q.p[i] == 'E' || q.p[i] == 'I' || q.p[i] == 'N';
    double u, v;
    return real_p && real_q && us_json_double(a, x, &u) && us_json_double(b, y, &v) && u <= v && u >= v;
}

static us_json_ref member(const us_json_doc *d, us_json_ref object, us_str key) {
    for (us_json_ref k = us_json_first(d, object); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, object, k);
        if (us_str_eq(us_json_string(d, k), key)) return v;
        k = us_json_next(d, object, v);
    }
    return US_JSON_NO;
}

bool us_json_equal(const us_json_doc *a, us_json_ref x, const us_json_doc *b, us_json_ref y) {
    if (x == US_JSON_NO || y == US_JSON_NO) return x == y;
    us_json_type t = us_json_type_of(a, x);
    if (t != us_json_type_of(b, y)) return false;
    switch (t) {
    case US_JSON_NULL:
    case US_JSON_FALSE:
    case US_JSON_TRUE: return true;
    case US_JSON_NUMBER: return same_number(a, x, b, y);
    case US_JSON_STRING: return us_str_eq(us_json_string(a, x), us_json_string(b, y));
    case US_JSON_ARRAY: break;
    case US_JSON_OBJECT: break;
    }
    if (us_json_count(a, x) != us_json_count(b, y)) return false;
    us_json_ref r = us_json_first(a, x), s = us_json_first(b, y);
    while (r != US_JSON_NO) {
        if (t == US_JSON_ARRAY) {
            if (!us_json_equal(a, r, b, s)) return false;
            s = us_json_next(b, y, s);
        } else { /* usually in the same order: look there first */
            us_str key = us_json_string(a, r);
            us_json_ref v = s != US_JSON_NO && us_str_eq(us_json_string(b, s), key) ? us_json_next(b, y, s) : member(b, y, key);
            r = us_json_next(a, x, r);
            if (!us_json_equal(a, r, b, v)) return false;
            if (s != US_JSON_NO) s = us_json_next(b, y, us_json_next(b, y, s));
        }
        r = us_json_next(a, x, r);
    }
    return true;
}

typedef struct walk {
    const us_json_doc *a, *b;
    us_arena *arena;
    us_key_difference *out;
    size_t max, n;
    us_buf path;
} walk;

static us_status report(walk *w, us_str key, us_json_ref x, us_json_ref y, us_err *err) {
    if (w->n++ >= w->max) return US_OK;
    size_t n = w->path.n;
    if (n) us_buf_c(&w->path, '.');
    us_buf_str(&w->path, key);
    us_status st = us_buf_status(&w->path, err, "comparing configurations");
    us_key_difference d = {.kind = us_config_key_kind(key), .a = us_json_raw(w->a, x), .b = us_json_raw(w->b, y)};
    if (st == US_OK) {
        d.path = (us_str){us_arena_strndup(w->arena, w->path.p, w->path.n), w->path.n};
        if (!d.path.p) st = us_fail_nomem(err, "comparing configurations");
    }
    if (st == US_OK) w->out[w->n - 1] = d;
    w->path.n = n;
    return st;
}

static us_status compare_objects(walk *w, us_json_ref x, us_json_ref y, us_err *err) {
    for (us_json_ref k = us_json_first(w->a, x); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(w->a, x, k), u;
        us_str key = us_json_string(w->a, k);
        u = member(w->b, y, key);
        if (us_json_type_of(w->a, v) == US_JSON_OBJECT && u != US_JSON_NO && us_json_type_of(w->b, u) == US_JSON_OBJECT) {
            size_t n = w->path.n;
            if (n) us_buf_c(&w->path, '.');
            us_buf_str(&w->path, key);
            US_TRY(compare_objects(w, v, u, err));
            w->path.n = n;
        } else if (u == US_JSON_NO || !us_json_equal(w->a, v, w->b, u)) {
            US_TRY(report(w, key, v, u, err));
        }
        k = us_json_next(w->a, x, v);
    }
    for (us_json_ref k = us_json_first(w->b, y); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(w->b, y, k);
        if (member(w->a, x, us_json_string(w->b, k)) == US_JSON_NO) US_TRY(report(w, us_json_string(w->b, k), US_JSON_NO, v, err));
        k = us_json_next(w->b, y, v);
    }
    return US_OK;
}

us_status us_config_compare(const us_json_doc *a, const us_json_doc *b, us_arena *arena, us_key_difference *out, size_t max, size_t *n, us_err *err) {
    walk w = {.a = a, .b = b, .arena = arena, .out = out, .max = max};
    us_status st;
    if (us_json_type_of(a, 0) != US_JSON_OBJECT || us_json_type_of(b, 0) != US_JSON_OBJECT) st = us_fail(err, US_E_FORMAT, "type", "a configuration is a JSON object");
    else st = compare_objects(&w, 0, 0, err);
    us_buf_free(&w.path);
    if (st == US_OK) *n = w.n;
    return st;
}
