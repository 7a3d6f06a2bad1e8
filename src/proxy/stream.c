#define _POSIX_C_SOURCE 200809L
/** Streams of planned tensors: whole, sliced along an axis, token tables. Header: stream.h. */
#include "proxy/stream.h"

#include <fcntl.h>
#include <string.h>

us_status us_stream_create(const us_plan *p, const us_table_map *tables, size_t buffer_bytes, us_stream *out, us_err *err) {
    us_stream s = {.p = p, .tables = tables, .buffer_bytes = buffer_bytes};
    enum { PAGE = 4096 };
    s.raw = us_malloc_aligned(buffer_bytes + PAGE);
    s.window = us_malloc_aligned(buffer_bytes);
    if (!s.raw || !s.window) {
        us_stream_free(&s);
        return us_fail_nomem(err, "copying tensors");
    }
    s.buffer = s.raw + (PAGE - (uintptr_t)s.raw % PAGE) % PAGE;
    *out = s;
    return US_OK;
}

void us_stream_free(us_stream *s) {
    us_free(s->raw);
    us_free(s->window);
    *s = (us_stream){0};
}

/* What is being filled: the buffer goes to the sink whenever it is full. */
typedef struct filling {
    us_stream *s;
    us_stream_sink sink;
    void *user;
    size_t from, n; /* filled from .. n */
} filling;

static us_status flush(filling *f, us_err *err) {
    size_t from = f->from, n = f->n;
    f->from = f->n = 0;
    return n > from ? f->sink(f->user, f->s->buffer + from, n - from, err) : US_OK;
}

static const us_ck_tensor *source(const us_stream *s, const us_plan_tensor *t) {
    return &s->p->s->ck->tensors[t->src];
}

/* Ask the kernel for what comes next, so that it is there when this piece has been hashed. */
static void will_need(const us_checkpoint *ck, const us_ck_tensor *t, uint64_t from, uint64_t n) {
    if (n > 65536) (void)posix_fadvise(ck->shards[t->shard].file.fd, (off_t)(t->offset + from), (off_t)n, POSIX_FADV_WILLNEED);
}

static us_status put_range(filling *f, const us_ck_tensor *t, uint64_t from, uint64_t n, us_err *err) {
    const us_checkpoint *ck = f->s->p->s->ck;
    while (n) {
        size_t room = f->s->buffer_bytes - f->n;
        if (!room) {
            US_TRY(flush(f, err));
            room = f->s->buffer_bytes;
        }
        size_t k = n < room ? (size_t)n : room;
        will_need(ck, t, from + k, n - k < f->s->buffer_bytes ? n - k : f->s->buffer_bytes);
        US_TRY(us_ck_read(ck, t, from, f->s->buffer + f->n, k, err));
        f->n += k;
        from += k;
        n -= k;
    }
    return US_OK;
}

static us_status put_bytes(filling *f, const unsigned char *p, size_t n, us_err *err) {
    while (n) {
        size_t room = f->s->buffer_bytes - f->n, k = n < room ? n : room;
        memcpy(f->s->buffer + f->n, p, k);
        f->n += k;
        p += k;
        n -= k;
        if (f->n == f->s->buffer_bytes) US_TRY(flush(f, err));
    }
    return US_OK;
}

/* Source row of output row j: kept experts first, then what lies behind the experts (zero experts, skip class). */
static uint64_t source_row(const us_plan *p, uint32_t block, uint64_t j) {
    uint32_t n = p->keep->n;
    return j < n ? us_keep_ids(p->keep, block)[j] : p->s->blocks[block].n_experts + (j - n);
}

static us_status put_slice(filling *f, const us_plan_tensor *t, us_err *err) {
    const us_ck_tensor *src = source(f->s, t);
    const us_plan *p = f->s->p;
    uint64_t rows_in = src->shape[t->axis], rows_out = t->shape[t->axis], outer = 1, bits = us_dtype_bits(src->dtype);
    for (int i = 0; i < t->axis; i++) outer *= src->shape[i];
    for (int i = t->axis + 1; i < src->rank; i++) bits *= src->shape[i];
    uint64_t inner = bits / 8, slab = inner * rows_in;
    if (!inner || !outer) return US_OK;
    uint64_t slabs_fit = slab ? f->s->buffer_bytes / slab : 0;
    for (uint64_t o = 0; o < outer;) {
        if (!slabs_fit || inner > 65536) { /* long rows: straight from the file, runs of neighbours at once */
            for (uint64_t j = 0; j < rows_out;) {
                uint64_t row = source_row(p, t->block, j), k = 1;
                while (j + k < rows_out && source_row(p, t->block, j + k) == row + k) k++;
                US_TRY(put_range(f, src, o * slab + row * inner, k * inner, err));
                j += k;
            }
            o++;
            continue;
        }
        uint64_t k = outer - o < slabs_fit ? outer - o : slabs_fit;
        US_TRY(us_ck_read(p->s->ck, src, o * slab, f->s->window, (size_t)(k * slab), err));
        for (uint64_t i = 0; i < k; i++) {
            for (uint64_t j = 0; j < rows_out; j++)
                US_TRY(put_bytes(f, f->s->window + i * slab + source_row(p, t->block, j) * inner, (size_t)inner, err));
        }
        o += k;
    }
    return US_OK;
}

/* ---- token tables ---- */

static uint64_t load_id(const unsigned char *p, size_t width) {
    uint64_t v = 0;
    for (size_t i = 0; i < width; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static void store_id(unsigned char *p, size_t width, uint64_t v) {
    for (size_t i = 0; i < width; i++) p[i] = (unsigned char)(v >> (8 * i));
}

/* One row: kept experts get their new numbers, each dropped one the nearest kept one that the row has not got. */
static us_status rewrite_row(us_stream *s, const us_plan_tensor *t, unsigned char *row, size_t k, size_t width, us_err *err) {
    const us_plan *p = s->p;
    uint32_t n = p->keep->n, e_max = p->s->blocks[t->block].n_experts;
    const uint32_t *rank = s->tables->rank[t->block];
    bool changed = false;
    for (size_t i = 0; i < k; i++) {
        uint64_t old = load_id(row + i * width, width);
        if (old >= e_max) return us_fail(err, US_E_FORMAT, "layout", "the token table names expert %llu, the layer has %u", (unsigned long long)old, e_max);
    }
    for (int pass = 0; pass < 2; pass++) { /* kept ones first, so that they are never displaced */
        for (size_t i = 0; i < k; i++) {
            uint64_t old = load_id(row + i * width, width);
            if (old & (UINT64_C(1) << 31)) continue; /* done in the first pass: marked below */
            const uint32_t *r = rank + old * n;
            bool kept = us_keep_ids(p->keep, t->block)[r[0]] == old;
            if (kept != (pass == 0)) continue;
            uint32_t to = r[0];
            for (uint32_t c = 0; !kept && c < n; c++) {
                bool used = false;
                for (size_t j = 0; j < k; j++) used |= load_id(row + j * width, width) == (r[c] | (UINT64_C(1) << 31));
                to = r[c];
                if (!used) break;
            }
            changed |= !kept;
            store_id(row + i * width, width, to | (UINT64_C(1) << 31));
        }
    }
    for (size_t i = 0; i < k; i++) store_id(row + i * width, width, load_id(row + i * width, width) & ~(UINT64_C(1) << 31));
    s->rows_changed += changed;
    return US_OK;
}

static us_status put_table(filling *f, const us_plan_tensor *t, us_err *err) {
    const us_ck_tensor *src = source(f->s, t);
    us_dtype d = src->dtype;
    size_t width = us_dtype_bits(d) / 8;
    bool fits = src->rank == 2 && (d == US_DTYPE_I64 || d == US_DTYPE_I32 || d == US_DTYPE_U32 || d == US_DTYPE_U64);
    uint64_t row = fits ? src->shape[1] * width : 0;
    if (!fits || row > f->s->buffer_bytes) return us_fail(err, US_E_UNSUPPORTED, "layout", "a token table must be [vocabulary, k] of 32 or 64 bit integers");
    if (!row) return US_OK;
    if (src->shape[1] > f->s->p->keep->n) return us_fail(err, US_E_REFUSED, "below-top-k", "the token table needs %llu different experts", (unsigned long long)src->shape[1]);
    uint64_t step = f->s->buffer_bytes / row;
    for (uint64_t i = 0; i < src->shape[0]; i += step) {
        uint64_t k = src->shape[0] - i < step ? src->shape[0] - i : step;
        US_TRY(us_ck_read(f->s->p->s->ck, src, i * row, f->s->window, (size_t)(k * row), err));
        for (uint64_t j = 0; j < k; j++) US_TRY(rewrite_row(f->s, t, f->s->window + j * row, (size_t)src->shape[1], width, err));
        US_TRY(put_bytes(f, f->s->window, (size_t)(k * row), err));
    }
    return US_OK;
}

us_status us_stream_run(us_stream *s, const us_plan_tensor *t, size_t phase, us_stream_sink sink, void *user, us_err *err) {
    filling f = {.s = s, .sink = sink, .user = user, .from = phase, .n = phase};
    const us_ck_tensor *src = source(s, t);
    us_status st = US_OK;
    switch (t->action) {
    case US_PLAN_COPY:
    case US_PLAN_RENAME: st = put_range(&f, src, 0, t->bytes, err); break;
    case US_PLAN_SLICE: st = put_slice(&f, t, err); break;
    case US_PLAN_TABLE: st = put_table(&f, t, err); break;
    }
    if (st == US_OK) st = flush(&f, err);
    else us_err_where(err, "%.*s", US_STR_ARG(src->name));
    return st;
}
