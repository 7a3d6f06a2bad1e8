/* tokenizer.json: normalizer, pre-tokenizer, added tokens, post-processor, decoder. Tests: see load.c. */
#include <string.h>

#include "model/tokenizer/load.h"

static us_status unsupported(us_err *err, const char *what, us_str type) {
    char shown[100];
    us_escape_line(type.p ? type.p : "", type.n, shown, sizeof shown);
    return us_fail(err, US_E_UNSUPPORTED, "unsupported", "tokenizer.json: %s of type %s", what, shown);
}

static bool flag(const us_json_doc *d, us_json_ref o, const char *key, bool def) {
    bool v = def;
    (void)us_json_bool(d, us_json_get(d, o, key), &v);
    return v;
}

static us_status copy(us_tokenizer *t, us_str from, us_str *to, us_err *err) {
    char *p = us_arena_strndup(&t->arena, from.p ? from.p : "", from.n);
    if (!p) return us_tok_nomem(err);
    *to = (us_str){p, from.n};
    return US_OK;
}

static us_status pattern(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_pattern *p, us_err *err) {
    us_str s = us_json_string(d, us_json_get(d, r, "String")), re = us_json_string(d, us_json_get(d, r, "Regex"));
    if (s.p) return copy(t, s, &p->literal, err);
    if (!re.p) return us_tok_bad(err, "a pattern is neither String nor Regex");
    return us_pattern_compile(p, re, err);
}

/* Members of a Sequence under `key`, else the thing itself; calls one for each. */
typedef us_status (*one_fn)(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_str type, us_err *err);

static us_status each(us_tokenizer *t, const us_json_doc *d, us_json_ref r, const char *key, one_fn one, int depth, us_err *err) {
    if (r == US_JSON_NO || us_json_type_of(d, r) == US_JSON_NULL) return US_OK;
    us_str type = us_json_string(d, us_json_get(d, r, "type"));
    if (!us_str_eqz(type, "Sequence")) return one(t, d, r, type, err);
    if (depth > 8) return us_fail(err, US_E_LIMIT, "limit", "tokenizer.json: %s are nested too deeply", key);
    us_json_ref list = us_json_get(d, r, key);
    for (us_json_ref e = us_json_first(d, list); e != US_JSON_NO; e = us_json_next(d, list, e)) US_TRY(each(t, d, e, key, one, depth + 1, err));
    return US_OK;
}

/* ---- normalizers ---- */

static int b64(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static us_status load_charsmap(us_tokenizer *t, us_str text, us_norm_step *st, us_err *err) {
    unsigned char *p = us_arena_alloc(&t->arena, text.n / 4 * 3 + 8);
    if (!p) return us_tok_nomem(err);
    size_t n = 0;
    uint32_t acc = 0;
    int bits = 0;
    for (size_t i = 0; i < text.n && text.p[i] != '='; i++) {
        int v = b64(text.p[i]);
        if (v < 0) return us_tok_bad(err, "precompiled_charsmap is no base64");
        acc = acc << 6 | (uint32_t)v;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            p[n++] = (unsigned char)(acc >> bits);
        }
    }
    uint32_t size = n >= 4 ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24 : 1;
    if (size % 4 || size > n - 4) return us_tok_bad(err, "precompiled_charsmap is cut");
    uint32_t *trie = us_arena_alloc(&t->arena, size + 4);
    if (!trie) return us_tok_nomem(err);
    for (uint32_t i = 0; i < size / 4; i++) {
        const unsigned char *q = p + 4 + 4 * i;
        trie[i] = (uint32_t)q[0] | (uint32_t)q[1] << 8 | (uint32_t)q[2] << 16 | (uint32_t)q[3] << 24;
    }
    st->trie = trie;
    st->trie_n = size / 4;
    st->text = (us_str){(char *)p + 4 + size, n - 4 - size};
    if (!us_utf8_valid(st->text.p, st->text.n, NULL)) return us_tok_bad(err, "precompiled_charsmap holds text that is not UTF-8");
    return US_OK;
}

static us_status one_norm(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_str type, us_err *err) {
    if (t->n_norm == US_TOK_STEPS_MAX) return us_fail(err, US_E_LIMIT, "limit", "more than %d normalizers", US_TOK_STEPS_MAX);
    us_norm_step *st = &t->norm[t->n_norm];
    *st = (us_norm_step){0};
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (int i = 0; i < 4; i++)
        if (us_str_eqz(type, forms[i])) {
            st->kind = (us_norm_kind)((int)US_NORM_NFC + i);
            t->n_norm++;
            return US_OK;
        }
    if (us_str_eqz(type, "Prepend")) {
        st->kind = US_NORM_PREPEND;
        US_TRY(copy(t, us_json_string(d, us_json_get(d, r, "prepend")), &st->text, err));
    } else if (us_str_eqz(type, "Replace")) {
        st->kind = US_NORM_REPLACE;
        US_TRY(copy(t, us_json_string(d, us_json_get(d, r, "content")), &st->text, err));
        US_TRY(pattern(t, d, us_json_get(d, r, "pattern"), &st->pattern, err));
    } else if (us_str_eqz(type, "Strip")) {
        st->kind = US_NORM_STRIP;
        st->left = flag(d, r, "strip_left", true);
        st->right = flag(d, r, "strip_right", true);
    } else if (us_str_eqz(type, "Precompiled")) {
        st->kind = US_NORM_CHARSMAP;
        US_TRY(load_charsmap(t, us_json_string(d, us_json_get(d, r, "precompiled_charsmap")), st, err));
    } else {
        return unsupported(err, "normalizer", type);
    }
    t->n_norm++;
    return US_OK;
}

us_status us_tok_load_norm(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) {
    return each(t, d, r, "normalizers", one_norm, 0, err);
}

/* ---- pre-tokenizers ---- */

static us_status behavior(const us_json_doc *d, us_json_ref r, us_behavior *out, us_err *err) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    us_str s = us_json_string(d, us_json_get(d, r, "behavior"));
    for (int i = 0; i < 5; i++)
        if (us_str_eqz(s, names[i])) {
            *out = (us_behavior)i;
            return US_OK;
        }
    return unsupported(err, "split behavior", s);
}

static us_status metaspace(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_pre_step *st, us_err *err) {
    st->kind = US_PRE_METASPACE;
    US_TRY(copy(t, us_json_string(d, us_json_get(d, r, "replacement")), &st->text, err));
    if (!st->text.n) US_TRY(copy(t, US_LIT("\xE2\x96\x81"), &st->text, err));
    st->split = flag(d, r, "split", true);
    us_str s = us_json_string(d, us_json_get(d, r, "prepend_scheme"));
    st->scheme = us_str_eqz(s, "never") ? 0 : us_str_eqz(s, "first") ? 1 : 2;
    if (!s.p && !flag(d, r, "add_prefix_space", true)) st->scheme = 0;
    return US_OK;
}

static us_status one_pre(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_str type, us_err *err) {
    if (t->n_pre == US_TOK_STEPS_MAX) return us_fail(err, US_E_LIMIT, "limit", "more than %d pre-tokenizers", US_TOK_STEPS_MAX);
    us_pre_step *st = &t->pre[t->n_pre];
    *st = (us_pre_step){0};
    if (us_str_eqz(type, "ByteLevel")) {
        if (t->byte_level) return us_fail(err, US_E_UNSUPPORTED, "unsupported", "ByteLevel twice");
        st->kind = US_PRE_BYTES;
        st->prefix_space = flag(d, r, "add_prefix_space", true);
        st->regex = flag(d, r, "use_regex", true);
        t->byte_level = true;
    } else if (us_str_eqz(type, "Split")) {
        st->kind = US_PRE_SPLIT;
        st->invert = flag(d, r, "invert", false);
        US_TRY(behavior(d, r, &st->behavior, err));
        US_TRY(pattern(t, d, us_json_get(d, r, "pattern"), &st->pattern, err));
    } else if (us_str_eqz(type, "Punctuation")) {
        st->kind = US_PRE_PUNCT;
        if (us_json_get(d, r, "behavior") != US_JSON_NO) US_TRY(behavior(d, r, &st->behavior, err));
    } else if (us_str_eqz(type, "Digits")) {
        st->kind = US_PRE_DIGITS;
        st->behavior = flag(d, r, "individual_digits", false) ? US_SPLIT_ISOLATED : US_SPLIT_CONTIGUOUS;
    } else if (us_str_eqz(type, "WhitespaceSplit")) {
        st->kind = US_PRE_WS;
        st->behavior = US_SPLIT_REMOVED;
    } else if (us_str_eqz(type, "Metaspace")) {
        if (t->byte_level) return us_fail(err, US_E_UNSUPPORTED, "unsupported", "Metaspace behind ByteLevel");
        US_TRY(metaspace(t, d, r, st, err));
    } else {
        return unsupported(err, "pre-tokenizer", type);
    }
    t->n_pre++;
    return US_OK;
}

us_status us_tok_load_pre(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) {
    return each(t, d, r, "pretokenizers", one_pre, 0, err);
}

/* ---- added tokens ---- */

static us_status one_added(us_tokenizer *t, us_tok_scratch *s, const us_json_doc *d, us_json_ref r, us_err *err) {
    us_added *a = &t->added[t->n_added];
    us_str content = us_json_string(d, us_json_get(d, r, "content"));
    uint64_t id;
    if (!content.p || !us_json_u64(d, us_json_get(d, r, "id"), &id) || id >= US_TOK_ID_MAX) return us_tok_bad(err, "an added token has no content or no id");
    if (content.n == 0) return US_OK;
    US_TRY(copy(t, content, &a->content, err));
    a->single_word = flag(d, r, "single_word", false);
    a->lstrip = flag(d, r, "lstrip", false);
    a->rstrip = flag(d, r, "rstrip", false);
    a->special = flag(d, r, "special", false);
    a->normalized = flag(d, r, "normalized", !a->special);
    uint32_t in_vocab = us_tokenizer_find(t, content.p, content.n);
    a->id = in_vocab != US_TOK_NONE ? in_vocab : (uint32_t)id;
    a->shown = a->content;
    if (a->normalized && t->n_norm) {
        US_TRY(us_work_set(&s->a, content.p, content.n, 0, err));
        US_TRY(us_tok_normalize(t, s, &s->a, false, err));
        US_TRY(copy(t, (us_str){s->a.p, s->a.n}, &a->shown, err));
    }
    bool odd;
    US_TRY(us_tok_token_bytes(t, &t->arena, a->shown, &a->bytes, &odd, err));
    t->n_added++;
    if (a->id >= t->n_ids) t->n_ids = a->id + 1;
    return US_OK;
}

us_status us_tok_load_added(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) {
    t->n_ids = (uint32_t)t->vocab.n_ids;
    us_tok_scratch *s = NULL;
    US_TRY(us_tok_scratch_create(t, &s, err));
    uint32_t n = us_json_type_of(d, r) == US_JSON_ARRAY ? us_json_count(d, r) : 0;
    us_status st = US_OK;
    t->added = us_arena_calloc(&t->arena, (size_t)n + 1, sizeof *t->added);
    if (!t->added) st = us_tok_nomem(err);
    for (us_json_ref e = n ? us_json_first(d, r) : US_JSON_NO; e != US_JSON_NO && st == US_OK; e = us_json_next(d, r, e)) st = one_added(t, s, d, e, err);
    us_tok_scratch_free(s);
    US_TRY(st);
    t->added_by_id = us_malloc(((size_t)t->n_ids + 1) * sizeof *t->added_by_id);
    if (!t->added_by_id) return us_tok_nomem(err);
    memset(t->added_by_id, 0xff, ((size_t)t->n_ids + 1) * sizeof *t->added_by_id);
    for (uint32_t i = 0; i < t->n_added; i++) t->added_by_id[t->added[i].id] = i;
    US_TRY(us_matcher_build(t, &t->raw, false, err));
    return us_matcher_build(t, &t->normalized, true, err);
}

/* ---- post-processor ---- */

static us_status template_piece(us_tokenizer *t, const us_json_doc *d, us_json_ref tmpl, us_json_ref e, bool *behind, us_err *err) {
    us_json_ref sp = us_json_get(d, e, "SpecialToken");
    if (sp == US_JSON_NO) {
        *behind = true;
        return US_OK;
    }
    us_str name = us_json_string(d, us_json_get(d, sp, "id"));
    us_json_ref table = us_json_get(d, tmpl, "special_tokens"), ids = US_JSON_NO;
    for (us_json_ref k = us_json_first(d, table); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, table, k);
        if (name.p && us_str_eq(us_json_string(d, k), name)) ids = us_json_get(d, v, "ids");
        k = us_json_next(d, table, v);
    }
    if (us_json_type_of(d, ids) != US_JSON_ARRAY) return us_tok_bad(err, "a special token of the template is not described");
    for (us_json_ref i = us_json_first(d, ids); i != US_JSON_NO; i = us_json_next(d, ids, i)) {
        uint64_t id;
        int *n = *behind ? &t->n_suffix : &t->n_prefix;
        if (!us_json_u64(d, i, &id) || id >= US_TOK_ID_MAX || *n == 16) return us_tok_bad(err, "ids of the template");
        (*behind ? t->suffix : t->prefix)[(*n)++] = (uint32_t)id;
    }
    return US_OK;
}

static us_status one_post(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_str type, us_err *err) {
    if (us_str_eqz(type, "ByteLevel")) {
        t->trim = flag(d, r, "trim_offsets", true);
        t->trim_prefix_space = flag(d, r, "add_prefix_space", true);
        return US_OK;
    }
    if (!us_str_eqz(type, "TemplateProcessing")) return unsupported(err, "post-processor", type);
    us_json_ref single = us_json_get(d, r, "single");
    bool behind = false;
    if (us_json_type_of(d, single) != US_JSON_ARRAY) return us_tok_bad(err, "the template has no list `single`");
    for (us_json_ref e = us_json_first(d, single); e != US_JSON_NO; e = us_json_next(d, single, e)) US_TRY(template_piece(t, d, r, e, &behind, err));
    return US_OK;
}

us_status us_tok_load_post(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) {
    return each(t, d, r, "processors", one_post, 0, err);
}

/* ---- decoders ---- */

static us_status one_decoder(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_str type, us_err *err) {
    if (us_str_eqz(type, "ByteLevel")) {
        if (!t->byte_level) return us_fail(err, US_E_UNSUPPORTED, "unsupported", "a ByteLevel decoder without a ByteLevel pre-tokenizer");
        t->decoder = US_TOK_DEC_BYTES;
        return US_OK;
    }
    if (us_str_eqz(type, "Metaspace")) {
        t->decoder = US_TOK_DEC_METASPACE;
        us_str mark = us_json_string(d, us_json_get(d, r, "replacement"));
        return copy(t, mark.n ? mark : US_LIT("\xE2\x96\x81"), &t->dec_from, err);
    }
    if (t->decoder == US_TOK_DEC_BYTES || t->decoder == US_TOK_DEC_METASPACE) return unsupported(err, "a second decoder", type);
    t->decoder = US_TOK_DEC_SP;
    if (us_str_eqz(type, "Replace")) {
        if (t->dec_from.n) return unsupported(err, "a second decoder", type);
        us_str from = us_json_string(d, us_json_get(d, us_json_get(d, r, "pattern"), "String"));
        if (!from.n) return unsupported(err, "a decoder pattern", type);
        US_TRY(copy(t, from, &t->dec_from, err));
        return copy(t, us_json_string(d, us_json_get(d, r, "content")), &t->dec_to, err);
    }
    if (us_str_eqz(type, "ByteFallback")) {
        t->dec_fallback = true;
        return US_OK;
    }
    if (us_str_eqz(type, "Fuse")) return US_OK;
    if (us_str_eqz(type, "Strip")) {
        uint64_t start = 0, stop = 0;
        us_str c = us_json_string(d, us_json_get(d, r, "content"));
        (void)us_json_u64(d, us_json_get(d, r, "start"), &start);
        (void)us_json_u64(d, us_json_get(d, r, "stop"), &stop);
        if (c.n != 1 || stop || start > 1000) return unsupported(err, "a decoder", type);
        t->dec_strip = (int)start;
        t->dec_strip_char = c.p[0];
        return US_OK;
    }
    return unsupported(err, "decoder", type);
}

us_status us_tok_load_decoder(us_tokenizer *t, const us_json_doc *d, us_json_ref r, us_err *err) {
    return each(t, d, r, "decoders", one_decoder, 0, err);
}
