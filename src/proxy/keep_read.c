/**
 * Reading list files in every shape that people exchange (requirement 21 of requirements-proxy.md, case P25).
 *
 * A file is turned into one node per block first (a JSON array each), whatever its shape; what follows does not know the shape any more.
 * Tests: tests/e2e/test_proxy.c, test_fix_checkpoints.c, test_fix_cases.c.
 */
#include <string.h>

#include "io/fs.h"
#include "proxy/keep.h"

enum { LIST_FILE_MAX = 64 << 20 };

/* Where the list of each block stands. */
typedef struct lists {
    const us_structure *s;
    const bool *active;
    const us_json_doc **doc; /* per block; NULL = not seen */
    us_json_ref *node;
    bool ranked;
} lists;

static us_status refuse(us_err *err, const char *cls, us_str layer, const char *what) {
    us_status st = us_fail(err, US_E_REFUSED, cls, "%s", what);
    if (layer.n) us_err_where(err, "layer %.*s", US_STR_ARG(layer));
    return st;
}

static us_status add_list(lists *l, us_str key, const us_json_doc *d, us_json_ref value, us_err *err) {
    for (size_t b = 0; b < l->s->n_blocks; b++) {
        if (!us_str_eqz(key, l->s->blocks[b].key)) continue;
        if (l->doc[b]) return refuse(err, "kept-duplicate", key, "the layer is listed twice");
        l->doc[b] = d;
        l->node[b] = value;
        return US_OK;
    }
    us_status st = refuse(err, "kept-unknown-layer", key, "a list for something that is no MoE layer of this checkpoint");
    if (l->s->n_blocks)
        us_err_todo(err, "name MoE layers only, %s to %s", l->s->blocks[0].key, l->s->blocks[l->s->n_blocks - 1].key);
    return st;
}

/* {"3": [..], "4": [..]} */
static us_status add_object(lists *l, const us_json_doc *d, us_json_ref object, us_err *err) {
    for (us_json_ref k = us_json_first(d, object); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, object, k);
        US_TRY(add_list(l, us_json_string(d, k), d, v, err));
        k = us_json_next(d, object, v);
    }
    return US_OK;
}

/* {"layers": [3, 4], "keep": [[..], [..]]} */
static us_status add_keepset(lists *l, const us_json_doc *d, us_json_ref layers, us_json_ref keep, us_err *err) {
    if (us_json_type_of(d, layers) != US_JSON_ARRAY || us_json_type_of(d, keep) != US_JSON_ARRAY)
        return refuse(err, "kept-type", (us_str){0}, "beside `keep`, `layers` is the array of layer numbers");
    if (us_json_count(d, layers) != us_json_count(d, keep))
        return refuse(err, "kept-lengths-differ", (us_str){0}, "`layers` and `keep` have different lengths");
    us_json_ref v = us_json_first(d, keep);
    for (us_json_ref k = us_json_first(d, layers); k != US_JSON_NO; k = us_json_next(d, layers, k), v = us_json_next(d, keep, v)) {
        us_str key = us_json_type_of(d, k) == US_JSON_STRING ? us_json_string(d, k) : us_json_raw(d, k);
        US_TRY(add_list(l, key, d, v, err));
    }
    return US_OK;
}

static us_status add_document(lists *l, const us_json_doc *d, us_err *err) {
    if (us_json_type_of(d, 0) != US_JSON_OBJECT) return refuse(err, "kept-type", (us_str){0}, "a list file is a JSON object");
    us_json_ref layers = us_json_get(d, 0, "layers"), keep = us_json_get(d, 0, "keep");
    if (keep != US_JSON_NO) return add_keepset(l, d, layers, keep, err);
    if (layers == US_JSON_NO) return add_object(l, d, 0, err);
    if (us_json_type_of(d, layers) != US_JSON_OBJECT) return refuse(err, "kept-type", (us_str){0}, "`layers` is no object of lists");
    return add_object(l, d, layers, err);
}

/* An integer as JSON writes it; out of the range of int64 counts as out of any range. */
static us_status read_id(const us_json_doc *d, us_json_ref r, const char *key, uint32_t j, uint32_t n_experts, uint32_t *out, us_err *err) {
    us_str raw = us_json_raw(d, r);
    bool integer = us_json_type_of(d, r) == US_JSON_NUMBER;
    for (size_t i = 0; integer && i < raw.n; i++) integer = (raw.p[i] >= '0' && raw.p[i] <= '9') || (i == 0 && raw.p[i] == '-');
    us_status st = US_OK;
    int64_t v = 0;
    if (!integer) st = us_fail(err, US_E_REFUSED, "kept-type", "an expert number must be an integer");
    else if (!us_json_i64(d, r, &v) || v < 0 || v >= (int64_t)n_experts)
        st = us_fail(err, US_E_REFUSED, "kept-range", "expert %.*s does not exist, the layer has %u", US_STR_ARG(raw), n_experts);
    if (st != US_OK) us_err_where(err, "layer %s, entry %u", key, j);
    else *out = (uint32_t)v;
    return st;
}

/* The first `each` of every group in the order of the ranking, ascending. */
static us_status take_ranked(const us_structure *s, size_t block, const uint32_t *rank, uint32_t n_rank, uint32_t n, uint32_t *ids, us_err *err) {
    const us_moe_block *b = &s->blocks[block];
    uint32_t groups = s->n_group ? s->n_group : 1, size = b->n_experts / groups, each = n / groups;
    unsigned char *in = us_calloc(b->n_experts ? b->n_experts : 1, 1);
    uint32_t *count = us_calloc(groups, sizeof *count);
    us_status st = in && count ? US_OK : us_fail_nomem(err, "reading a ranking");
    for (uint32_t i = 0; i < n_rank && st == US_OK; i++) {
        if (in[rank[i]]) st = us_fail(err, US_E_REFUSED, "kept-duplicate", "expert %u is listed twice", rank[i]);
        else in[rank[i]] = count[size ? rank[i] / size : 0]++ < each ? 2 : 1;
    }
    uint32_t j = 0;
    for (uint32_t e = 0; e < b->n_experts && st == US_OK; e++) {
        if (in[e] == 2 && j < n) ids[j++] = e;
    }
    if (st == US_OK && j < n) st = us_fail(err, US_E_REFUSED, "kept-lengths-differ", "the ranking gives %u experts, %u are needed", j, n);
    if (st != US_OK) us_err_where(err, "layer %s", b->key);
    us_free(in);
    us_free(count);
    return st;
}

static us_status fill_block(const lists *l, size_t block, us_keep *k, us_err *err) {
    const us_moe_block *b = &l->s->blocks[block];
    const us_json_doc *d = l->doc[block];
    us_json_ref list = l->node[block];
    uint32_t n = us_json_count(d, list), j = 0;
    uint32_t *tmp = us_malloc((n ? n : 1) * sizeof *tmp);
    if (!tmp) return us_fail_nomem(err, "reading keep lists");
    us_status st = US_OK;
    for (us_json_ref r = us_json_first(d, list); r != US_JSON_NO && st == US_OK; r = us_json_next(d, list, r), j++)
        st = read_id(d, r, b->key, j, b->n_experts, &tmp[j], err);
    if (st == US_OK && l->ranked) st = take_ranked(l->s, block, tmp, n, k->n, us_keep_ids(k, block), err);
    else if (st == US_OK && n == k->n) memcpy(us_keep_ids(k, block), tmp, n * sizeof *tmp);
    us_free(tmp);
    return st;
}

/* Every active block has a list that is an array and not empty; *n = its length, of the first one. */
static us_status check_lists(const lists *l, uint32_t *n, us_err *err) {
    bool first = true;
    for (size_t b = 0; b < l->s->n_blocks; b++) {
        us_str key = us_str_z(l->s->blocks[b].key);
        if (l->active && !l->active[b]) continue;
        if (!l->doc[b]) {
            us_status st = refuse(err, "kept-missing-layer", key,
                                  "the layer has no list, and one count in config.json cannot describe layers of different sizes");
            us_err_todo(err, "give a list for every MoE layer, MTP layers too");
            return st;
        }
        if (us_json_type_of(l->doc[b], l->node[b]) != US_JSON_ARRAY) return refuse(err, "kept-type", key, "the list is no array");
        uint32_t count = us_json_count(l->doc[b], l->node[b]);
        if (!count) return refuse(err, "kept-empty", key, "the list is empty");
        if (first) *n = count;
        first = false;
    }
    return US_OK;
}

/* Read every list (so that a wrong number is named before a wrong length), then hold the lengths against each other. */
static us_status fill(const lists *l, uint32_t n, int64_t size, us_keep *k, us_err *err) {
    if (l->ranked) {
        if (size <= 0) return us_fail(err, US_E_REFUSED, "kept-lengths-differ", "a ranking needs --experts to say how many are kept");
        US_TRY(us_structure_check_size(l->s, size, err));
        n = (uint32_t)size;
    }
    US_TRY(us_keep_create(l->s, n, k, err));
    for (size_t b = 0; b < l->s->n_blocks; b++) {
        if (!l->active || l->active[b]) US_TRY(fill_block(l, b, k, err));
    }
    for (size_t b = 0; b < l->s->n_blocks && !l->ranked; b++) {
        if (l->active && !l->active[b]) continue;
        uint32_t have = us_json_count(l->doc[b], l->node[b]);
        if (have == n) continue;
        us_status st = us_fail(err, US_E_REFUSED, "kept-lengths-differ", "the layer keeps %u experts, another keeps %u; config.json has one count", have, n);
        us_err_where(err, "layer %s", l->s->blocks[b].key);
        return st;
    }
    if (size > 0 && (int64_t)n != size)
        return us_fail(err, US_E_REFUSED, "kept-lengths-differ", "--experts %lld, but the lists keep %u", (long long)size, n);
    return us_keep_validate(l->s, k, l->active, err);
}

/* Documents of a text: one, or one a line. Returns their number. */
static us_status parse_documents(us_str text, bool jsonl, us_json_doc **docs, size_t *n, bool *ranked, us_err *err) {
    size_t cap = 0, from = 0;
    *ranked = jsonl;
    if (!jsonl) {
        us_err first = {0};
        if (!us_grow(docs, &cap, 1, sizeof **docs)) return us_fail_nomem(err, "reading keep lists");
        (*docs)[0] = (us_json_doc){0};
        us_status st = us_json_doc_parse(&(*docs)[0], text, 0, &first);
        if (st == US_OK) {
            *n = 1;
            return US_OK;
        }
        us_json_doc_free(&(*docs)[0]);
        if (strcmp(first.cls, "trailing") != 0) {
            if (err) *err = first;
            return st;
        }
        *ranked = true;
    }
    while (from < text.n) {
        size_t end = us_str_find(text, '\n', from);
        us_str line = us_str_sub(text, from, end);
        from = end + 1;
        while (line.n && strchr(" \t\r", line.p[line.n - 1])) line.n--;
        if (!line.n) continue;
        if (!us_grow(docs, &cap, *n + 1, sizeof **docs)) return us_fail_nomem(err, "reading keep lists");
        (*docs)[*n] = (us_json_doc){0};
        US_TRY(us_json_doc_parse(&(*docs)[*n], line, 0, err));
        (*n)++;
    }
    if (!*n) return us_fail(err, US_E_REFUSED, "kept-type", "the list file is empty");
    return US_OK;
}

us_status us_keep_parse(const us_structure *s, us_str text, bool jsonl, int64_t size, const bool *active, us_keep *out, us_err *err) {
    us_status st = US_OK;
    us_json_doc *docs = NULL;
    size_t n_docs = 0;
    uint32_t n = 0;
    us_keep k = {0};
    lists l = {.s = s, .active = active};
    l.doc = us_calloc(s->n_blocks + 1, sizeof *l.doc);
    l.node = us_calloc(s->n_blocks + 1, sizeof *l.node);
    if (!l.doc || !l.node) {
        st = us_fail_nomem(err, "reading keep lists");
        goto done;
    }
    st = parse_documents(text, jsonl, &docs, &n_docs, &l.ranked, err);
    for (size_t i = 0; i < n_docs && st == US_OK; i++) {
        bool line = l.ranked && us_json_get(&docs[i], 0, "layers") == US_JSON_NO;
        if (line && us_json_type_of(&docs[i], 0) == US_JSON_OBJECT) st = add_object(&l, &docs[i], 0, err);
        else st = add_document(&l, &docs[i], err);
    }
    if (st == US_OK) st = check_lists(&l, &n, err);
    if (st == US_OK) st = fill(&l, n, size, &k, err);
done:
    if (st == US_OK) *out = k;
    else us_keep_free(&k);
    for (size_t i = 0; i < n_docs; i++) us_json_doc_free(&docs[i]);
    us_free(docs);
    us_free(l.doc);
    us_free(l.node);
    return st;
}

us_status us_keep_read(const us_structure *s, const char *path, int64_t size, const bool *active, us_keep *out, us_err *err) {
    char *text = NULL;
    size_t n = 0;
    US_TRY(us_fs_read_all(path, LIST_FILE_MAX, &text, &n, err));
    us_str view = {text, n};
    us_status st = us_keep_parse(s, view, us_str_ends(us_str_z(path), US_LIT(".jsonl")), size, active, out, err);
    us_free(text);
    if (st != US_OK) us_err_where(err, "%s", path);
    return st;
}
