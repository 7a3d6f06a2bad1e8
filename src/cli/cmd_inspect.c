/* `understudy inspect`: what a checkpoint, a config.json, or a single tensor file is. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "io/npy.h"
#include "model/count.h"
#include "model/structure.h"

/* ---- single files ---- */

static void put_shape(us_buf *b, int rank, const uint64_t *shape) {
    us_buf_c(b, '[');
    for (int i = 0; i < rank; i++) us_buf_printf(b, i ? ",%llu" : "%llu", (unsigned long long)shape[i]);
    us_buf_c(b, ']');
}

static us_status inspect_safetensors(us_cli *c, const char *path, us_buf *b, us_err *err) {
    us_file f = {0};
    us_st_header h = {0};
    char bytes[24];
    US_TRY(us_file_open(path, &f, err));
    us_status s = us_st_read(&f, us_cli_flag(c, "headers-only") ? US_ST_HEADERS_ONLY : 0, &h, err);
    uint64_t elements = 0;
    for (size_t i = 0; s == US_OK && i < h.n_tensors; i++) elements += us_st_elements(&h.tensors[i]);
    if (s == US_OK && us_cli_json(c)) {
        us_buf_printf(b, "{\"kind\":\"safetensors\",\"n_tensors\":%zu,\"elements\":%llu,\"bytes\":%llu,\"metadata\":{", h.n_tensors, (unsigned long long)elements,
                      (unsigned long long)h.data_size);
        for (size_t i = 0; i < h.n_meta; i++) {
            if (i) us_buf_c(b, ',');
            us_buf_json(b, h.meta[i].key);
            us_buf_c(b, ':');
            us_buf_json(b, h.meta[i].value);
        }
        us_buf_z(b, "},\"tensors\":[");
        for (size_t i = 0; i < h.n_tensors; i++) {
            us_buf_z(b, i ? ",{\"name\":" : "{\"name\":");
            us_buf_json(b, h.tensors[i].name);
            us_buf_printf(b, ",\"dtype\":\"%s\",\"shape\":", us_dtype_name(h.tensors[i].dtype));
            put_shape(b, h.tensors[i].rank, h.tensors[i].shape);
            us_buf_c(b, '}');
        }
        us_buf_z(b, "]}\n");
    } else if (s == US_OK) {
        us_buf_printf(b, "safetensors file, %zu tensors, %llu elements, %s\n", h.n_tensors, (unsigned long long)elements, us_format_bytes(h.data_size, bytes));
        for (size_t i = 0; i < h.n_tensors; i++) {
            char name[512];
            us_escape_line(h.tensors[i].name.p, h.tensors[i].name.n, name, sizeof name);
            us_buf_printf(b, "  %-8s ", us_dtype_name(h.tensors[i].dtype));
            put_shape(b, h.tensors[i].rank, h.tensors[i].shape);
            us_buf_printf(b, " %s\n", name);
        }
    }
    us_st_header_free(&h);
    us_file_close(&f);
    return s;
}

static us_status inspect_npy(us_cli *c, const char *path, us_buf *b, us_err *err) {
    us_npy_set set = {0};
    US_TRY(us_npy_open(us_cli_ctx(c), path, false, 0, &set, err));
    if (us_cli_json(c)) us_buf_z(b, "{\"kind\":\"numpy\",\"arrays\":[");
    else us_buf_printf(b, "NumPy file, %zu %s\n", set.n, set.n == 1 ? "array" : "arrays");
    for (size_t i = 0; i < set.n; i++) {
        const us_npy *a = &set.arrays[i];
        if (us_cli_json(c)) {
            us_buf_z(b, i ? ",{\"name\":" : "{\"name\":");
            us_buf_json(b, us_str_z(a->name));
            us_buf_printf(b, ",\"dtype\":\"%s\",\"shape\":", us_dtype_name(a->dtype));
            put_shape(b, a->rank, a->shape);
            us_buf_c(b, '}');
        } else {
            us_buf_printf(b, "  %-8s ", us_dtype_name(a->dtype));
            put_shape(b, a->rank, a->shape);
            us_buf_printf(b, " %s\n", a->name);
        }
    }
    if (us_cli_json(c)) us_buf_z(b, "]}\n");
    us_npy_set_free(&set);
    return US_OK;
}

/* ---- checkpoints ---- */

typedef struct facts {
    us_cli *c;
    const us_checkpoint *ck;
    const us_structure *st; /* NULL: config only */
    us_config cfg;
    us_counts n;
    bool counted;
    uint64_t part_bytes[US_PART_LOOKUP + 1], mtp_bytes, bytes;
    uint64_t logical; /* elements of weights, packed ones unpacked; scales left out */
    uint64_t routed_elements, mtp_elements;
    size_t n_unknown;
} facts;

static const char *const part_names[] = {"other", "embedding", "head", "attention", "norm", "dense_mlp", "shared_expert", "routed_expert", "router", "mtp", "vision", "lookup"};

/* Scales, zero points, shapes: what is stored beside packed weights. */
static bool is_companion(us_str name) {
    static const char *const ends[] = {"_scale_inv", "_scale", ".scale", "_scales", ".scales", "weight_scale_2", "weight_shape", "qzeros", "g_idx", "_zero_point", "global_scale",
                                       "input_scale"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (us_str_ends(name, us_str_z(ends[i]))) return true;
    return false;
}

/* Values that one stored element holds. */
static uint64_t values_per_element(const us_checkpoint *ck, const us_ck_tensor *t) {
    us_buf b = {0};
    if (us_str_ends(t->name, US_LIT("qweight")) || (us_str_ends(t->name, US_LIT("weight_packed")) && t->dtype == US_DTYPE_I32)) return 8;
    if (us_str_ends(t->name, US_LIT("_blocks")) || us_str_ends(t->name, US_LIT("weight_packed"))) return 2;
    if (t->dtype != US_DTYPE_U8 && t->dtype != US_DTYPE_I8) return 1;
    static const char *const beside[] = {"_scale", ".scale"}; /* x.weight -> x.weight_scale, x.scale */
    bool packed = false;
    for (int i = 0; i < 2 && !packed && us_str_ends(t->name, US_LIT("weight")); i++) {
        us_buf_clear(&b);
        us_buf_str(&b, i ? us_str_sub(t->name, 0, t->name.n - strlen(".weight")) : t->name);
        us_buf_z(&b, beside[i]);
        packed = us_ck_find(ck, us_buf_view(&b)) != NULL;
    }
    us_buf_free(&b);
    return packed ? 2 : 1;
}

static void add_up(facts *f) {
    for (size_t i = 0; i < f->ck->n_tensors; i++) {
        const us_ck_tensor *t = &f->ck->tensors[i];
        const us_role *role = &f->st->roles[i];
        uint64_t n = 1;
        for (int d = 0; d < t->rank; d++) n *= t->shape[d];
        f->bytes += t->bytes;
        if (role->in_mtp) f->mtp_bytes += t->bytes;
        else f->part_bytes[role->part] += t->bytes;
        if (role->kind == US_ROLE_UNKNOWN) f->n_unknown++;
        if (is_companion(t->name) || role->part == US_PART_VISION || role->kind == US_ROLE_UNKNOWN || role->kind == US_ROLE_TOKEN_TABLE) continue;
        n *= values_per_element(f->ck, t);
        if (role->in_mtp) {
            f->mtp_elements += n;
            continue;
        }
        f->logical += n;
        if (role->part == US_PART_ROUTED) f->routed_elements += n;
    }
}

static us_str quant_method(const facts *f) {
    const us_json_doc *d = &f->ck->config;
    us_json_ref q = us_json_get(d, 0, "quantization_config");
    if (us_json_type_of(d, q) != US_JSON_OBJECT) q = us_json_path(d, 0, "text_config.quantization_config");
    us_str m = us_json_string(d, us_json_get(d, q, "quant_method")), form = us_json_string(d, us_json_get(d, q, "format"));
    return form.p ? form : m;
}

static us_moe_block *block_of(const facts *f, uint32_t layer) {
    for (size_t b = 0; f->st && b < f->st->n_blocks; b++)
        if (!f->st->blocks[b].mtp && f->st->blocks[b].layer == layer) return &f->st->blocks[b];
    return NULL;
}

static uint64_t active_from_tensors(const facts *f) {
    uint64_t routed = f->routed_elements, moe = 0, per_layer = 0;
    for (size_t b = 0; b < f->st->n_blocks; b++) moe += !f->st->blocks[b].mtp;
    if (moe && f->st->n_experts) per_layer = routed / moe * f->st->top_k / f->st->n_experts;
    return f->logical - routed + per_layer * moe;
}

static void put_origin(const facts *f, us_buf *b, bool json) {
    us_arena a = {0};
    char *path = us_fs_join(&a, f->ck->path, "understudy.json"), *text = NULL;
    size_t n;
    us_json_doc d = {0};
    if (path && us_fs_exists(path) && us_fs_read_all(path, (size_t)1 << 28, &text, &n, NULL) == US_OK && us_json_doc_take(&d, text, n, 0, NULL) == US_OK) {
        if (json) {
            us_json_ref src = us_json_get(&d, 0, "source"), args = us_json_get(&d, 0, "arguments"), version = us_json_get(&d, 0, "version");
            us_buf_z(b, ",\"origin\":{\"source\":");
            us_buf_str(b, src == US_JSON_NO ? US_LIT("null") : us_json_raw(&d, src));
            us_buf_z(b, ",\"arguments\":");
            us_buf_str(b, args == US_JSON_NO ? US_LIT("null") : us_json_raw(&d, args));
            us_buf_z(b, ",\"version\":");
            us_buf_str(b, version == US_JSON_NO ? US_LIT("null") : us_json_raw(&d, version));
            us_buf_c(b, '}');
        } else {
            uint64_t from = 0;
            us_json_u64(&d, us_json_path(&d, 0, "source.experts"), &from);
            us_buf_z(b, "origin        a proxy made by understudy");
            if (from) us_buf_printf(b, " from a model of %llu experts", (unsigned long long)from);
            us_buf_z(b, " (see understudy.json)\n");
        }
    } else if (json) {
        us_buf_z(b, ",\"origin\":null");
    }
    us_json_doc_free(&d);
    us_arena_free(&a);
}

static void put_parameters(const facts *f, us_buf *b) {
    if (!f->st && !f->counted) {
        us_buf_z(b, "\"parameters\":{\"total\":null,\"routed\":null,\"other\":null,\"active\":null,\"mtp\":null}");
        return;
    }
    uint64_t total = f->counted ? f->n.total : f->logical, routed = f->counted ? f->n.routed : f->routed_elements;
    uint64_t active = f->counted ? f->n.active : f->st ? active_from_tensors(f) : 0;
    uint64_t mtp = f->st ? f->mtp_elements : f->n.mtp; /* of a checkpoint what it holds, whatever its config promises */
    us_buf_printf(b, "\"parameters\":{\"total\":%llu,\"routed\":%llu,\"other\":%llu,\"active\":%llu,\"mtp\":%llu", (unsigned long long)total, (unsigned long long)routed,
                  (unsigned long long)(total - routed), (unsigned long long)active, (unsigned long long)mtp);
    if (f->counted)
        us_buf_printf(b, ",\"per_expert\":%llu,\"embedding\":%llu,\"head\":%llu,\"lookup\":%llu", (unsigned long long)f->n.per_expert, (unsigned long long)f->n.embed,
                      (unsigned long long)f->n.head, (unsigned long long)f->n.lookup);
    us_buf_z(b, "}");
}

/* Experts a token takes in trunk layer l; some families list it by layer. */
static uint32_t top_k_of(const facts *f, uint32_t l, uint32_t def) {
    us_json_ref v = us_config_get(&f->cfg, f->cfg.family->top_k_keys);
    return us_json_type_of(f->cfg.doc, v) == US_JSON_ARRAY ? (uint32_t)us_config_entry_i64(&f->cfg, v, l, def) : def;
}

static void put_layers(const facts *f, us_buf *b, uint32_t n_layers, uint32_t experts, uint32_t k) {
    us_buf_z(b, ",\"layers\":[");
    for (uint32_t l = 0; l < n_layers; l++) {
        const us_moe_block *block = block_of(f, l);
        bool moe = f->st ? block != NULL : us_config_layer_is_moe(&f->cfg, l);
        us_buf_printf(b, "%s{\"layer\":%u,\"key\":\"%u\",\"moe\":%s", l ? "," : "", l, l, moe ? "true" : "false");
        if (moe) us_buf_printf(b, ",\"experts\":%u,\"top_k\":%u,\"hash\":%s", block ? block->n_experts : experts, top_k_of(f, l, k), block && block->hash ? "true" : "false");
        us_buf_z(b, ",\"mtp\":false}");
    }
    for (size_t i = 0; f->st && i < f->st->n_blocks; i++) {
        const us_moe_block *m = &f->st->blocks[i];
        if (m->mtp) us_buf_printf(b, ",{\"layer\":%u,\"key\":\"%s\",\"moe\":true,\"experts\":%u,\"top_k\":%u,\"hash\":%s,\"mtp\":true}", m->layer, m->key, m->n_experts, k, m->hash ? "true" : "false");
    }
    us_buf_c(b, ']');
}

static void put_names(us_buf *b, const char *key, const us_fs_entry *list, size_t n) {
    us_buf_printf(b, ",\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        if (i) us_buf_c(b, ',');
        us_buf_json(b, us_str_z(list[i].name));
    }
    us_buf_c(b, ']');
}

static void put_json(const facts *f, us_buf *b) {
    const us_family *fam = f->cfg.family;
    uint32_t layers = f->st ? f->st->n_layers : f->n.n_layers, experts = f->st ? f->st->n_experts : f->n.n_experts, k = f->st ? f->st->top_k : f->n.top_k;
    us_str method = quant_method(f), type = us_json_string(&f->ck->config, us_json_get(&f->ck->config, 0, "model_type"));
    us_buf_printf(b, "{\"kind\":\"%s\",\"family\":\"%s\",\"model_type\":", f->st ? "checkpoint" : "config", fam->name);
    us_buf_json(b, type);
    us_buf_printf(b, ",\"dense\":%s,", fam->placement == US_PLACE_NONE ? "true" : "false");
    put_parameters(f, b);
    us_buf_printf(b, ",\"n_layers\":%u,\"experts\":%u,\"top_k\":%u,\"n_group\":%u,\"topk_group\":%u,\"shared_ffn\":%u,\"mtp_layers\":%u", layers, experts, k,
                  f->st ? f->st->n_group : f->n.n_group, f->st ? f->st->topk_group : f->n.topk_group, f->n.shared_ffn, us_config_mtp_layers(&f->cfg));
    us_buf_z(b, ",\"quantization\":");
    if (method.p) us_buf_json(b, method);
    else us_buf_z(b, "null");
    put_layers(f, b, layers, experts, k);
    if (f->st) {
        us_buf_printf(b, ",\"n_tensors\":%zu,\"n_shards\":%zu,\"bytes\":{\"total\":%llu", f->ck->n_tensors, f->ck->n_shards, (unsigned long long)f->bytes);
        for (int p = 0; p <= US_PART_LOOKUP; p++)
            us_buf_printf(b, ",\"%s\":%llu", part_names[p], (unsigned long long)(p == US_PART_MTP ? f->mtp_bytes : f->part_bytes[p]));
        us_buf_z(b, "},\"unknown_tensors\":[");
        bool first = true;
        for (size_t i = 0; i < f->ck->n_tensors; i++) {
            if (f->st->roles[i].kind != US_ROLE_UNKNOWN) continue;
            if (!first) us_buf_c(b, ',');
            first = false;
            us_buf_json(b, f->ck->tensors[i].name);
        }
        us_buf_c(b, ']');
        put_names(b, "not_part_of_the_model", f->ck->left_out, f->ck->n_left_out);
    }
    put_origin(f, b, true);
    us_buf_z(b, "}\n");
}

static void line_count(us_buf *b, const char *label, uint64_t n) {
    char t[24];
    us_buf_printf(b, "%-13s %s (%llu)\n", label, us_format_count(n, t), (unsigned long long)n);
}

static void put_counts(const facts *f, us_buf *b) {
    line_count(b, "parameters", f->counted ? f->n.total : f->logical);
    if (f->cfg.family->placement != US_PLACE_NONE) {
        line_count(b, "  routed", f->counted ? f->n.routed : f->routed_elements);
        line_count(b, "  other", f->counted ? f->n.other : f->logical - f->routed_elements);
        line_count(b, "  active", f->counted ? f->n.active : f->st ? active_from_tensors(f) : 0);
    }
    if (f->st ? f->mtp_elements : f->n.mtp) line_count(b, "  MTP apart", f->st ? f->mtp_elements : f->n.mtp);
}

static void put_text(const facts *f, us_buf *b) {
    const us_family *fam = f->cfg.family;
    char t[24];
    us_str method = quant_method(f);
    uint32_t layers = f->st ? f->st->n_layers : f->n.n_layers, experts = f->st ? f->st->n_experts : f->n.n_experts, moe = 0;
    for (uint32_t l = 0; l < layers; l++) moe += us_config_layer_is_moe(&f->cfg, l);
    us_buf_printf(b, "family        %s\n", fam->name);
    put_origin(f, b, false);
    if (fam->placement == US_PLACE_NONE) us_buf_printf(b, "layers        %u; a dense model, there are no experts to choose from\n", layers);
    else {
        us_buf_printf(b, "layers        %u, of which %u MoE\n", layers, moe);
        us_buf_printf(b, "experts       %u, top-%u", experts, f->st ? f->st->top_k : f->n.top_k);
        uint32_t groups = f->st ? f->st->n_group : f->n.n_group;
        if (groups > 1) us_buf_printf(b, ", %u groups of which %u are taken", groups, f->st ? f->st->topk_group : f->n.topk_group);
        if (f->n.shared_ffn) us_buf_printf(b, ", shared experts of width %u", f->n.shared_ffn);
        us_buf_z(b, "\n");
        for (size_t i = 0; f->st && i < f->st->n_blocks; i++)
            if (f->st->blocks[i].n_experts != experts) us_buf_printf(b, "              layer %s has %u experts of its own\n", f->st->blocks[i].key, f->st->blocks[i].n_experts);
    }
    uint32_t mtp = us_config_mtp_layers(&f->cfg);
    if (mtp) us_buf_printf(b, "MTP layers    %u%s\n", mtp, f->st && !f->mtp_elements ? " by config.json; the file holds none" : "");
    if (!f->st && !f->counted) us_buf_z(b, "parameters    cannot be counted from config.json alone\n");
    else put_counts(f, b);
    us_buf_printf(b, "stored as     %.*s\n", US_STR_ARG(method.p ? method : US_LIT("plain numbers")));
    if (!f->st) return;
    us_buf_printf(b, "on disk       %s in %zu tensors, %zu %s\n", us_format_bytes(f->bytes, t), f->ck->n_tensors, f->ck->n_shards, f->ck->n_shards == 1 ? "shard" : "shards");
    for (int p = 0; p <= US_PART_LOOKUP; p++) {
        uint64_t n = p == US_PART_MTP ? f->mtp_bytes : f->part_bytes[p];
        if (n) us_buf_printf(b, "  %-15s %s\n", part_names[p], us_format_bytes(n, t));
    }
    size_t shown = 0;
    for (size_t i = 0; f->n_unknown && i < f->ck->n_tensors && shown < 20; i++) {
        char name[512];
        if (f->st->roles[i].kind != US_ROLE_UNKNOWN) continue;
        us_escape_line(f->ck->tensors[i].name.p, f->ck->tensors[i].name.n, name, sizeof name);
        us_buf_printf(b, "unknown       %s\n", name);
        shown++;
    }
    if (f->n_unknown > shown) us_buf_printf(b, "unknown       and %zu more\n", f->n_unknown - shown);
}

/* Does the folder hold weights at all? A folder of nothing but a config is inspected by it. */
static bool has_weights(us_cli *c, const char *path) {
    us_arena a = {0};
    us_fs_entry *list;
    size_t n;
    bool found = false;
    unsigned flags = us_cli_flag(c, "follow-links") ? US_FS_FOLLOW_LINKS : 0;
    if (us_fs_walk(path, flags, NULL, &a, &list, &n, NULL) != US_OK) found = true; /* let the opening say why */
    else
        for (size_t i = 0; i < n; i++) found |= strcmp(list[i].name, "config.json") != 0 && strcmp(list[i].name, "generation_config.json") != 0;
    us_arena_free(&a);
    return found;
}

/* What a bare config.json says of a family whose parameters cannot be counted from it. */
static us_status read_routing(facts *f, us_err *err) {
    const us_family *fam = f->cfg.family;
    US_TRY(us_config_layers(&f->cfg, &f->n.n_layers, err));
    if (f->n.n_layers > 1024) {
        us_fail(err, US_E_FORMAT, "range", "%u layers cannot be a model's", f->n.n_layers);
        return us_err_where(err, "config.json");
    }
    US_TRY(us_config_positive(&f->cfg, fam->count_keys, &f->n.n_experts, err));
    US_TRY(us_config_positive(&f->cfg, fam->top_k_keys, &f->n.top_k, err));
    f->n.n_group = fam->group_keys ? us_config_u32(&f->cfg, fam->group_keys, 1) : 1;
    f->n.topk_group = fam->topk_group_keys ? us_config_u32(&f->cfg, fam->topk_group_keys, 1) : 1;
    return US_OK;
}

static us_status inspect_checkpoint(us_cli *c, const char *path, bool config_only, us_buf *b, us_err *err) {
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    facts f = {.c = c};
    us_status s;
    unsigned flags = (config_only ? US_CK_CONFIG_ONLY : 0) | (us_cli_flag(c, "headers-only") ? US_CK_HEADERS_ONLY : 0) | (us_cli_flag(c, "follow-links") ? US_CK_FOLLOW_LINKS : 0);
    US_GO(us_checkpoint_open(us_cli_ctx(c), path, flags, &ck, err));
    US_GO(us_config_open(&ck->config, &f.cfg, err));
    if (!config_only) US_GO(us_structure_resolve(us_cli_ctx(c), ck, &st, err));
    f.ck = ck;
    f.st = st;
    us_err why = {0};
    us_status counted = us_count_config(&f.cfg, &f.n, &why);
    f.counted = counted == US_OK;
    if (!f.counted && config_only) {
        if (counted != US_E_UNSUPPORTED) {
            if (err) *err = why;
            s = counted;
            goto done;
        }
        US_GO(read_routing(&f, err));
        us_note(us_cli_ctx(c), "note", "%s; inspect the checkpoint itself", why.what);
    }
    if (config_only) US_GO(us_config_check_placement(us_cli_ctx(c), &f.cfg, f.n.n_layers, err));
    if (st) add_up(&f);
    if (us_cli_json(c)) put_json(&f, b);
    else put_text(&f, b);
done:
    us_structure_free(st);
    us_checkpoint_free(ck);
    return s;
}

static us_status run(us_cli *c, us_err *err) {
    const char *path = us_cli_arg(c, 0);
    us_buf b = {0};
    us_status s;
    us_str name = us_str_z(path);
    us_fs_kind kind = us_fs_kind_of(path);
    if (kind == US_FS_FOLDER) s = inspect_checkpoint(c, path, !has_weights(c, path), &b, err);
    else if (us_str_ends(name, US_LIT(".npy")) || us_str_ends(name, US_LIT(".npz"))) s = inspect_npy(c, path, &b, err);
    else if (us_str_ends(name, US_LIT(".json"))) s = inspect_checkpoint(c, path, true, &b, err);
    else s = inspect_safetensors(c, path, &b, err);
    if (s == US_OK) s = us_buf_status(&b, err, "writing the answer");
    if (s == US_OK) fwrite(b.p, 1, b.n, us_cli_out(c));
    us_buf_free(&b);
    return s;
}

static const us_option options[] = {
    {"headers-only", 0, US_OPT_FLAG, NULL, "accept shards that are cut inside their data (only headers are read anyway)", false},
    {"follow-links", 0, US_OPT_FLAG, NULL, "follow links that lead out of the folder", false},
    {0},
};

const us_command us_cmd_inspect = {
    .name = "inspect",
    .summary = "what a checkpoint, config.json or tensor file is",
    .usage = "CKPT|config.json|FILE.safetensors|FILE.npy|FILE.npz [options]",
    .description = "Says the family, layers, experts, groups, MTP layers, quantised form, parameters and bytes by part. Reads headers only, never the weights. "
                   "What it does not know is named, never guessed. A folder of the hub cache is fine: its links into blobs are followed.",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .run = run,
    .examples = "understudy inspect Qwen3-30B-A3B\nunderstudy inspect --json config.json",
};
