/* Resolving a checkpoint's structure: where every tensor belongs, and whether config and tensors agree. See structure.h. */
#include "model/structure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/quant_lists.h"

enum { NAMES_SHOWN = 4 };

/* One tensor of one expert, for the check that all experts are stored alike. */
typedef struct piece {
    us_str projection, suffix; /* of "gate_proj.weight_scale_inv": "gate_proj" and "weight_scale_inv" */
    uint32_t expert, tensor;
} piece;

/* A layer of the text model as the tensor names show it. */
typedef struct layer_seen {
    char *key;
    us_str prefix;       /* up to and including the layer number's dot */
    uint32_t number;
    bool mtp, bare;
    uint32_t block;      /* index into blocks, or UINT32_MAX */
    bool has_experts, has_stacked, has_router, has_table;
    us_str block_name;   /* which of the family's block spellings */
    piece *pieces;
    size_t n_pieces, cap_pieces;
    uint32_t stacked_experts;
} layer_seen;

typedef struct resolving {
    us_ctx *ctx;
    us_structure *st;
    us_config cfg;
    const us_family *f;
    us_quant_lists quant;
    layer_seen *layers;
    size_t n_layers, cap_layers;
    us_map by_key;
    uint32_t *layer_of; /* per tensor: index into layers, or UINT32_MAX */
    us_err *err;
} resolving;

static us_status refuse(resolving *r, const char *cls, us_str where, const char *what) {
    us_fail(r->err, US_E_FORMAT, cls, "%s", what);
    us_err_where(r->err, "%.*s", US_STR_ARG(where));
    return US_E_FORMAT;
}

/* ---- names ---- */

/* Prefixes before "layers." that belong to the text model; MTP ones last. */
static const char *const trunk_prefixes[] = {"model.", "model.language_model.", "language_model.model.", "backbone.", "", "thinker.model.", "model.llm.",
                                             "language_model."};
static const char *const mtp_prefixes[] = {"mtp.", "model.mtp.", "model.language_model.mtp.", "language_model.mtp."};

static bool all_digits(us_str s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < '0' || s.p[i] > '9') return false;
    return s.n > 0;
}

/* The number at `at` up to the next dot. Plain decimals only: "02", "+1" and 12-digit numbers name no layer and no expert. */
static bool number_at(us_str name, size_t at, uint32_t *value, size_t *end) {
    uint64_t v;
    *end = us_str_find(name, '.', at);
    if (*end == name.n || !us_str_to_u64(us_str_sub(name, at, *end), &v) || v > 999999999) return false;
    *value = (uint32_t)v;
    return true;
}

/* Split "PREFIXlayers.N.REST". Sets *text when the prefix is the text model's. */
static us_status split_layer(resolving *r, us_str name, bool *text, bool *mtp, bool *bare, uint32_t *number, size_t *rest) {
    *text = *mtp = *bare = false;
    const size_t n_trunk = sizeof trunk_prefixes / sizeof *trunk_prefixes, n_mtp = sizeof mtp_prefixes / sizeof *mtp_prefixes;
    for (size_t i = 0; i < n_trunk + n_mtp && !*text; i++) {
        us_str p = us_str_z(i < n_trunk ? trunk_prefixes[i] : mtp_prefixes[i - n_trunk]);
        if (!us_str_starts(name, p)) continue;
        us_str tail = us_str_sub(name, p.n, name.n);
        size_t at = 0, end;
        if (us_str_starts(tail, US_LIT("layers."))) at = 7;
        else if (!(i >= n_trunk && r->f->mtp == US_MTP_BARE && tail.n && tail.p[0] >= '0' && tail.p[0] <= '9')) continue;
        if (!number_at(tail, at, number, &end)) {
            us_str digits = us_str_sub(tail, at, us_str_find(tail, '.', at));
            if (digits.n && (all_digits(digits) || digits.p[0] == '-' || digits.p[0] == '+'))
                return refuse(r, "name", name, "a layer number is not a plain decimal");
            continue;
        }
        *text = true;
        *mtp = i >= n_trunk;
        *bare = at == 0;
        *rest = p.n + end + 1;
    }
    return US_OK;
}

static us_status layer_for(resolving *r, us_str prefix, uint32_t number, bool mtp, bool bare, uint32_t *index) {
    char key[32];
    snprintf(key, sizeof key, "%s%u", mtp ? "mtp." : "", number);
    *index = us_map_get(&r->by_key, us_str_z(key));
    if (*index != US_MAP_NONE) return US_OK;
    char *copy = us_arena_strndup(&r->st->arena, key, strlen(key));
    if (!copy || !us_grow(&r->layers, &r->cap_layers, r->n_layers + 1, sizeof *r->layers) ||
        !us_map_put(&r->by_key, us_str_z(copy), (uint32_t)r->n_layers, NULL))
        return us_fail_nomem(r->err, "resolving the structure");
    r->layers[r->n_layers] = (layer_seen){.key = copy, .prefix = prefix, .number = number, .mtp = mtp, .bare = bare, .block = UINT32_MAX};
    *index = (uint32_t)r->n_layers++;
    return US_OK;
}

/* Does rest begin with one of the family's block spellings? *name gets it, *below what follows. */
static bool in_block(const us_family *f, us_str rest, us_str *name, us_str *below) {
    const char *at = f->block;
    do {
        size_t n = strcspn(at, "|");
        us_str b = {at, n};
        if (us_str_starts(rest, b)) {
            *name = b;
            *below = us_str_sub(rest, n, rest.n);
            return true;
        }
        at += n + (at[n] == '|');
    } while (*at);
    return false;
}

static bool starts_with_any(us_str s, const char *list) {
    while (list && *list) {
        size_t n = strcspn(list, "|");
        if (n > 0 && us_str_starts(s, (us_str){list, n})) return true;
        list += n + (list[n] == '|');
    }
    return false;
}

static const us_router_tensor *router_row(const us_family *f, us_str below) {
    for (int i = 0; i < US_FAMILY_ROUTERS && f->routers[i].suffix; i++)
        if (us_str_eqz(below, f->routers[i].suffix)) return &f->routers[i];
    return NULL;
}

/* A stacked expert tensor: the table's name itself, or with a companion's ending ("_bias", "_blocks", "_scales", ".weight", "_scale_inv" ...). */
static const us_expert_tensor *stacked_row(const us_family *f, us_str below, bool *companion) {
    static const char *const whole[] = {"", ".weight", "_blocks"};
    static const char *const beside[] = {"_bias", "_scales", "_scale", "_scale_inv", ".weight_scale", ".weight_scale_inv", "_weight_scale", ".weight_scale_2",
                                         ".input_scale", ".bias", "_input_scale", "_scale_2"};
    for (int i = 0; i < US_FAMILY_STACKED && f->stacked[i].suffix; i++) {
        us_str base = us_str_z(f->stacked[i].suffix);
        if (!us_str_starts(below, base)) continue;
        us_str tail = us_str_sub(below, base.n, below.n);
        for (size_t k = 0; k < sizeof whole / sizeof *whole; k++)
            if (us_str_eqz(tail, whole[k])) return *companion = false, &f->stacked[i];
        for (size_t k = 0; k < sizeof beside / sizeof *beside; k++)
            if (us_str_eqz(tail, beside[k])) return *companion = true, &f->stacked[i];
    }
    return NULL;
}

/* ---- parts, for counting ---- */

static bool is_vision(us_str n) {
    static const char prefixes[] = "visual.|vision.|vision_tower.|vision_model.|model.visual.|model.vision|model.vision_tower.|multi_modal_projector.|mm_projector.|"
                                   "model.multi_modal_projector.|aligner.|image_|audio_tower.|model.audio|talker.|code2wav.|thinker.visual.|thinker.audio|"
                                   "model.embed_vision.|model.embed_audio.|vision_embed|patch_merger.|model.connector.|vit.|token2wav.|view_seperator|view_separator";
    return starts_with_any(n, prefixes);
}

static us_part top_part(us_str n) {
    if (is_vision(n)) return US_PART_VISION;
    if (us_str_starts(n, US_LIT("mtp.")) || us_str_starts(n, US_LIT("model.mtp."))) return US_PART_MTP;
    static const char embeds[] = "model.embed_tokens|model.language_model.embed_tokens|language_model.model.embed_tokens|backbone.embeddings|embed.|"
                                 "model.word_embeddings|embed_tokens|model.embed.|thinker.model.embed_tokens";
    if (starts_with_any(n, embeds)) return US_PART_EMBED;
    if (starts_with_any(n, "lm_head|head.|language_model.lm_head|output.|thinker.lm_head")) return US_PART_HEAD;
    static const char norms[] = "model.norm|model.language_model.norm|language_model.model.norm|backbone.norm_f|norm.|model.final_layernorm|model.embedding_norm|"
                                "model.hc_head|hc_head|model.language_model.hyper_connection|model.hyper_connection|thinker.model.norm|model.rotary_emb|"
                                "model.language_model.hc_head|language_model.model.output_attn_res|model.output_attn_res";
    if (starts_with_any(n, norms)) return US_PART_NORM;
    return US_PART_OTHER;
}

static us_part layer_part(us_str rest) {
    if (starts_with_any(rest, "self_attn.|attn.|linear_attn.|attention.|mamba.|conv.|indexer.")) return US_PART_ATTENTION;
    if (starts_with_any(rest, "engram.|ple.")) return US_PART_LOOKUP;
    if (starts_with_any(rest, "mlp.|mlps.|feed_forward.|ffn.|block_sparse_moe.|moe.|shared_mlp.")) return US_PART_DENSE_MLP;
    if (us_str_starts(rest, US_LIT("mixer."))) return US_PART_ATTENTION;
    if (starts_with_any(rest, "share_expert.|shared_expert")) return US_PART_SHARED_EXPERT;
    return US_PART_NORM;
}

static bool has_dimension(const us_ck_tensor *t, uint64_t n) {
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] == n) return true;
    return false;
}

/* ---- first pass: every name to its layer, every expert to its block ---- */

static us_status add_piece(resolving *r, layer_seen *l, uint32_t expert, us_str rest, uint32_t tensor) {
    if (!us_grow(&l->pieces, &l->cap_pieces, l->n_pieces + 1, sizeof *l->pieces)) return us_fail_nomem(r->err, "resolving the structure");
    size_t dot = rest.n;
    while (dot > 0 && rest.p[dot - 1] != '.') dot--;
    us_str projection = dot ? us_str_sub(rest, 0, dot - 1) : (us_str){rest.p, 0};
    l->pieces[l->n_pieces++] = (piece){projection, us_str_sub(rest, dot, rest.n), expert, tensor};
    return US_OK;
}

static us_status place_expert(resolving *r, layer_seen *l, us_role *role, us_str name, us_str below, uint32_t tensor) {
    us_str tail = us_str_sub(below, 8, below.n); /* behind "experts." */
    size_t end;
    uint32_t e;
    if (!number_at(tail, 0, &e, &end)) return refuse(r, "name", name, "an expert number is not a plain decimal");
    l->has_experts = true;
    role->kind = US_ROLE_EXPERT;
    role->part = US_PART_ROUTED;
    role->expert = e;
    role->head = us_str_sub(name, 0, name.n - below.n + 8);
    role->rest = us_str_sub(tail, end + 1, tail.n);
    for (int i = 0; i < US_FAMILY_PROJECTIONS && r->f->projections[i].suffix; i++) {
        us_str p = us_str_z(r->f->projections[i].suffix);
        if (us_str_starts(role->rest, p) && role->rest.n > p.n && role->rest.p[p.n] == '.') role->desc = &r->f->projections[i];
    }
    return add_piece(r, l, e, role->rest, tensor);
}

/* An expert number begins with a digit, or with a sign that someone wrote before one. */
static bool looks_like_expert(us_str below) {
    if (!us_str_starts(below, US_LIT("experts.")) || below.n < 9) return false;
    char c = below.p[8];
    return (c >= '0' && c <= '9') || ((c == '-' || c == '+') && below.n > 9 && below.p[9] >= '0' && below.p[9] <= '9');
}

static us_status place_in_block(resolving *r, layer_seen *l, us_role *role, us_str name, us_str below, uint32_t tensor) {
    const us_ck_tensor *t = &r->st->ck->tensors[tensor];
    const us_router_tensor *router = router_row(r->f, below);
    bool companion;
    if (router) {
        if (router->role == US_ROUTER_WEIGHT) l->has_router = true;
        role->kind = US_ROLE_SLICE;
        role->part = US_PART_ROUTER;
        role->axis = router->axis;
        role->router = router;
        return US_OK;
    }
    if (looks_like_expert(below)) return place_expert(r, l, role, name, below, tensor);
    const us_expert_tensor *stacked = stacked_row(r->f, below, &companion);
    if (stacked && t->rank >= (companion ? 0 : 2)) {
        l->has_stacked = true;
        role->kind = US_ROLE_SLICE;
        role->part = US_PART_ROUTED;
        role->axis = stacked->axis;
        role->desc = companion ? NULL : stacked;
        role->companion = companion;
        if (!companion && l->stacked_experts == 0 && t->rank > stacked->axis) l->stacked_experts = t->shape[stacked->axis] > UINT32_MAX ? UINT32_MAX : (uint32_t)t->shape[stacked->axis];
        return US_OK;
    }
    if (r->f->token_table && us_str_eqz(below, r->f->token_table)) {
        l->has_table = true;
        role->kind = US_ROLE_TOKEN_TABLE;
        role->part = US_PART_ROUTER;
        return US_OK;
    }
    if (us_str_starts(below, US_LIT("experts."))) role->under_experts = true;
    role->in_block = true;
    if (starts_with_any(below, r->f->known)) {
        role->in_block = role->under_experts;
        role->part = starts_with_any(below, "shared|share_expert") ? US_PART_SHARED_EXPERT : US_PART_OTHER;
    }
    return US_OK;
}

static us_status place_tensor(resolving *r, uint32_t i) {
    us_str name = r->st->ck->tensors[i].name, block, below;
    us_role *role = &r->st->roles[i];
    bool text, mtp, bare;
    uint32_t number = 0, layer;
    size_t rest = 0;
    *role = (us_role){.kind = US_ROLE_COPY, .block = UINT32_MAX};
    r->layer_of[i] = UINT32_MAX;
    US_TRY(split_layer(r, name, &text, &mtp, &bare, &number, &rest));
    if (!text) {
        role->part = top_part(name);
        if (role->part == US_PART_OTHER) role->kind = US_ROLE_UNKNOWN;
        return US_OK;
    }
    US_TRY(layer_for(r, us_str_sub(name, 0, rest), number, mtp, bare, &layer));
    r->layer_of[i] = layer;
    us_str tail = us_str_sub(name, rest, name.n);
    role->part = layer_part(tail);
    if (r->f->placement == US_PLACE_NONE) {
        if (us_str_starts(tail, US_LIT("mlp.experts.")))
            return refuse(r, "mismatch", name, "config.json names a dense family, but the file holds experts");
        return US_OK;
    }
    if (!in_block(r->f, tail, &block, &below)) return US_OK;
    layer_seen *l = &r->layers[layer];
    US_TRY(place_in_block(r, l, role, name, below, i));
    bool expert = role->kind != US_ROLE_COPY;
    if (expert) l->block_name = block;
    return US_OK;
}

/* ---- second pass: blocks, and what config.json says of them ---- */

static int layer_order(const void *a, const void *b) {
    const layer_seen *x = *(const layer_seen *const *)a, *y = *(const layer_seen *const *)b;
    if (x->mtp != y->mtp) return x->mtp - y->mtp;
    return (x->number > y->number) - (x->number < y->number);
}

static bool is_moe(const layer_seen *l) {
    return l->has_experts || l->has_stacked || l->has_router || l->has_table;
}

static us_status make_blocks(resolving *r) {
    us_structure *st = r->st;
    layer_seen **sorted = us_arena_alloc(&st->arena, (r->n_layers + 1) * sizeof(layer_seen *));
    size_t n = 0;
    for (size_t i = 0; i < r->n_layers && sorted; i++)
        if (is_moe(&r->layers[i])) sorted[n++] = &r->layers[i];
    st->blocks = us_arena_calloc(&st->arena, n + 1, sizeof *st->blocks);
    if (!sorted || !st->blocks) return us_fail_nomem(r->err, "resolving the structure");
    if (n) qsort(sorted, n, sizeof *sorted, layer_order);
    for (size_t i = 0; i < n; i++) {
        layer_seen *l = sorted[i];
        us_moe_block *b = &st->blocks[i];
        l->block = (uint32_t)i;
        b->key = l->key;
        b->prefix = us_arena_alloc(&st->arena, l->prefix.n + l->block_name.n + 1);
        if (!b->prefix) return us_fail_nomem(r->err, "resolving the structure");
        memcpy(b->prefix, l->prefix.p, l->prefix.n);
        memcpy(b->prefix + l->prefix.n, l->block_name.p, l->block_name.n);
        b->prefix[l->prefix.n + l->block_name.n] = 0;
        b->layer = l->number;
        b->mtp = l->mtp || l->number >= st->n_layers;
        b->hash = l->has_table;
        b->stacked = l->has_stacked;
        b->router = b->bias = UINT32_MAX;
    }
    st->n_blocks = n;
    for (size_t i = 0; i < st->ck->n_tensors; i++) {
        us_role *role = &st->roles[i];
        if (r->layer_of[i] == UINT32_MAX || r->layers[r->layer_of[i]].block == UINT32_MAX) continue;
        role->block = r->layers[r->layer_of[i]].block;
        if (!role->router) continue;
        if (role->router->role == US_ROUTER_WEIGHT) st->blocks[role->block].router = (uint32_t)i;
        if (role->router->role == US_ROUTER_CORRECTION && st->blocks[role->block].bias == UINT32_MAX) st->blocks[role->block].bias = (uint32_t)i;
    }
    return US_OK;
}

/* Every trunk layer has tensors, is MoE exactly where config.json says, and none lies beyond. */
static us_status check_layers(resolving *r) {
    us_structure *st = r->st;
    uint32_t n_mtp = r->f->mtp == US_MTP_NUMBERED ? us_config_mtp_layers(&r->cfg) : 0, n_trunk = 0;
    for (size_t i = 0; i < r->n_layers; i++) {
        const layer_seen *l = &r->layers[i];
        if (l->mtp) continue;
        n_trunk += l->number < st->n_layers;
        if (l->number < (uint64_t)st->n_layers + n_mtp) continue;
        us_fail(r->err, US_E_FORMAT, "mismatch", "the file holds layer %u, config.json has %u layers and %u for multi-token prediction", l->number, st->n_layers,
                n_mtp);
        us_err_where(r->err, "%.*s", US_STR_ARG(l->prefix));
        return US_E_FORMAT;
    }
    if (n_trunk != st->n_layers) {
        us_fail(r->err, US_E_FORMAT, "mismatch", "config.json has %u layers, the file holds tensors of %u of them", st->n_layers, n_trunk);
        us_err_where(r->err, "config.json");
        return US_E_FORMAT;
    }
    for (size_t i = 0; i < r->n_layers; i++) {
        const layer_seen *l = &r->layers[i];
        if (l->mtp || l->number >= st->n_layers) continue;
        bool should = us_config_layer_is_moe(&r->cfg, l->number), is = is_moe(l);
        if (should == is) continue;
        us_fail(r->err, US_E_FORMAT, "mismatch", should ? "config.json makes layer %u a MoE layer, but the file holds no experts for it"
                                                        : "the file holds experts for layer %u, which config.json makes dense",
                l->number);
        us_err_where(r->err, "%.*s", US_STR_ARG(l->prefix));
        return US_E_FORMAT;
    }
    return US_OK;
}

/* Expert count of trunk layer l by config.json: the scalar, or its entry in a list. */
static uint32_t count_of_layer(const us_structure *st, uint32_t l) {
    for (size_t i = 0; i < st->n_count_sites; i++) {
        const us_count_site *s = &st->count_sites[i];
        uint64_t v;
        if ((s->layer < 0 || s->layer == (int32_t)l) && us_json_u64(&st->ck->config, s->value, &v)) return (uint32_t)v;
    }
    return st->n_experts;
}

static int piece_order(const void *a, const void *b) {
    const piece *x = a, *y = b;
    int c = us_str_cmp(x->projection, y->projection);
    if (c) return c;
    if (x->expert != y->expert) return x->expert < y->expert ? -1 : 1;
    return us_str_cmp(x->suffix, y->suffix);
}

static bool same_form(const us_checkpoint *ck, const piece *a, const piece *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const us_ck_tensor *x = &ck->tensors[a[i].tensor], *y = &ck->tensors[b[i].tensor];
        if (!us_str_eq(a[i].suffix, b[i].suffix) || x->dtype != y->dtype || x->rank != y->rank || memcmp(x->shape, y->shape, x->rank * sizeof *x->shape) != 0)
            return false;
    }
    return true;
}

static us_status incomplete(resolving *r, const layer_seen *l, uint32_t expert, us_str projection) {
    us_fail(r->err, US_E_FORMAT, "experts-incomplete", projection.n ? "expert %u has no %.*s" : "expert %u is missing%.*s", expert, US_STR_ARG(projection));
    us_err_where(r->err, "layer %s", l->key);
    return US_E_FORMAT;
}

/* All experts of a block have the same projections, and each projection the same form, except modules that a quantisation list selects. */
static us_status check_alike(resolving *r, layer_seen *l, uint32_t E) {
    qsort(l->pieces, l->n_pieces, sizeof *l->pieces, piece_order);
    const us_checkpoint *ck = r->st->ck;
    for (size_t at = 0; at < l->n_pieces;) {
        us_str projection = l->pieces[at].projection;
        const piece *reference = NULL;
        size_t n_reference = 0;
        for (uint32_t e = 0; e < E; e++) {
            if (at == l->n_pieces || !us_str_eq(l->pieces[at].projection, projection) || l->pieces[at].expert != e) return incomplete(r, l, e, projection);
            size_t n = 1;
            while (at + n < l->n_pieces && l->pieces[at + n].expert == e && us_str_eq(l->pieces[at + n].projection, projection)) n++;
            us_str name = ck->tensors[l->pieces[at].tensor].name, module = us_str_sub(name, 0, name.n - l->pieces[at].suffix.n - 1);
            bool selected = false;
            if (r->quant.n) US_TRY(us_quant_selected(&r->quant, module, &selected, r->err));
            if (!selected && !reference) {
                reference = &l->pieces[at];
                n_reference = n;
            } else if (!selected && (n != n_reference || !same_form(ck, reference, &l->pieces[at], n))) {
                us_fail(r->err, US_E_FORMAT, "experts-differ", "expert %u is stored in another form than expert %u, and no quantisation list says so", e,
                        reference->expert);
                us_err_where(r->err, "%.*s", US_STR_ARG(module));
                return US_E_FORMAT;
            }
            at += n;
        }
    }
    return US_OK;
}

static us_status check_block(resolving *r, layer_seen *l) {
    us_structure *st = r->st;
    us_moe_block *b = &st->blocks[l->block];
    if (l->has_experts && l->has_stacked) return refuse(r, "layout", l->prefix, "a layer holds its experts twice, one by one and stacked");
    if (!l->has_experts && !l->has_stacked) return refuse(r, "experts-incomplete", l->prefix, "a MoE layer has a router but no experts");
    if (b->router == UINT32_MAX) return refuse(r, "router", l->prefix, "a MoE layer has experts but no router");
    uint32_t tail = r->f->tail_rows_key ? us_config_u32(&r->cfg, r->f->tail_rows_key, 0) : 0, highest = 0;
    const us_ck_tensor *w = &st->ck->tensors[b->router];
    uint8_t axis = st->roles[b->router].axis;
    uint64_t rows = w->rank == 2 && axis < w->rank ? w->shape[axis] : 0;
    for (size_t i = 0; i < l->n_pieces; i++)
        if (l->pieces[i].expert > highest) highest = l->pieces[i].expert;
    uint32_t held = l->has_stacked ? l->stacked_experts : highest + 1;
    uint32_t said = b->mtp ? (uint32_t)(rows > tail ? rows - tail : 0) : count_of_layer(st, b->layer);
    if (held > said || (held != said && rows == (uint64_t)held + tail)) {
        us_fail(r->err, US_E_FORMAT, "mismatch", "the layer holds %u experts, %s %u", held, b->mtp ? "its router has" : "config.json says", said);
        us_err_where(r->err, "%.*s", US_STR_ARG(l->prefix));
        return US_E_FORMAT;
    }
    if (rows != (uint64_t)said + tail) {
        us_fail(r->err, US_E_FORMAT, "router", "the router has %llu rows for %u experts", (unsigned long long)rows, said + tail);
        us_err_where(r->err, "%.*s", US_STR_ARG(w->name));
        return US_E_FORMAT;
    }
    if (l->has_stacked && held != said) return refuse(r, "experts-incomplete", l->prefix, "the stacked experts are fewer than the router's rows");
    b->n_experts = said;
    b->tail_rows = tail;
    return l->has_experts ? check_alike(r, l, said) : US_OK;
}

/* Whole tensors with an expert axis: its length must be the count. Companions without that axis (a scale for all) are copied. */
static us_status check_slice(resolving *r, size_t i) {
    us_role *role = &r->st->roles[i];
    const us_ck_tensor *t = &r->st->ck->tensors[i];
    const us_moe_block *b = &r->st->blocks[role->block];
    bool router = role->router != NULL;
    uint64_t want = (uint64_t)b->n_experts + (router ? b->tail_rows : 0);
    if (t->rank > role->axis && t->shape[role->axis] == want) return US_OK;
    if (role->companion && !has_dimension(t, b->n_experts)) {
        role->kind = US_ROLE_COPY;
        return US_OK;
    }
    us_fail(r->err, US_E_FORMAT, router ? "router" : "mismatch", "axis %u of a tensor should have %llu entries, one an expert", role->axis, (unsigned long long)want);
    us_err_where(r->err, "%.*s", US_STR_ARG(t->name));
    return US_E_FORMAT;
}

/* Requirement 5: in a MoE block, what the table does not name and has the expert count as a dimension is an error, never a copy. */
static us_status check_unnamed(resolving *r) {
    const us_structure *st = r->st;
    us_buf names = {0};
    size_t n = 0;
    us_status s = US_OK;
    for (size_t i = 0; i < st->ck->n_tensors && s == US_OK; i++) {
        us_role *role = &st->roles[i];
        if (!role->in_block || role->block == UINT32_MAX || role->kind != US_ROLE_COPY) continue;
        const us_ck_tensor *t = &st->ck->tensors[i];
        if (role->under_experts) {
            s = refuse(r, "layout", t->name, "a tensor below experts is neither of one expert nor of a stacked layout that is known");
        } else if (us_str_ends(t->name, US_LIT("gate.tid2eid"))) {
            s = refuse(r, "layout", t->name, "a table of experts by token, in a family that has none");
        } else if (has_dimension(t, st->blocks[role->block].n_experts)) {
            if (n++ < NAMES_SHOWN) us_buf_printf(&names, "%s%.*s", n > 1 ? ", " : "", US_STR_ARG(t->name));
        } else {
            role->kind = US_ROLE_UNKNOWN;
        }
    }
    if (s == US_OK && n > 0) {
        s = us_fail(r->err, US_E_REFUSED, "unknown-tensor", "%zu unknown %s of a MoE block may belong to the experts: a dimension equals their number", n,
                    n == 1 ? "tensor" : "tensors");
        us_err_where(r->err, "%s%s", us_buf_text(&names), n > NAMES_SHOWN ? " ..." : "");
        us_err_todo(r->err, "name it in the family's table (docs/dev/adding-a-family.md)");
    }
    us_buf_free(&names);
    return s;
}

/* ---- config.json ---- */

static us_status add_site(resolving *r, us_json_ref value, int32_t layer, const char *path) {
    us_structure *st = r->st;
    us_count_site *sites = us_arena_alloc(&st->arena, (st->n_count_sites + 1) * sizeof *sites);
    char *copy = us_arena_strndup(&st->arena, path, strlen(path));
    if (!sites || !copy) return us_fail_nomem(r->err, "reading config.json");
    if (st->n_count_sites) memcpy(sites, st->count_sites, st->n_count_sites * sizeof *sites);
    sites[st->n_count_sites++] = (us_count_site){value, copy, layer};
    st->count_sites = sites;
    return US_OK;
}

/* One count key in one object: a scalar, or (families with lists) one entry a layer. */
static us_status read_count(resolving *r, us_json_ref object, us_str key, const char *shown, uint32_t *count) {
    char name[96], path[192];
    const us_json_doc *d = &r->st->ck->config;
    snprintf(name, sizeof name, "%.*s", US_STR_ARG(key));
    us_json_ref v = us_json_get(d, object, name);
    if (v == US_JSON_NO || us_json_type_of(d, v) == US_JSON_NULL) return US_OK;
    snprintf(path, sizeof path, "%s%s", shown, name);
    us_config at = {d, object, r->f};
    uint32_t n = 0;
    if (us_json_type_of(d, v) != US_JSON_ARRAY) {
        US_TRY(us_config_positive(&at, name, &n, r->err));
        US_TRY(add_site(r, v, -1, path));
        if (*count && *count != n) {
            us_fail(r->err, US_E_FORMAT, "mismatch", "two keys of config.json disagree on the number of experts: %u and %u", *count, n);
            us_err_where(r->err, "%s", path);
            return US_E_FORMAT;
        }
        *count = n;
        return US_OK;
    }
    if (!r->f->lists) return refuse(r, "type", us_str_z(path), "the number of experts must be an integer");
    int32_t l = 0;
    for (us_json_ref e = us_json_first(d, v); e != US_JSON_NO; e = us_json_next(d, v, e), l++) {
        uint64_t x;
        if (!us_json_u64(d, e, &x) || x > INT32_MAX) return refuse(r, "type", us_str_z(path), "the numbers of experts must be integers");
        if (l >= (int32_t)r->st->n_layers || !us_config_layer_is_moe(&r->cfg, (uint32_t)l)) continue;
        char entry[224];
        snprintf(entry, sizeof entry, "%s[%d]", path, l);
        US_TRY(add_site(r, e, l, entry));
        if (x > *count) *count = (uint32_t)x;
    }
    if (l < (int32_t)r->st->n_layers) return refuse(r, "mismatch", us_str_z(path), "the list has fewer entries than the model has layers");
    return US_OK;
}

static us_status read_counts(resolving *r) {
    us_structure *st = r->st;
    for (const char *at = r->f->count_keys; *at;) {
        size_t n = strcspn(at, "|");
        us_str key = {at, n};
        US_TRY(read_count(r, st->text_config, key, st->text_config ? "text_config." : "", &st->n_experts));
        if (st->text_config) US_TRY(read_count(r, 0, key, "", &st->n_experts));
        at += n + (at[n] == '|');
    }
    if (st->n_count_sites == 0) return us_config_positive(&r->cfg, r->f->count_keys, &st->n_experts, r->err); /* says what is missing */
    return US_OK;
}

static us_status read_top_k(resolving *r) {
    us_json_ref v = us_config_get(&r->cfg, r->f->top_k_keys);
    const us_json_doc *d = r->cfg.doc;
    if (us_json_type_of(d, v) != US_JSON_ARRAY) return us_config_positive(&r->cfg, r->f->top_k_keys, &r->st->top_k, r->err);
    if (!r->f->lists) return refuse(r, "type", US_LIT("config.json"), "the number of experts a token must be an integer");
    for (us_json_ref e = us_json_first(d, v); e != US_JSON_NO; e = us_json_next(d, v, e)) {
        uint64_t x;
        if (!us_json_u64(d, e, &x) || x > INT32_MAX) return refuse(r, "type", US_LIT("config.json"), "the numbers of experts a token must be integers");
        if (x > r->st->top_k) r->st->top_k = (uint32_t)x;
    }
    return r->st->top_k ? US_OK : refuse(r, "range", US_LIT("config.json"), "the number of experts a token must be positive");
}

static us_status read_config(resolving *r) {
    us_structure *st = r->st;
    US_TRY(us_config_open(&st->ck->config, &r->cfg, r->err));
    r->f = st->family = r->cfg.family;
    st->text_config = r->cfg.text;
    US_TRY(us_config_layers(&r->cfg, &st->n_layers, r->err));
    if (st->n_layers > st->ck->n_tensors && st->ck->n_tensors) {
        us_fail(r->err, US_E_FORMAT, "mismatch", "config.json has %u layers, the file only %zu tensors", st->n_layers, st->ck->n_tensors);
        us_err_where(r->err, "config.json");
        return US_E_FORMAT;
    }
    st->n_group = st->topk_group = 1;
    if (r->f->placement == US_PLACE_NONE) return US_OK;
    US_TRY(us_config_check_placement(r->ctx, &r->cfg, st->n_layers, r->err));
    US_TRY(read_counts(r));
    US_TRY(read_top_k(r));
    if (st->top_k > st->n_experts) {
        us_fail(r->err, US_E_FORMAT, "mismatch", "a token takes %u experts, but there are %u", st->top_k, st->n_experts);
        us_err_where(r->err, "config.json");
        return US_E_FORMAT;
    }
    st->group_rule = r->f->group_rule;
    if (st->group_rule == US_GROUP_ONE_EACH) {
        st->n_group = st->topk_group = st->top_k;
        return US_OK;
    }
    if (r->f->group_keys) US_TRY(us_config_positive_or(&r->cfg, r->f->group_keys, 1, &st->n_group, r->err));
    if (r->f->topk_group_keys) US_TRY(us_config_positive_or(&r->cfg, r->f->topk_group_keys, 1, &st->topk_group, r->err));
    us_str method = us_json_string(r->cfg.doc, us_config_get(&r->cfg, "topk_method"));
    if (method.p && us_str_eqz(method, "greedy")) st->n_group = st->topk_group = 1;
    if (st->n_experts % st->n_group || st->topk_group > st->n_group) {
        us_fail(r->err, US_E_FORMAT, "mismatch", "%u experts do not fall into %u groups of which %u are taken", st->n_experts, st->n_group, st->topk_group);
        us_err_where(r->err, "config.json");
        return US_E_FORMAT;
    }
    return US_OK;
}

/* Names in the lists that hold an expert number but no layer with experts cannot be renumbered (rule 8c). */
static us_status check_lists(resolving *r) {
    for (size_t i = 0; i < r->quant.n; i++)
        for (uint32_t k = 0; k < r->quant.lists[i].n; k++) {
            const us_quant_entry *e = &r->quant.lists[i].entries[k];
            bool matched;
            /* Try every pattern on every module once, so that one that runs away is refused before any work. */
            if (e->pattern) {
                for (size_t t = 0; t < r->st->ck->n_tensors && t < 64; t++)
                    US_TRY(us_quant_pattern_match(e->pattern, r->st->ck->tensors[t].name, &matched, r->err));
                continue;
            }
            if (us_structure_expert_of_name(r->st, e->text, NULL, NULL, NULL) == US_NAME_FOREIGN)
                return refuse(r, "cannot-renumber", e->text, "a quantisation list names an expert that cannot be placed in a MoE layer of this model");
        }
    return US_OK;
}

us_name_kind us_structure_expert_of_name(const us_structure *st, us_str name, uint32_t *block, uint32_t *expert, us_str *rest) {
    for (size_t b = 0; b < st->n_blocks; b++) {
        us_str p = us_str_z(st->blocks[b].prefix);
        if (!us_str_starts(name, p)) continue;
        us_str below = us_str_sub(name, p.n, name.n);
        if (!us_str_starts(below, US_LIT("experts."))) continue;
        us_str tail = us_str_sub(below, 8, below.n);
        size_t end = us_str_find(tail, '.', 0);
        uint64_t v;
        if (!us_str_to_u64(us_str_sub(tail, 0, end), &v) || v > UINT32_MAX) continue;
        if (block) *block = (uint32_t)b;
        if (expert) *expert = (uint32_t)v;
        if (rest) *rest = us_str_sub(tail, end, tail.n); /* with its dot, or empty */
        return US_NAME_EXPERT;
    }
    for (size_t at = 0; at + 8 < name.n; at++) { /* "experts.<digits>" anywhere else */
        if (memcmp(name.p + at, "experts.", 8) != 0 || (at > 0 && name.p[at - 1] != '.')) continue;
        if (name.p[at + 8] >= '0' && name.p[at + 8] <= '9') return US_NAME_FOREIGN;
    }
    return US_NAME_OTHER;
}

/* ---- entry points ---- */

static us_status resolve(resolving *r) {
    us_structure *st = r->st;
    US_TRY(read_config(r));
    US_TRY(us_quant_lists_open(r->ctx, st->ck, &r->quant, r->err));
    st->roles = us_arena_calloc(&st->arena, st->ck->n_tensors + 1, sizeof *st->roles);
    r->layer_of = us_malloc((st->ck->n_tensors + 1) * sizeof *r->layer_of);
    if (!st->roles || !r->layer_of) return us_fail_nomem(r->err, "resolving the structure");
    for (size_t i = 0; i < st->ck->n_tensors; i++) US_TRY(place_tensor(r, (uint32_t)i));
    US_TRY(make_blocks(r));
    US_TRY(check_layers(r));
    for (size_t i = 0; i < r->n_layers; i++)
        if (r->layers[i].block != UINT32_MAX) US_TRY(check_block(r, &r->layers[i]));
    for (size_t i = 0; i < st->ck->n_tensors; i++)
        if (st->roles[i].kind == US_ROLE_SLICE) US_TRY(check_slice(r, i));
    US_TRY(check_unnamed(r));
    for (size_t i = 0; i < st->ck->n_tensors; i++) {
        uint32_t layer = r->layer_of[i];
        if (layer != UINT32_MAX && (r->layers[layer].mtp || r->layers[layer].number >= st->n_layers)) st->roles[i].in_mtp = true;
        if (st->roles[i].part == US_PART_MTP) st->roles[i].in_mtp = true;
    }
    return check_lists(r);
}

us_status us_structure_resolve(us_ctx *ctx, const us_checkpoint *ck, us_structure **out, us_err *err) {
    resolving r = {.ctx = ctx, .err = err};
    r.quant.dynamic.list = US_JSON_NO;
    r.st = us_calloc(1, sizeof *r.st);
    if (!r.st) return us_fail_nomem(err, "resolving the structure");
    r.st->ck = ck;
    us_status s = resolve(&r);
    us_quant_lists_close(&r.quant);
    for (size_t i = 0; i < r.n_layers; i++) us_free(r.layers[i].pieces);
    us_free(r.layers);
    us_free(r.layer_of);
    us_map_free(&r.by_key);
    if (s == US_OK) *out = r.st;
    else us_structure_free(r.st);
    return s;
}

void us_structure_free(us_structure *s) {
    if (!s) return;
    us_arena_free(&s->arena);
    us_free(s);
}

us_status us_expert_count_check(uint32_t E, uint32_t top_k, uint32_t n_group, uint32_t topk_group, us_group_rule rule, int64_t n, us_err *err) {
    const char *cls, *what;
    if (n < 1) cls = "not-positive", what = "a layer must keep at least one expert";
    else if (n > (int64_t)E) cls = "above-experts", what = "more experts than the source has";
    else if (n < (int64_t)top_k) cls = "below-top-k", what = "fewer experts than the router selects";
    else if (n_group > 1 && n % n_group) cls = "groups-divide", what = "the number is not a multiple of the number of groups";
    else if (n_group > 1 && rule == US_GROUP_TOP2_SUM && n / n_group < 2)
        cls = "group-too-small", what = "a group score is the sum of its two best experts, so a group needs two";
    else if (n_group > 1 && rule != US_GROUP_ONE_EACH && (int64_t)topk_group * (n / n_group) < (int64_t)top_k)
        cls = "topk-group", what = "the selected groups hold fewer experts than the router selects";
    else return US_OK;
    us_fail(err, US_E_REFUSED, cls, "%lld experts: %s", (long long)n, what);
    us_err_where(err, "%u experts, top-%u, %u groups of which %u are taken", E, top_k, n_group, topk_group);
    return US_E_REFUSED;
}

us_status us_structure_check_size(const us_structure *s, int64_t n, us_err *err) {
    uint32_t least = s->n_experts;
    for (size_t b = 0; b < s->n_blocks; b++)
        if (s->blocks[b].n_experts < least) least = s->blocks[b].n_experts;
    us_status st = us_expert_count_check(least, s->top_k, s->n_group, s->topk_group, s->group_rule, n, err);
    if (st == US_OK) return US_OK;
    us_buf legal = {0};
    for (uint32_t e = 1, shown = 0; e <= least && shown < 12; e++)
        if (us_expert_count_check(least, s->top_k, s->n_group, s->topk_group, s->group_rule, e, NULL) == US_OK) us_buf_printf(&legal, "%s%u", shown++ ? ", " : "", e);
    us_err_todo(err, "legal sizes: %s%s", us_buf_text(&legal), least > 12 ? " ... (understudy plan lists all)" : "");
    us_buf_free(&legal);
    return st;
}
