/* See mem_ck.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "support/mem_ck.h"

void mem_ck_add(mem_ck *m, const char *name, us_dtype dtype, int rank, const uint64_t *shape) {
    us_checkpoint *ck = &m->ck;
    assert_true(us_grow(&ck->tensors, &m->cap, ck->n_tensors + 1, sizeof *ck->tensors));
    uint64_t *copy = us_arena_alloc(&ck->arena, (size_t)(rank + 1) * sizeof *copy), bits = us_dtype_bits(dtype);
    char *text = us_arena_strndup(&ck->arena, name, strlen(name));
    assert_true(copy && text);
    for (int i = 0; i < rank; i++) bits *= copy[i] = shape[i];
    ck->tensors[ck->n_tensors++] = (us_ck_tensor){.name = us_str_z(text), .dtype = dtype, .rank = (uint8_t)rank, .shape = copy, .bytes = bits / 8};
}

void mem_ck_add_axis(mem_ck *m, const char *name, int rank, int axis, uint64_t n) {
    static const uint64_t lengths[] = {40, 48, 56, 72};
    uint64_t shape[4] = {0};
    for (int i = 0; i < rank && i < 4; i++) shape[i] = i == axis ? n : lengths[i];
    mem_ck_add(m, name, US_DTYPE_BF16, rank, shape);
}

static const char *first_word(const char *list) {
    return test_format("%.*s", (int)strcspn(list, "|"), list);
}

const char *mem_ck_config(const us_family *f, const char *model_type, unsigned layers, unsigned E, unsigned k, const char *more) {
    const char *text = test_format("{\"model_type\":\"%s\",\"num_hidden_layers\":%u%s", model_type, layers, more);
    if (f->placement == US_PLACE_NONE) return test_format("%s}", text);
    const char *words = f->placement == US_PLACE_PATTERN ? "\"moe\"" : "\"sparse\"", *list = words;
    for (unsigned l = 1; l < layers; l++) list = test_format("%s,%s", list, words);
    text = test_format("%s,\"%s\":%u,\"%s\":%u", text, first_word(f->count_keys), E, first_word(f->top_k_keys), k);
    return test_format("%s,\"%s\":[%s]}", text, f->placement == US_PLACE_PATTERN ? "layers_block_type" : "mlp_layer_types", list);
}

static int by_name(const void *a, const void *b) {
    return us_str_cmp(((const us_ck_tensor *)a)->name, ((const us_ck_tensor *)b)->name);
}

us_status mem_ck_resolve(mem_ck *m, const char *config, us_err *err) {
    us_checkpoint *ck = &m->ck;
    us_err parse = {0};
    char *path = us_arena_strndup(&ck->arena, "memory", 6);
    assert_non_null(path);
    ck->path = path;
    assert_us_ok(us_json_doc_parse(&ck->config, us_str_z(config), 0, &parse), &parse);
    if (ck->n_tensors) qsort(ck->tensors, ck->n_tensors, sizeof *ck->tensors, by_name);
    for (size_t i = 0; i < ck->n_tensors; i++) assert_true(us_map_put(&ck->by_name, ck->tensors[i].name, (uint32_t)i, NULL));
    return us_structure_resolve(NULL, ck, &m->st, err);
}

const us_role *mem_ck_role(const mem_ck *m, const char *name) {
    uint32_t i = us_map_get(&m->ck.by_name, us_str_z(name));
    if (i == US_MAP_NONE) fail_msg("no tensor %s", name);
    assert_non_null(m->st);
    return &m->st->roles[i];
}

void mem_ck_free(mem_ck *m) {
    us_structure_free(m->st);
    us_json_doc_free(&m->ck.config);
    us_map_free(&m->ck.by_name);
    us_free(m->ck.tensors);
    us_arena_free(&m->ck.arena);
    memset(m, 0, sizeof *m);
}

/* The text with the first `mark` replaced by "<word>.<number>.". */
static const char *numbered(const char *text, const char *mark, const char *word, unsigned number) {
    const char *at = strstr(text, mark);
    return at ? test_format("%.*s%s.%u.%s", (int)(at - text), text, word, number, at + strlen(mark)) : text;
}

const char *mem_ck_name(const char *pattern, unsigned layer, unsigned expert) {
    return numbered(numbered(pattern, "layers.L.", "layers", layer), "experts.N.", "experts", expert);
}
