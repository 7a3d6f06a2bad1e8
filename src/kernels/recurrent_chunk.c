/**
 * Chunkwise forms of the gated delta rule (scalar gates) and of Mamba-2: up to US_RECURRENT_CHUNK tokens at once by small matrix products on the tiles of gemm.h, the state
 * carried between chunks in f32. Every sum is a chain of fused multiply-adds in ascending order, so all instruction sets give the same bits.
 *
 * With G_t the sum of the log decays up to token t of the chunk, L[t][s] = exp(G_t - G_s) <= 1 for s <= t, and S the state before the chunk:
 *
 *     delta rule   d_t = beta_t (v_t - exp(G_t) S^T k_t - sum_{s<t} L[t][s] (k_t.k_s) d_s)
 *                  o_t = exp(G_t) S^T q_t + sum_{s<=t} L[t][s] (q_t.k_s) d_s
 *                  S  <- exp(G_n) S + sum_s L[n][s] k_s d_s^T
 *     Mamba-2      y_t = exp(G_t) h C_t + sum_{s<=t} L[t][s] (C_t.B_s) dt_s x_s + D x_t
 *                  h  <- exp(G_n) h + sum_s L[n][s] dt_s x_s B_s^T
 *
 * Sums of gates are double: behind a gate of -10000 the small ones still count. Sources and limits: recurrent.h. Tests: tests/unit/test_recurrent.c.
 */
#include <string.h>

#include "kernels/gemm.h"
#include "kernels/recurrent_kernels.h"

enum { C = US_RECURRENT_CHUNK, LDC = C + 16, LANES = US_GEMM_LANES };

static size_t padded(size_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

/* c[rows, cols] (cols a multiple of LANES) = (first ? 0 : c) + x[rows, k] times lanes: blocks of LANES columns, `deep` steps apart from one another. */
static void multiply(us_gemm_tile_fn *tile, size_t rows, size_t k, const float *x, size_t ldx, const float *lanes, size_t deep, size_t cols, float *c, size_t ldc, bool first) {
    for (size_t b = 0; b < cols / LANES; b++)
        for (size_t r = 0; r < rows; r += US_GEMM_ROWS)
            tile(k, x + r * ldx, ldx, rows - r < US_GEMM_ROWS ? rows - r : US_GEMM_ROWS, lanes + b * deep * LANES, c + r * ldc + b * LANES, ldc, first);
}

/* Rows [n, cols] (stride ld) into lanes of C steps, each row times its factor (NULL: 1). */
static void to_lanes(const float *x, size_t ld, const float *factor, size_t n, size_t cols, float *lanes) {
    for (size_t b = 0; b * LANES < cols; b++) {
        size_t width = cols - b * LANES < LANES ? cols - b * LANES : LANES;
        for (size_t t = 0; t < n; t++) {
            float *to = lanes + (b * C + t) * LANES, f = factor ? factor[t] : 1.0f;
            const float *from = x + t * ld + b * LANES;
            for (size_t i = 0; i < width; i++) to[i] = f * from[i];
            for (size_t i = width; i < LANES; i++) to[i] = 0.0f;
        }
    }
}

/* The n rows become columns: lanes of 32 tokens, `width` steps deep, zeros behind the last token; and the rows themselves side by side, for tiles. */
static void turn(const float *x, size_t ld, size_t n, size_t width, float *columns, float *rows, size_t ldr) {
    memset(columns, 0, padded(n) * width * sizeof *columns);
    for (size_t t = 0; t < n; t++) {
        memcpy(rows + t * ldr, x + t * ld, width * sizeof *rows);
        float *to = columns + t / LANES * width * LANES + t % LANES;
        for (size_t i = 0; i < width; i++) to[i * LANES] = x[t * ld + i];
    }
}

/* state[width rows] in lanes ([cols/LANES][width][LANES]) = keep * state + sum over tokens of columns^T lanes. */
static void carry(us_gemm_tile_fn *tile, float keep, size_t n, size_t width, const float *columns, const float *lanes, size_t cols, float *state) {
    for (size_t i = 0; i < width * cols; i++) state[i] = keep * state[i];
    for (size_t t = 0; t < n; t += LANES)
        for (size_t b = 0; b < cols / LANES; b++)
            for (size_t r = 0; r < width; r += US_GEMM_ROWS)
                tile(n - t < LANES ? n - t : LANES, columns + t * width + r * LANES, LANES, width - r < US_GEMM_ROWS ? width - r : US_GEMM_ROWS, lanes + (b * C + t) * LANES,
                     state + (b * width + r) * LANES, LANES, false);
}

/* A state [rows, cols] (element (r, c) at r*sr + c*sc) to lanes of its columns and back. */
static void load_state(const float *S, size_t sr, size_t sc, size_t rows, size_t cols, float *lanes) {
    memset(lanes, 0, rows * padded(cols) * sizeof *lanes);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) lanes[(c / LANES * rows + r) * LANES + c % LANES] = S[r * sr + c * sc];
}
static void store_state(const float *lanes, size_t sr, size_t sc, size_t rows, size_t cols, float *S) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) S[r * sr + c * sc] = lanes[(c / LANES * rows + r) * LANES + c % LANES];
}

/* L[t][s] for s <= t, zeros above; from[t] = exp(G_t). */
static void decays(const us_rec_kernels *k, const double *G, size_t n, float *L, float *from) {
    for (size_t t = 0; t < n; t++) {
        float *row = L + t * LDC;
        for (size_t s = 0; s <= t; s++) row[s] = (float)(G[t] - G[s]);
        k->decay(row, 1.0f, t + 1, row);
        for (size_t s = t + 1; s < n; s++) row[s] = 0.0f;
        from[t] = (float)G[t];
    }
    k->decay(from, 1.0f, n, from);
}

static float *carve(float **p, size_t n) {
    float *at = *p;
    *p += (n + 15) / 16 * 16;
    return at;
}

/* ---- gated delta rule ---- */

typedef struct delta_room {
    float *S;            /* lanes [dvp/LANES][dk][LANES] */
    float *keys;         /* columns of K */
    float *k, *q;        /* [C, dk + 16]: rows that do not share cache sets */
    float *kk, *qk, *L;  /* [C, LDC] */
    float *ks, *os;      /* [C, dvp] */
    float *d, *scaled;   /* lanes [dvp/LANES][C][LANES] */
    float *from;         /* [C] */
} delta_room;

size_t us_rec_delta_chunk_floats(size_t dk, size_t dv) {
    size_t dvp = padded(dv);
    return dk * dvp + C * dk + 2 * C * (dk + 16) + 3 * C * LDC + 4 * C * dvp + C + 16 * 12;
}

static delta_room delta_carve(float *p, size_t dk, size_t dv) {
    size_t dvp = padded(dv);
    delta_room w;
    w.S = carve(&p, dk * dvp);
    w.keys = carve(&p, C * dk);
    w.k = carve(&p, C * (dk + 16)), w.q = carve(&p, C * (dk + 16));
    w.kk = carve(&p, C * LDC), w.qk = carve(&p, C * LDC), w.L = carve(&p, C * LDC);
    w.ks = carve(&p, C * dvp), w.os = carve(&p, C * dvp), w.d = carve(&p, C * dvp), w.scaled = carve(&p, C * dvp);
    w.from = carve(&p, C);
    return w;
}

/* d_t row by row of tiles: what comes from rows of tiles before in one product, then the rows of the tile one after the other. right: beta (v - ...), becomes d, as rows and as lanes. */
static void solve(us_gemm_tile_fn *tile, size_t n, size_t dvp, const float *minus_a, float *right, float *d) {
    for (size_t r = 0; r < n; r += US_GEMM_ROWS) {
        size_t rows = n - r < US_GEMM_ROWS ? n - r : US_GEMM_ROWS;
        if (r) multiply(tile, rows, r, minus_a + r * LDC, LDC, d, C, dvp, right + r * dvp, dvp, false);
        for (size_t t = r; t < r + rows; t++)
            for (size_t b = 0; b < dvp / LANES; b++) {
                float *row = right + t * dvp + b * LANES, *lanes = d + b * C * LANES;
                if (t > r) tile(t - r, minus_a + t * LDC + r, LDC, 1, lanes + r * LANES, row, dvp, false);
                memcpy(lanes + t * LANES, row, LANES * sizeof *row);
            }
    }
}

static void delta_chunk(const us_rec_kernels *kern, us_gemm_tile_fn *tile, const us_delta *d, const us_delta_seq *s, size_t head, size_t t0, size_t n, const delta_room *w) {
    size_t dk = d->dk, dv = d->dv, dvp = padded(dv), Hv = d->value_heads, hk = head / (Hv / d->key_heads);
    const float *k = s->k + t0 * s->ldqk + hk * dk, *q = s->q + t0 * s->ldqk + hk * dk;
    double G[C], sum = 0;
    for (size_t t = 0; t < n; t++) G[t] = sum += (double)s->g[(t0 + t) * Hv + head];
    decays(kern, G, n, w->L, w->from);
    turn(k, s->ldqk, n, dk, w->keys, w->k, dk + 16);
    for (size_t t = 0; t < n; t++) memcpy(w->q + t * (dk + 16), q + t * s->ldqk, dk * sizeof *q);
    multiply(tile, n, dk, w->k, dk + 16, w->keys, dk, padded(n), w->kk, LDC, true);
    multiply(tile, n, dk, w->q, dk + 16, w->keys, dk, padded(n), w->qk, LDC, true);
    multiply(tile, n, dk, w->k, dk + 16, w->S, dk, dvp, w->ks, dvp, true);
    multiply(tile, n, dk, w->q, dk + 16, w->S, dk, dvp, w->os, dvp, true);
    for (size_t t = 0; t < n; t++) {
        float beta = s->beta[(t0 + t) * Hv + head], e = w->from[t], *right = w->ks + t * dvp, *o = w->os + t * dvp;
        const float *v = s->v + (t0 + t) * s->ldv + head * dv;
        for (size_t i = 0; i < dv; i++) right[i] = beta * (v[i] - e * right[i]);
        for (size_t i = dv; i < dvp; i++) right[i] = 0.0f;
        for (size_t i = 0; i < dvp; i++) o[i] = e * o[i];
        float *a = w->kk + t * LDC, *p = w->qk + t * LDC;
        const float *L = w->L + t * LDC;
        for (size_t i = 0; i < n; i++) a[i] = -(beta * (L[i] * a[i])), p[i] = L[i] * p[i];
    }
    solve(tile, n, dvp, w->kk, w->ks, w->d);
    for (size_t r = 0; r < n; r += US_GEMM_ROWS) { /* rows see nothing behind their tile's last one */
        size_t rows = n - r < US_GEMM_ROWS ? n - r : US_GEMM_ROWS;
        multiply(tile, rows, r + rows, w->qk + r * LDC, LDC, w->d, C, dvp, w->os + r * dvp, dvp, false);
    }
    for (size_t t = 0; t < n; t++) memcpy(s->out + (t0 + t) * s->ldo + head * dv, w->os + t * dvp, dv * sizeof(float));

    to_lanes(w->ks, dvp, w->L + (n - 1) * LDC, n, dvp, w->scaled); /* solve left the d_t in ks too */
    carry(tile, w->from[n - 1], n, dk, w->keys, w->scaled, dvp, w->S);
}

void us_rec_delta_chunks(const us_rec_kernels *kern, us_isa isa, const us_delta *d, const us_delta_seq *s, size_t head, size_t n, float *scratch) {
    size_t dk = d->dk, dv = d->dv;
    us_gemm_tile_fn *tile = us_gemm_tile(isa, US_DTYPE_F32);
    delta_room w = delta_carve(scratch, dk, dv);
    float *S = s->state + head * dk * dv;
    load_state(S, dv, 1, dk, dv, w.S);
    for (size_t t = 0; t < n; t += C) delta_chunk(kern, tile, d, s, head, t, n - t < C ? n - t : C, &w);
    store_state(w.S, dv, 1, dk, dv, S);
}

/* ---- Mamba-2 ---- */

typedef struct mamba_room {
    float *h;             /* lanes [Pp/LANES][N][LANES]: the state turned */
    float *bs;            /* columns of B */
    float *b, *c;         /* [C, N + 16] */
    float *cb, *L;        /* [C, LDC] */
    float *y;             /* [C, Pp] */
    float *x, *scaled;    /* lanes [Pp/LANES][C][LANES] */
    float *from;          /* [C] */
} mamba_room;

size_t us_rec_mamba_chunk_floats(size_t P, size_t N) {
    size_t Pp = padded(P);
    return Pp * N + C * N + 2 * C * (N + 16) + 2 * C * LDC + 3 * C * Pp + C + 16 * 12;
}

static mamba_room mamba_carve(float *p, size_t P, size_t N) {
    size_t Pp = padded(P);
    mamba_room w;
    w.h = carve(&p, Pp * N);
    w.bs = carve(&p, C * N);
    w.b = carve(&p, C * (N + 16)), w.c = carve(&p, C * (N + 16));
    w.cb = carve(&p, C * LDC), w.L = carve(&p, C * LDC);
    w.y = carve(&p, C * Pp), w.x = carve(&p, C * Pp), w.scaled = carve(&p, C * Pp);
    w.from = carve(&p, C);
    return w;
}

static void mamba_chunk(const us_rec_kernels *kern, us_gemm_tile_fn *tile, const us_mamba2 *m, const us_mamba2_seq *s, size_t head, size_t t0, size_t n, const mamba_room *w) {
    size_t P = m->dim, N = m->state, Pp = padded(P), group = head / (m->heads / m->groups);
    const float *x = s->x + t0 * s->ldx + head * P, *B = s->B + t0 * s->ldbc + group * N, *Cm = s->C + t0 * s->ldbc + group * N;
    double G[C], sum = 0;
    float dt[C], factor[C];
    for (size_t t = 0; t < n; t++) {
        dt[t] = s->dt[(t0 + t) * m->heads + head];
        G[t] = sum += (double)dt[t] * (double)m->A[head];
    }
    decays(kern, G, n, w->L, w->from);
    for (size_t t = 0; t < n; t++) factor[t] = w->L[(n - 1) * LDC + t] * dt[t];
    turn(B, s->ldbc, n, N, w->bs, w->b, N + 16);
    for (size_t t = 0; t < n; t++) memcpy(w->c + t * (N + 16), Cm + t * s->ldbc, N * sizeof *Cm);
    to_lanes(x, s->ldx, dt, n, P, w->x);
    to_lanes(x, s->ldx, factor, n, P, w->scaled);
    multiply(tile, n, N, w->c, N + 16, w->bs, N, padded(n), w->cb, LDC, true);
    multiply(tile, n, N, w->c, N + 16, w->h, N, Pp, w->y, Pp, true);
    for (size_t t = 0; t < n; t++) {
        float *row = w->cb + t * LDC, *y = w->y + t * Pp;
        const float *L = w->L + t * LDC;
        for (size_t i = 0; i < n; i++) row[i] = L[i] * row[i];
        for (size_t i = 0; i < Pp; i++) y[i] = w->from[t] * y[i];
    }
    for (size_t r = 0; r < n; r += US_GEMM_ROWS) {
        size_t rows = n - r < US_GEMM_ROWS ? n - r : US_GEMM_ROWS;
        multiply(tile, rows, r + rows, w->cb + r * LDC, LDC, w->x, C, Pp, w->y + r * Pp, Pp, false);
    }
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < P; i++) s->out[(t0 + t) * s->ldo + head * P + i] = m->D[head] * x[t * s->ldx + i] + w->y[t * Pp + i];
    carry(tile, w->from[n - 1], n, N, w->bs, w->scaled, Pp, w->h);
}

void us_rec_mamba_chunks(const us_rec_kernels *kern, us_isa isa, const us_mamba2 *m, const us_mamba2_seq *s, size_t head, size_t n, float *scratch) {
    size_t P = m->dim, N = m->state;
    us_gemm_tile_fn *tile = us_gemm_tile(isa, US_DTYPE_F32);
    mamba_room w = mamba_carve(scratch, P, N);
    float *h = s->state + head * P * N;
    load_state(h, 1, N, N, P, w.h);
    for (size_t t = 0; t < n; t += C) mamba_chunk(kern, tile, m, s, head, t, n - t < C ? n - t : C, &w);
    store_state(w.h, 1, N, N, P, h);
}
