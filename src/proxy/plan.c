/**
 * Making the plan: roles become actions, actions become an order, the order becomes shards. Header of plan.h says what and why.
 * The texts (config, index, quantisation) are made in config_edit.c, quant_edit.c and index_edit.c.
 */
#include "proxy/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/plan_internal.h"

enum { HEADER_TENSOR_MAX = 256 }; /* bytes of one header entry beside its name and shape */

us_status us_plan_note_edit(us_plan *p, const char *file, us_str path, us_str from, us_str to, us_err *err) {
    enum { SHOW_MAX = 200 };
    if (!us_grow(&p->edits, &p->cap_edits, p->n_edits + 1, sizeof *p->edits)) return us_fail_nomem(err, "planning");
    us_plan_edit e = {.file = file, .removed = !to.p, .path = us_arena_strndup(&p->arena, path.p, path.n)};
    if (from.p && from.n <= SHOW_MAX) e.from = us_arena_strndup(&p->arena, from.p, from.n);
    if (to.p && to.n <= SHOW_MAX) e.to = us_arena_strndup(&p->arena, to.p, to.n);
    if (!e.path || (from.p && from.n <= SHOW_MAX && !e.from) || (to.p && to.n <= SHOW_MAX && !e.to)) return us_fail_nomem(err, "planning");
    p->edits[p->n_edits++] = e;
    return US_OK;
}

/* ---- scope: what stays before experts are chosen ---- */

us_status us_plan_scope(us_ctx *ctx, const us_structure *s, const us_plan_options *o, us_layer_cut *cut, bool **active, us_err *err) {
    us_layer_cut c = {0};
    US_TRY(us_layer_cut_create(s, o ? o->layers : NULL, o && o->drop_mtp, &c, err));
    bool *a = us_calloc(s->n_blocks ? s->n_blocks : 1, sizeof *a);
    if (!a) {
        us_layer_cut_free(&c);
        return us_fail_nomem(err, "planning");
    }
    size_t n_moe = 0, n_hash = 0;
    for (size_t b = 0; b < s->n_blocks; b++) {
        const us_moe_block *m = &s->blocks[b];
        a[b] = m->mtp ? !c.drop_mtp : m->layer < c.n_old && c.to_new[m->layer] != US_LAYER_GONE;
        if (!m->mtp && a[b]) {
            n_moe++;
            n_hash += m->hash;
        }
    }
    us_status st = US_OK;
    if (c.cut && !n_moe) {
        st = us_fail(err, US_E_REFUSED, "layers-no-moe", "no MoE layer would remain");
        us_err_todo(err, "keep at least one of the layers that hold experts");
    } else if (c.cut && n_moe == n_hash) {
        st = us_fail(err, US_E_REFUSED, "layers-only-hash", "only layers routed by a token table would remain");
        us_err_todo(err, "keep at least one layer with a learned router");
    }
    if (st != US_OK) {
        us_layer_cut_free(&c);
        us_free(a);
        return st;
    }
    if (c.cut) us_note(ctx, "note-layers", "layers are cut: %u of %u stay; depth changes numerics and routing, so this is no faithful proxy", c.n_new, c.n_old);
    *cut = c;
    *active = a;
    return US_OK;
}

/* ---- tensors ---- */

/* New name of an expert's tensor: head, new number, rest. */
static us_status expert_name(us_plan *p, const us_role *r, uint32_t id, us_buf *out, us_err *err) {
    us_buf_clear(out);
    us_buf_str(out, r->head);
    us_buf_printf(out, "%u.", id);
    us_buf_str(out, r->rest);
    (void)p;
    return us_buf_status(out, err, "planning");
}

static us_status slice_shape(us_plan *p, const us_ck_tensor *t, us_plan_tensor *out, us_err *err) {
    const us_moe_block *b = &p->s->blocks[out->block];
    uint64_t *shape = us_arena_alloc(&p->arena, (t->rank ? t->rank : 1) * sizeof *shape);
    if (!shape) return us_fail_nomem(err, "planning");
    memcpy(shape, t->shape, t->rank * sizeof *shape);
    if (out->axis >= t->rank || shape[out->axis] < b->n_experts) {
        us_status st = us_fail(err, US_E_FORMAT, "router", "the expert axis has fewer rows than there are experts");
        us_err_where(err, "%.*s", US_STR_ARG(t->name));
        return st;
    }
    shape[out->axis] = shape[out->axis] - b->n_experts + p->keep->n;
    uint64_t elements, inner = us_dtype_bits(t->dtype);
    for (int i = out->axis + 1; i < t->rank; i++) inner *= shape[i]; /* no overflow: the whole shape was checked at parse */
    if (inner % 8 || !us_st_bytes(t->dtype, t->rank, shape, &elements, &out->bytes)) {
        us_status st = us_fail(err, US_E_UNSUPPORTED, "subbyte", "one expert's part of a packed tensor is not a whole number of bytes");
        us_err_where(err, "%.*s", US_STR_ARG(t->name));
        return st;
    }
    out->shape = shape;
    return US_OK;
}

/* What becomes of tensor i. *dropped: nothing. */
static us_status plan_tensor(us_plan *p, uint32_t i, us_buf *name, us_plan_tensor *out, bool *dropped, us_err *err) {
    const us_ck_tensor *t = &p->s->ck->tensors[i];
    const us_role *r = &p->s->roles[i];
    *out = (us_plan_tensor){.src = i, .block = r->block, .shape = t->shape, .bytes = t->bytes, .action = US_PLAN_COPY};
    us_str n = t->name;
    *dropped = (p->cut.drop_mtp && us_layer_is_mtp(p->s, &p->cut, i)) || (r->block != UINT32_MAX && !p->active[r->block]);
    if (*dropped) return US_OK;
    if (r->kind == US_ROLE_EXPERT) {
        uint32_t id = us_keep_new_id(p->keep, r->block, r->expert);
        *dropped = id == UINT32_MAX;
        if (*dropped) return US_OK;
        US_TRY(expert_name(p, r, id, name, err));
        n = us_buf_view(name);
        out->action = US_PLAN_RENAME;
    } else if (r->kind == US_ROLE_SLICE) {
        out->action = US_PLAN_SLICE;
        out->axis = r->axis;
        US_TRY(slice_shape(p, t, out, err));
    } else if (r->kind == US_ROLE_TOKEN_TABLE) {
        out->action = US_PLAN_TABLE;
    }
    if (p->cut.cut) {
        us_buf cutname = {0};
        *dropped = !us_layer_rename(&p->cut, n, &cutname);
        us_status st = us_buf_status(&cutname, err, "planning");
        if (st == US_OK && !*dropped && !us_str_eq(us_buf_view(&cutname), n)) {
            us_buf_clear(name);
            us_buf_str(name, us_buf_view(&cutname));
            n = us_buf_view(name);
            st = us_buf_status(name, err, "planning");
            if (out->action == US_PLAN_COPY) out->action = US_PLAN_RENAME;
        }
        us_buf_free(&cutname);
        US_TRY(st);
        if (*dropped) return US_OK;
    }
    if (us_str_eq(n, t->name)) {
        out->name = t->name;
        if (out->action == US_PLAN_RENAME) out->action = US_PLAN_COPY;
        return US_OK;
    }
    out->name = (us_str){us_arena_strndup(&p->arena, n.p, n.n), n.n};
    return out->name.p ? US_OK : us_fail_nomem(err, "planning");
}

static void count_action(us_plan *p, const us_plan_tensor *t) {
    const us_role *r = &p->s->roles[t->src];
    switch (t->action) {
    case US_PLAN_COPY:
        /* an expert that keeps its number was still looked up and counts as renamed, as in case.json */
        if (r->kind == US_ROLE_EXPERT) p->n_renamed++;
        else p->n_copied++;
        break;
    case US_PLAN_RENAME: p->n_renamed++; break;
    case US_PLAN_SLICE:
    case US_PLAN_TABLE: p->n_sliced++; break;
    }
    p->n_unknown += r->kind == US_ROLE_UNKNOWN;
    uint64_t elements = 1;
    for (int i = 0; i < p->s->ck->tensors[t->src].rank; i++) elements *= t->shape[i];
    p->total_elements += elements;
    p->total_bytes += t->bytes;
}

static us_status plan_tensors(us_plan *p, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    us_buf name = {0};
    us_status st = US_OK;
    p->tensors = us_calloc(ck->n_tensors ? ck->n_tensors : 1, sizeof *p->tensors);
    if (!p->tensors) return us_fail_nomem(err, "planning");
    for (uint32_t i = 0; i < ck->n_tensors && st == US_OK; i++) {
        bool dropped = false;
        us_plan_tensor *t = &p->tensors[p->n_tensors];
        st = plan_tensor(p, i, &name, t, &dropped, err);
        if (st != US_OK) break;
        if (dropped) {
            p->n_dropped++;
            continue;
        }
        count_action(p, t);
        p->n_tensors++;
    }
    us_buf_free(&name);
    return st;
}

/* ---- order: source order, the pieces of an expert together ---- */

typedef struct order_key {
    uint64_t group, place; /* places in the source: of the first piece of the expert, of this tensor */
    uint32_t index;        /* of the plan's tensor */
} order_key;

static int cmp_order(const void *a, const void *b) {
    const order_key *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

typedef struct place_key {
    uint64_t offset;
    uint32_t shard, index;
} place_key;

static int cmp_place(const void *a, const void *b) {
    const place_key *x = a, *y = b;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* place[i] = rank of the i-th planned tensor in the order of the source files */
static us_status source_places(const us_plan *p, uint64_t *place, us_err *err) {
    place_key *k = us_malloc((p->n_tensors ? p->n_tensors : 1) * sizeof *k);
    if (!k) return us_fail_nomem(err, "planning");
    for (size_t i = 0; i < p->n_tensors; i++) {
        const us_ck_tensor *t = &p->s->ck->tensors[p->tensors[i].src];
        k[i] = (place_key){t->offset, t->shard, (uint32_t)i};
    }
    qsort(k, p->n_tensors, sizeof *k, cmp_place);
    for (size_t i = 0; i < p->n_tensors; i++) place[k[i].index] = i;
    us_free(k);
    return US_OK;
}

/* First place of every kept expert: lead[first_of_block + old number]. */
static uint64_t *expert_leads(const us_plan *p, const uint64_t *place, size_t *base) {
    size_t total = 0;
    for (size_t b = 0; b < p->s->n_blocks; b++) {
        base[b] = total;
        total += p->s->blocks[b].n_experts;
    }
    uint64_t *lead = us_malloc((total ? total : 1) * sizeof *lead);
    if (!lead) return NULL;
    for (size_t i = 0; i < total; i++) lead[i] = UINT64_MAX;
    for (size_t i = 0; i < p->n_tensors; i++) {
        const us_role *r = &p->s->roles[p->tensors[i].src];
        if (r->kind != US_ROLE_EXPERT) continue;
        uint64_t *l = &lead[base[r->block] + r->expert];
        if (place[i] < *l) *l = place[i];
    }
    return lead;
}

static us_status sort_tensors(us_plan *p, us_err *err) {
    size_t n = p->n_tensors;
    us_status s = US_OK;
    uint64_t *place = us_malloc((n ? n : 1) * sizeof *place), *lead = NULL;
    size_t *base = us_malloc((p->s->n_blocks + 1) * sizeof *base);
    order_key *k = us_malloc((n ? n : 1) * sizeof *k);
    us_plan_tensor *sorted = us_malloc((n ? n : 1) * sizeof *sorted);
    if (!place || !base || !k || !sorted) {
        s = us_fail_nomem(err, "planning");
        goto done;
    }
    US_GO(source_places(p, place, err));
    lead = expert_leads(p, place, base);
    if (!lead) {
        s = us_fail_nomem(err, "planning");
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        const us_role *r = &p->s->roles[p->tensors[i].src];
        uint64_t group = r->kind == US_ROLE_EXPERT ? lead[base[r->block] + r->expert] : place[i];
        k[i] = (order_key){group, place[i], (uint32_t)i};
    }
    qsort(k, n, sizeof *k, cmp_order);
    for (size_t i = 0; i < n; i++) sorted[i] = p->tensors[k[i].index];
    memcpy(p->tensors, sorted, n * sizeof *sorted);
done:
    us_free(place);
    us_free(lead);
    us_free(base);
    us_free(k);
    us_free(sorted);
    return s;
}

/* ---- shards ---- */

/* Largest shard of the source: the policy of whoever published it. A single file stays a single file. */
static uint64_t shard_limit(const us_checkpoint *ck) {
    uint64_t most = 0;
    if (ck->n_shards <= 1) return UINT64_MAX;
    for (size_t i = 0; i < ck->n_shards; i++) {
        if (ck->shards[i].header.data_size > most) most = ck->shards[i].header.data_size;
    }
    return most;
}

static uint64_t header_estimate(const us_plan *p, const us_plan_tensor *t) {
    return HEADER_TENSOR_MAX + 6 * (uint64_t)t->name.n + 20 * (uint64_t)p->s->ck->tensors[t->src].rank;
}

static bool same_expert(const us_plan *p, const us_plan_tensor *a, const us_plan_tensor *b) {
    const us_role *x = &p->s->roles[a->src], *y = &p->s->roles[b->src];
    return x->kind == US_ROLE_EXPERT && y->kind == US_ROLE_EXPERT && x->block == y->block && x->expert == y->expert;
}

static us_status add_shard(us_plan *p, size_t *cap, size_t first, us_err *err) {
    if (!us_grow(&p->shards, cap, p->n_shards + 1, sizeof *p->shards)) return us_fail_nomem(err, "planning");
    p->shards[p->n_shards++] = (us_plan_shard){.first = first};
    return US_OK;
}

/* Header metadata of every shard takes part in its limit. */
static uint64_t meta_bytes(const us_plan *p) {
    uint64_t n = 64;
    for (size_t i = 0; i < p->n_meta; i++) n += 6 * (uint64_t)(p->meta[i].key.n + p->meta[i].value.n) + 8;
    return n;
}

static us_status pack_shards(us_plan *p, us_err *err) {
    uint64_t limit = shard_limit(p->s->ck), meta = meta_bytes(p), header = meta;
    size_t cap = 0;
    US_TRY(add_shard(p, &cap, 0, err));
    for (size_t i = 0; i < p->n_tensors;) {
        size_t end = i + 1;
        uint64_t bytes = p->tensors[i].bytes, h = header_estimate(p, &p->tensors[i]);
        for (; end < p->n_tensors && same_expert(p, &p->tensors[i], &p->tensors[end]); end++) {
            bytes += p->tensors[end].bytes;
            h += header_estimate(p, &p->tensors[end]);
        }
        us_plan_shard *s = &p->shards[p->n_shards - 1];
        bool full = s->n && (bytes > limit || s->data_bytes > limit - bytes || header + h > US_ST_HEADER_MAX);
        if (full) {
            US_TRY(add_shard(p, &cap, i, err));
            s = &p->shards[p->n_shards - 1];
            header = meta;
        }
        for (; i < end; i++) {
            p->tensors[i].shard = (uint32_t)(p->n_shards - 1);
            p->tensors[i].begin = s->data_bytes;
            s->data_bytes += p->tensors[i].bytes;
            s->n++;
        }
        header += h;
    }
    return US_OK;
}

static us_status name_shards(us_plan *p, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    bool indexed = ck->index.n_nodes != 0;
    bool single = p->n_shards == 1 && (!indexed || (ck->n_shards == 1 && strcmp(ck->shards[0].name, "model.safetensors") == 0));
    for (size_t i = 0; i < p->n_shards; i++) {
        char name[80];
        if (single) snprintf(name, sizeof name, "model.safetensors");
        else snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, p->n_shards);
        p->shards[i].name = us_arena_strndup(&p->arena, name, strlen(name));
        if (!p->shards[i].name) return us_fail_nomem(err, "planning");
    }
    return US_OK;
}

/* All entries of all source headers; of a key that stands in several, the first shard by name wins. */
static us_status union_meta(us_plan *p, us_err *err) {
    const us_checkpoint *ck = p->s->ck;
    size_t cap = 0;
    us_map seen = {0};
    us_status st = US_OK;
    for (size_t i = 0; i < ck->n_shards && st == US_OK; i++) {
        const us_st_header *h = &ck->shards[i].header;
        for (size_t j = 0; j < h->n_meta && st == US_OK; j++) {
            uint32_t old = US_MAP_NONE;
            if (!us_map_put(&seen, h->meta[j].key, 0, &old)) st = us_fail_nomem(err, "planning");
            else if (old == US_MAP_NONE) {
                if (!us_grow(&p->meta, &cap, p->n_meta + 1, sizeof *p->meta)) st = us_fail_nomem(err, "planning");
                else p->meta[p->n_meta++] = h->meta[j];
            }
        }
    }
    us_map_free(&seen);
    return st;
}

us_status us_plan_shard_header(const us_plan *p, size_t i, us_buf *out, us_err *err) {
    const us_plan_shard *s = &p->shards[i];
    us_st_tensor *t = us_calloc(s->n ? s->n : 1, sizeof *t);
    if (!t) return us_fail_nomem(err, "writing a header");
    for (size_t j = 0; j < s->n; j++) {
        const us_plan_tensor *x = &p->tensors[s->first + j];
        const us_ck_tensor *src = &p->s->ck->tensors[x->src];
        t[j] = (us_st_tensor){.name = x->name, .dtype = src->dtype, .rank = src->rank, .shape = x->shape, .begin = x->begin, .end = x->begin + x->bytes};
    }
    us_status st = us_st_write_header(out, t, s->n, p->meta, p->n_meta, err);
    us_free(t);
    return st;
}

uint64_t us_plan_folder_bytes(const us_plan *p) {
    uint64_t n = p->total_bytes + p->config.n + p->index.n + p->hf_quant.n;
    for (size_t i = 0; i < p->n_shards; i++) n += meta_bytes(p);
    for (size_t i = 0; i < p->n_tensors; i++) n += HEADER_TENSOR_MAX + 2 * (uint64_t)p->tensors[i].name.n; /* header entry and manifest line */
    for (size_t i = 0; i < p->s->ck->n_others; i++) n += p->s->ck->others[i].size;
    return n;
}

us_status us_plan_create(us_ctx *ctx, const us_structure *structure, const us_keep *keep, const us_plan_options *o, us_plan **out, us_err *err) {
    us_plan *p = us_calloc(1, sizeof *p);
    if (!p) return us_fail_nomem(err, "planning");
    us_status s;
    p->s = structure;
    p->keep = keep;
    US_GO(us_plan_scope(ctx, structure, o, &p->cut, &p->active, err));
    US_GO(us_keep_validate(structure, keep, p->active, err));
    US_GO(plan_tensors(p, err));
    US_GO(union_meta(p, err));
    US_GO(sort_tensors(p, err));
    US_GO(pack_shards(p, err));
    US_GO(name_shards(p, err));
    US_GO(us__plan_config(ctx, p, err));
    US_GO(us__plan_index(ctx, p, err));
done:
    if (s != US_OK) us_plan_free(p);
    else *out = p;
    return s;
}

void us_plan_free(us_plan *p) {
    if (!p) return;
    us_layer_cut_free(&p->cut);
    us_free(p->active);
    us_free(p->tensors);
    us_free(p->shards);
    us_free(p->meta);
    us_free(p->edits);
    us_buf_free(&p->config);
    us_buf_free(&p->index);
    us_buf_free(&p->hf_quant);
    us_arena_free(&p->arena);
    us_free(p);
}
