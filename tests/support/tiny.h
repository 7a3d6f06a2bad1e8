/** Small qwen3_moe checkpoints made on the spot, for tests that must run from a bare clone. Include the cmocka block before this header. */
#ifndef US_TESTS_TINY_H
#define US_TESTS_TINY_H

#include "support/support.h"

/** Zero fields take the default in brackets. */
typedef struct tiny_model {
    int layers;  /* [2] */
    int experts; /* [8] */
    int hidden;  /* [16] */
    int inter;   /* [16] */
    int shards;  /* [1] files; more than one makes an index */
    int top_k;   /* [2] */
    const char *config_more; /* members added to config.json, e.g. "\"x\": 1," */
} tiny_model;

/** Write one into folder (made). Weights are BF16 noise from counters: the same bytes every time. Also a tokenizer.json and sub/notes.txt. */
void tiny_write(const char *folder, const tiny_model *m);

#endif
