/* Fuzz target: tokenizer.json, then a text, with a NUL between them. What loads must encode and decode without harm, with and without offsets alike. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "understudy/us_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static void use(const us_tokenizer *t, const char *text, size_t n) {
    us_err err = {0};
    us_tok_scratch *s = NULL;
    us_tok_stream *st = NULL;
    us_tok_ids a = {0}, b = {0};
    const char *p;
    size_t k;
    require(us_tok_scratch_create(t, &s, &err) == US_OK && us_tok_stream_create(t, 0, &st, &err) == US_OK);
    us_status x = us_tokenizer_encode(t, s, text, n, 0, &a, &err), y = us_tokenizer_encode(t, s, text, n, US_TOK_OFFSETS, &b, &err);
    require(x == y);
    if (x == US_OK) {
        require(a.n == b.n && (a.n == 0 || memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0));
        for (size_t i = 0; i < b.n; i++) require(b.offsets[2 * i] <= b.offsets[2 * i + 1]);
        for (size_t i = 0; i < a.n; i++) require(us_tok_stream_push(st, a.ids[i], &p, &k, &err) == US_OK);
        require(us_tok_stream_finish(st, &p, &k, &err) == US_OK);
    }
    us_tok_ids_free(&a);
    us_tok_ids_free(&b);
    us_tok_stream_free(st);
    us_tok_scratch_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t n = cut ? (size_t)(cut - data) : size;
    const char *text = cut ? (const char *)cut + 1 : "a b";
    us_err err = {0};
    us_tokenizer *t = NULL;
    uint64_t live = us_alloc_get_stats().live_blocks;
    us_status s = us_tokenizer_parse((const char *)data, n, &t, &err);
    require(s == US_OK || (err.cls[0] && err.what[0]));
    if (s == US_OK) use(t, text, cut ? size - n - 1 : 3);
    us_tokenizer_free(t);
    require(us_alloc_get_stats().live_blocks == live);
    return 0;
}
