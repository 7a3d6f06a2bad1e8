/** Parts of reading tokenizer.json, shared between load.c and load_steps.c. Not for others. */
#ifndef US_MODEL_TOKENIZER_LOAD_H
#define US_MODEL_TOKENIZER_LOAD_H

#include "io/json.h"
#include "model/tokenizer/internal.h"

us_status us_tok_bad(us_err *err, const char *what);
/** Bytes of a token's spelling (in arena a); odd: not spelled in the byte alphabet of a byte-level model. */
us_status us_tok_token_bytes(const us_tokenizer *t, us_arena *a, us_str text, us_str *out, bool *odd, us_err *err) US_WARN_UNUSED;

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
/** Fill t->shorts. */
us_status us_whole_finish(us_whole *w, us_tokenizer *t, us_err *err) US_WARN_UNUSED;
void us_whole_free(us_whole *w);

us_status us_tok_load_pre(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_norm(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_added(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_post(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_decoder(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;

#endif
