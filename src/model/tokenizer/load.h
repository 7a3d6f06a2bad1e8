/** Parts of reading tokenizer.json, shared between load.c and load_steps.c. Not for others. */
#ifndef US_MODEL_TOKENIZER_LOAD_H
#define US_MODEL_TOKENIZER_LOAD_H

#include "io/json.h"
#include "model/tokenizer/internal.h"

us_status us_tok_bad(us_err *err, const char *what);
/** Bytes of a token's spelling (in arena a); odd: not spelled in the byte alphabet of a byte-level model. */
us_status us_tok_token_bytes(const us_tokenizer *t, us_arena *a, us_str text, us_str *out, bool *odd, us_err *err) US_WARN_UNUSED;

/* load_raw.c */
typedef struct us_raw_token {
    us_str text;
    uint32_t id;
} us_raw_token;
typedef struct us_raw_merge {
    us_str a, b;
} us_raw_merge;
typedef struct us_raw_model {
    us_raw_token *vocab; /* NULL: nothing was read */
    size_t n_vocab;
    us_raw_merge *merges;
    size_t n_merges;
    us_buf rest;         /* the file with both empty */
    us_arena arena;      /* strings that had escapes */
} us_raw_model;
/** false: the file does not have the plain shape; nothing is allocated. Texts are borrowed from json. */
bool us_raw_read(us_str json, us_raw_model *out);
void us_raw_free(us_raw_model *m);

/** Room for all that raw holds. */
us_status us_vocab_reserve(us_vocab *v, const us_raw_model *raw, us_err *err) US_WARN_UNUSED;

/* whole.c */
typedef struct us_rule {
    uint32_t left, right, rank; /* rank US_TOK_NONE: no rule makes the token */
} us_rule;
typedef struct us_whole {
    us_rule *made;        /* by id; NULL: every token counts */
    unsigned char *whole; /* by id */
    size_t n;
    bool off;             /* the rules are not what this needs: every word is merged */
} us_whole;
us_status us_whole_init(us_whole *w, const us_tokenizer *t, us_err *err) US_WARN_UNUSED;
/** A rule that was just put into the table; again: the pair was there already. In order of rank. */
void us_whole_merge(us_whole *w, const us_tokenizer *t, us_merge m, bool again);
static inline void us_whole_prefetch(const us_whole *w, us_merge m) {
    if (!w->made || m.left >= w->n || m.right >= w->n || m.id >= w->n) return;
    __builtin_prefetch(&w->made[m.left]);
    __builtin_prefetch(&w->made[m.right]);
    __builtin_prefetch(&w->made[m.id]);
}
/** t->shorts of all short tokens of a byte-level vocabulary; after finish only of those that words become as a whole. */
us_status us_shorts_build(us_tokenizer *t, us_err *err) US_WARN_UNUSED;
void us_whole_finish(us_whole *w, us_tokenizer *t);
void us_whole_free(us_whole *w);

us_status us_tok_load_pre(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_norm(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_added(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_post(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_decoder(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;

#endif
