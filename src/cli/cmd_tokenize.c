/* `understudy tokenize`: text to ids and back, a line each, in order, in bounded memory; batches of lines go over the thread pool. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "io/json.h"
#include "understudy/us_tokenizer.h"

enum { BATCH_LINES = 4096, BATCH_BYTES = 4 << 20, LINE_MAX_BYTES = 1 << 30 };

typedef struct worker {
    us_tok_scratch *scratch;
    us_tok_stream *stream;
    us_tok_ids ids;
} worker;

typedef struct line {
    size_t begin, n;
    us_buf out;
    us_status status;
    us_err err;
    size_t replaced;
} line;

typedef struct job {
    const us_tokenizer *t;
    bool decode, jsonl, count;
    unsigned flags;
    us_buf text;
    line *lines;
    size_t n, first; /* lines of the batch; number of its first line */
    worker *workers;
    int n_workers;
    size_t replaced;
} job;

static us_status decode_ids(worker *w, const uint32_t *ids, size_t n, us_buf *out, us_err *err) {
    const char *p;
    size_t k;
    us_tok_stream_reset(w->stream);
    for (size_t i = 0; i < n; i++) {
        US_TRY(us_tok_stream_push(w->stream, ids[i], &p, &k, err));
        us_buf_add(out, p, k);
    }
    US_TRY(us_tok_stream_finish(w->stream, &p, &k, err));
    us_buf_add(out, p, k);
    return us_buf_status(out, err, "decoding");
}

static us_status add_id(worker *w, uint64_t id, us_err *err) {
    if (id > UINT32_MAX) return us_fail(err, US_E_FORMAT, "ids", "an id is above 2^32-1");
    if (!us_grow(&w->ids.ids, &w->ids.cap, w->ids.n + 1, sizeof *w->ids.ids)) return us_fail_nomem(err, "reading ids");
    w->ids.ids[w->ids.n++] = (uint32_t)id;
    return US_OK;
}

/* Ids of a plain line: decimal numbers between spaces, commas, brackets. */
static us_status plain_ids(worker *w, us_str s, us_err *err) {
    w->ids.n = 0;
    for (size_t i = 0; i < s.n;) {
        if (strchr(" \t\r,[]", s.p[i]) && s.p[i]) {
            i++;
            continue;
        }
        size_t e = i;
        while (e < s.n && s.p[e] >= '0' && s.p[e] <= '9') e++;
        uint64_t id;
        if (!us_str_to_u64(us_str_sub(s, i, e), &id)) return us_fail(err, US_E_FORMAT, "ids", "the line holds something that is no id");
        US_TRY(add_id(w, id, err));
        i = e;
    }
    return US_OK;
}

static us_status json_ids(worker *w, const us_json_doc *d, us_json_ref list, us_err *err) {
    w->ids.n = 0;
    for (us_json_ref e = us_json_first(d, list); e != US_JSON_NO; e = us_json_next(d, list, e)) {
        uint64_t id;
        if (!us_json_u64(d, e, &id)) return us_fail(err, US_E_FORMAT, "ids", "`ids` holds something that is no id");
        US_TRY(add_id(w, id, err));
    }
    return US_OK;
}

static void put_ids(us_buf *b, const us_tok_ids *o, const char *gap) {
    for (size_t i = 0; i < o->n; i++) us_buf_printf(b, "%s%u", i ? gap : "", o->ids[i]);
}

static us_status text_line(const job *j, worker *w, us_str text, bool offsets, line *l, us_err *err) {
    US_TRY(us_tokenizer_encode(j->t, w->scratch, text.p, text.n, j->flags | (offsets ? US_TOK_OFFSETS : 0u), &w->ids, err));
    l->replaced = w->ids.replaced;
    if (j->count) {
        us_buf_printf(&l->out, j->jsonl ? "{\"count\": %zu}" : "%zu", w->ids.n);
    } else if (!j->jsonl) {
        put_ids(&l->out, &w->ids, " ");
    } else {
        us_buf_z(&l->out, "{\"ids\": [");
        put_ids(&l->out, &w->ids, ", ");
        us_buf_z(&l->out, "], \"offsets\": [");
        for (size_t i = 0; i < w->ids.n; i++) us_buf_printf(&l->out, "%s[%u, %u]", i ? ", " : "", w->ids.offsets[2 * i], w->ids.offsets[2 * i + 1]);
        us_buf_z(&l->out, "]}");
    }
    return US_OK;
}

static us_status decoded_line(worker *w, bool json, line *l, us_err *err) {
    us_buf text = {0};
    us_status s = decode_ids(w, w->ids.ids, w->ids.n, &text, err);
    if (json) {
        us_buf_z(&l->out, "{\"text\": ");
        us_buf_json(&l->out, us_buf_view(&text));
        us_buf_c(&l->out, '}');
    } else {
        us_buf_str(&l->out, us_buf_view(&text));
    }
    us_buf_free(&text);
    return s;
}

static us_status json_line(const job *j, worker *w, us_str s, line *l, us_err *err) {
    us_json_doc d;
    US_TRY(us_json_doc_parse(&d, s, 0, err));
    us_str text = us_json_string(&d, us_json_get(&d, 0, "text"));
    us_json_ref ids = us_json_get(&d, 0, "ids");
    us_status st;
    if (text.p && !j->decode) {
        st = text_line(j, w, text, true, l, err);
    } else if (ids != US_JSON_NO && us_json_type_of(&d, ids) == US_JSON_ARRAY) {
        st = json_ids(w, &d, ids, err);
        if (st == US_OK) st = decoded_line(w, true, l, err);
    } else {
        st = us_fail(err, US_E_FORMAT, "line", j->decode ? "the line is no object with a list `ids`" : "the line is no object with a string `text` or a list `ids`");
    }
    us_json_doc_free(&d);
    return st;
}

static void run_line(void *arg, int64_t i, int thread) {
    job *j = arg;
    line *l = &j->lines[i];
    worker *w = &j->workers[thread];
    us_str s = {j->text.p + l->begin, l->n};
    us_buf_clear(&l->out);
    l->replaced = 0;
    if (j->jsonl) {
        l->status = json_line(j, w, s, l, &l->err);
    } else if (j->decode) {
        l->status = plain_ids(w, s, &l->err);
        if (l->status == US_OK) l->status = decoded_line(w, false, l, &l->err);
    } else {
        l->status = text_line(j, w, s, false, l, &l->err);
    }
    us_buf_c(&l->out, '\n');
    if (l->status == US_OK) l->status = us_buf_status(&l->out, &l->err, "writing a line");
}

static us_status run_batch(us_cli *c, job *j, us_err *err) {
    us_pool_run(us_ctx_pool(us_cli_ctx(c)), run_line, j, (int64_t)j->n);
    for (size_t i = 0; i < j->n; i++) {
        line *l = &j->lines[i];
        if (l->status != US_OK) {
            *err = l->err;
            return us_err_where(err, "line %zu", j->first + i + 1);
        }
        fwrite(l->out.p, 1, l->out.n, us_cli_out(c));
        j->replaced += l->replaced;
    }
    j->first += j->n;
    j->n = 0;
    us_buf_clear(&j->text);
    return us_ctx_check(us_cli_ctx(c), err);
}

/* A line that is complete (or the rest): into the batch. */
static us_status end_line(us_cli *c, job *j, size_t begin, us_err *err) {
    j->lines[j->n].begin = begin;
    j->lines[j->n++].n = j->text.n - begin;
    return j->n == BATCH_LINES || j->text.n >= BATCH_BYTES ? run_batch(c, j, err) : US_OK;
}

static us_status all_lines(us_cli *c, job *j, FILE *in, us_err *err) {
    static char chunk[1 << 16];
    size_t begin = 0, n;
    bool open = false;
    while ((n = fread(chunk, 1, sizeof chunk, in)) > 0) {
        for (size_t i = 0; i < n;) {
            const char *q = memchr(chunk + i, '\n', n - i);
            size_t e = q ? (size_t)(q - chunk) : n;
            us_buf_add(&j->text, chunk + i, e - i);
            US_TRY(us_buf_status(&j->text, err, "reading lines"));
            if (j->text.n - begin > LINE_MAX_BYTES) return us_fail(err, US_E_LIMIT, "limit", "line %zu is longer than 1 GiB", j->first + j->n + 1);
            open = q == NULL;
            if (q) {
                US_TRY(end_line(c, j, begin, err));
                begin = j->text.n;
                e++;
            }
            i = e;
        }
    }
    if (ferror(in)) return us_fail_sys(err, errno, "io", "cannot read the text");
    if (open) US_TRY(end_line(c, j, begin, err));
    return j->n ? run_batch(c, j, err) : US_OK;
}

static us_status make_workers(us_cli *c, job *j, us_err *err) {
    j->n_workers = us_pool_threads(us_ctx_pool(us_cli_ctx(c)));
    j->workers = us_calloc((size_t)j->n_workers, sizeof *j->workers);
    j->lines = us_calloc(BATCH_LINES, sizeof *j->lines);
    if (!j->workers || !j->lines) return us_fail_nomem(err, "starting");
    us_buf_reserve(&j->text, 1);
    for (int i = 0; i < j->n_workers; i++) {
        US_TRY(us_tok_scratch_create(j->t, &j->workers[i].scratch, err));
        US_TRY(us_tok_stream_create(j->t, j->flags, &j->workers[i].stream, err));
    }
    return US_OK;
}

static us_status run(us_cli *c, us_err *err) {
    job j = {.decode = us_cli_flag(c, "decode"), .jsonl = us_cli_flag(c, "jsonl"), .count = us_cli_flag(c, "count")};
    if (us_cli_flag(c, "no-special")) j.flags |= US_TOK_NO_SPECIAL;
    if (j.count && j.decode) return us_cli_usage(c, err, "--count and --decode exclude each other");
    us_tokenizer *t = NULL;
    US_TRY(us_tokenizer_load(us_cli_arg(c, 0), &t, err));
    j.t = t;
    const char *path = us_cli_n_args(c) > 1 ? us_cli_arg(c, 1) : "-";
    FILE *in = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    us_status s = in ? make_workers(c, &j, err) : us_fail_sys(err, errno, "io", "cannot open %s", path);
    if (s == US_OK) s = all_lines(c, &j, in, err);
    if (s == US_OK && j.replaced) us_note(us_cli_ctx(c), "utf8", "%zu ill-formed parts of the text were taken as U+FFFD", j.replaced);
    if (in && in != stdin) fclose(in);
    for (int i = 0; j.workers && i < j.n_workers; i++) {
        us_tok_scratch_free(j.workers[i].scratch);
        us_tok_stream_free(j.workers[i].stream);
        us_tok_ids_free(&j.workers[i].ids);
    }
    for (size_t i = 0; j.lines && i < BATCH_LINES; i++) us_buf_free(&j.lines[i].out);
    us_free(j.workers);
    us_free(j.lines);
    us_buf_free(&j.text);
    us_tokenizer_free(t);
    return s;
}

static const us_option options[] = {
    {"decode", 'd', US_OPT_FLAG, NULL, "Ids in, text out.", false},
    {"no-special", 0, US_OPT_FLAG, NULL, "Leave out the tokens that the post-processor adds; with --decode skip special tokens.", false},
    {"jsonl", 0, US_OPT_FLAG, NULL, "Read {\"text\": ...} or {\"ids\": ...} lines; write {\"ids\": [...], \"offsets\": [...]} or {\"text\": ...} lines.", false},
    {"count", 'c', US_OPT_FLAG, NULL, "Print the number of ids of each line instead of the ids.", false},
    {NULL, 0, US_OPT_FLAG, NULL, NULL, false},
};

const us_command us_cmd_tokenize = {
    .name = "tokenize",
    .summary = "Turn text into token ids and back",
    .usage = "CHECKPOINT|tokenizer.json [FILE] [options]",
    .description = "Encodes each line of FILE (without FILE, or for -, of standard input) with the tokenizer of a checkpoint and writes its ids on a line. The ids are those of "
                   "the reference library. A line is a text of its own; texts that hold line breaks come as --jsonl.\n\nBytes that are not UTF-8 are "
                   "taken as U+FFFD, and a note says so. Offsets count code points.",
    .options = options,
    .min_args = 1,
    .max_args = 2,
    .run = run,
    .examples = "understudy tokenize Qwen/Qwen3-30B-A3B prompts.txt\nunderstudy tokenize tokenizer.json --jsonl < rollouts.jsonl\n",
};
