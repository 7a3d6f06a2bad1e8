/** Small checkpoints. Header: tiny.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "io/safetensors.h"
#include "support/tiny.h"

enum { TENSORS_MAX = 4096 };

typedef struct building {
    us_st_tensor t[TENSORS_MAX];
    uint64_t shape[TENSORS_MAX][2];
    size_t n;
} building;

static void add(building *b, const char *name, uint64_t rows, uint64_t cols) {
    assert_true(b->n < TENSORS_MAX);
    uint64_t *shape = b->shape[b->n];
    shape[0] = rows;
    shape[1] = cols;
    b->t[b->n++] = (us_st_tensor){.name = us_str_z(name), .dtype = US_DTYPE_BF16, .rank = cols ? 2 : 1, .shape = shape, .begin = 0, .end = 2 * rows * (cols ? cols : 1)};
}

static void add_layer(building *b, int l, const tiny_model *m) {
    const char *p = test_format("model.layers.%d.", l);
    uint64_t h = (uint64_t)m->hidden, i = (uint64_t)m->inter;
    add(b, test_format("%sinput_layernorm.weight", p), h, 0);
    add(b, test_format("%spost_attention_layernorm.weight", p), h, 0);
    add(b, test_format("%sself_attn.q_proj.weight", p), h, h);
    add(b, test_format("%sself_attn.k_proj.weight", p), h, h);
    add(b, test_format("%sself_attn.v_proj.weight", p), h, h);
    add(b, test_format("%sself_attn.o_proj.weight", p), h, h);
    add(b, test_format("%sself_attn.q_norm.weight", p), h / 2, 0);
    add(b, test_format("%sself_attn.k_norm.weight", p), h / 2, 0);
    add(b, test_format("%smlp.gate.weight", p), (uint64_t)m->experts, h);
    for (int e = 0; e < m->experts; e++) {
        add(b, test_format("%smlp.experts.%d.gate_proj.weight", p, e), i, h);
        add(b, test_format("%smlp.experts.%d.up_proj.weight", p, e), i, h);
        add(b, test_format("%smlp.experts.%d.down_proj.weight", p, e), h, i);
    }
}

/* Tensors from .. to as one file; values are a function of the tensor's number and the place in it. */
static void write_shard(const char *path, building *b, size_t from, size_t to) {
    us_buf out = {0};
    us_err err = {0};
    uint64_t at = 0;
    for (size_t i = from; i < to; i++) {
        uint64_t n = b->t[i].end - b->t[i].begin;
        b->t[i].begin = at;
        b->t[i].end = at += n;
    }
    assert_us_ok(us_st_write_header(&out, b->t + from, to - from, NULL, 0, &err), &err);
    for (size_t i = from; i < to; i++) {
        for (uint64_t k = 0; 2 * k < b->t[i].end - b->t[i].begin; k++) {
            uint16_t v = us_f32_to_bf16((float)us_rng_double(7, i, k) - 0.5f);
            us_buf_add(&out, &v, sizeof v);
        }
    }
    assert_false(out.failed);
    test_write(path, out.p, out.n);
    us_buf_free(&out);
}

static void write_config(const char *folder, const tiny_model *m) {
    test_write_text(test_format("%s/config.json", folder),
                    test_format("{\n  \"architectures\": [\"Qwen3MoeForCausalLM\"],\n  \"model_type\": \"qwen3_moe\",\n  %s\n  \"vocab_size\": 32,\n  \"hidden_size\": %d,\n"
                                "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": 2,\n  \"num_key_value_heads\": 2,\n  \"head_dim\": %d,\n  \"intermediate_size\": 32,\n"
                                "  \"moe_intermediate_size\": %d,\n  \"num_experts\": %d,\n  \"num_experts_per_tok\": %d,\n  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [],\n"
                                "  \"norm_topk_prob\": true,\n  \"rope_theta\": 10000.0,\n  \"tie_word_embeddings\": false,\n  \"torch_dtype\": \"bfloat16\"\n}\n",
                                m->config_more ? m->config_more : "", m->hidden, m->layers, m->hidden / 2, m->inter, m->experts, m->top_k));
}

void tiny_write(const char *folder, const tiny_model *wanted) {
    tiny_model m = *wanted;
    if (!m.layers) m.layers = 2;
    if (!m.experts) m.experts = 8;
    if (!m.hidden) m.hidden = 16;
    if (!m.inter) m.inter = 16;
    if (!m.shards) m.shards = 1;
    if (!m.top_k) m.top_k = 2;
    building *b = calloc(1, sizeof *b);
    us_buf map = {0};
    uint64_t total = 0;
    assert_non_null(b);
    test_mkdir(folder);
    add(b, "model.embed_tokens.weight", 32, (uint64_t)m.hidden);
    for (int l = 0; l < m.layers; l++) add_layer(b, l, &m);
    add(b, "model.norm.weight", (uint64_t)m.hidden, 0);
    add(b, "lm_head.weight", 32, (uint64_t)m.hidden);
    for (size_t i = 0; i < b->n; i++) total += b->t[i].end - b->t[i].begin;
    for (int s = 0; s < m.shards; s++) {
        size_t from = b->n * (size_t)s / (size_t)m.shards, to = b->n * (size_t)(s + 1) / (size_t)m.shards;
        const char *name = m.shards == 1 ? "model.safetensors" : test_format("model-%05d-of-%05d.safetensors", s + 1, m.shards);
        write_shard(test_format("%s/%s", folder, name), b, from, to);
        for (size_t i = from; i < to; i++) us_buf_printf(&map, "%s\"%.*s\": \"%s\"", map.n ? ", " : "", US_STR_ARG(b->t[i].name), name);
    }
    if (m.shards > 1) test_write_text(test_format("%s/model.safetensors.index.json", folder), test_format("{\"metadata\": {\"total_size\": %llu}, \"weight_map\": {%s}}", (unsigned long long)total, us_buf_text(&map)));
    write_config(folder, &m);
    test_write_text(test_format("%s/tokenizer.json", folder), "{}\n");
    test_mkdir(test_format("%s/sub", folder));
    test_write_text(test_format("%s/sub/notes.txt", folder), "a note\n");
    us_buf_free(&map);
    free(b);
}
