/*
 * tokenizer.json to tables: model and vocabulary. The pipeline's parts are read in load_steps.c.
 * Everything in the file is hostile: ids and counts are bounded, nothing is allocated by a number that was not checked.
 * Tests: tests/golden/test_fix_tokenizers.c, tests/unit/test_tokenizer.c, fuzz target tokenizer.
 */
#include <string.h>

#include "io/fs.h"
#include "io/json.h"
#include "model/tokenizer/load.h"

us_status us_tok_bad(us_err *err, const char *what) {
    return us_fail(err, US_E_FORMAT, "tokenizer", "tokenizer.json: %s", what);
}

static void make_alphabet(us_tokenizer *t) {
    for (int i = 0; i < 512; i++) t->alphabet[i] = -1;
    int spare = 0;
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        t->alphabet[plain ? b : 256 + spare++] = b;
    }
}

/* The bytes that a token stands for; false when a character is outside the byte alphabet. out has room for text.n bytes. */
static bool unmap(const us_tokenizer *t, us_str text, char *out, size_t *n) {
    *n = 0;
    unsigned k;
    for (size_t i = 0; i < text.n; i += k) {
        uint32_t c = us_uc_decode((const unsigned char *)text.p + i, &k);
        if (c >= 512 || t->alphabet[c] < 0) return false;
        out[(*n)++] = (char)t->alphabet[c];
    }
    return true;
}

us_status us_tok_token_bytes(const us_tokenizer *t, us_arena *a, us_str text, us_str *out, bool *odd, us_err *err) {
    *odd = false;
    *out = text;
    if (!t->byte_level) return US_OK;
    char *p = us_arena_alloc(a, text.n + 1);
    size_t n;
    if (!p) return us_tok_nomem(err);
    if (unmap(t, text, p, &n)) *out = (us_str){p, n};
    else *odd = true;
    return US_OK;
}

/* ---- vocabulary ---- */

static us_status add_token(us_tokenizer *t, us_str text, uint64_t id, us_buf *tmp, us_err *err) {
    if (id >= US_TOK_ID_MAX) return us_fail(err, US_E_LIMIT, "limit", "token id %llu is above the limit of %d", (unsigned long long)id, US_TOK_ID_MAX);
    us_str bytes = text;
    bool odd = false;
    if (t->byte_level) {
        us_buf_clear(tmp);
        if (!us_buf_reserve(tmp, text.n + 1)) return us_tok_nomem(err);
        size_t n;
        if (unmap(t, text, tmp->p, &n)) bytes = (us_str){tmp->p, n};
        else odd = true;
    }
    if (id < t->vocab.n_ids && t->vocab.len[id] != US_TOK_NONE) return us_fail(err, US_E_FORMAT, "tokenizer", "tokenizer.json: id %llu is given to two tokens", (unsigned long long)id);
    US_TRY(us_vocab_add(&t->vocab, bytes.p, bytes.n, (uint32_t)id, err));
    if (bytes.n > t->max_piece) t->max_piece = (uint32_t)bytes.n;
    if (odd) {
        char *copy = us_arena_strndup(&t->arena, text.p, text.n);
        if (!copy || !us_map_set(&t->vocab.odd, (us_str){copy, text.n}, (uint32_t)id)) return us_tok_nomem(err);
    }
    return US_OK;
}

static us_status load_bpe_vocab(us_tokenizer *t, const us_json_doc *d, us_json_ref vocab, us_err *err) {
    if (us_json_type_of(d, vocab) != US_JSON_OBJECT) return us_tok_bad(err, "model.vocab is no object");
    us_buf tmp = {0};
    us_status s = US_OK;
    for (us_json_ref k = us_json_first(d, vocab); k != US_JSON_NO && s == US_OK;) {
        us_json_ref v = us_json_next(d, vocab, k);
        uint64_t id;
        if (!us_json_u64(d, v, &id)) s = us_tok_bad(err, "an id in model.vocab is no number");
        else s = add_token(t, us_json_string(d, k), id, &tmp, err);
        k = us_json_next(d, vocab, v);
    }
    us_buf_free(&tmp);
    return s;
}

/* The same from what load_raw.c read. A spelling given twice is found when the table is built. */
static us_status load_raw_vocab(us_tokenizer *t, const us_raw_model *raw, us_err *err) {
    us_buf tmp = {0};
    us_status s = us_vocab_reserve(&t->vocab, raw, err);
    for (size_t i = 0; i < raw->n_vocab && s == US_OK; i++) s = add_token(t, raw->vocab[i].text, raw->vocab[i].id, &tmp, err);
    us_buf_free(&tmp);
    return s;
}

static us_status load_unigram_vocab(us_tokenizer *t, const us_json_doc *d, us_json_ref vocab, us_err *err) {
    if (us_json_type_of(d, vocab) != US_JSON_ARRAY) return us_tok_bad(err, "model.vocab is no array");
    uint32_t n = us_json_count(d, vocab), i = 0;
    us_buf tmp = {0};
    us_status s = US_OK;
    t->scores = us_arena_alloc(&t->arena, ((size_t)n + 1) * sizeof *t->scores);
    if (!t->scores) return us_tok_nomem(err);
    for (us_json_ref e = us_json_first(d, vocab); e != US_JSON_NO && s == US_OK; e = us_json_next(d, vocab, e), i++) {
        us_str text = us_json_string(d, us_json_at(d, e, 0));
        if (!text.p || !us_json_double(d, us_json_at(d, e, 1), &t->scores[i])) s = us_tok_bad(err, "an entry of model.vocab is no [token, score]");
        else s = add_token(t, text, i, &tmp, err);
        if (s == US_OK && (i == 0 || t->scores[i] < t->min_score)) t->min_score = t->scores[i];
    }
    us_buf_free(&tmp);
    return s;
}

/* ---- merges ---- */

static us_status bad_merge(us_err *err, size_t i, const char *why) {
    return us_fail(err, US_E_FORMAT, "merges", "tokenizer.json: merge %zu %s", i, why);
}

static bool two_parts(const us_json_doc *d, us_json_ref m, us_str *a, us_str *b) {
    if (us_json_type_of(d, m) == US_JSON_ARRAY) {
        *a = us_json_string(d, us_json_at(d, m, 0));
        *b = us_json_string(d, us_json_at(d, m, 1));
        return us_json_count(d, m) == 2 && a->p && b->p;
    }
    us_str s = us_json_string(d, m);
    if (!s.p) return false;
    size_t cut = us_str_find(s, ' ', 0);
    if (cut == s.n || us_str_find(s, ' ', cut + 1) != s.n) return false;
    *a = us_str_sub(s, 0, cut);
    *b = us_str_sub(s, cut + 1, s.n);
    return true;
}

typedef struct merge_reader {
    us_tokenizer *t;
    us_buf joined;
    us_whole whole;
    bool crosses; /* some merge makes text with U+2581 behind another character */
} merge_reader;

/* Is there a U+2581 in x that another character stands before? */
static bool mark_inside(us_str x) {
    bool other = false;
    for (size_t i = 0; i < x.n;) {
        bool mark = x.n - i >= 3 && memcmp(x.p + i, "\xE2\x96\x81", 3) == 0;
        if (mark && other) return true;
        if (!mark) other = true;
        i += mark ? 3 : 1;
    }
    return false;
}

/* Merges are resolved a block at a time: what they need lies all over large tables, and is asked for before it is needed. */
enum { BLOCK = 32 };

typedef struct parts {
    char text[32]; /* a and b one after the other, when they are short together */
    size_t na, nb;
    us_key ka, kb, kab;
    us_merge m;
} parts;

static us_status resolve(merge_reader *r, us_str a, us_str b, size_t rank, us_merge *m, us_err *err) {
    us_tokenizer *t = r->t;
    us_buf *j = &r->joined;
    us_buf_clear(j);
    if (!us_buf_reserve(j, a.n + b.n + 1)) return us_tok_nomem(err);
    size_t na = a.n, nb = b.n;
    if (t->byte_level) {
        if (!unmap(t, a, j->p, &na) || !unmap(t, b, j->p + na, &nb)) return bad_merge(err, rank, "has a character outside the byte alphabet");
    } else {
        memcpy(j->p, a.p, na);
        memcpy(j->p + na, b.p, nb);
    }
    *m = (us_merge){us_vocab_find(&t->vocab, j->p, na), us_vocab_find(&t->vocab, j->p + na, nb), (uint32_t)rank, us_vocab_find(&t->vocab, j->p, na + nb)};
    if (!r->crosses && !t->byte_level && mark_inside((us_str){j->p, na + nb})) r->crosses = true;
    return US_OK;
}

static us_status put_merge(merge_reader *r, us_merge m, us_err *err) {
    us_tokenizer *t = r->t;
    if (m.left == US_TOK_NONE || m.right == US_TOK_NONE || m.id == US_TOK_NONE) return bad_merge(err, m.rank, "names a token that is not in the vocabulary");
    size_t before = t->merges.n;
    us_merges_put(&t->merges, m);
    us_whole_merge(&r->whole, t, m, t->merges.n == before);
    return US_OK;
}

/* Short parts of a byte-level merge as keys; false: the slow way. */
static bool keys_of(const us_tokenizer *t, us_str a, us_str b, parts *x) {
    if (!t->shorts || a.n + b.n > 30 || !unmap(t, a, x->text, &x->na) || !unmap(t, b, x->text + x->na, &x->nb) || x->na + x->nb > US_CACHE_WORD || !x->na || !x->nb) return false;
    x->ka = us_key_of(x->text, x->na);
    x->kb = us_key_of(x->text + x->na, x->nb);
    x->kab = us_key_of(x->text, x->na + x->nb);
    us_short_prefetch(t, x->ka);
    us_short_prefetch(t, x->kb);
    us_short_prefetch(t, x->kab);
    return true;
}

static us_status merge_block(merge_reader *r, const us_raw_merge *in, size_t n, size_t rank, us_err *err) {
    parts x[BLOCK];
    bool quick[BLOCK];
    us_tokenizer *t = r->t;
    for (size_t i = 0; i < n; i++) quick[i] = keys_of(t, in[i].a, in[i].b, &x[i]);
    for (size_t i = 0; i < n; i++) {
        if (quick[i]) x[i].m = (us_merge){us_short_find(t, x[i].ka), us_short_find(t, x[i].kb), (uint32_t)(rank + i), us_short_find(t, x[i].kab)};
        else US_TRY(resolve(r, in[i].a, in[i].b, rank + i, &x[i].m, err));
        us_merges_prefetch(&t->merges, x[i].m);
        us_whole_prefetch(&r->whole, x[i].m);
    }
    for (size_t i = 0; i < n; i++) US_TRY(put_merge(r, x[i].m, err));
    return US_OK;
}

static us_status raw_merges(merge_reader *r, const us_raw_model *raw, us_err *err) {
    for (size_t i = 0; i < raw->n_merges; i += BLOCK) US_TRY(merge_block(r, raw->merges + i, raw->n_merges - i < BLOCK ? raw->n_merges - i : BLOCK, i, err));
    return US_OK;
}

static us_status doc_merges(merge_reader *r, const us_json_doc *d, us_json_ref merges, us_err *err) {
    size_t i = 0;
    for (us_json_ref m = us_json_first(d, merges); m != US_JSON_NO; m = us_json_next(d, merges, m), i++) {
        us_raw_merge one;
        if (!two_parts(d, m, &one.a, &one.b)) return bad_merge(err, i, "is no pair");
        US_TRY(merge_block(r, &one, 1, i, err));
    }
    return US_OK;
}

/* What two bytes of text merge to. */
static us_status make_byte_pairs(us_tokenizer *t, us_err *err) {
    if (!t->byte_level) return US_OK;
    t->byte_pairs = us_malloc(65536 * sizeof *t->byte_pairs);
    if (!t->byte_pairs) return us_tok_nomem(err);
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t a = t->byte_id[i >> 8], b = t->byte_id[i & 255];
        const us_merge *m = a != US_TOK_NONE && b != US_TOK_NONE ? us_merges_find(&t->merges, a, b) : NULL;
        t->byte_pairs[i] = m ? (us_made){m->rank, m->id} : (us_made){US_TOK_NONE, 0};
    }
    return US_OK;
}

static us_status load_merges(us_tokenizer *t, const us_json_doc *d, us_json_ref merges, const us_raw_model *raw, us_err *err) {
    if (us_json_type_of(d, merges) != US_JSON_ARRAY) return us_tok_bad(err, "model.merges is no array");
    US_TRY(us_merges_init(&t->merges, raw->vocab ? raw->n_merges : us_json_count(d, merges), err));
    merge_reader r = {.t = t};
    us_status s = us_whole_init(&r.whole, t, err);
    if (s == US_OK) s = raw->vocab ? raw_merges(&r, raw, err) : doc_merges(&r, d, merges, err);
    if (s == US_OK) us_whole_finish(&r.whole, t);
    us_whole_free(&r.whole);
    us_buf_free(&r.joined);
    t->sp_cut = !t->byte_level && !r.crosses && !t->ignore_merges;
    return s == US_OK ? make_byte_pairs(t, err) : s;
}

/* ---- model ---- */

static bool flag(const us_json_doc *d, us_json_ref o, const char *key) {
    bool v = false;
    (void)us_json_bool(d, us_json_get(d, o, key), &v);
    return v;
}

static us_status byte_ids(us_tokenizer *t) {
    t->all_bytes = t->byte_level;
    for (int b = 0; b < 256; b++) {
        char name[8] = {'<', '0', 'x', "0123456789ABCDEF"[b >> 4], "0123456789ABCDEF"[b & 15], '>'};
        char c = (char)b;
        t->byte_id[b] = t->byte_level ? us_vocab_find(&t->vocab, &c, 1) : us_vocab_find(&t->vocab, name, 6);
        if (t->byte_id[b] == US_TOK_NONE) t->all_bytes = false;
    }
    return US_OK;
}

static us_status load_model(us_tokenizer *t, const us_json_doc *d, us_json_ref m, const us_raw_model *raw, us_err *err) {
    us_str type = us_json_string(d, us_json_get(d, m, "type"));
    us_json_ref vocab = us_json_get(d, m, "vocab");
    t->unigram = us_str_eqz(type, "Unigram") || (!type.p && us_json_type_of(d, vocab) == US_JSON_ARRAY);
    if (type.p && !t->unigram && !us_str_eqz(type, "BPE")) return us_fail(err, US_E_UNSUPPORTED, "unsupported", "model type %.*s", US_STR_ARG(type));
    t->byte_fallback = flag(d, m, "byte_fallback");
    t->fuse_unk = flag(d, m, "fuse_unk");
    t->ignore_merges = flag(d, m, "ignore_merges");
    double dropout = 0;
    if (us_json_double(d, us_json_get(d, m, "dropout"), &dropout) && dropout > 0) return us_fail(err, US_E_UNSUPPORTED, "unsupported", "BPE dropout");
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++)
        if (us_json_string(d, us_json_get(d, m, affix[i])).n) return us_fail(err, US_E_UNSUPPORTED, "unsupported", "%s of the BPE model", affix[i]);
    t->unk = US_TOK_NONE;
    if (t->unigram) {
        US_TRY(load_unigram_vocab(t, d, vocab, err));
        uint64_t unk;
        if (us_json_u64(d, us_json_get(d, m, "unk_id"), &unk)) {
            if (unk >= t->vocab.n_ids) return us_tok_bad(err, "model.unk_id is not in the vocabulary");
            t->unk = (uint32_t)unk;
        }
        US_TRY(us_vocab_index(&t->vocab, err));
        return byte_ids(t);
    }
    US_TRY(raw->vocab ? load_raw_vocab(t, raw, err) : load_bpe_vocab(t, d, vocab, err));
    US_TRY(us_vocab_index(&t->vocab, err));
    if (raw->vocab && t->vocab.same) return us_tok_bad(err, "a token is in model.vocab twice");
    US_TRY(us_shorts_build(t, err));
    us_str unk = us_json_string(d, us_json_get(d, m, "unk_token"));
    if (unk.p) {
        t->unk = us_tokenizer_find(t, unk.p, unk.n);
        if (t->unk == US_TOK_NONE) return us_tok_bad(err, "model.unk_token is not in the vocabulary");
    }
    US_TRY(byte_ids(t));
    return load_merges(t, d, us_json_get(d, m, "merges"), raw, err);
}

uint32_t us_tokenizer_find(const us_tokenizer *t, const char *token, size_t n) {
    uint32_t id = us_map_get(&t->vocab.odd, (us_str){token, n});
    if (id != US_MAP_NONE) return id;
    if (t->byte_level) {
        char small[256], *p = n <= sizeof small ? small : us_malloc(n);
        size_t k;
        if (p && us_utf8_valid(token, n, NULL) && unmap(t, (us_str){token, n}, p, &k)) id = us_vocab_find(&t->vocab, p, k);
        if (p != small) us_free(p);
    } else {
        id = us_vocab_find(&t->vocab, token, n);
    }
    for (size_t i = 0; id == US_TOK_NONE && i < t->n_added; i++)
        if (us_str_eq(t->added[i].content, (us_str){token, n})) id = t->added[i].id;
    return id;
}

uint32_t us_tokenizer_n_ids(const us_tokenizer *t) {
    return t->n_ids;
}

/* ---- all ---- */

static us_status load_all(us_tokenizer *t, const us_json_doc *d, const us_raw_model *raw, us_err *err) {
    if (us_json_type_of(d, 0) != US_JSON_OBJECT) return us_tok_bad(err, "is no object");
    us_json_ref model = us_json_get(d, 0, "model");
    if (us_json_type_of(d, model) != US_JSON_OBJECT) return us_tok_bad(err, "has no model");
    make_alphabet(t);
    US_TRY(us_tok_load_pre(t, d, us_json_get(d, 0, "pre_tokenizer"), err));
    US_TRY(us_tok_load_norm(t, d, us_json_get(d, 0, "normalizer"), err));
    US_TRY(load_model(t, d, model, raw, err));
    US_TRY(us_tok_load_added(t, d, us_json_get(d, 0, "added_tokens"), err));
    US_TRY(us_tok_load_post(t, d, us_json_get(d, 0, "post_processor"), err));
    US_TRY(us_tok_load_decoder(t, d, us_json_get(d, 0, "decoder"), err));
    if (t->n_pre == 2 && t->pre[0].kind == US_PRE_SPLIT && t->pre[0].pattern.scan && t->pre[0].pattern.covers &&
        ((t->pre[0].behavior == US_SPLIT_ISOLATED) || (t->pre[0].behavior == US_SPLIT_REMOVED && t->pre[0].invert)) && t->pre[1].kind == US_PRE_BYTES &&
        !t->pre[1].regex && !t->pre[1].prefix_space)
        t->fast = t->pre[0].pattern.scan;
    if (t->n_pre == 1 && t->pre[0].kind == US_PRE_BYTES && t->pre[0].regex && !t->pre[0].prefix_space) t->fast = us_scan_gpt2();
    t->windows = us_scan_windows(t->fast);
    return US_OK;
}

/* With the long members read apart (raw->vocab) or not. */
static us_status parse(us_str text, const us_raw_model *raw, us_tokenizer **out, us_err *err) {
    us_tokenizer *t = us_calloc(1, sizeof *t);
    if (!t) return us_tok_nomem(err);
    us_json_doc d;
    us_status s = us_json_doc_parse(&d, text, 0, err);
    if (s == US_OK) {
        s = load_all(t, &d, raw, err);
        us_json_doc_free(&d);
    }
    if (s != US_OK) us_tokenizer_free(t);
    else *out = t;
    return s;
}

us_status us_tokenizer_parse(const char *json, size_t n, us_tokenizer **out, us_err *err) {
    us_uc_init();
    us_str text = {json, n};
    us_raw_model raw;
    us_status s = US_E_FORMAT;
    bool apart = us_raw_read(text, &raw);
    if (apart) s = parse(us_buf_view(&raw.rest), &raw, out, err);
    us_raw_free(&raw);
    if (s != US_E_FORMAT) return s;
    if (apart && err) *err = (us_err){0};
    return parse(text, &(us_raw_model){0}, out, err); /* places in messages are those of the file */
}

us_status us_tokenizer_load(const char *path, us_tokenizer **out, us_err *err) {
    us_arena a = {0};
    const char *file = path;
    if (us_fs_kind_of(path) == US_FS_FOLDER) file = us_fs_join(&a, path, "tokenizer.json");
    char *text = NULL;
    size_t n = 0;
    us_status s = file ? us_fs_read_all(file, US_TOK_FILE_MAX, &text, &n, err) : us_tok_nomem(err);
    if (s == US_OK) {
        s = us_tokenizer_parse(text, n, out, err);
        if (s != US_OK) us_err_where(err, "%s", file);
    }
    us_free(text);
    us_arena_free(&a);
    return s;
}

void us_tokenizer_free(us_tokenizer *t) {
    if (!t) return;
    for (int i = 0; i < t->n_norm; i++) us_pattern_free(&t->norm[i].pattern);
    for (int i = 0; i < t->n_pre; i++) us_pattern_free(&t->pre[i].pattern);
    us_vocab_free(&t->vocab);
    us_free(t->merges.slots);
    us_free(t->merges.seen);
    us_free(t->byte_pairs);
    us_free(t->shorts);
    us_free(t->added_by_id);
    us_arena_free(&t->arena);
    us_free(t);
}
