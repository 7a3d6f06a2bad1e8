/**
 * The benchmark harness: cases are warmed up, measured in interleaved samples, and reported as median, best and spread.
 *
 *     us_bench *b = bench_open(argc, argv, "json");
 *     bench_case(b, &(bench_spec){.name = "parse index", .unit = "B", .work = n, .fn = parse, .arg = &text});
 *     return bench_close(b);
 *
 * A sample is a run of calls that takes at least 8 ms. Each round takes one sample of every case, so that a slow phase
 * of the machine hits all of them. A sample is thrown away when the process got less than 97 % of the processor time it
 * asked for (95 % with several threads): then another tenant was measured. Nine good samples are wanted, at most 40
 * rounds are tried, and a case with fewer than three good ones is marked. Method and reading of results:
 * bench/README.md. Not a test: nothing here fails because it is slow.
 */
#ifndef US_BENCH_H
#define US_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct us_bench us_bench;

typedef struct bench_spec {
    const char *name; /* literal; unique in its topic */
    const char
        *unit;   /* what `work` counts: "flop", "B", "call"; flop and B are held against the machine's measured peaks */
    double work; /* units a call */
    void (*fn)(void *arg);
    void *arg;
    int threads; /* that fn keeps busy; 0 = 1 */
    bool waits;  /* fn waits for a disk or another process: processor time is not asked for */
} bench_spec;

/** Options: --json FILE writes the result. Exits with status 2 on wrong usage. */
us_bench *bench_open(int argc, char **argv, const char *topic);
void bench_case(us_bench *b, const bench_spec *spec);
/** A figure measured in another way, e.g. peak memory of a command. */
void bench_figure(us_bench *b, const char *name, const char *unit, double value);
/** Measure all cases, print the table, write the JSON. Returns the exit status. */
int bench_close(us_bench *b);
/** Keep the compiler from dropping a result. */
void bench_keep(const void *p);

/** Median, best (least) and spread (half the distance of the quartiles, over the median) of n samples; sorts them. n
 * >= 1. */
typedef struct bench_summary {
    double median, best, spread;
} bench_summary;
bench_summary bench_summarize(double *samples, int n);

#endif
