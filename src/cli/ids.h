/* Token ids given on the command line: `--ids FILE`, a .npy of integers [T] or [B, T], or JSON [1, 2] or [[1, 2], [3]]. */
#ifndef US_CLI_IDS_H
#define US_CLI_IDS_H

#include <stddef.h>

#include "base/ctx.h"

/** Sequences of token ids: sequence b is ids[start[b] .. start[b+1]). */
typedef struct us_ids {
    int64_t *ids;
    size_t *start; /* B + 1 offsets into ids */
    size_t B;
} us_ids;

us_status us_ids_read(us_ctx *ctx, const char *path, us_ids *out, us_err *err) US_WARN_UNUSED;
void us_ids_free(us_ids *b);

#endif
