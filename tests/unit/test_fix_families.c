/* The tensors that depend on the number of experts, and on which axis: cases/families.json (tiny models of other people's library) against the tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/mem_ck.h"

enum { EXPERTS = 7, ZERO = 3 };

typedef struct meaning {
    us_role_kind kind;
    int axis, rank;
    unsigned length;
} meaning;

static meaning read_meaning(const char *text) {
    meaning m = {US_ROLE_SLICE, 0, 0, EXPERTS};
    if (strcmp(text, "one tensor an expert") == 0) return (meaning){US_ROLE_EXPERT, -1, 2, 0};
    if (strncmp(text, "I64 [vocab, k]", 14) == 0) return (meaning){US_ROLE_TOKEN_TABLE, -1, 2, 0};
    if (sscanf(text, "expert axis %d of rank %d", &m.axis, &m.rank) != 2) fail_msg("families.json: cannot read \"%s\"", text);
    if (strstr(text, "zero experts")) m.length += ZERO;
    return m;
}

static void add(mem_ck *ck, const char *pattern, const meaning *m) {
    static const uint64_t table[2] = {48, 2};
    for (unsigned e = 0; e < (m->kind == US_ROLE_EXPERT ? EXPERTS : 1); e++) {
        const char *name = mem_ck_name(pattern, 0, e);
        if (m->kind == US_ROLE_TOKEN_TABLE) mem_ck_add(ck, name, US_DTYPE_I64, 2, table);
        else mem_ck_add_axis(ck, name, m->rank, m->axis, m->length);
    }
}

static int judge(const mem_ck *ck, const char *family, const char *pattern, const meaning *m) {
    int wrong = 0;
    for (unsigned e = 0; e < (m->kind == US_ROLE_EXPERT ? EXPERTS : 1); e++) {
        const char *name = mem_ck_name(pattern, 0, e);
        const us_role *r = mem_ck_role(ck, name);
        bool ok = r->kind == m->kind && (m->kind != US_ROLE_EXPERT || r->expert == e) && (m->kind != US_ROLE_SLICE || r->axis == m->axis);
        if (ok && m->kind == US_ROLE_EXPERT) ok = r->desc != NULL; /* the table knows the projection too */
        if (!ok) print_error("%s: %s has kind %d, axis %d\n", family, name, (int)r->kind, r->axis);
        wrong += !ok;
    }
    return wrong;
}

static int check(const us_json_doc *d, us_json_ref key, us_json_ref tensors) {
    const char *type = test_format("%.*s", US_STR_ARG(us_json_string(d, key)));
    const us_family *f = us_family_find(us_str_z(type));
    mem_ck ck = {0};
    us_err err = {0};
    int wrong = 0;
    if (!f) {
        print_error("%s: no such family\n", type);
        return 1;
    }
    for (us_json_ref k = us_json_first(d, tensors); k != US_JSON_NO; k = us_json_next(d, tensors, k + 1)) {
        meaning m = read_meaning(test_format("%.*s", US_STR_ARG(us_json_string(d, k + 1))));
        add(&ck, test_format("%.*s", US_STR_ARG(us_json_string(d, k))), &m);
    }
    const char *more = f->tail_rows_key ? test_format(",\"%s\":%d", f->tail_rows_key, ZERO) : "";
    us_status s = mem_ck_resolve(&ck, mem_ck_config(f, type, 1, EXPERTS, 2, more), &err);
    if (s != US_OK) print_error("%s: %s: %s\n", type, err.what, err.where);
    for (us_json_ref k = us_json_first(d, tensors); s == US_OK && k != US_JSON_NO; k = us_json_next(d, tensors, k + 1)) {
        meaning m = read_meaning(test_format("%.*s", US_STR_ARG(us_json_string(d, k + 1))));
        wrong += judge(&ck, type, test_format("%.*s", US_STR_ARG(us_json_string(d, k))), &m);
    }
    mem_ck_free(&ck);
    return wrong + (s != US_OK);
}

static void expert_axes_are_those_of_the_library(void **state) {
    (void)state;
    const char *root = test_fixtures("cases");
    if (!root || !test_exists(test_format("%s/families.json", root))) return;
    us_json_doc d;
    us_err err = {0};
    int wrong = 0, n = 0;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/families.json", root), NULL)), 0, &err), &err);
    us_json_ref all = us_json_get(&d, 0, "families");
    for (us_json_ref k = us_json_first(&d, all); k != US_JSON_NO; k = us_json_next(&d, all, k + 1), n++) wrong += check(&d, k, k + 1) != 0;
    us_json_doc_free(&d);
    print_message("%d families\n", n);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(expert_axes_are_those_of_the_library)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
