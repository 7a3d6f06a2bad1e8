/* The base layer: status and errors, strings, buffers, map, allocator, arena, pool, random numbers, context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/alloc.h"
#include "base/ctx.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/str.h"
#include "support/prop.h"

/* ---- status ---- */

static void every_status_has_name_and_text(void **state) {
    (void)state;
    assert_string_equal(us_status_name(US_OK), "OK");
    assert_string_equal(us_status_name(US_E_REFUSED), "E_REFUSED");
    assert_string_equal(us_status_text(US_E_FORMAT), "malformed input");
    assert_string_equal(us_status_name((us_status)-99), "E_UNKNOWN");
}

static void an_error_is_one_line(void **state) {
    (void)state;
    us_err err = {0};
    char line[4 * US_ERR_TEXT];
    assert_int_equal(us_fail(&err, US_E_FORMAT, "json", "bad \"%s\"", "a\nb\x1b[1m"), US_E_FORMAT);
    assert_int_equal(us_err_where(&err, "byte %d", 7), US_E_FORMAT);
    us_err_where(&err, "file x");
    us_err_todo(&err, "first advice");
    us_err_todo(&err, "second advice");
    int n = us_err_line(&err, line, sizeof line);
    assert_int_equal(n, strlen(line));
    assert_string_equal(line, "bad \"a\\x0ab\\x1b[1m\" [json]: file x, byte 7: first advice");
    assert_int_equal(us_fail(&err, US_E_LIMIT, NULL, "plain"), US_E_LIMIT);
    us_err_line(&err, line, sizeof line);
    assert_string_equal(line, "plain"); /* the former where and advice are gone */
    assert_int_equal(us_err_line(&err, line, 4), 3);
    assert_string_equal(line, "pla");
}

static void errors_never_overflow(void **state) {
    (void)state;
    us_err err = {0};
    char huge[3 * US_ERR_TEXT], line[4 * US_ERR_TEXT];
    memset(huge, '\n', sizeof huge);
    huge[sizeof huge - 1] = 0;
    us_fail(&err, US_E_IO, huge, "%s", huge);
    for (int i = 0; i < 5; i++) us_err_where(&err, "%s", huge);
    us_err_todo(&err, "%s", huge);
    us_err_line(&err, line, sizeof line);
    assert_null(strchr(err.what, '\n'));
    assert_null(strchr(err.where, '\n'));
    assert_true(strlen(line) < sizeof line);
    assert_int_equal(us_fail(NULL, US_E_IO, NULL, "x"), US_E_IO); /* err is optional */
    assert_int_equal(us_fail_sys(&err, 2, "open", "cannot open %s", "x"), US_E_IO);
    assert_int_equal(err.sys, 2);
    assert_non_null(strstr(err.what, "cannot open x: "));
}

/* ---- strings ---- */

static void numbers_are_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        uint64_t value;
    } rows[] = {{"0", true, 0},
                {"18446744073709551615", true, UINT64_MAX},
                {"18446744073709551616", false, 0},
                {"99999999999999999999", false, 0},
                {"", false, 0},
                {"00", false, 0},
                {"+1", false, 0},
                {"-1", false, 0},
                {"1 ", false, 0},
                {"0x1", false, 0},
                {"42", true, 42}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t v = 7;
        assert_int_equal(us_str_to_u64(us_str_z(rows[i].text), &v), rows[i].ok);
        assert_true(v == (rows[i].ok ? rows[i].value : 7));
    }
}

static void strings_compare_and_cut(void **state) {
    (void)state;
    us_str a = US_LIT("model.layers.3");
    assert_true(us_str_starts(a, US_LIT("model.")));
    assert_false(us_str_starts(US_LIT("mod"), US_LIT("model")));
    assert_true(us_str_ends(a, US_LIT(".3")));
    assert_int_equal(us_str_find(a, '.', 6), 12);
    assert_int_equal(us_str_find(a, 'x', 0), a.n);
    assert_true(us_str_eqz(us_str_sub(a, 6, 12), "layers"));
    assert_int_equal(us_str_sub(a, 20, 30).n, 0);
    assert_true(us_str_cmp(US_LIT("a"), US_LIT("ab")) < 0 && us_str_cmp(US_LIT("b"), US_LIT("ab")) > 0 &&
                us_str_cmp(a, a) == 0);
    assert_true(us_str_cmp(US_LIT("\xff"), US_LIT("a")) > 0); /* bytes, not signed characters */
}

/* An independent judge: decodes by the definition. */
static bool utf8_by_definition(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n;) {
        unsigned c = p[i];
        size_t len = c < 0x80 ? 1 : (c & 0xe0) == 0xc0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : (c & 0xf8) == 0xf0 ? 4 : 0;
        if (len == 0 || i + len > n) return false;
        uint32_t v = len == 1 ? c : c & (0x7fu >> len);
        for (size_t k = 1; k < len; k++) {
            if ((p[i + k] & 0xc0) != 0x80) return false;
            v = v << 6 | (p[i + k] & 0x3f);
        }
        static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
        if (v < least[len] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) return false;
        i += len;
    }
    return true;
}

static void utf8_is_judged_exactly(void **state) {
    (void)state;
    /* every first and second byte, with third and fourth from the interesting set */
    static const unsigned char tails[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
    unsigned char p[4];
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++)
            for (size_t c = 0; c < sizeof tails; c++)
                for (size_t d = 0; d < sizeof tails; d++) {
                    p[0] = (unsigned char)a, p[1] = (unsigned char)b, p[2] = tails[c], p[3] = tails[d];
                    for (size_t n = 1; n <= 4; n++)
                        if (us_utf8_valid((char *)p, n, NULL) != utf8_by_definition(p, n))
                            fail_msg("%02x %02x %02x %02x, %zu bytes", p[0], p[1], p[2], p[3], n);
                }
    size_t bad = 0;
    assert_false(us_utf8_valid("0123456789abcdef\xff", 17, &bad));
    assert_int_equal(bad, 16);
}

static void buffers_escape_json(void **state) {
    (void)state;
    us_buf b = {0};
    us_buf_json(&b, (us_str){"a\"\\\n\t\x01\x7f\xc3\xa9\xff\0z", 12});
    assert_string_equal(us_buf_text(&b), "\"a\\\"\\\\\\n\\t\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\\u0000z\"");
    us_buf_clear(&b);
    us_buf_printf(&b, "%d-%s", 5, "x");
    us_buf_c(&b, '!');
    assert_string_equal(us_buf_text(&b), "5-x!");
    us_buf_free(&b);
}

static void a_buffer_remembers_that_memory_ran_out(void **state) {
    (void)state;
    us_buf b = {0};
    us_err err = {0};
    us_buf_z(&b, "before");
    us_alloc_fail_at(1);
    for (int i = 0; i < 100; i++) us_buf_z(&b, "more and more");
    us_alloc_fail_at(0);
    us_buf_z(&b, "after");
    assert_int_equal(us_buf_status(&b, &err, "testing"), US_E_NOMEM);
    us_buf_free(&b);
}

static void sizes_are_printed_for_people(void **state) {
    (void)state;
    char t[24];
    assert_string_equal(us_format_bytes(0, t), "0 B");
    assert_string_equal(us_format_bytes(999, t), "999 B");
    assert_string_equal(us_format_bytes(1000, t), "1.00 kB");
    assert_string_equal(us_format_bytes(999999, t), "1.00 MB");
    assert_string_equal(us_format_bytes(61123456789, t), "61.1 GB");
    assert_string_equal(us_format_count(235100000000, t), "235 B");
    assert_string_equal(us_format_count(512, t), "512");
}

/* ---- memory ---- */

static void allocations_are_counted(void **state) {
    (void)state;
    us_alloc_stats before = us_alloc_get_stats();
    char *p = us_malloc(100), *q = us_malloc_aligned(33), *z = us_calloc(3, 7);
    assert_true(((uintptr_t)p & 15) == 0 && ((uintptr_t)q & 63) == 0);
    for (int i = 0; i < 21; i++) assert_int_equal(z[i], 0);
    assert_int_equal(us_alloc_get_stats().live_bytes - before.live_bytes, 154);
    memset(q, 5, 33);
    q = us_realloc(q, 1000);
    assert_true(((uintptr_t)q & 63) == 0 && q[32] == 5);
    memset(p, 6, 100);
    p = us_realloc(p, 10);
    assert_int_equal(p[9], 6);
    assert_true(us_alloc_get_stats().peak_bytes >= before.live_bytes + 1000);
    us_free(p), us_free(q), us_free(z), us_free(NULL);
    assert_int_equal(us_alloc_get_stats().live_bytes, before.live_bytes);
    assert_int_equal(us_alloc_get_stats().live_blocks, before.live_blocks);
    assert_null(us_calloc(SIZE_MAX / 2, 3));
    assert_null(us_malloc(SIZE_MAX - 8));
    size_t n;
    assert_false(us_mul_size(SIZE_MAX, 2, &n));
}

static void allocations_fail_on_demand(void **state) {
    (void)state;
    us_alloc_fail_at(2);
    void *p = us_malloc(1);
    assert_non_null(p);
    assert_false(us_alloc_failed());
    assert_null(us_malloc(1));
    assert_null(us_realloc(p, 2)); /* p stays */
    assert_true(us_alloc_failed());
    us_alloc_fail_at(0);
    us_free(p);
}

static bool arena_keeps_blocks_apart(us_prop *p, void *arg) {
    (void)arg;
    us_arena a = {.block_size = (size_t)prop_below(p, 200)};
    unsigned char *blocks[40];
    size_t sizes[40], n = prop_size(p, 40);
    for (size_t i = 0; i < n; i++) {
        sizes[i] = prop_size(p, 500);
        blocks[i] = us_arena_alloc(&a, sizes[i]);
        memset(blocks[i], (int)i, sizes[i]);
    }
    bool good = true;
    for (size_t i = 0; i < n; i++) {
        good &= ((uintptr_t)blocks[i] & 15) == 0;
        for (size_t k = 0; k < sizes[i]; k++) good &= blocks[i][k] == i;
    }
    us_arena_free(&a);
    PROP_CHECK(p, good);
    return true;
}

static void arena_blocks_do_not_overlap(void **state) {
    (void)state;
    uint64_t live = us_alloc_get_stats().live_blocks;
    prop_run("arena", arena_keeps_blocks_apart, NULL, 200);
    assert_int_equal(us_alloc_get_stats().live_blocks, live);
    us_arena a = {0};
    assert_string_equal(us_arena_strndup(&a, "abcdef", 3), "abc");
    assert_null(us_arena_alloc(&a, SIZE_MAX / 2));
    assert_null(us_arena_calloc(&a, SIZE_MAX / 2, 4));
    us_arena_free(&a);
}

/* ---- map ---- */

/* Against a plain list. Keys are short words over a small alphabet, the empty one included, so that they repeat. */
static bool map_equals_a_list(us_prop *p, void *arg) {
    (void)arg;
    enum { OPS = 200 };
    static char keys[OPS][4];
    uint32_t values[OPS];
    size_t n_keys = 0, n = prop_size(p, OPS);
    us_map m = {0};
    bool good = true;
    for (size_t i = 0; i < n && good; i++) {
        char *key = keys[n_keys];
        size_t len = (size_t)prop_below(p, 3);
        for (size_t k = 0; k < len; k++) key[k] = (char)('a' + prop_below(p, 5));
        key[len] = 0;
        size_t at = 0;
        while (at < n_keys && strcmp(keys[at], key) != 0) at++;
        uint32_t known = at < n_keys ? values[at] : US_MAP_NONE, old = 12345, v = (uint32_t)prop_below(p, 1000);
        good &= us_map_get(&m, us_str_z(key)) == known;
        if (prop_bool(p)) {
            good &= us_map_set(&m, us_str_z(at < n_keys ? keys[at] : key), v);
            values[at] = v;
        } else {
            good &= us_map_put(&m, us_str_z(at < n_keys ? keys[at] : key), v, &old) && old == known;
            if (known == US_MAP_NONE) values[at] = v;
        }
        if (at == n_keys) n_keys++;
        good &= m.n == n_keys;
    }
    for (size_t i = 0; i < n_keys; i++) good &= us_map_get(&m, us_str_z(keys[i])) == values[i];
    us_map_free(&m);
    PROP_CHECK(p, good);
    return true;
}

static void map_is_a_map(void **state) {
    (void)state;
    prop_run("map", map_equals_a_list, NULL, 300);
}

/* ---- threads ---- */

typedef struct counts {
    int64_t seen[1000];
    int max_thread;
    us_pool *pool;
} counts;

static void count_one(void *arg, int64_t i, int thread) {
    counts *c = arg;
    c->seen[i] += 1 + thread * 0;
    if (thread < 0 || thread >= us_pool_threads(c->pool)) c->seen[i] = -1000;
}

static void the_pool_runs_each_index_once(void **state) {
    (void)state;
    static counts c;
    for (int threads = 1; threads <= 7; threads += 2) {
        us_err err = {0};
        us_pool *pool;
        assert_int_equal(us_pool_create(threads, &pool, &err), US_OK);
        assert_int_equal(us_pool_threads(pool), threads);
        memset(&c, 0, sizeof c);
        c.pool = pool;
        for (int run = 0; run < 200; run++) us_pool_run(pool, count_one, &c, run % 2 ? 1000 : 3);
        for (int i = 0; i < 1000; i++) assert_int_equal(c.seen[i], i < 3 ? 200 : 100);
        us_pool_run(pool, count_one, &c, 0);
        us_pool_free(pool);
    }
    memset(&c, 0, sizeof c);
    us_pool_run(NULL, count_one, &c, 10);
    assert_int_equal(c.seen[9], 1);
    us_pool *pool;
    us_err err = {0};
    assert_int_equal(us_pool_create(-1, &pool, &err), US_E_INVAL);
    assert_int_equal(us_pool_create(5000, &pool, &err), US_E_INVAL);
    assert_true(us_cpu_count() >= 1);
}

static void the_pool_survives_lack_of_memory(void **state) {
    (void)state;
    uint64_t live = us_alloc_get_stats().live_blocks;
    for (uint64_t n = 1; n <= 6; n++) {
        us_err err = {0};
        us_pool *pool;
        us_alloc_fail_at(n);
        us_status s = us_pool_create(4, &pool, &err);
        us_alloc_fail_at(0);
        if (s == US_OK)
            us_pool_free(pool);
        else
            assert_int_equal(s, US_E_NOMEM);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
        if (n == 6) assert_int_equal(s, US_OK);
    }
}

/* ---- random numbers ---- */

/* Known answers of Philox4x32-10, as published with the Random123 library (counter words, key words, result). */
static void philox_gives_the_published_numbers(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, stream, index;
        uint32_t out[4];
    } rows[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t out[4];
        us_philox(rows[i].seed, rows[i].stream, rows[i].index, out);
        assert_memory_equal(out, rows[i].out, sizeof out);
    }
}

static void draws_have_the_right_shape(void **state) {
    (void)state;
    enum { N = 20000 };
    double sum = 0, squares = 0, uniform = 0;
    int counts_below[7] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = us_rng_double(3, 1, i), z = us_rng_normal(3, 2, i);
        assert_true(u >= 0 && u < 1);
        uniform += u;
        sum += z;
        squares += z * z;
        counts_below[us_rng_below(3, 3, i, 7)]++;
    }
    /* five standard deviations of each statistic */
    assert_true(uniform / N > 0.5 - 0.0103 && uniform / N < 0.5 + 0.0103);
    assert_true(sum / N > -0.0354 && sum / N < 0.0354);
    assert_true(squares / N > 1 - 0.05 && squares / N < 1 + 0.05);
    for (int i = 0; i < 7; i++) assert_true(counts_below[i] > N / 7 - 250 && counts_below[i] < N / 7 + 250);
    assert_true(us_rng_below(1, 1, 1, 1) == 0);
    for (uint64_t i = 0; i < 100; i++) assert_true(us_rng_below(9, 9, i, UINT64_MAX) < UINT64_MAX);
}

static void permutations_permute(void **state) {
    (void)state;
    uint32_t p[100], q[100];
    bool seen[100] = {false};
    us_rng_permutation(5, 6, 100, p);
    us_rng_permutation(5, 6, 100, q);
    assert_memory_equal(p, q, sizeof p);
    for (int i = 0; i < 100; i++) seen[p[i]] = true;
    for (int i = 0; i < 100; i++) assert_true(seen[i]);
    us_rng_permutation(5, 7, 100, q);
    assert_memory_not_equal(p, q, sizeof p);
}

/* ---- context ---- */

static void notes_are_kept_once_and_in_one_line(void **state) {
    (void)state;
    us_ctx *c;
    us_err err = {0};
    assert_int_equal(us_ctx_create(1, 42, &c, &err), US_OK);
    assert_true(us_ctx_seed(c) == 42);
    us_note(c, "stale", "%d copies\nignored", 2);
    us_note(c, "stale", "%d copies\nignored", 2);
    us_note(c, NULL, "other");
    assert_int_equal(us_ctx_n_notes(c), 2);
    assert_string_equal(us_ctx_note(c, 0), "2 copies\\x0aignored");
    assert_string_equal(us_ctx_note_class(c, 0), "stale");
    assert_string_equal(us_ctx_note_class(c, 1), "");
    for (int i = 0; i < 5000; i++) us_note(c, NULL, "note %d", i);
    assert_true(us_ctx_n_notes(c) <= 1000);
    us_note(NULL, NULL, "nobody listens");
    us_ctx_free(c);
}

static void cancelling_is_seen(void **state) {
    (void)state;
    us_ctx *c;
    us_err err = {0};
    assert_int_equal(us_ctx_create(1, 0, &c, &err), US_OK);
    assert_int_equal(us_ctx_check(c, &err), US_OK);
    us_ctx_cancel(c);
    assert_int_equal(us_ctx_check(c, &err), US_E_CANCELLED);
    us_ctx_free(c);
}

static void take_report(void *user, const us_progress *p) {
    *(us_progress *)user = *p;
}

static void add_progress(void *arg, int64_t i, int thread) {
    (void)thread;
    us_progress_add(arg, (uint64_t)i);
}

static void progress_adds_up(void **state) {
    (void)state;
    us_ctx *c;
    us_err err = {0};
    us_progress last = {0};
    assert_int_equal(us_ctx_create(3, 0, &c, &err), US_OK);
    us_progress_add(c, 5); /* no phase, no sink: nothing */
    us_ctx_on_progress(c, take_report, &last);
    us_progress_begin(c, "copying", "B", 4950);
    us_pool_run(us_ctx_pool(c), add_progress, c, 100);
    us_progress_end(c);
    assert_true(last.done == 4950 && last.total == 4950);
    assert_string_equal(last.what, "copying");
    us_ctx_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_name_and_text),
        cmocka_unit_test(an_error_is_one_line),
        cmocka_unit_test(errors_never_overflow),
        cmocka_unit_test(numbers_are_read_strictly),
        cmocka_unit_test(strings_compare_and_cut),
        cmocka_unit_test(utf8_is_judged_exactly),
        cmocka_unit_test(buffers_escape_json),
        cmocka_unit_test(a_buffer_remembers_that_memory_ran_out),
        cmocka_unit_test(sizes_are_printed_for_people),
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(allocations_fail_on_demand),
        cmocka_unit_test(arena_blocks_do_not_overlap),
        cmocka_unit_test(map_is_a_map),
        cmocka_unit_test(the_pool_runs_each_index_once),
        cmocka_unit_test(the_pool_survives_lack_of_memory),
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(draws_have_the_right_shape),
        cmocka_unit_test(permutations_permute),
        cmocka_unit_test(notes_are_kept_once_and_in_one_line),
        cmocka_unit_test(cancelling_is_seen),
        cmocka_unit_test(progress_adds_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
