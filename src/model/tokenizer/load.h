/** Parts of reading tokenizer.json, shared between load.c and load_steps.c. Not for others. */
#ifndef US_MODEL_TOKENIZER_LOAD_H
#define US_MODEL_TOKENIZER_LOAD_H

#include "io/json.h"
#include "model/tokenizer/internal.h"

us_status us_tok_bad(us_err *err, const char *what);
/** Bytes of a token's spelling (in arena a); odd: not spelled in the byte alphabet of a byte-level model. */
us_status us_tok_token_bytes(const us_tokenizer *t, us_arena *a, us_str text, us_str *out, bool *odd, us_err *err) US_WARN_UNUSED;

us_status us_tok_load_pre(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_norm(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_added(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_post(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;
us_status us_tok_load_decoder(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) US_WARN_UNUSED;

#endif
