/**
 * Running experts on probes: stored bytes are widened tile by tile into the matrix product, outputs are folded into the sketch as they appear.
 * See sketch.h. Tests: tests/unit/test_select.c, tests/prop/test_planted.c.
 */
#include "proxy/sketch.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/fold.h"
#include "proxy/sketch_internal.h"

enum { ROWS = 4 * US_GEMM_ROWS, TILE_LD = US_GEMM_DEPTH + 16 /* no power of two: rows fall into different cache sets */ };
enum { SIGN_STREAM = 0x5ce7c4 };

typedef struct scratch {
    us_deq_rows_buf rows;
    float *tile;       /* ROWS x TILE_LD */
    float *gate, *up;  /* inner x padded probes, packed by lane blocks */
    float *y;          /* ROWS x padded probes of the output */
    float *bias;
    float *acc, *norm; /* dims; padded probes */
} scratch;

typedef struct sketch_job {
    us_ctx *ctx;
    const us_structure *s;
    const us_deq_expert *experts;
    const us__probes *probes;
    const uint64_t *signs; /* out x probe blocks */
    us_gemm_tile_fn *product;
    us_sketch_act act;
    us_sketch *out;
    scratch *scratch;
    pthread_mutex_t lock;
    int64_t failed; /* lowest expert that failed, or INT64_MAX */
    us_status status;
    us_err err;
    uint64_t bytes;
} sketch_job;

/* c[block][r][lane] for rows r0 .. r0+nr of the loaded projection; c of a block starts at b * stride, rows are LANES apart. */
static void rows_times_probes(const sketch_job *j, scratch *w, const float *lanes, size_t r0, size_t nr, float *c, size_t stride) {
    size_t in = w->rows.in;
    for (size_t k0 = 0; k0 < in; k0 += US_GEMM_DEPTH) {
        size_t kc = in - k0 < US_GEMM_DEPTH ? in - k0 : US_GEMM_DEPTH;
        us_deq_rows(&w->rows, r0, nr, k0, kc, w->tile, TILE_LD);
        for (size_t b = 0; b < j->probes->blocks; b++) {
            for (size_t r = 0; r < nr; r += US_GEMM_ROWS) {
                size_t n = nr - r < US_GEMM_ROWS ? nr - r : US_GEMM_ROWS;
                j->product(kc, w->tile + r * TILE_LD, TILE_LD, n, lanes + (b * in + k0) * US_GEMM_LANES, c + b * stride + r * US_GEMM_LANES, US_GEMM_LANES, k0 == 0);
            }
        }
    }
}

/* y = W x for all probes, packed by lane blocks (so that it is the lane operand of the next product), plus bias. */
static us_status project(const sketch_job *j, scratch *w, const us_deq *d, float *y, us_err *err) {
    US_TRY(us_deq_load(j->s->ck, d, &w->rows, err));
    size_t out = d->out, stride = out * US_GEMM_LANES;
    for (size_t r = 0; r < out; r += ROWS) rows_times_probes(j, w, j->probes->packed, r, out - r < ROWS ? out - r : ROWS, y + r * US_GEMM_LANES, stride);
    if (!d->bias) return US_OK;
    US_TRY(us_deq_bias(j->s->ck, d, w->bias, err));
    for (size_t b = 0; b < j->probes->blocks; b++) {
        for (size_t r = 0; r < out; r++) {
            for (size_t l = 0; l < US_GEMM_LANES; l++) y[b * stride + r * US_GEMM_LANES + l] += w->bias[r];
        }
    }
    return US_OK;
}

static us_status fold_outputs(const sketch_job *j, scratch *w, const us_deq *d, const float *hidden, float *peak, us_err *err) {
    US_TRY(us_deq_load(j->s->ck, d, &w->rows, err));
    US_TRY(us_deq_bias(j->s->ck, d, w->bias, err));
    size_t blocks = j->probes->blocks;
    uint32_t buckets = j->out->dims / US_GEMM_LANES;
    float top[US_GEMM_LANES] = {0};
    for (size_t r0 = 0; r0 < d->out; r0 += ROWS) {
        size_t nr = d->out - r0 < ROWS ? d->out - r0 : ROWS;
        rows_times_probes(j, w, hidden, r0, nr, w->y, ROWS * US_GEMM_LANES);
        for (size_t b = 0; b < blocks; b++) {
            size_t left = j->probes->n - b * US_GEMM_LANES, used = left < US_GEMM_LANES ? left : US_GEMM_LANES;
            for (size_t r = 0; r < nr; r++) {
                float *y = w->y + (b * ROWS + r) * US_GEMM_LANES;
                if (d->bias) {
                    for (size_t l = 0; l < used; l++) y[l] += w->bias[r0 + r]; /* padding lanes stay zero */
                }
                uint64_t word = j->signs[(r0 + r) * blocks + b]; /* a sign a probe, and a bucket */
                us_fold(y, (uint32_t)word, w->acc + (word >> 32) % buckets * US_GEMM_LANES, w->norm + b * US_GEMM_LANES, top);
            }
        }
    }
    *peak = 0;
    for (size_t l = 0; l < US_GEMM_LANES; l++) *peak = top[l] > *peak ? top[l] : *peak;
    return US_OK;
}

static us_status sketch_expert(sketch_job *j, scratch *w, uint32_t e, us_err *err) {
    const us_deq_expert *x = &j->experts[e];
    size_t padded = j->probes->blocks * US_GEMM_LANES, dims = j->out->dims;
    US_TRY(us_ctx_check(j->ctx, err));
    if (x->gate.form != US_DEQ_NONE) US_TRY(project(j, w, &x->gate, w->gate, err));
    US_TRY(project(j, w, &x->up, w->up, err));
    us_glu_apply(j->act.glu, j->act.limit, j->act.alpha, x->up.out * padded, w->gate, w->up, w->up);
    if (j->probes->n < padded) { /* a biased expert answers to the padding too: silence it */
        size_t last = (j->probes->blocks - 1) * x->up.out * US_GEMM_LANES, used = j->probes->n % US_GEMM_LANES;
        for (size_t r = 0; r < x->up.out; r++) memset(w->up + last + r * US_GEMM_LANES + used, 0, (US_GEMM_LANES - used) * sizeof(float));
    }
    memset(w->acc, 0, dims * sizeof *w->acc);
    memset(w->norm, 0, padded * sizeof *w->norm);
    US_TRY(fold_outputs(j, w, &x->down, w->up, &j->out->peak[e], err));
    memcpy(j->out->phi + e * dims, w->acc, dims * sizeof *w->acc);
    for (uint32_t p = 0; p < j->probes->n; p++) j->out->norm[(size_t)e * j->probes->n + p] = sqrtf(w->norm[p]);
    return US_OK;
}

static void sketch_task(void *arg, int64_t e, int thread) {
    sketch_job *j = arg;
    us_err err = {0};
    us_status st = sketch_expert(j, &j->scratch[thread], (uint32_t)e, &err);
    const us_deq_expert *x = &j->experts[e];
    uint64_t bytes = us_deq_bytes(&x->gate) + us_deq_bytes(&x->up) + us_deq_bytes(&x->down);
    us_progress_add(j->ctx, bytes);
    pthread_mutex_lock(&j->lock);
    j->bytes += bytes;
    if (st != US_OK && e < j->failed) {
        j->failed = e;
        j->status = st;
        j->err = err;
    }
    pthread_mutex_unlock(&j->lock);
}

static bool scratch_create(scratch *w, const us_deq_expert *x, size_t padded, size_t dims) {
    size_t wide = x->up.out > x->down.out ? x->up.out : x->down.out;
    w->tile = us_malloc_aligned((size_t)ROWS * TILE_LD * sizeof(float));
    w->gate = x->gate.form != US_DEQ_NONE ? us_malloc_aligned(x->up.out * padded * sizeof(float)) : NULL;
    w->up = us_malloc_aligned(x->up.out * padded * sizeof(float));
    w->y = us_malloc_aligned((size_t)ROWS * padded * sizeof(float));
    w->bias = us_malloc_aligned(wide * sizeof(float));
    w->acc = us_malloc_aligned(dims * sizeof(float));
    w->norm = us_malloc_aligned(padded * sizeof(float));
    return w->tile && (w->gate || x->gate.form == US_DEQ_NONE) && w->up && w->y && w->bias && w->acc && w->norm;
}

static void scratch_free(scratch *w) {
    us_deq_rows_free(&w->rows);
    us_free(w->tile);
    us_free(w->gate);
    us_free(w->up);
    us_free(w->y);
    us_free(w->bias);
    us_free(w->acc);
    us_free(w->norm);
}

void us_sketch_free(us_sketch *k) {
    if (!k) return;
    us_free(k->phi);
    us_free(k->norm);
    us_free(k->peak);
    us_free(k->probe_expert);
    *k = (us_sketch){0};
}

static us_status sketch_create(us_sketch *k, uint32_t n, uint32_t dims, us__probes *p, us_err *err) {
    *k = (us_sketch){.n_experts = n, .n_probes = p->n, .dims = dims, .probe_expert = p->expert};
    p->expert = NULL;
    k->phi = us_calloc((size_t)n * dims, sizeof *k->phi);
    k->norm = us_calloc((size_t)n * p->n, sizeof *k->norm);
    k->peak = us_calloc(n, sizeof *k->peak);
    return k->phi && k->norm && k->peak ? US_OK : us_fail_nomem(err, "sketches");
}

static us_status run_experts(us_ctx *ctx, const us_structure *s, size_t block, uint64_t seed, const us_deq_expert *x, const us__probes *p, us_sketch *k,
                             us_err *err) {
    int threads = us_pool_threads(us_ctx_pool(ctx));
    size_t padded = p->blocks * US_GEMM_LANES, out = x[0].down.out;
    sketch_job j = {.ctx = ctx, .s = s, .experts = x, .probes = p, .product = us_gemm_tile(us_isa_active(), US_DTYPE_F32), .out = k, .failed = INT64_MAX};
    j.act = us_sketch_activation(s, block, x[0].gate.form != US_DEQ_NONE);
    j.scratch = us_calloc((size_t)threads, sizeof *j.scratch);
    uint64_t *signs = us_malloc(out * p->blocks * sizeof *signs);
    bool ok = j.scratch && signs;
    for (int t = 0; ok && t < threads; t++) ok = scratch_create(&j.scratch[t], &x[0], padded, k->dims);
    us_status st = ok ? US_OK : us_fail_nomem(err, "sketching experts");
    if (ok) {
        for (size_t i = 0; i < out * p->blocks; i++) signs[i] = us_rng_u64(seed, SIGN_STREAM, i);
        j.signs = signs;
        pthread_mutex_init(&j.lock, NULL);
        us_pool_run(us_ctx_pool(ctx), sketch_task, &j, k->n_experts);
        pthread_mutex_destroy(&j.lock);
        st = j.status;
        if (st != US_OK && err) *err = j.err;
        k->bytes = j.bytes;
        k->flops = (x[0].gate.form != US_DEQ_NONE ? 6.0 : 4.0) * (double)x[0].up.in * (double)x[0].up.out * p->n * k->n_experts;
    }
    for (int t = 0; j.scratch && t < threads; t++) scratch_free(&j.scratch[t]);
    us_free(j.scratch);
    us_free(signs);
    return st;
}

us_status us_sketch_block(us_ctx *ctx, const us_structure *s, size_t block, uint64_t seed, uint32_t dims, uint32_t probes, us_sketch *out, const char **why,
                          us_err *err) {
    const us_moe_block *b = &s->blocks[block];
    us__probes p = {0};
    us_sketch k = {0};
    *why = NULL;
    us_deq_expert *x = us_calloc(b->n_experts ? b->n_experts : 1, sizeof *x);
    us_status st = x ? us_deq_find(s, block, x, why, err) : us_fail_nomem(err, "finding experts");
    if (st == US_OK && !b->n_experts) *why = "it has no experts";
    if (st == US_OK && !*why) st = us__sketch_probes(s, block, seed, probes, x[0].up.in, &p, why, err);
    if (st == US_OK && !*why) st = sketch_create(&k, b->n_experts, dims, &p, err);
    if (st == US_OK && !*why) st = run_experts(ctx, s, block, seed, x, &p, &k, err);
    if (st == US_OK && !*why) *out = k;
    else us_sketch_free(&k);
    us_free(p.packed);
    us_free(p.expert);
    us_free(x);
    if (st != US_OK) us_err_where(err, "block %s", b->key);
    return st;
}
