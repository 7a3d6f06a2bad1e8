/**
 * Planted families: an expert, its neurons permuted and its weights perturbed, 8 copies each. Clustering must find exactly the families (adjusted Rand
 * index 1.0), whatever the layout and type on disk; and selection must not see the order of neurons, follow a renumbering, nest, and not depend on
 * threads or instruction set. Spec: moe-proxy.md 5.6.
 */
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
#include "kernels/dispatch.h"
#include "proxy/select.h"

static us_selection select_in(const opened *o, const us_select_options *opt, const uint32_t *sizes, size_t n) {
    us_selection sel = {0};
    us_err err = {0};
    assert_us_ok(us_select(o->ctx, o->s, opt, sizes, n, &sel, &err), &err);
    return sel;
}

/* Cluster of every expert after the first merges that leave n clusters, as the number of its representative. */
static void clusters_at(const us_selection *sel, size_t block, uint32_t E, uint32_t n, uint32_t *of) {
    for (uint32_t e = 0; e < E; e++) of[e] = e;
    for (uint32_t m = 0; m < E - n; m++) {
        us_merge x = sel->tree.blocks[block].merges[m];
        for (uint32_t e = 0; e < E; e++) of[e] = of[e] == x.b ? x.a : of[e];
    }
}

static double pairs(double n) {
    return n * (n - 1) / 2;
}

static double adjusted_rand(const uint32_t *a, const uint32_t *b, uint32_t n) {
    static uint32_t table[256][256];
    double both = 0, in_a = 0, in_b = 0;
    assert_true(n <= 256);
    memset(table, 0, sizeof table);
    for (uint32_t i = 0; i < n; i++) table[a[i]][b[i]]++;
    for (uint32_t i = 0; i < 256; i++) {
        double ra = 0, rb = 0;
        for (uint32_t j = 0; j < 256; j++) {
            both += pairs(table[i][j]);
            ra += table[i][j];
            rb += table[j][i];
        }
        in_a += pairs(ra);
        in_b += pairs(rb);
    }
    double expected = in_a * in_b / pairs(n), most = (in_a + in_b) / 2;
    return (both - expected) / (most - expected);
}

static void the_index_tells_right_from_wrong(void **state) {
    (void)state;
    uint32_t a[8] = {0, 0, 0, 1, 1, 1, 2, 2}, b[8] = {5, 5, 5, 7, 7, 7, 1, 1}, c[8] = {0, 0, 1, 1, 1, 1, 2, 2}, d[8] = {0, 1, 2, 0, 1, 2, 0, 1};
    assert_true(fabs(adjusted_rand(a, b, 8) - 1.0) < 1e-12);
    assert_true(adjusted_rand(a, c, 8) < 0.7);
    assert_true(adjusted_rand(a, d, 8) < 0.1);
}

static void recover(maker_form form, uint32_t E, uint32_t H, uint32_t I, uint32_t copies, double noise, uint64_t seed) {
    uint32_t layers = 2, families = E / copies, label[512], of[256];
    maker m = maker_create(layers, E, H, I, seed);
    maker_plant(&m, families, noise, form == MAKER_GROUPS, seed, label);
    const char *folder = test_temp_dir();
    maker_write(&m, form, folder);
    opened o = maker_open(folder, 2);
    us_selection sel = select_in(&o, &(us_select_options){.seed = seed}, &families, 1);
    assert_int_equal(o.s->n_blocks, layers);
    for (uint32_t l = 0; l < layers; l++) {
        assert_true(sel.blocks[l].has_sketch && sel.blocks[l].has_router);
        clusters_at(&sel, l, E, families, of);
        double index = adjusted_rand(of, label + (size_t)l * E, E);
        if (index < 1.0) print_message("form %d, E %u, seed %llu, layer %u: index %g\n", (int)form, E, (unsigned long long)seed, l, index);
        assert_true(fabs(index - 1.0) < 1e-12);
        bool seen[256] = {0}; /* one expert of every family stays */
        for (uint32_t j = 0; j < families; j++) {
            uint32_t f = label[(size_t)l * E + us_keep_ids(&sel.keeps[0], l)[j]];
            assert_false(seen[f]);
            seen[f] = true;
        }
    }
    us_err err = {0};
    assert_us_ok(us_keep_validate(o.s, &sel.keeps[0], NULL, &err), &err);
    us_selection_free(&sel);
    maker_close(&o);
    maker_free(&m);
}

static void families_are_recovered_in_every_form(void **state) {
    (void)state;
    for (int form = 0; form < MAKER_FORMS; form++) {
        recover((maker_form)form, 32, 64, 32, form == MAKER_GROUPS ? 4 : 8, 0.1, 11 + (uint64_t)form);
        recover((maker_form)form, 64, 96, 64, 8, 0.2, 31 + (uint64_t)form);
    }
}

static void families_are_recovered_for_many_seeds(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) recover(MAKER_BF16, 128, 64, 32, 8, 0.15, seed);
    recover(MAKER_BF16, 128, 160, 96, 8, 0.3, 99);
    recover(MAKER_BF16, 48, 72, 40, 8, 0.2, 7); /* nothing is a multiple of a tile */
}

static void assert_same_keeps(const us_selection *a, const us_selection *b) {
    assert_int_equal(a->n_sizes, b->n_sizes);
    for (size_t i = 0; i < a->n_sizes; i++) {
        assert_int_equal(a->keeps[i].n, b->keeps[i].n);
        assert_memory_equal(a->keeps[i].ids, b->keeps[i].ids, a->keeps[i].n_blocks * a->keeps[i].n * sizeof(uint32_t));
    }
}

static void assert_same_trees(const us_selection *a, const us_selection *b) {
    for (size_t l = 0; l < a->n_blocks; l++) {
        assert_int_equal(a->tree.blocks[l].n, b->tree.blocks[l].n);
        for (uint32_t i = 0; i < a->tree.blocks[l].n; i++) {
            us_merge x = a->tree.blocks[l].merges[i], y = b->tree.blocks[l].merges[i];
            assert_true(x.a == y.a && x.b == y.b && x.distance == y.distance);
        }
    }
}

static const uint32_t ladder[3] = {24, 12, 8};

/* Bits, not only choices: threads and instruction sets. The slow paths run on a small model. */
static void neither_threads_nor_instructions_matter(void **state) {
    (void)state;
    maker m = maker_create(2, 48, 40, 24, 5);
    for (int form = 0; form < MAKER_FORMS; form++) {
        if (form == MAKER_INT4 || form == MAKER_FP4) continue; /* 40 is no multiple of their groups */
        const char *folder = test_temp_dir();
        maker_write(&m, (maker_form)form, folder);
        opened one = maker_open(folder, 1);
        us_select_options opt = {.seed = 3};
        us_selection want = select_in(&one, &opt, ladder, 3);
        static const int threads[] = {2, 7};
        for (int t = 0; t < 2; t++) {
            opened many = maker_open(folder, threads[t]);
            us_selection sel = select_in(&many, &opt, ladder, 3);
            assert_same_keeps(&want, &sel);
            assert_same_trees(&want, &sel);
            us_selection_free(&sel);
            maker_close(&many);
        }
        for (int isa = 0; isa < US_ISA_COUNT; isa++) {
            if (!us_isa_force((us_isa)isa)) continue;
            us_selection sel = select_in(&one, &opt, ladder, 3);
            assert_same_keeps(&want, &sel);
            assert_same_trees(&want, &sel);
            us_selection_free(&sel);
        }
        us_isa_force(US_ISA_COUNT);
        us_selection_free(&want);
        maker_close(&one);
    }
    maker_free(&m);
}

static void layouts_of_one_model_give_one_selection(void **state) {
    (void)state;
    maker m = maker_create(2, 48, 64, 32, 6);
    us_selection first = {0};
    static const maker_form forms[] = {MAKER_BF16, MAKER_F32, MAKER_STACKED_ROWS, MAKER_STACKED_COLS};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *folder = test_temp_dir();
        maker_write(&m, forms[i], folder);
        opened o = maker_open(folder, 2);
        us_selection sel = select_in(&o, &(us_select_options){.seed = 1}, ladder, 3);
        if (i == 0) first = sel;
        else {
            assert_same_keeps(&first, &sel);
            assert_same_trees(&first, &sel);
            us_selection_free(&sel);
        }
        maker_close(&o);
    }
    us_selection_free(&first);
    maker_free(&m);
}

static void the_order_of_neurons_is_not_seen(void **state) {
    (void)state;
    maker m = maker_create(2, 48, 64, 32, 8);
    const char *a = test_temp_dir(), *b = test_temp_dir();
    maker_write(&m, MAKER_BF16, a);
    maker_shuffle_neurons(&m, 4);
    maker_write(&m, MAKER_BF16, b);
    assert_non_null(test_tree_difference(a, b));
    opened oa = maker_open(a, 2), ob = maker_open(b, 2);
    us_selection sa = select_in(&oa, &(us_select_options){0}, ladder, 3), sb = select_in(&ob, &(us_select_options){0}, ladder, 3);
    assert_same_keeps(&sa, &sb);
    us_selection_free(&sa);
    us_selection_free(&sb);
    maker_close(&oa);
    maker_close(&ob);
    maker_free(&m);
}

static void a_renumbering_is_followed(void **state) {
    (void)state;
    maker m = maker_create(2, 48, 64, 32, 9);
    uint32_t order[48], back[48];
    us_rng_permutation(2, 2, 48, order);
    for (uint32_t j = 0; j < 48; j++) back[order[j]] = j;
    maker r = maker_renumbered(&m, order);
    const char *a = test_temp_dir(), *b = test_temp_dir();
    maker_write(&m, MAKER_BF16, a);
    maker_write(&r, MAKER_BF16, b);
    opened oa = maker_open(a, 2), ob = maker_open(b, 2);
    us_selection sa = select_in(&oa, &(us_select_options){0}, ladder, 3), sb = select_in(&ob, &(us_select_options){0}, ladder, 3);
    for (size_t i = 0; i < 3; i++) {
        for (size_t l = 0; l < 2; l++) {
            bool kept[48] = {0};
            for (uint32_t j = 0; j < ladder[i]; j++) kept[us_keep_ids(&sb.keeps[i], l)[j]] = true;
            for (uint32_t j = 0; j < ladder[i]; j++) assert_true(kept[back[us_keep_ids(&sa.keeps[i], l)[j]]]);
        }
    }
    us_selection_free(&sa);
    us_selection_free(&sb);
    maker_close(&oa);
    maker_close(&ob);
    maker_free(&m);
    maker_free(&r);
}

static void smaller_proxies_are_subsets_and_do_not_depend_on_the_ladder(void **state) {
    (void)state;
    maker m = maker_create(1, 48, 40, 24, 10);
    const char *folder = test_temp_dir();
    maker_write(&m, MAKER_GROUPS, folder);
    opened o = maker_open(folder, 2);
    static const uint32_t sizes[3] = {24, 12, 8};
    for (int method = 0; method < US_SELECT_LIST; method++) {
        if (method == US_SELECT_FREQUENCY) continue; /* needs dumps: test_select.c */
        us_select_options opt = {.method = (us_select_method)method, .seed = 2};
        us_selection sel = select_in(&o, &opt, sizes, 3);
        us_err err = {0};
        for (size_t i = 0; i < 3; i++) {
            assert_us_ok(us_keep_validate(o.s, &sel.keeps[i], NULL, &err), &err);
            us_selection alone = select_in(&o, &opt, &sizes[i], 1);
            assert_memory_equal(alone.keeps[0].ids, sel.keeps[i].ids, sizes[i] * sizeof(uint32_t));
            us_selection_free(&alone);
        }
        for (size_t i = 1; i < 3; i++) {
            for (uint32_t j = 0; j < sizes[i]; j++) assert_true(us_keep_new_id(&sel.keeps[i - 1], 0, us_keep_ids(&sel.keeps[i], 0)[j]) != UINT32_MAX);
        }
        us_selection_free(&sel);
    }
    maker_close(&o);
    maker_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_index_tells_right_from_wrong),
        cmocka_unit_test(families_are_recovered_in_every_form),
        cmocka_unit_test(families_are_recovered_for_many_seeds),
        cmocka_unit_test(neither_threads_nor_instructions_matter),
        cmocka_unit_test(layouts_of_one_model_give_one_selection),
        cmocka_unit_test(the_order_of_neurons_is_not_seen),
        cmocka_unit_test(a_renumbering_is_followed),
        cmocka_unit_test(smaller_proxies_are_subsets_and_do_not_depend_on_the_ladder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
