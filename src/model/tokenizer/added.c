/* Added tokens: leftmost-longest search for all at once. Tests: tests/golden/test_fix_tokenizers.c. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

typedef struct entry {
    us_str key;
    uint32_t which;
} entry;

static int by_key(const void *a, const void *b) {
    return us_str_cmp(((const entry *)a)->key, ((const entry *)b)->key);
}

us_status us_matcher_build(us_tokenizer *t, us_matcher *m, bool normalized, us_err *err) {
    entry *e = us_arena_alloc(&t->arena, (t->n_added + 1) * sizeof *e);
    m->keys = us_arena_alloc(&t->arena, (t->n_added + 1) * sizeof *m->keys);
    m->which = us_arena_alloc(&t->arena, (t->n_added + 1) * sizeof *m->which);
    if (!e || !m->keys || !m->which) return us_tok_nomem(err);
    size_t n = 0;
    for (uint32_t i = 0; i < t->n_added; i++) {
        const us_added *a = &t->added[i];
        us_str key = normalized ? a->shown : a->content;
        if (a->normalized == normalized && key.n) e[n++] = (entry){key, i};
    }
    qsort(e, n, sizeof *e, by_key);
    m->n = n;
    for (size_t i = 0; i < n; i++) {
        m->keys[i] = e[i].key;
        m->which[i] = e[i].which;
        unsigned char f = (unsigned char)e[i].key.p[0];
        m->any[f] = 1;
        if (e[i].key.n == 1) memset(m->second, 1, sizeof m->second);
        else m->second[(unsigned char)e[i].key.p[1]] = 1;
        m->first[f + 1] = (uint32_t)i + 1;
    }
    for (int f = 0; f < 256; f++) {
        if (m->first[f + 1] < m->first[f]) m->first[f + 1] = m->first[f];
        if (m->any[f]) {
            if (m->n_first < 4) m->only[m->n_first] = (unsigned char)f;
            m->n_first++;
        }
    }
    return US_OK;
}

static bool word_at(const char *p, size_t i) {
    unsigned k;
    return (us_uc_of(us_uc_decode((const unsigned char *)p + i, &k)) & (US_UC_LETTER | US_UC_MARK | US_UC_WORD)) != 0;
}
static size_t step_back(const char *p, size_t i) {
    do i--;
    while (i && ((unsigned char)p[i] & 0xC0) == 0x80);
    return i;
}
static bool space_at(const char *p, size_t i, unsigned *k) {
    return (us_uc_of(us_uc_decode((const unsigned char *)p + i, k)) & US_UC_SPACE) != 0;
}

/* The longest key at place i, or -1. Keys with one first byte are neighbours; among keys that are prefixes of one another the longer is later. */
static int64_t longest(const us_matcher *m, const char *p, size_t n, size_t i) {
    unsigned char f = (unsigned char)p[i];
    for (uint32_t k = m->first[f + 1]; k-- > m->first[f];)
        if (m->keys[k].n <= n - i && memcmp(m->keys[k].p, p + i, m->keys[k].n) == 0) return k;
    return -1;
}

bool us_matcher_next(const us_tokenizer *t, const us_matcher *m, const char *p, size_t n, size_t *at, size_t taken, size_t *begin, size_t *end, const us_added **which) {
    for (size_t i = *at; i < n; i++) {
        if (m->n_first == 1) {
            const char *q = memchr(p + i, m->only[0], n - i);
            if (!q) break;
            i = (size_t)(q - p);
        } else {
            while (i < n && !m->any[(unsigned char)p[i]]) i++;
            if (i == n) break;
        }
        if (i + 1 < n && !m->second[(unsigned char)p[i + 1]]) continue;
        int64_t k = longest(m, p, n, i);
        if (k < 0) continue;
        const us_added *a = &t->added[m->which[k]];
        size_t b = i, e = i + m->keys[k].n;
        *at = e;
        i = e - 1;
        if (a->single_word && ((b > 0 && word_at(p, step_back(p, b))) || (e < n && word_at(p, e)))) continue;
        unsigned c;
        if (a->lstrip)
            while (b > taken) {
                size_t q = step_back(p, b);
                if (!space_at(p, q, &c)) break;
                b = q;
            }
        if (a->rstrip)
            while (e < n && space_at(p, e, &c)) e += c;
        *begin = b;
        *end = e;
        *which = a;
        return true;
    }
    *at = n;
    return false;
}
