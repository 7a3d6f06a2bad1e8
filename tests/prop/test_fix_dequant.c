/**
 * Stored forms against the reference: every expert projection of every fixture checkpoint and model, widened by dequant.c, against a plain per-element
 * reading by the formula of its format, and against the `dequantised.NAME` tensors that the reference library wrote.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>

#include "support/moe_maker.h"

#include "model/weights.h"
#include "proxy/dequant.h"

typedef struct raw {
    const us_ck_tensor *t;
    unsigned char *p;
} raw;

static raw get(const us_checkpoint *ck, const char *base, const char *suffix) {
    const us_ck_tensor *t = us_ck_find(ck, us_str_z(test_format("%s%s", base, suffix)));
    us_err err = {0};
    if (!t) return (raw){0};
    raw r = {t, us_malloc((size_t)t->bytes + 1)};
    assert_non_null(r.p);
    assert_us_ok(us_ck_read(ck, t, 0, r.p, (size_t)t->bytes, &err), &err);
    return r;
}

static float value(const raw *r, size_t i) {
    float f = 0;
    us_dtype t = r->t->dtype == US_DTYPE_U8 ? US_DTYPE_F8_E8M0 : r->t->dtype;
    assert_true(us_to_f32(t, r->p + i * us_dtype_bits(t) / 8, 1, &f));
    return f;
}

static uint32_t word(const raw *r, size_t i) {
    uint32_t w;
    memcpy(&w, r->p + i * 4, 4);
    return w;
}

static unsigned nibble(const raw *r, size_t i) {
    return r->p[i / 2] >> (i % 2 * 4) & 15;
}

/* Element (r, k) of a projection with tensors of its own; the fixtures' blocks are 128, or what the config says. */
static float element(const us_checkpoint *ck, const raw *x, size_t r, size_t k, size_t in) {
    enum { W, INV, SCALE, PACKED, SHAPE, GLOBAL2, GLOBAL, QW, QZ, SC, GIDX };
    if (x[QW].t) {
        size_t out = (size_t)x[SC].t->shape[1];
        if (x[GIDX].t) {
            size_t g = word(&x[GIDX], k);
            float q = (float)(word(&x[QW], k / 8 * out + r) >> (k % 8 * 4) & 15), z = (float)(word(&x[QZ], g * (out / 8) + r / 8) >> (r % 8 * 4) & 15) + 1.0f;
            return (q - z) * value(&x[SC], g * out + r);
        }
        static const unsigned order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
        size_t g = k / 32;
        float q = (float)(word(&x[QW], k * (out / 8) + r / 8) >> (order[r % 8] * 4) & 15), z = (float)(word(&x[QZ], g * (out / 8) + r / 8) >> (order[r % 8] * 4) & 15);
        return (q - z) * value(&x[SC], g * out + r);
    }
    if (x[GLOBAL2].t || x[GLOBAL].t) {
        const raw *codes = x[PACKED].t ? &x[PACKED] : &x[W];
        float g = x[GLOBAL2].t ? value(&x[GLOBAL2], 0) : 1.0f / value(&x[GLOBAL], 0);
        return us_f4_to_f32((uint8_t)nibble(codes, r * in + k)) * value(&x[SCALE], r * (in / 16) + k / 16) * g;
    }
    if (x[PACKED].t) {
        size_t words = (size_t)x[PACKED].t->shape[1], groups = (size_t)x[SCALE].t->shape[1];
        float q = (float)(word(&x[PACKED], r * words + k / 8) >> (k % 8 * 4) & 15) - 8.0f;
        return q * value(&x[SCALE], r * groups + k / (in / groups));
    }
    float w = value(&x[W], r * in + k);
    if (x[INV].t) {
        uint64_t block = 128;
        us_json_u64(&ck->config, us_json_at(&ck->config, us_json_path(&ck->config, 0, "quantization_config.weight_block_size"), 0), &block);
        return w * value(&x[INV], r / block * (size_t)x[INV].t->shape[1] + k / block);
    }
    if (x[SCALE].t) return w * value(&x[SCALE], x[SCALE].t->bytes > 4 ? r : 0);
    return w;
}

static size_t n_checked, n_forms[US_DEQ_AWQ + 1];

static void check_own(const us_checkpoint *ck, const us_deq *d) {
    static const char *const suffixes[11] = {".weight", ".weight_scale_inv", ".weight_scale", ".weight_packed", ".weight_shape", ".weight_scale_2", ".weight_global_scale", ".qweight",
                                             ".qzeros", ".scales", ".g_idx"};
    us_str name = d->w->name;
    while (name.n && name.p[name.n - 1] != '.') name.n--;
    const char *base = test_format("%.*s", (int)name.n - 1, name.p);
    raw x[11];
    us_deq_rows_buf b = {0};
    us_err err = {0};
    for (int i = 0; i < 11; i++) x[i] = get(ck, base, suffixes[i]);
    assert_us_ok(us_deq_load(ck, d, &b, &err), &err);
    float *got = us_malloc(d->out * d->in * sizeof *got);
    assert_non_null(got);
    /* in odd tiles, as a product would */
    for (size_t r = 0; r < d->out; r += 5) {
        for (size_t k = 0; k < d->in; k += 7) {
            us_deq_rows(&b, r, d->out - r < 5 ? d->out - r : 5, k, d->in - k < 7 ? d->in - k : 7, got + r * d->in + k, d->in);
        }
    }
    for (size_t r = 0; r < d->out; r++) {
        for (size_t k = 0; k < d->in; k++) {
            float want = element(ck, x, r, k, d->in), have = got[r * d->in + k];
            if (want != have) print_message("%s (%zu, %zu): %g, expected %g\n", base, r, k, (double)have, (double)want);
            assert_true(want == have);
            n_checked++;
        }
    }
    n_forms[d->form]++;
    us_free(got);
    us_deq_rows_free(&b);
    for (int i = 0; i < 11; i++) us_free(x[i].p);
}

/* A stacked tensor: the oracle's reading of the whole expert, indexed by the layout. */
static void check_stacked(const us_checkpoint *ck, const us_deq *d) {
    us_arena arena = {0};
    us_err err = {0};
    const double *all;
    size_t n;
    us_deq_rows_buf b = {0};
    assert_us_ok(us_weight_expert_f64(ck, d->w, d->slab, d->slabs, &arena, &all, &n, &err), &err);
    assert_int_equal(n, d->width * d->in);
    assert_us_ok(us_deq_load(ck, d, &b, &err), &err);
    float *row = us_malloc(d->in * sizeof *row);
    assert_non_null(row);
    for (size_t r = 0; r < d->out; r++) {
        us_deq_rows(&b, r, 1, 0, d->in, row, d->in);
        size_t stored = d->first + r * d->step;
        for (size_t k = 0; k < d->in; k++) {
            assert_true((double)row[k] == all[d->columns ? k * d->width + stored : stored * d->in + k]);
            n_checked++;
        }
    }
    n_forms[d->form]++;
    us_free(row);
    us_deq_rows_free(&b);
    us_arena_free(&arena);
}

static size_t check_checkpoint(const char *folder) {
    us_ctx *ctx = NULL;
    us_checkpoint *ck = NULL;
    us_structure *s = NULL;
    us_err err = {0};
    size_t done = 0;
    assert_us_ok(us_ctx_create(1, 0, &ctx, &err), &err);
    assert_us_ok(us_checkpoint_open(ctx, folder, 0, &ck, &err), &err);
    assert_us_ok(us_structure_resolve(ctx, ck, &s, &err), &err);
    for (size_t b = 0; b < s->n_blocks; b++) {
        us_deq_expert *x = us_calloc(s->blocks[b].n_experts, sizeof *x);
        const char *why = NULL;
        assert_non_null(x);
        assert_us_ok(us_deq_find(s, b, x, &why, &err), &err);
        if (why) print_message("%s block %s: %s\n", folder, s->blocks[b].key, why);
        assert_null(why);
        for (uint32_t e = 0; e < s->blocks[b].n_experts; e++) {
            const us_deq *d[3] = {&x[e].gate, &x[e].up, &x[e].down};
            for (int i = 0; i < 3; i++) {
                if (d[i]->form == US_DEQ_NONE) continue;
                if (d[i]->slabs > 1) check_stacked(ck, d[i]);
                else check_own(ck, d[i]);
                done++;
            }
        }
        us_free(x);
    }
    us_structure_free(s);
    us_checkpoint_free(ck);
    us_ctx_free(ctx);
    return done;
}

static void every_fixture_checkpoint_is_read_by_its_formula(void **state) {
    (void)state;
    /* hub caches lie deeper and hold nothing else */
    for (const char *const *folder = test_folders("checkpoints", "src/config.json"); *folder; folder++)
        if (check_checkpoint(test_format("%s/src", *folder)) == 0) fail_msg("%s has no experts", *folder);
    /* Every family of forms was among them. */
    for (int f = US_DEQ_PLAIN; f <= US_DEQ_AWQ; f++) assert_true(n_forms[f] > 0);
    print_message("%zu elements\n", n_checked);
}

static void every_model_fixture_is_read(void **state) {
    (void)state;
    size_t moe = 0;
    for (const char *const *folder = test_folders("models", "config.json model.safetensors"); *folder; folder++) {
        moe += check_checkpoint(*folder) > 0;
    }
    assert_true(moe > 10);
}

/* dequantised.NAME of per-expert tensors and of stacked ones. */
static void equal_to_the_reference_library(void **state) {
    (void)state;
    const char *root = test_fixtures("models");
    if (!root) return;
    static const char *const models[] = {"qwen3_moe_int4", "gpt_oss_mxfp4"};
    size_t compared = 0;
    for (int m = 0; m < 2; m++) {
        const char *folder = test_format("%s/%s", root, models[m]), *copy = test_temp_dir();
        if (!test_exists(test_format("%s/ref.safetensors", folder))) continue;
        size_t n;
        const char *bytes = test_read(test_format("%s/ref.safetensors", folder), &n);
        test_write(test_format("%s/model.safetensors", copy), bytes, n);
        test_write_text(test_format("%s/config.json", copy), "{}");
        opened o = maker_open(folder, 1);
        us_checkpoint *ref = NULL;
        us_err err = {0};
        assert_us_ok(us_checkpoint_open(o.ctx, copy, 0, &ref, &err), &err);
        for (size_t b = 0; b < o.s->n_blocks; b++) {
            uint32_t E = o.s->blocks[b].n_experts;
            us_deq_expert *x = us_calloc(E, sizeof *x);
            const char *why = NULL;
            assert_non_null(x);
            assert_us_ok(us_deq_find(o.s, b, x, &why, &err), &err);
            for (uint32_t e = 0; e < E; e++) {
                const us_deq *d[3] = {&x[e].gate, &x[e].up, &x[e].down};
                for (int i = 0; i < 3; i++) {
                    bool stacked = d[i]->slabs > 1;
                    us_str name = us_str_sub(d[i]->w->name, 0, d[i]->w->name.n - 7); /* "_packed", "_blocks" */
                    const us_ck_tensor *t = us_ck_find(ref, us_str_z(test_format("dequantised.%.*s", US_STR_ARG(name))));
                    if (!t) continue;
                    float *want = us_malloc((size_t)t->bytes), *row = us_malloc(d[i]->in * sizeof *row);
                    us_deq_rows_buf buf = {0};
                    assert_true(want && row);
                    assert_us_ok(us_ck_read(ref, t, 0, want, (size_t)t->bytes, &err), &err);
                    assert_us_ok(us_deq_load(o.ck, d[i], &buf, &err), &err);
                    for (size_t r = 0; r < d[i]->out; r++) {
                        us_deq_rows(&buf, r, 1, 0, d[i]->in, row, d[i]->in);
                        size_t at = d[i]->first + r * d[i]->step;
                        for (size_t k = 0; k < d[i]->in; k++) { /* the reference stores stacked ones as [E, in, out] */
                            assert_true(row[k] == (stacked ? want[(e * d[i]->in + k) * d[i]->width + at] : want[r * d[i]->in + k]));
                        }
                        compared++;
                    }
                    us_deq_rows_free(&buf);
                    us_free(want);
                    us_free(row);
                }
            }
            us_free(x);
        }
        us_checkpoint_free(ref);
        maker_close(&o);
    }
    print_message("%zu rows equal to dequantised.NAME\n", compared);
    assert_true(compared > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_checkpoint_is_read_by_its_formula),
        cmocka_unit_test(every_model_fixture_is_read),
        cmocka_unit_test(equal_to_the_reference_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
