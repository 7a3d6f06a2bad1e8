/* Structure: the tables are well formed; every family resolves from its own table in each layout; what does not fit is refused with its class. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "model/count.h"
#include "support/mem_ck.h"

enum { E = 8, K = 2, ZERO = 3 };

static bool is_moe_family(const us_family *f) {
    return f->placement != US_PLACE_NONE;
}

static const char *first_word(const char *list) {
    return test_format("%.*s", (int)strcspn(list, "|"), list);
}

/* Prefix of a layer as the family's own files have it. */
static const char *layer_prefix(const us_family *f) {
    if (f->backbone == US_BACK_MAMBA) return "backbone.";
    return f->backbone == US_BACK_V4 ? "" : "model.";
}

static const char *more_keys(const us_family *f) {
    return f->tail_rows_key ? test_format(",\"%s\":%d", f->tail_rows_key, ZERO) : "";
}

static void add_router(mem_ck *m, const us_family *f, const char *block) {
    for (int i = 0; i < US_FAMILY_ROUTERS && f->routers[i].suffix; i++) {
        const us_router_tensor *r = &f->routers[i];
        int rank = r->role == US_ROUTER_WEIGHT || r->axis > 0 ? 2 : 1;
        mem_ck_add_axis(m, test_format("%s%s", block, r->suffix), rank, r->axis, E + (f->tail_rows_key ? ZERO : 0));
    }
}

static void add_experts(mem_ck *m, const us_family *f, const char *block, bool stacked) {
    if (stacked)
        for (int i = 0; i < US_FAMILY_STACKED && f->stacked[i].suffix; i++) mem_ck_add_axis(m, test_format("%s%s", block, f->stacked[i].suffix), 3, f->stacked[i].axis, E);
    else
        for (int e = 0; e < E; e++)
            for (int i = 0; i < US_FAMILY_PROJECTIONS && f->projections[i].suffix; i++)
                mem_ck_add_axis(m, test_format("%sexperts.%d.%s.weight", block, e, f->projections[i].suffix), 2, -1, 0);
}

static const char *add_layer(mem_ck *m, const us_family *f, const char *layer, bool stacked) {
    const char *block = test_format("%s%s", layer, first_word(f->block));
    mem_ck_add_axis(m, test_format("%sinput_layernorm.weight", layer), 1, -1, 0);
    add_router(m, f, block);
    add_experts(m, f, block, stacked);
    return block;
}

static const us_family *family(const char *name) {
    const us_family *f = us_family_find(us_str_z(name));
    assert_non_null(f);
    return f;
}

/* ---- the tables ---- */

static void tables_are_well_formed(void **state) {
    (void)state;
    for (size_t i = 0; us_families[i]; i++) {
        const us_family *f = us_families[i];
        if (i) assert_true(strcmp(us_families[i - 1]->name, f->name) < 0);
        for (const char *at = f->types; *at;) { /* every spelling leads here, so none belongs to two families */
            size_t n = strcspn(at, "|");
            assert_ptr_equal(us_family_find((us_str){at, n}), f);
            at += n + (at[n] == '|');
        }
        assert_string_equal(us_family_nearest(us_str_z(f->name)), f->name);
        if (!is_moe_family(f)) continue;
        assert_true(f->block && f->count_keys && f->top_k_keys);
        assert_int_equal(f->routers[0].role, US_ROUTER_WEIGHT);
        assert_true(f->projections[0].suffix || f->stacked[0].suffix);
        assert_true((f->mtp == US_MTP_NONE) || f->mtp_keys);
        assert_true((f->group_rule == US_GROUP_MAX || f->group_rule == US_GROUP_TOP2_SUM) == (f->group_keys != NULL));
    }
}

static void an_unknown_family_is_refused_with_the_nearest(void **state) {
    (void)state;
    us_json_doc d;
    us_config c;
    us_err err = {0};
    assert_us_ok(us_json_doc_parse(&d, US_LIT("{\"model_type\":\"qwen3_moee\"}"), 0, &err), &err);
    assert_int_equal(us_config_open(&d, &c, &err), US_E_UNSUPPORTED);
    assert_string_equal(err.cls, "unknown-model-type");
    assert_non_null(strstr(err.todo, "\"qwen3_moe\""));
    us_json_doc_free(&d);
}

/* ---- every family from its own table ---- */

static void check_roles(const mem_ck *m, const us_family *f, const char *block, bool stacked) {
    assert_int_equal(m->st->n_experts, E);
    assert_int_equal(m->st->n_blocks, 1);
    assert_int_equal(m->st->blocks[0].n_experts, E);
    assert_int_equal(m->st->blocks[0].tail_rows, f->tail_rows_key ? ZERO : 0);
    assert_int_equal(m->st->blocks[0].stacked, stacked);
    for (int i = 0; i < US_FAMILY_ROUTERS && f->routers[i].suffix; i++) {
        const us_role *r = mem_ck_role(m, test_format("%s%s", block, f->routers[i].suffix));
        assert_int_equal(r->kind, US_ROLE_SLICE);
        assert_int_equal(r->axis, f->routers[i].axis);
    }
    for (int i = 0; stacked && i < US_FAMILY_STACKED && f->stacked[i].suffix; i++) {
        const us_role *r = mem_ck_role(m, test_format("%s%s", block, f->stacked[i].suffix));
        assert_int_equal(r->kind, US_ROLE_SLICE);
        assert_ptr_equal(r->desc, &f->stacked[i]);
    }
    for (int e = 0; !stacked && e < E; e++)
        for (int i = 0; i < US_FAMILY_PROJECTIONS && f->projections[i].suffix; i++) {
            const us_role *r = mem_ck_role(m, test_format("%sexperts.%d.%s.weight", block, e, f->projections[i].suffix));
            assert_int_equal(r->kind, US_ROLE_EXPERT);
            assert_int_equal(r->expert, e);
            assert_ptr_equal(r->desc, &f->projections[i]);
        }
}

static void every_family_resolves_in_each_layout(void **state) {
    (void)state;
    for (size_t i = 0; us_families[i]; i++)
        for (int stacked = 0; stacked < 2; stacked++) {
            const us_family *f = us_families[i];
            if (!is_moe_family(f) || !(stacked ? f->stacked[0].suffix : f->projections[0].suffix)) continue;
            mem_ck m = {0};
            us_err err = {0};
            const char *block = add_layer(&m, f, test_format("%slayers.0.", layer_prefix(f)), stacked);
            us_status s = mem_ck_resolve(&m, mem_ck_config(f, first_word(f->types), 1, E, K, more_keys(f)), &err);
            if (s != US_OK) fail_msg("%s: %s: %s", f->name, err.what, err.where);
            check_roles(&m, f, block, stacked);
            mem_ck_free(&m);
        }
}

/* Requirement 5: an unknown tensor with the expert count as a dimension is refused by name; one without is reported. */
static void an_unknown_tensor_of_a_block_is_refused_or_named(void **state) {
    (void)state;
    for (size_t i = 0; us_families[i]; i++)
        for (int axis = -1; axis < 2; axis++) {
            const us_family *f = us_families[i];
            if (!is_moe_family(f)) continue;
            mem_ck m = {0};
            us_err err = {0};
            const char *block = add_layer(&m, f, test_format("%slayers.0.", layer_prefix(f)), f->stacked[0].suffix != NULL);
            const char *name = test_format("%snobody_knows.weight", block);
            mem_ck_add_axis(&m, name, 2, axis, E);
            us_status s = mem_ck_resolve(&m, mem_ck_config(f, first_word(f->types), 1, E, K, more_keys(f)), &err);
            if (axis < 0) {
                if (s != US_OK) fail_msg("%s: %s: %s", f->name, err.what, err.where);
                assert_int_equal(mem_ck_role(&m, name)->kind, US_ROLE_UNKNOWN);
            } else {
                assert_int_equal(s, US_E_REFUSED);
                assert_string_equal(err.cls, "unknown-tensor");
                assert_non_null(strstr(err.where, name));
            }
            mem_ck_free(&m);
        }
}

/* ---- refusals, on qwen3_moe ---- */

static void expect(mem_ck *m, const char *more, const char *cls) {
    us_err err = {0};
    us_status s = mem_ck_resolve(m, mem_ck_config(family("qwen3_moe"), "qwen3_moe", 1, E, K, more), &err);
    if (cls) {
        assert_int_not_equal(s, US_OK);
        assert_string_equal(err.cls, cls);
    } else if (s != US_OK) {
        fail_msg("%s: %s", err.what, err.where);
    }
    mem_ck_free(m);
}

static mem_ck plain(void) {
    mem_ck m = {0};
    add_layer(&m, family("qwen3_moe"), "model.layers.0.", false);
    return m;
}

static us_ck_tensor *tensor(mem_ck *m, const char *name) {
    for (size_t i = 0; i < m->ck.n_tensors; i++)
        if (us_str_eqz(m->ck.tensors[i].name, name)) return &m->ck.tensors[i];
    fail_msg("no %s", name);
    return NULL;
}

static const char up3[] = "model.layers.0.mlp.experts.3.up_proj.weight";

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    mem_ck m = plain();
    expect(&m, "", NULL);
    m = plain();
    tensor(&m, up3)->dtype = US_DTYPE_F16;
    expect(&m, "", "experts-differ");
    m = plain();
    tensor(&m, up3)->name = US_LIT("model.layers.0.mlp.experts.3.side_proj.weight");
    expect(&m, "", "experts-incomplete");
    m = plain();
    mem_ck_add_axis(&m, "model.layers.0.mlp.experts.03.up_proj.weight", 2, -1, 0);
    expect(&m, "", "name");
    m = plain();
    mem_ck_add_axis(&m, "model.layers.+1.mlp.gate.weight", 2, -1, 0);
    expect(&m, "", "name");
    m = plain();
    add_experts(&m, family("qwen3_moe"), "model.layers.0.mlp.", true);
    expect(&m, "", "layout");
    m = plain();
    mem_ck_add_axis(&m, "model.layers.1.mlp.down_proj.weight", 2, -1, 0);
    expect(&m, "", "mismatch");
    m = plain();
    expect(&m, ",\"num_local_experts\":4", "mismatch"); /* the mirrors disagree */
    m = plain();
    expect(&m, ",\"decoder_sparse_step\":0", "range");
    m = (mem_ck){0};
    add_experts(&m, family("qwen3_moe"), "model.layers.0.mlp.", false);
    expect(&m, "", "router");
}

static void a_quantisation_list_excuses_another_form(void **state) {
    (void)state;
    static const char *const lists[] = {"\"model.layers.0.mlp.experts.3.up_proj\"", "\"re:.*experts.3[.]up_proj\"", "\"model.*.3.up_*\""};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        mem_ck m = plain();
        tensor(&m, up3)->dtype = US_DTYPE_F16;
        expect(&m, test_format(",\"quantization_config\":{\"ignore\":[%s]}", lists[i]), NULL);
    }
    mem_ck m = plain();
    expect(&m, ",\"quantization_config\":{\"ignore\":[\"layers.9.experts.1\"]}", "cannot-renumber");
    m = plain();
    expect(&m, ",\"quantization_config\":{\"ignore\":[\"re:(\"]}", "regex");
    m = plain();
    expect(&m, ",\"quantization_config\":{\"ignore\":7}", "type");
}

static void only_the_text_model_is_touched(void **state) {
    (void)state;
    mem_ck m = plain();
    us_err err = {0};
    static const char *const foreign[] = {"visual.layers.0.mlp.experts.0.up_proj.weight", "vision_tower.encoder.layers.0.mlp.gate.weight"};
    for (int i = 0; i < 2; i++) mem_ck_add_axis(&m, foreign[i], 2, 0, E);
    assert_us_ok(mem_ck_resolve(&m, mem_ck_config(family("qwen3_moe"), "qwen3_moe", 1, E, K, ""), &err), &err);
    for (int i = 0; i < 2; i++) assert_int_equal(mem_ck_role(&m, foreign[i])->kind, US_ROLE_COPY);
    mem_ck_free(&m);
}

static void mtp_blocks_have_their_own_keys(void **state) {
    (void)state;
    static const struct {
        const char *family, *layer, *key;
    } rows[] = {{"deepseek_v3", "model.layers.1.", "1"}, {"qwen3_next", "mtp.layers.0.", "mtp.0"}, {"deepseek_v4", "mtp.0.", "mtp.0"}, {"deepseek_v4", "mtp.2.", "mtp.2"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const us_family *f = family(rows[i].family);
        mem_ck m = {0};
        us_err err = {0};
        add_layer(&m, f, test_format("%slayers.0.", layer_prefix(f)), false);
        add_layer(&m, f, rows[i].layer, false);
        us_status s = mem_ck_resolve(&m, mem_ck_config(f, rows[i].family, 1, E, K, test_format(",\"%s\":1", first_word(f->mtp_keys))), &err);
        if (s != US_OK) fail_msg("%s: %s: %s", f->name, err.what, err.where);
        assert_int_equal(m.st->n_blocks, 2);
        assert_true(!m.st->blocks[0].mtp && m.st->blocks[1].mtp);
        assert_string_equal(m.st->blocks[1].key, rows[i].key);
        mem_ck_free(&m);
    }
}

static const char *count_class(const char *config, us_counts *n, us_err *err) {
    us_json_doc d;
    us_config c;
    *err = (us_err){0};
    assert_us_ok(us_json_doc_parse(&d, us_str_z(config), 0, err), err);
    us_status s = us_config_open(&d, &c, err);
    if (s == US_OK) s = us_count_config(&c, n, err);
    us_json_doc_free(&d);
    assert_true((s == US_OK) == (err->cls[0] == 0));
    return err->cls;
}

/* A number of the config alone never decides how long counting takes or makes a product wrap around. */
static void absurd_sizes_are_not_counted(void **state) {
    (void)state;
    static const char *const keys[] = {"num_hidden_layers", "hidden_size", "num_experts", "moe_intermediate_size", "vocab_size", "num_key_value_heads", "head_dim"};
    static const unsigned usual[] = {2, 64, 8, 32, 100, 2, 16};
    us_counts n;
    us_err err;
    for (size_t absurd = 0; absurd <= sizeof keys / sizeof *keys; absurd++) {
        const char *text = "{\"model_type\":\"qwen3_moe\",\"num_attention_heads\":4,\"num_experts_per_tok\":2,\"tie_word_embeddings\":false";
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) text = test_format("%s,\"%s\":%u", text, keys[i], i == absurd ? 2147483647u : usual[i]);
        assert_string_equal(count_class(test_format("%s}", text), &n, &err), absurd < sizeof keys / sizeof *keys ? "range" : "");
    }
    /* by hand: 2 layers of (4+4) x 16 x 64 + 2 x 2 x 16 x 64 attention, 2 x 16 + 2 x 64 norms, router 8 x 64, 8 experts of 3 x 64 x 32 */
    assert_int_equal(n.routed, 2 * 8 * 3 * 64 * 32);
    assert_int_equal(n.total, 2 * (8 * 16 * 64 + 4 * 16 * 64 + 2 * 16 + 2 * 64 + 8 * 64) + n.routed + 64 + 2 * 100 * 64);
    const char *long_list = "0";
    for (int i = 0; i < 15; i++) long_list = test_format("%s,%s", long_list, long_list);
    assert_string_equal(count_class(test_format("{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[%s]}", long_list), &n, &err), "limit");
}

/* A vision wrapper that no table names, around a text model that one does. */
static void the_text_model_of_an_unknown_wrapper_is_found(void **state) {
    (void)state;
    const us_family *f = family("deepseek_v3");
    mem_ck m = {0};
    us_err err = {0};
    add_layer(&m, f, "language_model.model.layers.0.", false);
    mem_ck_add_axis(&m, "vision_tower.blocks.0.weight", 2, 0, E);
    const char *text = mem_ck_config(f, "deepseek_v3", 1, E, K, "");
    assert_us_ok(mem_ck_resolve(&m, test_format("{\"model_type\":\"nobody_vl\",\"text_config\":%s}", text), &err), &err);
    assert_int_equal(m.st->n_experts, E);
    assert_true(m.st->text_config != 0 && m.st->n_count_sites == 1);
    assert_string_equal(m.st->count_sites[0].path, "text_config.n_routed_experts");
    mem_ck_free(&m);
}

/* Every allocation of resolving fails once: a status each time, nothing leaked, and the same structure in the end. */
static void resolving_survives_memory_exhaustion(void **state) {
    (void)state;
    mem_ck m = plain();
    us_err err = {0};
    assert_us_ok(mem_ck_resolve(&m, mem_ck_config(family("qwen3_moe"), "qwen3_moe", 1, E, K, ",\"quantization_config\":{\"ignore\":[\"re:.*gate\",\"lm_head\"]}"), &err), &err);
    us_structure_free(m.st);
    uint64_t live = us_alloc_get_stats().live_blocks, n = 0;
    us_status s = US_E_NOMEM;
    while (s != US_OK) {
        us_structure *st = NULL;
        us_alloc_fail_at(++n);
        s = us_structure_resolve(NULL, &m.ck, &st, &err);
        us_alloc_fail_at(0);
        if (s != US_OK) assert_int_equal(s, US_E_NOMEM);
        assert_true(s == US_OK || st == NULL);
        us_structure_free(st);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
        assert_true(n < 100000);
    }
    assert_true(n > 5);
    m.st = NULL;
    mem_ck_free(&m);
}

/* ---- sizes ---- */

/* Can the router take k distinct experts when every group keeps n / groups? Written from the routers' definitions, not from the checker. */
static bool router_works(unsigned n, unsigned k, unsigned groups, unsigned taken, us_group_rule rule) {
    if (n % groups) return false;
    unsigned each = n / groups;
    if (rule == US_GROUP_ONE_EACH) return each >= 1;
    if (rule == US_GROUP_TOP2_SUM && groups > 1 && each < 2) return false;
    unsigned reach = 0;
    for (unsigned g = 0; g < (groups > 1 ? taken : 1); g++) reach += each;
    return reach >= k;
}

static void legal_sizes_are_those_the_router_can_work_with(void **state) {
    (void)state;
    static const us_group_rule rules[] = {US_GROUP_NONE, US_GROUP_MAX, US_GROUP_TOP2_SUM, US_GROUP_ONE_EACH};
    for (unsigned experts = 4; experts <= 16; experts += 4)
        for (unsigned k = 1; k <= 4; k++)
            for (unsigned groups = 1; groups <= 4; groups *= 2)
                for (unsigned taken = 1; taken <= groups; taken++)
                    for (size_t r = 0; r < 4; r++) {
                        unsigned g = rules[r] == US_GROUP_NONE ? 1 : rules[r] == US_GROUP_ONE_EACH ? k : groups, t = g == groups ? taken : g;
                        for (int n = -1; n <= (int)experts + 2; n++) {
                            bool want = n >= 1 && n <= (int)experts && n >= (int)k && router_works((unsigned)n, k, g, t, rules[r]);
                            bool got = us_expert_count_check(experts, k, g, t, rules[r], n, NULL) == US_OK;
                            if (want != got) fail_msg("%d of %u experts, top-%u, %u/%u groups, rule %d: %d", n, experts, k, t, g, (int)rules[r], got);
                        }
                    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_well_formed),
        cmocka_unit_test(an_unknown_family_is_refused_with_the_nearest),
        cmocka_unit_test(every_family_resolves_in_each_layout),
        cmocka_unit_test(an_unknown_tensor_of_a_block_is_refused_or_named),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_quantisation_list_excuses_another_form),
        cmocka_unit_test(only_the_text_model_is_touched),
        cmocka_unit_test(mtp_blocks_have_their_own_keys),
        cmocka_unit_test(the_text_model_of_an_unknown_wrapper_is_found),
        cmocka_unit_test(absurd_sizes_are_not_counted),
        cmocka_unit_test(resolving_survives_memory_exhaustion),
        cmocka_unit_test(legal_sizes_are_those_the_router_can_work_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
