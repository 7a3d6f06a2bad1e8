/* Paged attention: against the double reference, and the same bits however it is cut, batched, threaded and on whatever instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "kernels/attention.h"
#include "kernels/dispatch.h"
#include "kernels/ref.h"

/* A sequence with everything that may restrict it. */
typedef struct problem {
    us_attn a;
    size_t T;
    float *q, *k, *v, *sinks;
    uint8_t *allow; /* [T,T] or NULL */
    size_t ldq, ldo;
} problem;

static void *memory(size_t n) {
    void *p = us_malloc_aligned(n ? n : 1);
    assert_non_null(p);
    memset(p, 0, n ? n : 1);
    return p;
}

static problem make(const us_attn *a, size_t T, bool sinks, unsigned hidden, uint64_t seed) {
    problem p = {.a = *a, .T = T};
    size_t H = a->heads, G = a->kv.heads, dk = a->kv.dk, dv = a->kv.dv;
    p.ldq = H * dk + 5, p.ldo = H * dv + 3;
    p.q = memory(T * p.ldq * 4), p.k = memory(T * G * dk * 4), p.v = memory(T * G * dv * 4), p.sinks = memory(H * 4);
    for (size_t i = 0; i < T * p.ldq; i++) p.q[i] = (float)us_rng_normal(seed, 1, i);
    for (size_t i = 0; i < T * G * dk; i++) p.k[i] = (float)us_rng_normal(seed, 2, i);
    for (size_t i = 0; i < T * G * dv; i++) p.v[i] = (float)us_rng_normal(seed, 3, i);
    for (size_t i = 0; i < H; i++) p.sinks[i] = (float)us_rng_normal(seed, 4, i);
    p.a.sinks = sinks ? p.sinks : NULL;
    if (hidden) {
        p.allow = memory(T * T);
        for (size_t i = 0; i < T; i++) {
            unsigned share = i % 7 == 3 ? 1000 : i % 11 == 5 ? 0 : hidden; /* rows that see nothing, and rows that see all */
            for (size_t j = 0; j < T; j++) p.allow[i * T + j] = us_rng_below(seed, 5, i * T + j, 1000) >= share;
        }
    }
    return p;
}

static void unmake(problem *p) {
    us_free(p->q);
    us_free(p->k);
    us_free(p->v);
    us_free(p->sinks);
    us_free(p->allow);
}

static size_t lowest(const us_attn *a, size_t pos) {
    size_t low = a->window && pos >= a->window ? pos - a->window + 1 : 0, chunk = a->chunk ? pos - pos % a->chunk : 0;
    return low > chunk ? low : chunk;
}

static bool sees_any(const problem *p, size_t i) {
    bool any = false;
    for (size_t j = lowest(&p->a, i); j <= i; j++) any |= !p->allow || p->allow[i * p->T + j];
    return any;
}

enum { PAGES_MAX = 32 };

typedef struct cache {
    void *pages[PAGES_MAX];
} cache;

static void store(const problem *p, cache *c, size_t from, size_t to) {
    size_t dk = p->a.kv.heads * p->a.kv.dk, dv = p->a.kv.heads * p->a.kv.dv;
    for (size_t i = from; i < to; i++) {
        assert_true(i / US_KV_PAGE < PAGES_MAX);
        if (!c->pages[i / US_KV_PAGE]) c->pages[i / US_KV_PAGE] = memory(us_kv_page_bytes(&p->a.kv));
        us_kv_store(&p->a.kv, c->pages[i / US_KV_PAGE], i % US_KV_PAGE, p->k + i * dk, p->a.kv.latent ? NULL : p->v + i * dv);
    }
}

static void forget(cache *c) {
    for (size_t i = 0; i < PAGES_MAX; i++) us_free(c->pages[i]);
    memset(c, 0, sizeof *c);
}

/* Queries from .. to-1 in one call, the pages below what they see taken away. */
static us_attn_seq sequence(const problem *p, const cache *c, const void **pages, size_t from, size_t to, float *out) {
    size_t first = lowest(&p->a, from) / US_KV_PAGE;
    for (size_t i = 0; i < PAGES_MAX; i++) pages[i] = i < first ? NULL : c->pages[i];
    us_attn_seq s = {.start = from, .n = to - from, .q = p->q + from * p->ldq, .ldq = p->ldq, .out = out + from * p->ldo, .ldo = p->ldo, .pages = pages};
    if (p->allow) s.allow = p->allow + from * p->T, s.lda = p->T;
    return s;
}

/* The whole sequence in pieces of up to `piece` queries (0 = at once; random sizes when seed is given). */
static float *attend(const problem *p, us_pool *pool, size_t piece, uint64_t seed) {
    float *out = memory(p->T * p->ldo * 4);
    for (size_t i = 0; i < p->T * p->ldo; i++) out[i] = -77.0f;
    cache c = {{0}};
    us_err err = {0};
    for (size_t from = 0, to, n = 0; from < p->T; from = to, n++) {
        to = from + (piece ? seed ? 1 + us_rng_below(seed, 9, n, piece) : piece : p->T);
        to = to < p->T ? to : p->T;
        store(p, &c, from, to);
        const void *pages[PAGES_MAX];
        us_attn_seq s = sequence(p, &c, pages, from, to, out);
        assert_int_equal(us_attention(pool, &p->a, &s, 1, &err), US_OK);
    }
    forget(&c);
    return out;
}

static double *doubles(const float *x, size_t n) {
    double *d = memory(n * sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = (double)x[i];
    return d;
}

/*
 * Bound of the error, with u = 2^-24. A score is a chain of Dk roundings and a product: off by ds <= (Dk + 2) u scale max_j sum |q k|. A weight is then off
 * by the factor 1 + ds + e, where e = 6 u of exp, 1 u of the subtraction per unit of its argument (x e^-x <= 0.4), and up to 7 u for every rescaling, of
 * which there is one a page and two a span. The weighted sum rounds once a key, and weights are positive: all of it is relative to max |v|. Numerator and
 * denominator both carry the error of the weights, hence the factor 2.
 */
static void check_against_reference(const problem *p, const float *out) {
    const us_kv_layout *l = &p->a.kv;
    size_t T = p->T, H = p->a.heads, G = l->heads, dk = l->dk, dv = l->dv;
    float *kr = memory(T * G * dk * 4), *vr = memory(T * G * dv * 4), *qr = memory(T * H * dk * 4);
    for (size_t i = 0; i < T * G * dk; i++) kr[i] = l->type == US_DTYPE_BF16 ? us_bf16_to_f32(us_f32_to_bf16(p->k[i])) : p->k[i];
    for (size_t i = 0; i < T * G * dv; i++) vr[i] = l->type == US_DTYPE_BF16 ? us_bf16_to_f32(us_f32_to_bf16(p->v[i])) : p->v[i];
    for (size_t i = 0; l->latent && i < T; i++) memcpy(vr + i * dv, kr + i * dk, dv * 4);
    for (size_t i = 0; i < T; i++) memcpy(qr + i * H * dk, p->q + i * p->ldq, H * dk * 4);
    double *q = doubles(qr, T * H * dk), *k = doubles(kr, T * G * dk), *v = doubles(vr, T * G * dv), *sinks = doubles(p->sinks, H);
    double *want = memory(T * H * dv * 8), *scratch = memory(T * 8), vmax = 0, worst = 0;
    us_ref_mask mask = {p->a.window, p->a.chunk, p->allow};
    us_ref_attention(q, k, v, T, H, G, dk, dv, (double)p->a.scale, &mask, p->a.sinks ? sinks : NULL, scratch, want);
    for (size_t i = 0; i < T * G * dv; i++) vmax = fmax(vmax, fabs(v[i]));
    for (size_t i = 0; i < T; i++) {
        bool any = sees_any(p, i);
        for (size_t h = 0; h < H; h++) {
            double size = 0, u = 0x1p-24;
            for (size_t j = lowest(&p->a, i); j <= i; j++) {
                double s = 0;
                for (size_t c = 0; c < dk; c++) s += fabs(q[(i * H + h) * dk + c] * k[(j * G + h / (H / G)) * dk + c]);
                size = fmax(size, s);
            }
            double pages = (double)(i / US_KV_PAGE + 1), ds = (double)(dk + 2) * u * fabs((double)p->a.scale) * size;
            double bound = vmax * (2 * (ds + (7 + 12 * pages) * u) + (double)(i + 8) * u);
            for (size_t c = 0; c < dv; c++) {
                double got = (double)out[i * p->ldo + h * dv + c], expected = any ? want[(i * H + h) * dv + c] : 0;
                if (!(fabs(got - expected) <= bound)) print_message("query %zu head %zu channel %zu: %g, expected %g +- %g\n", i, h, c, got, expected, bound);
                assert_true(fabs(got - expected) <= bound);
                worst = fmax(worst, fabs(got - expected) / bound);
            }
        }
        for (size_t c = H * dv; c < p->ldo; c++) assert_true(out[i * p->ldo + c] == -77.0f); /* nothing beside the output is touched */
    }
    assert_true(worst < 0.5);
    void *all[] = {kr, vr, qr, q, k, v, sinks, want, scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) us_free(all[i]);
}

static void assert_same(const problem *p, const float *a, const float *b) {
    for (size_t i = 0; i < p->T; i++)
        if (memcmp(a + i * p->ldo, b + i * p->ldo, p->ldo * 4) != 0) {
            print_message("query %zu differs (H %u G %u dk %u dv %u window %u chunk %u latent %d type %s)\n", i, p->a.heads, p->a.kv.heads, p->a.kv.dk, p->a.kv.dv,
                          p->a.window, p->a.chunk, p->a.kv.latent, us_dtype_name(p->a.kv.type));
            fail();
        }
}

static size_t pick(uint64_t seed, uint64_t what, const size_t *from, size_t n) {
    return from[us_rng_below(seed, 100 + what, 0, n)];
}
#define PICK(what, ...) pick(seed, what, (const size_t[]){__VA_ARGS__}, sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t))

static problem random_problem(uint64_t seed) {
    us_attn a = {0};
    a.kv.latent = PICK(0, 0, 0, 1);
    a.kv.type = PICK(1, 0, 1) ? US_DTYPE_BF16 : US_DTYPE_F32;
    a.kv.heads = a.kv.latent ? 1 : (uint32_t)PICK(2, 1, 2, 3);
    a.heads = a.kv.heads * (uint32_t)PICK(3, 1, 2, 3, 4, 5, 8, 13, 16);
    a.kv.dk = (uint32_t)PICK(4, 1, 7, 16, 33, 40, 64);
    a.kv.dv = (uint32_t)PICK(5, 1, 9, 32, 45, 64);
    if (a.kv.latent && a.kv.dv > a.kv.dk) a.kv.dv = a.kv.dk;
    a.scale = 1.0f / sqrtf((float)a.kv.dk);
    a.window = (uint32_t)PICK(6, 0, 0, 1, 5, 64, 100, 128);
    a.chunk = (uint32_t)PICK(7, 0, 0, 0, 48, 64, 100);
    return make(&a, PICK(8, 1, 63, 65, 130, 200, 300, 530), PICK(9, 0, 1), (unsigned)PICK(10, 0, 0, 300, 900), seed);
}

enum { PROBLEMS = 60 };

static void follows_the_reference(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < PROBLEMS; seed++) {
        problem p = random_problem(seed);
        float *out = attend(&p, NULL, 0, 0);
        check_against_reference(&p, out);
        us_free(out);
        unmake(&p);
    }
}

static void bits_do_not_depend_on_pieces_threads_or_instructions(void **state) {
    (void)state;
    us_pool *pool = NULL;
    us_err err = {0};
    assert_int_equal(us_pool_create(3, &pool, &err), US_OK);
    for (uint64_t seed = 0; seed < PROBLEMS; seed++) {
        problem p = random_problem(seed);
        us_isa_force(US_ISA_COUNT);
        float *want = attend(&p, NULL, 0, 0), *got;
        const size_t pieces[] = {0, 1, 64, 100, 7};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            got = attend(&p, i % 2 ? NULL : pool, pieces[i], 0);
            assert_same(&p, want, got);
            us_free(got);
        }
        for (uint64_t again = 1; again < 4; again++) {
            got = attend(&p, again % 2 ? pool : NULL, 90, seed * 10 + again);
            assert_same(&p, want, got);
            us_free(got);
        }
        for (int isa = 0; isa < US_ISA_COUNT; isa++) {
            if (isa == US_ISA_REF && seed % 4) continue; /* slow */
            if (!us_isa_force((us_isa)isa)) continue;
            got = attend(&p, pool, 0, 0);
            assert_same(&p, want, got);
            us_free(got);
            got = attend(&p, pool, 150, seed + 1);
            assert_same(&p, want, got);
            us_free(got);
        }
        us_free(want);
        unmake(&p);
    }
    us_isa_force(US_ISA_COUNT);
    us_pool_free(pool);
}

/* One long sequence, one query: fewer tasks than threads, so its spans are spread. */
static void spread_spans_are_not_seen(void **state) {
    (void)state;
    us_attn a = {.kv = {US_DTYPE_F32, false, 1, 24, 40}, .heads = 2, .scale = 0.3f};
    us_pool *pool = NULL;
    us_err err = {0};
    assert_int_equal(us_pool_create(5, &pool, &err), US_OK);
    problem p = make(&a, 1500, true, 0, 77);
    float *want = attend(&p, NULL, 0, 0), *out = memory(p.T * p.ldo * 4);
    cache c = {{0}};
    const void *pages[PAGES_MAX];
    store(&p, &c, 0, p.T);
    for (size_t i = 1400; i < p.T; i += 33) {
        us_attn_seq s = sequence(&p, &c, pages, i, i + 1, out);
        assert_int_equal(us_attention(pool, &p.a, &s, 1, &err), US_OK);
        assert_memory_equal(out + i * p.ldo, want + i * p.ldo, a.heads * a.kv.dv * 4);
    }
    us_attn_seq s = sequence(&p, &c, pages, 700, p.T, out);
    assert_int_equal(us_attention(pool, &p.a, &s, 1, &err), US_OK);
    for (size_t i = 700; i < p.T; i++) assert_memory_equal(out + i * p.ldo, want + i * p.ldo, a.heads * a.kv.dv * 4);
    forget(&c);
    us_free(out);
    us_free(want);
    unmake(&p);
    us_pool_free(pool);
}

static void batches_do_not_matter(void **state) {
    (void)state;
    enum { N = 5 };
    us_attn a = {.kv = {US_DTYPE_BF16, false, 2, 40, 33}, .heads = 6, .scale = 0.2f, .window = 90};
    us_pool *pool = NULL;
    us_err err = {0};
    assert_int_equal(us_pool_create(2, &pool, &err), US_OK);
    problem p[N];
    cache c[N] = {0};
    float *want[N], *out[N];
    const void *pages[N][PAGES_MAX];
    us_attn_seq s[N + 1];
    const size_t length[N] = {1, 200, 64, 130, 300}, from[N] = {0, 199, 0, 50, 280};
    for (size_t i = 0; i < N; i++) {
        p[i] = make(&a, length[i], false, i == 3 ? 400 : 0, i);
        want[i] = attend(&p[i], NULL, 0, 0);
        out[i] = memory(p[i].T * p[i].ldo * 4);
        store(&p[i], &c[i], 0, p[i].T);
        s[i] = sequence(&p[i], &c[i], pages[i], from[i], p[i].T, out[i]);
    }
    s[N] = s[1];
    s[N].n = 0; /* a sequence without queries is fine */
    assert_int_equal(us_attention(pool, &a, s, N + 1, &err), US_OK);
    for (size_t i = 0; i < N; i++) {
        for (size_t t = from[i]; t < p[i].T; t++) assert_memory_equal(out[i] + t * p[i].ldo, want[i] + t * p[i].ldo, a.heads * a.kv.dv * 4);
        forget(&c[i]);
        us_free(out[i]);
        us_free(want[i]);
        unmake(&p[i]);
    }
    assert_int_equal(us_attention(pool, &a, s, 0, &err), US_OK);
    us_pool_free(pool);
}

/* Whatever lies in keys and values that a query may not see: infinities and NaN there change no bit. */
static void hidden_keys_are_not_noticed(void **state) {
    (void)state;
    for (int latent = 0; latent < 2; latent++) {
        us_attn a = {.kv = {US_DTYPE_F32, latent, 1, 24, 24}, .heads = 5, .scale = 0.3f, .window = 70, .chunk = 150};
        problem p = make(&a, 260, true, 500, 5);
        /* Queries 100 .. 259; keys below the first one's window, keys hidden from all, and slots behind the end get bad values. */
        float *want = attend(&p, NULL, 0, 0), *out = memory(p.T * p.ldo * 4), bad[24], row[24];
        for (size_t i = 0; i < p.T; i++) p.allow[i * p.T + 120] = p.allow[i * p.T + 199] = 0;
        float *masked = attend(&p, NULL, 0, 0);
        assert_true(memcmp(masked, want, p.T * p.ldo * 4) != 0);
        for (size_t i = 0; i < 24; i++) bad[i] = i % 3 ? INFINITY : NAN;
        cache c = {{0}};
        const void *pages[PAGES_MAX];
        store(&p, &c, 0, p.T);
        for (size_t i = 0; i < 320; i++) {
            if (i > 30 && i < 260 && i != 120 && i != 199) continue;
            us_kv_store(&a.kv, c.pages[i / US_KV_PAGE], i % US_KV_PAGE, bad, latent ? NULL : bad);
            us_kv_load(&a.kv, c.pages[i / US_KV_PAGE], i % US_KV_PAGE, row, NULL);
            assert_memory_equal(row, bad, sizeof row);
        }
        us_attn_seq s = sequence(&p, &c, pages, 100, p.T, out);
        us_err err = {0};
        assert_int_equal(us_attention(NULL, &p.a, &s, 1, &err), US_OK);
        for (size_t t = 100; t < p.T; t++) assert_memory_equal(out + t * p.ldo, masked + t * p.ldo, a.heads * a.kv.dv * 4);
        /* Without a mask too: later keys of the same page hold what earlier queries must not notice. */
        us_free(p.allow), p.allow = NULL;
        us_free(masked);
        masked = attend(&p, NULL, 0, 0);
        us_kv_store(&a.kv, c.pages[1], 120 % US_KV_PAGE, p.k + 120 * 24, latent ? NULL : p.v + 120 * 24);
        s = sequence(&p, &c, pages, 101, 199, out);
        assert_int_equal(us_attention(NULL, &p.a, &s, 1, &err), US_OK);
        for (size_t t = 101; t < 199; t++) assert_memory_equal(out + t * p.ldo, masked + t * p.ldo, a.heads * a.kv.dv * 4);
        forget(&c);
        us_free(out);
        us_free(want);
        us_free(masked);
        unmake(&p);
    }
}

static void a_mask_that_hides_nothing_is_no_mask(void **state) {
    (void)state;
    us_attn a = {.kv = {US_DTYPE_F32, false, 2, 20, 36}, .heads = 4, .scale = 0.3f};
    problem p = make(&a, 300, false, 1, 6);
    memset(p.allow, 1, p.T * p.T);
    float *with = attend(&p, NULL, 0, 0);
    us_free(p.allow), p.allow = NULL;
    float *without = attend(&p, NULL, 0, 0);
    assert_same(&p, with, without);
    us_free(with);
    us_free(without);
    unmake(&p);
}

static void all_hidden_gives_zeros(void **state) {
    (void)state;
    for (int sinks = 0; sinks < 2; sinks++) {
        us_attn a = {.kv = {US_DTYPE_BF16, false, 1, 8, 8}, .heads = 3, .scale = 1};
        problem p = make(&a, 100, sinks, 1, 6);
        memset(p.allow, 0, p.T * p.T);
        float *out = attend(&p, NULL, 40, 0);
        for (size_t i = 0; i < p.T; i++)
            for (size_t c = 0; c < 24; c++) assert_true(out[i * p.ldo + c] == 0);
        us_free(out);
        unmake(&p);
    }
    /* A sink of -infinity weighs nothing. */
    us_attn a = {.kv = {US_DTYPE_F32, false, 1, 8, 8}, .heads = 2, .scale = 1};
    problem p = make(&a, 70, true, 0, 8);
    p.sinks[0] = p.sinks[1] = -INFINITY;
    float *with = attend(&p, NULL, 0, 0);
    p.a.sinks = NULL;
    float *without = attend(&p, NULL, 0, 0);
    assert_same(&p, with, without);
    us_free(with);
    us_free(without);
    unmake(&p);
}

/* Denormal values come through, huge scores do not overflow, and an infinite score is not a quiet wrong answer. */
static void ends_of_the_range(void **state) {
    (void)state;
    us_attn a = {.kv = {US_DTYPE_F32, false, 1, 4, 4}, .heads = 1, .scale = 1};
    for (int isa = 0; isa < US_ISA_COUNT; isa++) {
        if (!us_isa_force((us_isa)isa)) continue;
        problem p = make(&a, 90, false, 0, 9);
        for (size_t i = 0; i < p.T * 4; i++) p.v[i] = 0x1.8p-140f;
        for (size_t i = 0; i < p.T * p.ldq; i++) p.q[i] *= 1e10f;
        float *out = attend(&p, NULL, 0, 0);
        for (size_t i = 0; i < p.T; i++) /* one key has all the weight, or a few share it; rounding is to a multiple of 2^-149 */
            for (size_t c = 0; c < 4; c++) assert_true(fabsf(out[i * p.ldo + c] - 0x1.8p-140f) <= 3 * 0x1p-149f);
        us_free(out);
        p.k[50 * 4] = INFINITY;
        out = attend(&p, NULL, 0, 0);
        assert_true(isfinite(out[49 * p.ldo]));
        assert_true(p.q[60 * p.ldq] > 0 ? isnan(out[60 * p.ldo]) : true);
        us_free(out);
        unmake(&p);
    }
    us_isa_force(US_ISA_COUNT);
}

static void pages_hold_what_is_stored(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        for (int latent = 0; latent < 2; latent++) {
            us_kv_layout l = {type ? US_DTYPE_BF16 : US_DTYPE_F32, latent, latent ? 1 : 3, 37, 35};
            size_t bytes = us_kv_page_bytes(&l), size = type ? 2 : 4;
            assert_int_equal(bytes, latent ? 64 * 37 * size : 3 * 64 * (37 + 64) * size);
            assert_int_equal(bytes % 64, 0);
            unsigned char *page = memory(bytes);
            float k[64][111], v[64][105], k2[111], v2[105];
            for (size_t s = 0; s < 64; s++) {
                for (size_t i = 0; i < 111; i++) k[s][i] = us_bf16_to_f32(us_f32_to_bf16((float)us_rng_normal(1, s, i)));
                for (size_t i = 0; i < 105; i++) v[s][i] = us_bf16_to_f32(us_f32_to_bf16((float)us_rng_normal(2, s, i)));
                us_kv_store(&l, page, s, k[s], latent ? NULL : v[s]);
            }
            for (size_t s = 0; s < 64; s++) {
                us_kv_load(&l, page, s, k2, latent ? NULL : v2);
                assert_memory_equal(k2, k[s], l.heads * 37 * sizeof *k2);
                if (!latent) assert_memory_equal(v2, v[s], sizeof v2);
                us_kv_load(&l, page, s, k2, NULL);
            }
            us_free(page);
        }
    }
    us_kv_layout huge = {US_DTYPE_F32, false, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    assert_int_equal(us_kv_page_bytes(&huge), 0);
}

static void lack_of_memory_is_said(void **state) {
    (void)state;
    us_attn a = {.kv = {US_DTYPE_F32, false, 1, 8, 8}, .heads = 1, .scale = 1};
    us_pool *pool = NULL;
    us_err err = {0};
    assert_int_equal(us_pool_create(2, &pool, &err), US_OK);
    problem p = make(&a, 600, false, 0, 3);
    cache c = {{0}};
    const void *pages[PAGES_MAX];
    float *out = memory(p.T * p.ldo * 4);
    store(&p, &c, 0, p.T);
    us_attn_seq s = sequence(&p, &c, pages, p.T - 1, p.T, out);
    uint64_t n = 1;
    for (;; n++) {
        us_alloc_fail_at(n);
        us_status st = us_attention(pool, &a, &s, 1, &err);
        bool failed = us_alloc_failed();
        us_alloc_fail_at(0);
        if (!failed) break;
        assert_int_equal(st, US_E_NOMEM);
    }
    assert_true(n > 2);
    forget(&c);
    us_free(out);
    unmake(&p);
    us_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_reference),
        cmocka_unit_test(bits_do_not_depend_on_pieces_threads_or_instructions),
        cmocka_unit_test(spread_spans_are_not_seen),
        cmocka_unit_test(batches_do_not_matter),
        cmocka_unit_test(hidden_keys_are_not_noticed),
        cmocka_unit_test(a_mask_that_hides_nothing_is_no_mask),
        cmocka_unit_test(all_hidden_gives_zeros),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(pages_hold_what_is_stored),
        cmocka_unit_test(lack_of_memory_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
