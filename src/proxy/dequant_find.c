/**
 * Which stored form an expert projection has, from the names, types and shapes of its tensors. See dequant.h. Tests: tests/unit/test_dequant.c.
 */
#include <string.h>

#include "proxy/dequant.h"

static const us_ck_tensor *beside(const us_checkpoint *ck, us_str base, const char *suffix) {
    char name[US_ST_NAME_MAX + 64];
    size_t n = strlen(suffix);
    if (n > sizeof name || base.n > sizeof name - n) return NULL; /* not as a sum, which could wrap */
    memcpy(name, base.p, base.n);
    memcpy(name + base.n, suffix, n);
    return us_ck_find(ck, (us_str){name, base.n + n});
}

static const us_ck_tensor *beside_any(const us_checkpoint *ck, us_str base, const char *const *suffixes) {
    for (; *suffixes; suffixes++) {
        const us_ck_tensor *t = beside(ck, base, *suffixes);
        if (t) return t;
    }
    return NULL;
}

static bool is_f8(us_dtype t) {
    return t == US_DTYPE_F8_E4M3 || t == US_DTYPE_F8_E5M2 || t == US_DTYPE_F8_E4M3FNUZ || t == US_DTYPE_F8_E5M2FNUZ;
}

static bool is_float(us_dtype t) {
    return t == US_DTYPE_F64 || t == US_DTYPE_F32 || t == US_DTYPE_BF16 || t == US_DTYPE_F16;
}

static bool is_byte(us_dtype t) {
    return t == US_DTYPE_U8 || t == US_DTYPE_I8;
}

/* A scale is a float, an FP8 number, or a bare exponent byte (U8). */
static bool is_scale(us_dtype t) {
    return is_float(t) || is_f8(t) || t == US_DTYPE_F8_E8M0 || t == US_DTYPE_U8;
}

static size_t ceil_div(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

static uint64_t elements(const us_ck_tensor *t) {
    return t->bytes * 8 / us_dtype_bits(t->dtype);
}

static us_json_ref quant_config(const us_structure *s) {
    us_json_ref q = us_json_get(&s->ck->config, s->text_config, "quantization_config");
    return q != US_JSON_NO ? q : us_json_get(&s->ck->config, 0, "quantization_config");
}

/* Block size along one axis: the configured one if it fits, else the smallest power of two that does, else an even split. */
static size_t block_size(const us_structure *s, uint32_t axis, size_t n, size_t scales) {
    const us_json_doc *c = &s->ck->config;
    uint64_t v = 0;
    us_json_u64(c, us_json_at(c, us_json_get(c, quant_config(s), "weight_block_size"), axis), &v);
    if (v && v <= SIZE_MAX && ceil_div(n, (size_t)v) == scales) return (size_t)v;
    if (scales == n) return 1;
    for (size_t b = 128; b && scales > 1 && b <= n; b *= 2) { /* the usual size first, then its neighbours */
        if (ceil_div(n, b) == scales) return b;
    }
    for (size_t b = 2; scales > 1 && b < 128; b *= 2) {
        if (ceil_div(n, b) == scales) return b;
    }
    return scales ? ceil_div(n, scales) : 0;
}

/* One expert's part of a scale: its shape without the stacking axis. */
static const char *scale_grid(const us_structure *s, us_deq *d) {
    const us_ck_tensor *t = d->scale;
    if (!is_scale(t->dtype)) return "its scales have an unknown type";
    const uint64_t *shape = t->shape;
    int rank = t->rank;
    if (d->slabs > 1) {
        if (rank < 1 || shape[0] != d->slabs) return "its scales do not fit";
        shape++, rank--;
    }
    while (rank > 2 && shape[rank - 1] == 1) rank--;
    size_t rows = rank > 0 ? (size_t)shape[0] : 1, cols = rank > 1 ? (size_t)shape[1] : 1;
    if (rank > 2 || !rows || !cols || rows > d->width || cols > d->in) return "its scales do not fit";
    d->grid_in = cols;
    d->block_out = rows == d->width ? 1 : rows == 1 ? d->width : block_size(s, 0, d->width, rows);
    d->block_in = cols == 1 ? d->in : block_size(s, 1, d->in, cols);
    if (ceil_div(d->width, d->block_out) != rows || ceil_div(d->in, d->block_in) != cols) return "its scales do not fit";
    return NULL;
}

/* weight as floats (with a scale grid when FP8), or as bytes of two FP4 codes. Shape: out x in of the stored expert. */
static const char *plain_form(const us_structure *s, us_deq *d, us_str base, size_t rows, size_t cols) {
    static const char *const scales[] = {".weight_scale_inv", ".weight_scale", ".scale", "_scale_inv", "_weight_scale", "_scale", NULL};
    d->scale = beside_any(s->ck, base, scales);
    if (is_float(d->w->dtype) || is_f8(d->w->dtype)) {
        d->form = US_DEQ_PLAIN;
        d->width = d->columns ? cols : rows;
        d->in = d->columns ? rows : cols;
        if (is_float(d->w->dtype)) d->scale = NULL;
        else if (!d->scale) return "FP8 weights without scales";
        else if (d->columns) return "FP8 weights stored in columns";
        return d->scale ? scale_grid(s, d) : NULL;
    }
    if ((!is_byte(d->w->dtype) && d->w->dtype != US_DTYPE_F4) || !d->scale || d->columns) return "its stored type is not known";
    d->form = US_DEQ_FP4;
    d->width = rows;
    d->in = d->w->dtype == US_DTYPE_F4 ? cols : cols * 2;
    static const char *const globals[] = {".weight_scale_2", ".weight_global_scale", NULL};
    d->global = beside_any(s->ck, base, globals);
    d->global_divides = d->global && us_str_ends(d->global->name, US_LIT("global_scale"));
    if (d->global && (elements(d->global) != 1 || !is_float(d->global->dtype))) return "its global scale does not fit";
    return scale_grid(s, d);
}

static const char *packed_form(const us_structure *s, us_deq *d, us_str base) {
    if (d->w->rank != 2) return "its packed weights are no matrix";
    if (is_byte(d->w->dtype)) return plain_form(s, d, base, (size_t)d->w->shape[0], (size_t)d->w->shape[1]);
    d->scale = beside(s->ck, base, ".weight_scale");
    d->zero = beside(s->ck, base, ".weight_zero_point");
    d->g_idx = beside(s->ck, base, ".weight_g_idx");
    const us_ck_tensor *shape = beside(s->ck, base, ".weight_shape");
    if (d->w->dtype != US_DTYPE_I32 || !d->scale) return "its packed form is not known";
    if (d->zero || d->g_idx) return "packed weights with zero points or reordered groups";
    d->form = US_DEQ_INT;
    d->width = (size_t)d->w->shape[0];
    size_t words = (size_t)d->w->shape[1];
    int64_t dims[2] = {0};
    us_err ignored;
    bool read = shape && shape->bytes == sizeof dims && shape->dtype == US_DTYPE_I64 && us_ck_read(s->ck, shape, 0, dims, sizeof dims, &ignored) == US_OK;
    d->bits = 4;
    d->in = words * 8;
    if (read) {
        if (dims[0] != (int64_t)d->width || dims[1] < 1 || (uint64_t)dims[1] > words * 8) return "its weight_shape does not fit";
        d->in = (size_t)dims[1];
        if (ceil_div(d->in, 8) != words) d->bits = 8;
        if (ceil_div(d->in, 32 / d->bits) != words) return "packed weights of this width";
    }
    return scale_grid(s, d);
}

static const char *word_form(const us_structure *s, us_deq *d, us_str base) {
    const us_json_doc *c = &s->ck->config;
    d->scale = beside(s->ck, base, ".scales");
    d->zero = beside(s->ck, base, ".qzeros");
    d->g_idx = beside(s->ck, base, ".g_idx");
    if (d->w->dtype != US_DTYPE_I32 || d->w->rank != 2 || !d->scale || d->scale->rank != 2 || !is_float(d->scale->dtype) || !d->zero ||
        d->zero->dtype != US_DTYPE_I32 || d->zero->rank != 2)
        return "its packed form is not known";
    uint64_t bits = 4;
    us_json_u64(c, us_json_get(c, quant_config(s), "bits"), &bits);
    if (bits != 4 && bits != 8 && bits != 2) return "packed weights of this width";
    d->bits = (unsigned)bits;
    size_t per = 32 / d->bits, groups = (size_t)d->scale->shape[0];
    d->out = d->width = (size_t)d->scale->shape[1];
    if (d->w->shape[1] == d->width) {
        d->form = US_DEQ_GPTQ;
        d->in = (size_t)d->w->shape[0] * per;
        d->zero_plus_one = !us_str_eqz(us_json_string(c, us_json_get(c, quant_config(s), "checkpoint_format")), "gptq_v2");
        if (d->g_idx && (d->g_idx->dtype != US_DTYPE_I32 || elements(d->g_idx) != d->in)) return "its group index does not fit";
    } else if (d->w->shape[1] * per == d->width && d->bits == 4) {
        d->form = US_DEQ_AWQ;
        d->in = (size_t)d->w->shape[0];
        d->g_idx = NULL;
    } else {
        return "its packed form is not known";
    }
    if (!groups || d->zero->shape[0] != groups || d->zero->shape[1] != ceil_div(d->width, per) || !d->in) return "its scales do not fit";
    d->block_in = ceil_div(d->in, groups);
    if (ceil_div(d->in, d->block_in) != groups && !d->g_idx) return "its scales do not fit";
    d->grid_in = groups;
    return NULL;
}

/* One projection of an expert with tensors of its own. */
static const char *own(const us_structure *s, us_deq *d, const us_ck_tensor *t, us_str kind) {
    us_str base = us_str_sub(t->name, 0, t->name.n - kind.n - 1);
    const char *why;
    *d = (us_deq){.w = t, .slabs = 1, .step = 1};
    if (us_str_eqz(kind, "weight")) {
        if (t->rank != 2) return "its weights are no matrix";
        why = plain_form(s, d, base, (size_t)t->shape[0], (size_t)t->shape[1]);
    } else {
        why = us_str_eqz(kind, "qweight") ? word_form(s, d, base) : packed_form(s, d, base);
    }
    d->out = d->width;
    d->bias = beside(s->ck, base, ".bias");
    if (d->bias && elements(d->bias) != d->out) return "its bias does not fit";
    return why;
}

/* A stacked tensor as seen by expert 0; gate and up of a fused one share it. */
static const char *stacked(const us_structure *s, us_deq *d, const us_ck_tensor *t, us_projection proj) {
    bool blocks = us_str_ends(t->name, US_LIT("_blocks"));
    us_str base = us_str_sub(t->name, 0, t->name.n - (blocks ? 7 : 0));
    *d = (us_deq){.w = t, .slabs = (size_t)t->shape[0], .step = 1};
    if (blocks) {
        d->scale = beside(s->ck, base, "_scales");
        if (!d->scale || t->rank != 4 || t->shape[3] != 16 || !is_byte(t->dtype) || d->scale->rank != 3 || !is_scale(d->scale->dtype) ||
            d->scale->shape[0] != t->shape[0] || d->scale->shape[1] != t->shape[1] || d->scale->shape[2] != t->shape[2] || !t->shape[2])
            return "its blocks and scales do not fit";
        d->form = US_DEQ_FP4;
        d->width = (size_t)t->shape[1];
        d->grid_in = (size_t)t->shape[2];
        d->in = d->grid_in * 32;
        d->block_out = 1;
        d->block_in = 32;
    } else {
        if (t->rank != 3) return "its stacked tensor is not of rank 3";
        d->columns = proj == US_PROJ_GATE_UP_COLS || proj == US_PROJ_GATE_UP_INTERLEAVED || proj == US_PROJ_DOWN_IN_OUT;
        if (us_str_ends(base, US_LIT(".weight"))) base.n -= 7;
        const char *why = plain_form(s, d, base, (size_t)t->shape[1], (size_t)t->shape[2]);
        if (why) return why;
    }
    d->out = d->width;
    d->bias = beside(s->ck, base, "_bias");
    if (!d->bias) d->bias = beside(s->ck, base, ".bias");
    if (d->bias && elements(d->bias) != d->slabs * d->width) return "its bias does not fit";
    return NULL;
}

static const char *stacked_pair(us_deq_expert *x, const us_deq *d, us_projection proj) {
    switch (proj) {
    case US_PROJ_GATE: x->gate = *d; return NULL;
    case US_PROJ_UP: x->up = *d; return NULL;
    case US_PROJ_DOWN:
    case US_PROJ_DOWN_IN_OUT: x->down = *d; return NULL;
    case US_PROJ_GATE_UP_ROWS:
    case US_PROJ_GATE_UP_COLS:
    case US_PROJ_GATE_UP_INTERLEAVED: break;
    default: return NULL;
    }
    if (d->width % 2) return "its fused rows are odd in number";
    bool interleaved = proj == US_PROJ_GATE_UP_INTERLEAVED;
    x->gate = x->up = *d;
    x->gate.out = x->up.out = d->width / 2;
    x->gate.step = x->up.step = interleaved ? 2 : 1;
    x->up.first = interleaved ? 1 : d->width / 2;
    return NULL;
}

static const char *from_stacked(const us_structure *s, const us_ck_tensor *t, us_projection proj, us_deq_expert *out, uint32_t n) {
    us_deq d;
    us_deq_expert x = {0};
    const char *why = stacked(s, &d, t, proj);
    if (!why && d.slabs != n) why = "its stacked tensor has another number of experts";
    if (!why) why = stacked_pair(&x, &d, proj);
    for (uint32_t e = 0; !why && e < n; e++) {
        us_deq *to[3] = {&out[e].gate, &out[e].up, &out[e].down};
        const us_deq *from[3] = {&x.gate, &x.up, &x.down};
        for (int i = 0; i < 3; i++) {
            if (!from[i]->w) continue;
            *to[i] = *from[i];
            to[i]->slab = e;
        }
    }
    return why;
}

static const char *consistent(const us_deq_expert *x, uint32_t n) {
    for (uint32_t e = 0; e < n; e++) {
        const us_deq *g = &x[e].gate, *u = &x[e].up, *d = &x[e].down;
        if (!u->w || !d->w || (!g->w != !x[0].gate.w)) return "a projection is missing";
        if (u->in != x[0].up.in || d->out != x[0].down.out || !u->in || !u->out || !d->out) return "experts differ in shape";
        if (u->out != d->in || (g->w && (g->out != u->out || g->in != u->in))) return "its projections do not fit together";
    }
    return NULL;
}

us_status us_deq_find(const us_structure *s, size_t block, us_deq_expert *out, const char **why, us_err *err) {
    (void)err;
    uint32_t n = s->blocks[block].n_experts;
    memset(out, 0, n * sizeof *out);
    *why = NULL;
    for (size_t i = 0; i < s->ck->n_tensors && !*why; i++) {
        const us_role *r = &s->roles[i];
        const us_ck_tensor *t = &s->ck->tensors[i];
        if (r->block != block || !r->desc) continue;
        if (r->kind == US_ROLE_SLICE && !r->companion) {
            if (us_str_ends(t->name, US_LIT("_scales")) || us_str_ends(t->name, US_LIT("_scale")) || us_str_ends(t->name, US_LIT("_bias"))) continue;
            *why = from_stacked(s, t, r->desc->proj, out, n);
        } else if (r->kind == US_ROLE_EXPERT && r->expert < n) {
            us_str kind = us_str_sub(r->rest, strlen(r->desc->suffix) + 1, r->rest.n);
            if (!us_str_eqz(kind, "weight") && !us_str_eqz(kind, "weight_packed") && !us_str_eqz(kind, "qweight")) continue;
            us_deq_expert *x = &out[r->expert];
            us_projection p = r->desc->proj;
            us_deq *d = p == US_PROJ_GATE ? &x->gate : p == US_PROJ_UP ? &x->up : p == US_PROJ_DOWN ? &x->down : NULL;
            *why = d ? own(s, d, t, kind) : "a projection with an unknown layout";
        }
    }
    if (!*why) *why = consistent(out, n);
    return US_OK;
}
