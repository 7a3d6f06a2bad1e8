/* Safetensors headers: what a refusal says, cut files, the writer, lack of memory. The 205 files of fixtures/hostile
 * are in test_fix_safetensors.c. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/safetensors.h"
#include "support/prop.h"
#include "support/support.h"

static us_status parse(const char *text, uint64_t data, unsigned flags, us_err *err) {
    us_st_header h;
    us_str header = us_str_z(text);
    us_status s = us_st_parse(header, 8 + header.n + data, flags, &h, err);
    if (s == US_OK) us_st_header_free(&h);
    return s;
}

/* 64 + 64 + 64 bytes, not in the order of the data. */
static const char three[] = "{\"c\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[128,192]},\"a\":{\"dtype\":"
                            "\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]},"
                            "\"b\":{\"dtype\":\"BF16\",\"shape\":[32],\"data_offsets\":[64,128]}}";

static void fields_are_read(void **state) {
    (void)state;
    us_st_header h;
    us_err err = {0};
    assert_us_ok(us_st_parse(us_str_z(three), 8 + strlen(three) + 192, 0, &h, &err), &err);
    assert_int_equal(h.n_tensors, 3);
    assert_int_equal(h.data_start, 8 + strlen(three));
    assert_int_equal(h.data_size, 192);
    assert_false(h.has_meta);
    assert_true(us_str_eqz(h.tensors[1].name, "a"));
    assert_int_equal(h.tensors[1].dtype, US_DTYPE_F32);
    assert_int_equal(h.tensors[1].rank, 2);
    assert_int_equal(h.tensors[1].shape[1], 4);
    assert_int_equal(us_st_elements(&h.tensors[1]), 16);
    assert_int_equal(h.tensors[0].begin, 128);
    us_st_header_free(&h);
}

static void a_cut_file_names_bytes_and_first_tensor(void **state) {
    (void)state;
    us_err err = {0};
    assert_int_equal(parse(three, 100, 0, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "offset-range");
    assert_non_null(strstr(err.what, "92 bytes"));
    assert_non_null(strstr(err.where, "\"b\""));
    assert_us_ok(parse(three, 100, US_ST_HEADERS_ONLY, &err), &err);
    assert_us_ok(parse(three, 0, US_ST_HEADERS_ONLY, &err), &err);
    assert_int_equal(parse(three, 193, US_ST_HEADERS_ONLY, &err), US_E_FORMAT); /* too long is wrong all the same */
}

static void stray_bytes_are_counted_and_can_be_cut(void **state) {
    (void)state;
    us_err err = {0};
    assert_int_equal(parse(three, 196, 0, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "trailing-data");
    assert_non_null(strstr(err.what, "4 bytes"));
    assert_non_null(strstr(err.todo, test_format("truncate -s %zu", 8 + strlen(three) + 192)));
}

static void sizes_of_types_are_exact(void **state) {
    (void)state;
    uint64_t n, b, shape[3] = {3, 5, 2};
    assert_true(us_st_bytes(US_DTYPE_F4, 3, shape, &n, &b));
    assert_int_equal(n, 30);
    assert_int_equal(b, 15);
    assert_false(us_st_bytes(US_DTYPE_F4, 2, shape, &n, &b)); /* 60 bits */
    assert_true(us_st_bytes(US_DTYPE_F64, 0, shape, &n, &b));
    assert_int_equal(b, 8);
    shape[0] = (uint64_t)1 << 32;
    shape[1] = (uint64_t)1 << 31;
    assert_true(us_st_bytes(US_DTYPE_F4, 1, shape, &n, &b));
    assert_false(us_st_bytes(US_DTYPE_U8, 2, shape, &n, &b)); /* 2^66 bits */
    shape[1] = (uint64_t)1 << 32;
    assert_false(us_st_bytes(US_DTYPE_U8, 2, shape, &n, &b));
}

static void headers_are_aligned_and_carry_the_format(void **state) {
    (void)state;
    static const uint64_t shape[1] = {3};
    us_st_tensor t = {US_LIT("x"), US_DTYPE_U8, 1, shape, 0, 3};
    us_st_meta meta[2] = {{US_LIT("format"), US_LIT("np")}, {US_LIT("k\n"), US_LIT("\"v\xe2\x82\xac")}};
    us_err err = {0};
    for (size_t n_meta = 0; n_meta <= 2; n_meta++) {
        us_buf b = {0};
        us_buf_z(&b, "before"); /* it appends */
        assert_us_ok(us_st_write_header(&b, &t, 1, meta, n_meta, &err), &err);
        assert_int_equal((b.n - 6) % 8, 0);
        us_st_header h;
        assert_us_ok(us_st_parse((us_str){b.p + 14, b.n - 14}, b.n - 6 + 3, 0, &h, &err), &err);
        assert_int_equal(h.n_meta, n_meta ? n_meta : 1);
        assert_true(us_str_eqz(h.meta[0].key, "format"));
        assert_true(us_str_eqz(h.meta[0].value, n_meta ? "np" : "pt"));
        if (n_meta == 2)
            assert_true(us_str_eq(h.meta[1].key, meta[1].key) && us_str_eq(h.meta[1].value, meta[1].value));
        us_st_header_free(&h);
        us_buf_free(&b);
    }
}

static void lengths_are_checked_before_they_are_believed(void **state) {
    (void)state;
    const char *path = test_format("%s/x.safetensors", test_temp_dir());
    static const unsigned char lengths[][8] = {
        {0}, {255, 255, 255, 255, 255, 255, 255, 255}, {0, 0, 0, 0, 0, 0, 0, 128}, {3}, {0, 225, 245, 5}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char bytes[10] = {0};
        memcpy(bytes, lengths[i], 8);
        memcpy(bytes + 8, "{}", 2);
        test_write(path, bytes, sizeof bytes);
        us_file f = {0};
        us_st_header h;
        us_err err = {0};
        assert_us_ok(us_file_open(path, &f, &err), &err);
        uint64_t calls = us_alloc_get_stats().calls;
        assert_int_equal(us_st_read(&f, 0, &h, &err), US_E_FORMAT);
        assert_int_equal(us_alloc_get_stats().calls, calls); /* nothing was allocated */
        assert_string_equal(err.cls, "header-length");
        assert_non_null(strstr(err.where, "x.safetensors"));
        us_file_close(&f);
    }
}

static void a_file_cut_after_opening_is_noticed(void **state) {
    (void)state;
    const char *path = test_format("%s/x.safetensors", test_temp_dir());
    us_buf b = {0};
    static const char zeros[8];
    us_buf_add(&b, zeros, 8);
    us_buf_z(&b, three);
    b.p[0] = (char)strlen(three);
    for (int i = 0; i < 24; i++) us_buf_add(&b, zeros, 8);
    assert_true(strlen(three) < 256);
    test_write(path, b.p, b.n);
    us_file f = {0};
    us_st_header h;
    us_err err = {0};
    assert_us_ok(us_file_open(path, &f, &err), &err);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(us_st_read(&f, 0, &h, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "truncated");
    us_file_close(&f);
    us_buf_free(&b);
}

static void survives_every_allocation_failure(void **state) {
    (void)state;
    const char *text = "{\"__metadata__\":{\"a\\n\":\"b\",\"format\":\"pt\"},\"x\\u0041\":{\"dtype\":\"U8\",\"shape\":["
                       "1],\"data_offsets\":[0,1]},"
                       "\"y\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[1,2]}}";
    uint64_t live = us_alloc_get_stats().live_blocks;
    int failures = 0;
    for (uint64_t n = 1; n < 1000; n++) {
        us_err err = {0};
        us_alloc_fail_at(n);
        us_status s = parse(text, 2, 0, &err);
        bool failed = us_alloc_failed();
        us_alloc_fail_at(0);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
        if (!failed) {
            assert_us_ok(s, &err);
            assert_true(failures > 5);
            return;
        }
        assert_int_equal(s, US_E_NOMEM);
        failures++;
    }
    fail();
}

/* ---- properties ---- */

enum { TENSORS = 12 };

typedef struct drawn {
    us_st_tensor t[TENSORS];
    uint64_t shape[TENSORS][4];
    char name[TENSORS][24];
    size_t n;
    uint64_t bytes;
} drawn;

static void draw(us_prop *p, drawn *d) {
    static const char *const parts[] = {"w", "\xc3\xa9", "\"", "\\", "\xf0\x9f\x8e\xad", " ", "."};
    d->n = prop_size(p, TENSORS);
    d->bytes = 0;
    for (size_t i = 0; i < d->n; i++) {
        us_st_tensor *t = &d->t[i];
        snprintf(d->name[i], sizeof d->name[i], "%zu%s%s", i, prop_word(p, parts, 7),
                 prop_word(p, parts, 7)); /* the number makes it unique */
        *t = (us_st_tensor){us_str_z(d->name[i]),
                            (us_dtype)prop_below(p, US_DTYPE_COUNT),
                            (uint8_t)prop_size(p, 4),
                            d->shape[i],
                            d->bytes,
                            0};
        for (int k = 0; k < t->rank; k++) d->shape[i][k] = prop_size(p, 9);
        uint64_t elements, bytes;
        if (!us_st_bytes(t->dtype, t->rank, t->shape, &elements, &bytes)) { /* not whole bytes */
            t->dtype = US_DTYPE_U8;
            assert_true(us_st_bytes(t->dtype, t->rank, t->shape, &elements, &bytes));
        }
        d->bytes = t->end = d->bytes + bytes;
    }
}

static bool written_headers_read_back(us_prop *p, void *arg) {
    (void)arg;
    drawn d;
    us_buf b = {0};
    us_st_header h;
    us_err err = {0};
    draw(p, &d);
    if (us_st_write_header(&b, d.t, d.n, NULL, 0, &err) != US_OK) return prop_wrong(p, "not written: %s", err.what);
    prop_say(p, "%.*s", (int)(b.n - 8), b.p + 8);
    us_status s = us_st_parse((us_str){b.p + 8, b.n - 8}, b.n + d.bytes, 0, &h, &err);
    us_buf_free(&b);
    if (s != US_OK) return prop_wrong(p, "not read: [%s] %s", err.cls, err.what);
    bool same = h.n_tensors == d.n && h.data_size == d.bytes;
    for (size_t i = 0; same && i < d.n; i++) {
        const us_st_tensor *x = &h.tensors[i], *y = &d.t[i];
        same = us_str_eq(x->name, y->name) && x->dtype == y->dtype && x->rank == y->rank && x->begin == y->begin &&
               x->end == y->end && (x->rank == 0 || memcmp(x->shape, y->shape, x->rank * sizeof *x->shape) == 0);
    }
    us_st_header_free(&h);
    return same || prop_wrong(p, "something differs");
}

/* Whatever happens to the bytes: an answer with a class, no leak; and what is accepted keeps the promises of the
 * format. */
static bool edited_headers_are_answered(us_prop *p, void *arg) {
    (void)arg;
    static const char *const parts[] = {"0", "9",  "\"",        "{",       "}",    "[",
                                        "]", ",",  ":",         "\\u0000", "\x80", "18446744073709551616",
                                        "-", "e5", "\"shape\":"};
    drawn d;
    us_buf b = {0}, text = {0};
    us_st_header h;
    us_err err = {0};
    draw(p, &d);
    if (us_st_write_header(&b, d.t, d.n, NULL, 0, &err) != US_OK) return prop_wrong(p, "not written: %s", err.what);
    us_str old = us_str_sub(us_buf_view(&b), 8, b.n);
    size_t at = (size_t)prop_below(p, old.n), cut = prop_size(p, 12);
    us_buf_str(&text, us_str_sub(old, 0, at));
    us_buf_z(&text, prop_word(p, parts, sizeof parts / sizeof *parts));
    if (prop_bool(p)) cut = old.n; /* all the rest */
    us_buf_str(&text, us_str_sub(old, at + cut < old.n ? at + cut : old.n, old.n));
    char *exact = us_malloc(text.n); /* so that sanitizers see a read beyond the end */
    assert_non_null(exact);
    memcpy(exact, text.p, text.n);
    us_str edited = {exact, text.n};
    us_buf_free(&text);
    us_buf_free(&b);
    prop_say(p, "%.*s", US_STR_ARG(edited));
    uint64_t live = us_alloc_get_stats().live_blocks, total = 0;
    us_status s = us_st_parse(edited, 8 + edited.n + d.bytes, 0, &h, &err);
    if (s == US_OK) {
        for (size_t i = 0; i < h.n_tensors; i++) total += h.tensors[i].end - h.tensors[i].begin;
        us_st_header_free(&h);
    }
    bool leaks = us_alloc_get_stats().live_blocks != live;
    us_free(exact);
    PROP_CHECK(p, !leaks);
    PROP_CHECK(p, s == US_OK ? total == d.bytes : err.cls[0] && err.what[0]);
    return true;
}

static void properties(void **state) {
    (void)state;
    prop_run("written_headers_read_back", written_headers_read_back, NULL, 2000);
    prop_run("edited_headers_are_answered", edited_headers_are_answered, NULL, 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(a_cut_file_names_bytes_and_first_tensor),
        cmocka_unit_test(stray_bytes_are_counted_and_can_be_cut),
        cmocka_unit_test(sizes_of_types_are_exact),
        cmocka_unit_test(headers_are_aligned_and_carry_the_format),
        cmocka_unit_test(lengths_are_checked_before_they_are_believed),
        cmocka_unit_test(a_file_cut_after_opening_is_noticed),
        cmocka_unit_test(survives_every_allocation_failure),
        cmocka_unit_test(properties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
