/* What reading a checkpoint is made of: JSON of an index, a safetensors header, SHA-256, and the base pieces under
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "base/rng.h"
#include "bench.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/sha256.h"

enum { LAYERS = 61, EXPERTS = 256, HASH_BYTES = 8 << 20 };

static void must(us_status s) {
    if (s == US_OK) return;
    fprintf(stderr, "bench_io: %s\n", us_status_name(s));
    exit(1);
}

/* Names and sizes as in an index of DeepSeek-V3: 61 layers of 256 experts, three projections each. */
static void make_index(us_buf *out) {
    us_buf_z(out, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int l = 0; l < LAYERS; l++)
        for (int e = 0; e < EXPERTS; e++)
            for (int p = 0; p < 3; p++)
                us_buf_printf(
                    out, "%s\n    \"model.layers.%d.mlp.experts.%d.%s.weight\": \"model-%05d-of-000163.safetensors\"",
                    l + e + p ? "," : "", l, e,
                    p == 0   ? "gate_proj"
                    : p == 1 ? "up_proj"
                             : "down_proj",
                    l * 163 / LAYERS + 1);
    us_buf_z(out, "}}\n");
}

static void make_header(us_buf *out) {
    uint64_t at = 0;
    us_buf_c(out, '{');
    for (int e = 0; e < 2000; e++, at += 4096)
        us_buf_printf(out,
                      "%s\"model.layers.3.mlp.experts.%d.gate_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[32,64],"
                      "\"data_offsets\":[%llu,%llu]}",
                      e ? "," : "", e, (unsigned long long)at, (unsigned long long)at + 4096);
    us_buf_c(out, '}');
}

static void parse_index(void *arg) {
    us_json_doc d;
    must(us_json_doc_parse(&d, us_buf_view(arg), 0, NULL));
    us_json_doc_free(&d);
}

static void scan_index(void *arg) {
    us_json_scan s;
    us_json_token t;
    us_json_scan_init(&s, us_buf_view(arg), 0);
    do must(us_json_scan_next(&s, &t, NULL));
    while (t.event != US_JSON_EV_DONE);
}

static void parse_header(void *arg) {
    us_st_header h;
    us_buf *b = arg;
    must(us_st_parse(us_buf_view(b), 8 + b->n + 2000 * 4096, 0, &h, NULL));
    us_st_header_free(&h);
}

static void hash_block(void *arg) {
    us_sha256 *h;
    char hex[65];
    must(us_sha256_create(&h, NULL));
    us_sha256_add(h, arg, HASH_BYTES);
    us_sha256_hex(h, hex);
    us_sha256_free(h);
}

static void draw(void *arg) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 1000; i++) sum += us_rng_u64(1, 2, i);
    bench_keep(&sum);
    (void)arg;
}

static void fill_map(void *arg) {
    us_map m = {0};
    us_str *names = arg;
    for (uint32_t i = 0; i < 10000; i++)
        if (!us_map_set(&m, names[i], i)) must(US_E_NOMEM);
    us_map_free(&m);
}

int main(int argc, char **argv) {
    us_bench *b = bench_open(argc, argv, "io");
    us_buf index = {0}, header = {0};
    us_arena arena = {0};
    make_index(&index);
    make_header(&header);
    void *block = us_calloc(1, HASH_BYTES);
    us_str *names = us_arena_calloc(&arena, 10000, sizeof *names);
    if (!block || !names || index.failed || header.failed) must(US_E_NOMEM);
    for (int i = 0; i < 10000; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "model.layers.%d.mlp.experts.%d.gate_proj.weight", i / 256, i % 256);
        names[i] = (us_str){us_arena_strndup(&arena, text, (size_t)n), (size_t)n};
        if (!names[i].p) must(US_E_NOMEM);
    }
    bench_case(b, &(bench_spec){.name = "json: scan an index of 46848 tensors",
                                .unit = "B",
                                .work = (double)index.n,
                                .fn = scan_index,
                                .arg = &index});
    bench_case(b, &(bench_spec){.name = "json: parse it into a document",
                                .unit = "B",
                                .work = (double)index.n,
                                .fn = parse_index,
                                .arg = &index});
    bench_case(b, &(bench_spec){.name = "safetensors: header of 2000 tensors",
                                .unit = "B",
                                .work = (double)header.n,
                                .fn = parse_header,
                                .arg = &header});
    bench_case(b,
               &(bench_spec){.name = "sha256: 8 MiB", .unit = "B", .work = HASH_BYTES, .fn = hash_block, .arg = block});
    bench_case(b, &(bench_spec){.name = "rng: 1000 x 64 bits", .unit = "call", .work = 1000, .fn = draw});
    bench_case(
        b, &(bench_spec){.name = "map: 10000 names in", .unit = "call", .work = 10000, .fn = fill_map, .arg = names});
    int status = bench_close(b);
    us_buf_free(&index);
    us_buf_free(&header);
    us_arena_free(&arena);
    us_free(block);
    return status;
}
