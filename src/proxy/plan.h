/**
 * The plan of a proxy: every tensor of the output with its source, the shards, the edited config, the index, before a byte is written.
 *
 * Made from the structure and the keep lists alone; --dry-run prints it, write.c carries it out, verify.c holds a folder against it.
 * The rules are those of fixtures/checkpoints/README.md ("Rules of slicing"). Deterministic: same source and lists, same plan, same bytes.
 * Not here: choosing experts (keep.h, select.h), touching files (write.h). Tests: tests/e2e/test_fix_checkpoints.c.
 */
#ifndef US_PROXY_PLAN_H
#define US_PROXY_PLAN_H

#include "proxy/keep.h"
#include "proxy/layers.h"

typedef enum us_plan_action {
    US_PLAN_COPY,   /* same name, all bytes */
    US_PLAN_RENAME, /* other name, all bytes */
    US_PLAN_SLICE,  /* rows of kept experts along `axis` */
    US_PLAN_TABLE,  /* table of expert numbers, rewritten */
} us_plan_action;

typedef struct us_plan_tensor {
    us_str name;           /* in the output */
    uint32_t src;          /* index into the checkpoint's tensors */
    uint32_t block;        /* of the structure, or UINT32_MAX */
    us_plan_action action;
    uint8_t axis;
    const uint64_t *shape; /* in the output; rank and dtype as in the source */
    uint64_t begin, bytes; /* begin: in the data of the shard */
    uint32_t shard;
} us_plan_tensor;

typedef struct us_plan_shard {
    char *name;
    size_t first, n;       /* run of tensors */
    uint64_t data_bytes;
} us_plan_shard;

/** A value of a JSON file that changes; for the manifest and --dry-run. */
typedef struct us_plan_edit {
    const char *file;
    char *path;
    char *from, *to; /* raw JSON; NULL = removed, or too long to show */
    bool removed;
} us_plan_edit;

typedef struct us_plan {
    const us_structure *s;   /* borrowed */
    const us_keep *keep;     /* borrowed */
    us_layer_cut cut;        /* which layers stay; owned */
    bool *active;            /* per block: is it written? */
    us_plan_tensor *tensors; /* in the order they are written */
    size_t n_tensors;
    us_plan_shard *shards;
    size_t n_shards;
    us_st_meta *meta;        /* header metadata of every shard */
    size_t n_meta;
    us_buf config, index, hf_quant; /* whole texts; n == 0: the file is not written */
    us_plan_edit *edits;
    size_t n_edits, cap_edits;
    size_t n_dropped, n_renamed, n_sliced, n_copied, n_unknown;
    uint64_t total_bytes, total_elements;
    us_arena arena;
} us_plan;

/** Names of the rules that shape the plan beside the lists. */
typedef struct us_plan_options {
    const char *layers; /* --layers: N or a list; NULL = all */
    bool drop_mtp;
} us_plan_options;

/**
 * Work out what stays before experts are chosen: layers, MTP. out->cut and *active (us_malloc, one flag a block).
 * Refuses layer cuts that leave no MoE layer, or only hash-routed ones, or that a periodic key cannot describe.
 */
us_status us_plan_scope(us_ctx *ctx, const us_structure *s, const us_plan_options *o, us_layer_cut *cut, bool **active, us_err *err) US_WARN_UNUSED;

/** Make the plan. s and keep must outlive it. */
us_status us_plan_create(us_ctx *ctx, const us_structure *s, const us_keep *keep, const us_plan_options *o, us_plan **out, us_err *err) US_WARN_UNUSED;
void us_plan_free(us_plan *p);

/** Bytes of the folder to be written, headers and other files included (an upper estimate by less than 1 %). */
uint64_t us_plan_folder_bytes(const us_plan *p);
/** The header of shard i, with its 8 length bytes. */
us_status us_plan_shard_header(const us_plan *p, size_t i, us_buf *out, us_err *err) US_WARN_UNUSED;
/** Record an edit; texts are copied. */
us_status us_plan_note_edit(us_plan *p, const char *file, us_str path, us_str from, us_str to, us_err *err) US_WARN_UNUSED;

#endif
