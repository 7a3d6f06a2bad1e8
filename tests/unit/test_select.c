/* Selection: methods, protection, routing dumps, nearest maps, clusters, refusals. Planted families are in tests/prop/test_planted.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "support/moe_maker.h"

#include "base/rng.h"
#include "io/npy.h"
#include "proxy/cluster.h"
#include "proxy/routing.h"
#include "proxy/select.h"

/* ---- clusters ---- */

static double *distances(uint32_t n, const double (*points)[1]) {
    double *d = us_calloc((size_t)n * n, sizeof *d);
    assert_non_null(d);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) d[i * n + j] = fabs(points[i][0] - points[j][0]);
    }
    return d;
}

static void merges_follow_average_linkage(void **state) {
    (void)state;
    /* Hand-worked: 0-1 at 1; 3-4 at 1.5; then {0,1}-2 at (4 + 3) / 2 = 3.5; then both clusters at the mean of all pairs. */
    static const double points[5][1] = {{0}, {1}, {4}, {10}, {11.5}};
    double *d = distances(5, points);
    us_merge m[4];
    uint32_t n = 0;
    us_err err = {0};
    assert_us_ok(us_cluster(&(us_cluster_input){.d = d, .stride = 5, .n = 5, .cap = (double)INFINITY}, m, &n, &err), &err);
    assert_int_equal(n, 4);
    assert_true(m[0].a == 1 && m[0].b == 0 && m[0].distance == 1.0); /* 1 is nearer to the rest than 0 */
    assert_true(m[1].a == 3 && m[1].b == 4 && m[1].distance == 1.5);
    assert_true(m[2].a == 1 && m[2].b == 2 && fabs(m[2].distance - 3.5) < 1e-12);
    double mean = (10 + 11.5 + 9 + 10.5 + 6 + 7.5) / 6;
    assert_true(fabs(m[3].distance - mean) < 1e-12);
    us_free(d);
}

static void the_cap_keeps_clusters_even(void **state) {
    (void)state;
    static const double points[8][1] = {{0}, {.1}, {.2}, {.3}, {.4}, {.5}, {50}, {90}};
    double *d = distances(8, points);
    us_merge m[7];
    uint32_t n = 0, size[8];
    us_err err = {0};
    assert_us_ok(us_cluster(&(us_cluster_input){.d = d, .stride = 8, .n = 8, .cap = 2.0}, m, &n, &err), &err);
    for (uint32_t i = 0; i < 8; i++) size[i] = 1;
    for (uint32_t i = 0, left = 7; i < n; i++, left--) {
        size[m[i].a] += size[m[i].b];
        assert_true(size[m[i].a] <= (16 + left - 1) / left);
    }
    us_free(d);
}

static void loads_and_protection_choose_representatives(void **state) {
    (void)state;
    static const double points[4][1] = {{0}, {1}, {2}, {9}};
    double *d = distances(4, points), load[4] = {.7, .1, .1, .1};
    bool protect[4] = {false, false, false, true};
    us_merge m[3];
    uint32_t n = 0;
    us_err err = {0};
    assert_us_ok(us_cluster(&(us_cluster_input){.d = d, .stride = 4, .n = 4, .cap = (double)INFINITY, .load = load}, m, &n, &err), &err);
    assert_int_equal(n, 3);
    assert_int_equal(m[2].a, 0); /* carries most of the load */
    assert_us_ok(us_cluster(&(us_cluster_input){.d = d, .stride = 4, .n = 4, .cap = (double)INFINITY, .protect = protect}, m, &n, &err), &err);
    assert_int_equal(n, 2);
    for (uint32_t i = 0; i < n; i++) assert_true(m[i].a != 3 && m[i].b != 3);
    us_free(d);
}

/* ---- routing dumps ---- */

static opened small(maker_form form, uint32_t layers, uint32_t E) {
    maker m = maker_create(layers, E, 32, 16, 1);
    const char *folder = test_temp_dir();
    maker_write(&m, form, folder);
    maker_free(&m);
    return maker_open(folder, 1);
}

static void filler_is_skipped(void **state) {
    (void)state;
    opened o = small(MAKER_BF16, 2, 8);
    us_routing r = {0};
    us_err err = {0};
    assert_us_ok(us_routing_create(o.s, true, &r, &err), &err);
    static const int64_t ids[][4] = {
        {0, 1, 2, 3},     /* counts */
        {0, 0, 0, 0},     /* padding: zero in every layer */
        {0, 0, 4, 5},     /* filler in one layer only */
        {-1, -1, -1, -1}, /* none */
        {1, 0, 3, -1},    /* one choice missing */
    };
    assert_us_ok(us_routing_add(o.ctx, o.s, ids[0], 5, 2, 2, -1, &r, &err), &err);
    assert_int_equal(r.blocks[0].count[0], 2);
    assert_int_equal(r.blocks[0].count[1], 2);
    assert_int_equal(r.blocks[1].count[3], 2);
    assert_int_equal(r.blocks[1].count[4], 1);
    assert_int_equal(r.blocks[0].pairs[0 * 8 + 1], 2);
    assert_int_equal(r.blocks[0].pairs[1 * 8 + 0], 2);
    assert_int_equal(r.blocks[0].pairs[0], 0);
    assert_int_equal(r.tokens, 5);
    assert_int_equal(r.filler, 5);
    us_routing_free(&r);
    maker_close(&o);
}

static void bad_dumps_are_refused(void **state) {
    (void)state;
    opened o = small(MAKER_BF16, 2, 8);
    us_routing r = {0};
    us_err err = {0};
    assert_us_ok(us_routing_create(o.s, false, &r, &err), &err);
    int64_t ids[8] = {0, 8, 0, 1, 0, 1, 0, 1};
    assert_int_equal(us_routing_add(o.ctx, o.s, ids, 1, 2, 2, -1, &r, &err), US_E_FORMAT); /* expert 8 of 8 */
    assert_string_equal(err.cls, "routing");
    assert_int_equal(us_routing_add(o.ctx, o.s, ids, 1, 3, 2, -1, &r, &err), US_E_FORMAT); /* three layers of two */
    assert_int_equal(us_routing_add(o.ctx, o.s, ids, 1, 2, 4, -1, &r, &err), US_E_FORMAT); /* four of top-2 */
    us_routing_free(&r);
    maker_close(&o);
}

static void profiles_are_compared_by_js(void **state) {
    (void)state;
    uint64_t pairs[25] = {0}, count[5] = {0};
    /* 0 and 1 go with 2 only, 3 with 4 only. */
    pairs[0 * 5 + 2] = pairs[2 * 5 + 0] = 7;
    pairs[1 * 5 + 2] = pairs[2 * 5 + 1] = 3;
    pairs[3 * 5 + 4] = pairs[4 * 5 + 3] = 5;
    us_routing_block b = {5, count, pairs};
    double d[25];
    us_routing_js(NULL, &b, d);
    assert_true(d[0 * 5 + 1] == 0.0);
    assert_true(fabs(d[0 * 5 + 3] - 1.0) < 1e-12);
    assert_true(d[0 * 5 + 0] == 0.0 && d[3 * 5 + 0] == d[0 * 5 + 3]);
    assert_true(d[3 * 5 + 4] == 0.0); /* nothing left to compare by */
}

static const char *dump_file(us_dtype t, const uint64_t *shape, int rank, const void *data, bool npz) {
    us_buf b = {0};
    us_err err = {0};
    const char *path = test_format("%s/dump.%s", test_temp_dir(), npz ? "npz" : "npy");
    uint64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    if (npz) {
        us_npy a = {.name = (char *)(uintptr_t) "routed_experts", .dtype = t, .rank = rank, .count = n, .data = (void *)(uintptr_t)data};
        memcpy(a.shape, shape, (size_t)rank * sizeof *shape);
        assert_us_ok(us_npz_write(path, &a, 1, &err), &err);
        return path;
    }
    assert_us_ok(us_npy_write(&b, t, rank, shape, data, &err), &err);
    test_write(path, b.p, b.n);
    us_buf_free(&b);
    return path;
}

/* Tokens choose experts 5 and 6 of layer 0 and 1 and 2 of layer 1, some others now and then. */
static void frequency_reads_every_kind_of_file(void **state) {
    (void)state;
    opened o = small(MAKER_BF16, 2, 8);
    enum { T = 40 };
    int16_t s16[T][4];
    uint8_t u8[T][4];
    int64_t s64[T][4];
    for (int t = 0; t < T; t++) {
        int64_t row[4] = {5, 6, 2, 1};
        if (t % 4 == 3) row[0] = t % 8, row[1] = 7 - t % 8;
        if (t >= 36) memset(row, 0, sizeof row);
        for (int i = 0; i < 4; i++) s16[t][i] = (int16_t)row[i], u8[t][i] = (uint8_t)row[i], s64[t][i] = row[i];
    }
    const uint64_t shape[4] = {2, T / 2, 2, 2};
    us_buf st = {0};
    us_err err = {0};
    us_st_tensor tensor = {.name = US_LIT("routed_experts"), .dtype = US_DTYPE_I64, .rank = 4, .shape = shape, .begin = 0, .end = sizeof s64};
    assert_us_ok(us_st_write_header(&st, &tensor, 1, NULL, 0, &err), &err);
    us_buf_add(&st, s64, sizeof s64);
    const char *safetensors = test_format("%s/dump.safetensors", test_temp_dir());
    test_write(safetensors, st.p, st.n);
    us_buf_free(&st);
    const char *files[3] = {dump_file(US_DTYPE_I16, shape, 4, s16, false), dump_file(US_DTYPE_U8, shape, 4, u8, true), safetensors};
    for (int i = 0; i < 3; i++) {
        us_select_options opt = {.method = US_SELECT_FREQUENCY, .routing = &files[i], .n_routing = 1};
        us_selection sel = {0};
        assert_us_ok(us_select(o.ctx, o.s, &opt, (uint32_t[]){2}, 1, &sel, &err), &err);
        assert_true(us_keep_ids(&sel.keeps[0], 0)[0] == 5 && us_keep_ids(&sel.keeps[0], 0)[1] == 6);
        assert_true(us_keep_ids(&sel.keeps[0], 1)[0] == 1 && us_keep_ids(&sel.keeps[0], 1)[1] == 2);
        assert_int_equal(sel.tokens, 72);
        assert_int_equal(sel.filler, 8);
        double sum = 0;
        for (int e = 0; e < 8; e++) sum += sel.blocks[0].load[e];
        assert_true(fabs(sum - 1) < 1e-12);
        us_selection_free(&sel);
        opt.method = US_SELECT_CLUSTER; /* and the other method takes them too */
        assert_us_ok(us_select(o.ctx, o.s, &opt, (uint32_t[]){4}, 1, &sel, &err), &err);
        assert_true(sel.blocks[0].has_routing && sel.blocks[0].has_sketch);
        us_selection_free(&sel);
    }
    us_selection none = {0};
    assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){.method = US_SELECT_FREQUENCY}, (uint32_t[]){2}, 1, &none, &err), US_E_UNSUPPORTED);
    assert_string_equal(err.cls, "select");
    maker_close(&o);
}

/* ---- methods ---- */

static void router_norm_keeps_the_largest_rows(void **state) {
    (void)state;
    maker m = maker_create(1, 8, 32, 16, 3);
    for (uint32_t k = 0; k < m.H; k++) maker_router(&m, 0, 6)[k] *= 8.0f, maker_router(&m, 0, 2)[k] *= 4.0f;
    const char *folder = test_temp_dir();
    maker_write(&m, MAKER_BF16, folder);
    opened o = maker_open(folder, 1);
    us_selection sel = {0};
    us_err err = {0};
    assert_us_ok(us_select(o.ctx, o.s, &(us_select_options){.method = US_SELECT_ROUTER_NORM}, (uint32_t[]){2}, 1, &sel, &err), &err);
    assert_true(us_keep_ids(&sel.keeps[0], 0)[0] == 2 && us_keep_ids(&sel.keeps[0], 0)[1] == 6);
    us_selection_free(&sel);
    maker_close(&o);
    maker_free(&m);
}

/* An expert with large outputs: reap-like keeps it, and "auto" protects it. */
static void loud_experts_are_found(void **state) {
    (void)state;
    maker m = maker_create(4, 16, 32, 16, 4);
    for (size_t i = 0; i < (size_t)m.H * m.I; i++) maker_down(&m, 1, 9)[i] *= 64.0f;
    const char *folder = test_temp_dir();
    maker_write(&m, MAKER_F32, folder);
    opened o = maker_open(folder, 1);
    us_selection sel = {0};
    us_err err = {0};
    assert_us_ok(us_select(o.ctx, o.s, &(us_select_options){.method = US_SELECT_REAP_LIKE}, (uint32_t[]){2}, 1, &sel, &err), &err);
    assert_true(us_keep_new_id(&sel.keeps[0], 1, 9) != UINT32_MAX);
    us_selection_free(&sel);
    const char *automatic[] = {"auto"};
    assert_us_ok(us_select(o.ctx, o.s, &(us_select_options){.protect = automatic, .n_protect = 1}, (uint32_t[]){2}, 1, &sel, &err), &err);
    assert_non_null(sel.blocks[1].protect);
    assert_true(sel.blocks[1].protect[9]);
    assert_null(sel.blocks[0].protect);
    assert_true(us_keep_new_id(&sel.keeps[0], 1, 9) != UINT32_MAX);
    us_selection_free(&sel);
    maker_close(&o);
    maker_free(&m);
}

static void protected_experts_stay(void **state) {
    (void)state;
    opened o = small(MAKER_GROUPS, 2, 16);
    const char *listed[] = {"1:3,4", "*:15"};
    us_err err = {0};
    for (int method = 0; method < US_SELECT_LIST; method++) {
        if (method == US_SELECT_FREQUENCY) continue;
        us_selection sel = {0};
        us_select_options opt = {.method = (us_select_method)method, .protect = listed, .n_protect = 2, .seed = 5};
        assert_us_ok(us_select(o.ctx, o.s, &opt, (uint32_t[]){12, 8}, 2, &sel, &err), &err);
        for (int i = 0; i < 2; i++) {
            assert_us_ok(us_keep_validate(o.s, &sel.keeps[i], NULL, &err), &err);
            assert_true(us_keep_new_id(&sel.keeps[i], 0, 3) != UINT32_MAX && us_keep_new_id(&sel.keeps[i], 0, 4) != UINT32_MAX);
            assert_true(us_keep_new_id(&sel.keeps[i], 0, 15) != UINT32_MAX && us_keep_new_id(&sel.keeps[i], 1, 15) != UINT32_MAX);
        }
        us_selection_free(&sel);
    }
    static const char *const wrong[] = {"1", "1:", "1:x", "1:16", "9:0", "1:0,1", "1:3,"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) { /* "1:0,1" leaves nobody to speak for the other two of the group at size 8 */
        us_selection sel = {0};
        assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){.method = US_SELECT_FIRST, .protect = &wrong[i], .n_protect = 1}, (uint32_t[]){8}, 1, &sel, &err), US_E_REFUSED);
        assert_string_equal(err.cls, "protect");
    }
    maker_close(&o);
}

static void illegal_sizes_and_options_are_refused(void **state) {
    (void)state;
    opened o = small(MAKER_GROUPS, 1, 16);
    us_selection sel = {0};
    us_err err = {0};
    assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){0}, (uint32_t[]){8, 10}, 2, &sel, &err), US_E_REFUSED);
    assert_string_equal(err.cls, "groups-divide");
    assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){0}, (uint32_t[]){32}, 1, &sel, &err), US_E_REFUSED);
    assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){.sketch_dims = 100}, (uint32_t[]){8}, 1, &sel, &err), US_E_INVAL);
    assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){.weights_given = true, .weight_router = -1}, (uint32_t[]){8}, 1, &sel, &err), US_E_INVAL);
    assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){.weights_given = true}, (uint32_t[]){8}, 1, &sel, &err), US_E_UNSUPPORTED);
    assert_int_equal(us_select(o.ctx, o.s, &(us_select_options){.method = US_SELECT_LIST}, (uint32_t[]){8}, 1, &sel, &err), US_E_INVAL);
    maker_close(&o);
}

static void method_names_are_read_back(void **state) {
    (void)state;
    us_select_method m;
    const char *file;
    for (int i = 0; i < US_SELECT_LIST; i++) {
        assert_true(us_select_method_parse(us_select_method_name((us_select_method)i), &m, &file));
        assert_int_equal(m, i);
        assert_null(file);
    }
    assert_true(us_select_method_parse("list:a:b", &m, &file));
    assert_int_equal(m, US_SELECT_LIST);
    assert_string_equal(file, "a:b");
    assert_false(us_select_method_parse("list:", &m, &file));
    assert_false(us_select_method_parse("list", &m, &file));
    assert_false(us_select_method_parse("reap", &m, &file));
}

static void baselines_draw_as_keep_lists_do(void **state) {
    (void)state;
    opened o = small(MAKER_GROUPS, 2, 16);
    us_err err = {0};
    for (uint64_t seed = 0; seed < 3; seed++) {
        us_selection sel = {0};
        us_keep want = {0};
        assert_us_ok(us_keep_random(o.s, seed, 8, &want, &err), &err);
        assert_us_ok(us_select(o.ctx, o.s, &(us_select_options){.method = US_SELECT_RANDOM, .seed = seed}, (uint32_t[]){8}, 1, &sel, &err), &err);
        assert_memory_equal(sel.keeps[0].ids, want.ids, 16 * sizeof(uint32_t));
        us_selection_free(&sel);
        us_keep_free(&want);
    }
    us_selection sel = {0};
    us_keep want = {0};
    assert_us_ok(us_keep_first(o.s, 8, &want, &err), &err);
    assert_us_ok(us_select(o.ctx, o.s, &(us_select_options){.method = US_SELECT_FIRST}, (uint32_t[]){8}, 1, &sel, &err), &err);
    assert_memory_equal(sel.keeps[0].ids, want.ids, 16 * sizeof(uint32_t));
    us_selection_free(&sel);
    us_keep_free(&want);
    maker_close(&o);
}

static void statistics_are_reported(void **state) {
    (void)state;
    opened o = small(MAKER_BF16, 1, 8);
    us_err err = {0};
    int16_t ids[10][2];
    for (int t = 0; t < 10; t++) ids[t][0] = 3, ids[t][1] = (int16_t)(t < 6 ? 5 : 1);
    const char *file = dump_file(US_DTYPE_I16, (uint64_t[]){10, 1, 2}, 3, ids, false);
    const char *listed[] = {"0:3"};
    us_selection sel = {0};
    us_select_options opt = {.method = US_SELECT_FREQUENCY, .routing = &file, .n_routing = 1, .protect = listed, .n_protect = 1};
    assert_us_ok(us_select(o.ctx, o.s, &opt, (uint32_t[]){2}, 1, &sel, &err), &err);
    us_buf json = {0}, text = {0};
    us_selection_json(&json, &sel, o.s, &sel.keeps[0], NULL);
    us_json_doc d;
    assert_us_ok(us_json_doc_parse(&d, us_buf_view(&json), 0, &err), &err);
    double kept = 0, largest = 0;
    assert_true(us_json_double(&d, us_json_path(&d, 0, "blocks.0.kept_load"), &kept));
    assert_true(us_json_double(&d, us_json_path(&d, 0, "blocks.0.largest_load"), &largest));
    assert_true(fabs(kept - 0.8) < 1e-6); /* 10 of 20 choices fell on 3, 6 on 5 */
    assert_true(fabs(largest - 4.0) < 1e-6);
    assert_int_equal(us_json_count(&d, us_json_path(&d, 0, "blocks.0.load")), 8);
    assert_int_equal(us_json_count(&d, us_json_path(&d, 0, "blocks.0.protected")), 1);
    us_selection_text(&text, &sel, o.s, &sel.keeps[0], NULL);
    assert_non_null(strstr(us_buf_text(&text), "80.0 % of all choices"));
    assert_non_null(strstr(us_buf_text(&text), "ceiling 1.00"));
    us_json_doc_free(&d);
    us_buf_free(&json);
    us_buf_free(&text);
    us_selection_free(&sel);
    maker_close(&o);
}

static void nearest_kept_experts_are_ranked(void **state) {
    (void)state;
    static const double d[16] = {0, .5, .5, .1, .5, 0, .2, .9, .5, .2, 0, .3, .1, .9, .3, 0};
    uint32_t ranked[3];
    us_select_nearest(d, 4, (uint32_t[]){3, 2, 1}, 3, 0, ranked);
    assert_true(ranked[0] == 3 && ranked[1] == 1 && ranked[2] == 2); /* a tie: the lower number */
    us_select_nearest(d, 4, (uint32_t[]){0, 1, 3}, 3, 1, ranked);
    assert_true(ranked[0] == 1 && ranked[1] == 0 && ranked[2] == 3); /* itself first */
}

static void blocks_that_are_not_written_are_left_alone(void **state) {
    (void)state;
    opened o = small(MAKER_BF16, 3, 8);
    us_selection sel = {0};
    us_err err = {0};
    bool active[3] = {true, false, true};
    assert_us_ok(us_select(o.ctx, o.s, &(us_select_options){.active = active}, (uint32_t[]){4}, 1, &sel, &err), &err);
    assert_false(sel.blocks[1].has_sketch);
    assert_true(sel.blocks[2].has_sketch);
    assert_int_equal(sel.tree.blocks[1].n, 0);
    assert_int_equal(us_keep_ids(&sel.keeps[0], 1)[3], 0);
    us_selection_free(&sel);
    double *d = us_calloc(64, sizeof *d);
    assert_non_null(d);
    assert_us_ok(us_select_distances(o.ctx, o.s, &(us_select_options){0}, 1, d, &err), &err);
    assert_true(d[0] == 0 && d[1] > 0 && d[1] == d[8]);
    us_free(d);
    maker_close(&o);
}

/* Every allocation fails once: an error comes back, nothing leaks (the sanitizer build looks). */
static void running_out_of_memory_is_an_error(void **state) {
    (void)state;
    opened o = small(MAKER_GROUPS, 1, 16);
    const char *automatic[] = {"auto"};
    us_select_options opt = {.protect = automatic, .n_protect = 1};
    us_alloc_stats before = us_alloc_get_stats();
    bool done = false;
    for (uint64_t n = 1; n < 2000 && !done; n++) {
        us_selection sel = {0};
        us_err err = {0};
        us_alloc_fail_at(n);
        us_status st = us_select(o.ctx, o.s, &opt, (uint32_t[]){8}, 1, &sel, &err);
        done = !us_alloc_failed();
        us_alloc_fail_at(0);
        if (st == US_OK) us_selection_free(&sel);
        else assert_int_equal(st, US_E_NOMEM);
        if (!done) assert_int_equal(us_alloc_get_stats().live_blocks, before.live_blocks);
    }
    assert_true(done);
    maker_close(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_follow_average_linkage),
        cmocka_unit_test(the_cap_keeps_clusters_even),
        cmocka_unit_test(loads_and_protection_choose_representatives),
        cmocka_unit_test(filler_is_skipped),
        cmocka_unit_test(bad_dumps_are_refused),
        cmocka_unit_test(profiles_are_compared_by_js),
        cmocka_unit_test(frequency_reads_every_kind_of_file),
        cmocka_unit_test(router_norm_keeps_the_largest_rows),
        cmocka_unit_test(loud_experts_are_found),
        cmocka_unit_test(protected_experts_stay),
        cmocka_unit_test(illegal_sizes_and_options_are_refused),
        cmocka_unit_test(method_names_are_read_back),
        cmocka_unit_test(baselines_draw_as_keep_lists_do),
        cmocka_unit_test(statistics_are_reported),
        cmocka_unit_test(nearest_kept_experts_are_ranked),
        cmocka_unit_test(blocks_that_are_not_written_are_left_alone),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
