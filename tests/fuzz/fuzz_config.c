/* Fuzz target: config.json of a small MoE checkpoint whose tensors are fixed: family, counts, placement, quantisation lists, structure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/count.h"
#include "model/structure.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

enum { LAYERS = 2, EXPERTS = 4, TENSORS = LAYERS * (2 + EXPERTS * 3) + 2 };

/* Two layers, a router and four experts each, under the names most families share. */
static size_t make_tensors(us_ck_tensor *t, char names[][64]) {
    static const uint64_t router[2] = {EXPERTS, 8}, matrix[2] = {4, 8}, vector[1] = {8};
    static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
    size_t n = 0;
    for (int l = 0; l < LAYERS; l++) {
        snprintf(names[n], 64, "model.layers.%d.mlp.gate.weight", l);
        t[n++] = (us_ck_tensor){.dtype = US_DTYPE_BF16, .rank = 2, .shape = router, .bytes = 64};
        snprintf(names[n], 64, "model.layers.%d.input_layernorm.weight", l);
        t[n++] = (us_ck_tensor){.dtype = US_DTYPE_BF16, .rank = 1, .shape = vector, .bytes = 16};
        for (int e = 0; e < EXPERTS; e++)
            for (int p = 0; p < 3; p++) {
                snprintf(names[n], 64, "model.layers.%d.mlp.experts.%d.%s.weight", l, e, projections[p]);
                t[n++] = (us_ck_tensor){.dtype = US_DTYPE_BF16, .rank = 2, .shape = matrix, .bytes = 64};
            }
    }
    for (size_t i = 0; i < n; i++) t[i].name = us_str_z(names[i]);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t live = us_alloc_get_stats().live_blocks;
    static us_ck_tensor tensors[TENSORS];
    static char names[TENSORS][64];
    char path[] = "fuzz";
    us_checkpoint ck = {.path = path, .tensors = tensors};
    us_structure *st = NULL;
    us_config cfg;
    us_counts counts;
    us_err err = {0};
    ck.n_tensors = make_tensors(tensors, names);
    for (size_t i = 0; i < ck.n_tensors; i++)
        if (!us_map_put(&ck.by_name, tensors[i].name, (uint32_t)i, NULL)) return 0;
    if (us_json_doc_parse(&ck.config, (us_str){(const char *)data, size}, US_JSON_INFINITY, &err) == US_OK) {
        us_status s = us_structure_resolve(NULL, &ck, &st, &err);
        require(s == US_OK || (err.cls[0] && err.what[0]));
        if (s == US_OK) {
            for (int64_t n = -1; n <= EXPERTS + 1; n++) (void)!us_structure_check_size(st, n, &err);
            require(st->n_blocks == 0 || st->n_blocks == LAYERS);
        }
        us_structure_free(st);
        if (us_config_open(&ck.config, &cfg, &err) == US_OK) {
            uint32_t layers;
            /* Time is bounded by the layers that are counted: leave absurd numbers to the limit inside. */
            if (us_config_layers(&cfg, &layers, &err) == US_OK && layers <= 1000) (void)!us_count_config(&cfg, &counts, &err);
        }
        us_json_doc_free(&ck.config);
    }
    us_map_free(&ck.by_name);
    require(us_alloc_get_stats().live_blocks == live);
    return 0;
}
