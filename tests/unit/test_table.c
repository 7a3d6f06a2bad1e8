/* Token tables of hash-routed blocks: a dropped expert's tokens go to the kept expert that does the same, and kept ones stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/moe_maker.h"

#include "proxy/stream.h"

/* The fourth part of a planted model, one expert a family: the nearest kept expert is the family's. */
static void tokens_stay_in_the_family(void **state) {
    (void)state;
    enum { E = 32, FAMILIES = 8 };
    uint32_t label[E * 2], kept_of[FAMILIES];
    maker m = maker_create(2, E, 64, 32, 21);
    maker_plant(&m, FAMILIES, 0.15, false, 21, label);
    const char *folder = test_temp_dir();
    maker_write(&m, MAKER_HASH, folder);
    opened o = maker_open(folder, 2);
    us_err err = {0};
    us_keep keep = {0};
    assert_true(o.s->blocks[0].hash && !o.s->blocks[1].hash);
    assert_us_ok(us_keep_create(o.s, FAMILIES, &keep, &err), &err);
    for (size_t b = 0; b < 2; b++) {
        uint32_t n = 0;
        bool seen[FAMILIES] = {0};
        for (uint32_t e = E; e-- > 0;) { /* the last of each family, in falling order: new numbers are not old ones */
            uint32_t f = label[b * E + e];
            if (seen[f]) continue;
            seen[f] = true;
            if (b == 0) kept_of[f] = n;
            us_keep_ids(&keep, b)[n++] = e;
        }
    }
    us_plan *plan = NULL;
    us_table_map map = {0};
    assert_us_ok(us_plan_create(o.ctx, o.s, &keep, &(us_plan_options){0}, &plan, &err), &err);
    assert_us_ok(us_table_map_create(o.ctx, plan, &map, &err), &err);
    assert_null(map.rank[1]);
    assert_non_null(map.rank[0]);
    for (uint32_t e = 0; e < E; e++) {
        const uint32_t *row = map.rank[0] + (size_t)e * FAMILIES;
        assert_int_equal(row[0], kept_of[label[e]]);
        bool seen[FAMILIES] = {0}; /* each kept expert once */
        for (uint32_t j = 0; j < FAMILIES; j++) {
            assert_true(row[j] < FAMILIES && !seen[row[j]]);
            seen[row[j]] = true;
        }
    }
    us_table_map_free(&map);
    us_plan_free(plan);
    us_keep_free(&keep);
    maker_close(&o);
    maker_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_stay_in_the_family)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
