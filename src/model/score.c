/* See score.h. */
#include "model/score.h"

#include "base/alloc.h"
#include "model/sample.h"

enum { PIECE_BYTES = 64 << 20, PIECE_MAX = 512 };

static unsigned bucket_of(size_t context) {
    unsigned b = 0;
    while (context > 1) context /= 2, b++;
    return b < US_SCORE_BUCKETS ? b : US_SCORE_BUCKETS - 1;
}

typedef struct piece {
    float *logits;    /* [rows, V] */
    uint32_t *targets;
    double *logp;
    size_t rows, V;
} piece;

/* Tokens [from, from + n) of a window's n_all ids: run them; score the token behind each when it is new. */
static us_status run_piece(us_ctx *ctx, us_engine *e, us_seq *seq, const piece *p, const int64_t *ids, size_t n_all, size_t from, size_t n, size_t seen, us_score *score,
                           us_err *err) {
    size_t last = from + n < n_all ? from + n : n_all - 1;       /* rows [first, last) predict tokens first+1 .. last */
    size_t first = seen > from + 1 ? seen - 1 : from, want = last > first ? from + n - first : 0;
    US_TRY(us_engine_run(e, &(us_segment){seq, ids + from, n, want}, 1, NULL, want ? p->logits : NULL, err));
    if (!want) return US_OK;
    size_t rows = last - first;
    for (size_t i = 0; i < rows; i++) p->targets[i] = (uint32_t)ids[first + 1 + i];
    US_TRY(us_logprobs(us_ctx_pool(ctx), &(us_logprobs_in){.rows = rows, .V = p->V, .f32 = p->logits, .targets = p->targets, .temperature = 1}, &(us_logprobs_out){.logp = p->logp}, err));
    for (size_t i = 0; i < rows; i++) {
        unsigned b = bucket_of(first + i + 1);
        score->nll -= p->logp[i];
        score->n++;
        score->bucket_nll[b] -= p->logp[i];
        score->bucket_n[b]++;
    }
    return US_OK;
}

static us_status run_window(us_ctx *ctx, us_engine *e, const piece *p, const int64_t *ids, size_t n, size_t seen, us_score *score, us_err *err) {
    us_seq *seq;
    US_TRY(us_seq_create(e, &seq, err));
    us_status s = US_OK;
    for (size_t at = 0; s == US_OK && at < n; at += p->rows) {
        s = us_ctx_check(ctx, err);
        if (s == US_OK) s = run_piece(ctx, e, seq, p, ids, n, at, n - at < p->rows ? n - at : p->rows, seen, score, err);
    }
    us_seq_free(seq);
    return s;
}

us_status us_score_text(us_ctx *ctx, us_engine *e, const us_score_options *o, const int64_t *ids, size_t n, us_score *score, us_err *err) {
    uint64_t context = us_engine_context(e);
    if (o->window < 2 || !o->stride || o->stride > o->window || (context && o->window > context))
        return us_fail(err, US_E_INVAL, "range", "a window of %zu tokens and a stride of %zu do not fit a context of %llu", o->window, o->stride, (unsigned long long)context);
    if (n < 2) return US_OK;
    piece p = {.V = us_engine_recipe(e)->V};
    p.rows = PIECE_BYTES / sizeof(float) / p.V;
    p.rows = p.rows < 1 ? 1 : p.rows > PIECE_MAX ? PIECE_MAX : p.rows;
    p.logits = us_calloc(p.rows * p.V, sizeof *p.logits);
    p.targets = us_calloc(p.rows, sizeof *p.targets);
    p.logp = us_calloc(p.rows, sizeof *p.logp);
    us_status s = p.logits && p.targets && p.logp ? US_OK : us_fail_nomem(err, "scoring");
    size_t done = 1; /* tokens before this one are scored (the first never is) */
    for (size_t at = 0; s == US_OK && done < n; at += o->stride) {
        size_t end = n - at < o->window ? n : at + o->window;
        s = run_window(ctx, e, &p, ids + at, end - at, done - at > 1 ? done - at : 1, score, err);
        us_progress_add(ctx, end - done);
        done = end;
    }
    us_free(p.logits);
    us_free(p.targets);
    us_free(p.logp);
    return s;
}
