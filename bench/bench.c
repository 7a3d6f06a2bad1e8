/* The benchmark harness. */
#define _GNU_SOURCE
#include "bench.h"
#include "kernels/peaks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "base/str.h"

enum { CASES_MAX = 128, SAMPLES = 9, ROUNDS_MAX = 40, GOOD_LEAST = 3 };
static const double SAMPLE_SECONDS = 0.008;

typedef struct bench_row {
    bench_spec spec;
    uint64_t calls; /* a sample */
    double samples[ROUNDS_MAX];
    int n, rejected;
    double value; /* of a figure */
    bool figure;
} bench_row;

struct us_bench {
    const char *topic, *json;
    bench_row rows[CASES_MAX];
    int n;
};

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void bench_keep(const void *p) {
    __asm__ volatile("" : : "g"(p) : "memory");
}

us_bench *bench_open(int argc, char **argv, const char *topic) {
    us_bench *b = us_calloc(1, sizeof *b);
    if (!b) exit(1);
    b->topic = topic;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            b->json = argv[++i];
        } else {
            fprintf(stderr, "usage: %s [--json FILE]\n", argv[0]);
            exit(2);
        }
    }
    return b;
}

static bench_row *add_row(us_bench *b) {
    if (b->n == CASES_MAX) {
        fprintf(stderr, "bench: too many cases\n");
        exit(1);
    }
    return &b->rows[b->n++];
}

void bench_case(us_bench *b, const bench_spec *spec) {
    bench_row *r = add_row(b);
    r->spec = *spec;
    if (r->spec.threads < 1) r->spec.threads = 1;
}

void bench_figure(us_bench *b, const char *name, const char *unit, double value) {
    *add_row(b) = (bench_row){.spec = {.name = name, .unit = unit}, .value = value, .figure = true};
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

bench_summary bench_summarize(double *samples, int n) {
    qsort(samples, (size_t)n, sizeof *samples, by_value);
    double median = n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
    return (bench_summary){median, samples[0],
                           n < 2 || median <= 0 ? 0 : (samples[(3 * n) / 4] - samples[n / 4]) / 2 / median};
}

/* One sample: seconds a call; false when the processor was lost meanwhile. */
static bool sample(const bench_row *r, double *out) {
    double wall = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t i = 0; i < r->calls; i++) r->spec.fn(r->spec.arg);
    wall = seconds_of(CLOCK_MONOTONIC) - wall;
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    *out = wall / (double)r->calls;
    double share = r->spec.threads > 1 ? 0.95 : 0.97;
    return r->spec.waits || cpu >= share * wall * r->spec.threads;
}

/* Warm-up, which also finds how many calls fill a sample. */
static void warm_up(bench_row *r) {
    r->calls = 1;
    for (;;) {
        double wall = seconds_of(CLOCK_MONOTONIC);
        for (uint64_t i = 0; i < r->calls; i++) r->spec.fn(r->spec.arg);
        wall = seconds_of(CLOCK_MONOTONIC) - wall;
        if (wall >= SAMPLE_SECONDS || r->calls > UINT32_MAX) return;
        double grow = wall > 0 ? SAMPLE_SECONDS / wall * 1.3 : 10;
        r->calls = (uint64_t)((double)r->calls * (grow > 10 ? 10 : grow)) + 1;
    }
}

static void measure(us_bench *b) {
    for (int i = 0; i < b->n; i++)
        if (!b->rows[i].figure) warm_up(&b->rows[i]);
    bool missing = true;
    for (int round = 0; round < ROUNDS_MAX && missing; round++) {
        missing = false;
        for (int i = 0; i < b->n; i++) {
            bench_row *r = &b->rows[i];
            if (r->figure || r->n >= SAMPLES) continue;
            if (sample(r, &r->samples[r->n]))
                r->n++;
            else
                r->rejected++;
            missing |= r->n < SAMPLES;
        }
    }
}

/* Share of the machine's peak, or 0 where there is none to compare with. */
static double peak_share(const bench_row *r, double rate, const us_peaks *p) {
    if (strcmp(r->spec.unit, "flop") == 0) return rate / (p->f32_flops * r->spec.threads);
    if (strcmp(r->spec.unit, "B") == 0) return rate / p->read_bytes;
    return 0;
}

static void first_line(const char *path, const char *key, char *out, size_t cap) {
    char line[8192];
    out[0] = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) {
            const char *p = strchr(line, ':');
            snprintf(out, cap, "%s", p ? p + 1 + strspn(p + 1, " \t") : "");
            out[strcspn(out, "\n")] = 0;
            break;
        }
    if (f) fclose(f);
}

static void put_text(us_buf *o, const char *key, const char *text) {
    us_buf_printf(o, "\"%s\": ", key);
    us_buf_json(o, us_str_z(text));
}

static void describe_machine(us_buf *o, const us_peaks *p) {
    char text[8192];
    first_line("/proc/cpuinfo", "model name", text, sizeof text);
    us_buf_z(o, "  \"machine\": {");
    put_text(o, "cpu", text);
    first_line("/proc/cpuinfo", "flags", text, sizeof text);
    us_buf_printf(o, ", \"processors\": %d, ", us_cpu_count());
    put_text(o, "features", text);
    us_buf_printf(o, ", \"f32_flops\": %.4g, \"copy_bytes\": %.4g, \"read_bytes\": %.4g},\n  \"build\": {",
                  p->f32_flops, p->copy_bytes, p->read_bytes);
    put_text(o, "compiler", __VERSION__);
    us_buf_z(o, ", ");
    put_text(o, "flags", US_BUILD_FLAGS);
    us_buf_z(o, ", ");
    const char *commit = getenv("US_COMMIT");
    put_text(o, "commit", commit ? commit : "");
    us_buf_z(o, "},\n");
}

static void report_row(us_buf *o, bench_row *r, const us_peaks *p, bool last) {
    us_buf_z(o, "    {");
    put_text(o, "name", r->spec.name);
    us_buf_z(o, ", ");
    put_text(o, "unit", r->spec.unit);
    if (r->figure) {
        printf("  %-44s %12.4g %s\n", r->spec.name, r->value, r->spec.unit);
        us_buf_printf(o, ", \"value\": %.6g}%s\n", r->value, last ? "" : ",");
        return;
    }
    if (r->n < GOOD_LEAST) {
        printf("  %-44s  too few clean samples (%d of %d)\n", r->spec.name, r->n, r->n + r->rejected);
        us_buf_printf(o, ", \"samples\": %d, \"rejected\": %d}%s\n", r->n, r->rejected, last ? "" : ",");
        return;
    }
    bench_summary s = bench_summarize(r->samples, r->n);
    double rate = r->spec.work / s.median, share = peak_share(r, rate, p);
    printf("  %-44s %10.4g s  %9.4g G%s/s  +-%4.1f%%", r->spec.name, s.median, rate * 1e-9, r->spec.unit,
           100 * s.spread);
    if (share > 0) printf("  %5.1f%% of peak", 100 * share);
    printf("%s\n", r->rejected ? "  (samples rejected)" : "");
    us_buf_printf(o,
                  ", \"work\": %.6g, \"threads\": %d, \"median_s\": %.6g, \"best_s\": %.6g, \"spread\": %.4g, "
                  "\"samples\": %d, \"rejected\": %d, "
                  "\"rate\": %.6g, \"peak_share\": %.4g}%s\n",
                  r->spec.work, r->spec.threads, s.median, s.best, s.spread, r->n, r->rejected, rate, share,
                  last ? "" : ",");
}

static int write_json(const us_bench *b, us_buf *o) {
    us_err err = {0};
    FILE *f = us_buf_status(o, &err, "writing") == US_OK ? fopen(b->json, "w") : NULL;
    bool good = f && fwrite(o->p, 1, o->n, f) == o->n;
    if (f && fclose(f) != 0) good = false;
    if (!good) fprintf(stderr, "bench: cannot write %s: %s\n", b->json, strerror(errno));
    return good ? 0 : 1;
}

int bench_close(us_bench *b) {
    us_buf o = {0};
    us_peaks p = us_peaks_measure(NULL);
    measure(b);
    printf("%s (peaks of one thread: %.0f GFLOP/s f32, %.1f GB/s read, %.1f GB/s copy)\n", b->topic, p.f32_flops * 1e-9,
           p.read_bytes * 1e-9, p.copy_bytes * 1e-9);
    us_buf_z(&o, "{\n  ");
    put_text(&o, "topic", b->topic);
    us_buf_z(&o, ",\n");
    describe_machine(&o, &p);
    us_buf_z(&o, "  \"cases\": [\n");
    for (int i = 0; i < b->n; i++) report_row(&o, &b->rows[i], &p, i == b->n - 1);
    us_buf_z(&o, "  ]\n}\n");
    int status = b->json ? write_json(b, &o) : 0;
    us_buf_free(&o);
    us_free(b);
    return status;
}
