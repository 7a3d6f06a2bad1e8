/**
 * A checkpoint folder: config.json, the index, all shard headers, one table of tensors; and what else lies in the folder.
 *
 * Opens a folder, a hub-cache snapshot, or (config only) a bare config.json. "The index decides" (requirement 2 of
 * requirements-proxy.md): only indexed shards are read, a name is read from the shard that the map names, stale copies are counted in
 * a note. Without an index: model.safetensors, else all *.safetensors. Rules and classes: fixtures/hostile/README.md "Index and folder",
 * fixtures/checkpoints/README.md rules 9-11 and "Without an index". Tensor data are read by range on request.
 * Read-only after open; thread-safe then. Tests: tests/unit/test_checkpoint.c, fixtures/hostile/index.
 */
#ifndef US_IO_CHECKPOINT_H
#define US_IO_CHECKPOINT_H

#include "base/ctx.h"
#include "base/map.h"
#include "io/json.h"
#include "io/safetensors.h"

typedef struct us_ck_shard {
    char *name; /* relative to the folder */
    us_file file;
    us_st_header header;
} us_ck_shard;

typedef struct us_ck_tensor {
    us_str name;
    us_dtype dtype;
    uint8_t rank;
    const uint64_t *shape;
    uint32_t shard;       /* index into shards */
    uint64_t offset;      /* absolute in the shard file */
    uint64_t bytes;
} us_ck_tensor;

typedef struct us_checkpoint {
    char *path;               /* as given */
    us_json_doc config;       /* n_nodes == 0: no config.json */
    us_json_doc index;        /* n_nodes == 0: no index */
    us_json_doc hf_quant;     /* hf_quant_config.json, n_nodes == 0: none */
    us_ck_shard *shards;      /* sorted by name; only those read */
    size_t n_shards;
    us_ck_tensor *tensors;    /* sorted by name in byte order */
    size_t n_tensors;
    us_map by_name;           /* name -> index into tensors */
    us_fs_entry *others;      /* files to copy (rule 10), sorted */
    size_t n_others;
    us_fs_entry *left_out;    /* weight files that are not copied (rule 10), sorted */
    size_t n_left_out;
    size_t n_stale;           /* tensors of read shards that the map does not name or places elsewhere */
    us_arena arena;
} us_checkpoint;

enum {
    US_CK_CONFIG_ONLY = 1,  /* path may be a bare config.json; shards are not opened even if they are there */
    US_CK_HEADERS_ONLY = 2, /* accept shards cut inside their data */
    US_CK_FOLLOW_LINKS = 4, /* links may lead anywhere */
};

us_status us_checkpoint_open(us_ctx *ctx, const char *path, unsigned flags, us_checkpoint **out, us_err *err) US_WARN_UNUSED;
void us_checkpoint_free(us_checkpoint *c);
/** Tensor by name, or NULL. */
const us_ck_tensor *us_ck_find(const us_checkpoint *c, us_str name);
/** Bytes [from, from+n) of a tensor. */
us_status us_ck_read(const us_checkpoint *c, const us_ck_tensor *t, uint64_t from, void *dst, size_t n, us_err *err) US_WARN_UNUSED;

#endif
