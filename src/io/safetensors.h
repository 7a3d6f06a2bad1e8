/**
 * One safetensors file: strict reader of the header, and the header writer.
 *
 * Rules and error classes: fixtures/hostile/README.md, "safetensors: our rules" (1-9). Nothing is allocated by an unchecked number;
 * data are never touched here: a tensor is a byte range of the file. Format: huggingface/safetensors.
 * Tests: tests/unit/test_safetensors.c, fixtures/hostile/safetensors, fuzz target safetensors.
 */
#ifndef US_IO_SAFETENSORS_H
#define US_IO_SAFETENSORS_H

#include "io/fs.h"
#include "tensor/dtype.h"

enum { US_ST_HEADER_MAX = 100000000, US_ST_RANK_MAX = 64, US_ST_NAME_MAX = 4096 };

typedef struct us_st_tensor {
    us_str name; /* in the arena of the file */
    us_dtype dtype;
    uint8_t rank;
    const uint64_t *shape; /* in the arena */
    uint64_t begin, end;   /* relative to data_start */
} us_st_tensor;

typedef struct us_st_meta {
    us_str key, value;
} us_st_meta;

typedef struct us_st_header {
    us_st_tensor *tensors; /* in the order of the header */
    size_t n_tensors;
    us_st_meta *meta; /* __metadata__, in its order */
    size_t n_meta;
    bool has_meta;
    uint64_t data_start, data_size;
    us_arena arena;
} us_st_header;

enum { US_ST_HEADERS_ONLY = 1 }; /* accept a file that is cut inside its data (class "truncated" otherwise, see us_st_read) */

/** Parse the N header bytes of a file of file_size bytes in all. Also the fuzz entry. */
us_status us_st_parse(us_str header, uint64_t file_size, unsigned flags, us_st_header *out, us_err *err) US_WARN_UNUSED;
/** Read and parse the header of an open file. err->where gets the path. */
us_status us_st_read(const us_file *f, unsigned flags, us_st_header *out, us_err *err) US_WARN_UNUSED;
void us_st_header_free(us_st_header *h);

/** Number of elements (product of the shape; checked at parse). */
uint64_t us_st_elements(const us_st_tensor *t);
/** Bytes of elements of this type and shape; false on overflow or when not a whole number of bytes. */
bool us_st_bytes(us_dtype t, int rank, const uint64_t *shape, uint64_t *elements, uint64_t *bytes);

/**
 * Append the 8 length bytes and the header, padded with spaces to a multiple of 8, for tensors whose begin/end are given in order
 * without gaps. meta gets "format": "pt" added where missing. US_E_LIMIT when the header would pass US_ST_HEADER_MAX.
 */
us_status us_st_write_header(us_buf *out, const us_st_tensor *tensors, size_t n, const us_st_meta *meta, size_t n_meta, us_err *err) US_WARN_UNUSED;

#endif
