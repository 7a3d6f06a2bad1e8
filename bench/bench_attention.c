/**
 * Attention over pages: prefill and decode on the shapes of three kinds of models. Prefill is counted in flop (two for each multiply-add of scores and of
 * weighted values, visible pairs only), decode in bytes of keys and values that must be read once. Tokens a second of the same runs are printed after the table.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "base/rng.h"
#include "bench.h"
#include "kernels/attention.h"

typedef struct shape {
    const char *name;
    us_attn a;
} shape;

static const shape shapes[] = {
    {"moe8", {.kv = {US_DTYPE_F32, false, 2, 64, 64}, .heads = 8, .scale = 0.125f}},
    {"moe8 bf16", {.kv = {US_DTYPE_BF16, false, 2, 64, 64}, .heads = 8, .scale = 0.125f}},
    {"window 128", {.kv = {US_DTYPE_F32, false, 8, 64, 64}, .heads = 64, .scale = 0.125f, .window = 128}},
    {"MLA", {.kv = {US_DTYPE_F32, true, 1, 576, 512}, .heads = 16, .scale = 0.07f}},
    {"MLA bf16", {.kv = {US_DTYPE_BF16, true, 1, 576, 512}, .heads = 16, .scale = 0.07f}},
};

enum { TIMES = 4096 };

typedef struct load {
    const us_attn *a;
    us_pool *pool;
    us_attn_seq *seqs;
    size_t n_seqs;
    char name[64];
    double tokens, times[TIMES];
    size_t n_times;
} load;

static void *memory(size_t n) {
    void *p = us_malloc_aligned(n);
    if (!p) exit(1);
    return p;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void attend(void *arg) {
    load *l = arg;
    us_err err = {0};
    double t = now();
    if (us_attention(l->pool, l->a, l->seqs, l->n_seqs, &err) != US_OK) exit(1);
    l->times[l->n_times++ % TIMES] = now() - t;
    bench_keep(l->seqs[0].out);
}

/* Visible keys of a query. */
static double visible(const us_attn *a, size_t pos) {
    return a->window && pos + 1 > a->window ? a->window : (double)(pos + 1);
}

static load *make(const shape *s, us_pool *pool, size_t n_seqs, size_t start, size_t n) {
    const us_attn *a = &s->a;
    size_t pages = (start + n + US_KV_PAGE - 1) / US_KV_PAGE, bytes = us_kv_page_bytes(&a->kv), dk = a->heads * a->kv.dk, dv = a->heads * a->kv.dv;
    load *l = us_calloc(1, sizeof *l);
    if (!l) exit(1);
    *l = (load){.a = a, .pool = pool, .seqs = memory(n_seqs * sizeof *l->seqs), .n_seqs = n_seqs, .tokens = (double)(n_seqs * n)};
    size_t size = a->kv.type == US_DTYPE_BF16 ? 2 : 4;
    for (size_t i = 0; i < n_seqs; i++) {
        float *q = memory(n * dk * 4);
        const void **list = memory(pages * sizeof *list);
        for (size_t k = 0; k < n * dk; k++) q[k] = (float)us_rng_double(1, i, k) - 0.5f;
        for (size_t p = 0; p < pages; p++) { /* any numbers, in any layout */
            char *page = memory(bytes);
            for (size_t k = 0; k < bytes / size; k++) {
                float x = (float)(us_rng_u64(2, p, k / 64) >> (k % 32) & 0xff) * 0x1p-7f - 1.0f;
                if (size == 4) memcpy(page + 4 * k, &x, 4);
                else memcpy(page + 2 * k, &(uint16_t){us_f32_to_bf16(x)}, 2);
            }
            list[p] = page;
        }
        l->seqs[i] = (us_attn_seq){.start = start, .n = n, .q = q, .ldq = dk, .out = memory(n * dv * 4), .ldo = dv, .pages = list};
    }
    return l;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    us_bench *b = bench_open(argc, argv, "attention");
    us_pool *pool = NULL;
    us_err err = {0};
    static load *loads[64];
    size_t n_loads = 0;
    const char *only = getenv("BENCH_ONLY"); /* a part of a name; for work on the kernels */
    if (us_pool_create(0, &pool, &err) != US_OK) return 1;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const us_attn *a = &shapes[i].a;
        double widths = a->kv.dk + a->kv.dv, row = (double)us_kv_page_bytes(&a->kv) / US_KV_PAGE;
        static const struct {
            size_t seqs, start, n;
            int threads;
        } runs[] = {{1, 0, 512, 1}, {1, 0, 512, 2}, {1, 0, 8192, 2}, {1, 511, 1, 1}, {32, 511, 1, 2}, {1, 8191, 1, 1}, {1, 8191, 1, 2}, {32, 8191, 1, 2}};
        for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
            bool two = runs[r].threads > 1;
            if (two && us_pool_threads(pool) < 2) continue;
            char name[64];
            if (runs[r].n > 1) snprintf(name, sizeof name, "%s prefill %zu, %s", shapes[i].name, runs[r].n, two ? "all threads" : "1 thread");
            else snprintf(name, sizeof name, "%s decode %zu x 1 at %zu, %s", shapes[i].name, runs[r].seqs, runs[r].start + 1, two ? "all threads" : "1 thread");
            if (only && !strstr(name, only)) continue;
            load *l = loads[n_loads++] = make(&shapes[i], two ? pool : NULL, runs[r].seqs, runs[r].start, runs[r].n);
            memcpy(l->name, name, sizeof name);
            double pairs = 0;
            for (size_t q = 0; q < runs[r].n; q++) pairs += visible(a, runs[r].start + q);
            bench_spec spec = {.name = l->name, .fn = attend, .arg = l, .threads = two ? us_pool_threads(pool) : 1};
            if (runs[r].n > 1) spec.unit = "flop", spec.work = 2.0 * pairs * widths * a->heads;
            else spec.unit = "B", spec.work = pairs * row * (double)runs[r].seqs;
            bench_case(b, &spec);
        }
    }
    int status = bench_close(b);
    printf("tokens a second, median of all calls\n");
    for (size_t i = 0; i < n_loads; i++) {
        load *l = loads[i];
        size_t n = l->n_times < TIMES ? l->n_times : TIMES;
        qsort(l->times, n, sizeof *l->times, by_value);
        if (n) printf("  %-44s %12.4g\n", l->name, l->tokens / l->times[n / 2]);
    }
    us_pool_free(pool);
    return status;
}
