/**
 * Paged attention: tasks, spans and pages around the tiles of gemm.h. What is computed is defined in attention.h; nothing here changes a bit of it.
 *
 * A task is (sequence, key head, up to ROWS rows), a row being one query of one head; the rows of a task are sorted by position, the heads of a position side
 * by side, so that a page is read once for all of them, and the rows that see a given key are neighbours. Tasks are taken from the end of the sequence
 * first: those are the longest. Where there are fewer tasks than threads like, their spans are taken as tasks of their own and merged afterwards.
 */
#include "kernels/attention.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels/attention_text.h"
#include "kernels/gemm.h"
#include "kernels/widen.h"

enum {
    ROWS = 96,               /* of a task: 8 tiles; a page in the L1 cache serves all */
    TASKS_A_THREAD = 4,      /* below this, spans are spread */
    SPLIT_BYTES = 64 << 20,  /* most memory for the states of spread spans */
    WIDEN_ROWS = 36,         /* from here on a bf16 page is widened once instead of in every tile */
};

/* ---- pages ---- */

static size_t elem_size(us_dtype t) {
    return t == US_DTYPE_BF16 ? 2 : 4;
}

static size_t value_blocks(const us_kv_layout *l) {
    return ((size_t)l->dv + US_GEMM_LANES - 1) / US_GEMM_LANES;
}

/* Elements of one key-value head in a page. */
static size_t head_elems(const us_kv_layout *l) {
    return (size_t)US_KV_PAGE * (l->latent ? l->dk : l->dk + value_blocks(l) * US_GEMM_LANES);
}

size_t us_kv_page_bytes(const us_kv_layout *l) {
    size_t bytes;
    return us_mul_size(head_elems(l), l->heads * elem_size(l->type), &bytes) ? bytes : 0;
}

static size_t key_at(const us_kv_layout *l, size_t slot, size_t c) {
    return l->latent ? slot * l->dk + c : (slot / US_GEMM_LANES * l->dk + c) * US_GEMM_LANES + slot % US_GEMM_LANES;
}

static size_t value_at(const us_kv_layout *l, size_t slot, size_t c) {
    return (size_t)US_KV_PAGE * l->dk + (c / US_GEMM_LANES * US_KV_PAGE + slot) * US_GEMM_LANES + c % US_GEMM_LANES;
}

void us_kv_store(const us_kv_layout *l, void *page, size_t slot, const float *k, const float *v) {
    for (size_t h = 0; h < l->heads; h++, k += l->dk) {
        size_t base = h * head_elems(l);
        if (l->type == US_DTYPE_BF16) {
            uint16_t *p = (uint16_t *)page + base;
            for (size_t c = 0; c < l->dk; c++) p[key_at(l, slot, c)] = us_f32_to_bf16(k[c]);
            for (size_t c = 0; !l->latent && c < l->dv; c++) p[value_at(l, slot, c)] = us_f32_to_bf16(v[h * l->dv + c]);
        } else {
            float *p = (float *)page + base;
            for (size_t c = 0; c < l->dk; c++) p[key_at(l, slot, c)] = k[c];
            for (size_t c = 0; !l->latent && c < l->dv; c++) p[value_at(l, slot, c)] = v[h * l->dv + c];
        }
    }
}

void us_kv_load(const us_kv_layout *l, const void *page, size_t slot, float *k, float *v) {
    for (size_t h = 0; h < l->heads; h++, k += l->dk) {
        size_t base = h * head_elems(l);
        bool values = !l->latent && v;
        if (l->type == US_DTYPE_BF16) {
            const uint16_t *p = (const uint16_t *)page + base;
            for (size_t c = 0; c < l->dk; c++) k[c] = us_bf16_to_f32(p[key_at(l, slot, c)]);
            for (size_t c = 0; values && c < l->dv; c++) v[h * l->dv + c] = us_bf16_to_f32(p[value_at(l, slot, c)]);
        } else {
            const float *p = (const float *)page + base;
            for (size_t c = 0; c < l->dk; c++) k[c] = p[key_at(l, slot, c)];
            for (size_t c = 0; values && c < l->dv; c++) v[h * l->dv + c] = p[value_at(l, slot, c)];
        }
    }
}

/* ---- the work ---- */

typedef struct attn_task {
    size_t seq, head, first, n; /* queries first .. first+n-1 of the sequence */
    size_t span0, spans;        /* that some of them may see */
    size_t part;                /* of its first span's state among the spread ones, in rows */
} attn_task;

typedef struct attn_item {
    size_t task, span;
} attn_item;

typedef struct attn_job {
    const us_attn *a;
    const us_attn_seq *seqs;
    const us_attn_text *text;
    us_gemm_tile_fn *tile_f32, *tile_bf16;
    size_t rep, rows, ldq, ldo; /* query heads a key head; most rows of a task; strides of the scratch */
    attn_task *tasks;
    attn_item *items; /* spread spans, or NULL */
    float *parts;     /* their states: per row maximum, sum, ldo outputs */
    char *scratch;
    size_t scratch_bytes; /* a thread */
} attn_job;

/* The running softmax of rows: maximum, sum of weights, weighted sum of values. */
typedef struct attn_state {
    float *max, *sum, *out;
} attn_state;

/* Scratch of a thread. */
typedef struct attn_work {
    float *q, *scores, *natural, *keys, *values, *picked;
    attn_state span, all;
} attn_work;

static size_t floats_of(const attn_job *j, bool allow) {
    const us_kv_layout *l = &j->a->kv;
    size_t page = (size_t)US_KV_PAGE * l->dk, values = US_KV_PAGE * value_blocks(l) * US_GEMM_LANES;
    return j->rows * (j->ldq + 2 * j->ldo + 4) + US_GEMM_ROWS * US_ATTN_LDS + page * (l->latent ? 2 : 1) + values * (allow ? 2 : 1) + 16 * 12;
}

static float *carve(float **p, size_t n) {
    float *at = *p;
    *p += (n + 15) / 16 * 16;
    return at;
}

static attn_work work_of(const attn_job *j, int thread) {
    const us_kv_layout *l = &j->a->kv;
    float *p = (float *)(void *)(j->scratch + (size_t)thread * j->scratch_bytes);
    attn_work w;
    w.q = carve(&p, j->rows * j->ldq);
    w.scores = carve(&p, US_GEMM_ROWS * US_ATTN_LDS);
    w.span = (attn_state){carve(&p, j->rows), carve(&p, j->rows), carve(&p, j->rows * j->ldo)};
    w.all = (attn_state){carve(&p, j->rows), carve(&p, j->rows), carve(&p, j->rows * j->ldo)};
    w.keys = carve(&p, (size_t)US_KV_PAGE * l->dk);
    w.natural = l->latent ? carve(&p, (size_t)US_KV_PAGE * l->dk) : NULL;
    w.values = carve(&p, US_KV_PAGE * value_blocks(l) * US_GEMM_LANES);
    w.picked = p; /* the last; there only when a sequence has an allow mask */
    return w;
}

/* First position that a query at `pos` may see. */
static size_t lowest(const us_attn *a, size_t pos) {
    size_t low = 0;
    if (a->window && pos + 1 > a->window) low = pos + 1 - a->window;
    if (a->chunk && pos / a->chunk * a->chunk > low) low = pos / a->chunk * a->chunk;
    return low;
}

/* A page of one head as tiles want it. */
typedef struct attn_page {
    us_gemm_tile_fn *tile;
    const char *keys, *values;
    size_t size; /* bytes of an element */
} attn_page;

static attn_page open_page(const attn_job *j, const attn_work *w, const void *page, size_t head, size_t rows) {
    const us_kv_layout *l = &j->a->kv;
    size_t size = elem_size(l->type), keys = (size_t)US_KV_PAGE * l->dk;
    const char *p = (const char *)page + head * head_elems(l) * size;
    if (l->latent) {
        const float *natural = (const float *)(const void *)p;
        if (size == 2) us_widen_bf16(p, keys, w->natural), natural = w->natural;
        j->text->latent(natural, l->dk, l->dv, w->keys, w->values);
        return (attn_page){j->tile_f32, (const char *)w->keys, (const char *)w->values, 4};
    }
    if (size == 2 && rows >= WIDEN_ROWS) {
        us_widen_bf16(p, keys, w->keys);
        us_widen_bf16(p + keys * 2, US_KV_PAGE * value_blocks(l) * US_GEMM_LANES, w->values);
        return (attn_page){j->tile_f32, (const char *)w->keys, (const char *)w->values, 4};
    }
    return (attn_page){size == 2 ? j->tile_bf16 : j->tile_f32, p, p + keys * size, size};
}

/* What the rows of a tile see of a page: slots lo .. hi-1, both ascending with the row; `seen` (or NULL) hides some of them from all rows alike. */
typedef struct attn_view {
    int32_t lo[US_GEMM_ROWS], hi[US_GEMM_ROWS];
    const uint8_t *seen;
} attn_view;

/* Add the weighted values: rows r0 .. r1-1 see all slots from `from` to `to`. */
typedef struct attn_run {
    size_t from, to, r0, r1;
} attn_run;

static size_t runs_of(const attn_view *v, size_t nr, attn_run *runs) {
    size_t n = 0, r0 = 0, r1 = 0, from = (size_t)v->lo[0];
    for (;;) {
        while (r0 < nr && (size_t)v->hi[r0] <= from) r0++;
        if (r0 == nr) return n;
        if (r1 <= r0) from = from > (size_t)v->lo[r0] ? from : (size_t)v->lo[r0];
        while (r1 < nr && (size_t)v->lo[r1] <= from) r1++;
        size_t to = (size_t)v->hi[r0];
        if (r1 < nr && (size_t)v->lo[r1] < to) to = (size_t)v->lo[r1];
        runs[n++] = (attn_run){from, to, r0, r1};
        from = to;
    }
}

/* One tile of rows against one page. */
static void tile_step(const attn_job *j, const attn_work *w, const attn_page *p, const attn_view *v, size_t row, size_t nr) {
    const us_kv_layout *l = &j->a->kv;
    size_t low = (size_t)v->lo[0], high = (size_t)v->hi[nr - 1];
    float *s = w->scores;
    for (size_t b = low / US_GEMM_LANES; b * US_GEMM_LANES < high; b++)
        p->tile(l->dk, w->q + row * j->ldq, j->ldq, nr, p->keys + b * l->dk * US_GEMM_LANES * p->size, s + b * US_GEMM_LANES, US_ATTN_LDS, true);
    j->text->soft(s, nr, v->lo, v->hi, v->seen, j->a->scale, w->span.max + row, w->span.sum + row, w->span.out + row * j->ldo, j->ldo);

    attn_run runs[2 * US_GEMM_ROWS];
    size_t n = runs_of(v, nr, runs);
    float *out = w->span.out + row * j->ldo;
    for (size_t b = 0; b < value_blocks(l); b++) {
        for (size_t i = 0; i < n; i++) {
            const attn_run *r = runs + i;
            p->tile(r->to - r->from, s + r->r0 * US_ATTN_LDS + r->from, US_ATTN_LDS, r->r1 - r->r0,
                    p->values + (b * US_KV_PAGE + r->from) * US_GEMM_LANES * p->size, out + r->r0 * j->ldo + b * US_GEMM_LANES, j->ldo, false);
        }
    }
}

static int32_t slot_of(size_t position, size_t base) {
    return position <= base ? 0 : position - base < US_KV_PAGE ? (int32_t)(position - base) : US_KV_PAGE;
}

static void page_step(const attn_job *j, const attn_task *t, const attn_work *w, size_t page) {
    const us_attn_seq *q = j->seqs + t->seq;
    size_t base = page * US_KV_PAGE, rows = t->n * j->rep;
    attn_page p = {0};
    for (size_t row = 0; row < rows; row += US_GEMM_ROWS) {
        size_t nr = rows - row < US_GEMM_ROWS ? rows - row : US_GEMM_ROWS, skip = 0;
        attn_view v = {.seen = NULL};
        size_t kept = 0;
        for (size_t r = 0; r < nr; r++) {
            size_t pos = q->start + t->first + (row + r) / j->rep;
            int32_t lo = slot_of(lowest(j->a, pos), base), hi = slot_of(pos + 1, base);
            if (lo >= hi) {
                skip += !kept; /* rows without a key here are the first or the last of the tile, never between others */
                continue;
            }
            v.lo[kept] = lo;
            v.hi[kept++] = hi;
        }
        if (!kept) continue;
        if (!p.tile) p = open_page(j, w, q->pages[page], t->head, rows);
        tile_step(j, w, &p, &v, row + skip, kept);
    }
}

/* The keys that a mask leaves to a position: their weights and values are put side by side, so that a hidden key has no part in any sum. */
static void picked_step(const attn_job *j, const attn_work *w, const attn_page *p, const attn_view *v, size_t row, size_t nr, const uint8_t *slots, size_t n,
                        bool fresh) {
    const us_kv_layout *l = &j->a->kv;
    size_t low = (size_t)v->lo[0], high = (size_t)v->hi[0], block = US_GEMM_LANES * p->size;
    float *s = w->scores, *out = w->span.out + row * j->ldo;
    char *picked = (char *)w->picked;
    for (size_t b = low / US_GEMM_LANES; b * US_GEMM_LANES < high; b++)
        p->tile(l->dk, w->q + row * j->ldq, j->ldq, nr, p->keys + b * l->dk * block, s + b * US_GEMM_LANES, US_ATTN_LDS, true);
    j->text->soft(s, nr, v->lo, v->hi, v->seen, j->a->scale, w->span.max + row, w->span.sum + row, out, j->ldo);
    for (size_t r = 0; r < nr; r++)
        for (size_t i = 0; i < n; i++) s[r * US_ATTN_LDS + i] = s[r * US_ATTN_LDS + slots[i]];
    for (size_t b = 0; b < value_blocks(l); b++) {
        char *to = picked + b * US_KV_PAGE * block;
        for (size_t i = 0; fresh && i < n; i++) memcpy(to + i * block, p->values + (b * US_KV_PAGE + slots[i]) * block, block);
        p->tile(n, s, US_ATTN_LDS, nr, to, out + b * US_GEMM_LANES, j->ldo, false);
    }
}

/* A page under an allow mask: position by position. */
static void masked_page_step(const attn_job *j, const attn_task *t, const attn_work *w, size_t page) {
    const us_attn_seq *q = j->seqs + t->seq;
    size_t base = page * US_KV_PAGE;
    attn_page p = {0};
    for (size_t i = 0; i < t->n; i++) {
        size_t pos = q->start + t->first + i, n = 0;
        int32_t lo = slot_of(lowest(j->a, pos), base), hi = slot_of(pos + 1, base);
        const uint8_t *allow = q->allow + (t->first + i) * q->lda + base;
        uint8_t slots[US_KV_PAGE];
        for (int32_t k = lo; k < hi; k++)
            if (allow[k]) slots[n++] = (uint8_t)k;
        if (!n) continue;
        if (!p.tile) p = open_page(j, w, q->pages[page], t->head, t->n * j->rep);
        lo = slots[0], hi = slots[n - 1] + 1;
        bool whole = (size_t)(hi - lo) == n;
        for (size_t h = 0; h < j->rep; h += US_GEMM_ROWS) {
            size_t nr = j->rep - h < US_GEMM_ROWS ? j->rep - h : US_GEMM_ROWS;
            attn_view v = {.seen = whole ? NULL : allow};
            for (size_t r = 0; r < nr; r++) v.lo[r] = lo, v.hi[r] = hi;
            if (whole) tile_step(j, w, &p, &v, i * j->rep + h, nr);
            else picked_step(j, w, &p, &v, i * j->rep + h, nr, slots, n, h == 0);
        }
    }
}

static void load_queries(const attn_job *j, const attn_task *t, const attn_work *w) {
    const us_attn_seq *q = j->seqs + t->seq;
    size_t dk = j->a->kv.dk;
    for (size_t i = 0; i < t->n; i++) {
        const float *from = q->q + (t->first + i) * q->ldq + t->head * j->rep * dk;
        for (size_t h = 0; h < j->rep; h++) memcpy(w->q + (i * j->rep + h) * j->ldq, from + h * dk, dk * sizeof *from);
    }
}

/* The state of one span of pages, from nothing, into w->span. */
static void span_step(const attn_job *j, const attn_task *t, const attn_work *w, size_t span) {
    const us_attn_seq *q = j->seqs + t->seq;
    size_t rows = t->n * j->rep, low = lowest(j->a, q->start + t->first) / US_KV_PAGE, high = (q->start + t->first + t->n - 1) / US_KV_PAGE + 1;
    for (size_t r = 0; r < rows; r++) w->span.max[r] = -__builtin_inff(), w->span.sum[r] = 0;
    memset(w->span.out, 0, rows * j->ldo * sizeof(float));
    size_t first = span * US_KV_SPAN > low ? span * US_KV_SPAN : low, end = (span + 1) * US_KV_SPAN < high ? (span + 1) * US_KV_SPAN : high;
    for (size_t page = first; page < end; page++) {
        if (q->allow) masked_page_step(j, t, w, page);
        else page_step(j, t, w, page);
    }
}

static void begin(const attn_job *j, const attn_task *t, const attn_work *w) {
    size_t rows = t->n * j->rep;
    for (size_t r = 0; r < rows; r++) {
        float sink = j->a->sinks ? j->a->sinks[t->head * j->rep + r % j->rep] : -__builtin_inff();
        w->all.max[r] = sink;
        w->all.sum[r] = sink == -__builtin_inff() ? 0.0f : 1.0f;
    }
    memset(w->all.out, 0, rows * j->ldo * sizeof(float));
}

static void merge(const attn_job *j, const attn_task *t, const attn_work *w, attn_state s) {
    j->text->merge(t->n * j->rep, j->ldo, w->all.max, w->all.sum, w->all.out, s.max, s.sum, s.out);
}

static void finish(const attn_job *j, const attn_task *t, const attn_work *w) {
    const us_attn_seq *q = j->seqs + t->seq;
    size_t dv = j->a->kv.dv;
    for (size_t i = 0; i < t->n; i++) {
        float *to = q->out + (t->first + i) * q->ldo + t->head * j->rep * dv;
        for (size_t h = 0; h < j->rep; h++) {
            size_t r = i * j->rep + h;
            j->text->divide(w->all.out + r * j->ldo, w->all.sum[r], dv, to + h * dv);
        }
    }
}

static void whole_task(void *arg, int64_t i, int thread) {
    const attn_job *j = arg;
    const attn_task *t = j->tasks + i;
    attn_work w = work_of(j, thread);
    load_queries(j, t, &w);
    begin(j, t, &w);
    for (size_t s = 0; s < t->spans; s++) {
        span_step(j, t, &w, t->span0 + s);
        merge(j, t, &w, w.span);
    }
    finish(j, t, &w);
}

static attn_state part_of(const attn_job *j, const attn_task *t, size_t span) {
    size_t rows = t->n * j->rep;
    float *p = j->parts + (t->part + span * rows) * (j->ldo + 2);
    return (attn_state){p, p + rows, p + 2 * rows};
}

static void spread_span(void *arg, int64_t i, int thread) {
    const attn_job *j = arg;
    const attn_item *item = j->items + i;
    const attn_task *t = j->tasks + item->task;
    attn_work w = work_of(j, thread);
    w.span = part_of(j, t, item->span);
    load_queries(j, t, &w);
    span_step(j, t, &w, t->span0 + item->span);
}

static void gather_spans(void *arg, int64_t i, int thread) {
    const attn_job *j = arg;
    const attn_task *t = j->tasks + i;
    attn_work w = work_of(j, thread);
    begin(j, t, &w);
    for (size_t s = 0; s < t->spans; s++) merge(j, t, &w, part_of(j, t, s));
    finish(j, t, &w);
}

/* Strides that are a multiple of a page of memory put all rows into the same places of the L1 cache. */
static size_t stride(size_t n) {
    n = (n + 15) / 16 * 16;
    return n % 256 ? n : n + 16;
}

static size_t list_tasks(attn_job *j, size_t n_seqs, size_t queries) {
    const us_attn *a = j->a;
    size_t n = 0;
    for (size_t s = 0; s < n_seqs; s++) {
        const us_attn_seq *q = j->seqs + s;
        for (size_t left = q->n; left;) {
            size_t count = left % queries ? left % queries : queries;
            left -= count;
            size_t low = lowest(a, q->start + left) / US_KV_PAGE / US_KV_SPAN, high = (q->start + left + count - 1) / US_KV_PAGE / US_KV_SPAN;
            for (size_t g = 0; j->tasks && g < a->kv.heads; g++) j->tasks[n + g] = (attn_task){s, g, left, count, low, high + 1 - low, 0};
            n += a->kv.heads;
        }
    }
    return n;
}

us_status us_attention(us_pool *pool, const us_attn *a, const us_attn_seq *seqs, size_t n_seqs, us_err *err) {
    us_isa isa = us_isa_active();
    attn_job j = {.a = a, .seqs = seqs, .text = us__attn_text(isa), .rep = a->heads / a->kv.heads};
    j.tile_f32 = us_gemm_tile(isa, US_DTYPE_F32);
    j.tile_bf16 = us_gemm_tile(isa, US_DTYPE_BF16);
    size_t queries = j.rep < ROWS ? ROWS / j.rep : 1, longest = 0;
    bool allow = false;
    for (size_t s = 0; s < n_seqs; s++) {
        longest = seqs[s].n > longest ? seqs[s].n : longest;
        allow |= seqs[s].allow != NULL;
    }
    if (!longest) return US_OK;
    j.rows = j.rep * (longest < queries ? longest : queries);
    j.ldq = stride(a->kv.dk);
    j.ldo = stride(value_blocks(&a->kv) * US_GEMM_LANES);

    size_t threads = (size_t)us_pool_threads(pool), n = list_tasks(&j, n_seqs, queries), bytes, items = 0, rows = 0;
    j.scratch_bytes = floats_of(&j, allow) * sizeof(float) / 64 * 64 + 64;
    us_status st = US_OK;
    j.tasks = us_calloc(n, sizeof *j.tasks);
    j.scratch = us_mul_size(threads, j.scratch_bytes, &bytes) ? us_malloc_aligned(bytes) : NULL;
    if (!j.tasks || !j.scratch) {
        st = us_fail_nomem(err, "attention scratch");
        goto done;
    }
    list_tasks(&j, n_seqs, queries);
    for (size_t i = 0; i < n; i++) {
        j.tasks[i].part = rows;
        rows += j.tasks[i].n * j.rep * j.tasks[i].spans;
        items += j.tasks[i].spans;
    }
    bool spread = threads > 1 && n < threads * TASKS_A_THREAD && items > n && us_mul_size(rows, (j.ldo + 2) * sizeof(float), &bytes) && bytes <= SPLIT_BYTES;
    if (!spread) {
        us_pool_run(pool, whole_task, &j, (int64_t)n);
        goto done;
    }
    j.items = us_calloc(items, sizeof *j.items);
    j.parts = us_malloc_aligned(bytes);
    if (!j.items || !j.parts) {
        st = us_fail_nomem(err, "attention over spans");
        goto done;
    }
    for (size_t i = 0, k = 0; i < n; i++)
        for (size_t s = 0; s < j.tasks[i].spans; s++) j.items[k++] = (attn_item){i, s};
    us_pool_run(pool, spread_span, &j, (int64_t)items);
    us_pool_run(pool, gather_spans, &j, (int64_t)n);
done:
    us_free(j.items);
    us_free(j.parts);
    us_free(j.scratch);
    us_free(j.tasks);
    return st;
}
