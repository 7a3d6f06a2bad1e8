/**
 * Recurrent mixers: choice of kernels, split into tasks (one sequence, one head), scratch memory. See recurrent.h; inner kernels: recurrent_kernels.h.
 * Tests: tests/unit/test_recurrent.c.
 */
#include "kernels/recurrent.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels/recurrent_kernels.h"

const us_rec_kernels *us_rec_kernels_active(void) {
    switch (us_isa_active()) {
    case US_ISA_REF: return &us__rec_ref;
#if defined(__x86_64__)
    case US_ISA_AVX2: return &us__rec_avx2;
    case US_ISA_AVX512: return &us__rec_avx512;
#endif
    default: return &us__rec_lanes;
    }
}

void us_conv1d(const float *x, size_t ldx, const float *w, const float *bias, size_t n, size_t C, size_t K, bool silu, float *tail, size_t ldt, float *y, size_t ldy) {
    if (!n || !C || !K) return;
    us_rec_kernels_active()->conv(x, ldx, w, bias, n, C, K, silu, tail, ldt, y, ldy);
    size_t keep = K - 1, from = n < keep ? keep - n : 0; /* rows of the old tail that stay */
    for (size_t i = 0; i < from; i++) memcpy(tail + i * ldt, tail + (i + n) * ldt, C * sizeof *tail);
    for (size_t i = from; i < keep; i++) memcpy(tail + i * ldt, x + (n - keep + i) * ldx, C * sizeof *tail);
}

/* ---- gated delta rule ---- */

/* Measured with bench_recurrent: from where on chunks are faster. Gates per channel never are. */
enum { DELTA_CHUNKS_FROM = 256, MAMBA_CHUNKS_FROM = 64 };

typedef struct delta_job {
    const us_delta *d;
    const us_delta_seq *seqs;
    const us_rec_kernels *kernels;
    float *scratch; /* per thread: a, ak, aq [BATCH, dk], kq [BATCH] */
    size_t per_thread;
} delta_job;

/* Tokens that go by chunks; the rest, at the end, one after the other. Shorter segments gain nothing: packing the state costs as much as it saves. */
static size_t by_chunks(size_t n, size_t least, bool exact) {
    if (exact || n < least) return 0;
    return n % US_RECURRENT_CHUNK < US_RECURRENT_CHUNK / 4 ? n / US_RECURRENT_CHUNK * US_RECURRENT_CHUNK : n;
}

static size_t delta_scratch(const us_delta *d) {
    size_t serial = (size_t)US_REC_BATCH * (3 * (size_t)d->dk + 1), chunks = d->exact || d->per_channel ? 0 : us_rec_delta_chunk_floats(d->dk, d->dv);
    return ((serial > chunks ? serial : chunks) + 15) / 16 * 16;
}

/* Tokens t .. t+n of one head, prepared and run one after the other. */
static void delta_serial(const delta_job *j, const us_delta_seq *s, size_t head, size_t t, size_t n, float *scratch) {
    const us_delta *d = j->d;
    size_t dk = d->dk, dv = d->dv, Hv = d->value_heads, hk = head / (Hv / d->key_heads);
    float *a = scratch, *ak = a + US_REC_BATCH * dk, *aq = ak + US_REC_BATCH * dk, *kq = aq + US_REC_BATCH * dk;
    for (size_t i = 0; i < n; i++) {
        const float *k = s->k + (t + i) * s->ldqk + hk * dk, *q = s->q + (t + i) * s->ldqk + hk * dk, *g = s->g + ((t + i) * Hv + head) * (d->per_channel ? dk : 1);
        j->kernels->decay(g, 1.0f, d->per_channel ? dk : 1, a + i * dk);
        for (size_t c = 1; c < dk && !d->per_channel; c++) a[i * dk + c] = a[i * dk];
        j->kernels->product(a + i * dk, k, dk, ak + i * dk);
        j->kernels->product(a + i * dk, q, dk, aq + i * dk);
        kq[i] = j->kernels->dot(k, q, dk);
    }
    us_rec_rows r = {.k = s->k + t * s->ldqk + hk * dk, .ldk = s->ldqk, .v = s->v + t * s->ldv + head * dv, .ldv = s->ldv, .beta = s->beta + t * Hv + head, .ldbeta = Hv};
    r.a = a, r.ak = ak, r.aq = aq, r.kq = kq, r.out = s->out + t * s->ldo + head * dv, r.ldo = s->ldo;
    j->kernels->delta(n, dk, dv, &r, s->state + head * dk * dv);
}

static void delta_task(void *arg, int64_t i, int thread) {
    const delta_job *j = arg;
    const us_delta_seq *s = j->seqs + (size_t)i / j->d->value_heads;
    size_t head = (size_t)i % j->d->value_heads;
    float *scratch = j->scratch + (size_t)thread * j->per_thread;
    size_t done = by_chunks(s->n, DELTA_CHUNKS_FROM, j->d->exact || j->d->per_channel);
    if (done) us_rec_delta_chunks(j->kernels, us_isa_active(), j->d, s, head, done, scratch);
    for (size_t t = done; t < s->n; t += US_REC_BATCH) delta_serial(j, s, head, t, s->n - t < US_REC_BATCH ? s->n - t : US_REC_BATCH, scratch);
}

us_status us_delta_rule(us_pool *pool, const us_delta *d, const us_delta_seq *seqs, size_t n_seqs, us_err *err) {
    if (!d->key_heads || !d->value_heads || !d->dk || !d->dv || d->value_heads % d->key_heads)
        return us_fail(err, US_E_INVAL, "delta rule", "%u key heads and %u value heads of %u x %u do not fit together", d->key_heads, d->value_heads, d->dk, d->dv);
    delta_job j = {.d = d, .seqs = seqs, .kernels = us_rec_kernels_active(), .per_thread = delta_scratch(d)};
    size_t bytes;
    if (!us_mul_size(j.per_thread, sizeof(float) * (size_t)us_pool_threads(pool), &bytes) || !(j.scratch = us_malloc_aligned(bytes)))
        return us_fail_nomem(err, "the gated delta rule");
    us_pool_run(pool, delta_task, &j, (int64_t)(n_seqs * d->value_heads));
    us_free(j.scratch);
    return US_OK;
}

/* ---- Mamba-2 ---- */

typedef struct mamba_job {
    const us_mamba2 *m;
    const us_mamba2_seq *seqs;
    const us_rec_kernels *kernels;
    float *scratch; /* of chunks, per thread; NULL in the exact mode */
    size_t per_thread;
} mamba_job;

static void mamba_task(void *arg, int64_t i, int thread) {
    const mamba_job *j = arg;
    const us_mamba2 *m = j->m;
    size_t head = (size_t)i % m->heads, group = head / (m->heads / m->groups);
    us_mamba2_seq s = j->seqs[(size_t)i / m->heads];
    float dt[US_REC_BATCH], decay[US_REC_BATCH], *S = s.state + head * m->dim * m->state;
    size_t done = by_chunks(s.n, MAMBA_CHUNKS_FROM, m->exact);
    if (done) us_rec_mamba_chunks(j->kernels, us_isa_active(), m, &s, head, done, j->scratch + (size_t)thread * j->per_thread);
    s.n -= done, s.x += done * s.ldx, s.B += done * s.ldbc, s.C += done * s.ldbc, s.dt += done * m->heads, s.out += done * s.ldo;
    for (size_t left = s.n, n; left; left -= n) {
        n = left < US_REC_BATCH ? left : US_REC_BATCH;
        for (size_t t = 0; t < n; t++) dt[t] = s.dt[t * m->heads + head];
        j->kernels->decay(dt, m->A[head], n, decay);
        j->kernels->mamba(n, m->dim, m->state, &s, head, group, m->heads, m->D[head], decay, S);
        s.x += n * s.ldx, s.B += n * s.ldbc, s.C += n * s.ldbc, s.dt += n * m->heads, s.out += n * s.ldo;
    }
}

us_status us_mamba2_run(us_pool *pool, const us_mamba2 *m, const us_mamba2_seq *seqs, size_t n_seqs, us_err *err) {
    if (!m->heads || !m->dim || !m->groups || !m->state || m->heads % m->groups)
        return us_fail(err, US_E_INVAL, "Mamba-2", "%u heads of %u and %u groups of %u do not fit together", m->heads, m->dim, m->groups, m->state);
    mamba_job j = {.m = m, .seqs = seqs, .kernels = us_rec_kernels_active(), .per_thread = m->exact ? 0 : (us_rec_mamba_chunk_floats(m->dim, m->state) + 15) / 16 * 16};
    size_t bytes = 0;
    if (!m->exact && (!us_mul_size(j.per_thread, sizeof(float) * (size_t)us_pool_threads(pool), &bytes) || !(j.scratch = us_malloc_aligned(bytes)))) return us_fail_nomem(err, "Mamba-2");
    us_pool_run(pool, mamba_task, &j, (int64_t)(n_seqs * m->heads));
    us_free(j.scratch);
    return US_OK;
}
