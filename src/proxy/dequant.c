/**
 * Loading stored projections and widening tiles of them. See dequant.h. Tests: tests/unit/test_dequant.c, tests/prop/test_fix_dequant.c.
 */
#include "proxy/dequant.h"

#include <string.h>

#include "kernels/widen.h"

static bool room(void **p, size_t *cap, size_t n) {
    if (n <= *cap) return true;
    us_free(*p);
    *cap = 0;
    *p = us_malloc_aligned(n);
    if (*p) *cap = n;
    return *p != NULL;
}

void us_deq_rows_free(us_deq_rows_buf *b) {
    if (!b) return;
    us_free(b->raw);
    us_free(b->aux);
    us_free(b->scales);
    *b = (us_deq_rows_buf){0};
}

uint64_t us_deq_bytes(const us_deq *d) {
    if (d->form == US_DEQ_NONE) return 0;
    uint64_t n = d->w->bytes / d->slabs + (d->scale ? d->scale->bytes / d->slabs : 0) + (d->zero ? d->zero->bytes : 0);
    return n * d->out / d->width; /* a fused tensor counts once for gate and up together */
}

/* Numbers of a small tensor (scales) as f32; U8 means E8M0. part/parts: this expert's share. */
static us_status read_scales(const us_checkpoint *ck, const us_ck_tensor *t, size_t part, size_t parts, us_deq_rows_buf *b, size_t *count, us_err *err) {
    size_t bytes = (size_t)(t->bytes / parts), size = us_dtype_bits(t->dtype) / 8, n = bytes / size, f_bytes;
    if (!us_mul_size(n + 1, sizeof(float), &f_bytes) || !room(&b->scales, &b->scales_cap, f_bytes) || !room(&b->aux, &b->aux_cap, bytes + 1))
        return us_fail_nomem(err, "reading scales");
    US_TRY(us_ck_read(ck, t, (uint64_t)part * bytes, b->aux, bytes, err));
    us_dtype as = t->dtype == US_DTYPE_U8 ? US_DTYPE_F8_E8M0 : t->dtype;
    if (!us_to_f32(as, b->aux, n, b->scales)) return us_fail(err, US_E_UNSUPPORTED, "dtype", "scales of type %s", us_dtype_name(t->dtype));
    *count = n;
    return US_OK;
}

static us_status read_raw(const us_checkpoint *ck, const us_ck_tensor *t, uint64_t from, size_t n, us_deq_rows_buf *b, us_err *err) {
    if (!room(&b->raw, &b->raw_cap, n + 64)) return us_fail_nomem(err, "reading an expert");
    return us_ck_read(ck, t, from, b->raw, n, err);
}

/* ---- forms that are turned into rows at load ---- */

/* 16-bit [in, width] -> [out, in], in square blocks that stay in L1. */
static void turn16(const uint16_t *src, size_t width, size_t first, size_t step, size_t out, size_t in, uint16_t *dst) {
    enum { B = 32 };
    for (size_t r = 0; r < out; r += B) {
        for (size_t k = 0; k < in; k += B) {
            size_t r1 = out - r < B ? out : r + B, k1 = in - k < B ? in : k + B;
            for (size_t i = r; i < r1; i++) {
                for (size_t j = k; j < k1; j++) dst[i * in + j] = src[j * width + first + i * step];
            }
        }
    }
}

static us_status turn_columns(const us_deq *d, us_deq_rows_buf *b, us_err *err) {
    size_t size = us_dtype_bits(d->w->dtype) / 8, n;
    if (!us_mul_size(d->out * d->in, size == 2 ? 2 : 4, &n) || !room(&b->aux, &b->aux_cap, n + 64)) return us_fail_nomem(err, "turning a stacked expert");
    if (size == 2) {
        turn16(b->raw, d->width, d->first, d->step, d->out, d->in, b->aux);
        b->pitch = d->in * 2;
    } else {
        float *dst = b->aux;
        const unsigned char *src = b->raw;
        for (size_t r = 0; r < d->out; r++) {
            for (size_t k = 0; k < d->in; k++) us_to_f32(d->w->dtype, src + (k * d->width + d->first + r * d->step) * size, 1, &dst[r * d->in + k]);
        }
        b->kind = US_ROWS_F32;
        b->pitch = d->in * 4;
    }
    b->data = b->aux;
    return US_OK;
}

static us_status load_plain(const us_checkpoint *ck, const us_deq *d, us_deq_rows_buf *b, us_err *err) {
    us_dtype t = d->w->dtype;
    size_t size = us_dtype_bits(t) / 8, slab = (size_t)(d->w->bytes / d->slabs);
    b->kind = t == US_DTYPE_BF16 ? US_ROWS_BF16 : t == US_DTYPE_F16 ? US_ROWS_F16 : size == 1 ? US_ROWS_CODE8 : US_ROWS_F32;
    b->pitch = d->in * size * d->step;
    /* Of row-major halves only the half that is wanted is read. */
    bool part = !d->columns && d->step == 1;
    uint64_t from = (uint64_t)d->slab * slab + (part ? (uint64_t)d->first * d->in * size : 0);
    US_TRY(read_raw(ck, d->w, from, part ? d->out * d->in * size : slab, b, err));
    b->data = (unsigned char *)b->raw + (part ? 0 : d->first * d->in * size);
    if (d->columns) return turn_columns(d, b, err);
    if (t == US_DTYPE_F64) {
        if (!room(&b->aux, &b->aux_cap, d->out * d->in * 4 + 64)) return us_fail_nomem(err, "reading an expert");
        for (size_t r = 0; r < d->out; r++) us_to_f32(t, b->data + r * b->pitch, d->in, (float *)b->aux + r * d->in);
        b->data = b->aux;
        b->pitch = d->in * 4;
    }
    for (int i = 0; size == 1 && i < 256; i++) us_to_f32(t, &(uint8_t){(uint8_t)i}, 1, &b->table[i]);
    return US_OK;
}

static us_status load_fp4(const us_checkpoint *ck, const us_deq *d, us_deq_rows_buf *b, us_err *err) {
    size_t slab = (size_t)(d->w->bytes / d->slabs);
    b->kind = US_ROWS_CODE4;
    b->pitch = d->in / 2 * d->step;
    US_TRY(read_raw(ck, d->w, (uint64_t)d->slab * slab, slab, b, err));
    b->data = (unsigned char *)b->raw + d->first * (d->in / 2);
    for (uint8_t i = 0; i < 16; i++) b->table[i] = us_f4_to_f32(i);
    if (d->global) {
        unsigned char raw[8];
        US_TRY(us_ck_read(ck, d->global, 0, raw, (size_t)d->global->bytes, err));
        us_to_f32(d->global->dtype, raw, 1, &b->global);
        if (d->global_divides) b->global = 1.0f / b->global;
        b->has_global = true;
    }
    return US_OK;
}

/* Symmetric words are codes with an offset: 4 bits as nibbles of the same bytes (little-endian words put them in order), 8 bits as bytes. */
static us_status load_int(const us_checkpoint *ck, const us_deq *d, us_deq_rows_buf *b, us_err *err) {
    size_t words = (size_t)d->w->shape[1];
    b->kind = d->bits == 4 ? US_ROWS_CODE4 : US_ROWS_CODE8;
    b->pitch = words * 4;
    US_TRY(read_raw(ck, d->w, 0, (size_t)d->w->bytes, b, err));
    b->data = b->raw;
    for (int i = 0; i < 1 << d->bits; i++) b->table[i] = (float)(i - (1 << (d->bits - 1)));
    return US_OK;
}

static uint32_t word_at(const void *p, size_t i) {
    uint32_t w;
    memcpy(&w, (const unsigned char *)p + i * 4, 4);
    return w;
}

/* GPTQ and AWQ: to f32 rows. Layout of aux: rows, then zeros and group numbers. */
static us_status load_words(const us_checkpoint *ck, const us_deq *d, us_deq_rows_buf *b, us_err *err) {
    size_t count, per = 32 / d->bits, out = d->out, in = d->in, n, zero_words = (size_t)d->zero->shape[1];
    uint32_t mask = d->bits == 8 ? 255 : (1u << d->bits) - 1;
    US_TRY(read_scales(ck, d->scale, 0, 1, b, &count, err));
    size_t zeros_at = out * in * 4, index_at = zeros_at + (size_t)d->zero->bytes;
    if (!us_mul_size(out * in, 4, &n) || !room(&b->aux, &b->aux_cap, index_at + in * 4 + 64)) return us_fail_nomem(err, "reading an expert");
    US_TRY(read_raw(ck, d->w, 0, (size_t)d->w->bytes, b, err));
    unsigned char *zeros = (unsigned char *)b->aux + zeros_at, *index = (unsigned char *)b->aux + index_at;
    US_TRY(us_ck_read(ck, d->zero, 0, zeros, (size_t)d->zero->bytes, err));
    if (d->g_idx) US_TRY(us_ck_read(ck, d->g_idx, 0, index, in * 4, err));
    static const unsigned awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    float *dst = b->aux;
    const float *scale = b->scales;
    for (size_t k = 0; k < in; k++) {
        size_t g = d->g_idx ? word_at(index, k) : k / d->block_in;
        if (g >= d->grid_in) return us_fail(err, US_E_FORMAT, "shape", "a group index of \"%.*s\" is out of range", US_STR_ARG(d->w->name));
        for (size_t r = 0; r < out; r++) {
            uint32_t q, z;
            if (d->form == US_DEQ_GPTQ) {
                q = word_at(b->raw, k / per * out + r) >> (k % per * d->bits) & mask;
                z = (word_at(zeros, g * zero_words + r / per) >> (r % per * d->bits) & mask) + d->zero_plus_one;
            } else {
                unsigned shift = awq_place[r % 8] * 4;
                q = word_at(b->raw, k * (out / 8) + r / 8) >> shift & 15;
                z = word_at(zeros, g * zero_words + r / 8) >> shift & 15;
            }
            dst[r * in + k] = ((float)q - (float)z) * scale[g * out + r];
        }
    }
    b->kind = US_ROWS_F32;
    b->pitch = in * 4;
    b->data = b->aux;
    b->scale = NULL;
    return US_OK;
}

us_status us_deq_load(const us_checkpoint *ck, const us_deq *d, us_deq_rows_buf *b, us_err *err) {
    b->out = d->out;
    b->in = d->in;
    b->has_global = false;
    b->scale = NULL;
    if (d->form == US_DEQ_GPTQ || d->form == US_DEQ_AWQ) return load_words(ck, d, b, err);
    if (d->scale) {
        size_t n;
        US_TRY(read_scales(ck, d->scale, d->slab, d->slabs, b, &n, err));
        b->scale = b->scales;
        b->block_out = d->block_out;
        b->block_in = d->block_in;
        b->grid_in = d->grid_in;
        if (d->first || d->step != 1) { /* keep this half's rows of the grid: scale rows follow stored rows */
            float *s = b->scales;
            if (d->block_out == 1) {
                for (size_t r = 0; r < d->out; r++) memmove(s + r * d->grid_in, s + (d->first + r * d->step) * d->grid_in, d->grid_in * sizeof *s);
            } else if (d->block_out < d->width) {
                if (d->step != 1 || d->first % d->block_out) return us_fail(err, US_E_UNSUPPORTED, "layout", "a scale covers gate and up of \"%.*s\"", US_STR_ARG(d->w->name));
                b->scale = s + d->first / d->block_out * d->grid_in;
            }
        }
    }
    us_status st = d->form == US_DEQ_PLAIN ? load_plain(ck, d, b, err)
                   : d->form == US_DEQ_FP4 ? load_fp4(ck, d, b, err)
                   : d->form == US_DEQ_INT ? load_int(ck, d, b, err)
                                           : us_fail(err, US_E_INVAL, NULL, "no projection to load");
    if (st != US_OK && d->w) us_err_where(err, "%.*s", US_STR_ARG(d->w->name));
    return st;
}

/* ---- tiles ---- */

static void widen_row(const us_deq_rows_buf *b, size_t r, size_t k0, size_t nk, float *dst) {
    const unsigned char *row = b->data + r * b->pitch;
    switch (b->kind) {
    case US_ROWS_F32: memcpy(dst, row + k0 * 4, nk * 4); break;
    case US_ROWS_BF16: us_widen_bf16(row + k0 * 2, nk, dst); break;
    case US_ROWS_F16: us_widen_f16(row + k0 * 2, nk, dst); break;
    case US_ROWS_CODE8:
        for (size_t k = 0; k < nk; k++) dst[k] = b->table[row[k0 + k]];
        break;
    default:
        for (size_t k = 0; k < nk; k++) dst[k] = b->table[row[(k0 + k) / 2] >> ((k0 + k) % 2 * 4) & 15];
    }
}

static void scale_row(const us_deq_rows_buf *b, size_t r, size_t k0, size_t nk, float *dst) {
    const float *s = b->scale + r / b->block_out * b->grid_in;
    for (size_t k = 0; k < nk;) {
        size_t g = (k0 + k) / b->block_in, end = (g + 1) * b->block_in - k0, to = end < nk ? end : nk;
        float v = s[g];
        for (; k < to; k++) dst[k] *= v;
    }
    if (!b->has_global) return;
    for (size_t k = 0; k < nk; k++) dst[k] *= b->global;
}

void us_deq_rows(const us_deq_rows_buf *b, size_t r0, size_t nr, size_t k0, size_t nk, float *dst, size_t ld) {
    for (size_t r = 0; r < nr; r++) {
        widen_row(b, r0 + r, k0, nk, dst + r * ld);
        if (b->scale) scale_row(b, r0 + r, k0, nk, dst + r * ld);
    }
}

us_status us_deq_bias(const us_checkpoint *ck, const us_deq *d, float *dst, us_err *err) {
    memset(dst, 0, d->out * sizeof *dst);
    if (!d->bias) return US_OK;
    size_t size = us_dtype_bits(d->bias->dtype) / 8;
    unsigned char *raw = us_malloc(d->width * size + 1);
    if (!raw) return us_fail_nomem(err, "reading a bias");
    us_status st = us_ck_read(ck, d->bias, (uint64_t)d->slab * d->width * size, raw, d->width * size, err);
    for (size_t r = 0; r < d->out && st == US_OK; r++) {
        if (!us_to_f32(d->bias->dtype, raw + (d->first + r * d->step) * size, 1, &dst[r])) st = us_fail(err, US_E_UNSUPPORTED, "dtype", "biases of type %s", us_dtype_name(d->bias->dtype));
    }
    us_free(raw);
    return st;
}
