/*
 * How fast the engine runs one checkpoint: prefill of 512 tokens, decoding of one sequence, decoding of 32 sequences at once. The worker of models.py; prints one
 * JSON object. Prompts are random ids (the time does not depend on them but through the router).
 *
 *     model_speed FOLDER [threads] [f32|bf16] [prefill|decode|batch|all|lengths] [repeats]
 *
 * lengths: prefill of 512 to 8192 tokens and the bytes of the states after it, to see what grows how.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/rng.h"
#include "model/engine/engine.h"

enum { PREFILL = 512, DECODE = 128, BATCH = 32, BATCH_PROMPT = 64, BATCH_NEW = 64, LONGEST = 8192 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static us_err err;
static void must(us_status s) {
    if (s == US_OK) return;
    char line[1024];
    us_err_line(&err, line, sizeof line);
    fprintf(stderr, "model_speed: %s\n", line);
    exit(1);
}

typedef struct rig {
    us_engine *e;
    uint32_t V;
    float *logits;
    int64_t ids[BATCH][1024];
    int64_t text[LONGEST];
} rig;

static int64_t best(const float *x, uint32_t n) {
    uint32_t b = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[b]) b = i;
    return b;
}

static double prefill(rig *r) {
    us_seq *s;
    must(us_seq_create(r->e, &s, &err));
    double t = now();
    must(us_engine_run(r->e, &(us_segment){s, r->ids[0], PREFILL, 1}, 1, NULL, r->logits, &err));
    t = now() - t;
    us_seq_free(s);
    return PREFILL / t;
}

/* n sequences at once, `fresh` new tokens each after a prompt; the rate counts the new tokens of all. */
static double decode(rig *r, size_t n, size_t prompt, size_t fresh) {
    us_segment segs[BATCH];
    int64_t next[BATCH];
    for (size_t i = 0; i < n; i++) {
        segs[i] = (us_segment){NULL, r->ids[i], prompt, 1};
        must(us_seq_create(r->e, &segs[i].seq, &err));
    }
    must(us_engine_run(r->e, segs, n, NULL, r->logits, &err));
    double t = now();
    for (size_t k = 0; k < fresh; k++) {
        for (size_t i = 0; i < n; i++) {
            next[i] = best(r->logits + i * r->V, r->V);
            segs[i].ids = &next[i];
            segs[i].n = segs[i].want = 1;
        }
        must(us_engine_run(r->e, segs, n, NULL, r->logits, &err));
    }
    t = now() - t;
    for (size_t i = 0; i < n; i++) us_seq_free(segs[i].seq);
    return (double)(n * fresh) / t;
}

static void lengths(rig *r, int repeats) {
    for (uint64_t t = 0; t < LONGEST; t++) r->text[t] = (int64_t)us_rng_below(2, 0, t, r->V);
    printf("{\"prefill\": [");
    for (size_t n = 512; n <= LONGEST; n *= 2) {
        double least = 1e30;
        size_t bytes = 0;
        for (int i = 0; i < repeats; i++) {
            us_seq *s;
            must(us_seq_create(r->e, &s, &err));
            double t = now();
            must(us_engine_run(r->e, &(us_segment){s, r->text, n, 1}, 1, NULL, r->logits, &err));
            t = now() - t;
            least = t < least ? t : least;
            bytes = us_seq_bytes(s);
            us_seq_free(s);
        }
        printf("%s{\"tokens\": %zu, \"seconds\": %.4g, \"tokens_per_s\": %.5g, \"state_bytes\": %zu}", n > 512 ? ", " : "", n, least, (double)n / least, bytes);
    }
    printf("]}\n");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, double *rates, int n, const char *end) {
    qsort(rates, (size_t)n, sizeof *rates, ascending);
    printf("\"%s\": %.6g%s", name, rates[n / 2], end);
}

int main(int argc, char **argv) {
    int threads = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2, repeats = argc > 5 ? (int)strtol(argv[5], NULL, 10) : 3;
    const char *what = argc > 4 ? argv[4] : "all";
    us_engine_options o = {.compute = argc > 3 && strcmp(argv[3], "f32") == 0 ? US_COMPUTE_F32 : US_COMPUTE_BF16};
    us_ctx *ctx;
    us_checkpoint *ck;
    us_structure *st;
    rig r;
    if (argc < 2 || repeats < 1 || repeats > 99) return fprintf(stderr, "model_speed FOLDER [threads] [f32|bf16] [prefill|decode|batch|all|lengths] [repeats]\n"), 2;
    must(us_ctx_create(threads, 0, &ctx, &err));
    must(us_checkpoint_open(ctx, argv[1], 0, &ck, &err));
    must(us_structure_resolve(ctx, ck, &st, &err));
    must(us_engine_open(ctx, st, &o, &r.e, &err));
    r.V = us_engine_recipe(r.e)->V;
    r.logits = calloc((size_t)BATCH * r.V, sizeof *r.logits);
    if (!r.logits) return 1;
    for (uint64_t i = 0; i < BATCH; i++)
        for (uint64_t t = 0; t < 1024; t++) r.ids[i][t] = (int64_t)us_rng_below(1, i, t, r.V);
    double rates[3][99];
    if (strcmp(what, "lengths") == 0) return lengths(&r, repeats), 0;
    bool all = strcmp(what, "all") == 0;
    prefill(&r); /* packs the weights */
    for (int i = 0; i < repeats; i++) {
        if (all || strcmp(what, "prefill") == 0) rates[0][i] = prefill(&r);
        if (all || strcmp(what, "decode") == 0) rates[1][i] = decode(&r, 1, 16, DECODE);
        if (all || strcmp(what, "batch") == 0) rates[2][i] = decode(&r, BATCH, BATCH_PROMPT, BATCH_NEW);
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("{");
    if (all || strcmp(what, "prefill") == 0) report("prefill", rates[0], repeats, ", ");
    if (all || strcmp(what, "decode") == 0) report("decode", rates[1], repeats, ", ");
    if (all || strcmp(what, "batch") == 0) report("batch", rates[2], repeats, ", ");
    printf("\"peak_bytes\": %ld}\n", u.ru_maxrss * 1024);
    free(r.logits);
    us_engine_free(r.e);
    us_structure_free(st);
    us_checkpoint_free(ck);
    us_ctx_free(ctx);
    return 0;
}
