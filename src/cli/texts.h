/**
 * Texts a command works on, as token ids: files and standard input through the checkpoint's tokenizer, or --ids FILE. Commands that run a model share it.
 * Tests: tests/e2e/test_run_model.c.
 */
#ifndef US_CLI_TEXTS_H
#define US_CLI_TEXTS_H

#include "cli/cli.h"
#include "cli/ids.h"
#include "model/engine/engine.h"
#include "understudy/us_tokenizer.h"

typedef struct us_texts {
    us_tokenizer *tok; /* NULL where the checkpoint has none */
    us_tok_scratch *scratch;
    us_ids in;
    size_t ids_cap, start_cap;
    uint64_t bytes;    /* of text that was encoded; 0 after --ids */
    us_tok_ids piece;
} us_texts;

/** A checkpoint made ready to run: what generate, perplexity and route-stats begin with. */
typedef struct us_cli_model {
    us_checkpoint *ck;
    us_structure *st;
    us_engine *e;
    us_texts texts; /* tokenizer open, nothing read yet */
} us_cli_model;

/** Options of every command that runs a model: rows for its option table. */
#define US_CLI_MODEL_OPTIONS                                                                                                                          \
    {"dtype", 0, US_OPT_STRING, "TYPE", "bf16 (default) or f32.", false}, {"exact", 0, US_OPT_FLAG, NULL, "Recurrent layers token by token, so that results do not depend on how a text is cut.", false}, \
    {"stream", 0, US_OPT_FLAG, NULL, "Drop each layer's weights when it is done: for models larger than memory.", false}
/** The checkpoint named by argument 0, under those options. Zero-initialise; us_cli_model_close in any case. */
us_status us_cli_model_open(us_cli *c, us_cli_model *m, us_err *err) US_WARN_UNUSED;
void us_cli_model_close(us_cli_model *m);

/** The tokenizer of the checkpoint at `path`, if it has one. Zero-initialise; us_texts_free in any case. */
us_status us_texts_open(us_texts *t, const char *path, us_err *err) US_WARN_UNUSED;
void us_texts_free(us_texts *t);
/** One text of n bytes more. Class "tokenizer-missing". */
us_status us_texts_add(us_texts *t, const char *text, size_t n, us_err *err) US_WARN_UNUSED;
/** A file ("-": standard input) as one text, or with jsonl the "text" of each line as one. */
us_status us_texts_add_file(us_texts *t, const char *path, bool jsonl, us_err *err) US_WARN_UNUSED;
/** --ids FILE when given, else the files named from argument `first` on, else standard input; --jsonl as above. */
us_status us_texts_read(us_texts *t, us_cli *c, int first, us_err *err) US_WARN_UNUSED;

#endif
