/* The class table of the tokenizer, unfolded from the ranges of unicode_data.c on first use. Tests: tests/unit/test_tokenizer.c. */
#include "model/tokenizer/unicode.h"

#include <pthread.h>

uint16_t us_uc_stage1[US_UC_BLOCKS];
uint16_t us_uc_stage2[US_UC_BLOCKS_MAX][128];

static void unfold(void) {
    unsigned blocks = 1; /* block 0 has no classes */
    for (unsigned i = 0; i < us_uc_n_ranges; i++) {
        const us_uc_range *r = &us_uc_ranges[i];
        for (uint32_t c = r->first; c <= r->last; c++) {
            if (!us_uc_stage1[c >> 7]) {
                if (blocks == US_UC_BLOCKS_MAX) return; /* the unit test would see it */
                us_uc_stage1[c >> 7] = (uint16_t)blocks++;
            }
            us_uc_stage2[us_uc_stage1[c >> 7]][c & 127] |= r->bits;
        }
    }
    us_uc_stage2[us_uc_stage1[0]]['\r'] |= US_UC_NEWLINE;
    us_uc_stage2[us_uc_stage1[0]]['\n'] |= US_UC_NEWLINE;
}

void us_uc_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, unfold);
}
