/*
 * Decoding, one id at a time. A piece is the longest text that no later id can change: incomplete UTF-8 is held (ByteLevel), runs of <0xXX> tokens are
 * held to their end (byte fallback). Decoding a whole list is this, with the pieces joined. Tests: tests/golden/test_fix_tokenizers.c.
 */
#include <string.h>

#include "model/tokenizer/internal.h"

struct us_tok_stream {
    const us_tokenizer *t;
    unsigned flags;
    us_buf held, out;
    bool first;    /* no token yet */
    int strip;     /* characters still to be stripped at the start */
};

us_status us_tok_stream_create(const us_tokenizer *t, unsigned flags, us_tok_stream **out, us_err *err) {
    us_tok_stream *s = us_calloc(1, sizeof *s);
    if (!s) return us_tok_nomem(err);
    s->t = t;
    s->flags = flags;
    us_tok_stream_reset(s);
    *out = s;
    return US_OK;
}

void us_tok_stream_free(us_tok_stream *s) {
    if (!s) return;
    us_buf_free(&s->held);
    us_buf_free(&s->out);
    us_free(s);
}

void us_tok_stream_reset(us_tok_stream *s) {
    us_buf_clear(&s->held);
    us_buf_clear(&s->out);
    s->first = true;
    s->strip = s->t->dec_strip;
}

/* Put out what is settled of the held bytes. */
static void settle_bytes(us_tok_stream *s, bool end) {
    size_t i = 0, n = s->held.n;
    const unsigned char *p = (const unsigned char *)s->held.p;
    while (i < n) {
        int k = us_utf8_step(p + i, n - i);
        if (k == 0 && !end) break;
        if (k > 0) us_buf_add(&s->out, p + i, (size_t)k);
        else us_buf_z(&s->out, "\xEF\xBF\xBD");
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n - i;
    }
    if (i) memmove(s->held.p, s->held.p + i, n - i);
    s->held.n = n - i;
}

/* SentencePiece text: strip what is left to strip, in the first non-empty text. */
static void put_sp(us_tok_stream *s, const char *p, size_t n) {
    if (n == 0) return;
    while (s->strip && n && *p == s->t->dec_strip_char) {
        p++;
        n--;
        s->strip--;
        if (n == 0) return; /* the next text goes on with it only if more may be stripped */
    }
    s->strip = 0;
    us_buf_add(&s->out, p, n);
}

static void settle_run(us_tok_stream *s) {
    size_t n = s->held.n;
    if (n == 0) return;
    if (us_utf8_valid(s->held.p, n, NULL)) {
        put_sp(s, s->held.p, n);
    } else {
        for (size_t i = 0; i < n; i++) put_sp(s, "\xEF\xBF\xBD", 3);
    }
    s->held.n = 0;
}

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void replaced(us_tok_stream *s, us_str text, us_str from, us_str to, us_buf *out) {
    (void)s;
    for (size_t i = 0; i < text.n;) {
        if (from.n && text.n - i >= from.n && memcmp(text.p + i, from.p, from.n) == 0) {
            us_buf_str(out, to);
            i += from.n;
        } else {
            us_buf_c(out, text.p[i++]);
        }
    }
}

static void push_sp(us_tok_stream *s, us_str text, us_buf *tmp) {
    const us_tokenizer *t = s->t;
    if (t->dec_fallback && text.n == 6 && memcmp(text.p, "<0x", 3) == 0 && text.p[5] == '>' && hex(text.p[3]) >= 0 && hex(text.p[4]) >= 0) {
        us_buf_c(&s->held, (char)(hex(text.p[3]) * 16 + hex(text.p[4])));
        return;
    }
    settle_run(s);
    replaced(s, text, t->dec_from, t->dec_to, tmp);
    put_sp(s, tmp->p ? tmp->p : "", tmp->n);
}

us_status us_tok_stream_push(us_tok_stream *s, uint32_t id, const char **piece, size_t *n, us_err *err) {
    const us_tokenizer *t = s->t;
    us_buf_clear(&s->out);
    *piece = "";
    *n = 0;
    uint32_t k = id < t->n_ids ? t->added_by_id[id] : US_TOK_NONE;
    const us_added *a = k != US_TOK_NONE ? &t->added[k] : NULL;
    us_str text = a ? a->shown : us_vocab_str(&t->vocab, id);
    if (!text.p || (a && a->special && (s->flags & US_TOK_NO_SPECIAL))) return US_OK;
    us_buf tmp = {0};
    switch (t->decoder) {
    case US_TOK_DEC_BYTES:
        us_buf_str(&s->held, a ? a->bytes : text);
        settle_bytes(s, false);
        break;
    case US_TOK_DEC_SP: push_sp(s, text, &tmp); break;
    case US_TOK_DEC_METASPACE: replaced(s, text, t->dec_from, s->first ? (us_str){"", 0} : US_LIT(" "), &s->out); break;
    default:
        if (!s->first) us_buf_c(&s->out, ' ');
        us_buf_str(&s->out, text);
        break;
    }
    s->first = false;
    us_status st = us_buf_status(&s->out, err, "decoding");
    if (st == US_OK) st = us_buf_status(&s->held, err, "decoding");
    if (st == US_OK) st = us_buf_status(&tmp, err, "decoding");
    us_buf_free(&tmp);
    if (s->out.n) *piece = s->out.p;
    *n = s->out.n;
    return st;
}

us_status us_tok_stream_finish(us_tok_stream *s, const char **piece, size_t *n, us_err *err) {
    us_buf_clear(&s->out);
    if (s->t->decoder == US_TOK_DEC_BYTES) settle_bytes(s, true);
    else settle_run(s);
    *piece = s->out.n ? s->out.p : "";
    *n = s->out.n;
    return us_buf_status(&s->out, err, "decoding");
}
