/**
 * Functional sketches on the shape of one Qwen3-30B-A3B layer (128 experts, 128 probes, H 2048, I 768, BF16 weights read from a file): arithmetic
 * rate from stored bytes to sketch, against the matrix products of the same shapes (own and OpenBLAS) and the machine's peak, measured in one run.
 * Needs 1.2 GB in the temporary folder (TMPDIR), which it removes.
 */
#define _GNU_SOURCE
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "bench.h"
#include "kernels/gemm.h"
#include "proxy/sketch.h"

#undef I /* complex.h of cblas.h takes the letter */


enum { E = 128, H = 2048, I = 768, M = 128 };

static void die(const us_err *err) {
    char line[1024];
    us_err_line(err, line, sizeof line);
    fprintf(stderr, "bench_sketch: %s\n", line);
    exit(1);
}

/* Random BF16 numbers of the usual size for `width` inputs. */
static void random_bf16(uint16_t *p, size_t n, size_t width) {
    for (size_t i = 0; i < n; i++) p[i] = us_f32_to_bf16((float)(us_rng_normal(1, width, i) / sqrt((double)width)));
}

static void write_layer(const char *folder) {
    us_st_tensor t[3 * E + 2];
    char names[3 * E][64];
    static const char *const kinds[3] = {"gate_proj", "up_proj", "down_proj"};
    static const uint64_t wide[2] = {I, H}, narrow[2] = {H, I}, router[2] = {E, H}, embed[2] = {1, H};
    size_t n = 0;
    uint64_t at = 0, each = (uint64_t)H * I * 2;
    us_buf header = {0};
    us_err err = {0};
    t[n++] = (us_st_tensor){.name = US_LIT("model.embed_tokens.weight"), .dtype = US_DTYPE_BF16, .rank = 2, .shape = embed, .begin = 0, .end = H * 2};
    at = H * 2;
    t[n++] = (us_st_tensor){.name = US_LIT("model.layers.0.mlp.gate.weight"), .dtype = US_DTYPE_BF16, .rank = 2, .shape = router, .begin = at, .end = at + (uint64_t)E * H * 2};
    at = t[n - 1].end;
    for (int i = 0; i < 3 * E; i++, at += each) {
        snprintf(names[i], sizeof names[i], "model.layers.0.mlp.experts.%d.%s.weight", i / 3, kinds[i % 3]);
        t[n++] = (us_st_tensor){.name = us_str_z(names[i]), .dtype = US_DTYPE_BF16, .rank = 2, .shape = i % 3 == 2 ? narrow : wide, .begin = at, .end = at + each};
    }
    if (us_st_write_header(&header, t, n, NULL, 0, &err) != US_OK) die(&err);
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "wb");
    uint16_t *block = malloc(each);
    if (!f || !block) exit(1);
    random_bf16(block, each / 2, H);
    bool ok = fwrite(header.p, 1, header.n, f) == header.n;
    ok = ok && fwrite(block, 2, H, f) == H && fwrite(block, 2, (size_t)E * H, f) == (size_t)E * H;
    for (int i = 0; i < 3 * E && ok; i++) { /* rotate, so that experts differ */
        size_t cut = (size_t)i * 4099 % (each / 2);
        ok = fwrite(block + cut, 2, each / 2 - cut, f) == each / 2 - cut && fwrite(block, 2, cut, f) == cut;
    }
    if (fclose(f) || !ok) exit(1);
    free(block);
    us_buf_free(&header);
    snprintf(path, sizeof path, "%s/config.json", folder);
    f = fopen(path, "wb");
    if (!f) exit(1);
    fprintf(f, "{\"model_type\": \"qwen3_moe\", \"num_experts\": %d, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 1, \"hidden_size\": %d, \"moe_intermediate_size\": %d, "
               "\"hidden_act\": \"silu\"}", E, H, I);
    if (fclose(f)) exit(1);
}

typedef struct layer {
    us_ctx *ctx;
    us_checkpoint *ck;
    us_structure *s;
} layer;

static layer open_layer(const char *folder, int threads) {
    layer l = {0};
    us_err err = {0};
    if (us_ctx_create(threads, 0, &l.ctx, &err) != US_OK || us_checkpoint_open(l.ctx, folder, 0, &l.ck, &err) != US_OK || us_structure_resolve(l.ctx, l.ck, &l.s, &err) != US_OK) die(&err);
    return l;
}

static void close_layer(layer *l) {
    us_structure_free(l->s);
    us_checkpoint_free(l->ck);
    us_ctx_free(l->ctx);
}

static void sketch(void *arg) {
    const layer *l = arg;
    us_sketch k = {0};
    const char *why = NULL;
    us_err err = {0};
    if (us_sketch_block(l->ctx, l->s, 0, 1, 256, M, &k, &why, &err) != US_OK || why) die(&err);
    bench_keep(k.phi);
    us_sketch_free(&k);
}

typedef struct product {
    size_t m, n, k;
    float *x, *w, *packed, *y;
} product;

static product make_product(size_t m, size_t n, size_t k) {
    product p = {m, n, k, us_malloc_aligned(m * (k + 16) * 4), us_malloc_aligned(n * k * 4), us_malloc_aligned(us_gemm_packed_bytes(US_DTYPE_F32, n, k)),
                 us_malloc_aligned(m * (n + 16) * 4)};
    if (!p.x || !p.w || !p.packed || !p.y) exit(1);
    for (size_t i = 0; i < m * (k + 16); i++) p.x[i] = (float)us_rng_double(1, 1, i) - 0.5f;
    for (size_t i = 0; i < n * k; i++) p.w[i] = (float)us_rng_double(1, 2, i) - 0.5f;
    us_gemm_pack_nt(US_DTYPE_F32, p.w, k, n, k, p.packed);
    return p;
}

static void own(void *arg) {
    product *p = arg;
    us_gemm(NULL, p->m, p->x, p->k + 16, &(us_gemm_packed){p->n, p->k, US_DTYPE_F32, p->packed, NULL}, p->y, p->n + 16);
    bench_keep(p->y);
}

static void blas(void *arg) {
    product *p = arg;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->m, (int)p->n, (int)p->k, 1.0f, p->x, (int)p->k + 16, p->w, (int)p->k, 0.0f, p->y, (int)p->n + 16);
    bench_keep(p->y);
}

int main(int argc, char **argv) {
    us_bench *b = bench_open(argc, argv, "sketch");
    const char *tmp = getenv("TMPDIR");
    char folder[256], path[512];
    snprintf(folder, sizeof folder, "%s/understudy-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) return 1;
    write_layer(folder);
    layer one = open_layer(folder, 1), all = open_layer(folder, 0);
    product expert = make_product(I, M, H), large = make_product(2048, 2048, 2048);
    openblas_set_num_threads(1);
    double flop = 6.0 * H * I * M * E;
    bench_case(b, &(bench_spec){.name = "sketch of a layer, 1 thread", .unit = "flop", .work = flop, .fn = sketch, .arg = &one});
    bench_case(b, &(bench_spec){.name = "sketch of a layer, all threads", .unit = "flop", .work = flop, .fn = sketch, .arg = &all, .threads = us_cpu_count()});
    bench_case(b, &(bench_spec){.name = "own f32 product 768x128x2048", .unit = "flop", .work = 2.0 * I * M * H, .fn = own, .arg = &expert});
    bench_case(b, &(bench_spec){.name = "own f32 product 2048x2048x2048", .unit = "flop", .work = 2.0 * 2048 * 2048 * 2048, .fn = own, .arg = &large});
    bench_case(b, &(bench_spec){.name = "OpenBLAS f32 product 768x128x2048", .unit = "flop", .work = 2.0 * I * M * H, .fn = blas, .arg = &expert});
    bench_case(b, &(bench_spec){.name = "OpenBLAS f32 product 2048x2048x2048", .unit = "flop", .work = 2.0 * 2048 * 2048 * 2048, .fn = blas, .arg = &large});
    int status = bench_close(b);
    close_layer(&one);
    close_layer(&all);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    rmdir(folder);
    return status;
}
