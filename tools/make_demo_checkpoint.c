/*
 * Writes the small MoE model that ships with the project: a qwen3_moe in BF16, two shards with an index, a byte
 * tokenizer.
 *
 *     make_demo_checkpoint DIR
 *
 * Weights are random, but not shapeless: in every layer the 32 experts are 8 families of 4. The members of a family are
 * one expert with its neurons permuted and slightly perturbed, and its router row likewise, so that pruning by clusters
 * has something to find. The same bytes come out every time (counter-based random numbers): tests/e2e/test_demo.c makes
 * it again and compares with data/demo.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "io/fs.h"
#include "io/safetensors.h"

enum {
    LAYERS = 3,
    WIDTH = 32,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD = 16,
    EXPERTS = 32,
    TOP_K = 4,
    INTER = 16,
    VOCAB = 260,
    FAMILIES = 8,
    TENSORS_MAX = 400
};
enum { SEED = 20261201 };

/** One shard under construction. */
typedef struct shard {
    us_st_tensor tensors[TENSORS_MAX];
    uint64_t shapes[TENSORS_MAX][2];
    size_t n;
    us_buf data;
} shard;

static us_arena arena;
static shard shards[2];
static us_buf map; /* "name": "file" lines of the index */

static void die(const us_err *err) {
    char line[4 * US_ERR_TEXT];
    us_err_line(err, line, sizeof line);
    fprintf(stderr, "make_demo_checkpoint: %s\n", line);
    exit(1);
}

/* Add a BF16 tensor (rank 1 when cols is 0) to a shard; value i is values[i]. */
static void add(int which, const char *name, uint64_t rows, uint64_t cols, const double *values) {
    shard *s = &shards[which];
    uint64_t n = rows * (cols ? cols : 1);
    if (s->n == TENSORS_MAX) exit(1);
    us_st_tensor *t = &s->tensors[s->n];
    s->shapes[s->n][0] = rows;
    s->shapes[s->n][1] = cols;
    char *copy = us_arena_strndup(&arena, name, strlen(name));
    if (!copy) exit(1);
    *t = (us_st_tensor){{copy, strlen(copy)}, US_DTYPE_BF16, cols ? 2 : 1,
                        s->shapes[s->n],      s->data.n,     s->data.n + 2 * n};
    s->n++;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t x = us_f32_to_bf16((float)values[i]);
        us_buf_c(&s->data, (char)(x & 255));
        us_buf_c(&s->data, (char)(x >> 8));
    }
    us_buf_printf(&map, "%s    \"%s\": \"model-%05d-of-00002.safetensors\"", map.n ? ",\n" : "", name, which + 1);
}

static uint64_t stream; /* of the next tensor */

static void fill(double *out, uint64_t n, double scale) {
    for (uint64_t i = 0; i < n; i++) out[i] = scale * us_rng_normal(SEED, stream, i);
    stream++;
}

static void add_random(int which, const char *name, uint64_t rows, uint64_t cols) {
    static double values[VOCAB * WIDTH];
    fill(values, rows * cols, 1 / sqrt((double)cols));
    add(which, name, rows, cols, values);
}

static void add_ones(int which, const char *name, uint64_t n) {
    double ones[WIDTH];
    for (uint64_t i = 0; i < n; i++) ones[i] = 1;
    add(which, name, n, 0, ones);
}

typedef struct expert {
    double gate[INTER][WIDTH], up[INTER][WIDTH], down[WIDTH][INTER], row[WIDTH];
} expert;

/* A member of a family: neurons in another order, everything perturbed by 2 %. */
static void vary(const expert *base, expert *out) {
    uint32_t order[INTER];
    us_rng_permutation(SEED, stream++, INTER, order);
    for (int j = 0; j < INTER; j++) {
        memcpy(out->gate[j], base->gate[order[j]], sizeof out->gate[j]);
        memcpy(out->up[j], base->up[order[j]], sizeof out->up[j]);
        for (int i = 0; i < WIDTH; i++) out->down[i][j] = base->down[i][order[j]];
    }
    memcpy(out->row, base->row, sizeof out->row);
    double *all = &out->gate[0][0];
    for (size_t i = 0; i < sizeof *out / sizeof *all; i++) all[i] *= 1 + 0.02 * us_rng_normal(SEED, stream, i);
    stream++;
}

static void add_experts(int which, int layer) {
    static expert base[FAMILIES], e;
    static double router[EXPERTS][WIDTH];
    char name[128];
    uint32_t place[EXPERTS]; /* families are scattered over the numbers */
    us_rng_permutation(SEED, stream++, EXPERTS, place);
    for (int f = 0; f < FAMILIES; f++)
        fill(&base[f].gate[0][0], sizeof base[f] / sizeof(double), 1 / sqrt((double)WIDTH));
    for (int i = 0; i < EXPERTS; i++) {
        vary(&base[place[i] % FAMILIES], &e);
        memcpy(router[i], e.row, sizeof e.row);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", layer, i);
        add(which, name, INTER, WIDTH, &e.gate[0][0]);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up_proj.weight", layer, i);
        add(which, name, INTER, WIDTH, &e.up[0][0]);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.down_proj.weight", layer, i);
        add(which, name, WIDTH, INTER, &e.down[0][0]);
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", layer);
    add(which, name, EXPERTS, WIDTH, &router[0][0]);
}

static void add_attention(int which, int layer) {
    static const struct {
        const char *name;
        int rows, cols;
    } parts[] = {{"self_attn.q_proj", HEADS * HEAD, WIDTH},
                 {"self_attn.k_proj", KV_HEADS * HEAD, WIDTH},
                 {"self_attn.v_proj", KV_HEADS * HEAD, WIDTH},
                 {"self_attn.o_proj", WIDTH, HEADS * HEAD},
                 {"self_attn.q_norm", HEAD, 0},
                 {"self_attn.k_norm", HEAD, 0},
                 {"input_layernorm", WIDTH, 0},
                 {"post_attention_layernorm", WIDTH, 0}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, parts[i].name);
        if (parts[i].cols)
            add_random(which, name, (uint64_t)parts[i].rows, (uint64_t)parts[i].cols);
        else
            add_ones(which, name, (uint64_t)parts[i].rows);
    }
}

static void write_file(const char *dir, const char *name, us_str bytes) {
    us_err err = {0};
    char *path = us_fs_join(&arena, dir, name);
    if (!path || us_fs_write_atomic(path, bytes, &err) != US_OK) die(&err);
}

static void write_shards(const char *dir) {
    us_err err = {0};
    us_buf out = {0};
    uint64_t total = 0;
    for (int i = 0; i < 2; i++) {
        us_buf_clear(&out);
        if (us_st_write_header(&out, shards[i].tensors, shards[i].n, NULL, 0, &err) != US_OK) die(&err);
        us_buf_str(&out, us_buf_view(&shards[i].data));
        if (us_buf_status(&out, &err, "writing") != US_OK) die(&err);
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-00002.safetensors", i + 1);
        write_file(dir, name, us_buf_view(&out));
        total += shards[i].data.n;
    }
    us_buf_clear(&out);
    us_buf_printf(&out, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {\n",
                  (unsigned long long)total);
    us_buf_str(&out, us_buf_view(&map));
    us_buf_z(&out, "\n  }\n}\n");
    write_file(dir, "model.safetensors.index.json", us_buf_view(&out));
    us_buf_free(&out);
}

/* The byte alphabet of byte-level BPE: printable bytes stand for themselves, the others follow from U+0100 on. */
static void append_byte(us_buf *out, int byte) {
    static int next[256], ready;
    for (int b = 0, n = 256; !ready && b < 256; b++) {
        bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        next[b] = plain ? b : n++;
    }
    ready = 1;
    int c = next[byte];
    char utf8[3] = {(char)(c < 0x80 ? c : 0xc0 | c >> 6), c < 0x80 ? 0 : (char)(0x80 | (c & 63)), 0};
    us_buf_json(out, us_str_z(utf8));
}

static void write_tokenizer(const char *dir) {
    us_buf b = {0};
    us_buf_z(&b, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [\n");
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 3; i++)
        us_buf_printf(&b,
                      "    {\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
                      "false, \"normalized\": false, \"special\": true}%s\n",
                      257 + i, special[i], i < 2 ? "," : "");
    us_buf_z(&b, "  ],\n  \"normalizer\": null,\n"
                 "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                 "\"use_regex\": true},\n"
                 "  \"post_processor\": null,\n"
                 "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                 "\"use_regex\": true},\n"
                 "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n    "
                 "\"continuing_subword_prefix\": null,\n"
                 "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    "
                 "\"ignore_merges\": false,\n    \"vocab\": {\n");
    for (int i = 0; i < 256; i++) {
        us_buf_z(&b, "      ");
        append_byte(&b, i);
        us_buf_printf(&b, ": %d,\n", i);
    }
    us_buf_z(&b, "      \"th\": 256\n    },\n    \"merges\": [[\"t\", \"h\"]]\n  }\n}\n");
    write_file(dir, "tokenizer.json", us_buf_view(&b));
    us_buf_free(&b);
    write_file(dir, "tokenizer_config.json",
               us_str_z("{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"eos_token\": \"<|im_end|>\",\n  "
                        "\"pad_token\": \"<|endoftext|>\",\n"
                        "  \"model_max_length\": 512\n}\n"));
    write_file(dir, "chat_template.jinja",
               us_str_z("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
                        "}}<|im_end|>\n{% endfor %}"
                        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}\n"));
    write_file(dir, "generation_config.json",
               us_str_z("{\n  \"eos_token_id\": 259,\n  \"pad_token_id\": 257,\n  \"do_sample\": true,\n  "
                        "\"temperature\": 0.7\n}\n"));
}

static void write_config(const char *dir) {
    us_buf b = {0};
    us_buf_printf(&b,
                  "{\n  \"architectures\": [\n    \"Qwen3MoeForCausalLM\"\n  ],\n  \"attention_bias\": false,\n  "
                  "\"attention_dropout\": 0.0,\n"
                  "  \"decoder_sparse_step\": 1,\n  \"eos_token_id\": 259,\n  \"head_dim\": %d,\n  \"hidden_act\": "
                  "\"silu\",\n  \"hidden_size\": %d,\n"
                  "  \"initializer_range\": 0.02,\n  \"intermediate_size\": %d,\n  \"max_position_embeddings\": 512,\n "
                  " \"max_window_layers\": %d,\n"
                  "  \"mlp_only_layers\": [],\n  \"model_type\": \"qwen3_moe\",\n  \"moe_intermediate_size\": %d,\n  "
                  "\"norm_topk_prob\": true,\n"
                  "  \"num_attention_heads\": %d,\n  \"num_experts\": %d,\n  \"num_experts_per_tok\": %d,\n  "
                  "\"num_hidden_layers\": %d,\n"
                  "  \"num_key_value_heads\": %d,\n  \"output_router_logits\": false,\n  \"rms_norm_eps\": 1e-06,\n  "
                  "\"rope_scaling\": null,\n"
                  "  \"rope_theta\": 10000.0,\n  \"router_aux_loss_coef\": 0.001,\n  \"sliding_window\": null,\n  "
                  "\"tie_word_embeddings\": false,\n"
                  "  \"torch_dtype\": \"bfloat16\",\n  \"use_cache\": true,\n  \"use_sliding_window\": false,\n  "
                  "\"vocab_size\": %d\n}\n",
                  HEAD, WIDTH, 2 * WIDTH, LAYERS, INTER, HEADS, EXPERTS, TOP_K, LAYERS, KV_HEADS, VOCAB);
    write_file(dir, "config.json", us_buf_view(&b));
    us_buf_free(&b);
}

int main(int argc, char **argv) {
    us_err err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: make_demo_checkpoint DIR\n");
        return 2;
    }
    if (us_fs_mkdirs(argv[1], &err) != US_OK) die(&err);
    add_random(0, "model.embed_tokens.weight", VOCAB, WIDTH);
    for (int layer = 0; layer < LAYERS; layer++) {
        int which = layer > LAYERS / 2; /* the last layers lie in the second shard */
        add_attention(which, layer);
        add_experts(which, layer);
    }
    add_ones(1, "model.norm.weight", WIDTH);
    add_random(1, "lm_head.weight", VOCAB, WIDTH);
    write_shards(argv[1]);
    write_tokenizer(argv[1]);
    write_config(argv[1]);
    return 0;
}
