/*
 * Makes a checkpoint with the true layout of a released model - names, types, shapes, shards, index - whose data are holes in sparse files: hundreds of
 * gigabytes to every reader, a few megabytes on disk. For the scale benchmark (bench/scale.sh).
 *
 *   make_sparse_checkpoint deepseek-v3|qwen3-235b|qwen3-30b DST [--moe-layers N] [--routed]
 *
 * deepseek-v3: FP8 with 128x128 block scales, some of them in another shard than their weight; 256 experts, 61 layers and the MTP layer, 163 shards, 91,991
 * tensors. qwen3-235b: BF16, 94 layers, 118 shards, 36,945 tensors. --moe-layers N: only N layers, all MoE, in as few shards of the same size.
 * qwen3-30b: BF16, 48 layers. --routed (the qwen3 ones): routers, norms and the embeddings of the first 4096 tokens are random numbers, so that the model can be run
 * on those tokens and routes them to all experts; the other weights stay holes, which read as zeros.
 * Counts: fixtures/configs/README.md section 4.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "io/fs.h"
#include "io/safetensors.h"
#include "tensor/dtype.h"

enum { EXPERTS_V3 = 256, EXPERTS_Q3 = 128, SHARD_BYTES_V3 = 4300, SHARD_BYTES_Q3 = 4000 /* MB */ };

typedef struct maker {
    us_st_tensor *t;
    uint32_t *shard;
    size_t n, cap, cap_shard;
    us_arena arena;
} maker;

static void fail(const char *what) {
    fprintf(stderr, "make_sparse_checkpoint: %s\n", what);
    exit(1);
}

static void add(maker *m, us_dtype type, uint64_t rows, uint64_t cols, const char *fmt, ...) US_PRINTF(5, 6);
static void add(maker *m, us_dtype type, uint64_t rows, uint64_t cols, const char *fmt, ...) {
    char name[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    uint64_t *shape = us_arena_alloc(&m->arena, 2 * sizeof *shape), elements, bytes;
    char *copy = us_arena_strndup(&m->arena, name, (size_t)n);
    if (!shape || !copy || !us_grow(&m->t, &m->cap, m->n + 1, sizeof *m->t)) fail("out of memory");
    shape[0] = rows;
    shape[1] = cols;
    uint8_t rank = cols ? 2 : 1;
    if (!us_st_bytes(type, rank, shape, &elements, &bytes)) fail("a tensor is too large");
    m->t[m->n++] = (us_st_tensor){{copy, (size_t)n}, type, rank, shape, 0, bytes};
}

/* An FP8 matrix and its block scales. */
static void fp8(maker *m, uint64_t rows, uint64_t cols, const char *prefix, unsigned layer, const char *name) {
    add(m, US_DTYPE_F8_E4M3, rows, cols, "model.layers.%u.%s%s.weight", layer, prefix, name);
    add(m, US_DTYPE_F32, (rows + 127) / 128, (cols + 127) / 128, "model.layers.%u.%s%s.weight_scale_inv", layer, prefix, name);
}

static void mlp_fp8(maker *m, unsigned layer, const char *prefix, uint64_t D, uint64_t F) {
    fp8(m, D, F, prefix, layer, "down_proj");
    fp8(m, F, D, prefix, layer, "gate_proj");
    fp8(m, F, D, prefix, layer, "up_proj");
}

static void layer_v3(maker *m, unsigned l, bool moe) {
    const uint64_t D = 7168;
    add(m, US_DTYPE_BF16, D, 0, "model.layers.%u.input_layernorm.weight", l);
    add(m, US_DTYPE_BF16, 512, 0, "model.layers.%u.self_attn.kv_a_layernorm.weight", l);
    fp8(m, 576, D, "self_attn.", l, "kv_a_proj_with_mqa");
    fp8(m, 32768, 512, "self_attn.", l, "kv_b_proj");
    fp8(m, D, 16384, "self_attn.", l, "o_proj");
    add(m, US_DTYPE_BF16, 1536, 0, "model.layers.%u.self_attn.q_a_layernorm.weight", l);
    fp8(m, 1536, D, "self_attn.", l, "q_a_proj");
    fp8(m, 24576, 1536, "self_attn.", l, "q_b_proj");
    add(m, US_DTYPE_BF16, D, 0, "model.layers.%u.post_attention_layernorm.weight", l);
    if (!moe) {
        mlp_fp8(m, l, "mlp.", D, 18432);
        return;
    }
    add(m, US_DTYPE_BF16, EXPERTS_V3, D, "model.layers.%u.mlp.gate.weight", l);
    add(m, US_DTYPE_F32, EXPERTS_V3, 0, "model.layers.%u.mlp.gate.e_score_correction_bias", l);
    mlp_fp8(m, l, "mlp.shared_experts.", D, 2048);
    for (unsigned e = 0; e < EXPERTS_V3; e++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "mlp.experts.%u.", e);
        mlp_fp8(m, l, prefix, D, 2048);
    }
}

static void model_v3(maker *m, unsigned only) {
    const uint64_t D = 7168, V = 129280;
    unsigned layers = only ? only : 61;
    add(m, US_DTYPE_BF16, V, D, "model.embed_tokens.weight");
    for (unsigned l = 0; l < layers; l++) layer_v3(m, l, only || l >= 3);
    add(m, US_DTYPE_BF16, D, 0, "model.norm.weight");
    add(m, US_DTYPE_BF16, V, D, "lm_head.weight");
    if (only) return;
    layer_v3(m, 61, true);
    add(m, US_DTYPE_BF16, V, D, "model.layers.61.embed_tokens.weight");
    add(m, US_DTYPE_BF16, D, 0, "model.layers.61.enorm.weight");
    add(m, US_DTYPE_BF16, D, 0, "model.layers.61.hnorm.weight");
    add(m, US_DTYPE_BF16, D, 2 * D, "model.layers.61.eh_proj.weight");
    add(m, US_DTYPE_BF16, D, 0, "model.layers.61.shared_head.norm.weight");
    add(m, US_DTYPE_BF16, V, D, "model.layers.61.shared_head.head.weight");
}

typedef struct qwen3 {
    const char *name;
    uint64_t D, F, dense, heads;
    unsigned layers, shards;
} qwen3;
static const qwen3 qwen3s[] = {{"qwen3-235b", 4096, 1536, 12288, 64, 94, 118}, {"qwen3-30b", 2048, 768, 6144, 32, 48, 16}};

static void model_q3(maker *m, const qwen3 *q, unsigned only) {
    const uint64_t D = q->D, V = 151936, F = q->F, wide = q->heads * 128;
    add(m, US_DTYPE_BF16, V, D, "model.embed_tokens.weight");
    for (unsigned l = 0; l < (only ? only : q->layers); l++) {
        const struct {
            const char *name;
            uint64_t rows, cols;
        } parts[] = {{"input_layernorm", D, 0},        {"self_attn.k_norm", 128, 0},     {"self_attn.k_proj", 512, D}, {"self_attn.o_proj", D, wide}, {"self_attn.q_norm", 128, 0},
                     {"self_attn.q_proj", wide, D}, {"self_attn.v_proj", 512, D}, {"post_attention_layernorm", D, 0}, {"mlp.gate", EXPERTS_Q3, D}};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) add(m, US_DTYPE_BF16, parts[i].rows, parts[i].cols, "model.layers.%u.%s.weight", l, parts[i].name);
        for (unsigned e = 0; e < EXPERTS_Q3; e++) {
            add(m, US_DTYPE_BF16, D, F, "model.layers.%u.mlp.experts.%u.down_proj.weight", l, e);
            add(m, US_DTYPE_BF16, F, D, "model.layers.%u.mlp.experts.%u.gate_proj.weight", l, e);
            add(m, US_DTYPE_BF16, F, D, "model.layers.%u.mlp.experts.%u.up_proj.weight", l, e);
        }
    }
    add(m, US_DTYPE_BF16, D, 0, "model.norm.weight");
    add(m, US_DTYPE_BF16, V, D, "lm_head.weight");
}

/* Shard by position; every 61st scale goes to the next shard, as scales do in the released files. Returns the number of shards. */
static uint32_t place(maker *m, uint32_t shards, double shard_mb) {
    uint64_t total = 0, at = 0;
    size_t scales = 0;
    for (size_t i = 0; i < m->n; i++) total += m->t[i].end;
    if (!shards) shards = (uint32_t)((double)total / (shard_mb * 1e6)) + 1;
    if (!us_grow(&m->shard, &m->cap_shard, m->n, sizeof *m->shard)) fail("out of memory");
    for (size_t i = 0; i < m->n; i++) {
        uint32_t s = (uint32_t)((double)at / (double)total * shards);
        at += m->t[i].end;
        if (us_str_ends(m->t[i].name, US_LIT("_scale_inv")) && ++scales % 61 == 0) s++;
        m->shard[i] = s < shards ? s : shards - 1;
    }
    return shards;
}

/* Random numbers of the standard deviation 0.02 (norms: ones) for what routing reads. */
static void fill(int fd, uint64_t begin, const us_st_tensor *t) {
    enum { ROWS = 4096, PART = 1 << 16 };
    bool norm = us_str_ends(t->name, US_LIT("norm.weight")), embed = us_str_eqz(t->name, "model.embed_tokens.weight");
    if (!norm && !embed && !us_str_ends(t->name, US_LIT("mlp.gate.weight"))) return;
    uint64_t n = t->shape[0] * (t->rank == 2 ? t->shape[1] : 1);
    if (embed) n = (t->shape[0] < ROWS ? t->shape[0] : ROWS) * t->shape[1];
    static uint16_t part[PART];
    for (uint64_t i = 0; i < n; i += PART) {
        size_t k = n - i < PART ? (size_t)(n - i) : PART;
        for (size_t j = 0; j < k; j++) part[j] = us_f32_to_bf16(norm ? 1.0f : (float)(0.02 * us_rng_normal(1, begin, i + j)));
        if (pwrite(fd, part, k * sizeof *part, (off_t)(begin + 2 * i)) != (ssize_t)(k * sizeof *part)) fail("cannot write numbers");
    }
}

static void write_shard(maker *m, const char *path, uint32_t shard, bool routed) {
    us_buf head = {0};
    us_err err = {0};
    us_st_tensor *list = us_malloc((m->n + 1) * sizeof *list);
    size_t n = 0;
    uint64_t at = 0;
    if (!list) fail("out of memory");
    for (size_t i = 0; i < m->n; i++) {
        if (m->shard[i] != shard) continue;
        list[n] = m->t[i];
        list[n].begin = at;
        at += m->t[i].end;
        list[n++].end = at;
    }
    if (us_st_write_header(&head, list, n, NULL, 0, &err) != US_OK) fail(err.what);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, head.p, head.n) != (ssize_t)head.n || ftruncate(fd, (off_t)(head.n + at)) != 0) fail("cannot write a shard");
    for (size_t i = 0; routed && i < n; i++) fill(fd, head.n + list[i].begin, &list[i]);
    if (close(fd) != 0) fail("cannot write a shard");
    us_buf_free(&head);
    us_free(list);
}

static void write_text(const char *folder, const char *name, us_buf *text) {
    us_arena a = {0};
    us_err err = {0};
    if (us_fs_write_atomic(us_fs_join(&a, folder, name), us_buf_view(text), &err) != US_OK) fail(err.what);
    us_arena_free(&a);
    us_buf_free(text);
}

static void write_config(const char *folder, const qwen3 *q, unsigned only) {
    us_buf b = {0};
    if (!q)
        us_buf_printf(&b,
                      "{\n  \"architectures\": [\"DeepseekV3ForCausalLM\"],\n  \"model_type\": \"deepseek_v3\",\n  \"hidden_size\": 7168,\n  \"vocab_size\": 129280,\n"
                      "  \"num_hidden_layers\": %u,\n  \"first_k_dense_replace\": %u,\n  \"moe_layer_freq\": 1,\n  \"num_nextn_predict_layers\": %u,\n  \"intermediate_size\": 18432,\n"
                      "  \"moe_intermediate_size\": 2048,\n  \"n_routed_experts\": 256,\n  \"n_shared_experts\": 1,\n  \"num_experts_per_tok\": 8,\n  \"n_group\": 8,\n  \"topk_group\": 4,\n"
                      "  \"num_attention_heads\": 128,\n  \"num_key_value_heads\": 128,\n  \"q_lora_rank\": 1536,\n  \"kv_lora_rank\": 512,\n  \"qk_nope_head_dim\": 128,\n"
                      "  \"qk_rope_head_dim\": 64,\n  \"v_head_dim\": 128,\n  \"scoring_func\": \"sigmoid\",\n  \"topk_method\": \"noaux_tc\",\n  \"norm_topk_prob\": true,\n"
                      "  \"routed_scaling_factor\": 2.5,\n  \"tie_word_embeddings\": false,\n  \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
                      "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128]}\n}\n",
                      only ? only : 61, only ? 0 : 3, only ? 0 : 1);
    else
        us_buf_printf(&b,
                      "{\n  \"architectures\": [\"Qwen3MoeForCausalLM\"],\n  \"model_type\": \"qwen3_moe\",\n  \"hidden_size\": %u,\n  \"vocab_size\": 151936,\n"
                      "  \"num_hidden_layers\": %u,\n  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [],\n  \"intermediate_size\": %u,\n  \"moe_intermediate_size\": %u,\n"
                      "  \"num_experts\": 128,\n  \"num_experts_per_tok\": 8,\n  \"num_attention_heads\": %u,\n  \"num_key_value_heads\": 4,\n  \"head_dim\": 128,\n"
                      "  \"norm_topk_prob\": true,\n  \"tie_word_embeddings\": false,\n  \"rms_norm_eps\": 1e-06,\n  \"rope_theta\": 1000000.0,\n  \"hidden_act\": \"silu\",\n"
                      "  \"max_position_embeddings\": 40960\n}\n",
                      (unsigned)q->D, only ? only : q->layers, (unsigned)q->dense, (unsigned)q->F, (unsigned)q->heads);
    write_text(folder, "config.json", &b);
}

int main(int argc, char **argv) {
    maker m = {0};
    us_arena a = {0};
    us_err err = {0};
    us_buf index = {0};
    bool v3 = argc > 1 && strcmp(argv[1], "deepseek-v3") == 0, routed = false;
    const qwen3 *q = NULL;
    unsigned only = 0;
    for (size_t i = 0; argc > 1 && i < sizeof qwen3s / sizeof *qwen3s; i++)
        if (strcmp(argv[1], qwen3s[i].name) == 0) q = &qwen3s[i];
    if (argc < 3 || (!v3 && !q)) fail("usage: make_sparse_checkpoint deepseek-v3|qwen3-235b|qwen3-30b DST [--moe-layers N] [--routed]");
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--routed") == 0) routed = true;
        if (strcmp(argv[i], "--moe-layers") == 0 && i + 1 < argc) only = (unsigned)strtoul(argv[i + 1], NULL, 10);
    }
    if (q) model_q3(&m, q, only);
    else model_v3(&m, only);
    uint32_t shards = place(&m, only ? 0 : q ? q->shards : 163, v3 ? SHARD_BYTES_V3 : SHARD_BYTES_Q3);
    if (us_fs_mkdirs(argv[2], &err) != US_OK) fail(err.what);
    uint64_t total = 0;
    for (size_t i = 0; i < m.n; i++) total += m.t[i].end;
    us_buf_printf(&index, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {\n", (unsigned long long)total);
    for (size_t i = 0; i < m.n; i++) {
        us_buf_z(&index, "    ");
        us_buf_json(&index, m.t[i].name);
        us_buf_printf(&index, v3 ? ": \"model-%05u-of-%06u.safetensors\"%s\n" : ": \"model-%05u-of-%05u.safetensors\"%s\n", m.shard[i] + 1, shards, i + 1 < m.n ? "," : "");
    }
    us_buf_z(&index, "  }\n}\n");
    write_text(argv[2], "model.safetensors.index.json", &index);
    write_config(argv[2], q, only);
    for (uint32_t s = 0; s < shards; s++) {
        char name[80];
        snprintf(name, sizeof name, v3 ? "model-%05u-of-%06u.safetensors" : "model-%05u-of-%05u.safetensors", s + 1, shards);
        write_shard(&m, us_fs_join(&a, argv[2], name), s, routed);
    }
    printf("%zu tensors, %llu bytes, %u shards\n", m.n, (unsigned long long)total, shards);
    us_free(m.t);
    us_free(m.shard);
    us_arena_free(&m.arena);
    us_arena_free(&a);
    return 0;
}
