/* `understudy generate`: continue prompts, as text or as token ids. */
#include <string.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "cli/texts.h"
#include "model/generate.h"

typedef struct job {
    us_cli *c;
    us_cli_model m;
    us_tok_stream *stream;
    bool show; /* print text as it comes: one prompt, no --json */
} job;

/* --ids FILE, --prompt TEXT (many) and --prompt-file FILE, or standard input as one prompt. */
static us_status read_prompts(job *j, us_err *err) {
    int n;
    const char *const *given = us_cli_strings(j->c, "prompt", &n);
    const char *file = us_cli_string(j->c, "prompt-file", NULL);
    if (us_cli_flag(j->c, "ids") && (n || file)) return us_cli_usage(j->c, err, "--ids and prompts of text exclude each other");
    if (!n && !file) return us_texts_read(&j->m.texts, j->c, 1, err);
    for (int i = 0; i < n; i++) US_TRY(us_texts_add(&j->m.texts, given[i], strlen(given[i]), err));
    return file ? us_texts_add_file(&j->m.texts, file, false, err) : US_OK;
}

static us_status shown(void *user, size_t text, const us_sampled *t, us_err *err) {
    job *j = user;
    const char *piece;
    size_t n;
    (void)text;
    US_TRY(us_tok_stream_push(j->stream, t->id, &piece, &n, err));
    fwrite(piece, 1, n, us_cli_out(j->c));
    fflush(us_cli_out(j->c));
    return US_OK;
}

static us_status decoded(job *j, const int64_t *ids, size_t n, us_buf *out, us_err *err) {
    const char *piece;
    size_t k;
    us_tok_stream_reset(j->stream);
    for (size_t i = 0; i < n; i++) {
        US_TRY(us_tok_stream_push(j->stream, (uint32_t)ids[i], &piece, &k, err));
        us_buf_add(out, piece, k);
    }
    US_TRY(us_tok_stream_finish(j->stream, &piece, &k, err));
    us_buf_add(out, piece, k);
    return US_OK;
}

static void put_logprobs(us_buf *b, const us_generated *g) {
    us_buf_z(b, ", \"logprobs\": [");
    for (size_t i = 0; i < g->n - g->n_prompt; i++) {
        const us_sampled *t = &g->tokens[i];
        us_buf_printf(b, "%s{\"id\": %u, \"logprob\": %.9g, \"sampled_logprob\": %.9g, \"entropy\": %.9g", i ? ", " : "", t->id, t->logp_raw, t->logp, t->entropy_raw);
        for (size_t k = 0; k < t->n_top; k++) {
            const us_sample_top *o = &g->top[i * g->n_top + k];
            us_buf_printf(b, "%s{\"id\": %u, \"logprob\": %.9g}", k ? ", " : ", \"top\": [", o->id, o->logp_raw);
        }
        us_buf_z(b, t->n_top ? "]}" : "}");
    }
    us_buf_c(b, ']');
}

static us_status put_json(job *j, const us_generated *g, bool logprobs, us_buf *b, us_err *err) {
    us_buf text = {0};
    us_status s = US_OK;
    us_buf_z(b, "{\"ids\": [");
    for (size_t i = 0; i < g->n; i++) us_buf_printf(b, "%s%lld", i ? ", " : "", (long long)g->ids[i]);
    us_buf_printf(b, "], \"prompt_tokens\": %zu, \"finish\": \"%s\"", g->n_prompt, g->finish == US_FINISH_STOP ? "stop" : "length");
    if (j->m.texts.tok) {
        s = decoded(j, g->ids + g->n_prompt, g->n - g->n_prompt, &text, err);
        us_buf_z(b, ", \"text\": ");
        us_buf_json(b, us_buf_view(&text));
        us_buf_free(&text);
    }
    if (logprobs) put_logprobs(b, g);
    us_buf_c(b, '}');
    return s;
}

static us_status put_plain(job *j, const us_generated *g, bool many, us_buf *b, us_err *err) {
    if (!j->m.texts.tok) {
        for (size_t i = 0; i < g->n; i++) us_buf_printf(b, "%s%lld", i ? " " : "", (long long)g->ids[i]);
        us_buf_c(b, '\n');
        return US_OK;
    }
    US_TRY(decoded(j, many ? g->ids : g->ids + g->n_prompt, many ? g->n : g->n - g->n_prompt, b, err));
    us_buf_c(b, '\n');
    return US_OK;
}

static us_status answer(job *j, const us_generated *g, us_err *err) {
    us_buf b = {0};
    us_status s = US_OK;
    bool json = us_cli_json(j->c), many = j->m.texts.in.B != 1, logprobs = us_cli_flag(j->c, "logprobs") || us_cli_int(j->c, "top-logprobs", 0) > 0;
    const char *piece;
    size_t n;
    if (json && many) us_buf_c(&b, '[');
    for (size_t i = 0; s == US_OK && i < j->m.texts.in.B; i++) {
        if (i) us_buf_z(&b, json ? ",\n " : "----\n");
        if (json) s = put_json(j, &g[i], logprobs, &b, err);
        else if (!j->show) s = put_plain(j, &g[i], many, &b, err);
    }
    if (json) us_buf_z(&b, many ? "]\n" : "\n");
    if (s == US_OK && j->show) {
        s = us_tok_stream_finish(j->stream, &piece, &n, err);
        if (s == US_OK) us_buf_add(&b, piece, n);
        us_buf_c(&b, '\n');
    }
    if (s == US_OK) s = us_buf_status(&b, err, "writing the answer");
    if (s == US_OK) fwrite(b.p, 1, b.n, us_cli_out(j->c));
    us_buf_free(&b);
    return s;
}

static us_status sampling_of(us_cli *c, us_sampling *o, us_err *err) {
    *o = (us_sampling)US_SAMPLING_DEFAULTS;
    const char *order = us_cli_string(c, "order", "vllm");
    o->temperature = us_cli_flag(c, "greedy") ? 0 : us_cli_double(c, "temperature", 1);
    int64_t k = us_cli_int(c, "top-k", 0);
    if (k < 0 || k > UINT32_MAX) return us_cli_usage(c, err, "--top-k must be 0 (off) or a positive number");
    if (strcmp(order, "vllm") == 0) o->order = US_ORDER_VLLM;
    else if (strcmp(order, "transformers") == 0) o->order = US_ORDER_TRANSFORMERS;
    else return us_cli_usage(c, err, "--order is vllm or transformers, not %s", order);
    o->top_k = (uint32_t)k;
    o->top_p = us_cli_double(c, "top-p", 1);
    o->min_p = us_cli_double(c, "min-p", 0);
    o->repetition = us_cli_double(c, "repetition-penalty", 1);
    o->frequency = us_cli_double(c, "frequency-penalty", 0);
    o->presence = us_cli_double(c, "presence-penalty", 0);
    return US_OK;
}

static us_status run(us_cli *c, us_err *err) {
    us_ctx *ctx = us_cli_ctx(c);
    job j = {.c = c};
    uint32_t *stop = NULL;
    us_prompt *prompts = NULL;
    us_generated *out = NULL;
    us_status s;
    us_generate_options o = {.seed = us_ctx_seed(ctx)};
    int64_t max_new = us_cli_int(c, "max-new", 128), top = us_cli_int(c, "top-logprobs", 0);
    if (max_new < 0 || top < 0) return us_cli_usage(c, err, "--max-new and --top-logprobs must not be negative");
    o.max_new = (size_t)max_new;
    o.n_top = (size_t)top;
    US_TRY(sampling_of(c, &o.sampling, err));
    US_GO(us_cli_model_open(c, &j.m, err));
    if (j.m.texts.tok) US_GO(us_tok_stream_create(j.m.texts.tok, us_cli_flag(c, "special") ? 0 : US_TOK_NO_SPECIAL, &j.stream, err));
    US_GO(read_prompts(&j, err));
    if (!us_cli_flag(c, "ignore-eos")) US_GO(us_stop_ids(j.m.st, &stop, &o.n_stop, err));
    o.stop = stop;
    j.show = j.m.texts.tok && j.m.texts.in.B == 1 && !us_cli_json(c);
    prompts = us_calloc(j.m.texts.in.B + 1, sizeof *prompts);
    out = us_calloc(j.m.texts.in.B + 1, sizeof *out);
    if (!prompts || !out) {
        s = us_fail_nomem(err, "generating");
        goto done;
    }
    for (size_t i = 0; i < j.m.texts.in.B; i++) prompts[i] = (us_prompt){j.m.texts.in.ids + j.m.texts.in.start[i], j.m.texts.in.start[i + 1] - j.m.texts.in.start[i]};
    US_GO(us_generate(ctx, j.m.e, &o, prompts, j.m.texts.in.B, j.show ? shown : NULL, &j, out, err));
    US_GO(answer(&j, out, err));
done:
    for (size_t i = 0; out && i < j.m.texts.in.B; i++) us_generated_free(&out[i]);
    us_free(out);
    us_free(prompts);
    us_free(stop);
    us_tok_stream_free(j.stream);
    us_cli_model_close(&j.m);
    return s;
}

static const us_option options[] = {
    {"prompt", 'p', US_OPT_STRING, "TEXT", "A prompt; may be given several times. Without any prompt standard input is one.", true},
    {"prompt-file", 0, US_OPT_STRING, "FILE", "A file whose whole text is a prompt.", false},
    {"ids", 0, US_OPT_STRING, "FILE", "Prompts as token ids: .npy of integers [B, T] or JSON [[1, 2], [3]].", false},
    {"max-new", 'n', US_OPT_INT, "N", "New tokens for each prompt at most (default 128).", false},
    {"greedy", 0, US_OPT_FLAG, NULL, "Always the most probable token; ties to the lowest id.", false},
    {"temperature", 0, US_OPT_DOUBLE, "T", "Logits are divided by it (default 1; 0 = greedy).", false},
    {"top-k", 0, US_OPT_INT, "K", "Draw among the K most probable tokens (default 0: off).", false},
    {"top-p", 0, US_OPT_DOUBLE, "P", "Draw among the most probable tokens that make up P (default 1: off).", false},
    {"min-p", 0, US_OPT_DOUBLE, "P", "Leave out tokens below P times the most probable one (default 0: off).", false},
    {"repetition-penalty", 0, US_OPT_DOUBLE, "X", "Positive logits of tokens that occurred are divided by X, others multiplied (default 1: off).", false},
    {"frequency-penalty", 0, US_OPT_DOUBLE, "X", "Taken from a logit for each time that the token was generated (default 0).", false},
    {"presence-penalty", 0, US_OPT_DOUBLE, "X", "Taken once from the logits of generated tokens (default 0).", false},
    {"order", 0, US_OPT_STRING, "NAME", "vllm (default) or transformers: where min-p stands.", false},
    {"ignore-eos", 0, US_OPT_FLAG, NULL, "Go on behind a token that ends the text.", false},
    {"logprobs", 0, US_OPT_FLAG, NULL, "With --json: log-probability of each new token, of the model and of the distribution drawn from, and entropy in nats.", false},
    {"top-logprobs", 0, US_OPT_INT, "N", "With --json: also the N most probable tokens of each position.", false},
    {"special", 0, US_OPT_FLAG, NULL, "Show special tokens in the text.", false},
    US_CLI_MODEL_OPTIONS,
    {0},
};

const us_command us_cmd_generate = {
    .name = "generate",
    .summary = "Continue prompts with a checkpoint",
    .usage = "CKPT [--prompt TEXT | --prompt-file FILE | --ids FILE] [--max-new N] [--greedy] [options]",
    .description = "Continues each prompt and prints what is new as it comes; several prompts run together and are printed whole, divided by lines of four dashes. The same seed gives "
                   "the same text, for any number of threads and whatever else runs in the batch.\n\n--json prints {\"ids\": [...], ...} with the prompt's ids in front, a list of "
                   "such for several prompts. Prompts are taken as they are; understudy chat makes them from messages. Without tokenizer.json, ids go in and come out.",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .run = run,
    .examples = "understudy generate Qwen/Qwen3-30B-A3B --prompt \"Two plus two is\" --max-new 16 --greedy\n"
                "understudy chat Qwen/Qwen3-30B-A3B --messages m.json | understudy generate Qwen/Qwen3-30B-A3B --temperature 0.7\n"
                "understudy generate CKPT --ids prompts.npy --json --logprobs\n",
};
