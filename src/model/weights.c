/* Weights as doubles: plain types, FP8 with block scales, INT4 of compressed-tensors, MXFP4 blocks. */
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "x.weight" -> "x.weight<suffix>", or for stacked names "x" -> "x<suffix>". */
static const us_ck_tensor *companion(const us_checkpoint *ck, const char *name, const char *suffix) {
    char full[320];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    return us_ck_find(ck, us_str_z(full));
}

static uint64_t elements_of(const us_ck_tensor *t) {
    uint64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

const us_ck_tensor *us_weight_find(const us_checkpoint *ck, const char *name) {
    const us_ck_tensor *t = us_ck_find(ck, us_str_z(name));
    return t ? t : companion(ck, name, "_packed");
}

size_t us_weight_elements(const us_checkpoint *ck, const char *name) {
    const us_ck_tensor *t = us_ck_find(ck, us_str_z(name));
    if (t) return (size_t)elements_of(t);
    t = companion(ck, name, "_packed");
    return t && t->rank == 2 && t->dtype == US_DTYPE_I32 ? (size_t)elements_of(t) * 8 : 0;
}

/* n elements from element `from`, as doubles. */
static us_status read_plain(const us_checkpoint *ck, const us_ck_tensor *t, uint64_t from, size_t n, double *out, us_err *err) {
    enum { CHUNK = 4096 };
    char raw[CHUNK * 8];
    float f[CHUNK];
    size_t size = us_dtype_bits(t->dtype) / 8;
    for (size_t i = 0; i < n;) {
        size_t k = n - i < CHUNK ? n - i : CHUNK;
        US_TRY(us_ck_read(ck, t, (from + i) * size, raw, k * size, err));
        if (t->dtype == US_DTYPE_F64) {
            memcpy(out + i, raw, k * size);
        } else if (t->dtype == US_DTYPE_I64) { /* token tables: exact beyond f32 */
            for (size_t j = 0; j < k; j++) {
                int64_t v;
                memcpy(&v, raw + j * 8, 8);
                out[i + j] = (double)v;
            }
        } else {
            if (!us_to_f32(t->dtype, raw, k, f)) {
                us_fail(err, US_E_UNSUPPORTED, "dtype", "the type %s cannot be read as numbers", us_dtype_name(t->dtype));
                return us_err_where(err, "%.*s", US_STR_ARG(t->name));
            }
            for (size_t j = 0; j < k; j++) out[i + j] = (double)f[j];
        }
        i += k;
    }
    return US_OK;
}

static us_status all_plain(const us_checkpoint *ck, const us_ck_tensor *t, us_arena *arena, double **out, us_err *err) {
    size_t n = (size_t)elements_of(t);
    *out = us_arena_calloc(arena, n ? n : 1, sizeof **out);
    return *out ? read_plain(ck, t, 0, n, *out, err) : us_fail_nomem(err, "reading a weight");
}

/* FP8 with one scale a block: the block size is the ratio of the shapes, rounded up to what divides the scale grid. */
static us_status apply_block_scale(const us_checkpoint *ck, const us_ck_tensor *t, const us_ck_tensor *scale, us_arena *arena, double *x, us_err *err) {
    double *s;
    US_TRY(all_plain(ck, scale, arena, &s, err));
    if (t->rank != 2 || scale->rank != 2 || scale->shape[0] == 0 || scale->shape[1] == 0)
        return us_fail(err, US_E_FORMAT, "shape", "the scale of \"%.*s\" does not fit", US_STR_ARG(t->name));
    us_json_ref block = us_json_path(&ck->config, 0, "quantization_config.weight_block_size");
    uint64_t br = 128, bc = 128;
    us_json_u64(&ck->config, us_json_at(&ck->config, block, 0), &br);
    us_json_u64(&ck->config, us_json_at(&ck->config, block, 1), &bc);
    if (br == 0 || bc == 0 || (t->shape[0] + br - 1) / br != scale->shape[0] || (t->shape[1] + bc - 1) / bc != scale->shape[1])
        return us_fail(err, US_E_FORMAT, "shape", "the scale of \"%.*s\" does not fit its blocks", US_STR_ARG(t->name));
    for (uint64_t r = 0; r < t->shape[0]; r++)
        for (uint64_t c = 0; c < t->shape[1]; c++) x[r * t->shape[1] + c] *= s[r / br * scale->shape[1] + c / bc];
    return US_OK;
}

/* compressed-tensors pack-quantized, 4 bits: eight values an I32, low nibble first, stored + 8; one scale a group of columns. */
static us_status read_int4(const us_checkpoint *ck, const char *name, const us_ck_tensor *packed, us_arena *arena, double **out, us_err *err) {
    const us_ck_tensor *scale = companion(ck, name, "_scale");
    if (!scale || packed->rank != 2 || packed->dtype != US_DTYPE_I32 || scale->rank != 2 || scale->shape[0] != packed->shape[0] || scale->shape[1] == 0 ||
        packed->shape[1] * 8 % scale->shape[1])
        return us_fail(err, US_E_UNSUPPORTED, "layout", "the packed form of \"%s\" is not known", name);
    size_t rows = (size_t)packed->shape[0], words = (size_t)packed->shape[1], groups = (size_t)scale->shape[1], size = words * 8 / groups;
    double *s;
    US_TRY(all_plain(ck, scale, arena, &s, err));
    *out = us_arena_calloc(arena, rows * words * 8, sizeof **out);
    uint32_t *w = us_arena_alloc(arena, words * 4);
    if (!*out || !w) return us_fail_nomem(err, "reading a weight");
    for (size_t r = 0; r < rows; r++) {
        US_TRY(us_ck_read(ck, packed, r * words * 4, w, words * 4, err));
        for (size_t c = 0; c < words * 8; c++) (*out)[r * words * 8 + c] = ((double)(w[c / 8] >> (c % 8 * 4) & 15) - 8) * s[r * groups + c / size];
    }
    return US_OK;
}

us_status us_weight_f64(const us_checkpoint *ck, const char *name, size_t elements, us_arena *arena, const double **out, us_err *err) {
    const us_ck_tensor *t = us_ck_find(ck, us_str_z(name));
    double *x = NULL;
    size_t have = us_weight_elements(ck, name);
    if (have != elements) {
        us_fail(err, US_E_FORMAT, "shape", "the tensor has %zu elements where the config wants %zu", have, elements);
        return us_err_where(err, "%s", name);
    }
    if (t) {
        US_TRY(all_plain(ck, t, arena, &x, err));
        const us_ck_tensor *scale = companion(ck, name, "_scale_inv");
        if (scale) US_TRY(apply_block_scale(ck, t, scale, arena, x, err));
    } else {
        const us_ck_tensor *packed = companion(ck, name, "_packed");
        if (!packed) return us_fail(err, US_E_FORMAT, "tensor-missing", "the tensor \"%s\" is not in the checkpoint", name);
        US_TRY(read_int4(ck, name, packed, arena, &x, err));
    }
    for (size_t i = 0; i < elements; i++)
        if (!isfinite(x[i])) {
            us_fail(err, US_E_NONFINITE, "nonfinite", "element %zu of a weight is not finite", i);
            return us_err_where(err, "%s", name);
        }
    *out = x;
    return US_OK;
}

us_status us_weight_prefix(const us_checkpoint *ck, char *out, size_t size, us_err *err) {
    static const char *const bases[] = {"model.", "model.language_model.", "language_model.model.", "backbone.", ""};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        char layers[64];
        snprintf(layers, sizeof layers, "%slayers.", bases[i]);
        for (size_t t = 0; t < ck->n_tensors; t++)
            if (us_str_starts(ck->tensors[t].name, us_str_z(layers))) {
                snprintf(out, size, "%s", bases[i]);
                return US_OK;
            }
    }
    return us_fail(err, US_E_FORMAT, "tensor-missing", "no tensor of a layer is in the checkpoint");
}

bool us_weight_is_packed_blocks(const us_ck_tensor *t) {
    return us_str_ends(t->name, US_LIT("_blocks"));
}

/* MXFP4: 32 values in 16 bytes, low nibble first, one exponent byte a block. */
static us_status read_mxfp4(const us_checkpoint *ck, const us_ck_tensor *t, size_t e, size_t E, us_arena *arena, double **out, size_t *n, us_err *err) {
    char name[320];
    snprintf(name, sizeof name, "%.*s_scales", US_STR_ARG(us_str_sub(t->name, 0, t->name.n - strlen("_blocks"))));
    const us_ck_tensor *scale = us_ck_find(ck, us_str_z(name));
    size_t bytes = (size_t)(t->bytes / E), blocks = bytes / 16;
    if (!scale || scale->bytes / E != blocks || bytes % 16) return us_fail(err, US_E_FORMAT, "shape", "the scales of \"%.*s\" do not fit", US_STR_ARG(t->name));
    uint8_t *b = us_arena_alloc(arena, bytes), *s = us_arena_alloc(arena, blocks);
    *n = bytes * 2;
    *out = us_arena_calloc(arena, *n, sizeof **out);
    if (!b || !s || !*out) return us_fail_nomem(err, "reading a weight");
    US_TRY(us_ck_read(ck, t, e * bytes, b, bytes, err));
    US_TRY(us_ck_read(ck, scale, e * blocks, s, blocks, err));
    for (size_t i = 0; i < *n; i++) {
        uint8_t code = b[i / 2] >> (i % 2 * 4) & 15;
        (*out)[i] = (double)us_f4_to_f32(code) * (double)us_f8e8m0_to_f32(s[i / 32]);
    }
    return US_OK;
}

us_status us_weight_expert_f64(const us_checkpoint *ck, const us_ck_tensor *t, size_t e, size_t E, us_arena *arena, const double **out, size_t *n,
                               us_err *err) {
    double *x;
    if (us_weight_is_packed_blocks(t)) {
        US_TRY(read_mxfp4(ck, t, e, E, arena, &x, n, err));
        *out = x;
        return US_OK;
    }
    *n = (size_t)(elements_of(t) / E);
    x = us_arena_calloc(arena, *n ? *n : 1, sizeof *x);
    if (!x) return us_fail_nomem(err, "reading a weight");
    US_TRY(read_plain(ck, t, e * *n, *n, x, err));
    *out = x;
    return US_OK;
}
