/**
 * The bytes of one planned tensor as a stream, made from ranges of the source: what writing hashes and writes, and what verify compares.
 *
 * One reader a thread; memory is its two buffers, whatever the size of the tensor. Tests: with write.h and verify.h.
 */
#ifndef US_PROXY_STREAM_H
#define US_PROXY_STREAM_H

#include "proxy/plan.h"

/** Replacement of dropped experts in token tables: for each hash-routed block, per old expert the new ones by nearness. */
typedef struct us_table_map {
    size_t n_blocks;
    uint32_t **rank; /* per block, NULL unless hash-routed: n_experts * n new numbers, nearest first; a kept expert's first is itself */
} us_table_map;

/**
 * Runs the experts of hash-routed blocks on probes: nearness is the distance of functional sketches and router rows (us_select_distances with default
 * options), ties to the lower number. A function of source and lists alone.
 */
us_status us_table_map_create(us_ctx *ctx, const us_plan *p, us_table_map *out, us_err *err) US_WARN_UNUSED;
void us_table_map_free(us_table_map *m);

/** Takes the next n bytes of the tensor; data live until it returns. */
typedef us_status (*us_stream_sink)(void *user, const void *data, size_t n, us_err *err);

typedef struct us_stream {
    const us_plan *p;
    const us_table_map *tables;
    unsigned char *buffer, *window; /* buffer_bytes each, the first on a page border */
    unsigned char *raw;             /* what buffer lies in; owned, as window is */
    size_t buffer_bytes;
    uint64_t rows_changed;          /* of token tables, summed over calls */
} us_stream;

us_status us_stream_create(const us_plan *p, const us_table_map *tables, size_t buffer_bytes, us_stream *out, us_err *err) US_WARN_UNUSED;
void us_stream_free(us_stream *s);
/**
 * Send all bytes of a planned tensor to sink, in order, in pieces of up to buffer_bytes. phase (below buffer_bytes): the first piece lies so
 * far behind the start of the page-aligned buffer, and is so much shorter: a writer whose file place has that phase may write past the cache.
 */
us_status us_stream_run(us_stream *s, const us_plan_tensor *t, size_t phase, us_stream_sink sink, void *user, us_err *err) US_WARN_UNUSED;

#endif
