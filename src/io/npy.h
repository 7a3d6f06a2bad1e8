/**
 * NumPy files: .npy (versions 1-3) read and written, .npz (stored and deflated, zip64) read, stored .npz written.
 *
 * Headers are parsed by a small grammar, never evaluated; pickle is never run. Rules and classes: fixtures/hostile/README.md, "npy and npz".
 * Values come back as raw little-endian C-order bytes of one of the types below (big-endian is swapped, Fortran order transposed).
 * Tests: tests/unit/test_npy.c, fixtures/hostile/npy, fuzz target npy.
 */
#ifndef US_IO_NPY_H
#define US_IO_NPY_H

#include "base/ctx.h"
#include "tensor/dtype.h"

enum { US_NPY_RANK_MAX = 32 };

typedef struct us_npy {
    char *name;     /* member name without .npy; "" for a plain file */
    us_dtype dtype; /* BOOL, I8..I64, U8..U64, F16, F32, F64 */
    int rank;
    uint64_t shape[US_NPY_RANK_MAX];
    uint64_t count; /* elements */
    void *data;     /* count * bits/8 bytes; NULL when only described */
} us_npy;

typedef struct us_npy_set {
    us_npy *arrays;
    size_t n;
} us_npy_set;

/** Read a .npy or .npz by its first bytes (not its name). load=false checks everything but keeps no data. max_bytes limits the data kept. */
us_status us_npy_open(us_ctx *ctx, const char *path, bool load, uint64_t max_bytes, us_npy_set *out, us_err *err) US_WARN_UNUSED;
/** As open, from memory; for the fuzz target. */
us_status us_npy_parse(us_ctx *ctx, us_str bytes, bool load, uint64_t max_bytes, us_npy_set *out, us_err *err) US_WARN_UNUSED;
void us_npy_set_free(us_npy_set *s);
/** Array by name, or NULL. */
const us_npy *us_npy_find(const us_npy_set *s, const char *name);
/** Element i of an integer array as i64; false if it does not fit or the type is not an integer. */
bool us_npy_i64(const us_npy *a, uint64_t i, int64_t *out);

/** Append one version-1.0 .npy to buf. */
us_status us_npy_write(us_buf *buf, us_dtype t, int rank, const uint64_t *shape, const void *data, us_err *err) US_WARN_UNUSED;
/** Write a stored .npz atomically. */
us_status us_npz_write(const char *path, const us_npy *arrays, size_t n, us_err *err) US_WARN_UNUSED;

#endif
