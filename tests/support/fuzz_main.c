/* Runs a fuzz target without a fuzzer: every file of the corpus folders given, and each of them cut and with bytes
 * changed. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILE_MAX = 1 << 20, CUTS = 8, CHANGES = 16 };

/* A heap copy of exactly n bytes, so that AddressSanitizer sees a read behind its end. */
static void feed(const unsigned char *bytes, size_t n) {
    unsigned char *copy = malloc(n ? n : 1);
    if (!copy) abort();
    if (n) memcpy(copy, bytes, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void run_file(const char *path) {
    static unsigned char bytes[FILE_MAX];
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "%s: cannot open\n", path);
        exit(1);
    }
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    feed(bytes, n);
    for (size_t i = 0; i < CUTS && n; i++) feed(bytes, n * i / CUTS);
    uint32_t state = (uint32_t)n + 1;
    for (int i = 0; i < CHANGES && n; i++) {
        state = state * 1664525u + 1013904223u;
        size_t at = (size_t)(state >> 8) % n;
        unsigned char old = bytes[at];
        bytes[at] = (unsigned char)(old ^ 1u << (state & 7));
        feed(bytes, n);
        bytes[at] = old;
    }
}

int main(int argc, char **argv) {
    int files = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        for (struct dirent *e; d && (e = readdir(d));) {
            char path[4096];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            run_file(path);
            files++;
        }
        if (d) closedir(d);
    }
    feed(NULL, 0);
    printf("%d files, %d inputs\n", files, files * (1 + CUTS + CHANGES) + 1);
    return files ? 0 : 1; /* a corpus that is gone must not look like one that passes */
}
