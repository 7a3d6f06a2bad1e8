/**
 * What this machine can do at most: fused multiply-adds from registers, and reading and copying memory far larger than the caches. The yardstick of every rate
 * that is reported (benchmarks, `understudy doctor`). Measured, not asserted: other work on the machine lowers it.
 */
#ifndef US_KERNELS_PEAKS_H
#define US_KERNELS_PEAKS_H

#include <stddef.h>

#include "base/pool.h"

typedef struct us_peaks {
    double f32_flops;  /* two operations a multiply-add */
    double copy_bytes; /* bytes read plus bytes written a second */
    double read_bytes;
} us_peaks;

/** All threads of the pool at once; NULL = the caller's thread. Takes half a second and 512 MiB (zeros where they are not to be had). */
us_peaks us_peaks_measure(us_pool *pool);
/** Read every byte once; bytes a multiple of 128. */
void us_peaks_read(const void *p, size_t bytes);

#endif
