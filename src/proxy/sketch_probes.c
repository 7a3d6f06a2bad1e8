/**
 * Router rows, directions, probes and distances: what sketches are made from and compared by. See sketch.h. Tests: tests/unit/test_select.c.
 */
#include <math.h>
#include <string.h>

#include "model/config.h"
#include "proxy/sketch_internal.h"

us_status us_sketch_router_rows(const us_structure *s, size_t block, float **rows, size_t *width, us_err *err) {
    const us_moe_block *b = &s->blocks[block];
    *rows = NULL;
    *width = 0;
    if (b->router == UINT32_MAX) return US_OK;
    const us_ck_tensor *t = &s->ck->tensors[b->router];
    const us_role *role = &s->roles[b->router];
    bool turned = role->kind == US_ROLE_SLICE && role->axis == 1;
    size_t total = (size_t)(t->bytes * 8 / us_dtype_bits(t->dtype)), n = b->n_experts;
    float probe;
    char zero[8] = {0};
    if (t->rank != 2 || !us_to_f32(t->dtype, zero, 1, &probe)) return US_OK;
    size_t stored = (size_t)t->shape[turned ? 1 : 0], w = (size_t)t->shape[turned ? 0 : 1];
    if (stored < n || !w || total != stored * w) return US_OK;
    void *raw = us_malloc((size_t)t->bytes);
    float *all = us_malloc(total * sizeof *all + 64);
    us_status st = raw && all ? us_ck_read(s->ck, t, 0, raw, (size_t)t->bytes, err) : us_fail_nomem(err, "reading a router");
    if (st == US_OK) us_to_f32(t->dtype, raw, total, all);
    us_free(raw);
    if (st == US_OK && turned) {
        float *rowwise = us_malloc(n * w * sizeof *rowwise);
        if (!rowwise) st = us_fail_nomem(err, "reading a router");
        for (size_t e = 0; e < n && rowwise; e++) {
            for (size_t k = 0; k < w; k++) rowwise[e * w + k] = all[k * stored + e];
        }
        us_free(all);
        all = rowwise;
    }
    if (st != US_OK) {
        us_free(all);
        return st;
    }
    *rows = all;
    *width = w;
    return US_OK;
}

static bool before(const float *rows, size_t width, const uint64_t *keys, uint32_t a, uint32_t b) {
    if (keys[a] != keys[b]) return keys[a] < keys[b];
    int c = memcmp(rows + a * width, rows + b * width, width * sizeof *rows);
    return c ? c < 0 : a < b;
}

void us_sketch_order(const float *rows, size_t n, size_t width, uint64_t seed, uint64_t *keys, uint32_t *order) {
    for (uint32_t e = 0; e < n; e++) {
        keys[e] = us_str_hash((us_str){(const char *)(rows + e * width), width * sizeof *rows}, seed);
        order[e] = e;
    }
    for (size_t gap = n / 2; gap; gap /= 2) { /* a total order, so any sort gives the same */
        for (size_t i = gap; i < n; i++) {
            uint32_t v = order[i];
            size_t j = i;
            for (; j >= gap && before(rows, width, keys, v, order[j - gap]); j -= gap) order[j] = order[j - gap];
            order[j] = v;
        }
    }
}

us_status us_sketch_directions(const float *rows, size_t n, size_t width, float **out, us_err *err) {
    uint64_t *keys = us_malloc(n * sizeof *keys + 1);
    uint32_t *order = us_malloc(n * sizeof *order + 1);
    float *u = us_malloc(n * width * sizeof *u + 1);
    if (!keys || !order || !u) {
        us_free(keys);
        us_free(order);
        us_free(u);
        return us_fail_nomem(err, "router directions");
    }
    us_sketch_order(rows, n, width, 0, keys, order);
    for (size_t k = 0; k < width; k++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += (double)rows[order[i] * width + k];
        double mean = sum / (double)n;
        for (size_t e = 0; e < n; e++) u[e * width + k] = (float)((double)rows[e * width + k] - mean);
    }
    us_free(keys);
    us_free(order);
    *out = u;
    return US_OK;
}

typedef struct cosine_job {
    const float *x;
    size_t n, dims;
    double *d;
} cosine_job;

static double dot(const float *a, const float *b, size_t n) {
    double s[4] = {0};
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (size_t j = 0; j < 4; j++) s[j] += (double)a[i + j] * (double)b[i + j];
    }
    for (; i < n; i++) s[0] += (double)a[i] * (double)b[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static void norm_task(void *arg, int64_t i, int thread) {
    (void)thread;
    const cosine_job *j = arg;
    const float *a = j->x + (size_t)i * j->dims;
    j->d[(size_t)i * j->n + (size_t)i] = sqrt(dot(a, a, j->dims));
}

/* Row i against all later ones; norms stand on the diagonal meanwhile. */
static void cosine_task(void *arg, int64_t at, int thread) {
    (void)thread;
    const cosine_job *j = arg;
    size_t i = (size_t)at, n = j->n;
    for (size_t k = i + 1; k < n; k++) {
        double norms = j->d[i * n + i] * j->d[k * n + k];
        double v = norms > 0 ? 1.0 - dot(j->x + i * j->dims, j->x + k * j->dims, j->dims) / norms : 1.0;
        if (!(v >= 0)) v = v < 0 ? 0.0 : 1.0; /* rounding, or a vector that is not finite */
        if (v < US_DISTANCE_NOISE) v = 0.0;
        j->d[i * n + k] = j->d[k * n + i] = v;
    }
}

void us_cosine_distances(us_pool *pool, const float *x, size_t n, size_t dims, double *d) {
    cosine_job j = {x, n, dims, d};
    us_pool_run(pool, norm_task, &j, (int64_t)n);
    us_pool_run(pool, cosine_task, &j, (int64_t)n);
    for (size_t i = 0; i < n; i++) d[i * n + i] = 0.0;
}

us_sketch_act us_sketch_activation(const us_structure *s, size_t block, bool gated) {
    const us_json_doc *doc = &s->ck->config;
    const us_config c = {.doc = doc, .text = s->text_config, .family = s->family};
    const char *name = s->family->name;
    us_sketch_act a = {gated ? US_GLU_SILU : US_GLU_SILU1, 0, 0};
    us_str word = us_json_string(doc, us_config_get(&c, "hidden_act|hidden_activation|mlp_hidden_act|activation_function"));
    bool gelu = us_str_starts(word, US_LIT("gelu"));
    if (gelu) a.glu = gated ? US_GLU_GELU : US_GLU_GELU1;
    if (us_str_eqz(word, "relu") && gated) a.glu = US_GLU_RELU;
    if (us_str_eqz(word, "relu2") || (!gated && strcmp(name, "nemotron_h") == 0)) a.glu = US_GLU_RELU2;
    if (!gated) return a;
    if (strcmp(name, "gpt_oss") == 0 || strcmp(name, "minimax_m3") == 0)
        return (us_sketch_act){US_GLU_OSS, (float)us_config_real(&c, "swiglu_limit", 7.0), (float)us_config_real(&c, "swiglu_alpha", 1.702)};
    if (us_word_in(us_str_z(name), "deepseek_v4|deepseek_v41|glm5_next|hy_v4")) {
        double limit = us_config_real(&c, "swiglu_limit", 10.0);
        if (limit > 0) return (us_sketch_act){US_GLU_CLAMP, (float)limit, 0};
    }
    if (strcmp(name, "step3p7") == 0) {
        us_json_ref list = us_config_get(&c, "swiglu_limits");
        double limit = 0;
        us_json_double(doc, us_json_at(doc, list, s->blocks[block].layer), &limit);
        if (limit > 0) return (us_sketch_act){US_GLU_STEP, (float)limit, 0};
    }
    if (us_str_eqz(word, "situ") || us_config_get(&c, "activation_situ_beta") != US_JSON_NO)
        return (us_sketch_act){US_GLU_SITU, (float)us_config_real(&c, "activation_situ_linear_beta", 25.0), (float)us_config_real(&c, "activation_situ_beta", 4.0)};
    return a;
}

static void scale_to_rms_one(float *row, size_t n) {
    double ss = dot(row, row, n);
    float f = ss > 0 ? (float)(1.0 / sqrt(ss / (double)n)) : 0.0f;
    for (size_t i = 0; i < n; i++) row[i] *= f;
}

/* The matrix that takes the router's input to the experts' narrower one. */
static const us_ck_tensor *latent_projection(const us_structure *s, size_t block, size_t narrow, size_t wide) {
    static const char *const names[] = {"fc1_latent_proj.weight", "routed_expert_down_proj.weight", "latent_down_proj.weight"};
    char name[US_ST_NAME_MAX + 64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(s->blocks[block].prefix), m = strlen(names[i]);
        if (n + m > sizeof name) continue;
        memcpy(name, s->blocks[block].prefix, n);
        memcpy(name + n, names[i], m);
        const us_ck_tensor *t = us_ck_find(s->ck, (us_str){name, n + m});
        if (t && t->rank == 2 && t->shape[0] == narrow && t->shape[1] == wide) return t;
    }
    return NULL;
}

static us_status narrow_probes(const us_structure *s, size_t block, size_t narrow, size_t wide, uint32_t m, const float *x, float *y, const char **why,
                               us_err *err) {
    const us_ck_tensor *t = latent_projection(s, block, narrow, wide);
    char zero[8] = {0};
    if (!t || !us_to_f32(t->dtype, zero, 1, y)) {
        *why = "experts are narrower than the router and their latent projection is not known";
        return US_OK;
    }
    void *raw = us_malloc((size_t)t->bytes);
    float *w = us_malloc(narrow * wide * sizeof *w);
    us_status st = raw && w ? us_ck_read(s->ck, t, 0, raw, (size_t)t->bytes, err) : us_fail_nomem(err, "reading a latent projection");
    if (st == US_OK) {
        us_to_f32(t->dtype, raw, narrow * wide, w);
        st = us_gemm_nt(NULL, m, narrow, wide, x, wide, US_DTYPE_F32, w, wide, y, narrow, err);
    }
    us_free(raw);
    us_free(w);
    return st;
}

us_status us__sketch_probes(const us_structure *s, size_t block, uint64_t seed, uint32_t most, size_t in, us__probes *out, const char **why, us_err *err) {
    uint32_t n = s->blocks[block].n_experts, m = n < most ? n : most;
    size_t width = 0;
    float *rows = NULL, *y = NULL, *x = NULL;
    US_TRY(us_sketch_router_rows(s, block, &rows, &width, err));
    if (!rows) {
        *why = "its router cannot be read as numbers";
        return US_OK;
    }
    uint64_t *keys = us_malloc(n * sizeof *keys);
    uint32_t *order = us_malloc(n * sizeof *order);
    size_t padded = (m + US_GEMM_LANES - 1) / US_GEMM_LANES * US_GEMM_LANES;
    float *packed = us_malloc_aligned(padded * in * sizeof *packed);
    x = us_malloc((size_t)m * width * sizeof *x);
    y = width == in ? NULL : us_malloc((size_t)m * in * sizeof *y);
    us_status st = keys && order && packed && x && (y || width == in) ? US_OK : us_fail_nomem(err, "probes");
    if (st == US_OK) {
        us_sketch_order(rows, n, width, seed, keys, order);
        for (uint32_t i = 0; i < m; i++) memcpy(x + i * width, rows + order[i] * width, width * sizeof *x);
        for (uint32_t i = 0; i < m; i++) scale_to_rms_one(x + i * width, width);
        if (y) st = narrow_probes(s, block, in, width, m, x, y, why, err);
    }
    if (st == US_OK && !*why) {
        for (uint32_t i = 0; y && i < m; i++) scale_to_rms_one(y + i * in, in);
        us_gemm_pack_nt(US_DTYPE_F32, y ? y : x, in, m, in, packed);
        *out = (us__probes){.n = m, .blocks = padded / US_GEMM_LANES, .packed = packed, .expert = order};
        packed = NULL;
        order = NULL;
    }
    us_free(rows);
    us_free(keys);
    us_free(order);
    us_free(packed);
    us_free(x);
    us_free(y);
    return st;
}
