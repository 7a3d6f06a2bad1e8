/** The manifest. Header: manifest.h. */
#include "proxy/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "io/sha256.h"

static void string_member(us_buf *b, const char *indent, const char *key, const char *value) {
    us_buf_printf(b, "%s\"%s\": ", indent, key);
    if (value) us_buf_json(b, us_str_z(value));
    else us_buf_z(b, "null");
}

static us_status sha_of(us_str s, char out[65], us_err *err) {
    us_sha256 *h = NULL;
    US_TRY(us_sha256_create(&h, err));
    us_sha256_add(h, s.p, s.n);
    us_sha256_hex(h, out);
    us_sha256_free(h);
    return US_OK;
}

static void arguments(us_buf *b, const us_plan *p, const us_manifest_arguments *a) {
    us_buf_printf(b, "  \"arguments\": {\n    \"experts\": %u,\n", p->keep->n);
    string_member(b, "    ", "select", a->select);
    us_buf_printf(b, ",\n    \"seed\": %llu", (unsigned long long)a->seed);
    if (a->list_sha256) us_buf_z(b, ",\n"), string_member(b, "    ", "list_sha256", a->list_sha256);
    if (a->routing_sha256) us_buf_z(b, ",\n"), string_member(b, "    ", "routing_sha256", a->routing_sha256);
    if (a->layers) us_buf_z(b, ",\n"), string_member(b, "    ", "layers", a->layers);
    us_buf_printf(b, ",\n    \"drop_mtp\": %s", a->drop_mtp ? "true" : "false");
    if (a->n_protect) {
        us_buf_z(b, ",\n    \"protect\": [");
        for (int i = 0; i < a->n_protect; i++) {
            us_buf_z(b, i ? ", " : "");
            us_buf_json(b, us_str_z(a->protect[i]));
        }
        us_buf_c(b, ']');
    }
    us_buf_z(b, "\n  },\n");
}

static us_status source(us_buf *b, const us_plan *p, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    char config[65], index[65];
    us_json_ref type = us_json_get(&ck->config, p->s->text_config, "model_type");
    if (us_json_get(&ck->config, 0, "model_type") != US_JSON_NO) type = us_json_get(&ck->config, 0, "model_type");
    US_TRY(sha_of(ck->config.text, config, err));
    if (ck->index.n_nodes) US_TRY(sha_of(ck->index.text, index, err));
    uint64_t bytes = 0;
    for (size_t i = 0; i < ck->n_tensors; i++) bytes += ck->tensors[i].bytes;
    us_buf_z(b, "  \"source\": {\n    \"model_type\": ");
    us_buf_json(b, us_json_string(&ck->config, type));
    us_buf_printf(b, ",\n    \"experts\": %u,\n    \"top_k\": %u,\n    \"n_group\": %u,\n    \"topk_group\": %u,\n    \"layers\": %u,\n", p->s->n_experts,
                  p->s->top_k, p->s->n_group, p->s->topk_group, p->s->n_layers);
    us_buf_printf(b, "    \"tensors\": %zu,\n    \"bytes\": %llu,\n", ck->n_tensors, (unsigned long long)bytes);
    string_member(b, "    ", "config_sha256", config);
    us_buf_z(b, ",\n");
    string_member(b, "    ", "index_sha256", ck->index.n_nodes ? index : NULL);
    us_buf_z(b, ",\n    \"shards\": {");
    for (size_t i = 0; i < ck->n_shards; i++) {
        us_buf_z(b, i ? ",\n      " : "\n      ");
        us_buf_json(b, us_str_z(ck->shards[i].name));
        us_buf_printf(b, ": %llu", (unsigned long long)(ck->shards[i].header.data_start + ck->shards[i].header.data_size));
    }
    us_buf_z(b, "\n    }\n  },\n");
    return US_OK;
}

static void layers(us_buf *b, const us_plan *p) {
    bool first = true, mtp = false;
    us_buf_z(b, "  \"layers\": {");
    for (size_t k = 0; k < p->s->n_blocks; k++) {
        mtp |= p->s->blocks[k].mtp;
        if (!p->active[k]) continue;
        us_buf_z(b, first ? "\n    " : ",\n    ");
        us_buf_json(b, us_str_z(p->s->blocks[k].key));
        us_buf_z(b, ": [");
        for (uint32_t j = 0; j < p->keep->n; j++) us_buf_printf(b, "%s%u", j ? ", " : "", us_keep_ids(p->keep, k)[j]);
        us_buf_c(b, ']');
        first = false;
    }
    us_buf_z(b, "\n  },\n");
    string_member(b, "  ", "mtp", p->cut.drop_mtp ? "dropped" : mtp ? "kept, with experts in lockstep" : "no experts in MTP layers");
    us_buf_z(b, ",\n");
    if (!p->cut.cut) return;
    us_buf_printf(b, "  \"layer_cut\": {\n    \"warning\": \"LAYERS WERE CUT: %u of %u layers stay. Depth changes numerics, routing and memory; this is no faithful proxy.\",\n",
                  p->cut.n_new, p->cut.n_old);
    us_buf_z(b, "    \"kept\": [");
    for (uint32_t i = 0; i < p->cut.n_new; i++) us_buf_printf(b, "%s%u", i ? ", " : "", p->cut.kept[i]);
    us_buf_z(b, "]\n  },\n");
}

static void merge_tree(us_buf *b, const us_plan *p, const us_merge_tree *t) {
    bool first = true;
    if (!t || !t->blocks) return;
    us_buf_z(b, "  \"merge_tree\": {");
    for (size_t k = 0; k < t->n_blocks && k < p->s->n_blocks; k++) {
        if (!p->active[k] || !t->blocks[k].n) continue;
        us_buf_z(b, first ? "\n    " : ",\n    ");
        us_buf_json(b, us_str_z(p->s->blocks[k].key));
        us_buf_z(b, ": [");
        for (uint32_t i = 0; i < t->blocks[k].n; i++) {
            const us_merge *m = &t->blocks[k].merges[i];
            double d = m->distance == m->distance && m->distance < 1e300 && m->distance > -1e300 ? m->distance : -1;
            us_buf_printf(b, "%s[%u, %u, %.9g]", i ? ", " : "", m->a, m->b, d);
        }
        us_buf_c(b, ']');
        first = false;
    }
    us_buf_z(b, first ? "},\n" : "\n  },\n");
}

static void raw_or_note(us_buf *b, const char *raw, bool removed) {
    if (raw) us_buf_z(b, raw);
    else us_buf_z(b, removed ? "null" : "\"...\"");
}

static void changes(us_buf *b, const us_plan *p, const us_hashes *h) {
    us_buf_z(b, "  \"changes\": [");
    for (size_t i = 0; i < p->n_edits; i++) {
        const us_plan_edit *e = &p->edits[i];
        us_buf_printf(b, "%s    {\"file\": \"%s\", \"path\": ", i ? ",\n" : "\n", e->file);
        us_buf_json(b, us_str_z(e->path));
        us_buf_z(b, ", \"from\": ");
        raw_or_note(b, e->from, false);
        us_buf_z(b, ", \"to\": ");
        raw_or_note(b, e->to, e->removed);
        us_buf_c(b, '}');
    }
    us_buf_z(b, p->n_edits ? "\n  ],\n" : "],\n");
    us_buf_printf(b, "  \"counts\": {\"dropped\": %zu, \"renamed\": %zu, \"sliced\": %zu, \"copied\": %zu, \"unknown\": %zu", p->n_dropped, p->n_renamed,
                  p->n_sliced, p->n_copied, p->n_unknown);
    if (h) us_buf_printf(b, ", \"token_table_rows_changed\": %llu", (unsigned long long)h->table_rows_changed);
    us_buf_printf(b, "},\n  \"total_bytes\": %llu,\n  \"total_parameters\": %llu,\n", (unsigned long long)p->total_bytes, (unsigned long long)p->total_elements);
}

static void names(us_buf *b, const us_plan *p) {
    const us_checkpoint *ck = p->s->ck;
    bool first = true;
    us_buf_z(b, "  \"not_copied\": [");
    for (size_t i = 0; i < ck->n_left_out; i++) {
        us_buf_z(b, i ? ", " : "");
        us_buf_json(b, us_str_z(ck->left_out[i].name));
    }
    us_buf_z(b, "],\n  \"unknown_tensors\": [");
    for (size_t i = 0; i < p->n_tensors; i++) {
        if (p->s->roles[p->tensors[i].src].kind != US_ROLE_UNKNOWN) continue;
        us_buf_z(b, first ? "" : ", ");
        us_buf_json(b, p->tensors[i].name);
        first = false;
    }
    us_buf_z(b, "],\n");
}

/* Names of written files with SHA-256 of those that are copied; shards with their bytes; then tensors. */
static us_status files(us_buf *b, const us_plan *p, const us_hashes *h, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    const us_buf *text[3] = {&p->config, &p->hf_quant, &p->index};
    static const char *const name[3] = {"config.json", "hf_quant_config.json", "model.safetensors.index.json"};
    bool present[3] = {ck->config.n_nodes != 0, ck->hf_quant.n_nodes != 0, ck->index.n_nodes != 0}, first = true;
    us_buf_z(b, "  \"files\": {");
    for (int i = 0; i < 3; i++) {
        char hex[65];
        if (!present[i]) continue;
        US_TRY(sha_of(us_buf_view(text[i]), hex, err));
        us_buf_printf(b, "%s    \"%s\": \"%s\"", first ? "\n" : ",\n", name[i], hex);
        first = false;
    }
    for (size_t i = 0; i < ck->n_others; i++) {
        if (!us_write_copies(&ck->others[i])) continue;
        us_buf_z(b, first ? "\n    " : ",\n    ");
        us_buf_json(b, us_str_z(ck->others[i].name));
        us_buf_printf(b, ": \"%s\"", h ? h->file[i] : "");
        first = false;
    }
    us_buf_z(b, "\n  },\n  \"shards\": {");
    for (size_t i = 0; i < p->n_shards; i++)
        us_buf_printf(b, "%s    \"%s\": %llu", i ? ",\n" : "\n", p->shards[i].name, (unsigned long long)p->shards[i].data_bytes);
    us_buf_z(b, "\n  },\n");
    return US_OK;
}

static void tensors(us_buf *b, const us_plan *p, const us_hashes *h) {
    static const char *const action[] = {"copied", "renamed", "rows", "token table"};
    us_buf_z(b, "  \"tensors\": {");
    for (size_t i = 0; i < p->n_tensors; i++) {
        const us_plan_tensor *t = &p->tensors[i];
        us_str old = p->s->ck->tensors[t->src].name;
        us_buf_z(b, i ? ",\n    " : "\n    ");
        us_buf_json(b, t->name);
        us_buf_z(b, ": {");
        if (!us_str_eq(old, t->name)) {
            us_buf_z(b, "\"from\": ");
            us_buf_json(b, old);
            us_buf_z(b, ", ");
        }
        if (t->action > US_PLAN_RENAME) us_buf_printf(b, "\"by\": \"%s\", ", action[t->action]);
        us_buf_printf(b, "\"sha256\": \"%s\"}", h ? h->tensor[i] : "");
    }
    us_buf_z(b, "\n  }\n}\n");
}

us_status us_manifest_write(const us_plan *p, const us_manifest_arguments *a, const us_merge_tree *tree, const char *fingerprint, const us_hashes *hashes,
                            us_buf *out, us_err *err) {
    us_buf_printf(out, "{\n  \"format\": \"%s\",\n  \"format_version\": 1,\n  \"tool\": \"understudy %s\",\n", US_MANIFEST_FORMAT, US_VERSION);
    if (fingerprint) string_member(out, "  ", "fingerprint", fingerprint), us_buf_z(out, ",\n");
    us_buf_printf(out, "  \"experts\": %u,\n", p->keep->n);
    arguments(out, p, a);
    US_TRY(source(out, p, err));
    layers(out, p);
    merge_tree(out, p, tree);
    if (a->selection) {
        us_buf_z(out, "  \"selection\": ");
        us_selection_json(out, a->selection, p->s, p->keep, p->active);
        us_buf_z(out, ",\n");
    }
    changes(out, p, hashes);
    names(out, p);
    US_TRY(files(out, p, hashes, err));
    tensors(out, p, hashes);
    return us_buf_status(out, err, "writing the manifest");
}

/* ---- fingerprint ---- */

static void add_u64(us_sha256 *h, uint64_t v) {
    unsigned char b[8];
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(v >> (8 * i));
    us_sha256_add(h, b, sizeof b);
}

static void add_str(us_sha256 *h, us_str s) {
    add_u64(h, s.n);
    us_sha256_add(h, s.p, s.n);
}

static us_status add_plan(us_sha256 *h, const us_plan *p, const us_manifest_arguments *a, const us_merge_tree *tree, us_err *err) {
    us_buf text = {0};
    us_status st = us_manifest_write(p, a, tree, NULL, NULL, &text, err);
    if (st == US_OK) {
        add_str(h, us_buf_view(&text));
        add_str(h, us_buf_view(&p->config));
        add_str(h, us_buf_view(&p->hf_quant));
        add_str(h, us_buf_view(&p->index));
        for (size_t i = 0; i < p->n_tensors; i++) {
            const us_plan_tensor *t = &p->tensors[i];
            const us_ck_tensor *c = &p->s->ck->tensors[t->src];
            add_u64(h, ((uint64_t)t->shard << 32) | t->action);
            add_u64(h, t->begin);
            add_u64(h, t->bytes);
            add_u64(h, c->shard);
            add_u64(h, c->offset);
        }
        for (size_t i = 0; i < p->s->ck->n_others; i++) add_u64(h, p->s->ck->others[i].size);
    }
    us_buf_free(&text);
    return st;
}

us_status us_manifest_fingerprint(const us_plan *const *plans, size_t n, const us_manifest_arguments *a, const us_merge_tree *tree, char out[65],
                                  us_err *err) {
    us_sha256 *h = NULL;
    US_TRY(us_sha256_create(&h, err));
    us_status st = US_OK;
    add_u64(h, n);
    for (size_t i = 0; i < n && st == US_OK; i++) st = add_plan(h, plans[i], a, tree, err);
    if (st == US_OK) us_sha256_hex(h, out);
    us_sha256_free(h);
    return st;
}

/* ---- reading ---- */

us_status us_manifest_files(const us_json_doc *d, us_arena *arena, us_str **out, size_t *n, us_err *err) {
    static const char *const keys[] = {"files", "shards"};
    size_t count = 0;
    for (int i = 0; i < 2; i++) count += us_json_count(d, us_json_get(d, 0, keys[i]));
    us_str *list = us_arena_calloc(arena, count + 1, sizeof *list);
    if (!list) return us_fail_nomem(err, "reading a manifest");
    size_t k = 0;
    for (int i = 0; i < 2; i++) {
        us_json_ref o = us_json_get(d, 0, keys[i]);
        if (us_json_type_of(d, o) != US_JSON_OBJECT) continue;
        for (us_json_ref key = us_json_first(d, o); key != US_JSON_NO;) {
            us_str name = us_json_string(d, key);
            list[k] = (us_str){us_arena_strndup(arena, name.p, name.n), name.n};
            if (!list[k++].p) return us_fail_nomem(err, "reading a manifest");
            key = us_json_next(d, o, us_json_next(d, o, key));
        }
    }
    *out = list;
    *n = k;
    return US_OK;
}
