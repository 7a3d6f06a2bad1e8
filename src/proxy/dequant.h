/**
 * Expert projections of a checkpoint as f32 rows, from any stored form, one expert at a time in bounded memory.
 *
 * A us_deq says where one logical matrix [out, in] lies: alone or inside a stacked tensor, row- or column-major, gate and up in halves or interleaved,
 * plain (F64 F32 BF16 F16), FP8 with block, row or tensor scales (F32, BF16 or E8M0; the scale may lie in another shard), compressed-tensors INT4/INT8,
 * FP4 with E8M0 or E4M3 group scales (gpt-oss, Kimi, DeepSeek-V4, NVFP4 in both spellings), GPTQ, AWQ. us_deq_load reads the stored bytes; us_deq_rows
 * widens a tile of them, which a matrix product calls just before it needs the tile, so that no f32 copy of the expert is ever made (GPTQ, AWQ and
 * column-major forms are turned into rows at load).
 *
 * Values are those of the formats' own decoders in f32: code x scale, rounded once, then x global scale.
 * Not here: double precision for the oracle (model/weights.h). Facts: spec/families-2026.md 8. Tests: tests/unit/test_dequant.c, tests/prop/test_fix_dequant.c.
 */
#ifndef US_PROXY_DEQUANT_H
#define US_PROXY_DEQUANT_H

#include "model/structure.h"

typedef enum us_deq_form {
    US_DEQ_NONE,    /* absent: a two-matrix expert has no gate */
    US_DEQ_PLAIN,   /* floats, with an optional scale grid (FP8) */
    US_DEQ_INT,     /* 32-bit words along in, offset 2^(bits-1), or zero points */
    US_DEQ_FP4,     /* two codes a byte along in, low nibble first, group scales */
    US_DEQ_GPTQ,    /* words along in, [in/8, out] */
    US_DEQ_AWQ,     /* words along out in the order 0 4 1 5 2 6 3 7, [in, out/8] */
} us_deq_form;

typedef struct us_deq {
    us_deq_form form;
    const us_ck_tensor *w, *scale, *zero, *global, *g_idx, *bias;
    size_t out, in;
    size_t slab;               /* stacked: this expert's place on axis 0 */
    size_t slabs;              /* stacked: experts in the tensor; 1 = not stacked */
    bool columns;              /* stored [in, width] */
    size_t width;              /* stored rows (columns) of one expert: out, or 2 x out of a fused tensor */
    size_t first, step;        /* logical row r is stored row (column) first + r * step */
    size_t block_out, block_in;/* one scale covers this many */
    size_t grid_in;            /* scales in a row of the grid */
    unsigned bits;
    bool global_divides;       /* compressed-tensors stores the inverse */
    bool zero_plus_one;        /* GPTQ before v2 */
} us_deq;

typedef struct us_deq_expert {
    us_deq gate, up, down;
} us_deq_expert;

/** Loaded bytes of one projection; reuse it from expert to expert. Zero-initialise. */
typedef struct us_deq_rows_buf {
    enum { US_ROWS_F32, US_ROWS_BF16, US_ROWS_F16, US_ROWS_CODE8, US_ROWS_CODE4 } kind;
    size_t out, in, pitch;   /* pitch: bytes from logical row to row */
    const unsigned char *data;
    const float *scale;      /* NULL = none */
    size_t block_out, block_in, grid_in;
    bool has_global;
    float global, table[256];
    void *raw, *aux, *scales; /* owned */
    size_t raw_cap, aux_cap, scales_cap;
} us_deq_rows_buf;

/**
 * Places of all experts' projections of one block, out[n_experts]. *why = NULL, or a literal that says why they cannot be read (then out is not to be
 * used): an unknown form is no error, callers do without. Errors are out of memory only.
 */
us_status us_deq_find(const us_structure *s, size_t block, us_deq_expert *out, const char **why, us_err *err) US_WARN_UNUSED;
/** Stored bytes of a projection with its scales. */
uint64_t us_deq_bytes(const us_deq *d);

us_status us_deq_load(const us_checkpoint *ck, const us_deq *d, us_deq_rows_buf *b, us_err *err) US_WARN_UNUSED;
void us_deq_rows_free(us_deq_rows_buf *b);
/** dst[r * ld + k] = element (r0 + r, k0 + k) for r < nr, k < nk. */
void us_deq_rows(const us_deq_rows_buf *b, size_t r0, size_t nr, size_t k0, size_t nk, float *dst, size_t ld);
/** The bias of a projection; zeros when it has none. */
us_status us_deq_bias(const us_checkpoint *ck, const us_deq *d, float *dst, us_err *err) US_WARN_UNUSED;

#endif
