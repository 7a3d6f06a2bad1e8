/** Which layers stay and how names change. The edits of config.json are in layer_edits.c. Tests: tests/e2e/test_proxy.c. */
#include "proxy/layers.h"

#include <stdlib.h>
#include <string.h>

/* "model.layers." of the first trunk block; empty when the family names its layers otherwise. */
static us_str trunk_base(const us_structure *s) {
    for (size_t b = 0; b < s->n_blocks; b++) {
        const char *p = s->blocks[b].mtp ? NULL : strstr(s->blocks[b].prefix, "layers.");
        if (p) return (us_str){s->blocks[b].prefix, (size_t)(p - s->blocks[b].prefix) + strlen("layers.")};
    }
    return (us_str){"", 0};
}

static us_status bad_list(us_err *err, const char *text, const char *why) {
    us_status st = us_fail(err, US_E_REFUSED, "layers-list", "%s", why);
    us_err_where(err, "--layers %s", text);
    us_err_todo(err, "give a number of layers, or old numbers in ascending order such as 0,1,5-7");
    return st;
}

static bool number(const char **p, uint32_t *out) {
    uint64_t v = 0;
    if (**p < '0' || **p > '9') return false;
    for (; **p >= '0' && **p <= '9'; ++*p) {
        v = v * 10 + (uint64_t)(**p - '0');
        if (v > UINT32_MAX / 2) return false;
    }
    *out = (uint32_t)v;
    return true;
}

/* "0,1,5-7" into kept; a bare "N" is 0 .. N-1. */
static us_status parse_list(us_layer_cut *c, const char *text, us_err *err) {
    const char *p = text;
    bool list = strpbrk(text, ",-") != NULL;
    while (*p) {
        uint32_t a, b;
        if (!number(&p, &a)) return bad_list(err, text, "no list of layers");
        b = a;
        if (*p == '-') {
            p++;
            if (!number(&p, &b)) return bad_list(err, text, "no list of layers");
        }
        if (*p == ',') p++;
        else if (*p) return bad_list(err, text, "no list of layers");
        if (!list) { /* a count */
            if (a == 0 || a > c->n_old) return bad_list(err, text, "no such number of layers");
            b = a - 1;
            a = 0;
        }
        if (b < a || b >= c->n_old) return bad_list(err, text, "a layer that does not exist");
        for (; a <= b; a++) {
            if (c->n_new && c->kept[c->n_new - 1] >= a) return bad_list(err, text, "layers are not in ascending order");
            c->kept[c->n_new++] = a;
        }
    }
    return c->n_new ? US_OK : bad_list(err, text, "no list of layers");
}

us_status us_layer_cut_create(const us_structure *s, const char *layers, bool drop_mtp, us_layer_cut *out, us_err *err) {
    us_layer_cut c = {.drop_mtp = drop_mtp, .n_old = s->n_layers, .base = trunk_base(s)};
    us_status st = US_OK;
    c.to_new = us_malloc((c.n_old + (size_t)1) * sizeof *c.to_new);
    c.kept = us_malloc((c.n_old + (size_t)1) * sizeof *c.kept);
    if (!c.to_new || !c.kept) {
        st = us_fail_nomem(err, "cutting layers");
    } else if (layers) {
        st = c.base.n ? parse_list(&c, layers, err) : us_fail(err, US_E_UNSUPPORTED, "layers-unsupported", "layers of this family cannot be cut");
    } else {
        for (uint32_t i = 0; i < c.n_old; i++) c.kept[c.n_new++] = i;
    }
    if (st != US_OK) {
        us_layer_cut_free(&c);
        return st;
    }
    c.cut = c.n_new < c.n_old;
    for (uint32_t i = 0; i < c.n_old; i++) c.to_new[i] = US_LAYER_GONE;
    for (uint32_t i = 0; i < c.n_new; i++) c.to_new[c.kept[i]] = i;
    *out = c;
    return US_OK;
}

void us_layer_cut_free(us_layer_cut *c) {
    if (!c) return;
    us_free(c->to_new);
    us_free(c->kept);
    *c = (us_layer_cut){0};
}

bool us_layer_number(const us_layer_cut *c, us_str name, uint32_t *layer, size_t *from, size_t *to) {
    if (!c->base.n || !us_str_starts(name, c->base)) return false;
    size_t i = c->base.n;
    uint64_t v = 0;
    while (i < name.n && name.p[i] >= '0' && name.p[i] <= '9' && i < c->base.n + 9) v = v * 10 + (uint64_t)(name.p[i++] - '0');
    if (i == c->base.n || (i < name.n && name.p[i] != '.')) return false;
    *layer = (uint32_t)v;
    *from = c->base.n;
    *to = i;
    return true;
}

bool us_layer_is_mtp(const us_structure *s, const us_layer_cut *c, uint32_t tensor) {
    us_str name = s->ck->tensors[tensor].name;
    uint32_t layer;
    size_t from, to;
    if (s->roles[tensor].in_mtp || s->roles[tensor].part == US_PART_MTP) return true;
    if (s->roles[tensor].block != UINT32_MAX && s->blocks[s->roles[tensor].block].mtp) return true;
    if (us_str_starts(name, US_LIT("mtp.")) || us_str_starts(name, US_LIT("model.mtp."))) return true;
    return us_layer_number(c, name, &layer, &from, &to) && layer >= c->n_old;
}

bool us_layer_rename(const us_layer_cut *c, us_str name, us_buf *out) {
    uint32_t layer;
    size_t from, to;
    if (!us_layer_number(c, name, &layer, &from, &to)) {
        us_buf_str(out, name);
        return true;
    }
    if (layer < c->n_old && c->to_new[layer] == US_LAYER_GONE) return false;
    uint32_t to_layer = layer < c->n_old ? c->to_new[layer] : layer - c->n_old + c->n_new; /* MTP layers are numbered on */
    us_buf_str(out, us_str_sub(name, 0, from));
    us_buf_printf(out, "%u", to_layer);
    us_buf_str(out, us_str_sub(name, to, name.n));
    return true;
}
