/* Matrices of the engine: read from the checkpoint and packed when first used, in parallel over blocks of rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/engine/internal.h"
#include "model/weights.h"

enum { ROWS_PER_TASK_BYTES = 1 << 17 };

typedef struct pack_task {
    us_mat *m;
    size_t r0, r1; /* rows of the matrix, r0 a multiple of the lanes */
} pack_task;

typedef struct pack_job {
    us_engine *e;
    const pack_task *tasks;
    us_err *errs; /* one a task that failed: the first is kept */
    us_status *status;
} pack_job;

/* The elements of part p for its rows [a, b) as dense [rows, k] of the packed type. */
static us_status read_rows(const us_engine *e, const us_mat *m, const us_eng_part *p, size_t a, size_t b, void *out, us_err *err) {
    const us_checkpoint *ck = e->st->ck;
    size_t k = m->packed.k, n = (b - a) * k, size = us_dtype_bits(p->t->dtype) / 8;
    bool want_bf16 = m->packed.type == US_DTYPE_BF16;
    if (!p->coded && p->sk == 1 && p->sn == k && p->t->dtype == m->packed.type) /* as it lies */
        return us_ck_read(ck, p->t, (p->first + p->off + (uint64_t)a * k) * size, out, n * size, err);

    us_arena arena = {0};
    us_status s = US_OK;
    float *f = NULL;
    const double *d = NULL;
    size_t have = 0, lo = 0, base = p->off;
    if (p->coded) {
        if (p->experts) s = us_weight_expert_f64(ck, p->t, p->expert, p->experts, &arena, &d, &have, err);
        else {
            char name[320];
            snprintf(name, sizeof name, "%.*s", US_STR_ARG(p->t->name));
            if (us_str_ends(p->t->name, US_LIT("_packed"))) name[strlen(name) - strlen("_packed")] = 0;
            have = us_weight_elements(ck, name);
            s = us_weight_f64(ck, name, have, &arena, &d, err);
        }
    } else { /* only the span that these rows touch */
        size_t last = p->off + (b - 1) * p->sn + (k - 1) * p->sk;
        lo = p->off + a * p->sn;
        have = last - lo + 1;
        base = p->off - lo; /* wraps: added to a*sn below */
        char *raw = us_arena_alloc(&arena, have * size);
        f = us_arena_alloc(&arena, have * sizeof *f);
        if (!raw || !f) s = us_fail_nomem(err, "reading a weight");
        if (s == US_OK) s = us_ck_read(ck, p->t, (p->first + lo) * size, raw, have * size, err);
        if (s == US_OK && !us_to_f32(p->t->dtype, raw, have, f)) {
            us_fail(err, US_E_UNSUPPORTED, "dtype", "the type %s cannot be read as numbers", us_dtype_name(p->t->dtype));
            s = us_err_where(err, "%.*s", US_STR_ARG(p->t->name));
        }
    }
    for (size_t i = a; s == US_OK && i < b; i++)
        for (size_t j = 0; j < k; j++) {
            size_t at = base + i * p->sn + j * p->sk;
            if (at >= have) {
                us_fail(err, US_E_FORMAT, "shape", "a weight has %zu elements where the config wants more", have);
                s = us_err_where(err, "%.*s", US_STR_ARG(p->t->name));
                break;
            }
            float v = d ? (float)d[at] : f[at];
            if (want_bf16) ((uint16_t *)out)[(i - a) * k + j] = us_f32_to_bf16(v);
            else ((float *)out)[(i - a) * k + j] = v;
        }
    us_arena_free(&arena);
    return s;
}

static bool all_finite(us_dtype type, const void *x, size_t n) {
    uint32_t bad = 0;
    if (type == US_DTYPE_BF16) {
        const uint16_t *p = x;
        for (size_t i = 0; i < n; i++) bad |= (p[i] & 0x7f80u) == 0x7f80u;
    } else {
        const uint32_t *p = x;
        for (size_t i = 0; i < n; i++) bad |= (p[i] & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

static us_status pack_rows(const us_engine *e, us_mat *m, size_t r0, size_t r1, us_err *err) {
    size_t size = us_dtype_bits(m->packed.type) / 8, k = m->packed.k, at = 0;
    char *dense = us_malloc_aligned((r1 - r0) * k * size + 64);
    if (!dense) return us_fail_nomem(err, "packing a weight");
    us_status s = US_OK;
    for (int i = 0; i < m->n_parts && s == US_OK; i++) {
        const us_eng_part *p = &m->parts[i];
        size_t a = r0 > at ? r0 : at, b = r1 < at + p->rows ? r1 : at + p->rows;
        if (a < b) {
            char *to = dense + (a - r0) * k * size;
            s = read_rows(e, m, p, a - at, b - at, to, err);
            if (s == US_OK && !all_finite(m->packed.type, to, (b - a) * k)) {
                us_fail(err, US_E_NONFINITE, "nonfinite", "a weight is not finite");
                s = us_err_where(err, "%.*s", US_STR_ARG(p->t->name));
            }
        }
        at += p->rows;
    }
    char *to = (char *)(uintptr_t)m->packed.data + us_gemm_packed_bytes(m->packed.type, r0, k);
    if (s == US_OK) us_gemm_pack_nt(m->packed.type, dense, k, r1 - r0, k, to);
    us_free(dense);
    return s;
}

static void pack_one(void *arg, int64_t i, int thread) {
    (void)thread;
    pack_job *j = arg;
    j->status[i] = pack_rows(j->e, j->tasks[i].m, j->tasks[i].r0, j->tasks[i].r1, &j->errs[i]);
}

static size_t rows_per_task(const us_mat *m) {
    size_t row = m->packed.k * (us_dtype_bits(m->packed.type) / 8), rows = ROWS_PER_TASK_BYTES / (row ? row : 1) / US_GEMM_LANES * US_GEMM_LANES;
    for (int i = 0; i < m->n_parts; i++)
        if (m->parts[i].coded) return m->packed.n; /* decoding a slice once */
    return rows ? rows : US_GEMM_LANES;
}

void us_mat_drop(us_mat *m) {
    us_free((void *)(uintptr_t)m->packed.data);
    m->packed.data = NULL;
}

static void drop_all(us_mat *const *mats, size_t n, const pack_task *tasks, size_t n_tasks) {
    (void)mats, (void)n;
    for (size_t i = 0; i < n_tasks; i++) us_mat_drop(tasks[i].m);
}

us_status us_eng_prepare(us_engine *e, us_mat *const *mats, size_t n, us_err *err) {
    size_t n_tasks = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        if (us_mat_there(mats[i]) && !mats[i]->packed.data) n_tasks += (mats[i]->packed.n + rows_per_task(mats[i]) - 1) / rows_per_task(mats[i]);
    if (!n_tasks) return US_OK;
    us_status s = US_OK;
    pack_task *tasks = us_calloc(n_tasks, sizeof *tasks);
    us_err *errs = us_calloc(n_tasks, sizeof *errs);
    us_status *status = us_calloc(n_tasks, sizeof *status);
    if (!tasks || !errs || !status) s = us_fail_nomem(err, "packing weights");
    for (size_t i = 0; i < n && s == US_OK; i++) {
        us_mat *m = mats[i];
        if (!us_mat_there(m) || m->packed.data) continue;
        size_t bytes = us_gemm_packed_bytes(m->packed.type, m->packed.n, m->packed.k);
        m->packed.data = bytes ? us_malloc_large(bytes, false) : NULL;
        if (!m->packed.data) s = us_fail_nomem(err, "packing weights");
        for (size_t r = 0; s == US_OK && r < m->packed.n; r += rows_per_task(m)) {
            size_t end = r + rows_per_task(m);
            tasks[at++] = (pack_task){m, r, end < m->packed.n ? end : m->packed.n};
        }
    }
    if (s == US_OK) {
        pack_job job = {e, tasks, errs, status};
        us_pool_run(e->pool, pack_one, &job, (int64_t)at);
        for (size_t i = 0; i < at && s == US_OK; i++)
            if (status[i] != US_OK) {
                s = status[i];
                if (err) *err = errs[i];
            }
    }
    if (s != US_OK) drop_all(mats, n, tasks, at);
    us_free(tasks);
    us_free(errs);
    us_free(status);
    return s;
}

typedef struct bias_job {
    const float *bias;
    size_t n;
    float *y;
    size_t ldy;
} bias_job;

static void bias_some(void *arg, size_t r0, size_t r1) {
    const bias_job *j = arg;
    for (size_t i = r0; i < r1; i++)
        for (size_t c = 0; c < j->n; c++) j->y[i * j->ldy + c] += j->bias[c];
}

us_status us_eng_apply_full(us_step *s, us_mat *w, const float *bias, size_t m, const float *x, size_t ldx, float *y, size_t ldy) {
    US_TRY(us_eng_prepare(s->e, &w, 1, s->err));
    us_gemm(s->e->pool, m, x, ldx, &w->packed, y, ldy);
    if (bias) us_eng_each_rows(s->e, m, bias_some, &(bias_job){bias, w->packed.n, y, ldy});
    return US_OK;
}

typedef struct round_job {
    const float *x;
    size_t ldx, k;
    float *y;
} round_job;

static void round_some(void *arg, size_t r0, size_t r1) {
    const round_job *j = arg;
    for (size_t i = r0; i < r1; i++) us_round_bf16(j->x + i * j->ldx, j->k, j->y + i * j->k);
}

us_status us_eng_apply(us_step *s, us_mat *w, const float *bias, size_t m, const float *x, size_t ldx, float *y, size_t ldy) {
    if (s->e->opt.compute != US_COMPUTE_BF16) return us_eng_apply_full(s, w, bias, m, x, ldx, y, ldy);
    size_t k = w->packed.k;
    uint64_t mark = s->e->scratch_used;
    US_ENG_SCRATCH(s, rounded, m * k);
    us_eng_each_rows(s->e, m, round_some, &(round_job){x, ldx, k, rounded});
    us_status st = us_eng_apply_full(s, w, bias, m, rounded, k, y, ldy);
    s->e->scratch_used = mark;
    return st;
}
