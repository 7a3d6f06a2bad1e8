/**
 * Character classes of the tokenizer: one lookup gives all classes of a code point.
 *
 * The reference library uses four Unicode versions for four jobs (split patterns, Punctuation, Digits, NFC); unicode_data.c keeps
 * each class as the reference has it. The table is unfolded once per process (us_uc_init). Tests: tests/unit/test_tokenizer.c.
 */
#ifndef US_MODEL_TOKENIZER_UNICODE_H
#define US_MODEL_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    US_UC_UPPER = 1,        /* Lu, Lt */
    US_UC_LOWER = 2,        /* Ll */
    US_UC_OTHER_LETTER = 4, /* Lm, Lo */
    US_UC_MARK = 8,
    US_UC_NUMBER = 16,
    US_UC_PUNCT = 32,
    US_UC_SYMBOL = 64,
    US_UC_SPACE = 128,
    US_UC_HAN = 256,
    US_UC_PRE_PUNCT = 512,  /* the Punctuation pre-tokenizer's idea */
    US_UC_PRE_DIGIT = 1024, /* the Digits pre-tokenizer's idea */
    US_UC_WORD = 2048,      /* \w beyond letters and marks */
    US_UC_NFC_CHECK = 4096, /* NFC may change the text at or around it */
    US_UC_NEWLINE = 8192,   /* CR, LF */
    US_UC_LETTER = 16384,
};

typedef struct us_uc_range {
    uint32_t first, last;
    uint16_t bits;
} us_uc_range;
typedef struct us_uc_span {
    uint32_t first, last;
} us_uc_span;

extern const us_uc_range us_uc_ranges[];
extern const unsigned us_uc_n_ranges;
extern const us_uc_span us_uc_nfc_starters[], us_uc_nfc_no_composition[];
extern const unsigned us_uc_n_nfc_starters, us_uc_n_nfc_no_composition;

/* Two stages: block of 128 code points, then the point. Blocks without classes share block 0. */
enum { US_UC_BLOCKS = 0x110000 >> 7, US_UC_BLOCKS_MAX = 1400 };
extern uint16_t us_uc_stage1[US_UC_BLOCKS];
extern uint16_t us_uc_stage2[US_UC_BLOCKS_MAX][128];

/** Unfold the table; thread-safe, cheap when done. Must come before us_uc_of. */
void us_uc_init(void);

/** Classes of a code point (at most U+10FFFF). */
static inline unsigned us_uc_of(uint32_t cp) {
    return us_uc_stage2[us_uc_stage1[cp >> 7]][cp & 127];
}

/** Decode one code point of valid UTF-8; *len = its bytes. */
static inline uint32_t us_uc_decode(const unsigned char *p, unsigned *len) {
    uint32_t c = p[0];
    if (c < 0x80) {
        *len = 1;
        return c;
    }
    if (c < 0xE0) {
        *len = 2;
        return (c & 31) << 6 | (p[1] & 63u);
    }
    if (c < 0xF0) {
        *len = 3;
        return (c & 15) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    }
    *len = 4;
    return (c & 7) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
}

#endif
