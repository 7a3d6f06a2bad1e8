/**
 * Recurrent mixers: against the double reference; the same bits for every instruction set, number of threads, batch, and cut of the sequence into segments; the
 * chunkwise form within its bound, also under strong decay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "support/prop.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "kernels/dispatch.h"
#include "kernels/recurrent.h"
#include "kernels/ref.h"

/*
 * Largest error over all rows, each relative to `size`[row] (NULL: the largest element of all of ref). The size of an output row is the largest sum of magnitudes
 * |S||q| of its elements: q may be nearly orthogonal to the state, and then no order of f32 operations keeps digits of the small result.
 */
static double row_error(const float *y, size_t ldy, const double *ref, const double *size, size_t rows, size_t width) {
    double worst = 0, top = 0;
    for (size_t i = 0; i < rows * width; i++) top = fmax(top, fabs(ref[i]));
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c++) {
            double e = fabs((double)y[r * ldy + c] - ref[r * width + c]) / ((size ? size[r] : top) + 1e-30);
            if (!(e <= worst)) worst = e; /* NaN stays */
        }
    return worst;
}

static double *widened(const float *x, size_t rows, size_t ld, size_t width) {
    double *d = us_malloc((rows * width + 1) * sizeof *d);
    assert_non_null(d);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c++) d[r * width + c] = (double)x[r * ld + c];
    return d;
}

static float *room(size_t n) {
    float *p = us_calloc(n + 1, sizeof *p);
    assert_non_null(p);
    return p;
}

static us_pool *pool_of(int threads) {
    us_pool *pool = NULL;
    us_err err = {0};
    assert_int_equal(us_pool_create(threads, &pool, &err), US_OK);
    return pool;
}

/* ---- convolution ---- */

typedef struct conv_case {
    size_t n, C, K, ldx, ldy;
    float *x, *w, *bias;
} conv_case;

static conv_case conv_make(size_t n, size_t C, size_t K, uint64_t seed) {
    conv_case c = {.n = n, .C = C, .K = K, .ldx = C + 3, .ldy = C + 5};
    c.x = room(n * c.ldx), c.w = room(C * K), c.bias = room(C);
    for (size_t i = 0; i < n * c.ldx; i++) c.x[i] = (float)us_rng_normal(seed, 1, i);
    for (size_t i = 0; i < C * K; i++) c.w[i] = (float)us_rng_normal(seed, 2, i);
    for (size_t i = 0; i < C; i++) c.bias[i] = (float)us_rng_normal(seed, 3, i);
    if (n) c.x[0] = 200.0f, c.x[n * c.ldx - 4] = -200.0f;
    return c;
}

static void conv_free(conv_case *c) {
    us_free(c->x);
    us_free(c->w);
    us_free(c->bias);
}

/* The whole in segments of `step` tokens. */
static float *conv_run(const conv_case *c, bool bias, bool silu, size_t step) {
    float *y = room(c->n * c->ldy), *tail = room(c->K * c->C);
    for (size_t t = 0; t < c->n; t += step) {
        size_t n = c->n - t < step ? c->n - t : step;
        us_conv1d(c->x + t * c->ldx, c->ldx, c->w, bias ? c->bias : NULL, n, c->C, c->K, silu, tail, c->C, y + t * c->ldy, c->ldy);
    }
    for (size_t i = 0; i + 1 < c->K; i++) /* the tail holds the last tokens */
        for (size_t ch = 0; ch < c->C; ch++) {
            float want = c->n + i + 1 >= c->K ? c->x[(c->n + i + 1 - c->K) * c->ldx + ch] : 0.0f;
            assert_memory_equal(&tail[i * c->C + ch], &want, sizeof want);
        }
    us_free(tail);
    return y;
}

static void convolution_follows_the_reference(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1}, {3, 5, 4}, {40, 300, 4}, {17, 33, 2}, {2, 64, 4}, {9, 21, 11}, {0, 4, 4}, {70, 512, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        conv_case c = conv_make(shapes[i][0], shapes[i][1], shapes[i][2], i);
        double *x = widened(c.x, c.n, c.ldx, c.C), *w = widened(c.w, c.C, c.K, c.K), *b = widened(c.bias, 1, c.C, c.C), *ref = us_malloc((c.n * c.C + 1) * sizeof *ref);
        assert_non_null(ref);
        for (int form = 0; form < 4; form++) {
            bool bias = form & 1, silu = form & 2;
            us_ref_conv1d(x, w, bias ? b : NULL, c.n, c.C, c.K, silu, ref);
            us_isa_force(US_ISA_REF);
            float *want = conv_run(&c, bias, silu, 1000);
            for (size_t e = 0; e < c.n * c.C; e++) {
                double got = (double)want[e / c.C * c.ldy + e % c.C], size = fabs(ref[e]) + 1.0;
                if (e / c.C < c.K || e / c.C + 1 == c.n) size += 200; /* the large values of conv_make */
                assert_true(fabs(got - ref[e]) <= 2e-6 * size);
            }
            for (int isa = 0; isa < US_ISA_COUNT; isa++) {
                if (!us_isa_force((us_isa)isa)) continue;
                for (size_t step = 1; step < 50; step = step * 3 + 1) {
                    float *y = conv_run(&c, bias, silu, step);
                    assert_memory_equal(y, want, c.n * c.ldy * sizeof *y);
                    us_free(y);
                }
            }
            us_free(want);
        }
        us_free(x);
        us_free(w);
        us_free(b);
        us_free(ref);
        conv_free(&c);
    }
    us_isa_force(US_ISA_COUNT);
}

/* ---- gated delta rule ---- */

typedef enum gates { GATES_MIXED, GATES_WEAK, GATES_STRONG, GATES_NONE, GATES_WALL, GATES_COUNT } gates;

typedef struct delta_case {
    us_delta d;
    size_t n, ldqk, ldv, ldo;
    float *q, *k, *v, *g, *beta;
} delta_case;

static float gate_of(gates kind, uint64_t seed, size_t i) {
    double u = us_rng_double(seed, 11, i), z = us_rng_double(seed, 12, i);
    switch (kind) {
    case GATES_WEAK: return (float)(-0.02 * u);
    case GATES_STRONG: return (float)(-30.0 * u);
    case GATES_NONE: return 0.0f;
    case GATES_WALL: return z < 0.1 ? -1e4f : (float)(-0.1 * u); /* forget everything now and then */
    default: return z < 0.05 ? -1e4f : z < 0.1 ? 0.0f : z < 0.3 ? (float)(-90.0 * u) : (float)(-u * u);
    }
}

static void unit_rows(float *x, size_t rows, size_t width, double scale) {
    for (size_t r = 0; r < rows; r++) {
        double s = 1e-6;
        for (size_t i = 0; i < width; i++) s += (double)x[r * width + i] * (double)x[r * width + i];
        for (size_t i = 0; i < width; i++) x[r * width + i] = (float)((double)x[r * width + i] * scale / sqrt(s));
    }
}

static delta_case delta_make(us_delta d, size_t n, gates kind, uint64_t seed) {
    delta_case c = {.d = d, .n = n, .ldqk = (size_t)d.key_heads * d.dk, .ldv = (size_t)d.value_heads * d.dv + 7, .ldo = (size_t)d.value_heads * d.dv + 1};
    size_t gate_n = n * d.value_heads * (d.per_channel ? d.dk : 1);
    c.q = room(n * c.ldqk), c.k = room(n * c.ldqk), c.v = room(n * c.ldv), c.g = room(gate_n), c.beta = room(n * d.value_heads);
    for (size_t i = 0; i < n * c.ldqk; i++) c.q[i] = (float)us_rng_normal(seed, 1, i), c.k[i] = (float)us_rng_normal(seed, 2, i);
    unit_rows(c.q, n * d.key_heads, d.dk, 1 / sqrt(d.dk));
    unit_rows(c.k, n * d.key_heads, d.dk, 1);
    for (size_t i = 0; i < n * c.ldv; i++) c.v[i] = (float)us_rng_normal(seed, 3, i);
    for (size_t i = 0; i < gate_n; i++) c.g[i] = gate_of(kind, seed, i);
    for (size_t i = 0; i < n * d.value_heads; i++) {
        double u = us_rng_double(seed, 4, i);
        c.beta[i] = u < 0.1 ? 0.0f : u > 0.9 ? 1.0f : (float)u;
    }
    return c;
}

static void delta_free(delta_case *c) {
    us_free(c->q);
    us_free(c->k);
    us_free(c->v);
    us_free(c->g);
    us_free(c->beta);
}

static size_t delta_state_n(const us_delta *d) {
    return (size_t)d->value_heads * d->dk * d->dv;
}

/* Tokens from .. from+n as a segment. */
static us_delta_seq delta_part(const delta_case *c, size_t from, size_t n, float *state, float *out) {
    size_t Hv = c->d.value_heads, gw = c->d.per_channel ? c->d.dk : 1;
    return (us_delta_seq){.n = n, .q = c->q + from * c->ldqk, .k = c->k + from * c->ldqk, .ldqk = c->ldqk, .v = c->v + from * c->ldv, .ldv = c->ldv,
                          .g = c->g + from * Hv * gw, .beta = c->beta + from * Hv, .state = state, .out = out + from * c->ldo, .ldo = c->ldo};
}

static void delta_run(us_pool *pool, const delta_case *c, bool exact, size_t step, float *state, float *out) {
    us_delta d = c->d;
    d.exact = exact;
    memset(state, 0, delta_state_n(&d) * sizeof *state);
    us_err err = {0};
    for (size_t t = 0; t < c->n; t += step) {
        us_delta_seq s = delta_part(c, t, c->n - t < step ? c->n - t : step, state, out);
        assert_int_equal(us_delta_rule(pool, &d, &s, 1, &err), US_OK);
    }
}

/* Outputs and the last head's state. */
static void delta_reference(const delta_case *c, double *out, double *state) {
    us_delta d = c->d;
    double *q = widened(c->q, c->n, c->ldqk, c->ldqk), *k = widened(c->k, c->n, c->ldqk, c->ldqk), *v = widened(c->v, c->n, c->ldv, (size_t)d.value_heads * d.dv);
    double *g = widened(c->g, c->n * d.value_heads, d.per_channel ? d.dk : 1, d.per_channel ? d.dk : 1), *b = widened(c->beta, c->n, d.value_heads, d.value_heads);
    us_ref_delta_rule(q, k, v, g, d.per_channel, b, c->n, d.key_heads, d.value_heads, d.dk, d.dv, state, out);
    us_free(q);
    us_free(k);
    us_free(v);
    us_free(g);
    us_free(b);
}

/* Sizes of the output rows [n, Hv]: see row_error. */
static double *delta_sizes(const delta_case *c, const double *ref) {
    us_delta d = c->d;
    size_t Hv = d.value_heads;
    double *size = us_calloc(c->n * Hv + 1, sizeof *size), *S = us_malloc((size_t)d.dk * d.dv * sizeof *S);
    assert_true(size && S);
    for (size_t h = 0; h < Hv; h++) {
        memset(S, 0, (size_t)d.dk * d.dv * sizeof *S);
        for (size_t t = 0; t < c->n; t++) {
            const float *q = c->q + t * c->ldqk + h / (Hv / d.key_heads) * d.dk, *k = c->k + (q - c->q), *g = c->g + (t * Hv + h) * (d.per_channel ? d.dk : 1);
            for (size_t j = 0; j < d.dv; j++) {
                double seen = 0, read = 0, sum = 0;
                for (size_t i = 0; i < d.dk; i++) seen += (S[i * d.dv + j] *= exp((double)g[d.per_channel ? i : 0])) * (double)k[i];
                for (size_t i = 0; i < d.dk; i++) {
                    S[i * d.dv + j] += (double)k[i] * (double)c->beta[t * Hv + h] * ((double)c->v[t * c->ldv + h * d.dv + j] - seen);
                    read += S[i * d.dv + j] * (double)q[i];
                    sum += fabs(S[i * d.dv + j] * (double)q[i]);
                }
                size[t * Hv + h] = fmax(size[t * Hv + h], sum);
                assert_true(fabs(read - ref[(t * Hv + h) * d.dv + j]) <= 1e-12 * (sum + 1e-30)); /* two references say the same */
            }
        }
    }
    us_free(S);
    return size;
}

static const us_delta delta_shapes[] = {
    {1, 1, 1, 1, 0, 0}, {1, 2, 16, 16, 0, 0}, {2, 2, 24, 40, 0, 0}, {1, 3, 128, 128, 0, 0}, {2, 4, 64, 72, 0, 0}, {1, 1, 7, 200, 0, 0}, {1, 1, 96, 19, 0, 0},
};

static void delta_rule_follows_the_reference(void **state) {
    (void)state;
    double worst[2] = {0};
    for (size_t i = 0; i < sizeof delta_shapes / sizeof *delta_shapes; i++)
        for (int form = 0; form < 2 * GATES_COUNT; form++) {
            us_delta d = delta_shapes[i];
            d.per_channel = form & 1;
            delta_case c = delta_make(d, i == 0 ? 65 : 262 + i, (gates)(form / 2), i);
            size_t rows = c.n * d.value_heads, count = delta_state_n(&d), head = (size_t)d.dk * d.dv;
            float *S = room(count), *out = room(c.n * c.ldo);
            double *ref = us_malloc(rows * d.dv * sizeof *ref), *ref_S = us_malloc(head * sizeof *ref_S);
            assert_true(ref && ref_S);
            delta_reference(&c, ref, ref_S);
            double *size = delta_sizes(&c, ref);
            for (int exact = 0; exact < 2; exact++) {
                delta_run(NULL, &c, exact, c.n, S, out);
                double e = 0, es = row_error(S + count - head, d.dv, ref_S, NULL, d.dk, d.dv);
                for (size_t t = 0; t < c.n; t++) {
                    size_t at = t * d.value_heads;
                    double of_token = row_error(out + t * c.ldo, d.dv, ref + at * d.dv, size + at, d.value_heads, d.dv);
                    e = of_token <= e ? e : of_token;
                }
                worst[exact] = fmax(worst[exact], fmax(e, es));
                if (!(e < 1e-5 && es < 1e-5)) print_message("shape %zu, gates %d, per channel %d, exact %d: output %g, state %g\n", i, form / 2, form & 1, exact, e, es);
            }
            us_free(S);
            us_free(out);
            us_free(ref);
            us_free(ref_S);
            us_free(size);
            delta_free(&c);
        }
    print_message("worst: chunks %g, serial %g\n", worst[0], worst[1]);
    assert_true(worst[0] < 1e-5 && worst[1] < 1e-5);
}

static void delta_rule_is_the_same_everywhere(void **state) {
    (void)state;
    us_pool *pool = pool_of(3);
    for (size_t i = 0; i < sizeof delta_shapes / sizeof *delta_shapes; i++)
        for (int form = 0; form < 4; form++) {
            us_delta d = delta_shapes[i];
            d.per_channel = form & 1;
            bool exact = form & 2;
            delta_case c = delta_make(d, 277, GATES_MIXED, i);
            size_t count = delta_state_n(&d);
            float *S = room(count), *out = room(c.n * c.ldo), *want_S = room(count), *want = room(c.n * c.ldo);
            us_isa_force(US_ISA_REF);
            delta_run(NULL, &c, exact, c.n, want_S, want);
            for (int isa = 0; isa < US_ISA_COUNT; isa++) {
                if (!us_isa_force((us_isa)isa)) continue;
                static const size_t steps[] = {1000, 1, 33, 64};
                for (size_t s = 0; s < (exact ? 4 : 1); s++) {
                    delta_run(s & 1 ? NULL : pool, &c, exact, steps[s], S, out);
                    assert_memory_equal(out, want, c.n * c.ldo * sizeof *out);
                    assert_memory_equal(S, want_S, count * sizeof *S);
                }
            }
            us_free(S);
            us_free(out);
            us_free(want_S);
            us_free(want);
            delta_free(&c);
        }
    us_isa_force(US_ISA_COUNT);
    us_pool_free(pool);
}

/* ---- Mamba-2 ---- */

typedef struct mamba_case {
    us_mamba2 m;
    size_t n, ldx, ldbc, ldo;
    float *x, *B, *C, *dt, *A, *D;
} mamba_case;

static mamba_case mamba_make(us_mamba2 m, size_t n, int kind, uint64_t seed) {
    mamba_case c = {.m = m, .n = n, .ldx = (size_t)m.heads * m.dim + 3, .ldbc = (size_t)m.groups * m.state + 1, .ldo = (size_t)m.heads * m.dim + 2};
    c.x = room(n * c.ldx), c.B = room(n * c.ldbc), c.C = room(n * c.ldbc), c.dt = room(n * m.heads), c.A = room(m.heads), c.D = room(m.heads);
    for (size_t i = 0; i < n * c.ldx; i++) c.x[i] = (float)us_rng_normal(seed, 1, i);
    for (size_t i = 0; i < n * c.ldbc; i++) c.B[i] = (float)us_rng_normal(seed, 2, i), c.C[i] = (float)us_rng_normal(seed, 3, i);
    for (size_t i = 0; i < n * m.heads; i++) {
        double u = us_rng_double(seed, 4, i), z = us_rng_double(seed, 5, i);
        c.dt[i] = (float)(kind == 0 ? 0.1 * u : kind == 1 ? 20 * u : z < 0.1 ? 1e4 : z < 0.2 ? 0.0 : u);
    }
    for (size_t i = 0; i < m.heads; i++) c.A[i] = (float)(-16 * us_rng_double(seed, 6, i)), c.D[i] = (float)us_rng_normal(seed, 7, i);
    c.m.A = c.A, c.m.D = c.D;
    return c;
}

static void mamba_free(mamba_case *c) {
    us_free(c->x);
    us_free(c->B);
    us_free(c->C);
    us_free(c->dt);
    us_free(c->A);
    us_free(c->D);
}

static size_t mamba_state_n(const us_mamba2 *m) {
    return (size_t)m->heads * m->dim * m->state;
}

static us_mamba2_seq mamba_part(const mamba_case *c, size_t from, size_t n, float *state, float *out) {
    return (us_mamba2_seq){.n = n, .x = c->x + from * c->ldx, .B = c->B + from * c->ldbc, .C = c->C + from * c->ldbc, .ldx = c->ldx, .ldbc = c->ldbc,
                           .dt = c->dt + from * c->m.heads, .state = state, .out = out + from * c->ldo, .ldo = c->ldo};
}

static void mamba_run(us_pool *pool, const mamba_case *c, bool exact, size_t step, float *state, float *out) {
    us_mamba2 m = c->m;
    m.exact = exact;
    memset(state, 0, mamba_state_n(&m) * sizeof *state);
    us_err err = {0};
    for (size_t t = 0; t < c->n; t += step) {
        us_mamba2_seq s = mamba_part(c, t, c->n - t < step ? c->n - t : step, state, out);
        assert_int_equal(us_mamba2_run(pool, &m, &s, 1, &err), US_OK);
    }
}

static void mamba_reference(const mamba_case *c, double *out, double *state) {
    us_mamba2 m = c->m;
    size_t xw = (size_t)m.heads * m.dim, bw = (size_t)m.groups * m.state;
    double *x = widened(c->x, c->n, c->ldx, xw), *B = widened(c->B, c->n, c->ldbc, bw), *C = widened(c->C, c->n, c->ldbc, bw);
    double *dt = widened(c->dt, c->n, m.heads, m.heads), *A = widened(c->A, 1, m.heads, m.heads), *D = widened(c->D, 1, m.heads, m.heads);
    us_ref_mamba2(x, B, C, dt, A, D, c->n, m.heads, m.dim, m.groups, m.state, state, out);
    us_free(x);
    us_free(B);
    us_free(C);
    us_free(dt);
    us_free(A);
    us_free(D);
}

/* Sizes of the output rows [n, H]: see row_error. */
static double *mamba_sizes(const mamba_case *c) {
    us_mamba2 m = c->m;
    double *size = us_calloc(c->n * m.heads + 1, sizeof *size), *S = us_malloc((size_t)m.state * sizeof *S);
    assert_true(size && S);
    for (size_t h = 0; h < m.heads; h++)
        for (size_t p = 0; p < m.dim; p++) {
            memset(S, 0, m.state * sizeof *S);
            for (size_t t = 0; t < c->n; t++) {
                double dt = (double)c->dt[t * m.heads + h], x = (double)c->x[t * c->ldx + h * m.dim + p], sum = fabs((double)c->D[h] * x);
                for (size_t i = 0; i < m.state; i++) {
                    size_t at = t * c->ldbc + h / (m.heads / m.groups) * m.state + i;
                    S[i] = exp(dt * (double)c->A[h]) * S[i] + dt * (double)c->B[at] * x;
                    sum += fabs((double)c->C[at] * S[i]);
                }
                size[t * m.heads + h] = fmax(size[t * m.heads + h], sum);
            }
        }
    us_free(S);
    return size;
}

static const us_mamba2 mamba_shapes[] = {
    {.heads = 1, .dim = 1, .groups = 1, .state = 1},    {.heads = 4, .dim = 64, .groups = 2, .state = 128}, {.heads = 2, .dim = 5, .groups = 2, .state = 40},
    {.heads = 3, .dim = 17, .groups = 1, .state = 9}, {.heads = 2, .dim = 32, .groups = 1, .state = 16},
};

static void mamba_follows_the_reference(void **state) {
    (void)state;
    double worst[2] = {0};
    for (size_t i = 0; i < sizeof mamba_shapes / sizeof *mamba_shapes; i++)
        for (int kind = 0; kind < 3; kind++) {
            us_mamba2 m = mamba_shapes[i];
            mamba_case c = mamba_make(m, 150 + i, kind, i);
            size_t rows = c.n * m.heads, count = mamba_state_n(&m), head = (size_t)m.dim * m.state;
            float *S = room(count), *out = room(c.n * c.ldo);
            double *ref = us_malloc(rows * m.dim * sizeof *ref), *ref_S = us_malloc(head * sizeof *ref_S);
            assert_true(ref && ref_S);
            mamba_reference(&c, ref, ref_S);
            double *size = mamba_sizes(&c);
            for (int exact = 0; exact < 2; exact++) {
                mamba_run(NULL, &c, exact, c.n, S, out);
                double e = 0, es = row_error(S + count - head, m.state, ref_S, NULL, m.dim, m.state);
                for (size_t t = 0; t < c.n; t++) {
                    size_t at = t * m.heads;
                    double of_token = row_error(out + t * c.ldo, m.dim, ref + at * m.dim, size + at, m.heads, m.dim);
                    e = of_token <= e ? e : of_token;
                }
                worst[exact] = fmax(worst[exact], fmax(e, es));
                if (!(e < 1e-5 && es < 1e-5)) print_message("shape %zu, kind %d, exact %d: output %g, state %g\n", i, kind, exact, e, es);
            }
            us_free(S);
            us_free(out);
            us_free(ref);
            us_free(ref_S);
            us_free(size);
            mamba_free(&c);
        }
    print_message("worst: chunks %g, serial %g\n", worst[0], worst[1]);
    assert_true(worst[0] < 1e-5 && worst[1] < 1e-5);
}

static void mamba_is_the_same_everywhere(void **state) {
    (void)state;
    us_pool *pool = pool_of(3);
    for (size_t i = 0; i < sizeof mamba_shapes / sizeof *mamba_shapes; i++)
        for (int exact = 0; exact < 2; exact++) {
            mamba_case c = mamba_make(mamba_shapes[i], 101, 2, i);
            size_t count = mamba_state_n(&c.m);
            float *S = room(count), *out = room(c.n * c.ldo), *want_S = room(count), *want = room(c.n * c.ldo);
            us_isa_force(US_ISA_REF);
            mamba_run(NULL, &c, exact, c.n, want_S, want);
            for (int isa = 0; isa < US_ISA_COUNT; isa++) {
                if (!us_isa_force((us_isa)isa)) continue;
                static const size_t steps[] = {1000, 1, 33, 64};
                for (size_t s = 0; s < (exact ? 4 : 1); s++) {
                    mamba_run(s & 1 ? NULL : pool, &c, exact, steps[s], S, out);
                    assert_memory_equal(out, want, c.n * c.ldo * sizeof *out);
                    assert_memory_equal(S, want_S, count * sizeof *S);
                }
            }
            us_free(S);
            us_free(out);
            us_free(want_S);
            us_free(want);
            mamba_free(&c);
        }
    us_isa_force(US_ISA_COUNT);
    us_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_follows_the_reference), cmocka_unit_test(delta_rule_follows_the_reference), cmocka_unit_test(delta_rule_is_the_same_everywhere),
        cmocka_unit_test(mamba_follows_the_reference),       cmocka_unit_test(mamba_is_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
