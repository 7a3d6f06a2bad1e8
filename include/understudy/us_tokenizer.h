/**
 * Tokenizers as Hugging Face's tokenizer.json describes them: text to ids and back, identical to the reference library.
 *
 * A us_tokenizer is read-only after loading and may be used from many threads, each with a us_tok_scratch of its own (buffers and a
 * cache of words; results never depend on it). Text is bytes with a length and may hold NUL; bytes that are not UTF-8 are taken as
 * U+FFFD, one for each maximal ill-formed part.
 */
#ifndef UNDERSTUDY_US_TOKENIZER_H
#define UNDERSTUDY_US_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "understudy/us_status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct us_tokenizer us_tokenizer;
typedef struct us_tok_scratch us_tok_scratch;
typedef struct us_tok_stream us_tok_stream;

/** Read path: a tokenizer.json, or a folder that holds one. Classes: "json", "tokenizer", "merges", "regex", "unsupported", "limit". */
US_API us_status us_tokenizer_load(const char *path, us_tokenizer **out, us_err *err) US_WARN_UNUSED;
/** As load, from memory. */
US_API us_status us_tokenizer_parse(const char *json, size_t n, us_tokenizer **out, us_err *err) US_WARN_UNUSED;
/** NULL is fine. */
US_API void us_tokenizer_free(us_tokenizer *t);

/** One more than the largest id. */
US_API uint32_t us_tokenizer_n_ids(const us_tokenizer *t);
/** Id of a token as tokenizer.json spells it, or UINT32_MAX. */
US_API uint32_t us_tokenizer_find(const us_tokenizer *t, const char *token, size_t n);

/** Ids of one text. `offsets` holds 2*n numbers, [start, end) of each id in code points of the text, when they were asked for. Zero-initialise. */
typedef struct us_tok_ids {
    uint32_t *ids;
    uint32_t *offsets;
    size_t n, cap, offsets_cap;
    size_t replaced; /* ill-formed parts of the text that were taken as U+FFFD */
} us_tok_ids;
US_API void us_tok_ids_free(us_tok_ids *ids);

US_API us_status us_tok_scratch_create(const us_tokenizer *t, us_tok_scratch **out, us_err *err) US_WARN_UNUSED;
US_API void us_tok_scratch_free(us_tok_scratch *s);

enum {
    US_TOK_NO_SPECIAL = 1, /* encode: leave out the tokens of the post-processor; decode: skip special tokens */
    US_TOK_OFFSETS = 2,    /* fill us_tok_ids.offsets */
    US_TOK_APPEND = 4,     /* keep what out holds and append */
};

/** Encode one text. Limits: 1 GiB a text (class "limit"). */
US_API us_status us_tokenizer_encode(const us_tokenizer *t, us_tok_scratch *s, const char *text, size_t n, unsigned flags, us_tok_ids *out,
                                     us_err *err) US_WARN_UNUSED;

/** A decoder that is fed id by id. A piece is the longest text that no later id can change; all pieces together are the decoded text. */
US_API us_status us_tok_stream_create(const us_tokenizer *t, unsigned flags, us_tok_stream **out, us_err *err) US_WARN_UNUSED;
US_API void us_tok_stream_free(us_tok_stream *s);
/** Forget everything; ready for the next text. */
US_API void us_tok_stream_reset(us_tok_stream *s);
/** Text that this id settles; borrowed until the next call; *n may be 0. Unknown ids give no text. */
US_API us_status us_tok_stream_push(us_tok_stream *s, uint32_t id, const char **piece, size_t *n, us_err *err) US_WARN_UNUSED;
/** The rest, at the end of the ids. */
US_API us_status us_tok_stream_finish(us_tok_stream *s, const char **piece, size_t *n, us_err *err) US_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
