/*
 * Fuzz target: a text for byte-level tokenizers of the three patterns whose words are found by windows. The first byte chooses the pattern and whether merges are ignored. The fast path must give
 * what splitting and merging give, and the text must come back.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "understudy/us_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
#define BEHIND "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT(regex)                                                                                                                                  \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false},"    \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]}"

static const char *const patterns[] = {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}", SPLIT(CONTRACTIONS "\\\\p{N}" BEHIND), SPLIT(CONTRACTIONS "\\\\p{N}{1,3}" BEHIND)};
static const char *const merges[][2] = {{"t", "h"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"a", "b"}, {"ab", "ab"}, {"'", "s"}, {"\xC4\xA0", "\xC4\xA0"}, {"\xC4\x8A", "\xC4\x8A"}, {"e", "r"}, {"h", "e"}, {"1", "2"}, {"!", "!"}, {"b", "a"}, {"\xC3\x83", "\xC2\xA9"}};

/* The byte alphabet as the format has it: printable bytes stand for themselves, the others for U+0100 on. */
static void add_byte(us_buf *b, unsigned c, unsigned *spare) {
    char u[4];
    bool plain = (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || c >= 0xAE;
    us_buf_json(b, (us_str){u, us_utf8_put(u, plain ? c : 0x100 + (*spare)++)});
}

static us_tokenizer *make(const char *pattern, bool ignore) {
    us_buf b = {0};
    us_err err = {0};
    us_tokenizer *t = NULL;
    unsigned spare = 0, id = 0;
    us_buf_printf(&b, "{\"added_tokens\":[],\"pre_tokenizer\":%s,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"vocab\":{", pattern, ignore ? "true" : "false");
    for (; id < 256; id++) {
        us_buf_z(&b, id ? "," : "");
        add_byte(&b, id, &spare);
        us_buf_printf(&b, ":%u", id);
    }
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) us_buf_printf(&b, ",\"%s%s\":%u", merges[i][0], merges[i][1], id++);
    us_buf_printf(&b, ",\"\xC4\xA0hello\":%u},\"merges\":[", id);
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) us_buf_printf(&b, "%s\"%s %s\"", i ? "," : "", merges[i][0], merges[i][1]);
    us_buf_z(&b, "]}}");
    require(us_tokenizer_parse(us_buf_text(&b), b.n, &t, &err) == US_OK);
    us_buf_free(&b);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static us_tokenizer *all[6];
    static us_tok_scratch *scratch[6];
    us_err err = {0};
    if (!size) return 0;
    unsigned which = data[0] % 6;
    if (!all[which]) {
        all[which] = make(patterns[which / 2], which % 2);
        require(us_tok_scratch_create(all[which], &scratch[which], &err) == US_OK);
    }
    const char *text = (const char *)data + 1, *p;
    size_t n = size - 1, k;
    us_tok_ids a = {0}, b = {0};
    us_tok_stream *st = NULL;
    us_buf back = {0};
    require(us_tokenizer_encode(all[which], scratch[which], text, n, 0, &a, &err) == US_OK);
    require(us_tokenizer_encode(all[which], scratch[which], text, n, US_TOK_OFFSETS, &b, &err) == US_OK);
    require(a.n == b.n && (a.n == 0 || memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0));
    require(us_tok_stream_create(all[which], 0, &st, &err) == US_OK);
    for (size_t i = 0; i < a.n; i++) {
        require(us_tok_stream_push(st, a.ids[i], &p, &k, &err) == US_OK);
        us_buf_add(&back, p, k);
    }
    require(us_tok_stream_finish(st, &p, &k, &err) == US_OK);
    us_buf_add(&back, p, k);
    if (!us_utf8_valid(text, n, NULL)) require(a.replaced > 0);
    else require(a.replaced == 0 && us_str_eq(us_buf_view(&back), (us_str){text, n}));
    us_buf_free(&back);
    us_tok_stream_free(st);
    us_tok_ids_free(&a);
    us_tok_ids_free(&b);
    return 0;
}
