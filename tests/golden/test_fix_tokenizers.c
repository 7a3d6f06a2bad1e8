/* Every vector of fixtures/tokenizers and of the real vocabularies: ids, offsets, decoded text, long texts, streaming pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/alloc.h"
#include "base/str.h"
#include "io/json.h"
#include "support/support.h"
#include "understudy/us_tokenizer.h"

static int n_bad;

static bool same_list(const us_json_doc *d, us_json_ref list, const uint32_t *ids, size_t n) {
    if (us_json_count(d, list) != n) return false;
    size_t i = 0;
    for (us_json_ref e = us_json_first(d, list); e != US_JSON_NO; e = us_json_next(d, list, e), i++) {
        uint64_t v;
        if (!us_json_u64(d, e, &v) || v != ids[i]) return false;
    }
    return true;
}

static bool same_pairs(const us_json_doc *d, us_json_ref list, const uint32_t *off, size_t n) {
    if (us_json_count(d, list) != n) return false;
    size_t i = 0;
    for (us_json_ref e = us_json_first(d, list); e != US_JSON_NO; e = us_json_next(d, list, e), i++)
        if (!same_list(d, e, off + 2 * i, 2)) return false;
    return true;
}

static void complain(const char *where, size_t line, const char *what, const us_tok_ids *o) {
    if (n_bad++ > 60) return;
    print_message("%s:%zu: %s differs;", where, line, what);
    for (size_t i = 0; o && i < o->n && i < 24; i++) print_message(o->offsets ? " %u[%u,%u]" : " %u", o->ids[i], o->offsets ? o->offsets[2 * i] : 0, o->offsets ? o->offsets[2 * i + 1] : 0);
    print_message("\n");
}

static void decode_list(us_tok_stream *st, const us_json_doc *d, us_json_ref ids, us_buf *out) {
    us_err err = {0};
    const char *p;
    size_t n;
    us_buf_clear(out);
    us_tok_stream_reset(st);
    for (us_json_ref e = us_json_first(d, ids); e != US_JSON_NO; e = us_json_next(d, ids, e)) {
        uint64_t id = 0;
        (void)us_json_u64(d, e, &id);
        assert_int_equal(us_tok_stream_push(st, (uint32_t)id, &p, &n, &err), US_OK);
        us_buf_add(out, p, n);
    }
    assert_int_equal(us_tok_stream_finish(st, &p, &n, &err), US_OK);
    us_buf_add(out, p, n);
}

typedef struct job {
    us_tokenizer *t;
    us_tok_scratch *s;
    us_tok_stream *all, *skip;
    us_tok_ids o, plain, fast;
    us_buf buf;
} job;

static void one_vector(job *j, const us_json_doc *d, const char *where, size_t line) {
    us_err err = {0};
    us_str text = us_json_string(d, us_json_get(d, 0, "text"));
    assert_int_equal(us_tokenizer_encode(j->t, j->s, text.p, text.n, US_TOK_OFFSETS, &j->o, &err), US_OK);
    if (!same_list(d, us_json_get(d, 0, "ids"), j->o.ids, j->o.n)) complain(where, line, "ids", &j->o);
    else if (!same_pairs(d, us_json_get(d, 0, "offsets"), j->o.offsets, j->o.n)) complain(where, line, "offsets", &j->o);
    assert_int_equal(us_tokenizer_encode(j->t, j->s, text.p, text.n, 0, &j->fast, &err), US_OK);
    if (!same_list(d, us_json_get(d, 0, "ids"), j->fast.ids, j->fast.n)) complain(where, line, "ids without offsets", &j->fast);
    assert_int_equal(us_tokenizer_encode(j->t, j->s, text.p, text.n, US_TOK_NO_SPECIAL, &j->plain, &err), US_OK);
    if (!same_list(d, us_json_get(d, 0, "ids_no_special"), j->plain.ids, j->plain.n)) complain(where, line, "ids_no_special", &j->plain);
    decode_list(j->all, d, us_json_get(d, 0, "ids"), &j->buf);
    if (!us_str_eq(us_buf_view(&j->buf), us_json_string(d, us_json_get(d, 0, "decoded")))) complain(where, line, us_buf_text(&j->buf), NULL);
    decode_list(j->skip, d, us_json_get(d, 0, "ids"), &j->buf);
    if (!us_str_eq(us_buf_view(&j->buf), us_json_string(d, us_json_get(d, 0, "decoded_skip_special")))) complain(where, line, us_buf_text(&j->buf), NULL);
}

static void one_long(job *j, const us_json_doc *d, const char *where, size_t line) {
    us_err err = {0};
    us_buf text = {0};
    us_json_ref parts = us_json_get(d, 0, "parts"), rle = us_json_get(d, 0, "ids_no_special_rle");
    for (us_json_ref e = us_json_first(d, parts); e != US_JSON_NO; e = us_json_next(d, parts, e)) {
        uint64_t n = 0;
        assert_true(us_json_u64(d, us_json_at(d, e, 1), &n));
        while (n--) us_buf_str(&text, us_json_string(d, us_json_at(d, e, 0)));
    }
    assert_int_equal(us_tokenizer_encode(j->t, j->s, text.p, text.n, US_TOK_NO_SPECIAL, &j->plain, &err), US_OK);
    size_t k = 0;
    bool good = true;
    for (us_json_ref e = us_json_first(d, rle); e != US_JSON_NO; e = us_json_next(d, rle, e)) {
        uint64_t id = 0, n = 0;
        assert_true(us_json_u64(d, us_json_at(d, e, 0), &id) && us_json_u64(d, us_json_at(d, e, 1), &n));
        for (; n--; k++) good = good && k < j->plain.n && j->plain.ids[k] == id;
    }
    if (!good || k != j->plain.n) complain(where, line, "long text", &j->plain);
    us_buf_free(&text);
}

static void one_stream(us_tok_stream *st, const us_json_doc *d, const char *key, const char *where, size_t line) {
    us_err err = {0};
    us_json_ref ids = us_json_get(d, 0, "ids"), pieces = us_json_get(d, 0, key), q = us_json_first(d, pieces);
    us_tok_stream_reset(st);
    const char *p;
    size_t n;
    for (us_json_ref e = us_json_first(d, ids); e != US_JSON_NO; e = us_json_next(d, ids, e), q = us_json_next(d, pieces, q)) {
        uint64_t id = 0;
        (void)us_json_u64(d, e, &id);
        assert_int_equal(us_tok_stream_push(st, (uint32_t)id, &p, &n, &err), US_OK);
        if (!us_str_eq((us_str){p, n}, us_json_string(d, q))) complain(where, line, key, NULL);
    }
    assert_int_equal(us_tok_stream_finish(st, &p, &n, &err), US_OK);
    if (!us_str_eq((us_str){p, n}, us_json_string(d, q))) complain(where, line, key, NULL);
}

typedef enum kind { VECTORS, LONG, STREAMING } kind;

static size_t lines_of(job *j, const char *path, kind what) {
    if (!test_exists(path)) return 0;
    size_t n, line = 0;
    const char *text = test_read(path, &n);
    for (size_t i = 0; i < n;) {
        const char *q = memchr(text + i, '\n', n - i);
        size_t e = q ? (size_t)(q - text) : n;
        us_json_doc d;
        us_err err = {0};
        line++;
        assert_int_equal(us_json_doc_parse(&d, (us_str){text + i, e - i}, 0, &err), US_OK);
        if (what == VECTORS) one_vector(j, &d, path, line);
        if (what == LONG) one_long(j, &d, path, line);
        if (what == STREAMING) {
            one_stream(j->all, &d, "pieces", path, line);
            one_stream(j->skip, &d, "pieces_skip_special", path, line);
        }
        us_json_doc_free(&d);
        i = e + 1;
    }
    return line;
}

static void open_job(job *j, const char *folder) {
    us_err err = {0};
    us_status s = us_tokenizer_load(folder, &j->t, &err);
    if (s != US_OK) print_message("%s: %s\n", folder, err.what);
    assert_int_equal(s, US_OK);
    assert_int_equal(us_tok_scratch_create(j->t, &j->s, &err), US_OK);
    assert_int_equal(us_tok_stream_create(j->t, 0, &j->all, &err), US_OK);
    assert_int_equal(us_tok_stream_create(j->t, US_TOK_NO_SPECIAL, &j->skip, &err), US_OK);
}

static void close_job(job *j) {
    us_tok_ids_free(&j->o);
    us_tok_ids_free(&j->plain);
    us_tok_ids_free(&j->fast);
    us_buf_free(&j->buf);
    us_tok_stream_free(j->all);
    us_tok_stream_free(j->skip);
    us_tok_scratch_free(j->s);
    us_tokenizer_free(j->t);
}

static void gives_every_vector(void **state) {
    (void)state;
    n_bad = 0;
    size_t n = 0;
    for (const char *const *at = test_folders("tokenizers", "tokenizer.json"); *at; at++) {
        const char *folder = *at;
        uint64_t live = us_alloc_get_stats().live_blocks;
        job j = {0};
        open_job(&j, folder);
        n += lines_of(&j, test_format("%s/vectors.jsonl", folder), VECTORS);
        n += lines_of(&j, test_format("%s/long.jsonl", folder), LONG);
        n += lines_of(&j, test_format("%s/streaming.jsonl", folder), STREAMING);
        close_job(&j);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
    }
    print_message("%zu lines\n", n);
    assert_int_equal(n_bad, 0);
}

/* The .out files hold the ids without BOS of the original tokenizers, one line a string of the .inp file. */
static void gives_the_ids_of_the_real_vocabularies(void **state) {
    (void)state;
    const char *root = test_fixtures("tokenizers"), *vocab = test_fixtures("real/vocab");
    if (!root || !vocab) return;
    static const char *const names[][2] = {{"gpt2", "gpt-2"}, {"falcon", "falcon"}, {"mpt", "mpt"}, {"phi3", "phi-3"}};
    n_bad = 0;
    for (size_t k = 0; k < 4; k++) {
        const char *in = test_format("%s/ggml-vocab-%s.gguf.inp", vocab, names[k][1]), *out = test_format("%s/ggml-vocab-%s.gguf.out", vocab, names[k][1]);
        if (!test_exists(in) || !test_exists(out) || !test_exists(test_format("%s/%s/tokenizer.json", root, names[k][0]))) continue;
        job j = {0};
        us_err err = {0};
        open_job(&j, test_format("%s/%s", root, names[k][0]));
        const char *text = test_read(in, NULL), *ids = test_read(out, NULL), *mark = "\n__ggml_vocab_test__\n";
        for (size_t line = 1; *ids; line++) {
            const char *end = strstr(text, mark);
            size_t n = end ? (size_t)(end - text) : strlen(text);
            assert_int_equal(us_tokenizer_encode(j.t, j.s, text, n, US_TOK_NO_SPECIAL, &j.plain, &err), US_OK);
            us_buf_clear(&j.buf);
            for (size_t i = 0; i < j.plain.n; i++) us_buf_printf(&j.buf, " %u", j.plain.ids[i]);
            const char *nl = strchr(ids, '\n');
            us_str want = {ids, nl ? (size_t)(nl - ids) : strlen(ids)};
            if (!us_str_eq(want, us_buf_view(&j.buf))) complain(in, line, "ids", &j.plain);
            ids = nl ? nl + 1 : "";
            if (!end) break;
            text = end + strlen(mark);
        }
        close_job(&j);
    }
    assert_int_equal(n_bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_every_vector),
        cmocka_unit_test(gives_the_ids_of_the_real_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
