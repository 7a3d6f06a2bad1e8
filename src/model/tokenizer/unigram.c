/*
 * Unigram model: the best path over pieces (Viterbi), unknown characters at the lowest score minus 10, runs of them fused. Ties go to the
 * path found first. Tests: tests/golden/test_fix_tokenizers.c.
 */
#include <string.h>

#include "model/tokenizer/internal.h"

static us_status room(us_tok_scratch *s, size_t n, us_err *err) {
    if (!us_grow(&s->uni_score, &s->uni_cap, n + 1, sizeof *s->uni_score) || !us_grow(&s->uni_from, &s->uni_cap2, n + 1, sizeof *s->uni_from) ||
        !us_grow(&s->uni_id, &s->uni_cap3, n + 1, sizeof *s->uni_id))
        return us_tok_nomem(err);
    memset(s->uni_from, 0xff, (n + 1) * sizeof *s->uni_from);
    s->uni_score[0] = 0;
    return US_OK;
}

static void relax(us_tok_scratch *s, size_t from, size_t to, double score, uint32_t id) {
    if (s->uni_from[to] != US_TOK_NONE && !(score > s->uni_score[to])) return;
    s->uni_score[to] = score;
    s->uni_from[to] = (uint32_t)from;
    s->uni_id[to] = id;
}

static us_status best_path(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, us_err *err) {
    US_TRY(room(s, n, err));
    for (size_t i = 0; i < n;) {
        unsigned k;
        (void)us_uc_decode((const unsigned char *)p + i, &k);
        bool single = false;
        double here = s->uni_score[i];
        for (size_t e = i; e < n;) {
            unsigned c;
            (void)us_uc_decode((const unsigned char *)p + e, &c);
            e += c;
            if (e - i > t->max_piece) break;
            uint32_t id = us_vocab_find(&t->vocab, p + i, e - i);
            if (id == US_TOK_NONE) continue;
            relax(s, i, e, t->scores[id] + here, id);
            if (e - i == k) single = true;
        }
        if (!single) {
            if (t->unk == US_TOK_NONE) return us_fail(err, US_E_FORMAT, "tokenizer", "the unigram model has no unknown token, and the text needs it");
            relax(s, i, i + k, t->min_score - 10.0 + here, t->unk);
        }
        i += k;
    }
    return US_OK;
}

static us_status emit(const us_tokenizer *t, us_tok_scratch *s, size_t *m, const char *p, size_t n, us_err *err) {
    uint32_t id = us_vocab_find(&t->vocab, p, n);
    bool bytes = id == US_TOK_NONE && t->byte_fallback;
    for (size_t i = 0; bytes && i < n; i++) bytes = t->byte_id[(unsigned char)p[i]] != US_TOK_NONE;
    size_t need = bytes ? n : 1;
    if (!us_grow(&s->syms, &s->syms_cap, *m + need, sizeof *s->syms)) return us_tok_nomem(err);
    if (!bytes) s->syms[(*m)++] = (us_sym){id == US_TOK_NONE ? t->unk : id, (uint32_t)n, 0, 0};
    for (size_t i = n; bytes && i-- > 0;) s->syms[(*m)++] = (us_sym){t->byte_id[(unsigned char)p[i]], i == 0 ? (uint32_t)n : 0, 0, 0};
    return US_OK;
}

us_status us_unigram_word(const us_tokenizer *t, us_tok_scratch *s, const char *p, size_t n, int32_t *first, us_err *err) {
    *first = -1;
    if (n == 0) return US_OK;
    US_TRY(best_path(t, s, p, n, err));
    size_t m = 0, fused = 0; /* bytes of unknown pieces gathered in front of `end` */
    for (size_t end = n; end > 0;) {
        size_t from = s->uni_from[end];
        if (s->uni_id[end] == t->unk) {
            fused += end - from;
        } else {
            if (fused) US_TRY(emit(t, s, &m, p + end, fused, err));
            fused = 0;
            US_TRY(emit(t, s, &m, p + from, end - from, err));
        }
        end = from;
    }
    if (fused) US_TRY(emit(t, s, &m, p, fused, err));
    /* found from the end: link them backwards */
    for (size_t i = 0; i < m; i++) s->syms[i].next = (int32_t)i - 1;
    *first = (int32_t)m - 1;
    return US_OK;
}
