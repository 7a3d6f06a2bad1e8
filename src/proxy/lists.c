/** Keep lists for a request. Header: lists.h. */
#include "proxy/lists.h"

#include <string.h>

static us_status bad_method(us_err *err, const char *text) {
    us_status st = us_fail(err, US_E_REFUSED, "select", "no such selection");
    us_err_where(err, "--select %s", text);
    us_err_todo(err, "one of cluster, reap-like, frequency, router-norm, first, random, list:FILE");
    return st;
}

static us_status simple_list(const us_structure *s, us_select_method m, const char *file, uint64_t seed, uint32_t size, const bool *active, us_keep *out,
                             us_err *err) {
    if (m == US_SELECT_LIST) return us_keep_read(s, file, size, active, out, err);
    if (m == US_SELECT_FIRST) return us_keep_first(s, size, out, err);
    return us_keep_random(s, seed, size, out, err);
}

us_status us_lists_choose(us_ctx *ctx, const us_structure *s, const us_proxy_request *r, const uint32_t *sizes, size_t n, const bool *active, us_lists *out,
                          us_err *err) {
    us_select_method m;
    us_lists l = {.n = n};
    const char *text = r->select ? r->select : "cluster";
    if (!us_select_method_parse(text, &m, &l.file)) return bad_method(err, text);
    l.method = us_select_method_name(m);
    if (r->dry_run && (m == US_SELECT_CLUSTER || m == US_SELECT_REAP_LIKE || m == US_SELECT_ROUTER_NORM)) {
        /* Sizes and files do not depend on which experts stay, and a dry run must not read the weights (requirement 20). */
        us_note(ctx, "note-dry-run", "a dry run reads no weights: sizes and files are those of the real run, which experts stay is decided then (--select %s)", l.method);
        m = US_SELECT_FIRST;
    }
    if (m < US_SELECT_FIRST || ((r->n_protect || r->n_routing) && m != US_SELECT_LIST)) { /* dumps give a baseline its loads (case T06) */
        us_select_options o = {.method = m, .routing = r->routing, .n_routing = r->n_routing, .protect = r->protect, .n_protect = r->n_protect,
                               .seed = us_ctx_seed(ctx), .active = active};
        US_TRY(us_select(ctx, s, &o, sizes, n, &l.selection, err));
        l.keeps = l.selection.keeps;
        *out = l;
        out->tree = &out->selection.tree;
        return US_OK;
    }
    if (r->n_routing || r->n_protect) us_note(ctx, "note-unused", "--%s has no meaning with --select %s", r->n_routing ? "routing" : "protect", l.method);
    l.keeps = us_calloc(n, sizeof *l.keeps);
    if (!l.keeps) return us_fail_nomem(err, "choosing experts");
    us_status st = US_OK;
    for (size_t i = 0; i < n && st == US_OK; i++) st = simple_list(s, m, l.file, us_ctx_seed(ctx), sizes[i], active, &l.keeps[i], err);
    if (st != US_OK) {
        us_lists_free(&l);
        return st;
    }
    *out = l;
    return US_OK;
}

void us_lists_free(us_lists *l) {
    if (l->selection.keeps) {
        us_selection_free(&l->selection);
        *l = (us_lists){0};
        return;
    }
    for (size_t i = 0; l->keeps && i < l->n; i++) us_keep_free(&l->keeps[i]);
    us_free(l->keeps);
    *l = (us_lists){0};
}
