/**
 * oneDNN (2.x, C interface) as a yardstick of bench_kernels: y[M,N] = x[M,K] w[N,K]^T in f32, or with x and w rounded to bf16 and an f32 result; w reordered once
 * into the layout that the library wants. Built only where the library is found; the product never uses it.
 */
#ifndef US_BENCH_DNNL_PEER_H
#define US_BENCH_DNNL_PEER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct dnnl_peer dnnl_peer;

/** Borrows x and y. NULL where the library has nothing for this processor; exits when it refuses otherwise. */
dnnl_peer *dnnl_peer_matmul(size_t m, size_t n, size_t k, float *x, float *w, float *y, bool bf16);
void dnnl_peer_run(dnnl_peer *p, int threads);

#endif
