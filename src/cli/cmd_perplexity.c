/* `understudy perplexity`: how well a checkpoint predicts given texts. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "cli/texts.h"
#include "model/score.h"

enum { WINDOW = 2048 };

static void put_score(us_buf *b, bool json, const us_score *z, uint64_t texts, uint64_t bytes, const us_score_options *o) {
    double mean = z->n ? z->nll / (double)z->n : 0;
    if (json) {
        us_buf_printf(b, "{\"texts\": %llu, \"tokens\": %llu, \"nll\": %.12g, \"perplexity\": %.12g, ", (unsigned long long)texts, (unsigned long long)z->n, mean, exp(mean));
        if (bytes) us_buf_printf(b, "\"bytes\": %llu, \"bits_per_byte\": %.12g, ", (unsigned long long)bytes, z->nll / log(2) / (double)bytes);
        us_buf_printf(b, "\"window\": %zu, \"stride\": %zu, \"by_position\": [", o->window, o->stride);
    } else {
        us_buf_printf(b, "perplexity    %.6g\nnll           %.6g nats a token\ntokens        %llu of %llu texts, windows of %zu, %zu apart\n", exp(mean), mean,
                      (unsigned long long)z->n, (unsigned long long)texts, o->window, o->stride);
        if (bytes) us_buf_printf(b, "bits per byte %.6g\n", z->nll / log(2) / (double)bytes);
        us_buf_z(b, "\n  context         tokens   nll\n");
    }
    bool first = true;
    for (unsigned i = 0; i < US_SCORE_BUCKETS; i++) {
        if (!z->bucket_n[i]) continue;
        double nll = z->bucket_nll[i] / (double)z->bucket_n[i];
        unsigned long long from = 1ull << i, to = (2ull << i) - 1, n = (unsigned long long)z->bucket_n[i];
        if (json) us_buf_printf(b, "%s{\"from\": %llu, \"to\": %llu, \"tokens\": %llu, \"nll\": %.12g}", first ? "" : ", ", from, to, n, nll);
        else us_buf_printf(b, "  %6llu-%-6llu %9llu   %.4f\n", from, to, n, nll);
        first = false;
    }
    if (json) us_buf_z(b, "]}\n");
}

static us_status score_all(us_cli *c, us_engine *e, const us_score_options *o, const us_ids *in, us_score *z, us_err *err) {
    us_status s = US_OK;
    us_progress_begin(us_cli_ctx(c), "scoring", "tokens", in->start ? in->start[in->B] : 0);
    for (size_t i = 0; s == US_OK && i < in->B; i++) {
        s = us_score_text(us_cli_ctx(c), e, o, in->ids + in->start[i], in->start[i + 1] - in->start[i], z, err);
        if (s != US_OK) us_err_where(err, "text %zu", i);
    }
    us_progress_end(us_cli_ctx(c));
    if (s == US_OK && !z->n) s = us_fail(err, US_E_REFUSED, "empty", "the texts hold no token to score: each needs two at least");
    return s;
}

static us_status run(us_cli *c, us_err *err) {
    us_cli_model m = {0};
    us_score z = {0};
    us_buf b = {0};
    us_status s;
    US_GO(us_cli_model_open(c, &m, err));
    US_GO(us_texts_read(&m.texts, c, 1, err));
    uint64_t context = us_engine_context(m.e);
    int64_t window = us_cli_int(c, "window", context && context < WINDOW ? (int64_t)context : WINDOW), stride = us_cli_int(c, "stride", (window + 1) / 2);
    if (window < 2 || stride < 1 || stride > window) {
        s = us_cli_usage(c, err, "--window must be at least 2, and --stride between 1 and the window");
        goto done;
    }
    us_score_options o = {(size_t)window, (size_t)stride};
    US_GO(score_all(c, m.e, &o, &m.texts.in, &z, err));
    put_score(&b, us_cli_json(c), &z, m.texts.in.B, m.texts.bytes, &o);
    US_GO(us_buf_status(&b, err, "writing the answer"));
    fwrite(b.p, 1, b.n, us_cli_out(c));
done:
    us_buf_free(&b);
    us_cli_model_close(&m);
    return s;
}

static const us_option options[] = {
    {"ids", 0, US_OPT_STRING, "FILE", "Texts as token ids: .npy of integers [B, T] or JSON [[1, 2], [3]].", false},
    {"jsonl", 0, US_OPT_FLAG, NULL, "Each line of a file is {\"text\": ...}, a text of its own.", false},
    {"window", 'w', US_OPT_INT, "N", "Tokens the model sees at once (default: 2048, or the model's context when that is shorter).", false},
    {"stride", 0, US_OPT_INT, "N", "Windows begin so many tokens apart (default: half a window); smaller is slower and gives tokens more context.", false},
    US_CLI_MODEL_OPTIONS,
    {0},
};

const us_command us_cmd_perplexity = {
    .name = "perplexity",
    .summary = "How well a checkpoint predicts given texts",
    .usage = "CKPT [FILE...] [--ids FILE] [--window N] [--stride N] [options]",
    .description = "Scores every token of the texts but the first: mean negative log-likelihood in nats, perplexity, bits per byte, and the likelihood by the number of tokens that stood "
                   "before it. A file is one text (without files standard input is). Texts longer than the window are read in overlapping windows, each token scored once.\n\n"
                   "Two checkpoints are compared on the same texts: original and proxy, or before and after a change.",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = run,
    .examples = "understudy perplexity Qwen/Qwen3-30B-A3B wiki.txt\nunderstudy perplexity proxy-e32 --jsonl held-out.jsonl --json\n",
};
