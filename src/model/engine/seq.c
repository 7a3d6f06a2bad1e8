/* Sequence states: pages that forks share until one of them writes, growing rows, recurrent states. */
#include <string.h>

#include "model/engine/internal.h"

/* Sizes of one layer's fixed parts, in floats. */
typedef struct fixed {
    size_t state, tail, pending, index_pending;
} fixed;

static size_t pending_floats(const us_layer_recipe *lr, const us_eng_compressor *c) {
    size_t width = lr->compress_sparse ? 2 * (size_t)c->dim : c->dim;
    return 2 * (size_t)lr->compress * 2 * width;
}

static fixed fixed_of(const us_engine *e, uint32_t l) {
    const us_recipe *r = &e->r;
    const us_layer_recipe *lr = &r->layers[l];
    size_t w = r->conv_width ? r->conv_width - 1 : 0;
    fixed f = {0};
    switch (lr->mixer) {
    case US_MIX_GDN:
        f.state = (size_t)r->value_heads * r->key_dim * r->value_dim;
        f.tail = w * (2 * (size_t)r->key_heads * r->key_dim + (size_t)r->value_heads * r->value_dim);
        break;
    case US_MIX_KDA:
        f.state = (size_t)r->key_heads * r->key_dim * r->key_dim;
        f.tail = w * 3 * r->key_heads * r->key_dim;
        break;
    case US_MIX_MAMBA2:
        f.state = (size_t)r->mamba_heads * r->mamba_dim * r->mamba_state;
        f.tail = w * ((size_t)r->mamba_heads * r->mamba_dim + 2 * (size_t)r->mamba_groups * r->mamba_state);
        break;
    case US_MIX_V4:
        if (lr->compress) f.pending = pending_floats(lr, &e->layers[l].v4.own);
        if (lr->compress_sparse) f.index_pending = pending_floats(lr, &e->layers[l].v4.index);
        break;
    default: break;
    }
    return f;
}

bool us_eng_recurrent(const us_engine *e) {
    for (uint32_t l = 0; l < e->r.L; l++) {
        us_mixer m = e->r.layers[l].mixer;
        if (m == US_MIX_GDN || m == US_MIX_KDA || m == US_MIX_MAMBA2 || (m == US_MIX_V4 && e->r.layers[l].compress)) return true;
    }
    return false;
}

static bool copy_floats(float **to, const float *from, size_t n) {
    if (!n) return true;
    *to = us_calloc(n, sizeof **to);
    if (*to && from) memcpy(*to, from, n * sizeof **to);
    return *to != NULL;
}

static bool make_fixed(const us_engine *e, uint32_t l, us_eng_state *st, const us_eng_state *from) {
    fixed f = fixed_of(e, l);
    return copy_floats(&st->state, from ? from->state : NULL, f.state) && copy_floats(&st->tail, from ? from->tail : NULL, f.tail) &&
           copy_floats(&st->pending, from ? from->pending : NULL, f.pending) &&
           copy_floats(&st->index_pending, from ? from->index_pending : NULL, f.index_pending);
}

us_status us_seq_create(us_engine *e, us_seq **out, us_err *err) {
    us_seq *s = us_calloc(1, sizeof *s);
    if (!s) return us_fail_nomem(err, "starting a sequence");
    s->e = e;
    s->layers = us_calloc(e->r.L, sizeof *s->layers);
    bool ok = s->layers != NULL;
    for (uint32_t l = 0; ok && l < e->r.L; l++) ok = make_fixed(e, l, &s->layers[l], NULL);
    e->n_seqs++;
    if (!ok) {
        us_seq_free(s);
        return us_fail_nomem(err, "starting a sequence");
    }
    *out = s;
    return US_OK;
}

static void release(us_page *p) {
    if (!p || --p->refs) return;
    us_free(p->data);
    us_free(p);
}

static void release_from(us_page **pages, size_t *n, size_t keep) {
    for (size_t i = keep; i < *n; i++) release(pages[i]);
    if (*n > keep) *n = keep;
}

void us_seq_free(us_seq *s) {
    if (!s) return;
    for (uint32_t l = 0; s->layers && l < s->e->r.L; l++) {
        us_eng_state *st = &s->layers[l];
        release_from(st->pages, &st->n_pages, 0);
        release_from(st->pages2, &st->n_pages2, 0);
        us_free(st->pages);
        us_free(st->pages2);
        us_free(st->rows);
        us_free(st->state);
        us_free(st->tail);
        us_free(st->entries);
        us_free(st->index_entries);
        us_free(st->pending);
        us_free(st->index_pending);
    }
    s->e->n_seqs--;
    us_free(s->layers);
    us_free(s);
}

static bool share(us_page ***to, size_t *n, size_t *cap, us_page *const *from, size_t count) {
    if (!us_grow(to, cap, count, sizeof **to)) return false;
    for (size_t i = 0; i < count; i++) {
        (*to)[i] = from[i];
        if (from[i]) from[i]->refs++;
    }
    *n = count;
    return true;
}

static bool copy_grown(float **to, size_t *cap, const float *from, size_t n) {
    if (!copy_floats(to, from, n)) return false;
    *cap = n;
    return true;
}

us_status us_seq_fork(const us_seq *s, us_seq **out, us_err *err) {
    us_engine *e = s->e;
    if (s->broken) return us_fail(err, US_E_REFUSED, "broken", "the sequence is unusable after a failure");
    us_seq *c = us_calloc(1, sizeof *c);
    if (!c) return us_fail_nomem(err, "forking a sequence");
    c->e = e;
    c->n = s->n;
    c->layers = us_calloc(e->r.L, sizeof *c->layers);
    e->n_seqs++;
    bool ok = c->layers != NULL;
    for (uint32_t l = 0; ok && l < e->r.L; l++) {
        const us_eng_state *a = &s->layers[l];
        us_eng_state *b = &c->layers[l];
        ok = make_fixed(e, l, b, a) && share(&b->pages, &b->n_pages, &b->cap_pages, a->pages, a->n_pages) &&
             share(&b->pages2, &b->n_pages2, &b->cap_pages2, a->pages2, a->n_pages2) && copy_grown(&b->rows, &b->cap_rows, a->rows, a->cap_rows) &&
             copy_grown(&b->entries, &b->cap_entries, a->entries, a->cap_entries) &&
             copy_grown(&b->index_entries, &b->cap_index_entries, a->index_entries, a->cap_index_entries);
    }
    if (!ok) {
        us_seq_free(c);
        return us_fail_nomem(err, "forking a sequence");
    }
    *out = c;
    return US_OK;
}

us_status us_seq_truncate(us_seq *s, size_t n, us_err *err) {
    if (n > s->n) return us_fail(err, US_E_INVAL, "length", "a sequence of %zu tokens cannot be cut to %zu", s->n, n);
    if (n == s->n) return US_OK;
    bool recurrent = us_eng_recurrent(s->e);
    if (recurrent && n) return us_fail(err, US_E_REFUSED, "recurrent", "a model with recurrent layers cannot go back to token %zu: fork the sequence there first", n);
    size_t pages = (n + US_KV_PAGE - 1) / US_KV_PAGE;
    for (uint32_t l = 0; l < s->e->r.L; l++) {
        us_eng_state *st = &s->layers[l];
        fixed f = fixed_of(s->e, l);
        release_from(st->pages, &st->n_pages, pages);
        release_from(st->pages2, &st->n_pages2, pages);
        if (f.state) memset(st->state, 0, f.state * sizeof *st->state);
        if (f.tail) memset(st->tail, 0, f.tail * sizeof *st->tail);
    }
    s->n = n;
    s->broken = false;
    return US_OK;
}

size_t us_seq_length(const us_seq *s) {
    return s->n;
}

size_t us_seq_bytes(const us_seq *s) {
    size_t bytes = 0;
    for (uint32_t l = 0; l < s->e->r.L; l++) {
        const us_eng_state *st = &s->layers[l];
        fixed f = fixed_of(s->e, l);
        bytes += (st->n_pages + st->n_pages2) * us_kv_page_bytes(&s->e->layers[l].kv);
        bytes += (st->cap_rows + st->cap_entries + st->cap_index_entries + f.state + f.tail + f.pending + f.index_pending) * sizeof(float);
    }
    return bytes;
}

static us_page *page_create(size_t bytes, const us_page *from) {
    us_page *p = us_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->refs = 1;
    p->data = us_malloc_aligned(bytes);
    if (!p->data) {
        us_free(p);
        return NULL;
    }
    if (from) memcpy(p->data, from->data, bytes);
    else memset(p->data, 0, bytes);
    return p;
}

us_status us_eng_pages(const us_kv_layout *kv, us_page ***pages, size_t *n_pages, size_t *cap, size_t from, size_t n, us_err *err) {
    size_t bytes = us_kv_page_bytes(kv), need = (n + US_KV_PAGE - 1) / US_KV_PAGE, first = from / US_KV_PAGE;
    if (!bytes || !us_grow(pages, cap, need ? need : 1, sizeof **pages)) return us_fail_nomem(err, "keeping keys and values");
    for (size_t i = first; i < need; i++) {
        us_page *old = i < *n_pages ? (*pages)[i] : NULL;
        if (old && old->refs == 1) continue;
        us_page *p = page_create(bytes, old);
        if (!p) return us_fail_nomem(err, "keeping keys and values");
        release(old);
        (*pages)[i] = p;
        if (i >= *n_pages) *n_pages = i + 1;
    }
    return US_OK;
}

us_status us_eng_rows(float **rows, size_t *cap, size_t need, us_err *err) {
    return us_grow(rows, cap, need ? need : 1, sizeof **rows) ? US_OK : us_fail_nomem(err, "keeping a sequence");
}
