/**
 * Causal attention over paged keys and values, f32 arithmetic, online softmax.
 *
 * A page holds US_KV_PAGE consecutive positions of one layer, all key-value heads. Position p of a sequence lies in page p / PAGE, slot p % PAGE, so pages
 * are aligned to absolute positions; SPAN pages form a span, aligned too. One query of one head is computed so, whatever else is in the batch:
 *
 *     within a span, from (max, sum, out) = (-inf, 0, 0), for every page of which it sees a key, in ascending order:
 *         score of a key = (chain of fma over Dk from 0) * scale, top = the greatest of max and the visible scores
 *         weight of a key = exp(score - top), f = exp(max - top)
 *         sum = sum * f + (weights in 16 partial sums, slot k in number k % 16, then + 8, + 4, + 2, + 1), out = out * f, then fma over the visible keys
 *     over spans, from (sink, 1, 0) or (-inf, 0, 0), in ascending order: both scaled by exp(own max - common max) and added
 *     result = out / sum
 *
 * with exp of kernels/exp.h. So the result does not depend on how the prompt was cut into chunks, on the batch, or on threads: prefill, chunked prefill and
 * decode give the same bits. Spans exist so that one long sequence keeps many threads busy: they are independent until they are added, and since
 * every path adds the same spans in the same order, whether they were spread over threads cannot be seen. (Cutting by the number of threads would be seen.)
 * A hidden key takes no part in any sum: not even an infinity in it, or in a slot that was written once and given up, is noticed.
 *
 * Layout of a page, type F32 or BF16 (rounded to nearest even when stored), for each key-value head:
 *   ordinary: keys transposed, two lane blocks [Dk][32] (gemm lanes = keys), then values, ceil(Dv/32) lane blocks [PAGE][32] (lanes = channels, zero padded);
 *   latent (MLA): one block [PAGE][Dk], natural order; the value of a position is the first Dv channels of its key. Bytes a position = Dk * size: the
 *   formula (kv_lora + rope) of the MLA cache.
 *
 * Not here: who owns pages. Parts: attention.c (tasks, pages), attention_text.c (loops over floats), tiles of gemm.h. Tests: tests/unit/test_attention.c;
 * bench/bench_attention.c. Facts: spec/families-2026.md 4; FlashAttention (Dao et al. 2022) section 3 for the online softmax.
 */
#ifndef US_KERNELS_ATTENTION_H
#define US_KERNELS_ATTENTION_H

#include "base/pool.h"
#include "tensor/dtype.h"

enum { US_KV_PAGE = 64, US_KV_SPAN = 4 };

typedef struct us_kv_layout {
    us_dtype type;      /* F32 or BF16 */
    bool latent;
    uint32_t heads, dk, dv; /* key-value heads G, widths; latent: heads = 1, dv <= dk */
} us_kv_layout;

/** Bytes of one page (a multiple of 64); 0 when the sizes overflow. A fresh page must be zeroed. */
size_t us_kv_page_bytes(const us_kv_layout *l);
/** Store one position: k[heads*dk], v[heads*dv] (v NULL when latent). */
void us_kv_store(const us_kv_layout *l, void *page, size_t slot, const float *k, const float *v);
/** Read one position back, widened: k[heads*dk] and (unless latent or NULL) v[heads*dv]. */
void us_kv_load(const us_kv_layout *l, const void *page, size_t slot, float *k, float *v);

typedef struct us_attn {
    us_kv_layout kv;
    uint32_t heads;       /* query heads H, a multiple of kv.heads; head h reads key head h / (H/G) */
    float scale;          /* scores are multiplied with it */
    uint32_t window;      /* > 0: the last `window` positions, the query's own included */
    uint32_t chunk;       /* > 0: only keys in the same floor(position / chunk) */
    const float *sinks;   /* [H] or NULL: exp(sink) joins the denominator */
} us_attn;

/** One sequence's queries, positions start .. start+n-1; keys of positions 0 .. start+n-1 are already in the pages. */
typedef struct us_attn_seq {
    size_t start, n;
    const float *q;       /* [n, H, Dk], row stride ldq */
    size_t ldq;
    float *out;           /* [n, H, Dv], row stride ldo */
    size_t ldo;
    const void *const *pages; /* ceil((start+n)/PAGE) pointers; pages no query can see (window, chunk) may be NULL */
    const uint8_t *allow; /* NULL, or [n, start+n] with row stride lda: 0 hides key j from query i (sparse attention) */
    size_t lda;
} us_attn_seq;

/**
 * All sequences of a batch. A query that sees no key and has no sink gives zeros. Parallel over (sequence, key head, query block), and over spans where
 * that is little. Allocates its scratch and frees it. US_E_NOMEM.
 */
us_status us_attention(us_pool *pool, const us_attn *a, const us_attn_seq *seqs, size_t n_seqs, us_err *err) US_WARN_UNUSED;

#endif
