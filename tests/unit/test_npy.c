/* NumPy arrays and archives: values, byte and column order, the writer, archives built by hand, lack of memory. The 121
 * hostile files are in test_fix_npy.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include <zlib.h>

#include "base/alloc.h"
#include "io/npy.h"
#include "support/prop.h"
#include "support/support.h"

static void put(us_buf *b, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) us_buf_c(b, (char)(unsigned char)(v >> (8 * i) & 255));
}

/* A version 1 array with this header text. */
static void put_array(us_buf *b, const char *dict, const void *data, size_t n) {
    us_buf_add(b, "\x93NUMPY\1\0", 8);
    put(b, strlen(dict), 2);
    us_buf_z(b, dict);
    us_buf_add(b, data, n);
}

static us_npy_set parse_ok(const us_buf *b) {
    us_npy_set s = {0};
    us_err err = {0};
    assert_us_ok(us_npy_parse(NULL, us_buf_view(b), true, 1 << 20, &s, &err), &err);
    return s;
}

static void orders_are_undone(void **state) {
    (void)state;
    static const unsigned char big[12] = {0, 0, 0, 1, 0, 0, 0, 2, 255, 255, 255, 255};
    static const signed char columns[6] = {0, 1, 2, 3, 4, 5};
    int64_t v;
    us_buf b = {0};
    put_array(&b, "{'descr': '>i4', 'fortran_order': False, 'shape': (3,), }", big, sizeof big);
    us_npy_set s = parse_ok(&b);
    static const int64_t want[3] = {1, 2, -1};
    for (uint64_t i = 0; i < 3; i++) assert_true(us_npy_i64(&s.arrays[0], i, &v) && v == want[i]);
    us_npy_set_free(&s);
    us_buf_clear(&b);
    put_array(&b, "{'descr': '|i1', 'fortran_order': True, 'shape': (2, 3), }", columns, sizeof columns);
    s = parse_ok(&b);
    assert_memory_equal(s.arrays[0].data, "\0\2\4\1\3\5", 6);
    us_npy_set_free(&s);
    us_buf_clear(&b);
    put_array(&b, "{'descr': '<u8', 'fortran_order': False, 'shape': (), }", "\377\377\377\377\377\377\377\377", 8);
    s = parse_ok(&b);
    assert_int_equal(s.arrays[0].count, 1);
    assert_false(us_npy_i64(&s.arrays[0], 0, &v)); /* does not fit */
    us_npy_set_free(&s);
    us_buf_clear(&b);
    put_array(&b, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "\0\0\0\0", 4);
    s = parse_ok(&b);
    assert_false(us_npy_i64(&s.arrays[0], 0, &v)); /* not an integer */
    us_npy_set_free(&s);
    us_buf_free(&b);
}

static void loading_has_a_limit(void **state) {
    (void)state;
    us_buf b = {0};
    us_npy_set s = {0};
    us_err err = {0};
    put_array(&b, "{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }", "abcd", 4);
    assert_int_equal(us_npy_parse(NULL, us_buf_view(&b), true, 3, &s, &err), US_E_LIMIT);
    assert_string_equal(err.cls, "limit");
    assert_us_ok(us_npy_parse(NULL, us_buf_view(&b), true, 4, &s, &err), &err);
    us_npy_set_free(&s);
    assert_us_ok(us_npy_parse(NULL, us_buf_view(&b), false, 0, &s, &err), &err);
    assert_int_equal(s.arrays[0].count, 4);
    assert_null(s.arrays[0].data);
    us_npy_set_free(&s);
    us_buf_free(&b);
}

/* ---- archives ---- */

typedef struct member {
    const char *name;
    unsigned method;
    uint64_t csize, usize;
    uint32_t crc;
    uint64_t local;
} member;

static void put_member(us_buf *b, member *m, const char *bytes) {
    m->local = b->n;
    us_buf_add(b, "PK\3\4", 4);
    put(b, 20, 2), put(b, 0, 2), put(b, m->method, 2), put(b, 0, 4), put(b, m->crc, 4), put(b, m->csize, 4),
        put(b, m->usize, 4);
    put(b, strlen(m->name), 2), put(b, 0, 2);
    us_buf_z(b, m->name);
    us_buf_add(b, bytes, (size_t)m->csize);
}

static void put_directory(us_buf *b, const member *m, size_t n) {
    uint64_t start = b->n;
    for (size_t i = 0; i < n; i++) {
        us_buf_add(b, "PK\1\2", 4);
        put(b, 20, 2), put(b, 20, 2), put(b, 0, 2), put(b, m[i].method, 2), put(b, 0, 4), put(b, m[i].crc, 4),
            put(b, m[i].csize, 4), put(b, m[i].usize, 4);
        put(b, strlen(m[i].name), 2), put(b, 0, 2 + 2 + 2 + 2), put(b, 0, 4), put(b, m[i].local, 4);
        us_buf_z(b, m[i].name);
    }
    uint64_t size = b->n - start;
    us_buf_add(b, "PK\5\6", 4);
    put(b, 0, 4), put(b, n, 2), put(b, n, 2), put(b, size, 4), put(b, start, 4), put(b, 0, 2);
}

static void a_claim_beyond_deflate_is_not_allocated(void **state) {
    (void)state;
    us_buf plain = {0}, b = {0};
    us_npy_set s = {0};
    us_err err = {0};
    unsigned char packed[512];
    char data[200] = {0};
    put_array(&plain, "{'descr': '|u1', 'fortran_order': False, 'shape': (500000000,), }", data, sizeof data);
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)plain.p;
    z.avail_in = (uInt)plain.n;
    z.next_out = packed;
    z.avail_out = sizeof packed;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    member m = {"a.npy", 8, z.total_out, plain.n - sizeof data + 500000000, 1, 0};
    deflateEnd(&z);
    put_member(&b, &m, (const char *)packed);
    put_directory(&b, &m, 1);
    us_alloc_stats before = us_alloc_get_stats();
    assert_int_equal(us_npy_parse(NULL, us_buf_view(&b), true, UINT64_MAX, &s, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "zip");
    assert_true(us_alloc_get_stats().peak_bytes < before.live_bytes + 100000000);
    us_buf_free(&plain);
    us_buf_free(&b);
}

/* Members may stand in another order than the directory; the arrays come in the directory's. */
static void records_may_stand_in_any_order(void **state) {
    (void)state;
    enum { N = 3000 };
    us_buf one = {0}, b = {0};
    put_array(&one, "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }", "x", 1);
    member *m = us_calloc(N, sizeof *m), *reversed = us_calloc(N, sizeof *m);
    assert_true(m && reversed);
    for (size_t i = 0; i < N; i++) {
        m[i] =
            (member){test_format("%zu.npy", i), 0, one.n, one.n, (uint32_t)crc32_z(0, (const Bytef *)one.p, one.n), 0};
        put_member(&b, &m[i], one.p);
        reversed[N - 1 - i] = m[i];
    }
    put_directory(&b, reversed, N);
    us_npy_set s = parse_ok(&b);
    assert_int_equal(s.n, N);
    assert_string_equal(s.arrays[0].name, "2999");
    us_npy_set_free(&s);
    /* Four bytes that belong to nobody. */
    us_err err = {0};
    us_buf_clear(&b);
    put_member(&b, &m[0], one.p);
    us_buf_z(&b, "junk");
    put_member(&b, &m[1], one.p);
    put_directory(&b, m, 2);
    assert_int_equal(us_npy_parse(NULL, us_buf_view(&b), true, 100, &s, &err), US_E_FORMAT);
    assert_string_equal(err.cls, "zip");
    us_free(m);
    us_free(reversed);
    us_buf_free(&one);
    us_buf_free(&b);
}

/* ---- what is written reads back ---- */

static bool archives_read_back(us_prop *p, void *path) {
    static const us_dtype types[] = {US_DTYPE_BOOL, US_DTYPE_I8,  US_DTYPE_I16, US_DTYPE_I32,
                                     US_DTYPE_I64,  US_DTYPE_U8,  US_DTYPE_U16, US_DTYPE_U32,
                                     US_DTYPE_U64,  US_DTYPE_F16, US_DTYPE_F32, US_DTYPE_F64};
    us_npy a[4] = {0};
    static char names[4][8] = {"a", "b/c", "d", "\xc3\xa9"};
    static char data[4][8 * 27];
    size_t n = prop_size(p, 4);
    us_err err = {0};
    for (size_t i = 0; i < n; i++) {
        a[i] = (us_npy){.name = names[i],
                        .dtype = types[prop_below(p, 12)],
                        .rank = (int)prop_size(p, 3),
                        .count = 1,
                        .data = data[i]};
        for (int d = 0; d < a[i].rank; d++) a[i].count *= a[i].shape[d] = prop_below(p, 4);
        prop_bytes(p, data[i], (size_t)a[i].count * us_dtype_bits(a[i].dtype) / 8);
        prop_say(p, "%s: %s, rank %d, %llu elements", a[i].name, us_dtype_name(a[i].dtype), a[i].rank,
                 (unsigned long long)a[i].count);
    }
    us_npy_set s = {0};
    if (us_npz_write(path, a, n, &err) != US_OK || us_npy_open(NULL, path, true, 1 << 20, &s, &err) != US_OK)
        return prop_wrong(p, "[%s] %s", err.cls, err.what);
    bool same = s.n == n;
    for (size_t i = 0; same && i < n; i++) {
        const us_npy *x = us_npy_find(&s, a[i].name);
        same = x && x->dtype == a[i].dtype && x->rank == a[i].rank && x->count == a[i].count &&
               memcmp(x->shape, a[i].shape, sizeof x->shape) == 0 &&
               memcmp(x->data, a[i].data, (size_t)(x->count * us_dtype_bits(x->dtype) / 8)) == 0;
    }
    same = same && us_npy_find(&s, "none") == NULL;
    us_npy_set_free(&s);
    return same || prop_wrong(p, "something differs");
}

static void properties(void **state) {
    (void)state;
    const char *path = test_format("%s/x.npz", test_temp_dir());
    prop_run("archives_read_back", archives_read_back, (void *)(uintptr_t)path, 200);
}

static void survives_every_allocation_failure(void **state) {
    (void)state;
    us_buf one = {0}, b = {0};
    put_array(&one, "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 2), }", "abcdefgh", 8);
    member m = {"a.npy", 0, one.n, one.n, (uint32_t)crc32_z(0, (const Bytef *)one.p, one.n), 0};
    put_member(&b, &m, one.p);
    put_directory(&b, &m, 1);
    us_str texts[2] = {us_buf_view(&one), us_buf_view(&b)};
    for (int i = 0; i < 2; i++) {
        uint64_t live = us_alloc_get_stats().live_blocks;
        for (uint64_t n = 1;; n++) {
            us_npy_set s = {0};
            us_err err = {0};
            us_alloc_fail_at(n);
            us_status st = us_npy_parse(NULL, texts[i], true, 100, &s, &err);
            bool failed = us_alloc_failed();
            us_alloc_fail_at(0);
            if (st == US_OK) us_npy_set_free(&s);
            assert_int_equal(us_alloc_get_stats().live_blocks, live);
            assert_int_equal(st, failed ? US_E_NOMEM : US_OK);
            if (!failed) break;
            assert_true(n < 1000);
        }
    }
    us_buf_free(&one);
    us_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_are_undone),
        cmocka_unit_test(loading_has_a_limit),
        cmocka_unit_test(a_claim_beyond_deflate_is_not_allocated),
        cmocka_unit_test(records_may_stand_in_any_order),
        cmocka_unit_test(properties),
        cmocka_unit_test(survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
