/* See dnnl_peer.h. */
#include "dnnl_peer.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"

struct dnnl_peer {
    dnnl_primitive_t matmul;
    dnnl_stream_t stream;
    dnnl_exec_arg_t args[3];
};

static dnnl_engine_t engine;

static void must(dnnl_status_t s) {
    if (s == dnnl_success) return;
    fprintf(stderr, "bench: oneDNN refused with status %d\n", (int)s);
    exit(1);
}

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *d, void *data) {
    dnnl_memory_t m;
    must(dnnl_memory_create(&m, d, engine, data));
    return m;
}

/* Matrix [rows, cols] with the given strides and type. */
static dnnl_memory_desc_t matrix(size_t rows, size_t cols, size_t row_stride, size_t col_stride, dnnl_data_type_t type) {
    dnnl_memory_desc_t d;
    must(dnnl_memory_desc_init_by_strides(&d, 2, (dnnl_dims_t){(dnnl_dim_t)rows, (dnnl_dim_t)cols}, type, (dnnl_dims_t){(dnnl_dim_t)row_stride, (dnnl_dim_t)col_stride}));
    return d;
}

/* A copy of `from` in the layout and type of `want`, memory of its own. */
static dnnl_memory_t reordered(const dnnl_memory_desc_t *have, void *data, const dnnl_memory_desc_t *want, dnnl_stream_t stream) {
    dnnl_memory_t from = memory_of(have, data), to = memory_of(want, DNNL_MEMORY_ALLOCATE);
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t reorder;
    must(dnnl_reorder_primitive_desc_create(&pd, have, engine, want, engine, NULL));
    must(dnnl_primitive_create(&reorder, pd));
    must(dnnl_primitive_execute(reorder, stream, 2, (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}));
    must(dnnl_stream_wait(stream));
    must(dnnl_primitive_destroy(reorder));
    must(dnnl_primitive_desc_destroy(pd));
    must(dnnl_memory_destroy(from));
    return to;
}

dnnl_peer *dnnl_peer_matmul(size_t m, size_t n, size_t k, float *x, float *w, float *y, bool bf16) {
    dnnl_peer *p = us_calloc(1, sizeof *p);
    if (!p) exit(1);
    if (!engine) must(dnnl_engine_create(&engine, dnnl_cpu, 0));
    must(dnnl_stream_create(&p->stream, engine, dnnl_stream_default_flags));
    dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t xd = matrix(m, k, k, 1, type), yd = matrix(m, n, n, 1, dnnl_f32), wd, have_w = matrix(k, n, 1, k, dnnl_f32), have_x = matrix(m, k, k, 1, dnnl_f32);
    must(dnnl_memory_desc_init_by_tag(&wd, 2, (dnnl_dims_t){(dnnl_dim_t)k, (dnnl_dim_t)n}, type, dnnl_format_tag_any));
    dnnl_matmul_desc_t desc;
    must(dnnl_matmul_desc_init(&desc, &xd, &wd, NULL, &yd));
    dnnl_primitive_desc_t pd;
    dnnl_status_t s = dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL);
    if (s == dnnl_unimplemented) return NULL; /* bf16 without AVX-512 */
    must(s);
    const dnnl_memory_desc_t *want_w = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    p->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, bf16 ? reordered(&have_x, x, &xd, p->stream) : memory_of(&xd, x)};
    p->args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, reordered(&have_w, w, want_w, p->stream)};
    p->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory_of(&yd, y)};
    must(dnnl_primitive_create(&p->matmul, pd));
    must(dnnl_primitive_desc_destroy(pd));
    return p;
}

void dnnl_peer_run(dnnl_peer *p, int threads) {
    omp_set_num_threads(threads);
    must(dnnl_primitive_execute(p->matmul, p->stream, 3, p->args));
    must(dnnl_stream_wait(p->stream));
}
