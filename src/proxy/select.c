/**
 * Selection of experts by any method, for every size from one order. See select.h. Tests: tests/unit/test_select.c, tests/prop/test_planted.c.
 */
#include "proxy/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "proxy/cluster.h"
#include "proxy/select_features.h"

static const char *const method_names[] = {"cluster", "reap-like", "frequency", "router-norm", "first", "random", "list"};

const char *us_select_method_name(us_select_method m) {
    return m >= 0 && m <= US_SELECT_LIST ? method_names[m] : "?";
}

bool us_select_method_parse(const char *text, us_select_method *out, const char **file) {
    *file = NULL;
    if (strncmp(text, "list:", 5) == 0 && text[5]) {
        *out = US_SELECT_LIST;
        *file = text + 5;
        return true;
    }
    for (int m = 0; m < US_SELECT_LIST; m++) {
        if (strcmp(text, method_names[m]) == 0) {
            *out = (us_select_method)m;
            return true;
        }
    }
    return false;
}

void us_selection_free(us_selection *s) {
    if (!s) return;
    for (size_t i = 0; s->keeps && i < s->n_sizes; i++) us_keep_free(&s->keeps[i]);
    us_free(s->keeps);
    us_merge_tree_free(&s->tree);
    for (size_t b = 0; s->blocks && b < s->n_blocks; b++) {
        us_select_block *x = &s->blocks[b];
        us_free(x->load);
        us_free(x->saliency);
        us_free(x->peak);
        us_free(x->score);
        us_free(x->protect);
        us_free(x->distance);
    }
    us_free(s->blocks);
    *s = (us_selection){0};
}

void us_select_nearest(const double *d, uint32_t n_experts, const uint32_t *ids, uint32_t n, uint32_t e, uint32_t *ranked) {
    for (uint32_t j = 0; j < n; j++) { /* insertion: distance, then old number; e itself before all */
        uint32_t id = ids[j], at = j;
        double v = id == e ? -1.0 : d[(size_t)e * n_experts + id];
        for (; at > 0; at--) {
            uint32_t other = ranked[at - 1];
            double w = other == e ? -1.0 : d[(size_t)e * n_experts + other];
            if (w < v || (!(v < w) && other < id)) break;
            ranked[at] = other;
        }
        ranked[at] = id;
    }
}

/* ---- one selection ---- */

typedef struct selecting {
    us__features f;
    const us_structure *s;
    const us_select_options *opt;
    us_selection out;
    uint32_t groups;
} selecting;

static bool is_active(const selecting *x, size_t block) {
    return !x->opt->active || x->opt->active[block];
}

static bool wants_auto(const us_select_options *o) {
    for (int i = 0; i < o->n_protect; i++) {
        if (strcmp(o->protect[i], "auto") == 0) return true;
    }
    return false;
}

static bool wants_sketch(const selecting *x, size_t block) {
    us_select_method m = x->opt->method;
    bool weighted = !x->opt->weights_given || x->opt->weight_sketch > 0;
    return (m == US_SELECT_CLUSTER && weighted) || m == US_SELECT_REAP_LIKE || wants_auto(x->opt) || (x->s->blocks[block].hash && weighted);
}

/* ---- protected experts ---- */

static us_status protect_one(us_select_block *b, uint32_t e, us_err *err) {
    if (!b->protect && !(b->protect = us_calloc(b->n_experts, sizeof *b->protect))) return us_fail_nomem(err, "protected experts");
    b->protect[e] = true;
    return US_OK;
}

static us_status bad_protect(us_err *err, const char *text, const char *why) {
    us_status st = us_fail(err, US_E_REFUSED, "protect", "--protect \"%s\": %s", text, why);
    us_err_todo(err, "write KEY:E[,E...] with the layer's key as in keep lists (* for all), or auto");
    return st;
}

static us_status protect_listed(selecting *x, const char *text, us_err *err) {
    us_str all = us_str_z(text);
    size_t colon = us_str_find(all, ':', 0);
    us_str key = us_str_sub(all, 0, colon);
    if (colon >= all.n) return bad_protect(err, text, "no colon");
    bool star = us_str_eqz(key, "*"), found = false;
    for (size_t b = 0; b < x->s->n_blocks; b++) {
        if (!star && !us_str_eqz(key, x->s->blocks[b].key)) continue;
        found = true;
        for (size_t at = colon + 1; at <= all.n;) {
            size_t end = us_str_find(all, ',', at);
            uint64_t e;
            if (!us_str_to_u64(us_str_sub(all, at, end), &e)) return bad_protect(err, text, "not a list of expert numbers");
            if (e >= x->s->blocks[b].n_experts) return bad_protect(err, text, "there is no such expert");
            US_TRY(protect_one(&x->out.blocks[b], (uint32_t)e, err));
            at = end + 1;
        }
    }
    return found ? US_OK : bad_protect(err, text, "there is no such MoE layer");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Experts whose largest output passes the 99.5th percentile of all and a tenth of the largest, in the first three quarters of the trunk. */
static us_status protect_loud(selecting *x, us_err *err) {
    size_t n = 0, at = 0;
    for (size_t b = 0; b < x->s->n_blocks; b++) n += x->out.blocks[b].peak ? x->out.blocks[b].n_experts : 0;
    if (!n) return us_fail(err, US_E_UNSUPPORTED, "select", "--protect auto needs the outputs of experts, and none can be read");
    double *all = us_malloc(n * sizeof *all);
    if (!all) return us_fail_nomem(err, "protected experts");
    for (size_t b = 0; b < x->s->n_blocks; b++) {
        const us_select_block *k = &x->out.blocks[b];
        for (uint32_t e = 0; k->peak && e < k->n_experts; e++) all[at++] = k->peak[e];
    }
    qsort(all, n, sizeof *all, ascending);
    double percentile = all[(size_t)(0.995 * (double)(n - 1))], tenth = 0.1 * all[n - 1];
    us_free(all);
    for (size_t b = 0; b < x->s->n_blocks; b++) {
        us_select_block *k = &x->out.blocks[b];
        if (x->s->blocks[b].mtp || (uint64_t)x->s->blocks[b].layer * 4 >= (uint64_t)x->s->n_layers * 3) continue;
        for (uint32_t e = 0; k->peak && e < k->n_experts; e++) {
            if (k->peak[e] > percentile && k->peak[e] > tenth) US_TRY(protect_one(k, e, err));
        }
    }
    return US_OK;
}

static us_status protect_all(selecting *x, us_err *err) {
    for (int i = 0; i < x->opt->n_protect; i++) {
        const char *text = x->opt->protect[i];
        US_TRY(strcmp(text, "auto") == 0 ? protect_loud(x, err) : protect_listed(x, text, err));
    }
    return US_OK;
}

/* Every group must have room for its protected experts, and one more for the rest. */
static us_status check_protected(const selecting *x, uint32_t size, us_err *err) {
    for (size_t b = 0; b < x->s->n_blocks; b++) {
        const us_select_block *k = &x->out.blocks[b];
        uint32_t each = k->n_experts / x->groups, room = size / x->groups;
        if (!k->protect || !is_active(x, b)) continue;
        for (uint32_t g = 0; g < x->groups; g++) {
            uint32_t count = 0;
            for (uint32_t e = g * each; e < (g + 1) * each; e++) count += k->protect[e];
            if (count < room || (count == room && count == each)) continue;
            us_status st = us_fail(err, US_E_REFUSED, "protect", "%u experts are protected, and of %u that stay one must speak for the others", count, room);
            us_err_where(err, "layer %s", x->s->blocks[b].key);
            us_err_todo(err, "protect fewer experts or keep more");
            return st;
        }
    }
    return US_OK;
}

/* ---- statistics ---- */

static us_status fill_sketch_statistics(selecting *x, size_t b, us_err *err) {
    us_select_block *k = &x->out.blocks[b];
    const us_sketch *q = &x->f.sketches[b];
    k->why_no_sketch = x->f.why[b];
    if (!q->phi) return US_OK;
    k->has_sketch = true;
    k->n_probes = q->n_probes;
    k->peak = us_malloc(q->n_experts * sizeof *k->peak);
    k->saliency = us_malloc(q->n_experts * sizeof *k->saliency);
    if (!k->peak || !k->saliency) return us_fail_nomem(err, "statistics of experts");
    for (uint32_t e = 0; e < q->n_experts; e++) k->peak[e] = (double)q->peak[e];
    x->out.bytes_read += q->bytes;
    x->out.flops += q->flops;
    return us__features_saliency(&x->f, b, k->saliency, err);
}

static us_status fill_load(selecting *x, size_t b, us_err *err) {
    const us_routing_block *r = x->f.routing.n_blocks ? &x->f.routing.blocks[b] : NULL;
    us_select_block *k = &x->out.blocks[b];
    if (!r || !r->count) return US_OK;
    uint64_t total = 0;
    for (uint32_t e = 0; e < r->n_experts; e++) total += r->count[e];
    k->load = us_calloc(r->n_experts ? r->n_experts : 1, sizeof *k->load);
    if (!k->load) return us_fail_nomem(err, "statistics of experts");
    for (uint32_t e = 0; e < r->n_experts && total; e++) k->load[e] = (double)r->count[e] / (double)total;
    k->has_routing = true;
    return US_OK;
}

static uint64_t expert_bytes(const selecting *x) {
    uint64_t n = 0;
    for (size_t i = 0; i < x->s->ck->n_tensors; i++) {
        const us_role *r = &x->s->roles[i];
        bool expert = r->kind == US_ROLE_EXPERT || (r->kind == US_ROLE_SLICE && r->desc);
        if (expert && r->block < x->s->n_blocks && is_active(x, r->block) && wants_sketch(x, r->block)) n += x->s->ck->tensors[i].bytes;
    }
    return n;
}

static us_status gather(selecting *x, us_err *err) {
    us_status st = US_OK;
    us_progress_begin(x->f.ctx, "sketching experts", "B", expert_bytes(x));
    for (size_t b = 0; b < x->s->n_blocks && st == US_OK; b++) {
        if (!is_active(x, b)) continue;
        st = us_ctx_check(x->f.ctx, err);
        if (st == US_OK && wants_sketch(x, b)) st = us__features_sketch(&x->f, b, err);
        if (st == US_OK) st = fill_sketch_statistics(x, b, err);
        if (st == US_OK) st = fill_load(x, b, err);
    }
    us_progress_end(x->f.ctx);
    return st;
}

/* ---- ranking methods ---- */

static us_status lacks(const selecting *x, size_t b, us_err *err, const char *what, const char *todo) {
    us_status st = us_fail(err, US_E_UNSUPPORTED, "select", "--select %s: %s", us_select_method_name(x->opt->method), what);
    us_err_where(err, "layer %s", x->s->blocks[b].key);
    us_err_todo(err, "%s", todo);
    return st;
}

static us_status score_by_router(selecting *x, size_t b, us_err *err) {
    bool known;
    US_TRY(us__features_router_norm(&x->f, b, x->out.blocks[b].score, &known, err));
    return known ? US_OK : lacks(x, b, err, "its router cannot be read as numbers", "choose another method");
}

static us_status score_block(selecting *x, size_t b, us_err *err) {
    us_select_block *k = &x->out.blocks[b];
    uint32_t n = k->n_experts, each = n / x->groups;
    if (!(k->score = us_calloc(n ? n : 1, sizeof *k->score))) return us_fail_nomem(err, "scores");
    switch (x->opt->method) {
    case US_SELECT_FREQUENCY:
        if (k->load) memcpy(k->score, k->load, n * sizeof *k->score);
        else if (x->s->blocks[b].mtp && x->f.routing.n_blocks) { /* dumps do not cover MTP */
            us_note(x->f.ctx, "select", "block %s has no routing data; its experts are ranked by router rows", x->s->blocks[b].key);
            return score_by_router(x, b, err);
        } else return lacks(x, b, err, "no routing data", "give --routing FILE");
        return US_OK;
    case US_SELECT_REAP_LIKE:
        if (!k->saliency) return lacks(x, b, err, k->why_no_sketch ? k->why_no_sketch : "experts cannot be run", "choose another method");
        memcpy(k->score, k->saliency, n * sizeof *k->score);
        return US_OK;
    case US_SELECT_ROUTER_NORM: return score_by_router(x, b, err);
    case US_SELECT_RANDOM:
        for (uint32_t g = 0; g < x->groups; g++) { /* the draw of us_keep_random */
            uint32_t *perm = us_malloc((each ? each : 1) * sizeof *perm);
            if (!perm) return us_fail_nomem(err, "drawing experts");
            us_rng_permutation(x->opt->seed, ((uint64_t)b << 32) | g, each, perm);
            for (uint32_t i = 0; i < each; i++) k->score[g * each + perm[i]] = (double)(each - i);
            us_free(perm);
        }
        return US_OK;
    default:
        for (uint32_t e = 0; e < n; e++) k->score[e] = (double)(each - e % each);
        return US_OK;
    }
}

static bool ranks_before(const us_select_block *k, uint32_t a, uint32_t b) {
    bool pa = k->protect && k->protect[a], pb = k->protect && k->protect[b];
    if (pa != pb) return pa;
    if (k->score[a] > k->score[b]) return true;
    return !(k->score[b] > k->score[a]) && a < b;
}

/* The best `room` of experts first .. first+each, ascending. */
static void keep_best(const us_select_block *k, uint32_t first, uint32_t each, uint32_t room, uint32_t *ids) {
    uint32_t kept = 0;
    for (uint32_t e = first; e < first + each; e++) {
        uint32_t better = 0;
        for (uint32_t o = first; o < first + each; o++) better += o != e && ranks_before(k, o, e);
        if (better < room) ids[kept++] = e;
    }
}

static us_status rank_block(selecting *x, size_t b, us_err *err) {
    US_TRY(score_block(x, b, err));
    const us_select_block *k = &x->out.blocks[b];
    uint32_t each = k->n_experts / x->groups;
    for (size_t i = 0; i < x->out.n_sizes; i++) {
        us_keep *keep = &x->out.keeps[i];
        uint32_t room = keep->n / x->groups;
        for (uint32_t g = 0; g < x->groups; g++) keep_best(k, g * each, each, room, us_keep_ids(keep, b) + g * room);
    }
    return US_OK;
}

/* ---- clusters ---- */

/* Survivors of a group's first merges, ascending, as the lists of every size. */
static void keep_survivors(selecting *x, size_t b, uint32_t g, uint32_t each, const us_merge *merges, bool *gone) {
    for (size_t i = 0; i < x->out.n_sizes; i++) {
        us_keep *keep = &x->out.keeps[i];
        uint32_t room = keep->n / x->groups, *ids = us_keep_ids(keep, b) + g * room, kept = 0;
        memset(gone, 0, each * sizeof *gone);
        for (uint32_t m = 0; m < each - room; m++) gone[merges[m].b - g * each] = true;
        for (uint32_t e = 0; e < each && kept < room; e++) {
            if (!gone[e]) ids[kept++] = g * each + e;
        }
    }
}

static us_status cluster_groups(selecting *x, size_t b, const double *d, us_merge *merges, uint32_t *count, bool *gone, us_err *err) {
    const us_select_block *k = &x->out.blocks[b];
    const us_select_options *o = x->opt;
    uint32_t n = k->n_experts, each = n / x->groups;
    us_cluster_input in = {.d = d, .stride = n, .n = each, .load = k->load, .saliency = k->saliency, .lambda = o->saliency_weight, .protect = k->protect,
                           .cap = o->cap > 0 ? o->cap : 2.0};
    for (uint32_t g = 0; g < x->groups; g++) {
        in.first = g * each;
        US_TRY(us_cluster(&in, merges + (size_t)g * each, &count[g], err));
        keep_survivors(x, b, g, each, merges + (size_t)g * each, gone);
    }
    /* The tree takes the groups' merges in turn, so that a prefix of it is a size. */
    struct us_merge_list *list = &x->out.tree.blocks[b];
    for (uint32_t t = 0; t < each; t++) {
        for (uint32_t g = 0; g < x->groups; g++) {
            if (t < count[g]) list->merges[list->n++] = merges[(size_t)g * each + t];
        }
    }
    return US_OK;
}

static us_status cluster_block(selecting *x, size_t b, const double *d, us_err *err) {
    size_t n = x->out.blocks[b].n_experts;
    us_merge *merges = us_calloc(n + 1, sizeof *merges);
    uint32_t *count = us_calloc(x->groups, sizeof *count);
    bool *gone = us_calloc(n + 1, sizeof *gone);
    us_status st = merges && count && gone ? cluster_groups(x, b, d, merges, count, gone, err) : us_fail_nomem(err, "clustering experts");
    us_free(merges);
    us_free(count);
    us_free(gone);
    return st;
}

/* ---- frame ---- */

static us_status select_block(selecting *x, size_t b, us_err *err) {
    us_select_block *k = &x->out.blocks[b];
    bool cluster = x->opt->method == US_SELECT_CLUSTER, table = x->s->blocks[b].hash;
    double *d = NULL;
    us_status st = US_OK;
    if (cluster || table) {
        size_t cells, n = k->n_experts;
        if (!us_mul_size(n, n, &cells) || !(d = us_calloc(cells + 1, sizeof *d))) return us_fail_nomem(err, "distances");
        st = us__features_distance(&x->f, b, d, k, err);
    }
    if (st == US_OK && cluster) st = cluster_block(x, b, d, err);
    if (st == US_OK && !cluster && x->opt->method != US_SELECT_LIST) st = rank_block(x, b, err);
    if (st == US_OK && table) {
        k->distance = d;
        d = NULL;
    }
    us_free(d);
    return st;
}

static us_status read_lists(selecting *x, const uint32_t *sizes, us_err *err) {
    for (size_t i = 0; i < x->out.n_sizes; i++) {
        us_keep_free(&x->out.keeps[i]);
        US_TRY(us_keep_read(x->s, x->opt->list, sizes[i], x->opt->active, &x->out.keeps[i], err));
    }
    return US_OK;
}

static us_status create(selecting *x, const uint32_t *sizes, size_t n, us_err *err) {
    us_selection *o = &x->out;
    o->keeps = us_calloc(n ? n : 1, sizeof *o->keeps);
    o->blocks = us_calloc(x->s->n_blocks ? x->s->n_blocks : 1, sizeof *o->blocks);
    if (!o->keeps || !o->blocks) return us_fail_nomem(err, "selecting experts");
    o->n_sizes = n;
    o->n_blocks = x->s->n_blocks;
    for (size_t b = 0; b < o->n_blocks; b++) o->blocks[b].n_experts = x->s->blocks[b].n_experts;
    US_TRY(us_merge_tree_create(x->s, &o->tree, err));
    for (size_t i = 0; i < n; i++) {
        US_TRY(us_structure_check_size(x->s, sizes[i], err));
        for (size_t b = 0; b < o->n_blocks; b++) {
            if (is_active(x, b) && sizes[i] > o->blocks[b].n_experts) return us_fail(err, US_E_REFUSED, "above-experts", "layer %s has fewer experts", x->s->blocks[b].key);
        }
        US_TRY(us_keep_create(x->s, sizes[i], &o->keeps[i], err));
    }
    return US_OK;
}

static us_status check_options(const us_select_options *o, us_err *err) {
    double w[4] = {o->weight_sketch, o->weight_router, o->weight_coactivation, o->saliency_weight};
    for (int i = 0; i < 4; i++) {
        if (!(w[i] >= 0 && w[i] <= 1e6)) return us_fail(err, US_E_INVAL, "select", "weights of features are numbers from 0 on");
    }
    if (o->sketch_dims % 32 || o->sketch_dims > 4096) return us_fail(err, US_E_INVAL, "select", "the length of sketches is a multiple of 32 up to 4096");
    if (!(o->cap >= 0)) return us_fail(err, US_E_INVAL, "select", "the cap on clusters is a number from 0 on");
    if (o->method == US_SELECT_LIST && !o->list) return us_fail(err, US_E_INVAL, "select", "no list file");
    return US_OK;
}

us_status us_select(us_ctx *ctx, const us_structure *s, const us_select_options *opt, const uint32_t *sizes, size_t n_sizes, us_selection *out, us_err *err) {
    selecting x = {.s = s, .opt = opt, .groups = s->n_group ? s->n_group : 1};
    US_TRY(check_options(opt, err));
    us_status st = create(&x, sizes, n_sizes, err);
    if (st == US_OK) st = us__features_create(ctx, s, opt, &x.f, err);
    bool features = st == US_OK;
    if (features) {
        x.out.tokens = x.f.routing.tokens;
        x.out.filler = x.f.routing.filler;
        st = gather(&x, err);
        if (st == US_OK) st = protect_all(&x, err);
        for (size_t i = 0; i < n_sizes && st == US_OK; i++) st = check_protected(&x, sizes[i], err);
        if (st == US_OK && opt->method == US_SELECT_LIST) st = read_lists(&x, sizes, err);
        for (size_t b = 0; b < s->n_blocks && st == US_OK; b++) {
            if (is_active(&x, b)) st = select_block(&x, b, err);
        }
        us__features_free(&x.f);
    }
    if (st != US_OK) {
        us_selection_free(&x.out);
        return st;
    }
    *out = x.out;
    return US_OK;
}

us_status us_select_distances(us_ctx *ctx, const us_structure *s, const us_select_options *opt, size_t block, double *d, us_err *err) {
    us_select_options o = *opt;
    o.method = US_SELECT_CLUSTER; /* wants co-activation too */
    us__features f = {0};
    us_select_block used = {0};
    US_TRY(check_options(&o, err));
    US_TRY(us__features_create(ctx, s, &o, &f, err));
    us_status st = !o.weights_given || o.weight_sketch > 0 ? us__features_sketch(&f, block, err) : US_OK;
    if (st == US_OK) st = us__features_distance(&f, block, d, &used, err);
    us__features_free(&f);
    return st;
}
