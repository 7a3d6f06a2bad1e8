/*
 * How fast the tokenizer is on one core: the worker of tokenizers.py, which runs it and the peers in turn; prints one JSON object.
 *
 *     tokenizer_speed TOKENIZER.JSON encode WARM.nul TEXT.nul flat|docs
 *     tokenizer_speed TOKENIZER.JSON load
 *     tokenizer_speed TOKENIZER.JSON hard
 *
 * encode: texts are separated by NUL; `docs` encodes each by itself, `flat` all as one text (NUL becomes a line break). WARM is encoded first, so that tables and caches
 * are in the state of a process that has worked, but has not seen TEXT: that is `cold`; `warm` is the same text again. load: seconds and peak memory of reading.
 * hard: nanoseconds a byte on texts made to punish: one word of 1 MB of each kind, alternating classes, long runs.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "io/fs.h"
#include "understudy/us_tokenizer.h"

static us_err err;
static void must(us_status s) {
    if (s == US_OK) return;
    char line[1024];
    us_err_line(&err, line, sizeof line);
    fprintf(stderr, "tokenizer_speed: %s\n", line);
    exit(1);
}

/* Peak memory of this process in bytes, as the kernel counts it from exec on (ru_maxrss begins with the parent's). */
static long peak(void) {
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct rig {
    us_tokenizer *t;
    us_tok_scratch *s;
    us_tok_ids out;
} rig;

static size_t encode(rig *r, const char *p, size_t n, bool flat) {
    size_t ids = 0;
    for (const char *end = p + n; p < end;) {
        const char *q = flat ? NULL : memchr(p, 0, (size_t)(end - p));
        size_t k = q ? (size_t)(q - p) : (size_t)(end - p);
        must(us_tokenizer_encode(r->t, r->s, p, k, US_TOK_NO_SPECIAL, &r->out, &err));
        ids += r->out.n;
        p += k + 1;
    }
    return ids;
}

static char *text_of(const char *path, bool flat, size_t *n) {
    char *p;
    must(us_fs_read_all(path, 1 << 30, &p, n, &err));
    for (size_t i = 0; flat && i < *n; i++)
        if (!p[i]) p[i] = '\n';
    return p;
}

static void speed(rig *r, const char *warm, const char *path, bool flat) {
    size_t nw, n, ids;
    char *w = text_of(warm, flat, &nw), *p = text_of(path, flat, &n);
    encode(r, w, nw, flat);
    double a = now();
    ids = encode(r, p, n, flat);
    double b = now();
    encode(r, p, n, flat);
    double c = now();
    printf("{\"bytes\": %zu, \"ids\": %zu, \"cold\": %.6g, \"warm\": %.6g}\n", n, ids, (double)n / (b - a), (double)n / (c - b));
    us_free(w);
    us_free(p);
}

static double hard_case(rig *r, const char *unit, size_t n) {
    size_t k = strlen(unit);
    char *p = us_malloc(n + 1);
    if (!p) exit(1);
    for (size_t i = 0; i < n; i++) p[i] = unit[i % k];
    double t = now();
    must(us_tokenizer_encode(r->t, r->s, p, n / k * k, US_TOK_NO_SPECIAL, &r->out, &err));
    t = now() - t;
    us_free(p);
    return t / (double)n * 1e9;
}

static void hard(rig *r) {
    static const char *const units[] = {"a", "ab", "abcdefghijklmnopqrstuvwxyz", " ", "\n", " \n", "1", "a1", "'", "'s", "!", "a!", "\xC3\xA9", "\xE4\xBD\xA0", "a\xCC\x81", "A", "aA", "\xF0\x9F\x98\x80"};
    printf("{");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        printf("%s\"%zu\": {\"unit\": \"", i ? ", " : "", i);
        for (const char *p = units[i]; *p; p++) printf("%02x", (unsigned char)*p);
        double small = hard_case(r, units[i], 1 << 17), large = hard_case(r, units[i], 1 << 20);
        printf("\", \"ns_a_byte_128k\": %.4g, \"ns_a_byte_1m\": %.4g}", small, large);
    }
    printf("}\n");
}

int main(int argc, char **argv) {
    rig r = {0};
    if (argc < 3) return 2;
    long before = peak();
    double t = now();
    must(us_tokenizer_load(argv[1], &r.t, &err));
    t = now() - t;
    must(us_tok_scratch_create(r.t, &r.s, &err));
    if (strcmp(argv[2], "load") == 0)
        printf("{\"seconds\": %.6g, \"peak_bytes\": %ld, \"ids\": %u}\n", t, peak() - before, us_tokenizer_n_ids(r.t));
    else if (strcmp(argv[2], "hard") == 0) hard(&r);
    else if (argc == 6) speed(&r, argv[3], argv[4], strcmp(argv[5], "flat") == 0);
    else return 2;
    us_tok_scratch_free(r.s);
    us_tokenizer_free(r.t);
    us_tok_ids_free(&r.out);
    return 0;
}
