/* Shared inside the engine: matrices packed on demand, layers, sequence states, the step at hand. Not for other modules. */
#ifndef US_MODEL_ENGINE_INTERNAL_H
#define US_MODEL_ENGINE_INTERNAL_H

#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/glu.h"
#include "kernels/ops.h"
#include "kernels/recurrent.h"
#include "model/engine/engine.h"

/* ---- weights ---- */

/* Rows of a matrix and where they lie: element (i, j) = slice[off + i*sn + j*sk] of the slice [first, first + count) of a tensor. */
typedef struct us_eng_part {
    const us_ck_tensor *t;
    uint64_t first, count;
    size_t off, sn, sk, rows;
    bool coded;           /* needs decoding: the slice is expert `expert` of `experts`, or the whole logical weight */
    uint32_t expert, experts;
} us_eng_part;

enum { US_ENG_PARTS = 4, US_ENG_CHUNKS = 40 };

/* One matrix y = x W^T, its rows from up to PARTS tensors. packed.data is NULL until us_eng_prepare. */
typedef struct us_mat {
    us_gemm_packed packed;
    us_eng_part parts[US_ENG_PARTS];
    uint8_t n_parts;
} us_mat;

static inline bool us_mat_there(const us_mat *m) {
    return m->n_parts > 0;
}

typedef struct us_eng_norm {
    const float *w, *b;   /* b: LayerNorm */
    size_t n;
} us_eng_norm;

typedef struct us_eng_mlp {
    us_mat gate, up, down; /* gate absent: two matrices */
    const float *gate_bias, *up_bias, *down_bias;
    size_t width;         /* F */
} us_eng_mlp;

typedef struct us_eng_moe {
    us_mat router;
    const float *router_bias, *correction;
    const int64_t *table; /* [V, K] or NULL */
    uint32_t n_experts;
    us_eng_mlp *experts;
    us_mat fc1, fc2;      /* latent width, nemotron_h */
    us_eng_mlp shared;
    us_mat shared_gate;   /* one row */
    bool has_shared;
} us_eng_moe;

typedef struct us_eng_gqa {
    us_mat qkv, o;
    const float *bias, *o_bias, *sinks;
    uint32_t q_rows, groups;
    bool gated;
    us_eng_norm q, k;     /* n = head width, or all heads */
} us_eng_gqa;

typedef struct us_eng_indexer {
    us_mat q, k, w;
    us_eng_norm norm;
} us_eng_indexer;

typedef struct us_eng_mla {
    us_mat q_a, q, kv_a, o; /* q: q_b or q_proj */
    const float *q_a_bias, *kv_a_bias, *o_bias;
    us_eng_norm q_norm, kv_norm;
    us_mat *uk, *uv;      /* per head: q_nope -> latent, latent -> value */
    us_eng_indexer index;
} us_eng_mla;

typedef struct us_eng_gdn {
    us_mat in, ba, out;   /* grouped: in = qkvz, ba; else in = q|k|v|z, ba = b|a */
    bool grouped;
    const float *conv, *a_log, *dt_bias;
    us_eng_norm norm;
} us_eng_gdn;

typedef struct us_eng_kda {
    us_mat qkv, f_a, f_b, g_a, g_b, b, out;
    const float *conv, *a_log, *dt_bias;
    us_eng_norm norm;
} us_eng_kda;

typedef struct us_eng_mamba {
    us_mat in, out;
    const float *conv, *conv_bias, *a, *d, *dt_bias;
    us_eng_norm norm;
} us_eng_mamba;

typedef struct us_eng_compressor {
    us_mat kv, gate;
    const float *ape;
    us_eng_norm norm;
    uint32_t dim;         /* d of an entry */
} us_eng_compressor;

typedef struct us_eng_v4 {
    us_mat q_a, q_b, kv, o_a, o_b; /* o_a: all groups' rows */
    us_mat *o_groups;
    us_eng_norm q_norm, kv_norm;
    const float *sinks;
    us_eng_compressor own, index;
    us_mat index_q, index_w;
} us_eng_v4;

/* deepseek_v4's hyper-connections around one part. */
typedef struct us_eng_hc {
    us_mat fn;
    const float *base, *scale;
} us_eng_hc;

typedef struct us_eng_layer {
    us_kv_layout kv;      /* of its pages */
    us_eng_norm norm_in, norm_ffn, norm_in2, norm_ffn2; /* the latter two: longcat_flash */
    us_eng_gqa gqa;
    us_eng_mla mla, mla2;
    us_eng_gdn gdn;
    us_eng_kda kda;
    us_eng_mamba mamba;
    us_eng_v4 v4;
    us_eng_mlp mlp, mlp2;
    us_eng_moe moe;
    us_eng_hc hc_attn, hc_ffn;
} us_eng_layer;

struct us_engine {
    us_ctx *ctx;
    us_pool *pool;
    const us_structure *st;
    us_engine_options opt;
    us_recipe r;
    char base[96], layers_at[96];
    us_eng_layer *layers;
    const us_ck_tensor *embed;
    us_mat head;
    const float *head_bias;
    us_eng_norm norm_out;
    us_eng_hc hc_head;
    us_arena arena;        /* tables and small vectors */
    float *chunks[US_ENG_CHUNKS]; /* scratch: a stack in chunks of growing size, one chunk after the first step */
    size_t chunk_floats[US_ENG_CHUNKS];
    uint64_t scratch_used; /* chunk number in the upper 16 bits, floats used of it below: save it and put it back to release */
    us_arena overflow;     /* small tables of this step */
    size_t n_seqs;
};

/* ---- sequence states ---- */

typedef struct us_page {
    size_t refs;
    void *data;
} us_page;

typedef struct us_eng_state {
    us_page **pages;       /* keys and values */
    size_t n_pages, cap_pages;
    us_page **pages2;      /* longcat_flash's second attention */
    size_t n_pages2, cap_pages2;
    float *rows;           /* per-position f32 rows: index keys (DSA), raw keys (dynamic rope), window keys (v4) */
    size_t cap_rows;       /* floats */
    float *state, *tail;   /* recurrent */
    float *entries, *index_entries; /* v4: compressed entries */
    size_t cap_entries, cap_index_entries;
    float *pending, *index_pending; /* v4: kv and gate rows of the last (up to two) windows, [2, 2*ratio, width] ring by position */
} us_eng_state;

struct us_seq {
    us_engine *e;
    size_t n;
    bool broken;
    us_eng_state *layers;
};

/* ---- one step ---- */

typedef struct us_step {
    us_engine *e;
    const us_segment *segs;
    size_t n_segs;
    size_t T;              /* rows; behind the mixer of the last layer only those whose logits are wanted, when `wanted_only` */
    bool logits, wanted_only;
    size_t *row0;          /* first row of every segment, n_segs + 1 */
    int64_t *ids;          /* [T] */
    int64_t *positions;    /* [T] */
    float *cos[US_RECIPE_ROPES], *sin[US_RECIPE_ROPES]; /* [T, dims/2] */
    uint8_t **allow;       /* per segment: the selection of the last indexer, [n, start + n] */
    const us_engine_taps *taps;
    us_err *err;
} us_step;

/* n floats that live until the mark is released; not zeroed. */
float *us_eng_scratch(us_engine *e, size_t n);
#define US_ENG_SCRATCH(s, name, n)                                                                                    \
    float *name = us_eng_scratch((s)->e, n);                                                                          \
    if (!name) return us_fail_nomem((s)->err, "running the model")

/* Read and pack what is not packed yet. */
us_status us_eng_prepare(us_engine *e, us_mat *const *mats, size_t n, us_err *err) US_WARN_UNUSED;
void us_mat_drop(us_mat *m);
/* y[m, n] (stride ldy) = x (stride ldx) W^T + bias; inputs rounded to bf16 in the bf16 mode unless `full`. */
/** Row-wise work on the pool: fn over blocks [r0, r1) of all rows; few rows stay on this thread. fn must treat every row by itself. */
typedef void us_eng_rows_fn(void *arg, size_t r0, size_t r1);
void us_eng_each_rows(us_engine *e, size_t rows, us_eng_rows_fn *fn, void *arg);
/** y += f x, rows of n. */
void us_eng_add_rows(us_engine *e, float f, const float *x, size_t rows, size_t n, float *y);
us_status us_eng_apply(us_step *s, us_mat *w, const float *bias, size_t m, const float *x, size_t ldx, float *y, size_t ldy) US_WARN_UNUSED;
us_status us_eng_apply_full(us_step *s, us_mat *w, const float *bias, size_t m, const float *x, size_t ldx, float *y, size_t ldy) US_WARN_UNUSED;
void us_eng_norm_rows(us_engine *e, const us_eng_norm *n, float plus, double eps, size_t rows, const float *x, float *y);
us_status us_eng_load(us_engine *e, us_err *err) US_WARN_UNUSED;
/* Every matrix of a layer, for dropping and counting. */
void us_eng_each_mat(us_engine *e, us_eng_layer *l, void (*fn)(void *user, us_mat *m), void *user);

/* Has the model states that cannot go back? */
bool us_eng_recurrent(const us_engine *e);
/* Room for positions up to n in a layer's pages, writable from position `from`. */
us_status us_eng_pages(const us_kv_layout *kv, us_page ***pages, size_t *n_pages, size_t *cap, size_t from, size_t n, us_err *err) US_WARN_UNUSED;
us_status us_eng_rows(float **rows, size_t *cap, size_t need, us_err *err) US_WARN_UNUSED;

us_status us_eng_run_gqa(us_step *s, uint32_t l, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_run_mla(us_step *s, uint32_t l, us_eng_mla *w, bool second, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_run_gdn(us_step *s, uint32_t l, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_run_kda(us_step *s, uint32_t l, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_run_mamba2(us_step *s, uint32_t l, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_run_v4(us_step *s, uint32_t l, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_run_mlp(us_step *s, us_eng_mlp *w, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_run_moe(us_step *s, uint32_t l, const float *x, float *out) US_WARN_UNUSED;
us_status us_eng_hc_mix(us_step *s, us_eng_hc *w, bool head, const float *streams, float *x, float *post, float *comb) US_WARN_UNUSED;

#endif
