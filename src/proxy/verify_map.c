/** Finding the old number of every new expert by bytes. Header: verify_map.h. */
#include "proxy/verify_map.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20, SMALL = 1 << 20 };

void us_found_free(us_found *f) {
    us_keep_free(&f->keep);
    us_free(f->layers);
    *f = (us_found){0};
}

static us_status differ(us_err *err, const char *cls, us_str where, const char *what) {
    us_status st = us_fail(err, US_E_DIFFERENT, cls, "%s", what);
    us_err_where(err, "%.*s", US_STR_ARG(where));
    return st;
}

/* ---- comparing ranges ---- */

typedef struct pair {
    const us_checkpoint *a, *b;
    unsigned char *p, *q; /* CHUNK each */
} pair;

static us_status same_range(const pair *x, const us_ck_tensor *t, uint64_t from, const us_ck_tensor *u, uint64_t at, uint64_t n, bool *same, us_err *err) {
    *same = true;
    while (n && *same) {
        size_t k = n < CHUNK ? (size_t)n : CHUNK;
        US_TRY(us_ck_read(x->a, t, from, x->p, k, err));
        US_TRY(us_ck_read(x->b, u, at, x->q, k, err));
        *same = memcmp(x->p, x->q, k) == 0;
        from += k;
        at += k;
        n -= k;
    }
    return US_OK;
}

/* ---- layers and MTP ---- */

static bool any_layer(const us_checkpoint *ck, const us_layer_cut *c, uint32_t layer) {
    for (size_t i = 0; i < ck->n_tensors; i++) {
        uint32_t l;
        size_t from, to;
        if (us_layer_number(c, ck->tensors[i].name, &l, &from, &to) && l == layer) return true;
    }
    return false;
}

/* Do the small whole tensors of old layer `a` equal those of new layer `b`? *any: at least one was compared. */
static us_status same_layer(const pair *x, const us_structure *s, const us_layer_cut *c, uint32_t a, uint32_t b, bool *same, us_err *err) {
    us_buf name = {0};
    us_status st = US_OK;
    bool any = false;
    *same = true;
    for (size_t i = 0; i < s->ck->n_tensors && *same && st == US_OK; i++) {
        const us_ck_tensor *t = &s->ck->tensors[i];
        uint32_t l;
        size_t from, to;
        if (s->roles[i].kind == US_ROLE_EXPERT || s->roles[i].kind == US_ROLE_SLICE || s->roles[i].kind == US_ROLE_TOKEN_TABLE || t->bytes > SMALL) continue;
        if (!us_layer_number(c, t->name, &l, &from, &to) || l != a) continue;
        us_buf_clear(&name);
        us_buf_str(&name, us_str_sub(t->name, 0, from));
        us_buf_printf(&name, "%u", b);
        us_buf_str(&name, us_str_sub(t->name, to, t->name.n));
        st = us_buf_status(&name, err, "comparing layers");
        const us_ck_tensor *u = st == US_OK ? us_ck_find(x->b, us_buf_view(&name)) : NULL;
        *same = u && u->bytes == t->bytes && u->dtype == t->dtype;
        if (*same) st = same_range(x, t, 0, u, 0, t->bytes, same, err);
        any = true;
    }
    us_buf_free(&name);
    *same = *same && any;
    return st;
}

/* Fewer layers in the copy: which ones. Text such as "0,3,4". */
static us_status find_layers(const pair *x, const us_structure *s, const us_layer_cut *all, uint32_t n_new, char **out, us_err *err) {
    us_buf b = {0};
    us_status st = US_OK;
    uint32_t from = 0;
    for (uint32_t l = 0; l < n_new && st == US_OK; l++) {
        bool same = false;
        while (from < all->n_old && !same && st == US_OK) st = same_layer(x, s, all, from++, l, &same, err);
        if (st == US_OK && !same) {
            st = us_fail(err, US_E_DIFFERENT, "layers", "layer %u is no layer of the source behind those before it", l);
            us_err_where(err, "%.*s%u", US_STR_ARG(all->base), l);
        }
        us_buf_printf(&b, "%s%u", l ? "," : "", from - 1);
    }
    if (n_new == 1) us_buf_printf(&b, "-%u", from - 1); /* a list, not a count */
    if (st == US_OK) st = us_buf_status(&b, err, "comparing layers");
    if (st == US_OK) {
        *out = us_strndup(b.p, b.n);
        if (!*out) st = us_fail_nomem(err, "comparing layers");
    }
    us_buf_free(&b);
    return st;
}

/* A source without MTP tensors (transformers drops them) may still have had its MTP keys dropped. */
static us_status mtp_keys_dropped(const pair *x, const us_structure *s, bool *dropped, us_err *err) {
    us_layer_cut cut = {0};
    us_arena a = {0};
    us_layer_edit *e = NULL;
    size_t n = 0;
    *dropped = false;
    US_TRY(us_layer_cut_create(s, NULL, true, &cut, err));
    us_status st = us_layer_edits(NULL, s, &cut, &s->ck->config, &a, &e, &n, err);
    for (size_t i = 0; i < n && st == US_OK && !*dropped; i++) {
        us_str now = us_json_raw(&x->b->config, us_json_path(&x->b->config, 0, e[i].path));
        *dropped = e[i].with ? us_str_eqz(now, e[i].with) : !now.p;
    }
    us_arena_free(&a);
    us_layer_cut_free(&cut);
    return st;
}

static us_status find_scope(const pair *x, const us_structure *s, us_found *f, us_err *err) {
    us_layer_cut all = {0};
    uint32_t n_new = 0;
    bool src_mtp = false, dst_mtp = false;
    US_TRY(us_layer_cut_create(s, NULL, false, &all, err));
    us_status st = US_OK;
    uint64_t layers = 0;
    us_json_ref text = us_json_get(&x->b->config, 0, "text_config");
    static const char *const keys[] = {"num_hidden_layers", "num_layers", "n_layer", NULL};
    for (int i = 0; keys[i] && !layers; i++) {
        if (!us_json_u64(&x->b->config, us_json_get(&x->b->config, text == US_JSON_NO ? 0 : text, keys[i]), &layers)) layers = 0;
    }
    us_json_ref object = text == US_JSON_NO ? 0 : text; /* families that count their layers by a list or a pattern */
    if (!layers) layers = us_json_count(&x->b->config, us_json_get(&x->b->config, object, "layers_block_type"));
    if (!layers) layers = us_json_string(&x->b->config, us_json_get(&x->b->config, object, "hybrid_override_pattern")).n;
    n_new = layers && layers < all.n_old ? (uint32_t)layers : all.n_old;
    if (all.base.n && n_new < all.n_old && any_layer(x->b, &all, 0)) st = find_layers(x, s, &all, n_new, &f->layers, err);
    us_layer_cut now = {0};
    if (st == US_OK) st = us_layer_cut_create(s, f->layers, false, &now, err);
    for (uint32_t i = 0; i < s->ck->n_tensors && st == US_OK && !dst_mtp; i++) {
        if (!us_layer_is_mtp(s, &all, i)) continue;
        us_buf name = {0};
        src_mtp = true;
        if (us_layer_rename(&now, s->ck->tensors[i].name, &name)) dst_mtp = us_ck_find(x->b, us_buf_view(&name)) != NULL;
        us_buf_free(&name);
    }
    f->drop_mtp = src_mtp && !dst_mtp;
    if (st == US_OK && !src_mtp) st = mtp_keys_dropped(x, s, &f->drop_mtp, err);
    us_layer_cut_free(&all);
    us_layer_cut_free(&now);
    return st;
}

/* ---- experts ---- */

/* One block on both sides. */
typedef struct block_view {
    const us_structure *s;
    const us_layer_cut *cut;
    size_t block;
    uint32_t *slices;  /* tensors cut along axis 0: a row mismatch ends a comparison early */
    size_t n_slices;
    uint32_t *parts;   /* tensors of single experts, by expert */
    size_t *first;     /* n_experts + 1 places in parts */
    us_buf name;
} block_view;

static void close_block(block_view *v) {
    us_free(v->slices);
    us_free(v->parts);
    us_free(v->first);
    v->slices = v->parts = NULL;
    v->first = NULL;
    v->n_slices = 0;
}

/* Sort the tensors of one block by what they belong to. */
static us_status open_block(block_view *v, size_t block, us_err *err) {
    const us_structure *s = v->s;
    const us_moe_block *b = &s->blocks[block];
    size_t n = 0;
    for (size_t i = 0; i < s->ck->n_tensors; i++) n += s->roles[i].block == block;
    v->block = block;
    v->slices = us_calloc(n + 1, sizeof *v->slices);
    v->parts = us_calloc(n + 1, sizeof *v->parts);
    v->first = us_calloc(b->n_experts + (size_t)2, sizeof *v->first);
    if (!v->slices || !v->parts || !v->first) {
        close_block(v);
        return us_fail_nomem(err, "comparing experts");
    }
    for (uint32_t i = 0; i < s->ck->n_tensors; i++) {
        const us_role *r = &s->roles[i];
        if (r->block != block) continue;
        if (r->kind == US_ROLE_SLICE && r->axis == 0) v->slices[v->n_slices++] = i;
        if (r->kind == US_ROLE_EXPERT) v->first[r->expert + 1]++;
    }
    for (uint32_t e = 0; e < b->n_experts; e++) v->first[e + 1] += v->first[e];
    for (uint32_t i = 0; i < s->ck->n_tensors; i++) { /* fill back to front of each run; order inside is of no matter */
        const us_role *r = &s->roles[i];
        if (r->block != block || r->kind != US_ROLE_EXPERT) continue;
        size_t k = v->first[r->expert];
        while (v->parts[k]) k++;
        v->parts[k] = i + 1;
    }
    return US_OK;
}

/* The copy's tensor for a source name, after the layer cut. */
static const us_ck_tensor *in_copy(const pair *x, block_view *v, us_str name) {
    us_buf_clear(&v->name);
    if (!us_layer_rename(v->cut, name, &v->name)) return NULL;
    return us_ck_find(x->b, us_buf_view(&v->name));
}

/* Bytes of one row of a tensor cut along axis 0; 0 for others. */
static uint64_t row_bytes(const us_ck_tensor *t, uint8_t axis) {
    return axis == 0 && t->rank >= 1 && t->shape[0] ? t->bytes / t->shape[0] : 0;
}

static us_status same_row(const pair *x, block_view *v, uint32_t tensor, uint32_t e, uint32_t j, uint64_t most, bool *same, us_err *err) {
    const us_ck_tensor *t = &v->s->ck->tensors[tensor], *u = in_copy(x, v, t->name);
    uint64_t n = row_bytes(t, 0);
    *same = u && row_bytes(u, 0) == n && j < u->shape[0];
    if (!*same || !n) return US_OK;
    return same_range(x, t, e * n, u, j * n, n < most ? n : most, same, err);
}

static us_status same_part(const pair *x, block_view *v, uint32_t tensor, uint32_t j, uint64_t most, bool *same, us_err *err) {
    const us_role *r = &v->s->roles[tensor];
    const us_ck_tensor *t = &v->s->ck->tensors[tensor];
    us_buf name = {0};
    us_buf_str(&name, r->head);
    us_buf_printf(&name, "%u.", j);
    us_buf_str(&name, r->rest);
    us_status st = us_buf_status(&name, err, "comparing experts");
    const us_ck_tensor *u = st == US_OK ? in_copy(x, v, us_buf_view(&name)) : NULL;
    us_buf_free(&name);
    *same = u && u->bytes == t->bytes;
    if (st != US_OK || !*same) return st;
    return same_range(x, t, 0, u, 0, t->bytes < most ? t->bytes : most, same, err);
}

/* Are all tensors of old expert e those of new expert j? deep: all bytes, else the first few thousand of each. */
static us_status same_expert(const pair *x, block_view *v, uint32_t e, uint32_t j, bool deep, bool *same, us_err *err) {
    uint64_t most = deep ? UINT64_MAX : 4096;
    *same = true;
    for (size_t i = 0; i < v->n_slices && *same; i++) US_TRY(same_row(x, v, v->slices[i], e, j, most, same, err));
    for (size_t i = v->first[e]; i < v->first[e + 1] && *same; i++) US_TRY(same_part(x, v, v->parts[i] - 1, j, most, same, err));
    return US_OK;
}

static us_status find_expert(const pair *x, block_view *v, uint32_t j, const unsigned char *used, uint32_t *out, us_err *err) {
    const us_moe_block *b = &v->s->blocks[v->block];
    for (int deep = 0; deep < 2; deep++) {
        uint32_t count = 0, first = 0;
        for (uint32_t e = 0; e < b->n_experts; e++) {
            bool same = false;
            if (used[e]) continue;
            US_TRY(same_expert(x, v, e, j, deep, &same, err));
            if (!same) continue;
            if (!count++) first = e;
            if (deep) break;
        }
        if (!count) break;
        if (count == 1 || deep) {
            *out = first;
            return US_OK;
        }
    }
    us_status st = us_fail(err, US_E_DIFFERENT, "expert", "new expert %u, with its router row, is no expert of the source", j);
    us_err_where(err, "%sexperts.%u", b->prefix, j);
    return st;
}

static us_status find_block(const pair *x, block_view *v, us_keep *k, us_err *err) {
    const us_moe_block *b = &v->s->blocks[v->block];
    unsigned char *used = us_calloc(b->n_experts ? b->n_experts : 1, 1);
    if (!used) return us_fail_nomem(err, "comparing experts");
    us_status st = US_OK;
    for (uint32_t j = 0; j < k->n && st == US_OK; j++) {
        uint32_t e = 0;
        st = find_expert(x, v, j, used, &e, err);
        if (st != US_OK) break;
        used[e] = 1;
        us_keep_ids(k, v->block)[j] = e;
    }
    us_free(used);
    return st;
}

/* E' of a block from the copy's router rows. */
static us_status new_count(const pair *x, block_view *v, uint32_t *n, us_err *err) {
    const us_moe_block *b = &v->s->blocks[v->block];
    const us_ck_tensor *t = b->router != UINT32_MAX ? &v->s->ck->tensors[b->router] : NULL;
    uint8_t axis = t ? v->s->roles[b->router].axis : 0;
    const us_ck_tensor *u = t ? in_copy(x, v, t->name) : NULL;
    if (!t) return us_fail(err, US_E_UNSUPPORTED, "router", "a layer without a router");
    if (!u || u->rank != t->rank || axis >= u->rank) return differ(err, "router", t->name, "the router is missing or of another rank");
    uint64_t tail = t->shape[axis] - b->n_experts;
    if (u->shape[axis] <= tail || u->shape[axis] - tail > b->n_experts) return differ(err, "router", t->name, "the router has an impossible number of rows");
    *n = (uint32_t)(u->shape[axis] - tail);
    return US_OK;
}

static us_status find_all(us_ctx *ctx, const pair *x, const us_structure *s, us_found *f, us_err *err) {
    us_layer_cut cut = {0};
    bool *active = NULL, first = true;
    us_plan_options o = {.layers = f->layers, .drop_mtp = f->drop_mtp};
    US_TRY(us_plan_scope(NULL, s, &o, &cut, &active, err));
    us_status st = US_OK;
    block_view v = {.s = s, .cut = &cut};
    for (size_t b = 0; b < s->n_blocks && st == US_OK; b++) {
        uint32_t n = 0;
        if (!active[b]) continue;
        st = us_ctx_check(ctx, err);
        if (st == US_OK) st = open_block(&v, b, err);
        if (st == US_OK) st = new_count(x, &v, &n, err);
        if (st == US_OK && first) st = us_keep_create(s, n, &f->keep, err);
        first = false;
        if (st == US_OK && n != f->keep.n) st = differ(err, "kept-lengths-differ", us_str_z(s->blocks[b].prefix), "layers keep different numbers of experts");
        if (st == US_OK) st = find_block(x, &v, &f->keep, err);
        close_block(&v);
    }
    us_buf_free(&v.name);
    us_layer_cut_free(&cut);
    us_free(active);
    return st;
}

us_status us_found_by_bytes(us_ctx *ctx, const us_structure *s, const us_checkpoint *dst, us_found *out, us_err *err) {
    us_found f = {0};
    pair x = {.a = s->ck, .b = dst, .p = us_malloc(CHUNK), .q = us_malloc(CHUNK)};
    us_status st = x.p && x.q ? US_OK : us_fail_nomem(err, "comparing experts");
    if (st == US_OK) st = find_scope(&x, s, &f, err);
    if (st == US_OK) st = find_all(ctx, &x, s, &f, err);
    us_free(x.p);
    us_free(x.q);
    if (st == US_OK) *out = f;
    else us_found_free(&f);
    return st;
}

/* ---- the manifest ---- */

us_status us_found_by_manifest(const us_structure *s, const char *path, us_found *out, us_err *err) {
    us_found f = {.by_manifest = true};
    us_json_doc d = {0};
    char *text = NULL;
    size_t n = 0;
    us_layer_cut cut = {0};
    bool *active = NULL;
    US_TRY(us_fs_read_all(path, 1 << 28, &text, &n, err));
    us_status st = us_json_doc_take(&d, text, n, 0, err);
    if (st == US_OK) {
        us_json_ref kept = us_json_path(&d, 0, "layer_cut.kept");
        f.drop_mtp = us_str_eqz(us_json_string(&d, us_json_get(&d, 0, "mtp")), "dropped");
        if (us_json_type_of(&d, kept) == US_JSON_ARRAY && us_json_count(&d, kept)) {
            us_buf b = {0};
            for (us_json_ref r = us_json_first(&d, kept); r != US_JSON_NO; r = us_json_next(&d, kept, r)) {
                us_str raw = us_json_raw(&d, r);
                us_buf_printf(&b, "%s%.*s", b.n ? "," : "", US_STR_ARG(raw));
                if (us_json_count(&d, kept) == 1) us_buf_printf(&b, "-%.*s", US_STR_ARG(raw));
            }
            st = us_buf_status(&b, err, "reading a manifest");
            if (st == US_OK && !(f.layers = us_strndup(b.p, b.n))) st = us_fail_nomem(err, "reading a manifest");
            us_buf_free(&b);
        }
    }
    us_plan_options o = {.layers = f.layers, .drop_mtp = f.drop_mtp};
    if (st == US_OK) st = us_plan_scope(NULL, s, &o, &cut, &active, err);
    if (st == US_OK) st = us_keep_parse(s, d.text, false, 0, active, &f.keep, err);
    us_json_doc_free(&d);
    us_layer_cut_free(&cut);
    us_free(active);
    if (st == US_OK) *out = f;
    else {
        us_err_where(err, "%s", path);
        us_found_free(&f);
    }
    return st;
}
